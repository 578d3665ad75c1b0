"""Table 9: 2 value inverters on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, INVERT, UNIFORM

TABLE = WithAttackers("table9", UNIFORM, INVERT, FEW)
TITLE, CLAIM = TABLE.title, claim(INVERT, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
