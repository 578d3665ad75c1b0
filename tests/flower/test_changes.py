"""What changes while a run goes on: a client is added, one gets another key, one is gone."""

import dataclasses
import time

import pytest
import torch

import phalanx
from flower.federations import FIRST_NODE, KEYS, QUICK, SMALL, at_nodes, attacked, coordinator, honest, roster_of
from flower.federations import resigned as signed
from phalanx.algorithms import FedAsync
from phalanx.flower import InProcessGrid, Roster, Suspension, client_app, codec, coordinate, participant_of
from phalanx.flower.audit import read
from phalanx.flower.identity import public_bytes

PLAN = dataclasses.replace(SMALL, clients=4, until=phalanx.Until(5))


@pytest.fixture
def trail(tmp_path):
    """What the audit trail says so far, as event and client."""
    return lambda: [(line.event, line.client) for line in read(tmp_path / "run" / "audit.jsonl")]


def once(fact):
    """Waits for a fact."""
    deadline = time.monotonic() + QUICK.answer
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fact()


def test_a_client_that_is_entered_while_a_run_goes_on_takes_part(trail, tmp_path):
    file, came = tmp_path / "roster.yaml", {}
    roster_of(3).save(file)

    def observer(progress):
        came[progress.step] = set(progress.updates.clients) if progress.updates else set()
        if progress.step == 2:
            once(lambda: ("turned away", None) in trail())
            roster_of(4).save(file)
            once(lambda: ("enrolled", 3) in trail())

    made = coordinator(PLAN, roster=file, folder=tmp_path / "run", observers=[observer])
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid:
        coordinate(grid, made)
    assert came[1] == came[2] == {0, 1, 2}
    assert came[4] == came[5] == {0, 1, 2, 3}


def test_a_client_keeps_its_strikes_under_a_new_key(trail, tmp_path):
    """Two answers are refused: one under the old key, one under the new one, which alone is then taken."""
    file, new = tmp_path / "roster.yaml", KEYS[8]
    roster_of(4).save(file)

    def with_nan(app, key):
        def change(message, reply, context):
            content = reply.content
            content[next(iter(content.array_records))] = codec.encode(torch.full((34,), float("nan")), "float32")
            return type(reply)(signed(message, content, key), reply_to=message)

        return attacked(app, change)

    def observer(progress):
        if progress.step == 2:
            Roster.load(file).changing(1, key=public_bytes(new)).save(file)
            once(lambda: ("new key", 1) in trail() and ("turned away", None) in trail())
            under_new = client_app(participant_of(PLAN, 1, new, tmp_path / "1"))
            grid.connect(FIRST_NODE + 20, with_nan(under_new, new))
            time.sleep(10 * QUICK.roll_call)

    apps = honest(PLAN, tmp_path)
    apps[1] = with_nan(apps[1], KEYS[1])
    suspension = Suspension(strikes=4)
    made = coordinator(PLAN, roster=file, folder=tmp_path / "run", observers=[observer], suspension=suspension)
    with InProcessGrid(at_nodes(apps)) as grid:
        coordinate(grid, made)
    assert [client for event, client in trail() if event == "invalid"] == [1] * 4
    (why,) = [line.why for line in read(tmp_path / "run" / "audit.jsonl") if line.event == "suspended"]
    assert why.startswith("for 3600 s, after 4 strikes")


def test_a_node_that_is_gone_is_one_miss_and_not_as_many_as_there_is_time_for(trail, tmp_path):
    """Until the next look at who is connected, its client would be asked, and lost, again and again, and suspended."""
    plan = dataclasses.replace(PLAN, algorithm=FedAsync(), until=phalanx.Until(12))

    def observer(progress):
        if progress.step == 2:
            grid.disconnect(FIRST_NODE + 3)

    timeouts = dataclasses.replace(QUICK, roll_call=20.0)
    made = coordinator(plan, folder=tmp_path / "run", observers=[observer], timeouts=timeouts)
    with InProcessGrid(at_nodes(honest(plan, tmp_path))) as grid:
        coordinate(grid, made)
    assert trail().count(("lost", 3)) == 1
    assert ("suspended", 3) not in trail()
