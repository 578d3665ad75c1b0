"""Client weighting: one client that reports ten million examples defeats a weighted median; truncation repairs it.

MNIST, the partition of the authors' program (75 clients), one step a round on a tenth of a client's examples, labels
y -> 9 - y at the attacker.  Published after 100 rounds (Figure 6): 10 % as reported, 83 % truncated, 54 % ignored.
Stored: 7.6, 83.8, 54.0 (results/client-weighting/figure6-quick.md).

    python checks/client_weighting_sizes.py [rounds]
"""

import sys

import numpy as np
import torch
from mnist import load
from torch import nn

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
ALPHA, ALPHA_STAR, LR, CLAIMED = 0.1, 0.5, 0.05, 10_000_000


def sizes():
    """Return the program's partition: a multinomial of one Dirichlet draw with lognormal concentrations."""
    rng = np.random.RandomState(1)
    counts = rng.multinomial(60_000, rng.dirichlet(rng.lognormal(1.5, 3.45, 100)))
    return counts[counts > 0]


def truncated(n):
    """Return sizes cut to the largest bound U at which the top ALPHA of the clients hold at most ALPHA_STAR."""
    top = int(np.ceil(ALPHA * len(n) - 1e-9))
    for bound in sorted(set(range(1, 5000)) | set(n.tolist()), reverse=True):
        cut = np.sort(np.minimum(n, bound))
        if cut[-top:].sum() <= ALPHA_STAR * cut.sum():
            return np.minimum(n, bound)
    raise ValueError("no bound is feasible")


def weighted_median(rows, weights):
    """Return the lower weighted median of each column."""
    values, order = rows.sort(0)
    below = weights[order].cumsum(0)
    return values.gather(0, (below < weights.sum() / 2).sum(0, keepdim=True)).squeeze(0)


def model():
    """Return the perceptron 784-64-10 with Keras' initial weights."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    for layer in (net[1], net[4]):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return net


def accuracy(weights, attacker):
    """Return the accuracy after all rounds, in percent."""
    torch.manual_seed(0)
    rng, net = np.random.default_rng(0), model()
    at = nn.utils.parameters_to_vector(net.parameters()).detach()
    for _ in range(ROUNDS):
        deltas = torch.empty(len(parts), len(at))
        for i, part in enumerate(parts):
            drawn = rng.choice(part, max(len(part) // 10, 1), replace=False)
            nn.utils.vector_to_parameters(at.clone(), net.parameters())
            net.train().zero_grad()
            labels = 9 - y[drawn] if i == attacker else y[drawn]
            nn.functional.cross_entropy(net(x[drawn]), labels).backward()
            deltas[i] = -LR * torch.cat([p.grad.flatten() for p in net.parameters()])
        at = at + weighted_median(deltas, weights)
    nn.utils.vector_to_parameters(at, net.parameters())
    with torch.no_grad():
        return 100 * (net.eval()(test_x).argmax(1) == test_y).double().mean().item()


(x, y), (test_x, test_y) = (tuple(map(torch.from_numpy, load(part))) for part in ("train", "t10k"))
true = sizes()
assert (len(true), true.max()) == (75, 20_158), "not the authors' partition"
assert truncated(true).max() == 875, "not the bound of eight of 75 clients"
parts = np.split(np.random.default_rng(1).permutation(60_000), true.cumsum()[:-1])
attacker = 5
reported = true.copy()
reported[attacker] = CLAIMED
found = {
    "as reported": accuracy(torch.from_numpy(reported.astype(np.float64)), attacker),
    "truncated": accuracy(torch.from_numpy(truncated(reported).astype(np.float64)), attacker),
    "ignored": accuracy(torch.ones(len(parts), dtype=torch.float64), attacker),
}
print(f"{ROUNDS} rounds:", {name: round(value, 1) for name, value in found.items()})
assert found["as reported"] < 20, "the attacker should defeat the median"
assert found["truncated"] > found["ignored"] + 10, "truncation should repair it"
if ROUNDS == 100:
    assert found["truncated"] > 80, "not what is published"
