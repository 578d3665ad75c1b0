"""A paper without experiments yet."""

from phalanx.experiments import Paper

PAPER = Paper("other", "On Nothing", 'B. Other, "On Nothing", 2021')
