"""Algorithms that change local training, against the papers' formulas in plain torch over several rounds."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import phalanx
from phalanx import Run, simulate
from phalanx.aggregators import Krum, Mean, Median
from phalanx.algorithms import SCAFFOLD, FedAvg, FedDyn, FedNova, Permuted, Private, Quorum, Rewarded, WorkerMomentum
from phalanx.attacks import Rescale
from phalanx.core import Correction, InfeasibleError, Until
from phalanx.data import Dataset
from phalanx.engine import LoopSettings
from phalanx.engine.participation import Participation
from phalanx.simulation import Simulation
from phalanx.training import Classification, Ditto, Evaluation, FedPer, LocalOptimizer
from phalanx.training.local import LocalTask
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule
from phalanx.weighting import Ignore
from toys import close, updates

SIZES = (3, 9, 5, 7)
LR, K = 0.3, 3
TRAINING = LocalSGD(steps=K, batch_size=100, lr=LR)
IN, OUT = 4, 3


def client_data():
    rng = torch.Generator().manual_seed(1)
    return {
        i: Dataset(torch.randn(n, IN, generator=rng) + i, torch.randint(0, OUT, (n,), generator=rng), OUT)
        for i, n in enumerate(SIZES)
    }


def gradient(data, w):
    """The gradient of the mean loss of a linear model without bias, at its flat parameters."""
    w = w.detach().requires_grad_()
    loss = F.cross_entropy(data.x @ w.view(OUT, IN).T, data.y)
    return torch.autograd.grad(loss, w)[0]


def carried(algorithm, rounds, training=TRAINING, share=1.0):
    """The models after each round in the engine, and who took part in it."""
    module = torch.nn.Linear(IN, OUT, bias=False)
    torch.nn.init.zeros_(module.weight)
    simulation = Simulation(algorithm, Trainer(FlatModule(module), training, 0), client_data())
    seen = []
    phalanx.run(
        algorithm,
        simulation,
        torch.zeros(IN * OUT),
        LoopSettings(until=Until(rounds)),
        sample=Participation(share, 5),
        observers=[seen.append],
    )
    return [(p.state.model, p.updates.clients) for p in seen if p.updates is not None]


def agrees(found, model):
    assert close(found, model.tolist(), 1e-5)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_scaffold_is_algorithm_1_of_its_paper(share):
    """With variates c and c_i as in the paper, at the clients."""
    data, x, c = client_data(), torch.zeros(IN * OUT), torch.zeros(IN * OUT)
    own = dict.fromkeys(data, c)
    for found, clients in carried(SCAFFOLD(preprocess=Ignore(), server_lr=0.8), 5, share=share):
        assert len(clients) == 4 * share
        deltas, moved = [], []
        for i in clients:
            y = x.clone()
            for _ in range(K):
                y = y - LR * (gradient(data[i], y) + c - own[i])
            new = own[i] - c + (x - y) / (K * LR)
            deltas.append(y - x)
            moved.append(new - own[i])
            own[i] = new
        x, c = x + 0.8 * torch.stack(deltas).mean(0), c + torch.stack(moved).sum(0) / len(data)
        agrees(found, x)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_feddyn_is_algorithm_1_of_its_paper(share):
    alpha, data, x, h = 0.2, client_data(), torch.zeros(IN * OUT), torch.zeros(IN * OUT)
    own = dict.fromkeys(data, h)
    for found, clients in carried(FedDyn(alpha=alpha, preprocess=Ignore()), 5, share=share):
        models = []
        for i in clients:
            w = x.clone()
            for _ in range(K):
                w = w - LR * (gradient(data[i], w) - own[i] + alpha * (w - x))
            own[i] = own[i] - alpha * (w - x)
            models.append(w)
        h = h - alpha / len(data) * torch.stack([w - x for w in models]).sum(0)
        x = torch.stack(models).mean(0) - h / alpha
        agrees(found, x)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_is_equation_7_of_its_paper(momentum):
    """Two epochs of minibatches of 1: tau is twice the size; |a| sums up what momentum makes of each step."""
    training = LocalSGD(epochs=2, batch_size=1, lr=0.05, momentum=momentum)
    deltas = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
    algorithm = FedNova(training)
    state, _ = algorithm.init(torch.zeros(6), dict(enumerate(SIZES)))
    state, _ = algorithm.step(state, updates(deltas.tolist()))
    p = torch.tensor(SIZES) / sum(SIZES)
    a = torch.tensor([sum(sum(momentum**j for j in range(k)) for k in range(1, 2 * n + 1)) for n in SIZES])
    agrees(state.model, (p * a).sum() * ((p / a)[:, None] * deltas).sum(0))
    assert [algorithm.length(n) for n in SIZES] == pytest.approx(a.tolist())


def test_fednova_is_fedavg_where_all_take_the_same_number_of_steps():
    for (found, _), (plain, _) in zip(carried(FedNova(TRAINING), 3), carried(FedAvg(), 3), strict=True):
        agrees(found, plain)


def test_a_false_size_changes_the_length_of_the_step_no_more_than_the_rule_lets_it():
    def moved(aggregate, lie):
        algorithm = FedNova(LocalSGD(batch_size=1), aggregate, Ignore())
        state, _ = algorithm.init(torch.zeros(2), {0: 10, 1: 10, 2: 10, 3: 10, 4: lie})
        return algorithm.step(state, updates([[1.0, 1.0]] * 5))[0].model

    assert close(moved(Median(), 10), [1.0, 1.0])
    assert close(moved(Median(), 10**6), [1.0, 1.0])
    assert float(moved(FedNova().aggregate, 10**6)[0]) > 1000


@pytest.mark.parametrize(
    ("counted", "trained_by", "fine"),
    [
        (LocalSGD(epochs=2, lr=0.1), LocalSGD(epochs=2, lr=0.5, weight_decay=0.1), True),
        (LocalSGD(epochs=2), FedPer(("1.*",), LocalSGD(epochs=2)), True),
        (LocalSGD(), LocalSGD(epochs=2), False),
        (LocalSGD(batch_size=4), LocalSGD(batch_size=8), False),
        (LocalSGD(), LocalSGD(momentum=0.9), False),
        (LocalSGD(), Ditto(LocalSGD(steps=3)), False),
        (LocalSGD(), LocalOptimizer("SGD"), False),
    ],
)
def test_fednova_is_refused_where_clients_take_other_steps_than_it_counts(counted, trained_by, fine):
    for algorithm in (FedNova(counted), Quorum(FedNova(counted), 3)):
        if fine:
            Run(algorithm=algorithm, training=trained_by)
        else:
            with pytest.raises(InfeasibleError, match=r"FedNova.* divides updates by the steps of"):
                Run(algorithm=algorithm, training=trained_by)


def test_worker_momentum_by_hand_and_as_the_algorithm_within_sends_it():
    clips = WorkerMomentum(Private(FedAvg(), clip=1.0, noise_multiplier=0.0), momentum=0.75)
    sent, m = clips.upload(torch.tensor([3.0, 4.0]), None)
    assert close(sent, [0.6, 0.8])
    assert close(m, [3.0, 4.0])
    sent, m = clips.upload(torch.tensor([-8.0, -12.0]), m)
    assert close(m, [0.25, 0.0])
    assert close(sent, [0.25, 0.0])
    assert clips.traits.remembers


def test_worker_momentum_lowers_what_a_robust_rule_leaves_an_attacker():
    """Honest deltas 1 plus noise of deviation 1: after many rounds a coordinate of Krum's choice is near 1."""
    algorithm, rng = WorkerMomentum(FedAvg(aggregate=Krum(f=1)), momentum=0.95), torch.Generator().manual_seed(0)
    memory, errors = dict.fromkeys(range(5)), []
    for _ in range(100):
        rows = []
        for i in range(5):
            sent, memory[i] = algorithm.upload(1 + torch.randn(1000, generator=rng), memory[i])
            rows.append(sent.tolist())
        rows.append([0.0] * 1000)
        state, _ = algorithm.init(torch.zeros(1000), dict.fromkeys(range(6), 1))
        errors.append(float((algorithm.step(state, updates(rows))[0].model - 1).square().mean()))
    assert errors[0] == pytest.approx(1.0, abs=0.15)
    assert errors[-1] == pytest.approx(0.05 / 1.95, rel=0.3), "(1 - beta) / (1 + beta)"


