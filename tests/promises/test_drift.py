"""Attackers who know everything push one way for many rounds: what a promise says of range and drift holds."""

import dataclasses
import itertools
import random
import re
import warnings

import pytest
import torch

import phalanx
from adversary import LAYERS, LOUD, TIMING, D, Hostile, watch_medians, watch_rules
from compositions import cells, composed
from phalanx.aggregators import GeometricMedian, Median
from phalanx.algorithms import (
    SCAFFOLD,
    Catalyst,
    DeMoA,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedYogi,
    PerCluster,
    Undiscounted,
    WorkerMomentum,
)
from phalanx.core import InfeasibleError, Setting, StalledError, Until, Updates
from phalanx.engine import LoopSettings, LostRounds, Participation
from phalanx.engine.connection import Reply
from phalanx.promises import promise
from phalanx.weighting import Ignore, Truncate

ROUNDS, SEED = 32, 34
FAR = re.compile(r"shift a model by at most (?:([\d.]+) )?H( \(H \+ 3\) / 2)? times the honest range of a step")
WHATEVER = re.compile(r"Whatever is sent, no entry of the model moves by more than (?:([\d.]+) )?H in H steps")
LATE = re.compile(r"Late answers shift the model in a step by at most ([\d.]+) times the (honest range|length)")


@dataclasses.dataclass
class Pushing(Hostile):
    """Honest clients send what the algorithm makes of their changes; attackers the same direction, always."""

    algorithm: object = None
    memories: dict = dataclasses.field(default_factory=dict)

    def _reply(self, i):
        reply = super()._reply(i)
        if i in self.attackers:
            return reply
        sent, self.memories[i] = self.algorithm.upload(self.trained(i, reply.delta), self.memories.get(i))
        return Reply(reply.client, reply.version, sent, reply.loss)

    def trained(self, i, delta):
        """What an honest client has trained."""
        return delta


def watched(monkeypatch):
    """A list to which each call of a median is added: the ends of the honest entries, the result, and their median."""
    found = []

    def seen(m, rows, honest, result):
        attacked = len(honest) < len(rows)
        found.append((honest.amin(0), honest.amax(0), result, honest.median(0).values if attacked else None))

    watch_medians(monkeypatch, seen)
    return found


def made(name, wrapper, preprocess):
    """The algorithm of a composition; None if there is none, with no median, or with needs that a transport lacks."""
    try:
        algorithm = composed(name, wrapper, preprocess)
    except (ValueError, InfeasibleError):
        return None
    known = not (algorithm.traits.needs_reference or algorithm.traits.knows_layout)
    return algorithm if known and any(isinstance(pool.rule, Median) for pool in algorithm.pools(Setting(12))) else None


def pushed(algorithm, part, timing="random", seen=None):
    """Carry out a run; return its promise, the last state, and the transport; None if it is refused."""
    seen = [] if seen is None else seen
    hostile = Pushing(
        SEED, "tiny", timing, lossy=part in ("deadline", "silent", "leaves"),
        late="one" if part == "joins" and algorithm.traits.can_join else "", algorithm=algorithm,
    )  # fmt: skip

    def watch(progress):
        if not seen:
            hostile.turn_on(progress.promise.f)
        seen.append(progress)

    settings = LoopSettings(
        until=Until(ROUNDS if algorithm.traits.synchronous else ROUNDS * 12), lost_rounds=LostRounds("skip", 200)
    )
    sampled = part == "sampled" and algorithm.traits.synchronous
    try:
        with warnings.catch_warnings(action="ignore"):
            phalanx.run(
                algorithm, hostile, torch.zeros(D), settings, observers=[watch],
                sample=Participation(0.75, SEED) if sampled else phalanx.engine.everyone,
            )  # fmt: skip
    except StalledError:
        pass  # silence is no harm
    except (ValueError, InfeasibleError):
        return None
    return seen[0].promise, seen[-1].state, hostile


