"""The report's pictures, a module for each subject: its data from a record, its drawing and its caption.

`picture` returns it: of a run's `ledger`, `flights` or `clusters`; `key` is unique in the page, and prefixes every id;
`full` is whether it has a whole row.
"""
