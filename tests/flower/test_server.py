"""The coordinator: a server that is killed goes on, clients come, go and are slow."""

import dataclasses
import json
import threading
import time
from contextlib import suppress

import pytest
import safetensors.torch
import torch

import phalanx
from flower.federations import (
    FIRST_NODE,
    QUICK,
    SMALL,
    at_nodes,
    attacked,
    coordinator,
    honest,
    roster_of,
    states_in_simulation,
)
from phalanx.aggregators import Krum, Mean, Median
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.core import InfeasibleError, StalledError, Until
from phalanx.engine import LoopSettings, LostRounds
from phalanx.flower import FlowerTransport, InProcessGrid, Suspension, Timeouts, coordinate, live, server_app
from phalanx.flower.codec import WORDS
from phalanx.runs.federation import Federation
from runs.test_checkpoint import Personal
from runs.test_packing import same

PLAN = dataclasses.replace(SMALL, clients=4)


@dataclasses.dataclass(frozen=True)
class Erratic(Mean):
    """The mean, which has no result where a digit of the first entry is odd."""

    def choose(self, points):
        if int(abs(float(points.matrix[0, 0])) * 1e6) % 2:
            raise InfeasibleError("The digit is odd.")
        return super().choose(points)


class Killed(BaseException):
    """The server's process is gone."""


def killed_at(step):
    def observer(progress):
        if progress.step == step:
            raise Killed

    return observer


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg(), Personal()], ids=["plain", "clients with memory"])
@pytest.mark.parametrize("step", [1, 3])
def test_a_server_that_was_killed_goes_on_to_the_same_bits(algorithm, step, tmp_path):
    """Whether Ctrl-C or a power cut: the checkpoint is of the beginning of the step."""
    plan = dataclasses.replace(SMALL, algorithm=algorithm)
    states = []
    for observers in ([killed_at(step)], [lambda progress: states.append(progress.state)]):
        made = coordinator(plan, folder=tmp_path / "run", observers=observers)
        with InProcessGrid(at_nodes(honest(plan, tmp_path / "memory"))) as grid:
            try:
                coordinate(grid, made)
            except Killed:
                assert (tmp_path / "run" / "checkpoint").is_file() or step == 1
    assert same(states[-1], states_in_simulation(plan)[-1])
    assert [line.step for line in live.lines(tmp_path / "run")] == list(range(7))
    assert not (tmp_path / "run" / "checkpoint").exists()
    module = coordinator(plan).model
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "run" / "model.safetensors"))


def test_tasks_under_way_are_given_again_after_a_kill(tmp_path):
    plan = dataclasses.replace(PLAN, algorithm=FedAsync(), until=phalanx.Until(9))
    seen = []
    for observers in ([killed_at(4)], [seen.append]):
        with InProcessGrid(at_nodes(honest(plan, tmp_path))) as grid:
            try:
                coordinate(grid, coordinator(plan, folder=tmp_path / "run", observers=observers))
            except Killed:
                continue
    assert [progress.step for progress in seen][-1] == 9
    assert seen[0].step == 3, "the step that was under way is done again"
    assert {i for p in seen if p.updates for i in p.updates.clients} == {0, 1, 2, 3}


def test_strikes_survive_a_kill(tmp_path):
    roster = roster_of(4)
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid:
        with FlowerTransport(grid, roster, timeouts=QUICK) as first:
            first.enroll()
            first.register.struck(2, "NaN")
            kept = first.snapshot()
        with FlowerTransport(grid, roster, timeouts=QUICK) as second:
            second.restore(kept)
            assert second.register.standing(2).strikes == 1
            assert second.register.session == kept.session


def test_the_log_of_an_app_says_for_programs_who_what_and_when(tmp_path, capfd):
    plan = dataclasses.replace(PLAN, until=phalanx.Until(2))
    apps = honest(plan, tmp_path)
    apps[1] = attacked(apps[1], lambda message, reply, context: reply.content[WORDS].update(nonce=bytes(32)) or reply)
    app = server_app(coordinator(plan, log="json", suspension=Suspension(misses=2)))
    with InProcessGrid(at_nodes(apps)) as grid:
        app(grid, grid.context({}))
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert all(line["time"].endswith("Z") and line["message"] for line in lines)
    told = [tuple(line.get(name) for name in ("level", "event", "client", "step")) for line in lines]
    assert sorted(told[:4]) == [("INFO", "enrolled", i, 0) for i in range(4)]
    assert told[4:] == [
        ("INFO", "step", None, 0),
        ("WARNING", "invalid", 1, 0),
        ("INFO", "step", None, 1),
        ("WARNING", "invalid", 1, 1),
        ("WARNING", "suspended", 1, 1),
        ("INFO", "step", None, 2),
    ]
    assert lines[5]["message"] == "client 1: replayed, or meant for another task: its nonce is different"


