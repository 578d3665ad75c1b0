"""Table 13: 2 free riders on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, RIDE, UNIFORM

TABLE = WithAttackers("table13", UNIFORM, RIDE, FEW)
TITLE, CLAIM = TABLE.title, claim(RIDE, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
