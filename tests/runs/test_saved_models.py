"""The models of a run: what is saved is what was served, whatever the network, the algorithm and the end of the run."""

import dataclasses
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import safetensors.torch
import torch

from phalanx import Record, Run, StopRunError, Until, simulate
from phalanx.algorithms import RFFL, ClusteredFL, FedAvg, Permuted, Standalone
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError
from phalanx.data import Dataset, InMemory, PermutedLabels
from phalanx.engine.observer import Progress
from phalanx.models import (
    MLP,
    CharLSTM,
    CoxCNN,
    KimCNN,
    LeNet,
    ResNet18,
    SattlerCifarCNN,
    SattlerCNN,
    SattlerVGG,
    TorchModule,
    WordLSTM,
    XuLyuCifarCNN,
    XuLyuMnistCNN,
)
from phalanx.runs.card import card
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.federation import Federation
from phalanx.runs.models import (
    BEST,
    CARD,
    INDEX,
    MODEL,
    ModelInputs,
    ModelKeeper,
    Models,
    SavedModels,
    Served,
    architecture_of,
    layout,
)
from phalanx.runs.scores import scores
from phalanx.runs.seal import SEAL
from phalanx.training.sgd import ExponentialLR, LocalSGD
from phalanx.training.vector import FlatModule


