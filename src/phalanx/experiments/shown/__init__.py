"""How the results of studies, papers and the leaderboard are shown: tables, figures, pages, progress."""
