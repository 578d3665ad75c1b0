"""The same seed gives the same bits, also across a kill and resume."""

import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import phalanx
from algorithms.test_common import ALGORITHMS, needed, one_of_each_class
from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Krum, Mean
from phalanx.algorithms import (
    RFFL,
    AtOnce,
    ByClass,
    ByzantineCFL,
    ClusteredFL,
    FedAsync,
    FedAvg,
    FedBuff,
    Quorum,
    Standalone,
    WorkerMomentum,
)
from phalanx.attacks import (
    ALIE,
    Attack,
    Gaussian,
    LabelFlip,
    LazyFreeRider,
    Mimic,
    Neurotoxin,
    NonFinite,
    PoisonedFL,
    Scheduled,
    Together,
)
from phalanx.clustering import Memory, Peel
from phalanx.core import Algorithm, InfeasibleError, StalledError, Verdict
from phalanx.data import Dataset, InMemory
from phalanx.engine import LoopSettings, LostRounds
from phalanx.engine.participation import Participation, everyone
from phalanx.models import MLP
from phalanx.rng import generator
from phalanx.runs.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    Header,
    Origin,
    _read,
    peek,
    resumption,
    write,
)
from phalanx.runs.federation import Federation
from phalanx.runs.history import History
from phalanx.runs.packing import pack, unpack
from phalanx.runs.provenance import conditions
from phalanx.runs.record import Record, as_lines
from phalanx.runs.schema import StepRecord
from phalanx.runs.seal import SEAL
from phalanx.simulation import Deadline, Late, Lognormal
from phalanx.training.evaluation import Evaluation
from phalanx.training.private_sgd import PrivateSGD
from phalanx.weighting import Truncate
from runs.test_packing import same
from toys import Scripted

pytestmark = pytest.mark.filterwarnings("ignore:threshold", "ignore:Truncate", "ignore:A round|A buffer")
FILES = {"run.json", "history.jsonl", "summary.json", "model.safetensors", "model.json", "model.md", "seal.json"}
ALWAYS = Checkpoint(every_seconds=0)


def examples(n, seed):
    rng = generator(seed, "examples")
    x = torch.rand(n, 5, generator=rng)
    return Dataset(x, (x.sum(1) > 2.5).long(), 2)


SMALL = Run(
    data=InMemory(examples(60, 0), examples(20, 1)),
    clients=6,
    model=MLP((4,), dropout=0.2),
    training=LocalSGD(batch_size=5, momentum=0.5),
    until=Until(6),
)
ARRIVALS = {"algorithm": FedAsync(), "latency": Lognormal(sigma=1.0, each_turn=True), "until": Until(14)}


class PersonalState(NamedTuple):
    version: int
    model: torch.Tensor
    verdicts: dict[int, Verdict]
    seen: frozenset[int]
    past: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Personal(Algorithm[PersonalState]):
    """Clients keep models of their own and a momentum; the state has a tuple of views and a set."""

    def init(self, model, sizes):
        return PersonalState(0, model, {}, frozenset(), ()), sizes.keys()

    def step(self, state, updates):
        model = state.model + updates.deltas.mean(0)
        verdicts = {i: Verdict(True, 1 / len(updates)) for i in updates.clients}
        seen, past = state.seen | set(updates.clients), (*state.past, updates.deltas[0])[-2:]
        return PersonalState(state.version + 1, model, verdicts, seen, past), set(range(6))

    def integrate(self, local, download):
        return download if local is None else (local.params + local.delta + download) / 2

    def upload(self, delta, memory):
        memory = delta if memory is None else 0.9 * memory + delta
        return memory, memory


@dataclass(frozen=True)
class Moody(Mean):
    """The mean, which has no result for rows whose first entries do not agree in sign."""

    def choose(self, points):
        if len(points.matrix[:, 0].sign().unique()) > 1:
            raise InfeasibleError("They disagree.")
        return super().choose(points)


