"""Files with one hostile value in each field of each class of a run, by generation over the registry of classes."""

import functools
import inspect
import json
import os
import shutil
import typing
from collections import defaultdict, deque
from pathlib import Path

import pytest

from phalanx import Run
from phalanx.cli.configuration import parameters
from phalanx.fields import members
from phalanx.runs.canonical import configurable, digest, import_path
from phalanx.runs.seal import SEAL
from reliability.test_trust import FORGED, MODULE, commands, done, watched
from runs.configurable_classes import classes, parts

pytestmark = pytest.mark.slow
__all__ = ["done"]  # a fixture
OUTSIDE = "/etc/hostname"
BATCH = 20  # folders that are compared at once
CODE = {"TorchModule.path", "LocalOptimizer.optimizer"}  # whose texts are names of code, with those of `metrics`
FILES = {  # whose texts are names of files, or of a data set on the hub
    *(f"{kind}.{name}" for kind in ("CSV", "Parquet", "ImageFolder", "ImageTable")
      for name in ("path", "test", "schema")),
    "AvailabilityTrace.file", "LatencyTrace.file",
}  # fmt: skip
HUB = {"HuggingFace.path"}
NEEDED = {
    "algorithm": "FedAvg", "source": "Digits", "model": "MLP", "attack": "SignFlip", "path": "sizes.csv", "label": "y",
    "file": "sizes.csv", "layers": ["0"], "trained": ["0.*"], "shared": ["0.*"], "first": "SignFlip",
    "second": "SignFlip", "before": "Clip", "rule": "Mean",
}  # fmt: skip


def places():
    """The way to each class of the library that a run can hold: the fields from `Run` on."""
    kinds = [kind for kind in classes() if kind.__module__.startswith("phalanx.") and configurable(kind)]
    found, waiting = {Run: ()}, deque([Run])
    while waiting:
        owner = waiting.popleft()
        for name, parameter in parameters(owner).items():
            allowed = tuple(part for part in parts(parameter.kind) if part is not object)
            for kind in kinds:
                if kind not in found and issubclass(kind, allowed):
                    found[kind] = (*found[owner], (owner, name))
                    waiting.append(kind)
    assert {*kinds} == {*found}
    return found


def is_list(kind):
    return any(typing.get_origin(member) in (tuple, list) for member in members(kind))


def within(kind, name, value, way):
    """A configuration of a run in which a field of a class has a value."""
    needed = {
        field: NEEDED[field] for field, parameter in parameters(kind).items()
        if parameter.default is inspect.Parameter.empty and field in NEEDED
    }  # fmt: skip
    own = {**needed, name: [value] if is_list(parameters(kind)[name].kind) else value}
    if kind is Run:
        return own
    *before, (owner, field) = way
    return within(owner, field, {"class_path": import_path(kind), "init_args": own}, before)


@functools.cache
def forms():
    """The name of each place and what it holds there, and a configuration with a hostile value at it."""
    return [*_forms()]


def _forms():
    for kind, way in places().items():
        for name, parameter in parameters(kind).items():
            held, place = {*parts(parameter.kind)}, f"{kind.__name__}.{name}"
            values = {}
            if any(part.__module__.startswith("phalanx.") for part in held):
                values = {"class": FORGED, "file": OUTSIDE}
            if held & {str, Path}:
                values |= {"code": "hostile.Boom", "file": OUTSIDE}
            if typing.Any in typing.get_args(parameter.kind):
                values["any"] = {"x": FORGED}
            for what, value in values.items():
                yield place, what, within(kind, name, value, way)


def test_the_generator_reaches_every_class_and_field():
    found = forms()
    assert sum(what == "class" for _, what, _ in found) > 110
    assert {place for place, what, _ in found if what == "code"} >= CODE | FILES | HUB
    assert len(found) > 300


