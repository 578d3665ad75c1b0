"""Table 7: 2 sign randomisers on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, SIGNS, UNIFORM

TABLE = WithAttackers("table7", UNIFORM, SIGNS, FEW)
TITLE, CLAIM = TABLE.title, claim(SIGNS, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
