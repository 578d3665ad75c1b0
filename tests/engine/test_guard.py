import math

import numpy as np
import pytest
import torch

from phalanx.engine.connection import Reply
from phalanx.engine.guard import Guard, Sent

MODEL = torch.zeros(3)
GOOD = torch.tensor([3.0, 4.0, 0.0])


def inspect(*replies, guard=None, sent=None, version=2):
    sent = {i: Sent(2, MODEL) for i in range(4)} if sent is None else sent
    return (guard or Guard()).inspect(replies, sent, version, MODEL)


def refusal(reply, **options):
    checked = inspect(reply, **options)
    assert checked.updates is None
    return checked.invalid[reply.client]


def test_good_replies_become_updates_in_order_of_id():
    checked = inspect(Reply(3, 2, GOOD, 0.5), Reply(1, 2, 2 * GOOD, 0.25))
    assert checked.updates.clients == (1, 3)
    assert checked.updates.versions == (2, 2)
    assert torch.equal(checked.updates.deltas, torch.stack([2 * GOOD, GOOD]))
    assert checked.updates.losses.tolist() == [0.25, 0.5]
    assert checked.updates.bases[0] is MODEL
    assert checked.invalid == {}
    assert checked.answered == {1, 3}


@pytest.mark.parametrize(
    ("delta", "why"),
    [
        (torch.zeros(2), "shape (2,), expected (3,)"),
        (torch.zeros(3, 1), "shape (3, 1), expected (3,)"),
        (torch.zeros(3, dtype=torch.float64), "float64 on cpu, expected float32 on cpu"),
        (torch.zeros(3, dtype=torch.int64), "int64 on cpu, expected float32"),
        (torch.tensor([0.0, math.nan, math.nan]), "2 NaN of 3 values"),
        (torch.tensor([0.0, math.inf, math.nan]), "1 NaN and 1 infinite of 3 values"),
        (torch.tensor([0.0, -math.inf, 1.0]), "1 infinite of 3 values"),
        (torch.tensor([0.0, 1e20, 1.0]), "norm 1e+20, allowed is 1e+15"),
        (torch.tensor([0.0, 3e38, 3e38]), "norm 4.24e+38, allowed is 1e+15"),
        ([0.0, 0.0, 0.0], "a list, not a torch.Tensor"),
        (None, "a NoneType, not a torch.Tensor"),
        (torch.nn.Parameter(torch.zeros(3)), "a Parameter, not a torch.Tensor"),
        (torch.zeros(3).to_sparse(), "laid out as sparse_coo, expected strided"),
    ],
)
def test_bad_content_is_refused_with_the_reason(delta, why):
    assert why in refusal(Reply(0, 2, delta, 1.0))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, None, "0.5"])
def test_bad_losses_are_refused(loss):
    assert "not a finite number" in refusal(Reply(0, 2, GOOD, loss))


def test_norm_limit_is_inclusive():
    assert inspect(Reply(0, 2, GOOD, 1.0), guard=Guard(max_norm=5.0)).updates is not None
    assert "norm 5, allowed is 4.99" in refusal(Reply(0, 2, GOOD, 1.0), guard=Guard(max_norm=4.99))


def test_unknown_client_duplicate_replay_and_stale():
    assert "unrequested" in refusal(Reply(9, 2, GOOD, 1.0))
    assert "answers version 1, expected version 2" in refusal(Reply(0, 1, GOOD, 1.0))
    checked = inspect(Reply(0, 2, GOOD, 1.0), Reply(0, 2, -GOOD, 1.0))
    assert "duplicate" in checked.invalid[0]
    assert torch.equal(checked.updates.deltas, GOOD[None]), "the first answer counts, the second changes nothing"
    window = Guard(max_staleness=3)
    assert inspect(Reply(0, 2, GOOD, 1.0), guard=window, version=5).updates is not None
    for most, allowed in ((3, "allowed are 3"), (1, "allowed is 1"), (0, "allowed are 0")):
        assert f"4 server updates old, {allowed}" in refusal(
            Reply(0, 2, GOOD, 1.0), guard=Guard(max_staleness=most), version=6
        )


def test_an_unrequested_reply_does_not_settle_the_open_question():
    assert inspect(Reply(0, 1, GOOD, 1.0)).answered == set()
    assert inspect(Reply(0, 2, torch.zeros(7), 1.0)).answered == {0}


def test_bad_replies_change_nothing_for_others():
    alone = inspect(Reply(1, 2, GOOD, 1.0))
    among = inspect(
        Reply(0, 2, torch.full((3,), math.nan), 1.0), Reply(1, 2, GOOD, 1.0), Reply(2, 2, torch.zeros(1), 1.0)
    )
    assert torch.equal(alone.updates.deltas, among.updates.deltas)
    assert among.invalid.keys() == {0, 2}


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (0, "reports 0 examples, allowed are 1 to 1,000,000,000"),
        (-5, "reports -5 examples"),
        (10**18, "reports 1,000,000,000,000,000,000 examples"),
        (2.5, "reports 2.5 examples, which is not an integer"),
        (math.nan, "not an integer"),
        (True, "not an integer"),
        ("many" * 100, "not an integer"),
        (None, "not an integer"),
    ],
)
def test_absurd_sizes_are_refused(size, why):
    sizes, refused = Guard().enroll({0: 5, 1: size})
    assert sizes == {0: 5}
    assert why in refused[1]
    assert len(refused[1]) < 100


@pytest.mark.parametrize("wrong", [{"max_norm": 0}, {"max_norm": 1e30}, {"max_staleness": -1}, {"max_size": 0}])
def test_settings_out_of_range(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Guard(**wrong)


@pytest.mark.parametrize("loss", [0.0, 1, np.float32(0.5), np.int64(2)])
def test_losses_are_numbers_of_any_library(loss):
    assert inspect(Reply(0, 2, GOOD, loss)).updates.losses.tolist() == [float(loss)]


@pytest.mark.parametrize("loss", [-0.1, 1e300, True, torch.tensor(1.0)])
def test_losses_that_no_training_has(loss):
    assert "not a finite number of at least 0" in refusal(Reply(0, 2, GOOD, loss))


def test_sizes_are_integers_of_any_library():
    assert Guard().enroll({0: np.int64(5), 1: np.uint8(7)})[0] == {0: 5, 1: 7}


def test_what_is_accepted_brings_no_graph_along():
    checked = inspect(Reply(0, 2, GOOD.clone().requires_grad_(True) * 1, 1.0))
    assert not checked.updates.deltas.requires_grad
