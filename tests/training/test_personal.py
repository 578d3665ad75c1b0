"""Personal layers and personal models, against the papers' formulas in plain torch over several rounds."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import phalanx
from phalanx import Run, Until, simulate
from phalanx.aggregators import Krum, Median
from phalanx.algorithms import SCAFFOLD, ClusteredFL, FedAvg, FLTrust, Permuted, QFedAvg
from phalanx.attacks import ConstrainAndScale, Rescale
from phalanx.core import InfeasibleError
from phalanx.data import Dataset, Dirichlet
from phalanx.engine import LoopSettings
from phalanx.engine.participation import Participation
from phalanx.models import MLP
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.federation import Federation
from phalanx.simulation import Simulation
from phalanx.simulation.parallel import ProcessExecutors
from phalanx.training import Classification, Ditto, Evaluation, FedPer, FlatModule, LocalOptimizer, LocalSGD
from phalanx.training.evaluation import evaluate
from phalanx.training.local import LocalTask
from phalanx.weighting import Ignore

SIZES, LR, K, IN, MID, OUT = (3, 9, 5, 7), 0.3, 3, 4, 5, 3
PLAIN = LocalSGD(steps=K, batch_size=100, lr=LR)


def client_data():
    rng = torch.Generator().manual_seed(1)
    return {
        i: Dataset(torch.randn(n, IN, generator=rng) + i, torch.randint(0, OUT, (n,), generator=rng), OUT)
        for i, n in enumerate(SIZES)
    }


def network():
    """A network whose middle layer is the shared one, so that its entries are not the first."""
    module = nn.Sequential(nn.Linear(IN, MID), nn.Tanh(), nn.Linear(MID, MID), nn.Tanh(), nn.Linear(MID, OUT))
    for k, p in enumerate(module.parameters()):
        p.data = torch.linspace(-1, 1, p.numel()).sin().view(p.shape) / (1 + k)
    return module


def carried(training, rounds, share, algorithm=None):
    """The models after each round in the engine, who took part in it, and the simulation."""
    model = FlatModule(network(), personal=training.personal)
    trainer = training.trainer(model, Classification(), 0)
    simulation, seen = Simulation(algorithm or FedAvg(preprocess=Ignore()), trainer, client_data()), []
    phalanx.run(
        simulation.algorithm,
        simulation,
        model.read(),
        LoopSettings(until=Until(rounds)),
        sample=Participation(share, 5),
        observers=[seen.append],
    )
    return [(p.state.model, p.updates.clients) for p in seen if p.updates is not None], simulation


def stepped(module, data, extra=lambda: 0.0):
    """K steps of gradient descent on all data; `extra` is added to the loss."""
    for _ in range(K):
        module.zero_grad()
        (F.cross_entropy(module(data.x), data.y) + extra()).backward()
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(LR * p.grad)


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def near(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_fedper_is_its_papers_algorithm(share):
    """Each client has a module of its own, into which the server's middle layer is written."""
    rounds, simulation = carried(FedPer(("2.*",), PLAIN), 5, share)
    data, own, shared = client_data(), {i: network() for i in range(4)}, network()[2].state_dict()
    for model, clients in rounds:
        assert len(clients) == 4 * share
        for i in clients:
            own[i][2].load_state_dict(shared)
            stepped(own[i], data[i])
        shared = {name: sum(own[i][2].state_dict()[name] for i in clients) / len(clients) for name in shared}
        near(model, flat(shared.values()))
    for i, module in own.items():
        module[2].load_state_dict(shared)
        simulation.trainer.model.load(simulation.model_of(i, model))
        near(flat(simulation.trainer.model.module.parameters()), flat(module.parameters()))


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_ditto_is_algorithm_1_of_its_paper(share):
    strength = 0.7
    rounds, simulation = carried(Ditto(PLAIN, strength=strength), 5, share)
    plain, _ = carried(PLAIN, 5, share)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(rounds, plain, strict=True)), "the global model is as ever"
    data, own, w = client_data(), {}, flat(network().parameters())
    for model, clients in rounds:
        for i in clients:
            if i not in own:
                nn.utils.vector_to_parameters(w.clone(), (own.setdefault(i, network())).parameters())
            stepped(own[i], data[i], lambda v=own[i], w=w: strength / 2 * sum_squares(v, w))
        w = model
    for i, v in own.items():
        near(simulation.model_of(i, w), flat(v.parameters()))
    for i in data.keys() - own.keys():
        assert torch.equal(simulation.model_of(i, w), w), "who has not trained uses the global model"