# Robust rules


def test_scaffolds_variate_forgets_an_attacker_that_has_stopped():
    """One of five sends 1e6 for a round: with a mean D is lost; with a median it stays among the honest."""

    def variate(aggregate, rounds):
        algorithm = SCAFFOLD(aggregate=aggregate, preprocess=Ignore())
        state, _ = algorithm.init(torch.zeros(2), dict.fromkeys(range(5), 1))
        for t in range(rounds):
            sent = [algorithm.download(state, i) for i in range(5)]
            rows = [(torch.ones(2) + base[2:]).tolist() for base in sent]
            if t == 0:
                rows[0] = [1e6, 1e6]
            state, _ = algorithm.step(state, dataclasses.replace(updates(rows), bases=tuple(sent)))
        return state.variate

    assert close(variate(Median(), 1), [1.0, 1.0])
    assert float(variate(SCAFFOLD().aggregate, 1)[0]) > 1e5
    assert close(variate(SCAFFOLD().aggregate, 2), [1.0, 1.0], 0.1), "it is not added to"


def test_a_client_whose_update_was_lost_keeps_its_variate():
    algorithm = SCAFFOLD(preprocess=Ignore())
    state, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 1})
    base = torch.zeros(2)
    state, _ = algorithm.step(state, updates([[4.0], [2.0]], bases=(base, base)))
    assert close(algorithm.download(state, 0), [3.0, -1.0])
    assert close(algorithm.download(state, 1), [3.0, 1.0])
    state, _ = algorithm.step(state, updates([[7.0]], bases=(algorithm.download(state, 0),), clients=[0]))
    assert close(state.variate, [5.0]), "D_0 = 7 + 1, and D_1 = 2 as before"
    part, _ = algorithm.part(state, {1: 1})
    assert close(algorithm.download(part, 1), [10.0, 3.0])