def far(found, calls, state, models):
    """By how much models have gone farther than the promise says; None if it does not say how far.

    The model of a cluster has taken some of the steps.
    """
    words = " ".join(found.text)
    if whatever := WHATEVER.search(words):
        return max(float(model.abs().max()) for model in models) - float(whatever[1] or 1) * state.version
    said = FAR.search(words)
    if said is None:
        return None
    parts, repeats = hasattr(state, "clusters"), said[2] or "Momentum repeats" in words
    calls = calls[::2] if "variates" in words else calls  # of two in each step the first is of updates
    steps = state.version if parts or repeats else len(calls)
    factor = float(said[1] or 1) * steps * ((steps + 3) / 2 if said[2] else 1)
    least = torch.zeros(D) if parts else factor * torch.stack([call[0] for call in calls]).amin(0)
    most = factor * torch.stack([call[1] for call in calls]).amax(0)
    if repeats:  # not all steps as often
        least, most = least.clamp(max=0), most.clamp(min=0)
    return max(float(torch.maximum(least - model, model - most).max()) for model in models)


def said_less(found, factor):
    """A promise whose figure of `FAR` or `WHATEVER` is less by a factor."""
    times = lambda figure: f"{figure[1]} {float(figure[2] or 1) * factor} H"  # noqa: E731
    return dataclasses.replace(
        found, beyond=tuple(re.sub(r"(than|most) (?:([\d.]+) )?H", times, words) for words in found.beyond)
    )


def judged(chosen, monkeypatch):
    """The compositions that promise something, the names of those whose models drift farther than a tenth of what is
    said, and those that are broken.
    """
    calls, promising, drifting, broken, pushing = watched(monkeypatch), [], set(), [], []
    for names in chosen:
        algorithm = made(*names[:3])
        calls.clear()
        if algorithm is None or (outcome := pushed(algorithm, names[3])) is None or not outcome[0].f or not calls:
            continue
        found, state, hostile = outcome
        promising.append(names)
        outside = [k for k, (least, most, result, _) in enumerate(calls)
                   if ((result < least - 1e-4) | (result > most + 1e-4)).any()]  # fmt: skip
        models = [algorithm.download(state, i)[:D] for i in hostile.enroll() if i not in hostile.attackers]
        reached = far(found, calls, state, models)
        if reached is not None and far(said_less(found, 0.1), calls, state, models) > 0:
            drifting.add(names[0] if names[1] != "PerCluster" else "PerCluster")
        moved = [float((result - middle).mean()) for *_, result, middle in calls if middle is not None]
        pushing += [sum(moved) < 0] if moved and names[2] in ("", "ignored") else []
        if outside or (reached or 0) > 1e-3:
            broken.append((names, found.f, outside[:3], reached))
    assert not pushing or 2 * sum(pushing) > len(pushing), "the attackers push the median below that of the honest"
    return promising, drifting, broken


def test_what_is_said_of_range_and_drift_holds_for_some_compositions(monkeypatch):
    """Drawn with the seed 34 among those of rounds that promise something, by the page of compositions."""
    known = [
        where for where, (shown, _) in cells() if shown[0] == "y" and not where[0].startswith(("Async", "Catalyst"))
    ]
    promising, _, broken = judged(random.Random(SEED).sample(known, 4), monkeypatch)
    assert len(promising) > 1
    assert broken == []


SAY_HOW_FAR = (
    "WorkerMomentum(Median)", "DeMoA", "AsyncMomentum", "ClusteredFL(Median)", "FedAvg(Median)", "SCAFFOLD(Median)",
    "FedDyn(Median)", "FedAdam(Median)",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", dict.fromkeys(where[0] for where, (shown, _) in cells() if shown[0] == "y"))
def test_what_is_said_of_range_and_drift_holds_for_all_compositions(name, monkeypatch):
    """Of those whose promise the page states, and that a transport without a model can carry out."""
    known = [where for where, (shown, _) in cells() if where[0] == name and shown[0] == "y"]
    promising, drifting, broken = judged(known, monkeypatch)
    assert broken == []
    if name in SAY_HOW_FAR:
        assert drifting, "it says how far, or PerCluster around it does; a tenth of that is found to be too little"
        assert promising


def test_a_drift_that_is_said_too_small_is_found(monkeypatch):
    """A factor of a tenth of the true one."""
    fake = promise(DeMoA(server_lr=0.1), Setting(12))
    assert "by at most 0.1 H times" in " ".join(fake.text)
    calls = watched(monkeypatch)
    found, state, _ = pushed(DeMoA(), "all")
    assert far(found, calls, state, [state.model]) <= 1e-3
    assert far(fake, calls, state, [state.model]) > 1


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (SCAFFOLD(Median(), Ignore(), server_lr=0.5), "by at most 0.5 H times"),
        (FedDyn(aggregate=Median(), preprocess=Ignore()), "by at most H (H + 3) / 2 times"),
        (FedAvgM(FedAvg(Median(), Ignore(), server_lr=0.5), momentum=0.75), "by at most 2 H times"),
    ],
    ids=["SCAFFOLD", "FedDyn", "FedAvgM"],
)
def test_what_adds_up_says_how_far_and_gets_no_farther(algorithm, said, monkeypatch):
    """All attackers push one way in 32 rounds; a twentieth of what is said would be too little."""
    assert said in " ".join(promise(algorithm, Setting(12)).text)
    calls = watched(monkeypatch)
    found, state, _ = pushed(algorithm, "all")
    assert found.f
    assert far(found, calls, state, [state.model]) <= 1e-3
    assert far(said_less(found, 0.05), calls, state, [state.model]) > 0


