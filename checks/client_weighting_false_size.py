"""Client weighting, Figure 6: one false size ruins even a weighted median; truncated sizes bound what it weighs.

40 clients with log-normal numbers of MNIST images, a perceptron, 12 rounds; one client reports ten million examples and
sends back the model that it got, negated.  Published and stored (results/scoreboard.md, "model negation, 1 attacker"):
below 20 % with declared sizes, as without an attack with truncated ones.
"""

import numpy as np
import torch
from mnist import load
from torch import nn

CLIENTS, ROUNDS, ALPHA, ALPHA_STAR, FALSE = 40, 12, 0.1, 0.5, 10_000_000
x, y = map(torch.from_numpy, load("train"))
test_x, test_y = map(torch.from_numpy, load("t10k"))
sizes = np.random.default_rng(0).lognormal(4.5, 0.8, CLIENTS).astype(int).clip(8)
starts = np.concatenate([[0], sizes.cumsum()])


def truncated(reported):
    """Return sizes cut at the largest U with which the largest tenth of clients holds at most half of the weight."""
    top = int(np.ceil(ALPHA * len(reported)))

    def share(u):
        cut = np.sort(np.minimum(reported, u))
        return cut[-top:].sum() / cut.sum()

    return np.minimum(reported, max(u for u in np.unique(reported) if share(u) <= ALPHA_STAR))


def weighted_median(rows, weights):
    """Return for each column a value with at most half of the weight on either side."""
    order = rows.argsort(0)
    below = torch.from_numpy(weights / weights.sum())[order].cumsum(0)
    return rows.gather(0, order.gather(0, (below >= 0.5).to(torch.uint8).argmax(0, keepdim=True)))[0]


def accuracy(attacked, weights):
    """Return the accuracy after all rounds, in percent."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    params = list(net.parameters())
    at = nn.utils.parameters_to_vector(params).detach()
    for _ in range(ROUNDS):
        models = []
        for i in range(CLIENTS):
            nn.utils.vector_to_parameters(at.clone(), net.parameters())
            for batch in (starts[i] + torch.randperm(int(sizes[i]))).split(16):
                net.zero_grad()
                nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
                with torch.no_grad():
                    torch._foreach_add_(params, [p.grad for p in params], alpha=-0.2)
            models.append(nn.utils.parameters_to_vector(params).detach().clone())
        if attacked:
            models[0] = -at
        at = weighted_median(torch.stack(models), weights)
    nn.utils.vector_to_parameters(at, net.parameters())
    with torch.no_grad():
        return 100 * (net(test_x).argmax(1) == test_y).double().mean().item()


reported = np.concatenate([[FALSE], sizes[1:]]).astype(float)
clean = accuracy(False, sizes.astype(float))
declared, cut = accuracy(True, reported), accuracy(True, truncated(reported))
print(f"median: {clean:.1f} % without an attack; attacked: declared {declared:.1f} %, truncated {cut:.1f} %")
assert declared < 20, "a client with most of the weight is the median"
assert clean - cut < 5, "truncated sizes should bound it"
