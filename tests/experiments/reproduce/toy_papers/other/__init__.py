"""A paper without experiments yet."""

from phalanx.experiments.papers import Paper

PAPER = Paper("other", "On Nothing", 'B. Other, "On Nothing", 2021')