@pytest.mark.parametrize(
    ("algorithm", "interval", "warns"), [(FedAsync(), 0.0, True), (FedAsync(), 0.01, False), (FedAvg(), 0.0, False)]
)
def test_an_asynchronous_run_without_an_interval_is_warned_of(algorithm, interval, warns, tmp_path, caplog):
    plan = dataclasses.replace(PLAN, algorithm=algorithm, until=phalanx.Until(1))
    with InProcessGrid(at_nodes(honest(plan, tmp_path))) as grid:
        coordinate(grid, coordinator(plan, suspension=Suspension(interval=interval)))
    assert ("Set Suspension(interval=...)" in caplog.text) is warns


# --- who comes and goes


class Switchable:
    """A node that can be unplugged."""

    waits = True

    def __init__(self, app, seconds=0.0):
        self.app, self.on, self.seconds, self.over = app, True, seconds, threading.Event()

    def __call__(self, message, context):
        training = message.metadata.message_type == "train"
        if training and self.over.wait(self.seconds):
            return None
        return self.app(message, context) if self.on or not training else None


def test_clients_that_leave_are_not_waited_for_and_are_asked_again_when_they_are_back(tmp_path):
    apps, served = honest(PLAN, tmp_path), []
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(4), timeouts=QUICK) as transport:

        def observer(progress):
            served.append(set(progress.updates.clients) if progress.updates else None)
            if progress.step == 2:
                grid.disconnect(FIRST_NODE)
            if progress.step == 4:
                grid.connect(900, apps[0])  # Flower gives it another number
            if progress.step in (2, 4, 5):
                time.sleep(0.3)

        start = Federation(PLAN).start
        phalanx.run(FedAvg(), transport, start, LoopSettings(until=Until(6)), observers=[observer])
    assert served[1:3] == [{0, 1, 2, 3}] * 2
    assert served[4] == {1, 2, 3}
    assert served[6] == {0, 1, 2, 3}, "under its key, whatever its number"


@pytest.mark.slow
def test_a_third_of_the_clients_gone_is_a_deadline_and_no_more(tmp_path):
    plan = dataclasses.replace(SMALL, until=phalanx.Until(3))
    apps = {i: Switchable(app) for i, app in honest(plan, tmp_path).items()}
    timeouts, lines = dataclasses.replace(QUICK, answer=1.0), []

    def observer(progress):
        lines.append(progress)
        if progress.step == 1:
            apps[0].on = apps[1].on = False

    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(6), timeouts=timeouts) as transport:
        begun = time.monotonic()
        phalanx.run(FedAvg(), transport, Federation(plan).start, plan, observers=[observer])
    assert [set(line.updates.clients) for line in lines[1:]] == [set(range(6))] + [{2, 3, 4, 5}] * 2
    assert all(line.lost == dict.fromkeys((0, 1), "no answer within 1 s") for line in lines[2:])
    assert time.monotonic() - begun < 2 * 1.0 + 6


@pytest.mark.filterwarnings("ignore:If 1 of 6")
def test_a_round_of_too_few_is_lost_and_the_next_one_is_not(tmp_path):
    """Krum needs five of six: two are gone in the second round, and back in the third."""
    plan = dataclasses.replace(SMALL, algorithm=FedAvg(Krum(f=1)), until=phalanx.Until(3))
    apps = {i: Switchable(app) for i, app in honest(plan, tmp_path / "memory").items()}

    def observer(progress):
        apps[0].on = apps[1].on = progress.step != 1

    timeouts = dataclasses.replace(QUICK, answer=1.0)
    made = coordinator(plan, folder=tmp_path / "run", observers=[observer], timeouts=timeouts)
    with InProcessGrid(at_nodes(apps)) as grid:
        state = coordinate(grid, made)
    lines = live.lines(tmp_path / "run")
    lost = [line for line in lines if any("round lost: Krum" in v.reason for v in line.verdicts.values())]
    assert [(line.step, line.version, sorted(line.verdicts)) for line in lost] == [(2, 1, [2, 3, 4, 5])]
    assert (lines[-1].step, state.version) == (3, 2)


@pytest.mark.parametrize("step", [2, 5])
def test_lost_rounds_are_those_of_the_simulation_also_after_a_kill(step, tmp_path):
    plan = dataclasses.replace(SMALL, algorithm=FedAvg(Erratic()), lost_rounds=LostRounds(most=50))
    states = []
    for observers in ([killed_at(step)], [lambda progress: states.append(progress.state)]):
        made = coordinator(plan, folder=tmp_path / "run", observers=observers, lost_rounds=plan.lost_rounds)
        with InProcessGrid(at_nodes(honest(plan, tmp_path / "memory"))) as grid, suppress(Killed):
            coordinate(grid, made)
    expected = states_in_simulation(plan)
    assert same(states[-1], expected[-1])
    assert 0 < states[-1].version < 6, "some are lost, and not all"


