"""RFFL's network at its learning rate of 0.25 learns from padded, standardised images, and often not from [0, 1].

Standalone models of ten participants with 600 MNIST images each, batches of 16, no federation.  Models of different
participants start alike in the program; here, too.  Stored (docs/rffl.md): at chance 4 to 6 of 10 on images in [0, 1],
none on standardised ones.  Takes some minutes.

    python checks/rffl_images.py [participants] [rounds]
"""

import sys

import torch
from mnist import load
from torch import nn

CLIENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
EACH, BATCH, TESTS = 600, 16, 1000


def network():
    """Return the authors' CNN for 32 x 32 images, 104,242 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(64, 16, 7), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 200), nn.Tanh(), nn.Linear(200, 10),
    )  # fmt: skip


def at_chance(standardize):
    """Return how many models are at chance after the rounds, and all accuracies, in percent."""
    x, y = (torch.from_numpy(a[: CLIENTS * EACH]) for a in load("train", 2, standardize))
    test_x, test_y = (torch.from_numpy(a[:TESTS]) for a in load("t10k", 2, standardize))
    found = []
    for i in range(CLIENTS):
        torch.manual_seed(0)
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
        torch.manual_seed(i)
        for version in range(ROUNDS):
            optimizer.param_groups[0]["lr"] = 0.25 * 0.977**version
            for batch in torch.randperm(EACH).split(BATCH):
                optimizer.zero_grad()
                rows = i * EACH + batch
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
        with torch.no_grad():
            found.append(100 * (net(test_x).argmax(1) == test_y).double().mean().item())
    return sum(value < 20 for value in found), [round(value) for value in found]


stuck, good = at_chance(False), at_chance(True)
print(f"images in [0, 1]: {stuck[0]} of {CLIENTS} at chance, {stuck[1]}")
print(f"standardised: {good[0]} of {CLIENTS} at chance, {good[1]}")
assert good[0] == 0, "standardised images should be learned by all"
assert stuck[0] > 0, "some models should be at chance on images in [0, 1]"
