"""Table 22: 11 free riders on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import MANY, RIDE, UNIFORM

TABLE = WithAttackers("table22", UNIFORM, RIDE, MANY)
TITLE, CLAIM = TABLE.title, claim(RIDE, MANY)
MINUTES = {"quick": 0.8, "paper": 260.0}
runs, render = TABLE.runs, TABLE.render
