import json
import math
import shutil
from itertools import pairwise

import pandas
import pytest
import torch

from phalanx.algorithms import ByzantineCFL, FedAsync
from phalanx.core import Until, Updates, Verdict
from phalanx.engine.observer import Progress
from phalanx.runs.history import History
from phalanx.runs.plan import Run
from phalanx.runs.record import Record
from phalanx.runs.schema import Exclusion, InvalidUpdates, StepRecord, plain
from phalanx.runs.session import simulate
from phalanx.runs.summary import exclusions, filtered, invalid_updates, not_enrolled
from phalanx.training.evaluation import Evaluation, Metrics


def line(step, accepted=(), filtered=(), invalid=(), excluded=(), absent=()):
    verdicts = {i: Verdict(True, 0.5) for i in accepted}
    verdicts |= {i: Verdict(False, 0.0, None, "far away") for i in filtered}
    verdicts |= {i: Verdict(False, 0.0, None, "out", final=True) for i in excluded}
    why = f"NaN in step {step}"
    return StepRecord(step=step, version=step, seconds=1.0, verdicts=verdicts, invalid=dict.fromkeys(invalid, why),
                      not_enrolled=dict.fromkeys(absent, why))  # fmt: skip


HISTORY = [
    line(0, absent=[9]),
    line(1, [0, 1], filtered=[2], excluded=[3]),
    line(2, [0, 2], filtered=[1], invalid=[2]),  # a second copy of what was accepted
    line(3, [0, 1], excluded=[4]),
    line(3, invalid=[0, 2]),  # late once, a norm that explodes once
    line(4, [0, 2, 4], filtered=[1]),  # an algorithm that takes its word back
]


def test_excluded_are_those_of_a_final_verdict_that_were_never_accepted_again():
    assert exclusions(HISTORY) == {3: Exclusion(step=1, reason="out")}


def test_invalid_updates_are_counted_apart_from_clients_that_never_took_part():
    why = "NaN in step 3"
    assert invalid_updates(HISTORY) == {0: InvalidUpdates(times=1, reason=why), 2: InvalidUpdates(times=2, reason=why)}
    assert not_enrolled(HISTORY) == {9: "NaN in step 0"}


def test_the_share_of_updates_that_were_not_used():
    assert filtered(HISTORY, {0}) == 1 / 5
    assert filtered(HISTORY, {1}) == 2 / 4
    assert filtered(HISTORY, {2}) == 2 / 4  # the second copy is no update of its own
    assert filtered(HISTORY, {3, 4}) == 2 / 3
    assert filtered(HISTORY, {9}) is None
    assert filtered([], {0}) is None


def state_of(**fields):
    return type("S", (), {"version": 1, "model": torch.zeros(2), "verdicts": {}, **fields})()


def test_lines_are_strict_json_also_when_numbers_are_not_finite(tmp_path):
    path = tmp_path / "deep" / "history.jsonl"
    with History(["note"], lambda p: Metrics(loss=math.nan, accuracy=0.5), path) as history:
        history(Progress(0, 0.0, state_of(note=frozenset({3, 1})), None, {}, {}))
        assert json.loads(path.read_text()) == {
            "schema": 2, "step": 0, "version": 1, "seconds": 0.0, "metrics": {"accuracy": 0.5}
        }, "written at once, and as it is read"  # fmt: skip
    assert history.lines == [StepRecord(step=0, version=1, seconds=0.0, metrics=Metrics(accuracy=0.5))]


def test_what_is_recorded_is_what_is_read_back():
    state = state_of(
        verdicts={2: Verdict(True, torch.tensor(0.5).item(), math.inf), 1: Verdict(False, math.nan)},
        figures={1: {2: torch.tensor([1.0, math.nan])}, 3: None},
        chosen={"a": {4, 3}},
    )
    updates = Updates((1, 2), (0, 1), (state.model, state.model), torch.zeros(2, 2), torch.zeros(2))
    history = History(["figures", "chosen"])
    history(Progress(0, 0.0, state_of(), None, {7: "reports -1"}, {}))
    history(Progress(1, 2.0, state, updates, {5: "NaN"}, {6: "silent"}, frozenset({1, 2, 5, 6})))
    assert history.lines[0].not_enrolled == {7: "reports -1"}
    last = history.lines[1]
    assert last.verdicts == {1: Verdict(False, 0.0), 2: Verdict(True, 0.5, None)}
    assert last.state == {"figures": {1: {2: [1.0, None]}, 3: None}, "chosen": {"a": [3, 4]}}
    assert (last.versions, last.invalid, last.lost) == ({1: 0, 2: 1}, {5: "NaN"}, {6: "silent"})


def test_plain():
    assert plain({1: {2, 1}, "a": (torch.tensor([1.5, math.inf]), None)}) == {"1": [1, 2], "a": [[1.5, None], None]}


