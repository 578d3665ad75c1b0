"""Table 18: 2 free riders on the powerlaw split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, RAMP, RIDE

TABLE = WithAttackers("table18", RAMP, RIDE, FEW)
TITLE, CLAIM = TABLE.title, claim(RIDE, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
