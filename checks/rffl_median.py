"""RFFL, Tables 5 to 9: the published Median at 1 % is no median; one that goes up the loss has less than that.

Ten participants with 600 MNIST images each, a perceptron, 20 rounds, nobody attacks.  A model that knows nothing has
10 %, and one that always says the same at least 8.9.  Stored: 90.3 %, and 0.2 % with the wrong sign
(docs/measurements/xu-lyu-baselines.md).  Updates are cut to norm 0.5 and the network has tanh, as in the authors'
program.
"""

import torch
from mnist import load
from torch import nn

CLIENTS, EACH, ROUNDS, BATCH, LIMIT = 10, 600, 20, 16, 0.5


def accuracy(sign):
    """Return the accuracy after all rounds of the server's model plus `sign` times the median, in percent."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10))
    params = list(net.parameters())
    at = nn.utils.parameters_to_vector(params).detach()
    for version in range(ROUNDS):
        deltas = []
        for i in range(CLIENTS):
            nn.utils.vector_to_parameters(at.clone(), net.parameters())
            for batch in torch.randperm(EACH).split(BATCH):
                net.zero_grad()
                rows = i * EACH + batch
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                with torch.no_grad():
                    torch._foreach_add_(params, [p.grad for p in params], alpha=-0.25 * 0.93**version)
            delta = nn.utils.parameters_to_vector(params).detach() - at
            deltas.append(delta * min(1.0, float(LIMIT / delta.norm())))  # as the authors' program does for RFFL
        at = at + sign * torch.stack(deltas).quantile(0.5, 0)
    nn.utils.vector_to_parameters(at, net.parameters())
    with torch.no_grad():
        return 100 * (net(test_x).argmax(1) == test_y).double().mean().item()


x, y = (torch.from_numpy(a[: CLIENTS * EACH]) for a in load("train"))
test_x, test_y = map(torch.from_numpy, load("t10k"))
right, wrong = accuracy(1), accuracy(-1)
print(f"median {right:.1f} % (stored 90.3), with the wrong sign {wrong:.1f} % (stored 0.2)")
assert abs(right - 90.3) < 1.5, "not what is stored"
assert wrong < 3, "not what is stored"