def sum_squares(v, w):
    return ((nn.utils.parameters_to_vector(v.parameters()) - w) ** 2).sum()


def test_without_a_pull_clients_train_alone_and_a_strong_one_keeps_them_at_the_global_model():
    _, free = carried(Ditto(PLAIN, strength=0.0), 4, 1.0)
    (*_, (w, _)), held = carried(Ditto(PLAIN, LocalSGD(steps=200, batch_size=100, lr=0.01), strength=90.0), 4, 1.0)
    data = client_data()
    for i in data:
        module = network()
        for _ in range(4):
            stepped(module, data[i])
        near(free.model_of(i, w), flat(module.parameters()))
        assert (held.model_of(i, w) - w).norm() < 0.2 < (free.model_of(i, w) - w).norm()


def test_scaffold_corrects_the_global_model_of_ditto_only():
    corrected, simulation = carried(Ditto(PLAIN), 3, 1.0, SCAFFOLD(preprocess=Ignore()))
    plain, _ = carried(PLAIN, 3, 1.0, SCAFFOLD(preprocess=Ignore()))
    assert torch.equal(corrected[-1][0], plain[-1][0])
    assert not torch.equal(simulation.model_of(0, corrected[-1][0]), corrected[-1][0])


# --- runs

SMALL = Run(
    clients=5, partition=Dirichlet(0.2), model=MLP((16,)), training=FedPer(("1.*",), LocalSGD(lr=0.2)),
    until=Until(4), evaluation=Evaluation(every=2),
)  # fmt: skip
TRAININGS = {
    "FedPer": FedPer(("1.*",), LocalSGD(lr=0.2)),
    "FedPer, Adam remembered": FedPer(("1.*",), LocalOptimizer(lr=0.01, remember=True)),
    "Ditto": Ditto(LocalSGD(lr=0.2), strength=0.5),
}


@pytest.mark.parametrize("training", TRAININGS.values(), ids=[*TRAININGS])
def test_a_killed_run_goes_on_to_the_same_bits(training, tmp_path):
    plan = dataclasses.replace(SMALL, training=training)

    def kill(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    whole = simulate(plan)
    with pytest.raises(KeyboardInterrupt):
        simulate(plan, folder=tmp_path / "cut", observers=[kill], checkpoint=Checkpoint(0))
    found = simulate(plan, folder=tmp_path / "cut", checkpoint=Checkpoint(0))
    for client in (None, *range(5)):
        for a, b in zip(found.model(client).parameters(), whole.model(client).parameters(), strict=True):
            assert torch.equal(a, b)
    assert list(found.history) == list(whole.history)


def test_only_what_is_shared_is_sent_and_seen_by_a_rule():
    federation = Federation(dataclasses.replace(SMALL, training=TRAININGS["FedPer"]))
    assert len(federation.start) == 16 * 64 + 16
    assert torch.equal(federation.start, flat(federation.model.module[1].parameters()))
    record = simulate(dataclasses.replace(SMALL, training=TRAININGS["FedPer"]))
    heads = [record.model(client)[3].weight for client in range(5)]
    bases = [record.model(client)[1].weight for client in range(5)]
    assert all(torch.equal(bases[0], base) for base in bases)
    assert len({float(head.detach().norm()) for head in heads}) == 5


@pytest.mark.parametrize("training", [TRAININGS["FedPer"], TRAININGS["Ditto"]], ids=["FedPer", "Ditto"])
@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(aggregate=Median()), ClusteredFL(), Permuted(FedAvg(aggregate=Krum(f=1)))],
    ids=lambda a: a.title,
)
def test_goes_with_rules_clusters_and_hidden_models(training, algorithm):
    """A replaced shared model ruins no personal one where the rule is robust."""
    plan = dataclasses.replace(SMALL, training=training, algorithm=algorithm, attack=Rescale(-20.0), byzantine=1)
    record = simulate(plan)
    assert record.summary.status == "finished"
    models = [flat(record.model(client).parameters()) for client in range(5)]
    assert len({float(model.norm()) for model in models}) == 5
    if algorithm.rule is not None and not isinstance(algorithm, ClusteredFL):
        assert record.summary.final.worst_client_accuracy > 0.15


