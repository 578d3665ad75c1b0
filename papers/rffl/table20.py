"""Table 20: 11 re-scalers on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import MANY, RESCALE, UNIFORM

TABLE = WithAttackers("table20", UNIFORM, RESCALE, MANY)
TITLE, CLAIM = TABLE.title, claim(RESCALE, MANY)
MINUTES = {"quick": 0.8, "paper": 260.0}
runs, render = TABLE.runs, TABLE.render