def test_influence_is_that_of_the_simulation_and_changes_nothing_else(tmp_path):
    plan = dataclasses.replace(SMALL, algorithm=FedAvg(Median()), influence=2)
    influences, states = {}, {}
    for liars in (2, None):
        made = coordinator(plan, folder=tmp_path / str(liars), influence=liars)
        with InProcessGrid(at_nodes(honest(plan, tmp_path / f"memory {liars}"))) as grid:
            states[liars] = coordinate(grid, made)
        influences[liars] = [line.influences for line in live.lines(tmp_path / str(liars))]
        assert made.recorded(1).get("influence") == liars
    assert influences[2] == [step.influences for step in phalanx.simulate(plan).history]
    assert [found.kind for (found,) in influences[2][1:]] == ["bound"] * 6
    assert set(influences[None]) == {()}
    assert same(states[2], states[None])
    with pytest.raises(ValueError, match="influence must be at least 1, got 0"):
        coordinator(plan, influence=0)


def test_a_third_of_the_clients_gone_holds_up_no_arrivals(tmp_path):
    plan = dataclasses.replace(SMALL, algorithm=FedAsync(), until=phalanx.Until(30))
    apps = {i: Switchable(app) for i, app in honest(plan, tmp_path).items()}
    order, lost = [], {}

    def observer(progress):
        order.extend(progress.updates.clients if progress.updates else ())
        lost.update(progress.lost)
        if progress.step == 10:
            apps[0].on = apps[1].on = False

    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(6), timeouts=QUICK) as transport:
        begun = time.monotonic()
        phalanx.run(plan.algorithm, transport, Federation(plan).start, plan, observers=[observer])
    assert set(order[:10]) == set(range(6))
    assert max(order[10:].count(0), order[10:].count(1)) <= 1, "what they were at work on"
    assert set(order[20:]) == {2, 3, 4, 5}
    assert lost == {}
    assert time.monotonic() - begun < QUICK.answer / 2


def test_a_slow_client_holds_up_rounds_to_the_deadline_and_arrivals_not_at_all(tmp_path):
    timeouts = dataclasses.replace(QUICK, answer=1.0)
    apps = honest(PLAN, tmp_path)
    apps[0] = Switchable(apps[0], seconds=2.5)
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(4), timeouts=timeouts) as transport:
        lines = []
        phalanx.run(FedAvg(), transport, Federation(PLAN).start, LoopSettings(until=Until(1)), observers=[lines.append])
        assert lines[-1].lost == {0: "no answer within 1 s"}
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(4), timeouts=QUICK) as transport:
        order = []
        observe = lambda p: order.extend(p.updates.clients if p.updates else ())  # noqa: E731
        phalanx.run(FedAsync(), transport, Federation(PLAN).start, LoopSettings(until=Until(9)), observers=[observe])
        apps[0].over.set()  # else it would compute while the process ends
    assert 0 not in order


@pytest.mark.slow
def test_where_nobody_is_left_the_run_ends_and_says_who_is_missing(tmp_path):
    timeouts = dataclasses.replace(QUICK, absent=0.1)
    grid = InProcessGrid(at_nodes(honest(PLAN, tmp_path)))
    with grid, FlowerTransport(grid, roster_of(4), timeouts=timeouts) as transport:

        def observer(progress):
            if progress.step == 1 and progress.updates is not None:
                for i in range(4):
                    grid.disconnect(FIRST_NODE + i)
                time.sleep(0.3)

        with pytest.raises(StalledError, match=r"client 0: .*(not connected|no longer connected)"):
            phalanx.run(FedAvg(), transport, Federation(PLAN).start, LoopSettings(until=Until(5)), observers=[observer])


def test_enrolment_waits_for_the_last_one(tmp_path):
    apps = honest(PLAN, tmp_path)
    nodes = at_nodes(apps)
    late = nodes.pop(FIRST_NODE + 3)
    with InProcessGrid(nodes) as grid, FlowerTransport(grid, roster_of(4), timeouts=QUICK) as transport:
        threading.Timer(0.5, grid.connect, (FIRST_NODE + 3, late)).start()
        assert transport.enroll().keys() == {0, 1, 2, 3}


def test_fewer_clients_than_are_needed_are_not_asked(tmp_path):
    timeouts = dataclasses.replace(QUICK, least=4, absent=0.1)
    grid = InProcessGrid(at_nodes(honest(PLAN, tmp_path)))
    with grid, FlowerTransport(grid, roster_of(4), timeouts=timeouts) as transport:

        def observer(progress):
            if progress.step == 1 and progress.updates is not None:
                grid.disconnect(FIRST_NODE)
                time.sleep(0.3)

        with pytest.raises(StalledError, match=r"waits until 4 clients can be reached|not connected"):
            phalanx.run(FedAvg(), transport, Federation(PLAN).start, LoopSettings(until=Until(5)), observers=[observer])


def test_a_model_that_is_not_float32_is_refused(tmp_path):
    grid, why = (
        InProcessGrid(at_nodes(honest(PLAN, tmp_path))),
        r"travel as float32 from the CPU, got torch.float64 on cpu",
    )
    with grid, FlowerTransport(grid, roster_of(4)) as transport, pytest.raises(InfeasibleError, match=why):
        transport.send({0: torch.zeros(3, dtype=torch.float64)}, 0)


@pytest.mark.parametrize("bad", [{"answer": 0}, {"poll": float("inf")}, {"least": 0}])
def test_patience_that_cannot_be_is_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        Timeouts(**bad)
