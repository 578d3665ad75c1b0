"""Clients that keep some examples from training, and choose by them among the models that they are offered."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from phalanx.algorithms import ClusteredFL, FedAvg, Permuted
from phalanx.core import Algorithm, Until
from phalanx.data import Digits, PermutedLabels
from phalanx.engine import LoopSettings
from phalanx.engine.loop import run
from phalanx.models import MLP
from phalanx.runs.federation import Federation, withheld
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate
from phalanx.training.evaluation import Evaluation, evaluate

SPLIT = ClusteredFL(split_rounds=(1, 2), min_gap=0.0)
RUN = Run(algorithm=SPLIT, clients=6, model=MLP((8,)), groups=PermutedLabels(2), validation=0.25, until=Until(steps=3))


@dataclass(frozen=True)
class Offering(Algorithm[Any]):
    """Federated averaging that offers a model of zeros besides its own."""

    def init(self, model, sizes):
        return FedAvg().init(model, sizes)

    def step(self, state, updates):
        return FedAvg().step(state, updates)

    def candidate_models(self, state, client):
        return {10: torch.zeros_like(state.model), 11: state.model}


def test_each_client_keeps_its_share_and_trains_on_the_rest():
    federation = Federation(RUN)
    for i, part in enumerate(federation.parts):
        own, kept = federation.data[i], federation.kept[i]
        assert (len(own), len(kept)) == (len(part) - round(0.25 * len(part)), round(0.25 * len(part)))
        both = torch.cat([own.x, kept.x]).flatten(1)
        whole = federation.seen(federation.group[i], federation.train.of(part)).x.flatten(1)
        assert torch.equal(both.sum(0), whole.sum(0))
        assert len(torch.unique(both, dim=0)) == len(torch.unique(whole, dim=0))
        assert federation.transport.reported[i] == len(own)
        assert int(federation.holdings[i].sum()) == len(part)


@pytest.mark.parametrize(
    ("size", "share", "kept"), [(10, 0.0, 0), (10, 0.25, 2), (2, 0.1, 1), (1, 0.5, 0), (3, 0.9, 2)]
)
def test_nobody_keeps_everything_and_everybody_something_if_possible(size, share, kept):
    data, _ = Digits().load()
    own, apart = withheld(replace(RUN, validation=share), 0, data.of(torch.arange(size)))
    assert (len(own), len(apart)) == (size - kept, kept)


def test_the_examples_kept_are_drawn_by_client_and_seed():
    data = Digits().load()[0].of(torch.arange(40))
    first = [withheld(plan, i, data)[1].fingerprint() for plan in (RUN, replace(RUN, seed=1)) for i in (0, 1)]
    assert len(set(first)) == 4
    assert withheld(RUN, 0, data)[1].fingerprint() == first[0]


@pytest.mark.parametrize("algorithm", [SPLIT, Permuted(SPLIT, seed=3)], ids=["plain", "permuted"])
def test_each_client_is_served_the_best_model_on_its_path_for_what_it_keeps(algorithm):
    federation = Federation(replace(RUN, algorithm=algorithm))
    states = []
    run(
        algorithm,
        federation.transport,
        federation.start,
        LoopSettings(until=Until(3)),
        observers=[lambda p: states.append(p.state)],
    )
    state = states[-1]
    chosen = federation.chosen(state, range(6))
    served = federation.served(state, range(6), chosen)
    assert chosen.keys() == set(range(6))
    for i in range(6):
        models = {k: federation.transport.model_of(i, m) for k, m in algorithm.candidate_models(state, i).items()}
        assert len(models) > 1
        losses = {k: evaluate(federation.model, m, federation.kept[i]).loss for k, m in models.items()}
        assert losses[chosen[i]] == min(losses.values())
        assert losses[chosen[i]] <= losses[0], "never worse than the model of the root, on these examples"
        assert torch.equal(served[i], models[chosen[i]])


def test_history_says_who_chose_what_and_what_groups_get():
    history = simulate(RUN).history
    assert history[0].metrics.chosen == {}, "there is one model only"
    last = history[-1]
    assert last.metrics.chosen.keys() == set(range(6))
    paths = {i: v for v, clients in last.state["clusters"].items() for i in clients}
    parents = last.state["parents"]
    for client, node in last.metrics.chosen.items():
        path, at = [], paths[client]
        while at is not None:
            path, at = [*path, at], parents[at]
        assert node in path
    received = last.metrics.received_accuracy
    for group, accuracy in last.metrics.group_accuracy.items():
        members = [received[i] for i in range(6) if i // 3 == group]
        assert accuracy == pytest.approx(sum(members) / 3)
    assert last.metrics.group_loss.keys() == {0, 1}


def test_without_examples_to_choose_by_clients_get_the_model_of_their_cluster():
    last = simulate(replace(RUN, validation=0.0)).history[-1]
    assert last.metrics.chosen == {}
    federation = Federation(replace(RUN, validation=0.0, algorithm=Offering()))
    state, _ = federation.plan.algorithm.init(federation.start, dict.fromkeys(range(6), 1))
    assert federation.chosen(state, range(6)) == {}
    assert all(torch.equal(m, state.model) for m in federation.served(state, range(6), {}).values())


def test_of_equal_models_the_most_specific_one_is_chosen_and_none_that_is_no_number():
    federation = Federation(replace(RUN, algorithm=Offering()))
    state, _ = federation.plan.algorithm.init(torch.zeros_like(federation.start), dict.fromkeys(range(6), 1))
    assert set(federation.chosen(state, range(6)).values()) == {11}
    broken = state._replace(model=torch.full_like(state.model, torch.nan))
    assert set(federation.chosen(broken, range(6)).values()) == {10}


def test_a_choice_changes_nothing_about_what_is_trained():
    """The same run, evaluated more often, so that clients choose more often: the same clusters and norms."""
    once, often = (simulate(replace(RUN, evaluation=Evaluation(every=k))).history for k in (3, 1))
    assert [line.state for line in once] == [line.state for line in often]


def test_an_algorithm_with_one_model_trains_on_what_is_left():
    plan = replace(RUN, algorithm=FedAvg())
    assert simulate(plan).history[-1].metrics.chosen == {}
    assert Federation(plan).transport.reported[0] == len(Federation(plan).parts[0]) - len(Federation(plan).kept[0])


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_validation_is_a_share(share):
    with pytest.raises(ValueError, match=r"validation must lie in \[0, 1\)"):
        Run(validation=share)