@pytest.mark.parametrize("kind", [SCAFFOLD, FedDyn, FedNova])
def test_runs_with_attackers_learn_where_the_rule_is_robust(kind):
    plan = Run(clients=10, byzantine=2, attack=Rescale(), until=Until(10), evaluation=Evaluation(every=10))
    robust, plain = (simulate(dataclasses.replace(plan, algorithm=kind(aggregate=a))) for a in (Median(), Mean()))
    assert robust.history[-1].metrics.accuracy > 0.7
    assert plain.history[-1].metrics.accuracy < 0.3


# The hook


def trained(recipe, correction):
    module = torch.nn.Linear(IN, OUT, bias=False)
    trainer, out = Trainer(FlatModule(module), recipe, 0), torch.empty(IN * OUT)
    start = torch.linspace(-1, 1, IN * OUT)
    trainer.train(LocalTask(1, 0, 0, start, out, correction), client_data()[1])
    return out


@pytest.mark.parametrize("recipe", [TRAINING, LocalSGD(momentum=0.9, weight_decay=0.1, clip_norm=0.5, batch_size=2)])
def test_a_correction_of_zero_and_none_give_the_same_bits(recipe):
    assert torch.equal(trained(recipe, None), trained(recipe, Correction(torch.zeros(IN * OUT))))


def test_the_pull_of_a_correction_is_that_of_fedprox():
    pulled = trained(TRAINING, Correction(torch.zeros(IN * OUT), 0.7))
    assert torch.allclose(pulled, trained(dataclasses.replace(TRAINING, proximal=0.7), None), atol=1e-6)
    assert not torch.allclose(pulled, trained(TRAINING, None), atol=1e-3)


def test_a_correction_is_not_clipped():
    """With gradients clipped to nearly nothing the model moves by the correction alone."""
    out = trained(dataclasses.replace(TRAINING, clip_norm=1e-9), Correction(torch.full((IN * OUT,), -2.0)))
    assert close(out, [2.0 * K * LR] * (IN * OUT), 1e-5)


