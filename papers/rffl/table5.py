"""Table 5: 2 label flippers on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, FLIP, UNIFORM

TABLE = WithAttackers("table5", UNIFORM, FLIP, FEW)
TITLE, CLAIM = TABLE.title, claim(FLIP, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
