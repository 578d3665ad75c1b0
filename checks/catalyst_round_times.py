"""Catalyst, Figure 1: a synchronous round takes the longer, the more the speeds of clients differ.

Published: 1.00, 1.08, 1.15, 1.26, 1.70 and 2.00 times for spreads of 1, 2, 3, 4, 8 and 12.  A round lasts as long as
the slowest of 100 clients, whose times are |N(100, spread)|.  Stored: results/catalyst/figure1-quick.md.
"""

import numpy as np

PUBLISHED = {1: 1.00, 2: 1.08, 3: 1.15, 4: 1.26, 8: 1.70, 12: 2.00}
STORED = {1: 1.00, 2: 1.09, 3: 1.18, 4: 1.27, 8: 1.64, 12: 2.00}
CLIENTS, MEAN, FEDERATIONS = 100, 100.0, 2000

rng = np.random.default_rng(0)
for share, fits in ((0.04, True), (0.20, False)):
    slowest = {
        spread: np.abs(rng.normal(MEAN, spread * share * MEAN, (FEDERATIONS, CLIENTS))).max(1) for spread in PUBLISHED
    }
    ours = {spread: times.mean() / slowest[1].mean() for spread, times in slowest.items()}
    print(f"deviation of {share:.0%} at spread 1:", {spread: round(float(f), 2) for spread, f in ours.items()})
    spread_of_one = {spread: times.std() / slowest[1].mean() for spread, times in slowest.items()}
    within = all(abs(ours[s] - PUBLISHED[s]) <= 2 * spread_of_one[s] for s in PUBLISHED)
    assert within == fits, "the published factors should fit a deviation of 4 %, and no other"
    if fits:
        assert all(abs(ours[s] - STORED[s]) < 0.03 for s in STORED), "not what is stored"
print("The published factors fit a deviation of 4 % of the mean, not the 20 % of the other experiments.")