@pytest.mark.parametrize("pull", [0.0, 0.5])
def test_a_correction_of_a_convolution_is_in_the_order_of_sent_vectors(pull):
    """Convolutions lie in another order in the memory of a module; one step is the gradient's plus the correction's."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.Flatten(), torch.nn.Linear(16, OUT)).double()
    model, rng = FlatModule(module), torch.Generator().manual_seed(0)
    data = Dataset(torch.randn(5, 3, 3, 3, generator=rng).double(), torch.zeros(5, dtype=torch.int64), OUT)
    start, added = (torch.randn(model.size, generator=rng).double() for _ in range(2))
    alone, corrected = (torch.empty(model.size).double() for _ in range(2))
    trainer = Trainer(model, LocalSGD(batch_size=5, lr=0.1), 0)
    trainer.train(LocalTask(1, 0, 0, start, alone), data)
    trainer.train(LocalTask(1, 0, 0, start, corrected, Correction(added, pull)), data)
    assert torch.allclose(corrected - alone, -0.1 * added, atol=1e-12), "the pull is 0 at the start"


@pytest.mark.parametrize(
    "recipe",
    [LocalSGD(), LocalSGD(epochs=3, batch_size=4), LocalSGD(steps=5, batch_size=4), LocalSGD(epochs=2, batch_size=0.3)],
)
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("held", [0, 1, 4, 5, 9])
def test_the_number_of_steps_is_known_before(recipe, alone, held):
    data = Dataset(torch.zeros(held, 2), torch.zeros(held, dtype=torch.int64), 2)
    assert recipe.count(held, alone=alone) == len(list(recipe.minibatches(data, torch.Generator(), alone=alone)))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="SCAFFOLD sends more than a model: use it alone"):
        Permuted(SCAFFOLD())
    with pytest.raises(ValueError, match=r"SCAFFOLD\) sends more than a model"):
        Rewarded(Quorum(SCAFFOLD(), k=2))
    with pytest.raises(InfeasibleError, match="FedDyn is another"):
        WorkerMomentum(FedDyn())
    plain = Trainer(FlatModule(torch.nn.Linear(IN, OUT)), TRAINING, 0)
    module = FlatModule(torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.BatchNorm1d(OUT)), "average")
    with pytest.raises(InfeasibleError, match="averaged buffers have none"):
        Simulation(Quorum(FedDyn(), k=2), Trainer(module, TRAINING, 0), client_data())
    with pytest.raises(InfeasibleError, match="only this process does"):
        Simulation(SCAFFOLD(), plain, client_data(), elsewhere=lambda data: None)
    adam = LocalOptimizer().trainer(FlatModule(torch.nn.Linear(IN, OUT)), Classification(), 0)
    with pytest.raises(InfeasibleError, match="which OptimizerTrainer does not support"):
        Simulation(SCAFFOLD(), adam, client_data())
    for wrong in (lambda: FedDyn(alpha=0.0), lambda: SCAFFOLD(server_lr=0.0), lambda: WorkerMomentum(FedAvg(), 1.0)):
        with pytest.raises(ValueError, match=r"alpha|server_lr|momentum"):
            wrong()


@pytest.mark.parametrize("algorithm", [SCAFFOLD(), FedDyn(), FedNova(), WorkerMomentum(FedAvg())], ids=str)
def test_a_download_has_the_size_that_is_announced(algorithm):
    state, _ = algorithm.init(torch.zeros(6), dict(enumerate(SIZES)))
    assert len(algorithm.download(state, 0)) == algorithm.traits.vectors * 6


@pytest.mark.parametrize("algorithm", [FedDyn(0.1, preprocess=Ignore()), FedDyn(0.1, Median())], ids=str)
def test_a_permutation_changes_nothing(algorithm):
    plan = Run(algorithm=algorithm, clients=5, until=Until(3))
    hidden = dataclasses.replace(plan, algorithm=Permuted(algorithm, seed=2))
    assert [line.metrics for line in simulate(plan).history] == [line.metrics for line in simulate(hidden).history]
