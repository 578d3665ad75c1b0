"""The five papers, one package each: every module of one is a table or figure, computed again."""
