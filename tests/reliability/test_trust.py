"""Records and files whose every class is hostile: reading them imports, calls, opens and connects to nothing."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import Run, Until, simulate
from phalanx.cli.main import COMMANDS, GROUPS, main
from phalanx.data import CSV, Digits, HeldOut, HuggingFace, ImageFolder, ImageTable
from phalanx.models import MLP
from phalanx.runs.canonical import digest, import_path
from phalanx.runs.models import SavedModels
from phalanx.runs.new_rows import elsewhere, own_files
from phalanx.runs.record import Record
from phalanx.runs.seal import SEAL
from phalanx.trust import UntrustedError, announcing, named, reading
from runs.configurable_classes import classes

MODULE = """from pathlib import Path
Path("{marker}").touch()
def __getattr__(name):
    Path("{marker}").touch()
    raise AttributeError(name)
"""
SHADOWS = ("onnx", "onnxscript", "torchmetrics", "ray", "mlflow", "wandb", "hostile")  # modules in the folder
FORGED = {"class_path": "hostile.Boom", "init_args": {"command": "touch marker"}}
CALL = {
    "class_path": "phalanx.models.TorchModule",
    "init_args": {"path": "os.system", "arguments": {"command": "touch marker"}},
}


def hostile(value):
    """A configuration with a hostile class in the place of each of its classes."""
    if isinstance(value, dict):
        return FORGED if "class_path" in value else {key: hostile(inner) for key, inner in value.items()}
    return [hostile(inner) for inner in value] if isinstance(value, list) else value


def every_class(config, index):
    return hostile(config), index | {"architecture": FORGED}


def a_call(config, index):
    return config | {"model": CALL}, index | {"architecture": CALL}


def names_in_fields(config, index):
    """Names of code in fields of Phalanx's own classes: of an optimizer, of metrics, and of a file of options."""
    optimizer = {"class_path": "phalanx.training.LocalOptimizer", "init_args": {"optimizer": "hostile.Adam"}}
    task = {"class_path": "phalanx.training.Classification", "init_args": {"metrics": ["hostile.Score", "F1Score"]}}
    return config | {"training": optimizer, "task": task}, index | {"architecture": CALL}


def a_metric(config, index):
    task = {"class_path": "phalanx.training.Classification", "init_args": {"metrics": ["hostile.Score"]}}
    return config | {"task": task}, index


def a_file_of_options(config, index):
    return config | {"training": "/etc/hostname"}, index


def files_elsewhere(config, index):
    """Traces, which are read for the identity of a run of one's own."""
    of = {"class_path": "phalanx.simulation.AvailabilityTrace", "init_args": {"file": "/etc/hostname"}}
    other = {"class_path": "phalanx.simulation.LatencyTrace", "init_args": {"file": "/etc/hostname"}}
    return config | {"availability": of, "latency": other}, index


FORGERIES = (every_class, a_call, names_in_fields, a_metric, a_file_of_options, files_elsewhere)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust") / "run"
    simulate(Run(clients=3, model=MLP(()), until=Until(steps=1)), folder=folder, models=SavedModels(best=True))
    return folder


def forged(done, folder, forgery):
    """A copy of a run's folder whose files name hostile code, and fit together."""
    shutil.copytree(done, folder)
    (folder / SEAL).unlink()
    config, index = (json.loads((folder / name).read_text()) for name in ("run.json", "model.json"))
    config, index = forgery(config, index)
    summary = json.loads((folder / "summary.json").read_text()) | {"config_digest": digest(config)}
    for name, content in {
        "run.json": config,
        "model.json": index,
        "best/model.json": index,
        "summary.json": summary,
    }.items():
        (folder / name).write_text(json.dumps(content))
    return folder


TRAIN = {
    "demo": "",
    "flower up": "",
    "reproduce": "",
    "leaderboard": "--no_training --folder records",
}  # what reads nothing by itself


def commands(where):
    """The arguments of every command, by name, on what was received in a folder: whatever it needs, and --config."""
    places = {
        "runs": where / "run", "folder": where / "run", "out": where / "model.out", "config": where / "config.yaml",
        "file": where / "study.yaml", "sizes": where / "sizes.csv", "name": "Site", "client": 0, "hosts": "localhost",
        "key": "ed25519:" + "A" * 43 + "=", "data": where / "sizes.csv", "subject": "Median",
        "files": where / "sizes.csv", "target": "size", "schema": where / "schema.json", "table": where / "sizes.csv",
        "statistics": where / "site.json", "superlink": "127.0.0.1:9",
        "runtime_api_address": "127.0.0.1:9", "superexec_auth_secret_file": where / "none",
        "consortium": where / "none.yaml", "root_certificates": where / "none.crt",
        "auth_supernode_private_key": where / "none", "node_config": "key='none.pem'",
        "coordinator": "ed25519:" + "A" * 43 + "=", "request": where / "request.json",
    }  # fmt: skip
    for group, before in ((COMMANDS, []), *((of, [name]) for name, (_, of) in GROUPS.items())):
        for name, command in group.items():
            words, parser = [*before, name], command.parser()
            parser = parser.form() if hasattr(parser, "form") else parser
            positional = {action.dest for action in parser._actions if not action.option_strings}
            for action in parser._actions:
                own = action.dest == "config" and "folder" not in positional
                if action.required or own or (action.dest in positional and action.dest in places):
                    words += [*action.option_strings[:1], str(places[action.dest])]
            yield " ".join([*before, name]), words


