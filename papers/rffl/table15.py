"""Table 15: 2 sign randomisers on the powerlaw split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, RAMP, SIGNS

TABLE = WithAttackers("table15", RAMP, SIGNS, FEW)
TITLE, CLAIM = TABLE.title, claim(SIGNS, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
