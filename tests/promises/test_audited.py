"""What several clients send reaches a model through calls that are audited, and through no others."""

import ast
import dataclasses
import pkgutil
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
import torch

import phalanx
from exported import SETTINGS, subjects
from phalanx import algorithms
from phalanx.aggregators import Median
from phalanx.algorithms import ByzantineCFL, ClusteredFL, FedAvg, Kardam, Rewarded, SignSGD
from phalanx.core import Algorithm, InfeasibleError, Setting, Until
from phalanx.engine import LoopSettings
from phalanx.promises import promise
from phalanx.weighting import Ignore
from toys import Scripted

N, D, TURNS = 12, 200, 8
MEDIAN = FedAvg(Median(), Ignore())
GIVEN = {
    "aggregate": Median(),
    "preprocess": Ignore(),
    "algorithm": MEDIAN,
    "f": 2,
    "distinct": True,
    "weigh": "clients",
}


SAID = {Rewarded: "What clients earn is not bounded: ", ByzantineCFL: "Who is removed is not bounded: "}


def promising():
    """An algorithm or a wrapper of each exported kind that promises something, with robust rules."""
    for kind in dict.fromkeys(subjects()):
        if issubclass(kind, Algorithm):
            fields = {field.name for field in dataclasses.fields(kind)}
            made = SETTINGS.get(kind.__name__, {}) | {name: value for name, value in GIVEN.items() if name in fields}
            with suppress(InfeasibleError):
                algorithm = kind(**made)
                if promise(algorithm, Setting(N), f=1).f:
                    yield pytest.param(algorithm, id=kind.__name__)


def test_most_kinds_promise_something():
    assert len(list(promising())) >= 20


@pytest.mark.parametrize("algorithm", promising())
def test_no_update_reaches_another_client_but_by_calls_that_are_audited(algorithm, monkeypatch):
    """If these return what a client sent, or nothing, others change nothing of what it is served.

    Where they do, they decide something, and the promise says that it is not bounded.
    """
    calls, found = [], []

    def none(rule, rows, weights, owners, name, **how):
        return torch.zeros_like(rows[0]), None

    def own(rule, rows, weights, owners, name, **how):
        calls.append(name)
        mine = [row for row, owner in zip(rows, owners, strict=True) if owner in (0, {0})]
        return mine[0].clone() if mine else torch.zeros_like(rows[0]), None

    for combine in (none, own):
        for module in pkgutil.iter_modules(algorithms.__path__, "phalanx.algorithms."):
            if hasattr(import_module(module.name), "combine"):
                monkeypatch.setattr(f"{module.name}.combine", combine)
        found.append(torch.equal(served(algorithm, seed=0), served(algorithm, seed=1)))
    assert all(found) is not (type(algorithm) in SAID), "and each exception is one"
    said = promise(algorithm, Setting(N), f=1)
    assert calls or not said.bounds
    assert SAID.get(type(algorithm), "") in " ".join(said.text)


def test_other_calls_of_rules_only_decide_when_a_cluster_splits_or_promise_nothing():
    found = set()
    for path in Path(algorithms.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "attr", getattr(called, "id", ""))
            if isinstance(called, ast.Call) or name in {"aggregate", "rule", "explained"}:
                found.add((path.stem, ast.unparse(node)))
    assert found == {
        ("clustered_fl", "self.aggregate(e.deltas, self._weights_of(state, members, e), turn=state.version)"),
        ("clustered_fl", "self.aggregate(e.deltas, self._weights_of(state, members, e))"),
        ("kardam", "Median()(rows, w)"),
        ("signsgd", "SignMajority()(updates.deltas, votes)"),
    }
    assert "when it splits, is not bounded" in " ".join(promise(ClusteredFL(aggregate=Median()), Setting(N), f=1).text)
    assert promise(Kardam(), Setting(N)).f == promise(SignSGD(), Setting(N)).f == 0


def served(algorithm, seed):
    """What a client is served after each step of a run in which the others send what is drawn by a seed."""
    rng, found, steps = torch.Generator().manual_seed(seed), [], TURNS if algorithm.traits.synchronous else TURNS * N
    answers = {i: [torch.randn(D, generator=rng) for _ in range(TURNS)] for i in range(N)}
    answers[0] = [torch.linspace(turn, -1, D) for turn in range(TURNS)]

    def observer(progress):
        found.append(algorithm.download(progress.state, 0))

    with warnings.catch_warnings(action="ignore"):
        phalanx.run(
            algorithm,
            Scripted(answers),
            torch.linspace(-1, 1, D),
            LoopSettings(until=Until(steps)),
            reference=lambda values, version: torch.ones_like(values),
            observers=[observer],
        )
    return torch.stack(found)
