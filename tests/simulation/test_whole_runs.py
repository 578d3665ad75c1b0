"""Times, absences and the server's examples in a `Run`: what is refused, what is written down, what goes on."""

from dataclasses import dataclass, replace

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import Flood, HoldBack, Replay, Rescale, Together
from phalanx.models import MLP
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.federation import Federation
from phalanx.simulation import Both, Crashes, Deadline, LatencyTrace, Lognormal, OnOff, Silent, Stragglers
from phalanx.training.evaluation import Evaluation
from phalanx.training.local import LocalTask
from phalanx.training.sgd import LocalSGD, ServerTraining, Trainer

SMALL = Run(algorithm=FedAsync(), model=MLP(()), clients=6, until=Until(30), evaluation=Evaluation(10))
BUSY = replace(
    SMALL,
    latency=Stragglers(Lognormal(each_turn=True), 0.3, 6.0),
    availability=Both(OnOff(8.0, 4.0), Both(Crashes(0.2, 3.0), Silent(0.2, 12.0))),
    deadline=Deadline(5.0),
)


@dataclass(frozen=True)
class Guided(FedAsync):
    """FedAsync that adds a tenth of the server's own change."""

    reference_every: int = 3

    @property
    def traits(self):
        return super().traits._replace(reference_every=self.reference_every)

    def step(self, state, updates):
        state, ready = super().step(state, updates)
        return state._replace(model=state.model + 0.1 * updates.reference), ready


def test_the_servers_examples_are_nobody_elses():
    plan = replace(SMALL, algorithm=Guided(), server_examples=100)
    federation, without = Federation(plan), Federation(SMALL)
    assert federation.reference is not None
    assert without.reference is None
    dealt = torch.cat(list(federation.parts))
    total = len(without.train)
    assert len(dealt) == len(dealt.unique()) == total - 100
    own = torch.ones(total, dtype=torch.bool)
    own[dealt] = False
    assert torch.equal(federation.reference.data.x, federation.train.x[own])
    assert torch.equal(torch.cat([held.x for held in federation.data]), federation.train.x[dealt])
    other = Federation(replace(plan, seed=1)).reference
    assert other is not None
    assert not torch.equal(other.data.x, federation.reference.data.x)


def test_the_servers_training_has_streams_of_its_own():
    federation = Federation(replace(SMALL, algorithm=Guided(), server_examples=64))
    train = federation.reference
    assert train is not None
    start = federation.start
    assert torch.equal(train(start, 2), train(start, 2))
    assert not torch.equal(train(start, 2), train(start, 3)), "minibatches in another order"
    by_client = torch.empty_like(start)
    trainer = Trainer(federation.model, LocalSGD(), 0)
    trainer.train(LocalTask(2, 2, 2, start, by_client), train.data)
    assert not torch.equal(by_client, train(start, 2))
    with pytest.raises(ValueError, match="needs examples to train on, got none"):
        ServerTraining(trainer, federation.train.of(torch.empty(0, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server_examples": 10}, "server_examples is 10, but the server of FedAsync does not train"),
        ({"server_examples": -1}, "server_examples must be at least 0, got -1"),
        ({"algorithm": Guided()}, "Guided needs a training of the server's own.*Set it to"),
    ],
)
def test_examples_that_nobody_needs_or_that_are_not_there(options, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **options)


def test_the_server_leaves_some_examples_to_clients():
    with pytest.raises(ValueError, match=r"server_examples must be below the 1,\d\d\d training examples, got 5,000"):
        Federation(replace(SMALL, algorithm=Guided(), server_examples=5000))


def test_defaults_are_those_of_before():
    """A run that says nothing of absence, deadline and server is the run that it was."""
    plain = simulate(SMALL)
    explicit = simulate(replace(SMALL, availability=None, deadline=None, server_examples=0))
    assert plain.history == explicit.history
    always = simulate(replace(SMALL, deadline=Deadline(1e6), availability=Crashes(0.0)))
    assert [line.seconds for line in always.history] == [line.seconds for line in plain.history]
    assert always.summary.final == plain.summary.final


def test_history_says_who_was_lost_and_why():
    record = simulate(BUSY)
    told = {why.split(" after ")[0] for line in record.history for why in line.lost.values()}
    assert told == {"crashed", "no answer within 5 s"}
    assert all(line.seconds <= later.seconds for line, later in zip(record.history, record.history[1:], strict=False))


@pytest.mark.parametrize(
    "plan",
    [
        BUSY,
        replace(BUSY, algorithm=FedAvg(), deadline=Deadline(3.0, grace=2), until=Until(12)),
        replace(BUSY, algorithm=Guided(), server_examples=50),
        replace(BUSY, attack=Together(Rescale(-2.0), Together(Replay(2), HoldBack(2))), byzantine=2),
    ],
    ids=["arrivals", "rounds", "reference", "attack"],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(plan, tmp_path):
    class StopRunError(Exception):
        pass

    def stop(progress):
        if progress.step == 7 and progress.updates is not None:
            raise StopRunError

    whole = simulate(plan)
    always = Checkpoint(every_seconds=0)
    with pytest.raises(StopRunError):
        simulate(plan, folder=tmp_path, checkpoint=always, observers=[stop])
    resumed = simulate(plan, folder=tmp_path, checkpoint=always)
    assert resumed.history == whole.history
    assert resumed.summary.status == whole.summary.status == "finished"


def test_a_trace_that_was_changed_is_noticed(tmp_path):
    rows = "".join(f"{client},{1 + client}\n" for client in range(6))
    (path := tmp_path / "times.csv").write_text(f"client,seconds\n{rows}")
    plan = replace(SMALL, latency=LatencyTrace(str(path)))
    before = Federation(plan).fingerprint
    assert before.keys() == {"train", "test", "latency"}
    path.write_text(f"client,seconds\n{rows.replace('0,1', '0,9')}")
    assert Federation(plan).fingerprint != before
    with pytest.raises(ValueError, match="has no times for 6 of clients 0 to 6"):
        Federation(replace(plan, clients=7))


def test_a_flood_takes_an_undefended_model_over():
    attack = {"attack": Together(Rescale(-1.0), Flood(0.05)), "byzantine": 1, "until": Until(seconds=4.5)}
    fast = simulate(replace(SMALL, evaluation=Evaluation(1000), **attack)).summary.final.accuracy
    alone = replace(SMALL, evaluation=Evaluation(1000), **attack | {"attack": Rescale(-1.0)})
    slow = simulate(alone).summary.final.accuracy
    assert slow > fast + 0.2
