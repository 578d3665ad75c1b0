"""Table 8: 2 re-scalers on the uniform split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, RESCALE, UNIFORM

TABLE = WithAttackers("table8", UNIFORM, RESCALE, FEW)
TITLE, CLAIM = TABLE.title, claim(RESCALE, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