LOSSES = {
    "algorithm": FedAvg(Krum(f=1)),
    "latency": Lognormal(sigma=1.0, each_turn=True),
    "deadline": Deadline(2.0),
    "until": Until(12),
}
OF_ALGORITHMS = {
    str(algorithm): {**({} if algorithm.traits.synchronous else ARRIVALS), "algorithm": algorithm, **needed(algorithm)}
    for algorithm in ALGORITHMS
}
PLANS = {
    "arrivals under an attack with memory": {**ARRIVALS, "attack": LazyFreeRider(), "byzantine": 2},
    "arrivals under an omniscient attack": {**ARRIVALS, "attack": ALIE(), "byzantine": 2},
    "arrivals that are invalid": {**ARRIVALS, "attack": NonFinite(), "byzantine": 2},
    "arrivals at one time": {"algorithm": FedAsync(), "until": Until(14)},
    "arrivals until a time": {**ARRIVALS, "until": Until(seconds=2.5)},
    "a schedule of an attack with memory and training": {
        "attack": Scheduled(Together(Neurotoxin(), Together(Mimic(warmup=2), PoisonedFL(every=2))), start=1, every=2),
        "byzantine": 2,
    },
    "arrivals under an attack that remembers": {**ARRIVALS, "attack": PoisonedFL(every=2), "byzantine": 2},
    "an attack with memory, few asked": {"attack": LazyFreeRider(), "byzantine": 2, "participation": 0.5},
    "rounds that bring nothing": {"attack": NonFinite(), "byzantine": 4, "participation": 0.34},
    "clients that come late": {"algorithm": ClusteredFL(min_round=1), "late": Late(count=2, after=3.0)},
    "clients that are remembered": {
        "algorithm": ClusteredFL(memory=Memory(rounds=4, rate=0.5), peel=Peel(1, rounds=2), min_round=1, min_gap=0.0),
        "attack": Gaussian(),
        "byzantine": 1,
        "participation": 0.5,
    },
    "clients that leave": {
        "algorithm": ClusteredFL(min_round=1, min_reported=0.3, leave_after=3, min_gap=0.0, eps1=9.0, eps2=0.01),
        "participation": 0.5,
    },
    "clients with memory": {"algorithm": Personal(), "attack": Gaussian(), "byzantine": 1, "participation": 0.5},
    "evaluated seldom": {"evaluation": Evaluation(every=4)},
    "removed clients": {
        "algorithm": ByzantineCFL(threshold=0.5, exclusion=AtOnce()),
        "attack": Gaussian(),
        "byzantine": 2,
    },
    "removed clients that are tested again": {
        "algorithm": ByzantineCFL(threshold=0.5, exclusion=AtOnce(), retest_after=2),
        "attack": Gaussian(),
        "byzantine": 2,
    },
    "participants that are compared by class": {
        "algorithm": RFFL(agreement=ByClass.of(SMALL.model, (5,), 2, patience=1), probation=2),
        "attack": LabelFlip(0, 1),
        "byzantine": 1,
    },
    "rounds that are lost": {**LOSSES, "lost_rounds": LostRounds("skip", 30)},
    "rounds that are lost and asked again": {**LOSSES, "lost_rounds": LostRounds("wait", 30), "until": Until(4)},
    "arrivals that are held back": {
        **ARRIVALS,
        "algorithm": FedBuff(3, preprocess=Truncate(0.1, 0.45, "cohort")),
        "until": Until(30),
    },
    "arrivals that are lost": {**ARRIVALS, "algorithm": Quorum(FedAvg(Moody()), k=2), "until": Until(30)},
    "training that hides examples": {"training": PrivateSGD(LocalSGD(batch_size=5, momentum=0.5))},
    "clients that choose": {"algorithm": ClusteredFL(split_rounds=(2,), min_gap=0.0), "validation": 0.3},
}
every_plan = pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(OF_ALGORITHMS[p.id], id=p.id, marks=p.marks) for p in one_of_each_class(ALGORITHMS)),
        *(pytest.param(changes, id=name) for name, changes in PLANS.items()),
    ],
)


# --- the engine


def carried_out(plan, on_snapshot=None, resume=None, lines=()):
    """The last state, what the transport has under way then, and the history."""
    federation = Federation(plan)
    history = History(plan.algorithm.traits.observed, federation.measure, lines=lines)
    state = phalanx.run(
        plan.algorithm,
        federation.transport,
        federation.start,
        plan,
        sample=everyone if plan.participation == 1 else Participation(plan.participation, plan.seed),
        reference=federation.reference,
        observers=[history],
        **{} if on_snapshot is None else {"on_snapshot": lambda take: on_snapshot(take(), len(history.lines))},
        resume=resume,
    )
    return state, federation.transport.snapshot(), history.lines


