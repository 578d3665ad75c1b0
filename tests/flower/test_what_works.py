"""The table in docs/answers.md of what works over Flower: each row is what the code does."""

import dataclasses
import re
from pathlib import Path

import pytest

from algorithms.test_common import ALGORITHMS
from flower.federations import KEYS, QUICK, SMALL, at_nodes, honest, roster_of
from phalanx import algorithms, attacks, simulate, training
from phalanx.algorithms import FedAvg
from phalanx.algorithms.wrapper import Wrapper
from phalanx.core import InfeasibleError, Until
from phalanx.flower import InProcessGrid, PhalanxStrategy, coordinate, coordinator_of, participant_of
from phalanx.runs.federation import Federation
from phalanx.runs.record import Record
from phalanx.simulation import Constant, Deadline
from phalanx.weighting import Truncate

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"
TABLE = PAGE.read_text().partition("\n## What works over Flower\n")[2].partition("\n### ")[0]
ROWS = {
    cells[0]: (re.findall(r"`(\w+)`", cells[1]), cells[2], cells[3])
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
    for cells in ([cell.strip() for cell in line.strip("|").split("|")],)
    if cells[0] != "what"
}
ALGORITHM_ROWS = [what for what, (names, _, _) in ROWS.items() if hasattr(algorithms, names[0])]
PROPERTIES = {  # by row of the table, what its algorithms have
    "state at the clients, such as worker momentum": lambda a: a.traits.remembers,
    "corrected gradients": lambda a: a.traits.corrects,
    "losses on all examples": lambda a: a.traits.exact_losses,
    "training of the server's own": lambda a: a.traits.needs_reference,
    "single arrivals": lambda a: not a.traits.synchronous,
}


def layers(algorithm):
    """The classes of an algorithm and of those that it goes around."""
    while algorithm is not None:
        yield type(algorithm).__name__
        algorithm = algorithm.algorithm if isinstance(algorithm, Wrapper) else None


TESTED = {name: algorithm for algorithm in ALGORITHMS for name in layers(algorithm)}


@pytest.mark.parametrize("what", ALGORITHM_ROWS)
def test_the_algorithms_of_a_row_are_among_those_that_give_the_same_bits(what):
    names, ours, theirs = ROWS[what]
    assert set(names) <= TESTED.keys()
    assert "same bits" in ours
    holds = PROPERTIES.get(what, lambda a: True)
    assert all(holds(TESTED[name]) for name in names)
    if what in PROPERTIES:
        assert theirs.startswith("no"), "a hook of clients or of a loop of ours"


def test_the_rows_of_trainings_have_all_that_remember():
    names, ours, _ = ROWS["what stays at a client"]
    made = {"FedPer": training.FedPer(("1.*",)), "Ditto": training.Ditto(),
            "LocalOptimizer": training.LocalOptimizer(remember=True)}  # fmt: skip
    assert made.keys() == set(names)
    assert all(one.remembers for one in made.values())
    assert "`memory`" in ours
    for one in made.values():
        with pytest.raises(InfeasibleError, match="Give its clients a folder"):
            participant_of(dataclasses.replace(SMALL, training=one), 0, KEYS[0])


REFUSED = {
    "ALIE": ({"attack": attacks.ALIE(), "byzantine": 2}, "needs other clients' updates"),
    "HoldBack": (
        {"attack": attacks.HoldBack(), "byzantine": 2},
        "changes when a client joins, or when and how often it answers",
    ),
    "ConstrainAndScale": ({"attack": attacks.ConstrainAndScale(), "byzantine": 2}, "changes local training"),
    "PoisonedFL": ({"attack": attacks.PoisonedFL(), "byzantine": 2}, "changes local training"),
    "train_truncated": ({"algorithm": FedAvg(preprocess=Truncate()), "train_truncated": True}, "Only simulated"),
}


@pytest.mark.parametrize("name", [n for names, ours, _ in ROWS.values() if ours.startswith("refused") for n in names])
def test_what_the_table_says_is_refused_is_refused(name, tmp_path):
    changes, message = REFUSED[name]
    plan = dataclasses.replace(SMALL, **changes)
    federation = Federation(plan)
    client = min(federation.byzantine, default=0)
    with pytest.raises(InfeasibleError, match=message):
        participant_of(plan, client, KEYS[client], tmp_path, federation)


def test_options_that_only_simulated_clients_follow_are_named():
    plan = dataclasses.replace(SMALL, deadline=Deadline(3.0), latency=Constant(2.0))
    with pytest.warns(
        UserWarning, match=r"^Only simulated clients follow latency, deadline\. Over Flower, see timeouts"
    ):
        coordinator_of(plan, roster_of(plan.clients))
    coordinator_of(dataclasses.replace(SMALL, latency=Constant()), roster_of(SMALL.clients))  # an error if it warns


def test_the_influence_of_liars_is_the_same(tmp_path):
    assert "influence" in ROWS["influence of attackers"][0]
    plan = dataclasses.replace(SMALL, algorithm=FedAvg(), influence=1, until=Until(3))
    with InProcessGrid(at_nodes(honest(plan, tmp_path))) as grid:
        coordinate(grid, coordinator_of(plan, roster_of(plan.clients), folder=tmp_path / "server", timeouts=QUICK))
    found, simulated = Record.load(tmp_path / "server"), simulate(plan)
    ours, theirs = ([s.influences for s in record.history if s.verdicts] for record in (found, simulated))
    assert ours == theirs
    assert any(step.influences for step in found.history)


def test_the_strategy_takes_a_rule_and_sizes_and_nothing_else_of_ours():
    with pytest.raises(TypeError, match="algorithm"):
        PhalanxStrategy(algorithm=FedAvg())
    assert "reports" in vars(PhalanxStrategy())
