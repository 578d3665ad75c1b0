"""The check before the first step: each kind with runs that have it, and runs that do not."""

import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import ClusteredFL, FedAvg, PerCluster, Quorum, Standalone
from phalanx.attacks import SignFlip
from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.data import CSV, Dataset, Digits, InMemory, Natural, PermutedLabels, Uniform
from phalanx.fairness import received_accuracy
from phalanx.models import MLP, GivenModule, LoRA
from phalanx.observers import EarlyStopping
from phalanx.runs.federation import Federation
from phalanx.training import Classification, MultiLabel, Regression

G = torch.Generator().manual_seed(0)
X = torch.randn(120, 6, generator=G)
Y = (X @ torch.randn(6, 3, generator=G)).argmax(1)


def split(x=X, y=Y, classes=3, owners=None):
    data = Dataset(x, y, classes, owners)
    return InMemory(data.of(range(len(y) * 3 // 4)), data.of(range(len(y) * 3 // 4, len(y))))


def run(**parts):
    if isinstance(parts.get("model"), nn.Module):
        parts["model"] = GivenModule(parts["model"])
    return Run(**{"data": split(), "clients": 3, "until": Until(2), "model": MLP((8,)), **parts})


def remarks(**parts):
    return Federation(run(**parts)).remarks


# --- parameters without gradient


class Net(nn.Module):
    """Some layers, of which `kind` says what is wrong with one."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.used, self.odd = kind, nn.Linear(6, 3), nn.Linear(6, 3)
        if kind == "frozen":
            self.odd.requires_grad_(False)

    def forward(self, x):
        extra = self.odd(x)
        kinds = {"unused": 0, "frozen": 0, "detached": extra.detach(), "times zero": 0 * extra, "used": extra}
        return self.used(x) + kinds[self.kind]


@pytest.mark.parametrize("kind", ["unused", "detached"])
def test_parameters_without_gradient_are_named(kind):
    with pytest.raises(InfeasibleError) as error:
        remarks(model=Net(kind))
    assert "Parameter 'odd.weight' gets no gradient, so it is not trained." in str(error.value)
    assert """--accept '["gradient:odd.weight", "gradient:odd.bias"]'""" in str(error.value)
    accepted = ("gradient:odd.weight", "gradient:odd.bias")
    assert [said.endswith("(accepted)") for said in remarks(model=Net(kind), accept=accepted)] == [True, True]
    with pytest.raises(InfeasibleError, match=r"odd\.bias"):
        remarks(model=Net(kind), accept=accepted[:1])


def test_a_gradient_of_zeros_is_a_remark():
    assert len(remarks(model=Net("times zero"))) == 2
    assert not remarks(model=Net("times zero"), accept=("gradient:odd.weight", "gradient:odd.bias"))


@pytest.mark.parametrize("kind", ["used", "frozen"])
def test_parameters_that_are_trained_or_frozen_are_not_named(kind):
    assert not remarks(model=Net(kind))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda net: torch.jit.trace(net, X[:2])])
def test_compiled_modules_are_refused(compiled):
    with pytest.raises(InfeasibleError, match=r"No parameter of \w+ gets a gradient, so nothing would be trained"):
        remarks(model=compiled(nn.Sequential(nn.Linear(6, 3))))


def zeros(layer):
    nn.init.zeros_(layer.weight)
    return layer


@pytest.mark.parametrize(
    "model",
    [
        LoRA(GivenModule(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))), ("0",), rank=2),
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), zeros(nn.Linear(8, 3))),
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 3)),
    ],
)
def test_gradients_that_are_zero_at_first_only(model):
    assert not remarks(model=model)


def test_the_check_leaves_model_and_random_numbers_as_they_were():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    federation = Federation(run(model=net, buffers="average"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(federation.model.read(), federation.start)
    assert all(
        torch.equal(a, b)
        for a, b in zip(federation.model.module.state_dict().values(), net.state_dict().values(), strict=True)
    )


def test_it_takes_less_than_a_second():
    federation = Federation(Run(data=Digits()))
    begun = time.perf_counter()
    from phalanx.runs.preflight import preflight

    f = federation
    preflight(f.plan, f.train, f.test, f.task, f.model, sitting_out=f.sitting_out)
    assert time.perf_counter() - begun < 1


# --- labels


@pytest.mark.parametrize("missing", [[0], [1, 2]])
def test_test_labels_that_are_not_trained_on(missing):
    kept = ~torch.isin(Y, torch.tensor(missing))
    data = Dataset(X, Y, 3)
    with pytest.raises(InfeasibleError, match=rf"Test label {missing[0]} never occurs in training"):
        remarks(data=InMemory(data.of(kept), data))
    keys = tuple(f"labels:{c}" for c in missing)
    assert len(remarks(data=InMemory(data.of(kept), data), accept=keys)) == len(missing)
    assert not remarks(data=InMemory(data, data.of(kept)))


# --- clients that cannot train

OWNERS = torch.tensor([0] * 50 + [1] * 39 + [2])


def batched(**more):
    owners = torch.cat((OWNERS, torch.tensor([0] * 15 + [1] * 15)))
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return run(data=split(owners=owners), partition=Natural(), model=net, buffers="average", **more)


@pytest.mark.parametrize("training", [LocalSGD(), LocalSGD(batch_size=2), LocalSGD(epochs=3)])
def test_a_client_of_one_example_sits_out(training):
    with pytest.warns(UserWarning, match="Client 2 sits out: it holds one example"):
        record = simulate(batched(training=training))
    assert (record.summary.status, record.summary.final.accuracy is None) == ("finished", False)
    assert record.summary.clients[2].not_enrolled.startswith("it holds one example")
    assert record.summary.findings[0].startswith("Client 2 sits out")


def test_clients_of_one_example_train_models_without_statistics_of_batches():
    owners = torch.cat((OWNERS, torch.tensor([0] * 15 + [1] * 15)))
    assert not remarks(data=split(owners=owners), partition=Natural())
    images = split(x=torch.randn(120, 1, 4, 4, generator=G), owners=owners)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    assert not remarks(data=images, partition=Natural(), model=net, buffers="average"), "each image has four values"


# --- failed runs


class Failing(Standalone):
    """Fails in its second step."""

    def step(self, state, updates):
        raise ValueError("no step")


def test_a_failed_run_has_no_final_figures():
    record = simulate(run(algorithm=Failing()))
    assert (record.summary.status, record.summary.error) == ("failed", "ValueError: no step")
    final = record.summary.final
    assert (final.accuracy, final.loss, final.worst_client_accuracy) == (None, None, None)


# --- metrics


@pytest.mark.parametrize("name", ["AUROC", "AveragePrecision", "Recall"])
def test_metrics_of_a_class_without_test_rows(name):
    """They are those over the classes that are there, where torchmetrics counts 0."""
    sklearn = pytest.importorskip("sklearn.metrics")
    data, kept = Dataset(X, Y, 3), Y != 2
    federation = Federation(run(data=InMemory(data, data.of(kept)), task=Classification(metrics=(name,))))
    assert federation.remarks[0].startswith(f"{name} is undefined for class 2")
    federation.model.module.eval()
    with torch.no_grad():
        scores = federation.model.outputs(federation.test.x).softmax(1)
    measured = federation._scores([federation.start], federation.test)[0].extra[name]
    truth = federation.test.y
    own = {
        "AUROC": lambda c: sklearn.roc_auc_score(truth == c, scores[:, c]),
        "AveragePrecision": lambda c: sklearn.average_precision_score(truth == c, scores[:, c]),
        "Recall": lambda c: sklearn.recall_score(truth == c, scores.argmax(1) == c),
    }[name]
    assert measured == pytest.approx(np.mean([own(0), own(1)]), abs=1e-5)


@pytest.mark.parametrize("column", [0.0, 1.0])
def test_metrics_of_several_labels_of_which_one_never_changes(column):
    y = (torch.rand(120, 3, generator=G) > 0.5).float()
    y[90:, 2] = column
    federation = Federation(run(data=split(y=y, classes=0), task=MultiLabel(metrics=("AUROC",))))
    assert federation.remarks[0].startswith("AUROC is undefined for class 2")
    assert 0.2 < federation._scores([federation.start], federation.test)[0].extra["AUROC"] < 0.8


@pytest.mark.parametrize(
    ("task", "y", "classes"),
    [
        (Classification(metrics=("torchmetrics.classification.BinaryF1Score",)), Y, 3),
        (Classification(metrics=("torchmetrics.classification.BinaryAUROC",)), Y, 3),
        (Classification(metrics=("ConfusionMatrix",)), Y, 3),
        (MultiLabel(metrics=("torchmetrics.classification.BinaryF1Score", "ROC")), (X[:, :3] > 0).float(), 0),
    ],
)
def test_metrics_that_do_not_fit_are_refused_before_training(task, y, classes):
    with pytest.raises(
        ValueError, match=r"The metric '.*' (does not fit outputs of shape|cannot be made for these data)"
    ):
        Federation(run(data=split(y=y, classes=classes), task=task))


def test_a_package_that_does_not_import(monkeypatch):
    def broken(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("phalanx.trust.import_module", broken)
    with pytest.raises(
        ValueError, match=r"'F1Score' needs torchmetrics, which is there and cannot be imported: Runtime"
    ):
        Federation(run(task=Classification(metrics=("F1Score",))))


# --- regression

SCALES = [(150.0, 40.0), (4300.0, 900.0), (300_000.0, 80_000.0), (0.002, 0.0004), (30.0, 17.0), (-12.0, 3.0)]


def regression(mean, deviation):
    signal = X @ torch.randn(6, generator=torch.Generator().manual_seed(1))
    return mean + deviation * (signal - signal.mean()) / signal.std()


@pytest.mark.parametrize(("mean", "deviation"), SCALES)
def test_targets_of_a_file_are_scaled_and_reported_in_their_unit(tmp_path, mean, deviation):
    import pandas as pd

    y = regression(mean, deviation)
    frame = pd.DataFrame(X.numpy(), columns=[f"x{j}" for j in range(6)]).assign(y=y.double().numpy())
    frame.to_csv(tmp_path / "t.csv", index=False)
    task = Regression(metrics=("MeanAbsoluteError", "R2Score"))
    plan = run(data=CSV(str(tmp_path / "t.csv"), "y"), task=task, until=Until(30), training=LocalSGD(lr=0.05))
    record = simulate(plan)
    measured = record.history[-1].metrics
    assert measured.extra["R2Score"] > 0.8
    assert 0 < measured.loss < 0.3 * deviation**2, "in the squared unit of the targets"
    assert 0 < measured.extra["MeanAbsoluteError"] < 0.5 * deviation
    test = plan.data.load()[1]
    assert float(test.y.mean()) == pytest.approx(mean, abs=deviation), "targets keep their unit"


@pytest.mark.parametrize(("mean", "deviation"), SCALES)
def test_targets_in_memory_far_from_unit_scale_are_a_remark(mean, deviation):
    data = split(y=regression(mean, deviation), classes=0)
    (said,) = remarks(data=data, task=Regression(), training=LocalSGD(lr=1e-12))
    assert "far from unit scale" in said
    assert not remarks(data=data, task=Regression(mean=mean, deviation=deviation), training=LocalSGD(lr=0.01))


@pytest.mark.parametrize("error", ["squared", "absolute", "huber"])
def test_scaled_targets_are_the_same_training_as_targets_scaled_by_hand(error):
    y = regression(150.0, 40.0)
    ours = simulate(
        run(data=split(y=y, classes=0), task=Regression(error, mean=150.0, deviation=40.0), training=LocalSGD(lr=0.02))
    )
    theirs = simulate(run(data=split(y=(y - 150) / 40, classes=0), task=Regression(error), training=LocalSGD(lr=0.02)))
    assert torch.allclose(ours.model()(X), theirs.model()(X), atol=1e-4)
    if error != "huber":
        assert ours.summary.final.loss == pytest.approx(
            theirs.summary.final.loss * (1600 if error == "squared" else 40), rel=1e-3
        )


@pytest.mark.parametrize("lr", [1.0, 30.0])
def test_a_learning_rate_that_raises_the_loss(lr):
    data = split(y=regression(0.0, 1.0), classes=0)
    with pytest.raises(
        InfeasibleError, match=r"learning rate of \d+ raises the loss from .* Set training\.lr to 0\.\d+"
    ):
        remarks(data=data, task=Regression(), training=LocalSGD(lr=lr), model=MLP((64,)))
    assert not remarks(data=data, task=Regression(), training=LocalSGD(lr=0.01), model=MLP((64,)))


# --- early stopping


@pytest.mark.parametrize(
    ("task", "y", "classes"), [(Regression(), X[:, 0].clone(), 0), (MultiLabel(), (X[:, :3] > 0).float(), 0)]
)
def test_early_stopping_watches_the_loss_of_a_task_without_accuracy(task, y, classes):
    plan = run(data=split(y=y, classes=classes), task=task, until=Until(12), training=LocalSGD(lr=0.02))
    record = simulate(plan, observers=[EarlyStopping(patience=3)])
    assert record.summary.steps == 12


@pytest.mark.parametrize("metric", ["AUROC", "acuracy", "attack_success"])
def test_early_stopping_by_a_metric_that_is_not_measured(metric):
    record = simulate(run(), observers=[EarlyStopping(2, metric)])
    assert record.summary.status == "failed"
    assert (
        f"Early stopping watches {metric!r}, which this run does not measure. It measures accuracy, loss"
        in record.summary.error
    )


def test_early_stopping_by_a_metric_of_the_task():
    plan = run(task=Classification(metrics=("F1Score",)), until=Until(9), training=LocalSGD(lr=1e-9))
    record = simulate(plan, observers=[EarlyStopping(2, "F1Score")])
    assert (record.summary.status, record.summary.steps) == ("stopped", 2)


# --- clients on their own rows


def hospitals(share, n=400):
    """Two owners whose marker means the opposite, the first with this share of the rows."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, n)
    owner = (np.arange(n) % 20 >= 20 * share).astype(int)
    x = np.stack([np.where(owner == 0, 1, -1) * (2 * y - 1) + rng.normal(0, 0.3, n), rng.normal(size=n)], 1)
    data = Dataset.from_numpy(x.astype(np.float32), y, owners=owner)
    return InMemory(data.of(range(0, n // 2)), data.of(range(n // 2, n)))


def own(record, source, client):
    """The accuracy of a client's model on the test rows of its owner, computed here."""
    test = source.test.of(source.test.owners == client)
    return float((record.model(client)(test.x).argmax(1) == test.y).float().mean())


@pytest.mark.parametrize("share", [0.9, 0.8, 0.2])
@pytest.mark.parametrize("algorithm", [None, Standalone()])
def test_clients_are_measured_on_their_own_rows(share, algorithm):
    source = hospitals(share)
    parts = {"algorithm": algorithm} if algorithm else {}
    record = simulate(
        run(data=source, partition=Natural(), clients=2, until=Until(8), training=LocalSGD(lr=0.1), **parts)
    )
    measured = record.history[-1].metrics
    assert record.summary.data.client_tests == "own"
    for client in (0, 1):
        assert measured.client_accuracy[client] == pytest.approx(own(record, source, client))
    assert measured.worst_client_accuracy == min(measured.client_accuracy.values())
    rows = source.test.owners.bincount().double()
    whole = sum(float(rows[i]) * measured.client_accuracy[i] for i in (0, 1)) / float(rows.sum())
    assert measured.accuracy == pytest.approx(whole), "of one model and of several the share of all rows"
    assert received_accuracy(record) == dict(measured.client_accuracy)
    if algorithm:
        assert measured.accuracy > 0.97


def test_a_perfect_clustering_is_perfect_for_each_client():
    source = hospitals(0.8)
    plan = run(
        data=source, partition=Natural(), clients=2, algorithm=ClusteredFL(), until=Until(40), training=LocalSGD(lr=0.1)
    )
    record = simulate(plan)
    measured = record.history[-1].metrics
    for client in (0, 1):
        assert measured.client_accuracy[client] == pytest.approx(own(record, source, client))


@pytest.mark.parametrize("source", [split(), hospitals(0.8)])
def test_clients_that_own_no_rows_are_label_reweighted(source):
    record = simulate(run(data=source, partition=Uniform(), clients=3))
    assert record.summary.data.client_tests == "label-reweighted"
    assert all(client.owner is None for client in record.summary.clients.values())


def test_the_names_of_owners_and_classes_are_kept(tmp_path):
    lines = [
        "a,b,y,site",
        *(f"{k % 7},{k % 5},{'ill' if k % 7 > 3 else 'well'},{'north' if k % 3 else 'south'}" for k in range(120)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    source = CSV(str(tmp_path / "t.csv"), "y", owner="site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = simulate(run(data=source, partition=Natural(), clients=2, accept=("leak:a",)))
    assert [client.name for client in record.summary.clients.values()] == ["north", "south"]
    assert record.summary.data.classes == ("ill", "well")


@pytest.mark.parametrize("given", [("siteD,siteB",), ("siteD", "siteB"), (" siteD, siteB ,",)])
def test_attackers_by_name_are_one_run(given):
    plan = run(attack=SignFlip(), clients=4, byzantine=given)
    assert plan.identity == run(attack=SignFlip(), clients=4, byzantine=("siteB", "siteD")).identity
    assert plan.byzantine == ("siteB", "siteD")
    assert (plan.attacking, plan.title) == (2, "FedAvg(Mean), SignFlip x 2")
    names = ["siteA", "siteB", "siteC", "siteD"]
    assert plan.attackers(names) == {1, 3}
    assert plan.attackers(names[::-1]) == {0, 2}
    assert len(plan.sampler(plan.attackers(names))(frozenset(range(4)), 0)) == 4
    with pytest.raises(InfeasibleError, match=r"byzantine names siteD, and there are siteA, siteB"):
        plan.attackers(names[:2])
    with pytest.raises(InfeasibleError, match=r"byzantine names siteB, siteD, and clients have no names here"):
        Federation(plan)


@pytest.mark.parametrize("given", [(0,), ("siteA", 1), [2], "siteA", (None,)])
def test_attackers_are_named_by_a_tuple_of_texts(given, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(InfeasibleError, match=r"a tuple of their names, such as \('Basel', 'Lyon'\), got "):
        run(attack=SignFlip(), clients=4, byzantine=given)


def test_one_of_the_named_must_be_honest():
    with pytest.raises(ValueError, match="byzantine names 3 clients, and one of the 3 must be honest"):
        run(attack=SignFlip(), byzantine=("a", "b", "c"))
    with pytest.raises(ValueError, match="attack is not set"):
        run(byzantine=("a",))


@pytest.mark.parametrize("accept", [("leak",), ("",), ("gradient.a",)])
def test_what_is_accepted_is_named_by_code_and_name(accept):
    with pytest.raises(ValueError, match=r"accept must hold findings as CODE:NAME, such as 'leak:age'"):
        run(accept=accept)


# --- models as they come


class Output(dict):
    """Outputs as those of `transformers`."""

    @property
    def logits(self):
        return self["logits"]


OUTPUTS = {
    "a field logits": lambda scores, x: Output(logits=scores),
    "a tuple that begins with them": lambda scores, x: (scores, x),
    "a list of one": lambda scores, x: [scores],
    "a dictionary with logits": lambda scores, x: {"loss": None, "logits": scores},
}


class SeveralOutputs(nn.Module):
    """Returns its scores in one of several forms."""

    def __init__(self, form):
        super().__init__()
        self.form, self.layer = form, nn.Linear(6, 3)
        nn.init.constant_(self.layer.weight, 0.1)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.form(self.layer(x), x)


@pytest.mark.parametrize("form", OUTPUTS.values(), ids=OUTPUTS)
def test_scores_are_found_in_several_outputs(form):
    several = simulate(run(model=SeveralOutputs(form)))
    alone = simulate(run(model=SeveralOutputs(lambda scores, x: scores)))
    assert several.summary.final.loss == alone.summary.final.loss


@pytest.mark.parametrize(
    ("form", "gave"),
    [
        (lambda scores, x: {"scores": scores}, r"a dict\. Wrap it in a module that returns the tensor"),
        (lambda scores, x: (x, scores), r"\(2, 6\)"),
        (lambda scores, x: (None, scores), r"a tuple\. Wrap it"),
        (lambda scores, x: (), r"a tuple\. Wrap it"),
    ],
)
def test_other_outputs_are_refused_with_the_remedy(form, gave):
    with pytest.raises(ValueError, match=f"gave {gave}"):
        Federation(run(model=SeveralOutputs(form)))


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_a_module_that_cannot_be_copied():
    layer = nn.utils.weight_norm(nn.Linear(6, 3))
    layer(X[:2])
    with pytest.raises(ValueError, match=r"(?s)Linear cannot be copied: RuntimeError: .*parametrizations\.weight_norm"):
        GivenModule(layer)
    assert not remarks(model=nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))


def trained_names(model):
    """The parameters that a client of a model trains."""
    return {name for name, p in model.build((6,), 3).named_parameters() if p.requires_grad}


def test_adapters_train_the_head_unless_it_is_left_out():
    net = nn.Sequential()
    net.add_module("body", nn.Linear(6, 8))
    net.add_module("lm_head", nn.Linear(8, 8))  # the output of a language model, which was trained with it
    net.add_module("classifier", nn.Linear(8, 3))
    head, adapters = (
        {"classifier.weight", "classifier.bias"},
        {"body.lora_A.default.weight", "body.lora_B.default.weight"},
    )
    model = LoRA(GivenModule(net), ("body",), rank=2)
    assert trained_names(model) == head | adapters
    assert not remarks(model=model)
    assert trained_names(replace(model, heads=False)) == adapters
    assert trained_names(replace(model, heads=False, train=("classifier.*",))) == head | adapters
    adapted = {f"classifier.lora_{factor}.default.weight" for factor in "AB"}
    assert trained_names(replace(model, layers=("body", "classifier"))) == adapters | adapted
    with pytest.raises(ValueError, match=r"No parameter has a name like nothing\.\*"):
        LoRA(GivenModule(net), ("body",), train=("nothing.*",)).build((6,), 3)


def test_a_head_is_trained_in_float32_on_a_base_of_half_the_memory():
    net = nn.Sequential()
    net.add_module("body", nn.Linear(6, 8))
    net.add_module("classifier", nn.Linear(8, 3))
    network = LoRA(GivenModule(net), ("body",), rank=2, base="bfloat16").build((6,), 3)
    assert network.classifier.weight.dtype == torch.float32
    assert network.body.base_layer.weight.dtype == torch.bfloat16
    scores = network(X[:4].bfloat16())
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, net(X[:4]), atol=0.05, rtol=0.05)


PER, FL = PerCluster(FedAvg(Median())), ClusteredFL()
PART = "Not all clients take part in a round, and PerCluster may not find their groups: with a fifth of 60 in each"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"algorithm": PER}, []),
        ({"algorithm": FL}, []),
        ({"algorithm": PER, "clients": 30}, ["Clients hold 48 examples on average, and PerCluster may not find their"]),
        ({"algorithm": FL, "clients": 30}, ["Clients hold 48 examples on average, and ClusteredFL may not find their"]),
        ({"algorithm": PER, "clients": 30, "groups": None}, []),
        ({"algorithm": PER, "clients": 6}, ["PerCluster finds no group of fewer than 3 clients, and there are groups"]),
        ({"algorithm": FL, "clients": 6}, []),
        (
            {"algorithm": PER, "participation": 0.2},
            [PART, "PerCluster divides no cluster before its clients"],
        ),
        ({"algorithm": PER, "participation": 0.25}, [PART]),
        ({"algorithm": FL, "participation": 0.25}, []),
        ({"algorithm": PerCluster(Quorum(FedAvg(Median()), 3))}, []),
        ({"algorithm": FedAvg(), "clients": 60}, []),
    ],
)
def test_what_keeps_groups_from_being_found_is_said_before_the_run(fields, said):
    """Three groups of four clients with 120 examples each, unless it says otherwise."""
    plan = replace(Run(clients=12, groups=PermutedLabels(3), model=MLP((8,)), until=Until(20)), **fields)
    found = Federation(plan).remarks
    assert len(found) == len(said)
    assert all(one.startswith(words) for one, words in zip(found, said, strict=True))
    assert (
        Federation(
            replace(plan, accept=("groups:examples", "groups:size", "groups:turns", "groups:participation"))
        ).remarks
        == ()
    )


def test_a_dry_run_says_it_too(capsys):
    command = ["run", "--algorithm", "ClusteredFL", "--clients", "30", "--groups", "PermutedLabels", "--dry_run"]
    assert main(command) == 0
    assert "Clients hold 48 examples on average, and ClusteredFL may not find their groups" in capsys.readouterr().out