def images(n, shape, classes=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    return Dataset(torch.rand((n, *shape), generator=rng) + y.view(-1, *[1] * len(shape)) / classes, y, classes)


def texts(n, t, classes, labels):
    x = torch.arange(n * t).view(n, t) % 7
    return Dataset(x, x.remainder(classes) if labels else torch.arange(n) % classes, classes)


SMALL = Run(
    data=InMemory(images(80, (5,)), images(40, (5,), seed=1)),
    clients=4,
    model=MLP((6,)),
    training=LocalSGD(epochs=1, batch_size=5, lr=0.1),
    until=Until(3),
)
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
NETWORKS = {
    "MLP": (MLP((6,)), images(8, (5,))),
    "LeNet": (LeNet(), images(8, MNIST, 10)),
    "SattlerCNN": (SattlerCNN(), images(8, MNIST, 10)),
    "SattlerVGG": (SattlerVGG(), images(8, CIFAR, 10)),
    "SattlerCifarCNN": (SattlerCifarCNN(), images(8, CIFAR, 10)),
    "XuLyuMnistCNN": (XuLyuMnistCNN(), images(8, MNIST, 10)),
    "XuLyuCifarCNN": (XuLyuCifarCNN(), images(8, CIFAR, 10)),
    "CoxCNN": (CoxCNN(), images(8, MNIST, 10)),
    "ResNet18": (ResNet18(), images(8, CIFAR, 10)),
    "KimCNN": (KimCNN(vocabulary=10, embedding=4, filters=3), texts(8, 9, 2, labels=False)),
    "CharLSTM": (CharLSTM(hidden=8), texts(8, 6, 7, labels=True)),
    "WordLSTM": (WordLSTM(embedding=4, hidden=6), texts(8, 6, 7, labels=True)),
    "TorchModule": (TorchModule("torch.nn.Linear", {"in_features": 5, "out_features": 4}), images(8, (5,))),
}


def values(module):
    """The parameters of a module and its buffers, one after the other."""
    return torch.cat([tensor.flatten().double() for tensor in module.state_dict().values()])


def keeper(model, vector, folder):
    """A keeper of one model that all three clients are served."""
    served = Served(vector, [(i, {0: vector}) for i in range(3)])
    return ModelKeeper(model, lambda *_: served, folder, settings=SavedModels(), identity="x")


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_each_network_comes_back_with_the_same_values(name, tmp_path):
    """Also its buffers, which the vector holds (running averages) or does not (counts of batches)."""
    kind, data = NETWORKS[name]
    plan = dataclasses.replace(
        SMALL, data=InMemory(data, data), model=kind, buffers="average", clients=1, until=Until(1),
        training=LocalSGD(steps=1, batch_size=4, lr=0.01),
    )  # fmt: skip
    seen = []
    record = simulate(plan, folder=tmp_path, observers=[lambda progress: seen.append(progress.state.model.clone())])
    with pytest.warns(match=r"torch\.nn is imported") if name == "TorchModule" else nullcontext():
        model = Record.load(tmp_path, trust=name == "TorchModule").model()
    assert not torch.equal(seen[0], seen[1]), "it was trained"
    assert not model.training
    x = data.x[:3]
    assert torch.equal(model(x), record.model()(x))
    assert torch.equal(FlatModule(model, "average").read(), seen[1])
    assert architecture_of(record.config["model"]) == kind


@pytest.mark.slow
def test_frozen_buffers_are_those_of_the_beginning(tmp_path):
    kind, data = NETWORKS["ResNet18"]
    plan = dataclasses.replace(
        SMALL,
        data=InMemory(data, data),
        model=kind,
        buffers="freeze",
        clients=1,
        until=Until(1),
        training=LocalSGD(steps=1),
    )
    state = simulate(plan, folder=tmp_path).model().state_dict()
    means = [value for name, value in state.items() if name.endswith("running_mean")]
    assert means
    assert all(not mean.any() for mean in means)


def test_the_record_of_a_run_without_a_folder_has_its_model_and_touches_no_randomness():
    record = simulate(SMALL)
    before = torch.get_rng_state()
    first, second = record.model(), record.model()
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert not torch.equal(values(first), values(second)), "a module of its own each time"
    assert torch.equal(values(second), values(record.model()))


def test_models_are_no_part_of_what_records_are_compared_by(tmp_path):
    record = simulate(SMALL, folder=tmp_path, models=SavedModels(best=True))
    assert dataclasses.replace(record, models=None, best=None) == record
    assert record.summary.identity == SMALL.identity


PERSONAL = {
    "one for all": (FedAvg(), {}),
    "in the clear": (Permuted(FedAvg(), seed=3), {}),
    "one each": (RFFL(), {}),
    "their own training": (Standalone(), {}),
    "clusters": (ClusteredFL(split_rounds=(1,), min_gap=0.0), {"groups": PermutedLabels(2)}),
    "clusters and a choice": (
        ClusteredFL(split_rounds=(1,), min_gap=0.0), {"groups": PermutedLabels(2), "validation": 0.3},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Clients hold")
@pytest.mark.parametrize("name", PERSONAL)
def test_every_client_gets_the_model_that_was_evaluated(name, tmp_path):
    """The saved models have the scores of the last evaluation, client by client, to the bit."""
    algorithm, more = PERSONAL[name]
    plan = dataclasses.replace(SMALL, algorithm=algorithm, attack=Rescale(-2.0), byzantine=1, **more)
    record = simulate(plan, folder=tmp_path)
    federation = Federation(plan)
    tests = {i: federation.tests[federation.group[i]] for i in range(4)}
    found = scores(Record.load(tmp_path).models, federation.test, tests)
    final = record.history[-1].metrics
    assert {i: found.clients[i].accuracy for i in final.received_accuracy} == final.received_accuracy
    assert found.clients.keys() == {0, 1, 2, 3}
    files = {file for of in record.models.index.clients.values() for file in of.values()} | {MODEL}
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.safetensors")} == files
    assert len(files) == {"one": 5, "their": 5, "clusters": 3}.get(name.split()[0], 1) or name == "one for all"


@pytest.mark.filterwarnings("ignore:Clients hold")
def test_a_choice_is_kept(tmp_path):
    algorithm, more = PERSONAL["clusters and a choice"]
    record = simulate(dataclasses.replace(SMALL, algorithm=algorithm, **more), folder=tmp_path)
    index = Record.load(tmp_path).models.index
    assert index.chosen == record.history[-1].metrics.chosen
    assert index.chosen
    for client, number in index.chosen.items():
        assert index.file(client) == index.clients[client][number]


def test_equal_models_are_one_file_and_different_ones_are_not():
    general, other = torch.zeros(4), torch.ones(4)
    served = Served(
        general,
        [
            (0, {0: general, 1: other}),
            (1, {0: torch.zeros(4), 1: torch.ones(4)}),
            (2, {0: general, 1: -other}),
            (3, {2: other}),
        ],
    )
    found = layout(served, 1e9)
    first, second = "models/1-client-0.safetensors", "models/1-client-2.safetensors"
    assert found.clients == {0: {0: MODEL, 1: first}, 1: {0: MODEL, 1: first}, 2: {0: MODEL, 1: second}, 3: {2: first}}
    assert {name: vector[0].item() for name, vector in found.files.items()} == {MODEL: 0, first: 1, second: -1}


def test_memory_that_is_used_again_is_not_taken_for_the_same_model():
    """Models of clients may be made one after the other in one place."""

    def offers():
        for client in range(50):
            yield client, {0: torch.full((1000,), float(client + 1))}

    found = layout(Served(torch.zeros(1000), offers()), 1e9)
    assert len(found.files) == 51
    assert all(found.files[found.clients[i][0]][0] == i + 1 for i in range(50))


def test_many_models_of_their_own_stop_at_the_room_for_them(tmp_path):
    """Of 4 models of 64 * 4 bytes, the fourth does not fit; only the global one is kept, and the record says so."""
    size = simulate(SMALL).summary.dimension * 4
    plan = dataclasses.replace(SMALL, algorithm=RFFL())
    with pytest.warns(UserWarning, match=r"need more than .* GB, and only the global model"):
        record = simulate(plan, folder=tmp_path, models=SavedModels(gigabytes=3.5 * size / 1e9))
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == [MODEL]
    loaded = Record.load(tmp_path)
    assert torch.equal(values(loaded.model()), values(record.model()))
    with pytest.raises(LookupError, match=r"Only the global model was saved: .*`phalanx run --model_gigabytes`"):
        loaded.model(client=1)
    assert "left out, for lack of room" in (tmp_path / CARD).read_text()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="need more than|.*only the global model")
        simulate(plan, folder=tmp_path / "more", models=SavedModels(gigabytes=4.5 * size / 1e9))
    assert len([*(tmp_path / "more").rglob("*.safetensors")]) == 5


@pytest.mark.parametrize("gigabytes", [-1.0, float("nan")])
def test_room_is_not_negative(gigabytes):
    with pytest.raises(ValueError, match="gigabytes must be at least 0"):
        SavedModels(gigabytes=gigabytes)


def test_the_models_of_the_best_evaluation(tmp_path):
    """The best one has the accuracy of the best step; a worse one later does not replace it."""
    plan = dataclasses.replace(SMALL, training=LocalSGD(epochs=1, batch_size=5, lr=3.0), until=Until(8))
    record = simulate(plan, folder=tmp_path, models=SavedModels(best=True))
    summary = record.summary
    assert summary.best.accuracy > summary.final.accuracy, "the run became worse"
    _, test = plan.data.load()
    loaded = Record.load(tmp_path)
    assert scores(loaded.best, test).model.accuracy == summary.best.accuracy
    assert scores(loaded.models, test).model.accuracy == summary.final.accuracy
    assert loaded.best.index.step == summary.best.step
    assert torch.equal(
        values(simulate(plan, models=SavedModels(best=True)).model(best=True)), values(loaded.model(best=True))
    )
    simulate(plan, folder=tmp_path, checkpoint=Checkpoint(resume=False))
    assert not (tmp_path / BEST).exists(), "those of another run"
    with pytest.raises(LookupError, match=r"has not kept the models of the best evaluation: set SavedModels"):
        Record.load(tmp_path).model(best=True)


class Killed(BaseException):
    pass


def saved(folder):
    """The files of models in a folder."""
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path for path in found if path.suffix == ".safetensors" or path.name in (INDEX, CARD)}


@pytest.mark.parametrize("at", [3, 6])
def test_a_killed_run_leaves_the_same_models_as_one_that_was_not(at, tmp_path):
    """Killed after the best evaluation or before it; nothing of the killed run's models stays."""
    plan = dataclasses.replace(
        SMALL, algorithm=RFFL(), training=LocalSGD(epochs=1, batch_size=5, lr=0.5), until=Until(8)
    )
    settings = SavedModels(best=True)
    whole = simulate(plan, folder=tmp_path / "whole", models=settings)

    def dies(progress):
        if progress.step == at:
            raise Killed

    every_step = Checkpoint(every_seconds=0)
    with pytest.raises(Killed):
        simulate(plan, folder=tmp_path / "killed", models=settings, observers=[dies], checkpoint=every_step)
    assert Record.load(tmp_path / "killed").models.index.step == at, "what it had reached can be looked at"
    simulate(plan, folder=tmp_path / "killed", models=settings, checkpoint=every_step)
    files = saved(tmp_path / "whole")
    assert len(files) > 6
    assert saved(tmp_path / "killed") == files
    for file in files:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes()
    assert whole.best.index.step <= 8


@pytest.mark.parametrize(("by", "best"), [("accuracy", max), ("loss", min)])
def test_the_best_evaluation_is_by_accuracy_or_by_loss(by, best, tmp_path):
    """Growing rates make the loss rise while the accuracy may not fall; resumed, the same models are the best."""
    settings = SavedModels(best=True, best_by=by)
    plan = dataclasses.replace(SMALL, training=LocalSGD(lr=ExponentialLR(3.0, 0.7), batch_size=5), until=Until(7))
    record = simulate(plan, models=settings)
    found = [(step.step, getattr(step.metrics, by)) for step in record.history if step.metrics is not None]
    assert record.best.index.step == best(found, key=lambda pair: pair[1])[0]

    def dies(progress):
        if progress.step == 5:
            raise Killed

    with pytest.raises(Killed):
        simulate(plan, folder=tmp_path, models=settings, observers=[dies], checkpoint=Checkpoint(every_seconds=0))
    resumed = simulate(plan, folder=tmp_path, models=settings, checkpoint=Checkpoint(every_seconds=0))
    assert resumed.best.index.step == record.best.index.step


def test_the_best_evaluation_so_far_must_be_in_the_folder(tmp_path):
    def stops(progress):
        if progress.step == 2:
            raise StopRunError("enough")

    simulate(SMALL, folder=tmp_path, observers=[stops])
    with pytest.raises(InfeasibleError, match="does not hold the models of the best evaluation so far"):
        simulate(SMALL, folder=tmp_path, models=SavedModels(best=True))
    assert simulate(SMALL, folder=tmp_path).summary.status == "finished"


def test_a_run_that_begins_removes_the_models_of_another(tmp_path):
    simulate(dataclasses.replace(SMALL, algorithm=RFFL()), folder=tmp_path)
    assert (tmp_path / "models").is_dir()
    record = simulate(SMALL, folder=tmp_path)
    assert not (tmp_path / "models").exists()
    assert record.models.index.identity == SMALL.identity


def test_values_that_do_not_fit_and_files_that_are_damaged(tmp_path):
    record = simulate(SMALL, folder=tmp_path)
    with pytest.raises(ValueError, match="The values of the model do not fit Linear"):
        record.model(module=torch.nn.Linear(2, 2))
    with pytest.raises(LookupError, match=r"Client 9 did not take part. Who did: 0, 1, 2, 3"):
        record.model(9)
    (tmp_path / MODEL).write_bytes((tmp_path / MODEL).read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"model.safetensors holds no model: .*Repeat the run"):
        Record.load(tmp_path, unsealed=True).model()
    (tmp_path / INDEX).write_text('{"identity": 3}')
    with pytest.raises(ValueError, match="is not an index of models"):
        Record.load(tmp_path, unsealed=True)


def test_a_run_can_keep_none(tmp_path):
    record = simulate(SMALL, folder=tmp_path, models=None)
    assert record.models is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "history.jsonl",
        "run.json",
        "seal.json",
        "summary.json",
    ]


