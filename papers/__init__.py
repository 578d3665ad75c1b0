"""The five papers, one package each: every module of one reproduces a table or figure."""