@every_plan
def test_a_run_goes_on_from_its_second_and_its_middle_step_to_the_same_bits(changes, tmp_path):
    goes_on(dataclasses.replace(SMALL, **changes), tmp_path, lambda snapshots: (1, len(snapshots) // 2))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [*OF_ALGORITHMS.values(), *PLANS.values()], ids=[*OF_ALGORITHMS, *PLANS])
def test_a_run_goes_on_from_every_step_to_the_same_bits(changes, tmp_path):
    goes_on(dataclasses.replace(SMALL, **changes), tmp_path, lambda snapshots: range(len(snapshots)))


def goes_on(plan, tmp_path, steps):
    """Carry out a plan, resume it from some of its snapshots, and compare states and histories."""
    origin, snapshots = Origin("", None, "", {}, {}), []

    def keep(snapshot, lines):
        packed = pack(snapshot)
        write(tmp_path / str(len(snapshots)), Header(origin, snapshot.step, lines, "", 0.0, packed.form), packed)
        snapshots.append(lines)

    state, underway, lines = carried_out(plan, keep)
    plain = carried_out(plan)
    assert same(plain[:2], (state, underway)), "to be looked at changes nothing"
    assert len(snapshots) > 4
    for k in steps(snapshots):
        known = snapshots[k]
        header, pieces = _read(tmp_path / str(k))
        ended = carried_out(plan, resume=unpack(header.form, pieces), lines=lines[:known])
        assert same(ended[:2], (state, underway))
        assert as_lines(ended[2]) == as_lines(lines)


@pytest.mark.parametrize(("algorithm", "vectors"), [(RFFL(), 3), (WorkerMomentum(FedAvg()), 1), (Standalone(), 3)])
def test_of_a_client_no_more_is_kept_than_its_role_reads(algorithm, vectors):
    """RFFL: its payments, its shift and what it has sent; a momentum; where it started, what it changed and sent.

    The server has a model, and RFFL an aggregate and the mean direction of updates.
    """
    kept = []
    carried_out(dataclasses.replace(SMALL, algorithm=algorithm), lambda snapshot, _: kept.append(pack(snapshot)))
    size = max(tensor.numel() for tensor in kept[-1].tensors)
    assert sum(tensor.numel() == size for tensor in kept[-1].tensors) <= vectors * SMALL.clients + 3


def test_who_was_asked_in_vain_is_not_asked_for_ever_after_a_resume():
    plan, snapshots = dataclasses.replace(SMALL, training=LocalSGD(lr=1e30), participation=0.34), []
    with pytest.raises(StalledError) as plain:
        carried_out(plan, lambda snapshot, lines: snapshots.append((snapshot, lines)))
    assert "all 6 clients" in str(plain.value)
    assert len(snapshots) > 3
    for snapshot, lines in snapshots:
        again = []
        with pytest.raises(StalledError) as resumed:
            carried_out(
                plan,
                lambda *_, again=again: again.append(1),
                snapshot,
                [StepRecord(step=0, version=0, seconds=0.0)] * lines,
            )
        assert str(resumed.value) == str(plain.value)
        assert len(again) == len(snapshots) + 1 - lines


def test_the_plans_do_what_their_names_say():
    def run(name):
        return carried_out(dataclasses.replace(SMALL, **PLANS[name]))

    underway = run("arrivals under an attack with memory")[1]
    assert len(underway.events) > 2
    assert underway.previous.keys() == dataclasses.replace(SMALL, byzantine=2, attack=Gaussian()).attackers()
    assert any(line.invalid and not line.verdicts for line in run("arrivals that are invalid")[2])
    assert any(line.invalid and not line.verdicts for line in run("rounds that bring nothing")[2])
    lost = [
        {v.reason[:11] for v in line.verdicts.values()} == {"round lost:"} for line in run("rounds that are lost")[2]
    ]
    assert 0 < sum(lost) < 12
    again = [line.step for line in run("rounds that are lost and asked again")[2]]
    assert again[-1] == 4
    assert len(again) > 5
    for name, how in (("arrivals that are held back", "held back"), ("arrivals that are lost", "round lost")):
        assert any(v.reason.startswith(how) for line in run(name)[2] for v in line.verdicts.values()), name
    assert run("clients with memory")[1].locals
    assert sorted({len(line.verdicts) for line in run("clients that come late")[2][1:]}) == [4, 6]
    assert len(run("removed clients")[0].benign) < 6
    assert [line.metrics is not None for line in run("evaluated seldom")[2]] == [
        True,
        False,
        False,
        False,
        True,
        False,
        True,
    ]


def test_a_snapshot_that_is_held_stays_as_it_was():
    """Nothing that the engine and the simulation do later is seen in it."""
    held = []

    def keep(snapshot, _):
        packed = pack(snapshot)
        held.append((packed, [tensor.clone() for tensor in packed.tensors], json.dumps(packed.form["tree"])))

    carried_out(dataclasses.replace(SMALL, **PLANS["arrivals under an omniscient attack"]), keep)
    for packed, before, _ in held:
        assert packed.unchanged
        assert all(map(torch.equal, packed.tensors, before))


def test_a_transport_without_snapshots_says_so_when_one_is_wanted():
    phalanx.run(FedAvg(), Scripted({0: [1.0]}), torch.zeros(2), LoopSettings(until=Until(1)))
    with pytest.raises(InfeasibleError, match=r"Scripted has no snapshot\(\) and restore\(\)"):
        phalanx.run(
            FedAvg(),
            Scripted({0: [1.0]}),
            torch.zeros(2),
            LoopSettings(until=Until(1)),
            on_snapshot=lambda take: take(),
        )


def test_observers_of_a_resumed_run_hear_where_it_goes_on():
    snapshots, seen = [], []
    carried_out(SMALL, lambda snapshot, _: snapshots.append(snapshot))
    federation = Federation(SMALL)
    phalanx.run(
        SMALL.algorithm,
        federation.transport,
        federation.start,
        SMALL,
        observers=[seen.append],
        resume=snapshots[4],
    )
    assert [(p.step, p.now, p.updates is None) for p in seen] == [(4, 4.0, True), (5, 5.0, False), (6, 6.0, False)]


# --- folders


def contents(folder):
    """The history byte for byte, and the summary without what the clock on the wall says."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.pop("wall_seconds") > 0
    return (folder / "history.jsonl").read_bytes(), summary, (folder / "run.json").read_bytes()


def last_model(models):
    return lambda progress: models.append(progress.state.model)


def at_line(number, error):
    """An observer that raises at its call of this number."""
    calls = []

    def observer(progress):
        calls.append(progress)
        if len(calls) == number:
            raise error

    return observer


some_plans = pytest.mark.parametrize(
    "plan",
    [dataclasses.replace(SMALL, **PLANS[name]) for name in ("rounds that bring nothing", "arrivals until a time")],
    ids=["rounds", "arrivals"],
)


@some_plans
def test_a_folder_at_every_moment_of_a_run_is_one_from_which_it_goes_on(plan, tmp_path):
    """The folder is photographed whenever observers are called, which is what a kill at that moment leaves."""
    moments, models = [], []

    def photograph(progress):
        moments.append(shutil.copytree(tmp_path / "run", tmp_path / str(len(moments))))

    simulate(plan, folder=tmp_path / "run", observers=[photograph, last_model(models)], checkpoint=ALWAYS)
    undisturbed = contents(tmp_path / "run")
    assert {f.name for f in (tmp_path / "run").iterdir()} == FILES
    assert not (moments[0] / "checkpoint").exists()
    for k, folder in enumerate(moments):
        ended, steps = [], []
        record = simulate(plan, folder=folder, observers=[last_model(ended), lambda p, s=steps: s.append(p.step)])
        assert contents(folder) == undisturbed
        assert record.history == Record.load(folder).history
        assert torch.equal(ended[-1], models[-1])
        assert len(steps) == len(moments) - max(0, k - 1), "no step is done twice, but the one that was under way"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("rounds that bring nothing", KeyboardInterrupt),
        ("rounds that bring nothing", ZeroDivisionError),
        ("arrivals until a time", KeyboardInterrupt),
    ],
)
def test_a_run_that_is_interrupted_at_any_line_goes_on(name, error, tmp_path):
    plan = dataclasses.replace(SMALL, **PLANS[name])
    simulate(plan, folder=tmp_path / "plain")
    for number in range(1, 100):
        folder = tmp_path / str(number)
        try:
            simulate(plan, folder=folder, observers=[at_line(number, error())], checkpoint=ALWAYS)
            break
        except error as raised:
            notes = raised.__notes__
        stopped = Record.load(folder)
        assert stopped.summary.status == ("stopped" if error is KeyboardInterrupt else "failed")
        saved = peek(folder)
        assert (saved is not None) == (number > 1)
        if saved is not None and saved.step:
            assert notes[-1] == f"When it is run again, it goes on after step {saved.step}."
        simulate(plan, folder=folder)
        assert contents(folder) == contents(tmp_path / "plain")
    assert number > 5


def test_a_run_that_is_interrupted_again_and_again_comes_to_its_end(tmp_path):
    simulate(SMALL, folder=tmp_path / "plain")
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            simulate(SMALL, folder=tmp_path / "run", observers=[at_line(3, KeyboardInterrupt())], checkpoint=ALWAYS)
    simulate(SMALL, folder=tmp_path / "run", checkpoint=ALWAYS)
    assert contents(tmp_path / "run") == contents(tmp_path / "plain")


@pytest.fixture
def _no_rest(monkeypatch):
    """Every step is looked at, however short."""
    monkeypatch.setattr("phalanx.runs.checkpoint.LOOKING", 1e9)


SELDOM = Checkpoint(every_seconds=1e6)


@pytest.mark.usefixtures("_no_rest")
def test_an_interrupt_between_two_checkpoints_loses_no_step(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate(SMALL, folder=tmp_path, observers=[at_line(6, KeyboardInterrupt())], checkpoint=SELDOM)
    assert peek(tmp_path).step == 4, "step 5 was just told"


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run that was stopped on its way, with a checkpoint after step 3."""
    with pytest.raises(KeyboardInterrupt):
        simulate(SMALL, folder=tmp_path, observers=[at_line(5, KeyboardInterrupt())], checkpoint=ALWAYS)
    assert peek(tmp_path).step == 3
    return tmp_path


def steps_of(plan, folder, **options):
    """The steps that are told when the run is called again."""
    told = []
    simulate(plan, folder=folder, observers=[lambda progress: told.append(progress.step)], **options)
    return told


def test_the_checkpoint_is_for_this_run_and_on_request(stopped, tmp_path):
    copies = [shutil.copytree(stopped, tmp_path / name) for name in "abc"]
    assert steps_of(SMALL, copies[0]) == [3, 4, 5, 6]
    assert steps_of(SMALL, copies[1], checkpoint=Checkpoint(resume=False)) == [0, 1, 2, 3, 4, 5, 6]
    assert steps_of(SMALL, copies[2], checkpoint=None) == [0, 1, 2, 3, 4, 5, 6]
    assert not any((copy / "checkpoint").exists() for copy in copies)
    assert contents(copies[0]) == contents(copies[1]) == contents(copies[2])


def test_another_seed_starts_anew_and_says_so(stopped):
    other = dataclasses.replace(SMALL, seed=1)
    with pytest.warns(UserWarning, match=r"held a run that came to step 3\. This one starts over: it is another\."):
        assert steps_of(other, stopped) == [0, 1, 2, 3, 4, 5, 6]
    assert Record.load(stopped).config["seed"] == 1


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("phalanx.runs.session.VERSION", "99.0", r"starts over: its results are by Phalanx 0\.1\.0, this is 99\.0\."),
        ("phalanx.runs.session.source", lambda _: "changed", r"starts over: the source of the classes of your own"),
    ],
)
def test_another_source_or_version_starts_anew_and_says_so(stopped, monkeypatch, name, value, says):
    monkeypatch.setattr(name, value)
    with pytest.warns(UserWarning, match=says):
        assert steps_of(SMALL, stopped)[0] == 0


