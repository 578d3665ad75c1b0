"""The report's pictures, a module for each subject: what it reads from a record, how it draws it, what it says."""
