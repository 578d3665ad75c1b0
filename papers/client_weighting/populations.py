"""The sizes of the clients in the experiments on MNIST, which need no data set."""

import torch

from phalanx.data import DirichletMultinomialSizes, LognormalSizes
from phalanx.rng import numpy_generator

EXAMPLES = 60_000  # of MNIST, for training


def program_sizes() -> dict[int, int]:
    """Return the partition of the paper's program: 75 clients."""
    return dict(enumerate(DirichletMultinomialSizes().sizes(EXAMPLES).tolist()))


def described_sizes(seed: int) -> dict[int, int]:
    """Return the partition that the paper describes, as runs with this seed draw it: 100 clients."""
    labels = torch.zeros(EXAMPLES, dtype=torch.int64)
    parts = LognormalSizes().split(labels, 100, numpy_generator(seed, "partition"))
    return {client: len(part) for client, part in enumerate(parts)}
