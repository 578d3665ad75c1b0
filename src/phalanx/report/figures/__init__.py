"""The report's pictures, a module for each subject: its data from a record, its drawing and its caption."""
