"""Clients that enrol while training runs: taken in by every algorithm that can, and refused by those that cannot."""

import dataclasses
import re
import time

import pytest

import phalanx
from algorithms.test_common import ALGORITHMS
from flower.federations import FIRST_NODE, QUICK, SMALL, at_nodes, examples, honest, roster_of
from phalanx import LocalSGD
from phalanx.algorithms import RFFL, AsyncRFFL, ClusteredFL
from phalanx.data import InMemory, PermutedLabels
from phalanx.flower import FlowerTransport, Rehearsal
from phalanx.models import MLP
from phalanx.runs import Federation

pytestmark = pytest.mark.filterwarnings("ignore:threshold")

LATE = 5  # the client that comes after the first step
CANNOT = (RFFL, AsyncRFFL)
PATIENCE = dataclasses.replace(QUICK, least=5, enrolment=1.0)


def joined(plan, folder):
    """A run in which one client enrols after the first step; what observers were shown."""
    federation, lines = Federation(plan), []
    nodes = at_nodes(honest(plan, folder, federation))
    late = nodes.pop(FIRST_NODE + LATE)
    with Rehearsal(nodes) as grid, FlowerTransport(grid, roster_of(6), patience=PATIENCE) as transport:

        def observer(progress):
            lines.append(progress)
            if progress.step == 1 and LATE not in transport.register.declared:
                grid.connect(FIRST_NODE + LATE, late)
                deadline = time.monotonic() + QUICK.answer
                while LATE not in transport.register.declared and time.monotonic() < deadline:
                    time.sleep(0.01)

        phalanx.run(
            plan.algorithm,
            transport,
            federation.start,
            until=plan.until,
            reference=federation.reference,
            observers=[transport, observer],
        )
    return lines


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_who_comes_late_takes_part_from_the_next_round_on_or_is_refused(algorithm, tmp_path, caplog):
    until = phalanx.Until(4 if algorithm.synchronous else 25)
    own = {"server_examples": 8} if algorithm.needs_reference else {}
    lines = joined(dataclasses.replace(SMALL, algorithm=algorithm, model=MLP((4,)), until=until, **own), tmp_path)
    served = [LATE in line.updates.clients for line in lines if line.updates is not None]
    refused = [line.refused[LATE] for line in lines if LATE in line.refused]
    if isinstance(algorithm, CANNOT):
        name = type(algorithm).__name__
        (why,) = refused
        assert why.startswith(f"{name} cannot take in client {LATE}, which came after the run had begun. Have all")
        assert f"client {LATE}: not enrolled: {why}" in caplog.text
        assert not any(served)
        return
    assert refused == []
    if algorithm.synchronous:
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