def test_other_conditions_are_refused_and_nothing_is_touched(stopped, monkeypatch):
    before = {f.name: f.read_bytes() for f in stopped.iterdir()}
    threads = torch.get_num_threads()
    monkeypatch.setattr("torch.get_num_threads", lambda: threads + 1)
    with pytest.raises(
        InfeasibleError, match=rf"to step 3, computed with threads {threads}, and this is {threads + 1}: it"
    ):
        simulate(SMALL, folder=stopped)
    monkeypatch.setattr("torch.__version__", "9.9")
    with pytest.raises(
        InfeasibleError, match=r"threads .*; torch .*, and this is 9\.9: it would not give the same bits"
    ):
        simulate(SMALL, folder=stopped)
    assert {f.name: f.read_bytes() for f in stopped.iterdir()} == before
    assert simulate(SMALL, folder=stopped, checkpoint=Checkpoint(resume=False)).summary.status == "finished"


def test_other_data_is_refused(stopped, monkeypatch):
    monkeypatch.setattr(Dataset, "fingerprint", lambda self: "other")
    with pytest.raises(InfeasibleError, match="computed with other data: it would not give the same bits"):
        simulate(SMALL, folder=stopped)


@pytest.mark.parametrize("umask", [0, 0o022, 0o277])
def test_nobody_but_the_owner_can_read_a_checkpoint_whatever_the_umask(umask, tmp_path):
    packed, before = pack({"model": torch.zeros(3)}), os.umask(umask)
    try:
        write(tmp_path / "checkpoint", Header(Origin("", None, "", {}, {}), 1, 0, "", 0.0, packed.form), packed)
    finally:
        os.umask(before)
    assert not (tmp_path / "checkpoint").stat().st_mode & 0o077
    assert peek(tmp_path).step == 1


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: b"", "it begins with something else"),
        (lambda content: b"PK" + content, "it begins with something else"),
        (lambda content: content[:100], "its header cannot be read"),
        (lambda content: content[:21] + b"\xff" * 8 + content[29:], "its header cannot be read"),
        (lambda content: content.replace(b'"step": 3', b'"stop": 3'), "its header cannot be read"),
        (lambda content: content.replace(b'"step": 3', b'"step": 4'), "its checksum is wrong"),
        (lambda content: content[:-1], "its checksum is wrong"),
        (lambda content: content + b" ", "its checksum is wrong"),
        (lambda content: flipped(content, len(content) - 100), "its checksum is wrong"),
    ],
)
def test_a_damaged_checkpoint_is_an_error_with_the_remedy(stopped, damage, says):
    path = stopped / "checkpoint"
    path.write_bytes(damage(path.read_bytes()))
    before = {f.name: f.read_bytes() for f in stopped.iterdir()}
    with pytest.raises(ValueError, match=f"{path} is not a whole checkpoint: {says}. Delete it, or start the run over"):
        simulate(SMALL, folder=stopped)
    assert {f.name: f.read_bytes() for f in stopped.iterdir()} == before
    assert simulate(SMALL, folder=stopped, checkpoint=Checkpoint(resume=False)).summary.status == "finished"


