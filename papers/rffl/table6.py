"""Table 6: 11 label flippers on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FLIP, MANY, UNIFORM

TABLE = WithAttackers("table6", UNIFORM, FLIP, MANY)
TITLE, CLAIM = TABLE.title, claim(FLIP, MANY)
MINUTES = {"quick": 0.8, "paper": 260.0}
runs, render = TABLE.runs, TABLE.render