@pytest.fixture
def received(tmp_path, monkeypatch):
    """The current folder, and an installed module, with the same hostile code."""
    (tmp_path / "installed").mkdir()
    for folder in (tmp_path, tmp_path / "installed"):
        (folder / "hostile.py").write_text(MODULE.format(marker=tmp_path / "marker"))
    (tmp_path / "sizes.csv").write_text("client,size,y\n0,5,1\n1,7,0\n")
    known = filter(None, [os.environ.get("PYTHONPATH"), str(tmp_path / "installed")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(known))
    return tmp_path


def of_own(where):
    """Commands on files of one's own with a hostile value at each place, by command, place and what it holds."""
    few = {"clients": 3, "until": {"steps": 1}}
    for number, (place, what, config) in enumerate(forms()):
        if place.startswith("HuggingFace.") and what != "class":
            continue  # a file of one's own has the hub asked
        file, study = where / f"{number}.json", where / f"study{number}.json"
        file.write_text(json.dumps(few | config))
        ((axis, value),) = config.items()
        study.write_text(json.dumps({"base": few | config, "grid": {"seed_of_data": {"a": {axis: value}}}, "seeds": 1}))
        yield f"run {place} {what}", ["run", "--config", str(file), "--folder", str(where / f"run{number}")]
        yield f"partition {place} {what}", ["partition", "--config", str(file)]
        if what == "class":  # a study of other texts begins, with processes of its own
            yield f"study {place} {what}", ["study", str(study), "--folder", str(where / f"study{number}")]
        for command, field in (("evaluate", "data"), ("replay", "algorithm")):
            if axis == field:
                (where / f"{command}{number}.json").write_text(json.dumps(config))
                words = [command, str(where / "run"), "--config", str(where / f"{command}{number}.json")]
                yield f"{command} {place} {what}", words


def test_files_of_ones_own_say_what_they_import_before(done, received):
    shutil.copytree(done, received / "run")
    found = watched(received, dict(of_own(received)))
    wrong, imported = {}, set()
    holders = {place for place, what, _ in forms() if what == "class"}  # a class can be a file of its options
    for name, report in found.items():
        _, place, what = name.split()
        may = [["open", OUTSIDE]] if what == "file" and place in FILES | holders else []
        left = [event for event in report["noted"] if event not in may]
        is_code = what == "class" or (what == "code" and (place in CODE or place.endswith(".metrics")))
        if is_code and ["import", "hostile", True] in left:
            left.remove(["import", "hostile", True])
            imported.add(place)
        if left or report["status"] not in (0, 1, 2):
            wrong[name] = left, report["status"], report["err"][-200:]
    assert wrong == {}, json.dumps(wrong, indent=1)
    assert imported >= CODE, "the test would see what must not come before it is said"


def test_received_records_import_and_open_nothing(done, received):
    jobs, known, seen, batches = {}, dict(commands(received)), set(), defaultdict(list)
    for number, (place, what, config) in enumerate(forms()):
        folder = shutil.copytree(done, received / f"record{number}")
        (folder / SEAL).unlink()
        forged = json.loads((folder / "run.json").read_text()) | config
        summary = json.loads((folder / "summary.json").read_text()) | {"config_digest": digest(forged)}
        index = json.loads((folder / "model.json").read_text())
        if isinstance(config.get("model"), dict):
            index["architecture"] = config["model"]
        for name, content in {"run.json": forged, "summary.json": summary, "model.json": index}.items():
            (folder / name).write_text(json.dumps(content))
        (axis,) = config
        shown = set() if axis in seen else {"report"}  # which shows each field as text
        seen.add(axis)
        batches[number // BATCH].append(str(folder))
        for command in {"evaluate", *({"export"} if axis == "model" else ()), *shown}:
            words = [str(folder) if word == str(received / "run") else word for word in known[command]]
            jobs[f"{command} {place} {what}"] = words
    jobs |= {f"compare {folders[0]}": ["compare", *folders] for folders in batches.values()}  # most of it are figures
    found = watched(received, jobs)
    assert {found[name]["status"] for name in found if name.startswith("compare ")} == {0}, "each folder was read"
    wrong = {
        name: (report["noted"], report["status"])
        for name, report in found.items()
        if report["noted"] or report["status"] not in (0, 1, 2)
    }
    assert wrong == {}, json.dumps(wrong, indent=1)
    assert not (received / "marker").exists()