OWN = ("run", "partition", "study")  # which read a file of one's own
READ = {"report": (), "compare": (), "evaluate": ("--best true", "--data Digits"), "export": ("--format onnx",)}


def watched(where, named_commands):
    """What each command did, in a process of its own in that folder."""
    (where / "jobs.json").write_text(json.dumps({"allowed": [str(where)], "commands": named_commands}))
    script, own = Path(__file__).with_name("watched.py"), {"PHALANX_DATA": str(where), "TMPDIR": str(where)}
    command, how = [sys.executable, script, "jobs.json"], {"capture_output": True, "text": True, "timeout": 900}
    ended = subprocess.run(command, cwd=where, env=os.environ | own, check=False, **how)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def received(tmp_path):
    """The current folder, with modules that must not take the place of packages."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(MODULE.format(marker=tmp_path / "marker"))
    return tmp_path


@pytest.mark.slow
def test_forged_records_run_nothing(done, received):
    jobs = {}
    for forgery in FORGERIES:
        where = received / forgery.__name__
        forged(done, where / "run", forgery)
        known = dict(commands(where))
        assert {*known} >= {*OWN, *READ, *TRAIN}
        (where / "sizes.csv").write_text("client,size\n0,5\n1,7\n")
        read = {name: words for name, words in known.items() if name not in {*OWN, *TRAIN}}
        more = [(name, options) for name, further in READ.items() for options in further]
        more += TRAIN.items() if forgery is FORGERIES[0] else ()  # ten seconds, for what names no class
        read |= {f"{name} {options}": [*known[name], *options.split()] for name, options in more if options}
        jobs |= {f"{forgery.__name__}: {name}": words for name, words in read.items()}
    found = watched(received, jobs)
    noted = {
        name: [event for event in report["noted"] if not name.endswith("doctor") or event[0] in ("import", "open")]
        for name, report in found.items()  # the doctor looks at this machine
    }
    assert {name: events for name, events in noted.items() if events} == {}, json.dumps(noted)
    assert not (received / "marker").exists()
    for forgery in FORGERIES:
        status = {name: found[f"{forgery.__name__}: {name}"]["status"] for name in READ}
        evaluated = 0 if forgery is files_elsewhere else 2  # which names no code
        assert status == {"report": 0, "compare": 0, "evaluate": evaluated, "export": 0}, found


@pytest.mark.slow
def test_trust_says_what_it_imports_before(done, received):
    jobs = {}
    for forgery in FORGERIES[:3]:
        forged(done, received / forgery.__name__ / "run", forgery)
        jobs[forgery.__name__] = [*dict(commands(received / forgery.__name__))["evaluate"], "--trust"]
    found = watched(received, jobs)
    assert {report["status"] for report in found.values()} == {2}
    assert "os.system must be a subclass of torch.nn.Module" in found["a_call"]["err"]
    seen = {name: report["noted"] for name, report in found.items()}
    assert seen == {"every_class": [["import", "hostile", True]], "a_call": [], "names_in_fields": seen["every_class"]}
    assert (received / "marker").exists(), "the test would see what the one above must not do"


@pytest.mark.slow
def test_files_of_ones_own_say_what_they_import_before(received):
    config, call = {"algorithm": FORGED, "clients": 3}, {"model": CALL, "clients": 3}
    (received / "config.yaml").write_text(json.dumps(config))
    (received / "call.yaml").write_text(json.dumps(call))
    (received / "study.yaml").write_text(json.dumps({"base": config, "grid": {"seed": [0]}}))
    known = dict(commands(received))
    found = watched(received, {name: known[name] for name in OWN} | {"call": ["run", "--config", "call.yaml"]})
    assert {name: found[name]["noted"] for name in OWN} == {name: [["import", "hostile", True]] for name in OWN}
    assert (found["call"]["status"], found["call"]["noted"]) == (2, [])
    assert "os.system must be a subclass of torch.nn.Module" in found["call"]["err"]


def test_what_a_record_may_have_read_lies_in_the_current_or_the_data_folder(tmp_path, monkeypatch):
    here, data = tmp_path / "here", tmp_path / "data"
    for folder in (here, data, here / "saved"):
        folder.mkdir()
    (here / "t.csv").write_text("y\n1\n")
    (here / "link.csv").symlink_to("/etc/hostname")
    (here / "saved" / "dataset_dict.json").write_text("{}")
    monkeypatch.chdir(here)
    near = (CSV("t.csv", "y"), CSV("t.csv", "y", test="none.csv"), CSV(str(here / "t.csv"), "y"), ImageFolder("saved"),
            CSV(str(data / "t.csv"), "y"), HuggingFace("saved"), HeldOut(CSV("t.csv", "y")), Digits())  # fmt: skip
    assert [elsewhere(source, data) for source in near] == [""] * len(near)
    far = ("/etc/hostname", "../data/t.csv", "link.csv", "*.csv", str(tmp_path / "other.csv"), "saved/../../x")
    sources = [CSV(path, "y") for path in far] + [CSV("t.csv", "y", test="/etc/hostname"), ImageTable("../t.csv")]
    sources += [HeldOut(CSV("/etc/hostname", "y")), HuggingFace("/etc"), HuggingFace("somebody/data")]
    assert all(elsewhere(source, data) for source in sources)
    assert elsewhere(HuggingFace("somebody/data"), data) == "the data set somebody/data of the Hugging Face hub"


def test_nobody_looks_for_a_file_on_another_machine_or_for_all_files_that_a_record_names(done, tmp_path, monkeypatch):
    """Windows would ask that machine, and say who is here; a pattern may match millions."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("t.csv").touch()
    far = ("//machine/share/t.csv", "\\\\machine/../../../share/t.csv", "../*.csv", "/*/*/*/*")
    names = [CSV(path, "y").path for path in ("t.csv", *far)]
    config = {"data": {"class_path": "CSV", "init_args": {"test": names}}}
    record = replace(Record.load(done), config=config)
    looked, here = set(), Path.cwd().resolve()
    for name in ("stat", "lstat", "scandir", "listdir"):
        made = getattr(os, name)

        def noted(path, *rest, made=made, **how):
            looked.add(str(here / path))
            return made(path, *rest, **how)

        monkeypatch.setattr(os, name, noted)
    found = [*own_files(record, tmp_path / "data")]
    monkeypatch.undo()
    assert found == [here / "t.csv", *(Path(os.path.normpath(here / path)) for path in far)]
    assert {path for path in looked if not (path.startswith(str(here)) or str(here).startswith(path))} == set()
    assert str(here / "t.csv") in looked


