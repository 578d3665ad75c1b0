import json
import math

import pandas
import pytest
import torch

from phalanx.algorithms import ByzantineCFL
from phalanx.core import Progress, Until, Verdict
from phalanx.evaluation import Evaluation
from phalanx.history import History, Record, plain, removals
from phalanx.runs import Run, simulate


def line(step, accepted=(), rejected=(), refused=()):
    verdicts = {str(i): Verdict(True, 0.5)._asdict() for i in accepted}
    verdicts |= {str(i): Verdict(False, 0.0, None, "far away")._asdict() for i in rejected}
    return {"step": step, "verdicts": verdicts, "refused": {str(i): "NaN" for i in refused}}


def test_removed_are_those_whose_last_word_was_no_since_when_it_was():
    history = [line(1, [0, 1], [2]), line(2, [0, 2], [1]), line(3, [0], [1]), line(4, [0], refused=[2])]
    found = {i: (r.step, r.reason) for i, r in removals(history).items()}
    assert found == {1: (2, "far away"), 2: (4, "refused: NaN")}


def test_lines_are_strict_json_also_when_numbers_are_not_finite(tmp_path):
    path = tmp_path / "deep" / "history.jsonl"
    state = type("S", (), {"version": 1, "verdicts": {}, "note": frozenset({3, 1})})()
    with History(["note"], lambda p: {"loss": math.nan, "accuracy": 0.5}, path) as history:
        history(Progress(0, 0.0, state, None, {}, {}))
        assert json.loads(path.read_text()) == history.lines[0], "written at once"
    assert history.lines == [{"step": 0, "version": 1, "seconds": 0.0, "loss": None, "accuracy": 0.5}]


def test_plain():
    assert plain({1: {2, 1}, "a": (torch.tensor([1.5, math.inf]), None)}) == {"1": [1, 2], "a": [[1.5, None], None]}


def test_a_record_comes_back_as_it_was_and_pandas_reads_its_history(tmp_path):
    record = simulate(Run(algorithm=ByzantineCFL(), clients=4, until=Run().until.of(3)), folder=tmp_path, name="mine")
    assert Record.load(tmp_path) == record
    table = pandas.read_json(tmp_path / "history.jsonl", lines=True)
    assert table["step"].tolist() == [0, 1, 2, 3]
    assert table["accuracy"].between(0, 1).all()
    assert table["state"][1]["threshold"] == 0.02
    assert table["verdicts"][1]["0"]["accepted"] is True


def test_a_folder_without_a_finished_run(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"holds no finished run: run.json, summary.json, history.jsonl missing"
    ):
        Record.load(tmp_path)


def test_a_run_that_ends_at_a_time_has_its_last_state_measured():
    plan = Run(clients=4, until=Until(steps=None, seconds=3.5), evaluation=Evaluation(every=10))
    history = simulate(plan).history
    assert ["accuracy" in line for line in history] == [True, False, False, False, True]
    assert history[-1]["step"] == history[-2]["step"] == 3
    in_steps = simulate(Run(clients=4, until=Until(3), evaluation=Evaluation(every=10))).history
    assert in_steps[-1]["accuracy"] == history[-1]["accuracy"]
    assert len(in_steps) == 4