@pytest.mark.filterwarnings("ignore:.*held a run")
def test_every_bit_of_a_checkpoint_counts(stopped):
    content = (stopped / "checkpoint").read_bytes()
    cpu, rng = torch.device("cpu"), generator(0, "places")
    origin = Origin(SMALL.identity, None, phalanx.__version__, Federation(SMALL).fingerprint, conditions(cpu))
    assert resumption(stopped, ALWAYS, origin, cpu).snapshot.step == 3
    for place in torch.randint(0, len(content), (60,), generator=rng).tolist():
        (stopped / "checkpoint").write_bytes(flipped(content, place))
        try:
            found = resumption(stopped, ALWAYS, origin, cpu)
        except (ValueError, InfeasibleError):
            continue
        assert found.snapshot is None, "the name of the run is another now"


@pytest.mark.parametrize("content", [None, "", '{"step": 0}\n'])
def test_a_history_that_is_not_the_checkpoints_is_an_error_with_the_remedy(stopped, content):
    for name in ("history.jsonl", SEAL):
        (stopped / name).unlink()
    if content is not None:
        (stopped / "history.jsonl").write_text(content)
    with pytest.raises(ValueError, match=r"first 4 lines are not those of its checkpoint\. Delete the folder, or rep"):
        simulate(SMALL, folder=stopped)


