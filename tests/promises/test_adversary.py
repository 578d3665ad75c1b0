"""No attackers, as many as a run says it tolerates, move a median out of the range of the honest clients."""

import dataclasses
from fractions import Fraction

import pytest

from adversary import attacked, draw, judged
from phalanx import promises
from phalanx.aggregators import Median
from phalanx.core import Tolerance
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
        f = attacked(*made)
        promising += bool(f)
        if f and found:
            broken.append((seed, f, made[0], made[1], found[:2]))
        found.clear()
    return promising, broken


def test_a_draw_of_compositions_keeps_its_promises(monkeypatch):
    promising, broken = survivors(range(16), monkeypatch)
    assert promising > 3
    assert broken == []


@pytest.mark.slow
def test_compositions_keep_their_promises(monkeypatch):
    promising, broken = survivors(range(100, 500), monkeypatch)
    assert promising > 100
    assert broken == []


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
    """A median tolerates one half and a little."""
    more = Tolerance(Fraction(6, 10), "range", "wrong")
    monkeypatch.setattr(Median, "tolerates", lambda self, q: more)


MUTANTS = [larger_set, ignored_silence, one_more]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_judge_finds_planted_faults(mutant, monkeypatch):
    """Without the audit, which would hold back what a wrong promise lets through."""
    mutant(monkeypatch)
    monkeypatch.setattr(promise_watch, "_check", lambda *arguments: None)
    assert any(survivors(range(start, start + 50), monkeypatch)[1] for start in range(0, 1000, 50))
