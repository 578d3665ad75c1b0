"""Clients that enrol while training runs: taken in by every algorithm that can, and refused by those that cannot."""

import dataclasses
import re
import time

import pytest

import phalanx
from algorithms.test_common import ALGORITHMS, needed, one_of_each_class
from flower.federations import FIRST_NODE, QUICK, SMALL, at_nodes, examples, honest, roster_of
from phalanx import LocalSGD
from phalanx.algorithms import RFFL, AsyncRFFL, ClusteredFL
from phalanx.data import InMemory, PermutedLabels
from phalanx.flower import FlowerTransport, InProcessGrid
from phalanx.models import MLP
from phalanx.runs.federation import Federation

pytestmark = pytest.mark.filterwarnings("ignore:threshold")

LATE = 5  # the client that comes after the first step
CANNOT = (RFFL, AsyncRFFL)
PATIENCE = dataclasses.replace(QUICK, least=5, enrolment=1.0)


class Killed(BaseException):
    """The server's process is gone."""


def enter(transport, late=None):
    """Waits until the late client has enrolled, from its node if it is not connected yet."""
    if late is not None:
        transport.register.grid.connect(FIRST_NODE + LATE, late)
    deadline = time.monotonic() + QUICK.answer
    while LATE not in transport.register.reported and time.monotonic() < deadline:
        time.sleep(0.01)


def joined(plan, folder):
    """A run in which one client enrols after the first step; what observers were shown."""
    federation, lines = Federation(plan), []
    nodes = at_nodes(honest(plan, folder, federation))
    late = nodes.pop(FIRST_NODE + LATE)
    size = len(federation.start)
    made = FlowerTransport(grid := InProcessGrid(nodes), roster_of(6), timeouts=PATIENCE, update_size=size)
    with grid, made as transport:

        def observer(progress):
            lines.append(progress)
            if progress.step == 1 and LATE not in transport.register.reported:
                enter(transport, late)

        phalanx.run(
            plan.algorithm,
            transport,
            federation.start,
            plan,
            reference=federation.reference,
            observers=[transport, observer],
        )
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", one_of_each_class(ALGORITHMS))
def test_who_comes_late_takes_part_from_the_next_round_on_or_is_refused(algorithm, tmp_path, caplog):
    until = phalanx.Until(4 if algorithm.traits.synchronous else 25)
    lines = joined(
        dataclasses.replace(SMALL, algorithm=algorithm, model=MLP((4,)), until=until, **needed(algorithm, 8)), tmp_path
    )
    served = [LATE in line.updates.clients for line in lines if line.updates is not None]
    refused = [line.invalid[LATE] for line in lines if LATE in line.invalid]
    if isinstance(algorithm, CANNOT) or isinstance(getattr(algorithm, "algorithm", None), CANNOT):
        name = algorithm.title
        (why,) = refused
        assert why.startswith(f"{name} cannot take in client {LATE}, which came after the run had begun. Have all")
        assert f"client {LATE}: not enrolled: {why}" in caplog.text
        assert not any(served)
        return
    assert refused == []
    if algorithm.traits.synchronous:
        assert served == [False, False, True, True], "it came while the second round was asked for"
    else:
        assert sum(served) > 1


def test_a_late_client_finds_the_cluster_of_its_like_by_cosine(tmp_path):
    """Algorithm 4: the tree was split before it came; half of the clients name the classes the other way round."""
    plan = dataclasses.replace(
        SMALL,
        data=InMemory(examples(600, 0), examples(20, 1)),
        algorithm=ClusteredFL(split_rounds=(1,), min_gap=0.0),
        groups=PermutedLabels(2),
        model=MLP((16,)),
        training=LocalSGD(epochs=2, batch_size=20, lr=0.5),
        until=phalanx.Until(4),
    )
    lines = joined(plan, tmp_path)
    assert lines[1].state.clusters == {1: (0, 1, 2), 2: (3, 4)}
    verdict = next(line.state.verdicts[LATE] for line in lines if LATE in line.state.verdicts)
    found = re.fullmatch(r"new client joins cluster 2: cosine (-?[\d.]+), to its sibling (-?[\d.]+)", verdict.reason)
    assert found, verdict.reason
    assert float(found[1]) > 0 > float(found[2])
    assert (verdict.accepted, verdict.weight) == (False, 0.0), "what leads it there is not averaged"
    last = lines[-1].state
    assert last.clusters == {1: (0, 1, 2), 2: (3, 4, 5)}
    assert last.verdicts[LATE].accepted


def test_who_enrols_while_a_step_is_computed_is_told_of_after_a_kill(tmp_path):
    """The algorithm was not told of it yet where the snapshot was taken: it enrols anew."""
    plan = dataclasses.replace(SMALL, until=phalanx.Until(4))
    start, held, served = Federation(plan).start, [], {}
    nodes = at_nodes(honest(plan, tmp_path))
    late = nodes.pop(FIRST_NODE + LATE)

    def keep(take):
        if LATE in transport.register.reported:
            held.append(take())
            raise Killed

    def begins(progress):
        if progress.step == 1:
            enter(transport, late)

    def goes_on(progress):
        if progress.updates is None:
            enter(transport)
        else:
            served[progress.step] = LATE in progress.updates.clients

    with InProcessGrid(nodes) as grid, FlowerTransport(grid, roster_of(6), timeouts=PATIENCE) as transport:
        with pytest.raises(Killed):
            phalanx.run(plan.algorithm, transport, start, plan, on_snapshot=keep, observers=[begins])
        assert transport.register.kept()[0].keys() == {0, 1, 2, 3, 4, LATE}, "the record of the run names it"
    (snapshot,) = held
    everybody = at_nodes(honest(plan, tmp_path))
    with InProcessGrid(everybody) as grid, FlowerTransport(grid, roster_of(6), timeouts=PATIENCE) as transport:
        phalanx.run(plan.algorithm, transport, start, plan, observers=[goes_on], resume=snapshot)
    assert served == {2: False, 3: True, 4: True}


def test_who_is_told_of_to_a_wait_that_is_interrupted_is_told_of_after_it_as_well(tmp_path, monkeypatch):
    nodes = at_nodes(honest(SMALL, tmp_path))
    late = nodes.pop(FIRST_NODE + LATE)

    def interrupted(*_):
        raise KeyboardInterrupt

    with InProcessGrid(nodes) as grid, FlowerTransport(grid, roster_of(6), timeouts=PATIENCE) as first:
        assert first.enroll().keys() == {0, 1, 2, 3, 4}
        first.send({0: Federation(SMALL).start}, 0)
        enter(first, late)
        monkeypatch.setattr(first, "_pass", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.receive(every=True)
        kept = first.snapshot()
    with InProcessGrid(nodes) as grid, FlowerTransport(grid, roster_of(6), timeouts=PATIENCE) as second:
        second.restore(kept)
        enter(second, late)
        assert second.receive(every=True).joined.keys() == {LATE}