def test_an_evaluation_is_of_the_personal_models():
    federation = Federation(plan := dataclasses.replace(SMALL, training=TRAININGS["Ditto"]))
    phalanx.run(
        plan.algorithm,
        federation.transport,
        federation.start,
        LoopSettings(until=Until(2)),
        observers=[keep(last := [])],
    )
    state = last[-1].state
    found = federation.evaluate(state, range(5)).received_accuracy
    personal = federation.transport.trainer.snapshot()
    for i in range(5):
        assert found[i] == evaluate(federation.model, personal[i], federation.test).accuracy
    assert len(set(found.values())) > 1
    assert not torch.equal(personal[0], state.model)


def keep(into):
    return into.append


def test_attackers_who_train_reach_ditto_through_the_global_model_only():
    attack = ConstrainAndScale(factor=-30.0)
    plan = dataclasses.replace(SMALL, attack=attack, byzantine=2)
    plain = simulate(dataclasses.replace(plan, training=LocalSGD(lr=0.2))).summary.final
    ditto = simulate(dataclasses.replace(plan, training=Ditto(LocalSGD(lr=0.2), strength=0.0))).summary.final
    assert plain.worst_client_accuracy < 0.3
    assert ditto.worst_client_accuracy > 0.7


def test_fine_tuning_before_an_evaluation_begins_with_the_personal_model():
    plan = dataclasses.replace(SMALL, training=TRAININGS["FedPer"], evaluation=Evaluation(every=4, local_epochs=1))
    federation = Federation(plan)
    trainer = plan.training.training.trainer(federation.model, plan.task, phalanx.rng.stream(0, "fine-tuning"))
    phalanx.run(
        plan.algorithm,
        federation.transport,
        federation.start,
        LoopSettings(until=Until(1)),
        observers=[keep(last := [])],
    )
    start = federation.transport.model_of(3, last[-1].state.model)
    change = torch.empty_like(start)
    trainer.train(LocalTask(3, 1, 1, start, change), federation.data[3])
    expected = evaluate(federation.model, start + change, federation.test).accuracy
    assert federation.evaluate(last[-1].state, range(5)).received_accuracy[3] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": FedPer(("*",))}, "so that every parameter is shared"),
        ({"training": FedPer(("head.*",))}, r"so that no parameter is shared.*1\.weight"),
        ({"training": FedPer(("1.*",)), "algorithm": QFedAvg()}, "compares losses of shared models"),
        ({"training": FedPer(("1.*",)), "algorithm": FLTrust(), "server_examples": 10}, "trains a model at the server"),
        ({"training": FedPer(("1.*",)), "algorithm": SCAFFOLD()}, "corrects the gradients"),
        ({"training": FedPer(("1.*",)), "attack": ConstrainAndScale(), "byzantine": 1}, "changes training by LocalSGD"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(change, message):
    with pytest.raises(ValueError, match=message):
        Federation(dataclasses.replace(SMALL, **change))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ditto(strength=-1.0), "strength must be at least 0"),
        (lambda: FedPer(("1.*",), Ditto()), "without personal models"),
    ],
)
def test_settings_that_exclude_each_other(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_clients_elsewhere_cannot_keep_models():
    with pytest.raises(InfeasibleError, match="remembers something of each client"):
        Federation(dataclasses.replace(SMALL, training=TRAININGS["Ditto"]), executors=ProcessExecutors(2))