def test_a_run_of_an_older_version_has_no_models(tmp_path):
    simulate(SMALL, folder=tmp_path)
    for name in (INDEX, SEAL):
        (tmp_path / name).unlink()
    with pytest.raises(LookupError, match="has not kept its models: repeat it"):
        Record.load(tmp_path).model()


@pytest.mark.parametrize(
    "form",
    [
        {"class_path": "os.system", "init_args": {"command": "true"}},
        {"class_path": "nowhere.Network"},
        {"class_path": "phalanx.models.MLP", "init_args": {"hidden": "x"}},
        {"class_path": "phalanx.models.MLP", "init_args": {"dropout": 3.0}},
        {},
    ],
)
def test_what_names_no_network_is_refused(form):
    with pytest.raises(ValueError, match=r"network .*of this run"):
        architecture_of(form)


def test_a_network_that_is_not_known_has_to_be_given(tmp_path):
    module = torch.nn.Linear(3, 2)
    flat = FlatModule(module)
    kept = keeper(flat, flat.read(), tmp_path)
    kept(Progress(1, 1.0, None, None, {}, {}, frozenset(range(3))))
    kept.keep()
    models = Models.load(tmp_path)
    with pytest.raises(ValueError, match=r"does not say what the network of this run is.*--module"):
        models.module()
    assert torch.equal(FlatModule(models.module(1, torch.nn.Linear(3, 2))).read(), flat.read())
    assert safetensors.torch.load_file(tmp_path / MODEL).keys() == {"weight", "bias"}