def test_a_record_comes_back_as_it_was_and_pandas_reads_its_history(tmp_path):
    record = simulate(Run(algorithm=ByzantineCFL(), clients=4, until=Run().until.of(3)), folder=tmp_path, name="mine")
    assert Record.load(tmp_path) == record
    table = pandas.read_json(tmp_path / "history.jsonl", lines=True)
    assert table["step"].tolist() == [0, 1, 2, 3]
    assert pandas.json_normalize(table["metrics"])["accuracy"].between(0, 1).all()
    assert table["state"][1]["threshold"] == 0.02
    assert table["verdicts"][1]["0"]["accepted"] is True


def test_a_folder_without_a_finished_run(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"holds no finished run: run.json, summary.json, history.jsonl missing"
    ):
        Record.load(tmp_path)
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").touch()
    with pytest.raises(FileNotFoundError, match=f"such as {tmp_path / 'a'}[.]$"):
        Record.load(tmp_path)


def test_a_run_that_ends_at_a_time_has_its_last_state_measured():
    plan = Run(clients=4, until=Until(steps=None, seconds=3.5), evaluation=Evaluation(every=10))
    history = simulate(plan).history
    assert [step.metrics is not None for step in history] == [True, False, False, False, True]
    assert history[-1].step == history[-2].step == 3
    in_steps = simulate(Run(clients=4, until=Until(3), evaluation=Evaluation(every=10))).history
    assert in_steps[-1].accuracy == history[-1].accuracy
    assert len(in_steps) == 4


def test_versions_tell_the_ages_of_updates_that_come_one_by_one():
    history = simulate(Run(FedAsync(), clients=3, until=Until(9), evaluation=Evaluation(every=9))).history
    pairs = pairwise(history)
    ages = [before.version - version for before, here in pairs for version in here.versions.values()]
    assert len(ages) == 9
    assert ages[0] == 0
    assert min(ages) >= 0
    assert max(ages) > 0
    assert not any(here.versions for here in simulate(Run(clients=3, until=Until(2))).history)


def test_the_file_is_made_with_the_first_line(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text("of an older run")
    with History(path=path, prepare=path.unlink) as history:
        assert path.read_text() == "of an older run"
        history(Progress(0, 0.0, state_of(), None, {}, {}))
        assert len(path.read_text().splitlines()) == 1


# --- folders


BEGUN = '{"schema": 2, "step": 0, "version": 0, "seconds": 0.0}'


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    record = simulate(Run(clients=3, until=Until(2)), folder=folder)
    return folder, record


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "copy")


def test_a_record_is_saved_where_no_history_is_and_where_a_line_is_torn(finished, tmp_path):
    record = finished[1]
    record.save(tmp_path / "new")
    assert Record.load(tmp_path / "new") == record
    with (tmp_path / "new" / "history.jsonl").open("a") as file:
        file.write('{"step": 3, "ver')
    record.save(tmp_path / "new")
    assert Record.load(tmp_path / "new") == record


def test_a_folder_is_cleared_before_a_new_run_its_seal_and_its_summary_first(folder, monkeypatch):
    (folder / "report.html").write_text("old")
    removed = []
    unlink = type(folder).unlink
    monkeypatch.setattr(type(folder), "unlink", lambda p, **k: (removed.append(p.name), unlink(p, **k)))
    Record.begin(folder, {"seed": 7})
    assert removed[:2] == ["seal.json", "summary.json"]
    assert [f.name for f in folder.iterdir()] == ["run.json"]
    assert json.loads((folder / "run.json").read_text()) == {"seed": 7}
    with pytest.raises(FileNotFoundError, match=r"killed, or goes on. To repeat it: phalanx run --config .*run\.json"):
        Record.load(folder)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (
            "summary.json",
            "{}",
            r"is not a run's summary: name is missing",
        ),
        ("summary.json", "", r"is not a run's summary: it ends early"),
        ("summary.json", "[1]", "expected a mapping, got a list"),
        ("summary.json", b"\xff\xfe", r"is not a run's summary: it is no JSON: invalid character"),
        ("run.json", "nonsense", r"is not a run's configuration: it is no JSON"),
        ("run.json", "{}", r"run\.json is that of another one"),
        ("history.jsonl", "", r"is not the history of this run: it has 0 lines, and summary\.json says 3"),
        ("history.jsonl", BEGUN + '\n{"step', r"is not a run's history: line 2: it ends early"),
        ("history.jsonl", "3\n", r"line 1: expected a mapping, got an integer"),
        ("history.jsonl", '{"stage": 0}\n', r"line 1: stage is unknown here"),
        ("history.jsonl", BEGUN + "\n", r"it has 1 lines, and summary\.json says 3"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(folder, name, content, why):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=why) as error:
        Record.load(folder, unsealed=True)
    assert str(folder / ("summary.json" if content == "{}" else name)) in str(error.value)
    assert str(error.value).endswith("Delete the folder, or repeat the run with `phalanx run --again`.")


def test_a_summary_of_another_run_does_not_pass_for_that_of_this_one(finished, folder, tmp_path):
    simulate(Run(clients=3, until=Until(2), seed=1), folder=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "summary.json", folder)
    with pytest.raises(ValueError, match=r"summary\.json is not the summary of this run: run\.json"):
        Record.load(folder, unsealed=True)
