"""Table 16: 2 re-scalers on the powerlaw split."""

from papers.rffl.robustness import WithAttackers, claim
from papers.rffl.setting import FEW, RAMP, RESCALE

TABLE = WithAttackers("table16", RAMP, RESCALE, FEW)
TITLE, CLAIM = TABLE.title, claim(RESCALE, FEW)
MINUTES = {"quick": 0.5, "paper": 150.0}
runs, render = TABLE.runs, TABLE.render