def test_lines_after_the_checkpoint_are_dropped_whole_or_torn(stopped, tmp_path):
    simulate(SMALL, folder=tmp_path / "plain")
    for tail in ("", '{"step": 99}\n', '{"step": 4, "vers'):
        copy = shutil.copytree(stopped, tmp_path / f"copy{len(tail)}")
        (copy / SEAL).unlink()  # which a run that is killed has not
        with (copy / "history.jsonl").open("a") as file:
            file.write(tail)
        simulate(SMALL, folder=copy)
        assert contents(copy) == contents(tmp_path / "plain")


def test_a_run_that_goes_on_has_no_summary_or_report_of_when_it_was_stopped(stopped):
    (stopped / "report.html").write_text("of then")
    assert len((stopped / "history.jsonl").read_text().splitlines()) == 5
    moments = []

    def look(progress):
        lines = (stopped / "history.jsonl").read_text().splitlines()
        moments.append(({f.name for f in stopped.iterdir()}, len(lines)))

    simulate(SMALL, folder=stopped, observers=[look])
    assert moments == [({"run.json", "history.jsonl", "checkpoint", "lock"}, lines) for lines in (4, 5, 6, 7)]


def test_a_finished_or_failed_run_leaves_no_checkpoint(tmp_path):
    assert simulate(SMALL, folder=tmp_path, checkpoint=ALWAYS).summary.status == "finished"
    assert not (tmp_path / "checkpoint").exists()
    hopeless = dataclasses.replace(SMALL, training=LocalSGD(lr=1e30))
    assert simulate(hopeless, folder=tmp_path, checkpoint=ALWAYS).summary.status == "failed"
    assert {f.name for f in tmp_path.iterdir()} == FILES