@dataclasses.dataclass
class Growing(Hostile):
    """All clients send the same direction, and farther in each round by a factor."""

    factor: float = 1.0

    def _reply(self, i):
        return super()._reply(i)._replace(delta=torch.full((D,), -0.01 * self.factor**self.waits))


@pytest.mark.parametrize(
    ("algorithm", "factor"), [(FedAdagrad, 2.5), (FedAdam, 0.99 / 0.9), (FedYogi, 0.99 / 0.9)], ids=str
)
@pytest.mark.parametrize("lr", [0.1, 0.037, 1.0])
def test_a_step_for_each_entry_gets_no_farther_than_is_said_whatever_is_sent(algorithm, factor, lr):
    """And three quarters as far, by updates that grow as past squares are forgotten: a smaller figure is found.

    A constant direction gets 43 % as far with `FedAdam`.
    """
    seen, hostile = [], Growing(SEED, "equal", "random", factor=factor)
    settings = LoopSettings(until=Until(ROUNDS))
    phalanx.run(algorithm(FedAvg(Median(), Ignore()), lr), hostile, torch.zeros(D), settings, observers=[seen.append])
    found, state = seen[0].promise, seen[-1].state
    assert found.f == 5
    assert far(found, [], state, [state.model]) <= 0
    assert far(said_less(found, 0.75), [], state, [state.model]) > 0


def late_shifts(algorithm, monkeypatch, timing):
    """What a run says, and for each step the largest that late answers moved an entry by, or the model; and of what.

    That is the honest range, or the length of the longest honest update, of all rows that a rule has received.
    """
    unit, seen, by_range = torch.zeros(()), [], isinstance(algorithm.rule, Median)

    def one(rule, m, rows, weights, honest, result, shares):
        nonlocal unit
        kept = rows[honest]
        unit = torch.maximum(unit, kept.amax(0) - kept.amin(0) if by_range else kept.norm(dim=1).max())

    watch_rules(monkeypatch, one)
    found = pushed(algorithm, "all", timing, seen)[0]
    moved = []
    for before, after in itertools.pairwise(progress.state for progress in seen):
        if after.version > before.version:
            shift = after.model - before.model - after.aggregate
            moved.append(float((shift.abs() / unit).max() if by_range else shift.norm() / unit))
    return found, moved


@pytest.mark.parametrize("timing", TIMING)
@pytest.mark.parametrize(
    "algorithm",
    [
        Catalyst(2, quorum=5, aggregate=Median()),
        Catalyst(2, quorum=5, aggregate=Median(), late_lr=0.1, window=3, staleness=Undiscounted()),
        Catalyst(2, quorum=5),
        Catalyst(2, quorum=5, second_look=True, late_lr=3.0),
    ],
    ids=str,
)
def test_late_answers_shift_no_farther_than_is_said(algorithm, timing, monkeypatch):
    """The attackers push one way, in the quorums or late: in no step the late answers shift the model by more."""
    found, moved = late_shifts(algorithm, monkeypatch, timing)
    said = LATE.search(" ".join(found.text))
    assert found.f == 2
    assert (said[2] == "honest range") == isinstance(algorithm.rule, Median)
    assert len(moved) > ROUNDS
    assert 0.1 * float(said[1]) < max(moved) <= float(said[1]), "and a tenth of the figure is found"


