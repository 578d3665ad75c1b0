"""A. Toy, "On Toys", Journal of Toys, 2020."""

from phalanx.reproduce import Paper

PAPER = Paper(name="toy-paper", title="On Toys", citation='A. Toy, "On Toys", Journal of Toys, 2020')