@pytest.mark.parametrize(("when", "says"), [(SELDOM, False), (ALWAYS, True)])
def test_a_mistake_says_from_where_the_run_goes_on_if_there_is_a_checkpoint(when, says, tmp_path):
    with pytest.raises(RuntimeError) as failure:
        simulate(SMALL, folder=tmp_path, observers=[at_line(3, RuntimeError("a mistake"))], checkpoint=when)
    notes = [note for note in failure.value.__notes__ if "goes on after" in note]
    assert notes == (["When it is run again, it goes on after step 1."] if says else [])


def test_the_wall_time_of_all_parts_counts(stopped):
    spent = peek(stopped).seconds
    path = stopped / "checkpoint"
    header, pieces = _read(path)
    snapshot = unpack(header.form, pieces)
    write(path, header._replace(seconds=1000.0), pack(snapshot))
    assert 0 < spent < 100
    assert simulate(SMALL, folder=stopped).summary.wall_seconds > 1000


def test_a_checkpoint_whose_content_is_no_snapshot_is_damaged(stopped):
    path = stopped / "checkpoint"
    header, pieces = _read(path)
    packed = pack(unpack(header.form, pieces))
    write(path, header._replace(form={"pieces": header.form["pieces"]}), packed)
    with pytest.raises(ValueError, match=f"{path} is not a whole checkpoint: "):
        simulate(SMALL, folder=stopped)


def test_nothing_is_saved_without_a_folder_or_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.runs.checkpoint.pack", lambda _: pytest.fail("nobody asked for it"))
    simulate(SMALL, checkpoint=ALWAYS)
    simulate(SMALL, folder=tmp_path, checkpoint=None)


class OddState(NamedTuple):
    version: int
    model: torch.Tensor
    verdicts: dict[int, Verdict]
    odd: Any


@dataclass(frozen=True)
class Odd(Algorithm[OddState]):
    """Its state cannot be kept from the second step on."""

    def init(self, model, sizes):
        return OddState(0, model, {}, None), sizes.keys()

    def step(self, state, updates):
        new = OddState(state.version + 1, state.model, {}, iter(()) if state.version else None)
        return new, set(updates.clients)


def test_a_state_that_cannot_be_kept_is_named_and_the_run_goes_its_way(tmp_path):
    plan = dataclasses.replace(SMALL, algorithm=Odd())
    with pytest.warns(UserWarning, match=r"starts over if it is killed: state\.odd is a tuple_iterator") as told:
        assert simulate(plan, folder=tmp_path, checkpoint=ALWAYS).summary.steps == 6
    assert len(told) == 1


@dataclass(frozen=True)
class InPlace(Attack):
    """Writes into the update that it was handed, which is in flight in the last snapshot."""

    def forge(self, update, knowledge, rng):
        return update.delta.mul_(-2.0)


@pytest.mark.usefixtures("_no_rest")
def test_a_snapshot_that_somebody_wrote_into_is_not_written(tmp_path):
    plan = dataclasses.replace(SMALL, **ARRIVALS, attack=InPlace(), byzantine=5)
    simulate(plan, folder=tmp_path / "plain")
    written = []
    for number in range(3, 12):
        folder = tmp_path / str(number)
        with pytest.raises(KeyboardInterrupt):
            simulate(plan, folder=folder, observers=[at_line(number, KeyboardInterrupt())], checkpoint=SELDOM)
        written.append(peek(folder) is not None)
        simulate(plan, folder=folder)
        assert contents(folder) == contents(tmp_path / "plain")
    assert set(written) == {True, False}


