"""Rows and weights that are part of a graph: a rule takes their values, and no gradient flows through it."""

import pytest
import torch

from aggregators.catalogue import CATALOGUE, Entry
from phalanx.rng import generator


@pytest.mark.parametrize("entry", CATALOGUE, ids=str)
def test_rows_that_require_gradients_give_what_their_values_give(entry: Entry):
    rows = torch.randn(15, 6, generator=generator(0, "rows"))
    weights, rule = torch.arange(1.0, 16.0), entry.rule(15, 3)
    for given in (None, weights):
        wanted = rule(rows, given)
        found = rule(rows.clone().requires_grad_(), None if given is None else given.clone().requires_grad_())
        assert not found.requires_grad
        assert torch.equal(found, wanted)
