"""The promise is computed again when clients join, are excluded, or leave for good."""

import warnings
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import torch

import phalanx
from phalanx import Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import AtOnce, ByzantineCFL, FedAvg, Quorum
from phalanx.core import StalledError
from phalanx.engine import LoopSettings, loop
from phalanx.models import MLP
from phalanx.runs.replay import UpdateReplay
from phalanx.simulation import AvailabilityTrace
from phalanx.weighting import Ignore, Truncate
from toys import Scripted

MEDIAN = FedAvg(Median(), Ignore())
CLUSTER = ByzantineCFL(exclusion=AtOnce(), aggregate=Median())


@dataclass
class Members(Scripted):
    """Clients of whom some leave for good, and some join, in a wait."""

    leave: dict[int, set[int]] = field(default_factory=dict)
    join: dict[int, int] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    joins: bool = False  # it does not say beforehand that clients join

    def enroll(self):
        return {i: 10 for i in self.answers if i not in self.join}

    def send(self, downloads, version):
        super().send({i: one for i, one in downloads.items() if i not in self.absent}, version)

    def receive(self, *, every):
        arrivals = super().receive(every=every)
        gone = frozenset(self.leave.get(int(self.now), set()))
        self.absent |= gone
        self.queue = [reply for reply in self.queue if reply.client not in gone]
        joined = {client: 10 for client, wait in self.join.items() if wait == int(self.now)}
        return arrivals._replace(gone=gone, joined=joined)


def followed(algorithm, transport, steps=6, **settings):
    """What a run reports."""
    seen = []
    with warnings.catch_warnings(action="ignore"), suppress(StalledError):
        settings = LoopSettings(until=Until(steps), **settings)
        phalanx.run(algorithm, transport, torch.zeros(2), settings, observers=[seen.append])
    return seen


def promises(seen):
    """Each promise with its step: how many attackers of how many clients."""
    return [(progress.step, progress.promise.f, progress.promise.clients) for progress in seen if progress.promise]


def opposed(among):
    return {i: [-1.0 if i in among else 1.0] for i in range(12)}


def test_excluded_clients_may_be_honest_so_that_as_many_of_the_rest_are_tolerated():
    """Of twelve, three; two are excluded, and any three of the ten that are left can be attackers."""
    seen = followed(CLUSTER, Members(opposed({3, 8})))
    assert promises(seen) == [(0, 3, 12), (1, 3, 10)]
    assert "Tolerates any 3 of 10 clients." in next(p.promise.sentence for p in seen[1:] if p.promise)
    assert {progress.watched for progress in seen[1:]} == {3}
    assert max(share for progress in seen for share in progress.shares) <= 3 / 10 + 1e-9


def test_the_weights_stay_made_for_all_who_were_there():
    """A quarter of twelve is three; of the ten that are left it would be two."""
    weighed = ByzantineCFL(exclusion=AtOnce(), aggregate=Median(), preprocess=Truncate(0.25, 0.49))
    assert promises(followed(weighed, Members(opposed({3, 8})))) == [(0, 3, 12), (1, 3, 10)]


@pytest.mark.parametrize(("treatment", "said"), [("hold", "holds such steps back."), ("remark", "is broken by such")])
def test_who_leaves_for_good_is_counted_and_too_few_are_named_at_once(treatment, said):
    """Of a quorum of seven, six are left: three attackers would be half of them."""
    transport = Members({i: [1.0] for i in range(12)}, leave={10: {0, 1}, 20: {2, 3, 4, 5}})
    seen = followed(Quorum(MEDIAN, 7), transport, steps=60, broken_promise=treatment)
    assert [(f, n) for _, f, n in promises(seen)] == [(3, 12), (3, 10)]
    (remark,) = [remark for progress in seen for remark in progress.remarks if "left" in remark]
    assert remark.startswith("With 6 clients left: Tolerates any 2 of 6 clients.")
    assert said in remark


def test_who_joins_is_counted_too_and_the_promise_does_not_grow():
    seen = followed(MEDIAN, Members({i: [1.0] for i in range(14)}, join={12: 2, 13: 3}))
    assert promises(seen) == [(0, 5, 12), (2, 5, 13), (3, 5, 14)]
    assert {progress.watched for progress in seen[1:]} == {5}


def test_it_is_computed_only_when_members_change(monkeypatch):
    calls, promised = [], loop.promised
    monkeypatch.setattr(loop, "promised", lambda *a, **how: (calls.append(1), promised(*a, **how))[1])
    followed(CLUSTER, Members(opposed({3, 8})), steps=30)
    assert len(calls) == 2


def test_a_resumed_run_knows_who_is_gone():
    transport, kept, seen = Members(opposed({3, 8}), leave={4: {0}}), [], []
    transport.snapshot, transport.restore = lambda: None, lambda snapshot: None

    def run(steps, resume=None):
        settings, take = LoopSettings(until=Until(steps)), lambda take: kept.append(take())
        with warnings.catch_warnings(action="ignore"):
            phalanx.run(
                CLUSTER, transport, torch.zeros(2), settings, observers=[seen.append], on_snapshot=take, resume=resume
            )

    run(3)
    run(6, kept[-1])
    assert promises(seen)[-1][1:] == (3, 9)


def test_record_report_and_replay_follow_clients_that_leave_for_good(tmp_path):
    file = tmp_path / "present.csv"
    file.write_text("client,begin,end\n" + "".join(f"{i},0,{5 if i < 2 else 1000}\n" for i in range(12)))
    plan = Run(algorithm=Quorum(MEDIAN, 7), clients=12, model=MLP(()), until=Until(100),
               availability=AvailabilityTrace(str(file)))  # fmt: skip
    record = simulate(plan, folder=tmp_path / "run", keep_updates=True)
    found = [(step.promise.f, step.promise.clients) for step in record.history if step.promise]
    assert (found[0], found[-1]) == ((3, 12), (3, 10))
    assert record.summary.promise.text[0] == "Tolerates any 3 of 10 clients."
    assert "Tolerates any 3 of 10 clients." in (tmp_path / "run" / "model.md").read_text()
    assert all(step.same for step in UpdateReplay(tmp_path / "run", plan.algorithm).steps())
