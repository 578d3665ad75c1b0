"""No attackers, as many as a run says it tolerates, move a median out of the range of the honest clients."""

import dataclasses
import importlib
import itertools
import math
from fractions import Fraction

import pytest

from adversary import JUDGED, LEFT_OUT, VISITED, N, covering, draw, factors, judged, survived, visits
from compositions import cells, composed
from phalanx import promises
from phalanx.aggregators.flame import FLAMEFilter
from phalanx.algorithms import FedAvg
from phalanx.core import Setting, Tolerance
from phalanx.engine import at_start
from phalanx.promises import promise_watch
from phalanx.weighting import Truncate


def survivors(seeds, monkeypatch):
    """How many of the drawn compositions promise something, and those whose promise was broken."""
    found, promising, broken = judged(monkeypatch), 0, []
    for seed in seeds:
        made = draw(seed)
        if made is None:
            continue
        f = survived(found, *made)
        promising += bool(f)
        if f and found.broken:
            broken.append((seed, f, made[0], made[1], found.broken[:2]))
    return promising, broken


def visited(numbers, monkeypatch):
    """The levels of attackers' choices with which none got into a call of a rule, by cell, and the broken promises."""
    found, idle, broken = judged(monkeypatch), [], []
    for number in numbers:
        visit, got_in = visits(number), None
        try:
            while True:
                algorithm, hostile, sample = visit.send(got_in)
                f = survived(found, algorithm, hostile, sample)
                if not f or found.broken:
                    broken.append((VISITED[number], f, hostile, found.broken[:2]))
                got_in = found.attacked > 0
        except StopIteration as end:
            idle += [(VISITED[number], level) for level in end.value]
    return idle, broken


def of(name):
    """Some of the cells of an algorithm."""
    return [number for number, where in enumerate(VISITED) if where[0] == name][::16]


def test_a_draw_of_compositions_keeps_its_promises(monkeypatch):
    promising, broken = survivors(range(16), monkeypatch)
    assert promising > 3
    assert broken == []


def test_each_guaranteed_cell_of_the_page_is_visited_or_aggregates_nothing():
    """And all rules in a cell that is visited are judged; `FLAMEFilter` is a clip and a `DensestMajority`."""
    guaranteed = [where for where, (shown, _) in cells() if shown.startswith("y")]
    assert sorted(VISITED[number] for batch in BATCHES for number in batch) == sorted({*guaranteed} - {*LEFT_OUT})
    assert {*LEFT_OUT} <= {*guaranteed}
    assert not any(composed(*where[:3]).pools(Setting(N)) for where in LEFT_OUT)
    rules = {type(pool.rule) for where in VISITED for pool in composed(*where[:3]).pools(Setting(N))}
    assert rules - {FLAMEFilter} == {*JUDGED}


def test_any_two_levels_of_attackers_choices_meet_in_each_cell():
    """In some run, of a quarter of all possible ones at most."""
    for *names, case in VISITED[::40]:
        levels = tuple(factors(composed(*names), case).values())
        rows = covering(levels, 2, 0)
        assert len(rows) <= min(30, math.prod(map(len, levels)) // 4)
        for (i, of), (j, others) in itertools.combinations(enumerate(levels), 2):
            assert {(row[i], row[j]) for row in rows} == {*itertools.product(of, others)}
    assert len(covering(levels, None, 0)) == math.prod(map(len, levels))


def test_each_level_is_possible_in_some_cell():
    """A cell of the sizes, times, absences, late joins and groups that attackers choose."""
    met = {name: set() for name in factors(FedAvg(), "all")}
    for *names, case in VISITED:
        for name, of in factors(composed(*names), case).items():
            met[name] |= {*of}
    assert {name: len(of) for name, of in met.items()} == {
        "sizes": 5, "most": 3, "timing": 3, "absence": 3, "late": 5, "leaving": 3, "patience": 2, "sly": 3,
        "victims": 4,
    }  # fmt: skip


@pytest.mark.slow
def test_compositions_keep_their_promises(monkeypatch):
    promising, broken = survivors(range(100, 300), monkeypatch)
    assert promising > 50
    assert broken == []


BATCHES = [range(start, len(VISITED), 8) for start in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_each_guaranteed_cell_of_the_page_keeps_its_promise(batch, monkeypatch):
    """Whatever attackers choose; `ByzantineCFL` alone leaves updates out before its rule, those that are loud."""
    idle, broken = visited(batch, monkeypatch)
    assert broken == []
    assert {(name, *level) for (name, *_), level in idle} <= {("ByzantineCFL(Median)", "sly", 0.0)}


def larger_set(monkeypatch):
    """Truncation for any set is that for a set of all clients."""
    original = Truncate.bound
    monkeypatch.setattr(Truncate, "bound", lambda self, sizes, size: original(self, sizes, len(sizes)))


def ignored_silence(monkeypatch):
    """All answers come."""
    original = promises.promise
    fake = lambda algorithm, setting, **f: original(algorithm, dataclasses.replace(setting, lossy=False), **f)  # noqa: E731
    monkeypatch.setattr(at_start, "promise", fake)


def one_more(monkeypatch):
    """Rules tolerate one half and a little."""
    more = Tolerance(Fraction(6, 10), "range", "wrong")
    for rule in (*JUDGED, FLAMEFilter):
        monkeypatch.setattr(rule, "tolerates", lambda self, q: more)


MUTANTS = [larger_set, ignored_silence, one_more]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_judge_finds_planted_faults(mutant, monkeypatch):
    """Without the audit, which would hold back what a wrong promise lets through."""
    mutant(monkeypatch)
    monkeypatch.setattr(promise_watch, "_check", lambda *arguments: None)
    assert any(survivors(range(start, start + 50), monkeypatch)[1] for start in range(0, 1000, 50))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FLAME", "Catalyst", "Catalyst(Median)", "LowRankProducts(Median)"])
def test_the_judge_finds_planted_faults_of_each_rule(name, monkeypatch):
    one_more(monkeypatch)
    monkeypatch.setattr(promise_watch, "_check", lambda *arguments: None)
    assert visited(of(name), monkeypatch)[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FLAME", "Catalyst"])
def test_the_judge_finds_updates_that_are_not_clipped(name, monkeypatch):
    monkeypatch.setattr(
        importlib.import_module(f"phalanx.algorithms.{name.lower()}"), "shortened", lambda rows, *_: rows
    )
    assert visited(of(name), monkeypatch)[1]


@pytest.mark.slow
def test_the_judge_finds_steps_that_no_rule_has_made(monkeypatch):
    """A hundredth of the mean of what came."""
    original = FedAvg.step

    def step(self, state, updates):
        new, ready = original(self, state, updates)
        return new._replace(model=new.model + 0.01 * updates.deltas.mean(0)), ready

    monkeypatch.setattr(FedAvg, "step", step)
    broken = visited(of("FedAvg(Median)"), monkeypatch)[1]
    assert broken
    assert all(isinstance(why[0], str) for *_, why in broken)
