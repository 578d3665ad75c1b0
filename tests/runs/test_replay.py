"""Kept updates: the run's own algorithm comes to the same bytes, and what another one answers is exact."""

import json
import os
import re
import shutil

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from compositions import ALGORITHMS
from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import CenteredClipping, Krum, Mean, Median
from phalanx.algorithms import CentrallyPrivate, ClusteredFL, FedAsync, FedAvg, PerCluster, Quorum
from phalanx.attacks import SignFlip
from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.data import Dataset, InMemory
from phalanx.engine.observer import StopRunError
from phalanx.models import MLP
from phalanx.rng import generator
from phalanx.runs.replay import UpdateReplay
from phalanx.runs.seal import SealError, check, seal
from phalanx.runs.updates import file_of, kept_steps, read_kept
from phalanx.runs.verification import verify
from phalanx.simulation import Crashes, Lognormal
from phalanx.weighting import Ignore, Truncate


def examples(n, seed):
    rng = generator(seed, "examples")
    x = torch.rand(n, 5, generator=rng)
    return Dataset(x, (x.sum(1) > 2.5).long(), 2)


DATA = InMemory(examples(96, 0), examples(20, 1))
FEW = Run(data=DATA, clients=12, model=MLP((4,)), training=LocalSGD(batch_size=5), until=Until(steps=12))
LEFT_OUT = ("LowRankProducts(Median)", "Kardam", "FedNova(Median)")  # for other models, clients and training


def kept(plan, folder, **options):
    simulate(plan, folder=folder, keep_updates=True, **options)
    return folder


def replayed(folder, own, *others):
    return [*UpdateReplay(folder, own, *others).steps()]


