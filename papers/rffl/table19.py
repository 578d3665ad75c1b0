"""Table 19: 11 sign randomisers on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import MANY, SIGNS, UNIFORM

TABLE = WithAttackers("table19", UNIFORM, SIGNS, MANY)
TITLE, CLAIM = TABLE.title, claim(SIGNS, MANY)
MINUTES = {"quick": 0.8, "paper": 260.0}
runs, render = TABLE.runs, TABLE.render