# The card


def test_the_card_says_who_was_excluded_and_what_it_promises(tmp_path):
    plan = dataclasses.replace(SMALL, algorithm=RFFL(), attack=Rescale(-10.0), byzantine=1, until=Until(6))
    record = simulate(plan, name="tiny | <b>run</b>", folder=tmp_path)
    text = (tmp_path / CARD).read_text()
    assert text == card(Record.load(tmp_path))
    (bad,) = (i for i, client in record.summary.clients.items() if client.byzantine)
    excluded = record.summary.clients[bad].excluded
    assert f"- step {excluded.step}: 1 client ({bad}): reputation" in text
    assert text.startswith("# tiny \\| &lt;b&gt;run&lt;/b&gt;\n")
    assert "| task | Classification(): scores of 4 classes for float32 examples of shape (5,) |" in text
    assert f"accuracy {100 * record.summary.final.accuracy:.1f} %" in text
    assert record.summary.identity in text
    assert len(text) < 4000


def test_the_card_of_a_run_that_promises_nothing_says_so(tmp_path):
    from phalanx.aggregators import Krum

    plan = dataclasses.replace(SMALL, algorithm=FedAvg(Krum(f=0)), clients=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = simulate(plan, folder=tmp_path)
    section = (tmp_path / CARD).read_text().split("## What the run promises\n")[1].split("\n## ")[0]
    assert "- Promises nothing: " in section
    assert section.count("\n- ") == len(record.summary.promise.text) + 1 + len(record.summary.remarks)


def test_inputs_are_those_of_the_data(tmp_path):
    simulate(SMALL, folder=tmp_path)
    assert Record.load(tmp_path).models.index.inputs == ModelInputs(shape=(5,), dtype="float32", outputs=4, classes=4)
    assert isinstance(tmp_path, Path)
