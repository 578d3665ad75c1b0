"""Table 17: 2 value inverters on the powerlaw split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, INVERT, RAMP

TABLE = WithAttackers("table17", RAMP, INVERT, FEW)
TITLE, CLAIM = TABLE.title, claim(INVERT, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