def test_a_file_that_is_checked_is_said_before_it_is_imported(received):
    found = watched(received, {"check": ["check", "hostile.py:Boom"], "papers": ["reproduce", "--package", "hostile"]})
    assert [report["noted"] for report in found.values()] == [[["import", "hostile", True]]] * 2


def test_public_classes_are_all_that_reading_needs():
    kinds = [kind for kind in classes() if kind.__module__.startswith("phalanx.")]
    assert len(kinds) > 150
    with reading():
        assert [kind for kind in kinds if named(import_path(kind)) is not kind] == []


@pytest.mark.parametrize(
    "path",
    ["os.system", "phalanx.__main__.main", "phalanx.models.module.inspect", "phalanx.cli.main.main", "phalanx.simulate",
     "phalanx.data.published_files.os", "phalanx..Run",
     "phalanx.models.", "papers.catalyst.LabelGroups", "phalanx_extra.Run", "builtins.eval"],
)  # fmt: skip
def test_reading_imports_nothing_else(path, monkeypatch):
    monkeypatch.delitem(sys.modules, "phalanx.__main__", raising=False)  # an earlier test may have imported it
    loaded = {*sys.modules}
    with reading(), pytest.raises(UntrustedError, match="no public class of Phalanx"):
        named(path)
    new = {*sys.modules} - loaded
    assert {name for name in new if not name.startswith("phalanx") or name == "phalanx.__main__"} == set()
    with reading(), reading(trust=True), pytest.raises(UntrustedError):  # nothing within is trusted more
        named(path)


def test_a_record_is_read_without_trust(done, tmp_path):
    folder = forged(done, tmp_path / "run", every_class)
    with pytest.raises(UntrustedError, match=r"hostile\.Boom.*trust=True"):
        Record.load(folder).model()
    with pytest.warns(UserWarning, match="The module hostile is imported"), pytest.raises(ValueError, match="hostile"):
        Record.load(folder, trust=True).model()
    record = Record.load(done)
    assert record.model() is not None
    assert record.model(best=True) is not None


def test_what_is_imported_is_said_once():
    said = []
    with announcing(said.append):
        assert [named("json.JSONDecoder") for _ in range(2)] == [json.JSONDecoder] * 2
    assert said == ["The module json is imported, which runs its code."]


@pytest.mark.parametrize("sign", ["\n", "\r", "\x0b", "\x1b[2J", "\x85", "\u2028", "\u202e", "\x1b]0;x\x07"])
@pytest.mark.parametrize("command", ["verify", "doctor --folder"])
def test_the_name_of_a_file_forges_no_line(sign, command, done, tmp_path, capsys):
    shutil.copytree(done, tmp_path / "run")
    (tmp_path / "run" / f"x{sign}Forged: line. {sign}.npz").touch()
    assert main([*command.split(), str(tmp_path / "run")]) in (0, 1)
    said = capsys.readouterr().out
    assert not [line for line in said.splitlines() if line.startswith("Forged: line. ")]
    assert "Forged: line. \\" in said, "it is shown"
    assert sign == "\n" or sign not in said
