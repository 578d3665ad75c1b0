"""Tasks that Flower does not take: nobody waits for them, and no client is to blame."""

import time

import pytest
import torch

from flower.federations import FIRST_NODE, QUICK, roster_of
from flower.test_admission import BAD, run
from phalanx.flower import InProcessGrid, Suspension
from phalanx.flower.codec import TaskMessage
from phalanx.flower.dispatcher import Dispatch, Dispatcher
from phalanx.flower.register import Register


def refusing(answer, until=None):
    """A grid that gives this answer to tasks for one node, and takes as many of them as there are before `until`."""

    class Refusing(InProcessGrid):
        refused = 0

        def push_messages(self, messages):
            (message,) = messages = [*messages]
            there = message.metadata.dst_node_id == FIRST_NODE + BAD and message.metadata.message_type == "train"
            if there and (until is None or self.refused < until):
                self.refused += 1
                return [*answer]
            return super().push_messages(messages)

    return Refusing


NOBODY = "the task could not be sent: Flower no longer knows the node"
TOO_LARGE = "the task could not be sent: it is too large for the SuperLink or a proxy in front of it"


@pytest.mark.parametrize(
    ("answer", "why"), [([""], NOBODY), ([None], NOBODY), ([], TOO_LARGE)], ids=["no id", "none", "nothing"]
)
def test_a_task_that_flower_does_not_take_is_lost_at_once_and_no_miss(answer, why, tmp_path):
    told = run(tmp_path, lambda app: app, grid=refusing(answer), until=5)
    assert told.error is None
    assert told.served == [{0, 1, 2}] * 5
    assert set(told.lost) == {why}
    assert told.seconds < QUICK.answer
    standing = told.transport.register.standing(BAD)
    assert (standing.misses, standing.strikes, standing.until) == (0, 0, 0.0)


def test_who_could_not_be_sent_a_task_is_asked_again(tmp_path):
    told = run(tmp_path, lambda app: app, grid=refusing([], until=1), until=3)
    assert told.lost == [TOO_LARGE]
    assert told.served == [{0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3}]


@pytest.mark.parametrize(("answer", "gone"), [([""], [FIRST_NODE]), ([], [])], ids=["no id", "nothing"])
def test_a_node_that_flower_does_not_know_is_not_there_until_the_next_look(answer, gone):
    noted = []

    class Noting(Register):
        def gone(self, node):
            noted.append(node)

    class Refusing(InProcessGrid):
        def push_messages(self, messages):
            return answer

    grid = Refusing({})
    courier = Dispatcher(grid, Noting(grid, roster_of(1), QUICK, Suspension(), came=lambda: None), QUICK)
    task, vector = TaskMessage("train", "abc", bytes(32), 0, 0, 0, "float32"), torch.zeros(3)
    dispatch = Dispatch(task, vector, vector, FIRST_NODE, QUICK.answer, time.monotonic() + QUICK.answer)
    courier.send(dispatch)
    assert dispatch.sent.wait(QUICK.answer)
    courier.close()
    assert noted == gone
    assert dispatch.node == 0, "nobody was asked"