PLANS = {name: {"algorithm": algorithm} for name, algorithm in ALGORITHMS.items() if name not in LEFT_OUT} | {
    "a rule with memory": {"algorithm": FedAvg(CenteredClipping(), Ignore())},
    "drawn clients": {"algorithm": FedAvg(Median(), Ignore()), "participation": 0.5},
    "clusters": {"algorithm": PerCluster(FedAvg(Median(), Ignore()))},
    "quorum, late": {"algorithm": Quorum(FedAvg(Median(), Ignore()), k=4), "latency": Lognormal()},
    "attacked": {"algorithm": FedAvg(Krum(2), Ignore()), "attack": SignFlip(), "byzantine": 2, "tolerate": 2},
    "lost rounds": {"algorithm": FedAvg(Median(), Ignore()), "availability": Crashes(0.4), "tolerate": 3},
    "truncated": {"algorithm": FedAvg(Median(), Truncate(0.2, 0.4))},
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # such as that a threshold does not fit so small a model
@pytest.mark.parametrize("name", PLANS)
def test_the_runs_own_algorithm_comes_to_the_same_bytes(name, tmp_path):
    options = dict(PLANS[name])
    if options["algorithm"].traits.needs_reference:
        options["server_examples"] = 12
    plan = Run(**{f: getattr(FEW, f) for f in ("data", "clients", "model", "training", "until")}, **options)
    record = simulate(plan, folder=tmp_path, keep_updates=True)
    assert kept_steps(tmp_path) == sorted({step.step for step in record.history} - {0}), record.summary.error
    steps = replayed(tmp_path, plan.algorithm)
    assert [step.step for step in steps if not step.same] == []
    assert [bool(step.lost) for step in steps] == [False] * len(steps)
    if name == "lost rounds":
        assert any(read_kept(tmp_path, step.step).about.lost for step in steps), "or it tests nothing"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    plan = Run(data=DATA, clients=5, model=MLP((4,)), algorithm=FedAvg(Median(), Ignore()), until=Until(4))
    return kept(plan, tmp_path_factory.mktemp("replay") / "run")


@pytest.fixture
def folder(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def by_hand(folder, step, rule, without=()):
    """The model of the run before a step, and after it by another rule."""
    before = read_kept(folder, 0).tensors["model"]
    for k in range(1, step + 1):
        of = read_kept(folder, k)
        rows = torch.stack([of.update(i) for i in of.about.clients])
        left = torch.stack([of.update(i) for i in of.about.clients if i not in without])
        if k == step:
            return before, before - Median()(rows), before - rule(left)
        before = before - Median()(rows)


KRUM = FedAvg(Krum(0), Ignore())


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(("other", "without"), [(FedAvg(Mean(), Ignore()), ()), (None, (1,)), (KRUM, (4,))])
def test_what_another_rule_or_the_absence_of_a_client_would_have_done_is_that_by_hand(run, step, other, without):
    own = FedAvg(Median(), Ignore())
    found = replayed(run, own, other, frozenset(without))[step - 1]
    before, after, otherwise = by_hand(run, step, (other or own).aggregate, without)
    assert found.length == pytest.approx(float((after - before).double().norm()), rel=1e-6)
    assert found.difference == pytest.approx(float((otherwise - after).double().norm()), rel=1e-4, abs=1e-9)
    assert found.difference > 0
    assert found.same


def test_the_same_rule_makes_no_difference(run):
    own = FedAvg(Median(), Ignore())
    assert [step.difference for step in replayed(run, own, FedAvg(Median(), Ignore()))] == [0.0] * 4


def test_a_round_that_another_rule_would_have_lost_is_said(run):
    own = FedAvg(Median(), Ignore())
    steps = replayed(run, own, None, frozenset(range(5)))
    assert {step.lost for step in steps} == {"no updates are left"}
    assert {step.lost == "" for step in replayed(run, own, FedAvg(Krum(2), Ignore()), frozenset({0, 1}))} == {False}


def test_what_keeps_several_models_cannot_be_asked_for(run):
    with pytest.raises(InfeasibleError, match="ClusteredFL keeps several models"):
        replayed(run, FedAvg(Median(), Ignore()), ClusteredFL())


def test_a_client_that_did_not_take_part_cannot_be_left_out(run):
    with pytest.raises(InfeasibleError, match=r"No such client took part: 7, 9\. Who did: 0, 1, 2, 3, 4"):
        replayed(run, FedAvg(Median(), Ignore()), None, frozenset({1, 7, 9}))


def test_another_algorithm_than_that_of_the_run_does_not_come_to_the_same_bytes(run):
    assert [step.same for step in replayed(run, FedAvg(Mean(), Ignore()))] == [False] * 4


def test_noise_that_nobody_can_draw_again_is_said(run):
    with pytest.raises(InfeasibleError, match="that nobody can draw again"):
        UpdateReplay(run, CentrallyPrivate(FedAvg(preprocess=Ignore()), 1.0, 0.1), secret=True)


def test_without_updates_it_says_how_to_keep_them(tmp_path):
    simulate(FEW, folder=tmp_path)
    with pytest.raises(InfeasibleError, match=r"holds no updates\. Repeat the run with --keep_updates"):
        UpdateReplay(tmp_path, FEW.algorithm)


def test_a_run_that_goes_on_keeps_the_rest_and_comes_to_the_same_files(run, tmp_path):
    plan = Run(data=DATA, clients=5, model=MLP((4,)), algorithm=FedAvg(Median(), Ignore()), until=Until(4))

    def stops(progress):
        if progress.step == 2:
            raise StopRunError("for a test")

    kept(plan, tmp_path, observers=[stops])
    assert kept_steps(tmp_path) == [1, 2]
    kept(plan, tmp_path)
    for path in (run / "updates").iterdir():
        assert (tmp_path / "updates" / path.name).read_bytes() == path.read_bytes()
    assert verify(tmp_path).status == 0


def test_a_run_whose_first_updates_were_not_kept_does_not_begin_to_keep_them(tmp_path):
    def stops(progress):
        if progress.step == 2:
            raise StopRunError("for a test")

    simulate(FEW, folder=tmp_path, observers=[stops])
    record = simulate(FEW, folder=tmp_path, keep_updates=True)
    assert record.summary.status == "failed"
    assert "The updates of the first 2 steps were not kept" in record.summary.error


def test_another_run_in_the_folder_removes_them(folder):
    simulate(FEW, folder=folder, checkpoint=None)
    assert not (folder / "updates").exists()


def test_updates_change_nothing_of_a_run(run, tmp_path):
    plan = Run(data=DATA, clients=5, model=MLP((4,)), algorithm=FedAvg(Median(), Ignore()), until=Until(4))
    simulate(plan, folder=tmp_path)
    for name in ("history.jsonl", "model.safetensors", "run.json"):
        assert (tmp_path / name).read_bytes() == (run / name).read_bytes()


def damaged(folder, how):
    path = folder / "updates" / "00000002.safetensors"
    text = bytearray(path.read_bytes())
    if how == "an update":
        text[-1] ^= 1
    elif how == "the header":
        text[:8] = (1 << 40).to_bytes(8, "little")
    elif how == "junk":
        text = bytearray(b"junk")
    elif how == "missing":
        path.unlink()
        return
    elif how == "another step":
        text = bytearray((folder / "updates" / "00000003.safetensors").read_bytes())
    path.write_bytes(text)


@pytest.mark.parametrize("how", ["an update", "the header", "junk", "missing", "another step"])
def test_changed_updates_are_found_by_the_seal_and_by_the_replay(how, folder, capsys):
    damaged(folder, how)
    assert [finding.file for finding in verify(folder).findings] == ["updates/00000002.safetensors"]
    assert main(["replay", str(folder)]) == 2
    assert "is not as its run left it" in capsys.readouterr().err
    seal(folder, {})
    status = main(["replay", str(folder)])
    said = capsys.readouterr()
    if how == "an update":
        assert status in (0, 1)  # a Median can leave out what was changed
    else:
        assert status == 2
        assert "updates" in said.err.lower()


def rewrite(folder, step, about=(), **tensors):
    """Changes what a file of updates says and holds; a tensor of None is left out."""
    path = folder / file_of(step)
    with safe_open(path, "pt") as held:
        said = {**json.loads(held.metadata()["phalanx"]), **dict(about)}
        new = {name: held.get_tensor(name) for name in held.keys()} | tensors  # noqa: SIM118  (it is no mapping)
    new = {name: value for name, value in new.items() if value is not None}
    safetensors.torch.save_file(new, path, {"phalanx": json.dumps(said)})


D = 34  # parameters of the model
BFLOAT16 = {"transfer": "bfloat16", "sent": {"0": ["x"]}, "clients": [0], "versions": [0], "bases": [0]}
INT8 = {**BFLOAT16, "transfer": "int8"}
ALONE = {**{f"{i}": None for i in range(5)}, "losses": torch.zeros(1)}
HOSTILE = {
    "no model": (0, {}, {"model": None}, "lacks model"),
    "a model of two dimensions": (0, {}, {"model": torch.zeros(2, 3)}, "model is no vector"),
    "a model of integers": (0, {}, {"model": torch.zeros(D, dtype=torch.int64)}, "model is no vector"),
    "nobody joined": (0, {"joined": {}}, {}, "names no clients"),
    "a negative size": (0, {"joined": {"0": -5}}, {}, "negative or too large"),
    "no examples": (0, {"joined": {"0": 0}}, {}, "reports no examples"),
    "a huge size": (0, {"joined": {"0": 10**30}}, {}, "negative or too large"),
    "no clients": (1, {"clients": [], "versions": [], "bases": []}, {}, "names no clients"),
    "strangers": (1, {"clients": [0, 1, 2, 3, 9]}, {"4": None, "9": torch.zeros(D)}, "client 9, which never joined"),
    "one client twice": (1, {"clients": [0, 0, 1, 2, 3]}, {}, "do not increase"),
    "a negative base": (1, {"bases": [-1, 0, 0, 0, 0]}, {}, "negative or too large"),
    "no such base": (1, {"bases": [1, 0, 0, 0, 0]}, {}, "lacks base.1"),
    "a short base": (1, {"bases": [1, 0, 0, 0, 0]}, {"base.1": torch.zeros(3)}, "of another length"),
    "too few bases": (1, {"bases": [0]}, {}, "of different number"),
    "a huge version": (1, {"versions": [10**30, 0, 0, 0, 0]}, {}, "negative or too large"),
    "something else": (1, {}, {"x": torch.zeros(1)}, "has no place for x"),
    "too few losses": (1, {}, {"losses": torch.zeros(1)}, "losses and clients are of different number"),
    "a short update": (1, {}, {"0": torch.zeros(10)}, "of another length"),
    "an update of another type": (1, {}, {"0": torch.zeros(D, dtype=torch.float64)}, "of another type"),
    "a short update of another type": (1, {}, {"0": torch.zeros(10, dtype=torch.bfloat16)}, "of another length"),
    "an update of integers": (1, {}, {"0": torch.zeros(D, dtype=torch.int64)}, "0 is no vector"),
    "an update without dimensions": (1, {}, {"0": torch.tensor(1.0)}, "0 is no vector"),
    "a long reference": (1, {}, {"reference": torch.zeros(D + 1)}, "of another length"),
    "bfloat16 as floats": (1, BFLOAT16, {**ALONE, "0.values": torch.zeros(D)}, "0.values is no vector"),
    "bfloat16 without dimensions": (
        *(1, BFLOAT16, {**ALONE, "0.values": torch.tensor(1, dtype=torch.uint16)}),
        "0.values is no vector",
    ),
    "many scales": (
        *(1, INT8, {**ALONE, "0.values": torch.zeros(1, dtype=torch.int8), "0.scales": torch.zeros(9)}),
        "9 scales of 1 value",
    ),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_updates_that_cannot_be_are_refused_with_a_sentence(how, folder, capsys):
    step, about, tensors, why = HOSTILE[how]
    rewrite(folder, step, about, **tensors)
    with pytest.raises(ValueError, match=re.escape(why)):
        replayed(folder, FedAvg(Median(), Ignore()))
    seal(folder, {})
    assert main(["replay", str(folder)]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "Traceback" not in said


def test_a_pipe_in_place_of_updates_is_not_waited_for(folder):
    (folder / file_of(2)).unlink()
    os.mkfifo(folder / file_of(2))
    with pytest.raises(ValueError, match="is no file"):
        read_kept(folder, 2)


@pytest.mark.parametrize("steps", [3, 4])
def test_updates_of_another_run_do_not_come_to_the_saved_model(steps, folder, tmp_path, capsys):
    plan = Run(data=DATA, clients=5, model=MLP((4,)), algorithm=FedAvg(Median(), Ignore()), until=Until(steps), seed=1)
    kept(plan, tmp_path / "other")
    shutil.rmtree(folder / "updates")
    shutil.copytree(tmp_path / "other" / "updates", folder / "updates")
    seal(folder, {})
    assert [step.same for step in replayed(folder, plan.algorithm)] == [True] * (steps - 1) + [False]
    assert main(["replay", str(folder)]) == 1
    assert f"does not come to the same bytes in step {steps}" in capsys.readouterr().out


def test_the_model_shows_that_an_update_was_changed(folder):
    path = folder / "updates" / "00000002.safetensors"
    text = bytearray(path.read_bytes())
    text[-100:] = bytes(100)
    path.write_bytes(text)
    assert [step.same for step in replayed(folder, FedAvg(Median(), Ignore()))][:2] == [True, False]


def test_the_command_says_what_it_found(run, capsys):
    assert main(["replay", str(run)]) == 0
    assert capsys.readouterr().out == (
        "FedAvg(Median), the run's own, comes to the same bytes in 4 steps.\n"
        "Compared with what updates/ says of each step; after the last step, model.safetensors.\n"
    )
    assert (
        main(["replay", str(run), "--algorithm", "FedAvg", "--algorithm.preprocess", "Ignore", "--without", "1"]) == 0
    )
    said = capsys.readouterr().out
    assert "FedAvg(Mean) without client 1, with the same updates: the same model in 0 of 4 steps." in said
    assert "each answer is exact" in said


def test_a_folder_that_was_changed_needs_to_be_said_to_be_read(folder):
    damaged(folder, "an update")
    with pytest.raises(SealError):
        check(folder)
    assert main(["replay", str(folder), "--unsealed"]) in (0, 1)


def test_asynchronous_updates_have_the_models_that_they_began_with(tmp_path):
    plan = Run(data=DATA, clients=4, model=MLP((4,)), algorithm=FedAsync(), until=Until(10), latency=Lognormal())
    kept(plan, tmp_path)
    assert {read_kept(tmp_path, step).about.bases for step in kept_steps(tmp_path)} == {(0,), (1,)}
    assert all(step.same for step in replayed(tmp_path, plan.algorithm))
