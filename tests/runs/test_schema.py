"""The schema of a record: documented, written and read back, and that of schema 1."""

import dataclasses
import json
import re
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from phalanx.core import Verdict
from phalanx.reading import from_json
from phalanx.runs.record import Record, read_step
from phalanx.runs.schema import (
    BestAccuracy,
    ClientRecord,
    DataRecord,
    DetectionCounts,
    Exclusion,
    FilteredShares,
    FinalMetrics,
    InvalidUpdates,
    StepRecord,
    Summary,
    to_json,
)
from phalanx.training.evaluation import Metrics
from summaries import summary

PAGE = Path(__file__).parents[2] / "docs" / "record.md"


def parts(kind, found):
    """The types that a type of the schema consists of."""
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        if kind not in found:
            found.append(kind)
            for inner in get_type_hints(kind).values():
                parts(inner, found)
        return found
    for inner in get_args(kind):
        parts(inner, found)
    return found


TYPES = parts(Summary, parts(StepRecord, []))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_the_page_describes_every_field_and_no_other(kind):
    section = re.search(rf"^### {kind.__name__}$(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/record.md has no section {kind.__name__}"
    documented = re.findall(r"^\| `(\w+)` \| \S", section[1], re.MULTILINE)
    names = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else [f.name for f in dataclasses.fields(kind)]
    assert documented == list(names)


STEP = StepRecord(
    step=3,
    version=2,
    seconds=4.5,
    metrics=Metrics(accuracy=0.5, received_accuracy={0: 0.25, 4: None}, group_loss={1: 2.0}),
    state={"reputation": {4: 0.125}, "threshold": None, "norms": {0: {"mean": 1.0}}},
    verdicts={4: Verdict(False, 0.0, -0.5, "far \u2028 away", final=True)},
    versions={4: 1},
    invalid={0: "NaN"},
    lost={1: "silent"},
)


def test_a_step_comes_back_with_ids_that_are_integers():
    text = to_json(STEP)
    assert from_json(text, StepRecord) == STEP
    assert len(text.splitlines()) == 1
    assert json.loads(text)["schema"] == 2
    assert "not_enrolled" not in json.loads(text), "what has its default is left out"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 3}, "schema: no known value: 3"),
        ({"refused": {}}, "refused is unknown here"),
        ({"verdicts": {"4": {"accepted": 1}}}, r"verdicts\[\.\.\.\]\.accepted: expected true or false, got an integer"),
        ({"lost": {"four": "silent"}}, "a key of lost: expected an integer, got text"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(change, why):
    with pytest.raises(ValueError, match=why):
        read_step(json.dumps(json.loads(to_json(STEP)) | change).encode())


# --- schema 1

OLD_LINES = [
    {"step": 0, "version": 0, "seconds": 0.0, "accuracy": 0.1, "loss": None, "refused": {"2": "declares 0 examples"}},
    {
        "step": 1, "version": 1, "seconds": 1.0, "accuracy": 0.5, "received_accuracy": {"0": 0.5},
        "state": {"reputation": {"1": 0.01}},
        "verdicts": {"1": {"accepted": False, "weight": 0.0, "score": 0.01, "reason": "low", "final": True,
                           "waits": False}},
    },
    {"step": 1, "version": 1, "seconds": 2.0, "refused": {"0": "NaN"}, "lost": {"1": "silent"}},
]  # fmt: skip
OLD_SUMMARY = {
    "name": "old", "lines": 3, "config_digest": "", "status": "failed", "error": "nobody is left", "identity": "9f",
    "source": None, "wall_seconds": 2, "dimension": 34, "steps": 1, "seconds": 2.0,
    "final": {"accuracy": 0.5, "attack_success": 0.25}, "best": {"accuracy": 0.5, "step": 1},
    "clients": {
        "0": {"declared": 5, "size": 5, "classes": [2, 3], "byzantine": False, "group": 0, "removed": None,
              "refused": {"times": 1, "reason": "NaN"}, "not_enrolled": None},
        "1": {"name": "Basel", "declared": 2.5, "asked": 3, "removed": {"step": 1, "reason": "low"}, "refused": None,
              "not_enrolled": None},
    },
    "detection": {}, "rejected": {"byzantine": 1.0, "honest": None}, "missing": {"7": "Graz"},
    "data": {"name": "Digits", "train": 5, "test": 2, "fingerprint": {"train": "0b5f"}},
    "environment": {"phalanx": "0.0.9", "torch": "2.6", "threads": 2, "engine": "flwr 1.41.0"},
}  # fmt: skip


def old_folder(folder, **changes):
    from phalanx.runs.canonical import digest

    (folder / "run.json").write_text("{}")
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in OLD_LINES))
    (folder / "summary.json").write_text(json.dumps(OLD_SUMMARY | {"config_digest": digest({})} | changes))
    return folder


def test_a_folder_of_schema_1_is_read(tmp_path):
    record = Record.load(old_folder(tmp_path))
    begun, step, wait = record.history
    assert begun.metrics == Metrics(accuracy=0.1)
    assert begun.not_enrolled == {2: "declares 0 examples"}
    assert step.metrics == Metrics(accuracy=0.5, received_accuracy={0: 0.5})
    assert step.verdicts == {1: Verdict(False, 0.0, 0.01, "low", final=True)}
    assert step.state == {"reputation": {1: 0.01}}
    assert (wait.metrics, wait.invalid, wait.lost) == (None, {0: "NaN"}, {1: "silent"})
    found = record.summary
    assert found.final == FinalMetrics(accuracy=0.5, attack_success=0.25)
    assert found.best == BestAccuracy(accuracy=0.5, step=1)
    assert found.clients == {
        0: ClientRecord(reported=5, size=5, classes=(2, 3), byzantine=False, group=0,
                        invalid=InvalidUpdates(times=1, reason="NaN")),
        1: ClientRecord(name="Basel", tasks=3, excluded=Exclusion(step=1, reason="low")),
    }  # fmt: skip
    assert found.detection is None
    assert found.filtered == FilteredShares(byzantine=1.0)
    assert found.data == DataRecord(name="Digits", train=5, test=2, fingerprint={"train": "0b5f"})
    assert (found.provenance.phalanx, found.provenance.flower, found.provenance.numerics) == ("0.0.9", "1.41.0", 0)
    assert (found.missing, found.status, found.error) == ({7: "Graz"}, "failed", "nobody is left")


def test_a_folder_of_schema_1_that_is_saved_is_of_schema_2(tmp_path):
    record = Record.load(old_folder(tmp_path))
    record.save(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["schema"] == 2
    assert Record.load(tmp_path) == record


def test_what_is_of_neither_schema_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run's summary: .*Delete the folder, or repeat the run"):
        Record.load(old_folder(tmp_path, environment=3))


def test_counts_are_those_of_the_summary():
    found = summary(detection=DetectionCounts(true_positives=1, false_positives=0, false_negatives=2))
    assert from_json(to_json(found), Summary) == found
