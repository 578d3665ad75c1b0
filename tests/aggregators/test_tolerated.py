"""What a rule says that it tolerates does no harm, whatever is sent: found for every exported rule."""

import pytest
import torch

from exported import lacking
from phalanx.aggregators import Aggregator, DensestMajority, FLAMEFilter
from phalanx.numerics.linalg import norms, shortened

M, D, FAR = 12, 8, 10.0  # how many lengths of the longest honest update a result may be away from the honest mean
RULES = {kind.__name__: made(M, 2) for kind, made in lacking(Aggregator, set())}
RULES["FLAMEFilter(noise)"] = FLAMEFilter(noise=0.001)


def tolerated(rule):
    """The largest number of rows of M that a rule says it tolerates."""
    said = rule.tolerates(M)
    return max((f for f in range(M) if said.share and said.allows(f / M)), default=0)


def sent(honest, f, generator):
    """Rows of f attackers, in turn: along and against the honest ones, far apart, alike, and copies, short and long."""
    along = honest.mean(0)
    for length in (1e-6, 1.0, 1e3, 1e6):
        one = torch.randn(D, generator=generator)
        yield from ((length * along).expand(f, D), (-length * along).expand(f, D), (length * one).expand(f, D))
        yield length * torch.randn(f, D, generator=generator)
        yield (length * honest[:1]).expand(f, D)


def farthest(rule, clip=lambda rows: rows):
    """By how many lengths of the longest honest update the result was away from the honest mean, at most."""
    generator, f, most = torch.Generator().manual_seed(0), tolerated(rule), 0.0
    for _ in range(10):
        honest = 1 + 0.1 * torch.randn(M - f, D, generator=generator)
        for bad in sent(honest, f, generator):
            rows = torch.cat([honest, bad])[torch.randperm(M, generator=generator)]
            away = (rule(clip(rows)) - honest.mean(0)).norm() / norms(honest).max()
            most = max(most, float(away))
    return most


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if tolerated(rule)])
def test_as_many_as_a_rule_tolerates_do_not_move_it_far(name):
    assert farthest(RULES[name]) < FAR


def test_the_densest_majority_tolerates_nobody_unless_rows_are_clipped():
    """To their median norm, as `FLAME` and `Catalyst` do; a long update in the honest direction is in the mean."""

    def clipped(rows):
        lengths = norms(rows)
        return shortened(rows, float(lengths.median()), lengths)

    said = DensestMajority(clipped=True)
    assert (tolerated(DensestMajority()), tolerated(said)) == (0, 5)
    assert farthest(said) > 1e4
    assert farthest(said, clipped) < 2
    assert DensestMajority() != said