# --- how often


class Stopwatch:
    """A clock that goes when it is told, and with each look of a keeper by what that costs."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("phalanx.runs.checkpoint.time", self)

    def perf_counter(self):
        return self.now


def kept(monkeypatch, tmp_path, when, *, looking, writing, steps, length, content=None):
    """At which times a keeper looks and writes, if these and a step take so many seconds."""
    watch, looks, writes = Stopwatch(monkeypatch), [], []

    def costly_pack(value):
        looks.append(round(watch.now - 100, 6))
        watch.now += looking
        return pack(value)

    def costly_write(path, header, packed):
        writes.append(header.step)
        watch.now += writing
        write(path, header, packed)

    monkeypatch.setattr("phalanx.runs.checkpoint.pack", costly_pack)
    monkeypatch.setattr("phalanx.runs.checkpoint.write", costly_write)
    keeper = CheckpointWriter(tmp_path, when, Origin("", None, "", {}, {}), History(), watch.now)
    for step in range(steps):
        keeper(lambda step=step: Step(step, content))
        watch.now += length
    return looks, writes, watch.now - 100


class Step(NamedTuple):
    step: int
    content: torch.Tensor | None


def test_a_keeper_writes_every_minute_and_looks_at_every_long_step(monkeypatch, tmp_path):
    looks, writes, _ = kept(monkeypatch, tmp_path, Checkpoint(), looking=0.001, writing=0.01, steps=200, length=1.0)
    assert len(looks) == 200
    assert writes == [60, 120, 180]


def test_a_keeper_takes_one_per_cent_at_most_however_long_it_takes(monkeypatch, tmp_path):
    looks, writes, spent = kept(monkeypatch, tmp_path, Checkpoint(), looking=0.2, writing=3.0, steps=4000, length=1.0)
    assert len(looks) > 30
    assert len(writes) > 8
    assert spent <= 4000 * 1.0102 + 3.2
    assert spent > 4000


def test_the_first_checkpoint_waits_longer_if_it_is_large(monkeypatch, tmp_path):
    monkeypatch.setattr("phalanx.runs.checkpoint.SPEED", 64 / 0.8)  # a border's worth takes 0.8 s, and may every 100 s
    _, writes, _ = kept(
        monkeypatch, tmp_path, Checkpoint(), looking=0.001, writing=0.8, steps=250, length=1.0, content=torch.ones(16)
    )
    assert writes == [100, 200]


def test_every_step_is_written_on_request(monkeypatch, tmp_path):
    _, writes, _ = kept(monkeypatch, tmp_path, ALWAYS, looking=1.0, writing=9.0, steps=5, length=0.001)
    assert writes == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seconds", [-1.0, -1e-9, float("nan")])
def test_a_time_that_is_none(seconds):
    with pytest.raises(ValueError, match=r"every_seconds must be at least 0"):
        Checkpoint(every_seconds=seconds)


@pytest.mark.usefixtures("_no_rest")
def test_a_disk_that_is_full_when_a_run_is_stopped_hides_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    def break_disk(progress):
        if progress.step == 3:
            monkeypatch.setattr("phalanx.runs.checkpoint.write", full)
            raise KeyboardInterrupt

    with (
        pytest.warns(UserWarning, match="could not be saved, to go on after step 2: No space left"),
        pytest.raises(KeyboardInterrupt),
    ):
        simulate(SMALL, folder=tmp_path, observers=[break_disk], checkpoint=SELDOM)
    assert Record.load(tmp_path).summary.status == "stopped"


def test_a_checkpoint_is_the_old_one_or_the_new_one(stopped, monkeypatch):
    """A write that is broken off half-way leaves the checkpoint before."""
    before = (stopped / "checkpoint").read_bytes()
    header, pieces = _read(stopped / "checkpoint")
    packed = pack(unpack(header.form, pieces))
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(stopped / "checkpoint", header, packed)
    monkeypatch.undo()
    assert (stopped / "checkpoint").read_bytes() == before
    assert Path(stopped / "checkpoint.partial").exists()
    assert steps_of(SMALL, stopped)[0] == 3
    assert {f.name for f in stopped.iterdir()} == FILES
