"""The leaderboard: every defence against the worst attack that a search finds, by heterogeneity and share of attackers.

`docs/leaderboard.md` is its page, `phalanx leaderboard` the command that carries out what is missing.
"""

from phalanx.experiments.leaderboard.defences import DEFENCES, Defence, Setup
from phalanx.experiments.leaderboard.tiers import TIERS, Tier

__all__ = ["DEFENCES", "TIERS", "Defence", "Setup", "Tier"]
