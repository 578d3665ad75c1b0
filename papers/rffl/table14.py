"""Table 14: 2 label flippers on the powerlaw split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, FLIP, RAMP

TABLE = WithAttackers("table14", RAMP, FLIP, FEW)
TITLE, CLAIM = TABLE.title, claim(FLIP, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
