"""Rules on other devices than the CPU: the same results, on that device, in the dtype of the rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from catalogue import CATALOGUE
from elsewhere import another_device

from phalanx.aggregators import AdaptiveClip, Bucketing, Clip, Mean, Median, NearestNeighborMixing
from phalanx.numerics import linalg

DEVICES = ["another", *(["cuda"] if torch.cuda.is_available() else [])]
CHAINS = [
    Clip(2.0) >> Median(),
    AdaptiveClip(2) >> Mean(),
    NearestNeighborMixing(2) >> Median(),
    Bucketing(2) >> Mean(),
]
RULES = [entry.rule(11, min(2, entry.most(11))) for entry in CATALOGUE] + CHAINS

devices = pytest.mark.parametrize("device", DEVICES)


@contextmanager
def moved_to(device: str) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    if device == "another":
        with another_device() as move:
            yield move
    else:
        yield lambda tensor: tensor.to(device)


def rows() -> torch.Tensor:
    return torch.randn(11, 3000, generator=torch.Generator().manual_seed(5)) + 0.3


@devices
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_result_is_that_of_the_cpu(rule, weighted, device):
    weights = torch.arange(1.0, 12.0, dtype=torch.float64) if weighted else None
    expected = rule(rows(), weights)
    with moved_to(device) as move:
        given = move(rows())
        result = rule(given, weights)
        assert (result.device, result.dtype) == (given.device, torch.float32)
        back = result.cpu()
    torch.testing.assert_close(back, expected, rtol=1e-4, atol=1e-5)


@devices
def test_what_is_not_finite_is_refused_there(device):
    with moved_to(device) as move:
        bad = rows()
        bad[3, 7] = float("nan")
        for rule in RULES:
            with pytest.raises(ValueError, match=r"Rows \[3\] hold NaN or infinite values"):
                rule(move(bad))


@devices
def test_distances_keep_their_digits_there(device):
    """All rows share an offset of norm 1e4; see `linalg.squared_distances`."""
    apart = 1e-1 * rows() + 1e4 / 3000**0.5
    exact = torch.cdist(apart.double(), apart.double()).square()
    with moved_to(device) as move:
        got = linalg.squared_distances(move(apart)).cpu()
    torch.testing.assert_close(got, exact, rtol=1e-4, atol=0)


def test_the_device_for_machines_without_one_refuses_to_mix():
    with another_device() as move:
        with pytest.raises(RuntimeError, match="same device"):
            move(rows()) + rows()
        with pytest.raises(TypeError, match="not on the CPU"):
            move(rows()).numpy()
