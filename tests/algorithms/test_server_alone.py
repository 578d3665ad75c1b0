"""The server trains alone: the same as training on its examples, to the bit, whatever clients send."""

import dataclasses

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.algorithms import FLTrust, ServerAlone
from phalanx.attacks import Rescale
from phalanx.core import Verdict
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from toys import close, updates

PLAN = Run(
    algorithm=ServerAlone(), server_examples=100, clients=4, model=MLP((16,)), training=LocalSGD(lr=0.1), until=Until(3)
)


def test_by_hand():
    algorithm = ServerAlone()
    state, ready = algorithm.init(torch.tensor([1.0, 2.0]), {0: 10, 3: 5})
    assert set(ready) == {0, 3}
    sent = dataclasses.replace(updates([[5.0, 9.0], [7.0, 9.0]], clients=[0, 3]), reference=torch.tensor([0.5, -1.0]))
    state, ready = algorithm.step(algorithm.join(state, 7, 3), sent)
    assert close(state.model, [1.5, 1.0])
    assert (state.version, set(ready)) == (1, {0, 3, 7})
    assert state.verdicts == dict.fromkeys((0, 3), Verdict(True, 0.0, None, "the server trains alone"))


def test_without_examples_it_cannot_begin():
    with pytest.raises(ValueError, match="server_examples is 0"):
        dataclasses.replace(PLAN, server_examples=0)


def test_no_client_changes_the_model():
    attacked = dataclasses.replace(PLAN, attack=Rescale(-1e6), byzantine=3)
    assert torch.equal(Federation(PLAN).start, Federation(attacked).start)
    honest, hostile = (simulate(plan).model() for plan in (PLAN, attacked))
    pairs = [*zip(honest.parameters(), hostile.parameters(), strict=True)]
    assert pairs
    assert all(torch.equal(one, other) for one, other in pairs)


def test_its_first_change_is_what_fltrust_compares_with():
    """With one client that sends the server's own change, FLTrust moves by it too."""
    ours, _ = ServerAlone().init(torch.zeros(2), {0: 5})
    theirs, _ = FLTrust().init(torch.zeros(2), {0: 5})
    sent = dataclasses.replace(updates([[3.0, 4.0]]), reference=torch.tensor([0.6, 0.8]))
    assert close(ServerAlone().step(ours, sent)[0].model, FLTrust().step(theirs, sent)[0].model.tolist())
