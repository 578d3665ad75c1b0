"""Clustered FL: from updates alone, three splits find four groups whose labels contradict one another.

20 clients with 300 MNIST images each, labels permuted in one of four ways; a perceptron.  Federated learning stagnates,
the cosine bi-partition (Algorithm 1: the smallest largest cosine across) never separates clients of one group, and each
group's own model at least doubles the accuracy.  Stored: figure 8 of clustered-fl in results/scoreboard.md, with the
claims "federated learning stagnates", "three splits find the four groups" and "accuracy at least doubles".
"""

import numpy as np
import torch
from mnist import load
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import nn

GROUPS, EACH, IMAGES, ROUNDS, STANDS = 4, 5, 300, 25, 0.2
CLIENTS = GROUPS * EACH
x, y = (torch.from_numpy(a[: CLIENTS * IMAGES]) for a in load("train"))
test_x, test_y = map(torch.from_numpy, load("t10k"))
rng = np.random.default_rng(0)
ways = [torch.from_numpy(rng.permutation(10)) for _ in range(GROUPS)]
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
params = list(net.parameters())


def updates(model, clients):
    """Return what one local epoch changes at each client."""
    rows = []
    for i in clients:
        nn.utils.vector_to_parameters(model.clone(), net.parameters())
        for batch in (i * IMAGES + torch.randperm(IMAGES)).split(20):
            net.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), ways[i % GROUPS][y[batch]]).backward()
            with torch.no_grad():
                torch._foreach_add_(params, [p.grad for p in params], alpha=-0.1)
        rows.append(nn.utils.parameters_to_vector(params).detach() - model)
    return torch.stack(rows)


def accuracy(model, clients):
    """Return the mean accuracy of clients, each on all test images with its own labels, in percent."""
    nn.utils.vector_to_parameters(model.clone(), net.parameters())
    with torch.no_grad():
        found = net(test_x).argmax(1)
    return float(np.mean([100 * (found == ways[i % GROUPS][test_y]).double().mean() for i in clients]))


def trained(model, clients):
    """Return the model after federated learning, and the updates that its clients would send next."""
    for _ in range(ROUNDS):
        model = model + updates(model, clients).mean(0)
    return model, updates(model, clients)


def parts(rows):
    """Return the bi-partition with the smallest largest cosine across."""
    u = nn.functional.normalize(rows).double()
    distance = (1 - u @ u.T).clamp(min=0).numpy()
    np.fill_diagonal(distance, 0)
    label = fcluster(linkage(squareform(distance, checks=False), "single"), 2, "maxclust")
    return [np.flatnonzero(label == k) for k in (1, 2)]


todo, found, together = [(nn.utils.parameters_to_vector(params).detach(), [*range(CLIENTS)])], [], 0.0
splits, own = 0, []
while todo:
    start, clients = todo.pop()
    model, rows = trained(start, clients)
    together = together or accuracy(model, clients)
    step = float(rows.mean(0).norm() / rows.norm(dim=1).max())  # small where all stand still and each still pulls
    if step > STANDS:  # conditions (32) and (33) in one: the mean against the longest
        found.append(sorted(clients))
        own.append(accuracy(model, clients))
        continue
    splits += 1
    todo += [(model, [clients[k] for k in part]) for part in parts(rows)]
print(f"{splits} splits; accuracy {together:.1f} % together, {np.mean(own):.1f} % in groups: {sorted(found)}")
assert sorted(found) == [[*range(g, CLIENTS, GROUPS)] for g in range(GROUPS)], "the groups should be found"
assert splits == GROUPS - 1
assert np.mean(own) > 2 * together, "a group's own model should at least double the accuracy"