def test_late_answers_are_parts_of_one_mean_whatever_their_sizes():
    """Four of twelve report 500, and the others 1. Of seven clients the sizes need no bound, of all it is 2."""
    algorithm = Catalyst(1, quorum=6, preprocess=Truncate(1 / 7, 0.25, scope="cohort"))
    state, _ = algorithm.init(torch.zeros(3), {i: 500 if i < 4 else 1 for i in range(12)})
    for i, version in [*((i, 0) for i in (0, 1, 2, 4, 5, 6, 3)), *((i, 1) for i in (0, 1, 2, 4, 5, 6))]:
        one = Updates((i,), (version,), (torch.zeros(3),), torch.ones(1, 3), torch.ones(1))
        state, _ = algorithm.step(state, one)
    assert state.version == 2
    assert 2 < float(state.model[0]) < 3  # one for each of two quorums, and a part for the late answer of client 3


@dataclasses.dataclass
class Once(Pushing):
    """All clients send a multiple of their changes to the first model, and of no other."""

    factor: float = 1.0
    last: int = 0  # the last wait that has brought such an answer

    def trained(self, i, delta):
        if self.open[i] or self.answers[i] > 1:
            return delta
        self.last = self.waits
        return self.factor * delta


def later_steps(algorithm, case, factor):
    """How the models of two clients change in steps that no answer to the first model is in, by number of the step."""
    hostile, seen = Once(SEED, "equal", "random", size=D, algorithm=algorithm, factor=factor), []
    if algorithm.traits.knows_layout:
        hostile.size = D + LAYERS
    synchronous = algorithm.traits.synchronous

    def watch(progress):
        models = [algorithm.download(progress.state, i)[: hostile.size].clone() for i in (0, 1)]
        seen.append((progress.state.version, hostile.last, torch.stack(models)))

    with warnings.catch_warnings(action="ignore"):
        phalanx.run(
            algorithm, hostile, torch.zeros(hostile.size), LoopSettings(until=Until(8 if synchronous else 120)),
            sample=Participation(0.75, SEED) if case == "sampled" and synchronous else phalanx.engine.everyone,
            observers=[watch],
        )  # fmt: skip
    steps = [(version, last, now - before) for (earlier, last, before), (version, _, now) in itertools.pairwise(seen)
             if version > earlier]  # fmt: skip
    return {version: change for version, last, change in steps[1:] if last == seen[-1][1]}


def carries_over(algorithm, case):
    """Whether what all clients send first changes later steps."""
    one, other = later_steps(algorithm, case, 1.0), later_steps(algorithm, case, 3.0)
    both = list(one.keys() & other.keys())[1:]
    return any(not torch.allclose(one[version], other[version], atol=1e-4) for version in both)


@pytest.mark.slow
def test_what_carries_over_says_what_is_bounded():
    """Each algorithm and wrapper that the page calls guaranteed: of what earlier rounds change, a sentence beyond."""
    silent, carrying = [], set()
    for where, (shown, _) in cells():
        if shown[0] == "y" and where[2] in ("", "ignored") and where[3] in ("all", "sampled"):
            algorithm = composed(*where[:3])
            if not algorithm.pools(Setting(12)) or not carries_over(algorithm, where[3]):
                continue
            carrying.add(where[0])
            drawn = 9 if where[3] == "sampled" and algorithm.traits.synchronous else None
            words = " ".join(promise(algorithm, Setting(12, drawn=drawn)).text)
            if not re.search(r"push one way|can be a large one|Late answers shift|What clients earn", words):
                silent.append(where)
    assert silent == []
    assert carrying >= {"FedDyn(Median)", "FedAdam(Median)", "DeMoA", "AsyncMomentum", "WorkerMomentum(Median)",
                        "Catalyst(Median)", "LowRankProducts(Median)"}, carrying  # fmt: skip


def test_a_rule_without_a_range_says_no_number():
    said = " ".join(promise(WorkerMomentum(FedAvg(GeometricMedian(), Ignore())), Setting(12)).text)
    assert "adds up if they push one way" in said
    assert not FAR.search(said)
    half = PerCluster(FedAvg(Median(), Ignore(), server_lr=0.5), min_part_size=5)
    assert "by at most 0.5 H times" in " ".join(promise(half, Setting(12)).text)


def test_attackers_push_one_way():
    hostile = Pushing(SEED, "equal", "random", algorithm=FedAvg())
    hostile.turn_on(2)
    assert all(
        float(hostile._reply(i).delta.mean()) == LOUD for i in hostile.attackers if not hostile.open.update({i: 0})
    )
