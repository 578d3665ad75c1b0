"""A. Toy, "On Toys", Journal of Toys, 2020."""

from phalanx.experiments.papers import Paper

PAPER = Paper(name="toy-paper", title="On Toys", citation='A. Toy, "On Toys", Journal of Toys, 2020')
