"""Table 21: 11 value inverters on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import INVERT, MANY, UNIFORM

TABLE = WithAttackers("table21", UNIFORM, INVERT, MANY)
TITLE, CLAIM = TABLE.title, claim(INVERT, MANY)
MINUTES = {"quick": 0.8, "paper": 260.0}
runs, render = TABLE.runs, TABLE.render
