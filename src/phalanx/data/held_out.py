"""A data set whose test part is held out from the training part of another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.data.dataset import Dataset
from phalanx.data.sources import Source
from phalanx.rng import numpy_generator


@dataclass(frozen=True)
class HeldOut(Source):
    """Tests on random training examples, which are held out from training; the test part of the source is not used.

    Hyper-parameters that are chosen on it have not seen the test examples.

    Args:
        source: the data set.
        share: of its training examples that are held out, between 0 and 1.
        seed: of the choice.
    """

    source: Source
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    seed: int = 0

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """See `Source`; raise `ValueError` if one of the parts would be empty."""
        train, _ = self.source.load(data_dir)
        held = round(self.share * len(train))
        if not 0 < held < len(train):
            raise ValueError(f"A share of {self.share} of {len(train)} examples leaves a part empty. Choose another.")
        chosen = numpy_generator(self.seed, "held out").choice(len(train), held, replace=False)
        test = torch.zeros(len(train), dtype=torch.bool)
        test[torch.from_numpy(chosen)] = True
        return train.of(~test), train.of(test)


def drawn(groups: Tensor, share: float, seed: int) -> Tensor:
    """Return which examples are for tests, (n,): a share of each group, of which one at least is for training.

    They are drawn by the stream "test" of the seed.

    Args:
        groups: (n,), the group of each example: its class, or its owner.
        share: of each group, rounded.
        seed: of the draw.
    """
    rng, tested = numpy_generator(seed, "test"), torch.zeros(len(groups), dtype=torch.bool)
    for group in sorted(set(groups.tolist())):
        members = torch.nonzero(groups == group).flatten()
        order = torch.from_numpy(rng.permutation(len(members)))
        tested[members[order[: min(round(share * len(members)), len(members) - 1)]]] = True
    return tested
