"""Whatever is wrong ends with exit status 2 and one sentence: no traceback, no internal name, no file, no wait.

The cases are made by `cli/wrong.py` from the options themselves.  Those that `make test` leaves out are slow.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from cli import wrong
from phalanx.cli.main import main

PATIENCE = 30  # seconds for one command, on a machine with much else to do
LINES, CHARACTERS = 4, 1500  # of a message, at most; `phalanx weights` lists ten bad rows
INTERNAL = ("Traceback", "object at 0x", "<class", "<unicode", "codec", "[Errno", "Error:", "typing.", "NoneType",
            "msgspec", "PosixPath", "Union subtypes", "_csv.", "\x1b")  # fmt: skip
SMALL = ("--clients", "2", "--model.hidden", "[]", "--until.steps", "1", "--training.epochs", "1")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path))


def stopped(*_):
    raise TimeoutError(f"took more than {PATIENCE} s")


def outcome(capsys, command, patience=PATIENCE):
    """Return exit status, output and messages of a command in this process; None as status if it raised an error."""
    before = signal.signal(signal.SIGALRM, stopped)
    signal.alarm(patience)
    try:
        status = main(list(command))
    except SystemExit as stop:
        status = stop.code
    except BaseException as error:
        status = None
        print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    out, err = capsys.readouterr()
    return status, out, err


def held(folder):
    return {
        str(path) for path in Path(folder).rglob("*") if path.suffix != ".lock"
    }  # whoever changes a roster makes one


def faults(command, result, allowed, before, lines=LINES):
    """Return what is wrong with how a wrong command ended."""
    status, out, err = result
    found = [] if status in allowed else [f"status {status}"]
    if status == 2:
        found += [f"left {path}" for path in sorted(held(".") - before)]
        found += [] if err.strip() else ["said nothing"]
    if err.count("\n") > lines or len(err) > CHARACTERS:
        found.append(f"{err.count(chr(10))} lines, {len(err)} characters")
    found += [f"says {word!r}" for word in INTERNAL if word in err or (word != "\x1b" and word in out)]
    return [f"{[word[:80] for word in command]}: {'; '.join(found)}\n{err[:400]}"] if found else []


def tried(capsys, cases, allowed=(2,)):
    """Return what is wrong with how commands ended, and how often each status came."""
    found, seen = [], Counter()
    for case in cases:
        before = held(".")
        result = outcome(capsys, case)
        seen[result[0]] += 1
        found += faults(case, result, allowed, before)
        for path in Path().iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found, seen


def spread(cases, count):
    """Return so many of the cases, evenly spread."""
    return [cases[k * len(cases) // count] for k in range(count)]


def typed():
    return [*wrong.of_runs("run", wrong.wrong), *wrong.of_runs("partition", wrong.wrong)]


def test_there_are_many_cases():
    cases = typed()
    assert len(cases) > 4000
    assert len(set(cases)) == len(cases)
    assert {"--algorithm.aggregate.f=1.5", "--clients=x", "--model.hidden=[[]]"} <= {case[-1] for case in cases}


@pytest.mark.slow
def test_values_of_the_wrong_kind(capsys):
    found, seen = tried(capsys, spread(typed(), 70))
    assert not found, "\n".join(found)
    assert seen == {2: 70}


@pytest.mark.slow
def test_every_tenth_value_of_the_wrong_kind(capsys):
    cases = [*[*wrong.of_runs("run", wrong.wrong)][::10], *spread([*wrong.of_runs("partition", wrong.wrong)], 70)]
    found, _ = tried(capsys, cases)
    assert not found, "\n".join(found)


def test_other_commands_and_options_that_there_are_not(capsys):
    found, seen = tried(capsys, [*wrong.of_parsers(), *wrong.of_names()])
    assert not found, "\n".join(found)
    assert seen[2] > 300


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("reproduce --seeds 10000000000", "--seeds must be at most 1,000"),
        ("reproduce --package ...", "... is no import path"),
        ("reproduce --package=", "An empty text is no import path"),
        ("doctor --ports 65536", "--ports must be from 1 to 65535, got 65536"),
        (f"doctor --ports {'9' * 30}", "--ports must be from 1 to 65535, got 9999"),
        ("flower up --clients 1000000000", "--clients must be at most 1,438, the number of examples"),
        ("flower certificates 10.0.0.700", "A host must be an address such as 10.0.0.7, or a name"),
        (f"flower certificates {'x' * 300}", "A host must be an address such as 10.0.0.7, or a name"),
        (f"flower request {'A' * 9999} key.pem ed25519:x", "There is no key file key.pem"),
        ("flower rotate 1", "Give REQUEST as well, as in `phalanx flower rotate CLIENT REQUEST`"),
        ("flower node --superlink a:1", "--node-config as well, as in `phalanx flower node --superlink ADDRESS --root"),
        ("check", "Name either a class, as in phalanx check my_file.py:MyRule, or a library"),
    ],
)
def test_what_other_commands_once_took_or_ended_in_a_traceback(capsys, command, why):
    result = outcome(capsys, command.split())
    assert (result[0], why in result[2]) == (2, True), result[2]
    assert not faults(command.split(), result, (2,), set())


def wrong_studies(capsys, texts):
    found = []
    for text in texts:
        Path("study.yaml").write_text(text)
        command = ("study", "study.yaml", "--estimate")
        found += [f"{text[:200]!r}: {f}" for f in faults(command, outcome(capsys, command), (2,), held("."))]
    return found


def test_wrong_studies(capsys):
    texts = [*wrong.of_studies()]
    assert len(texts) > 140
    found = wrong_studies(capsys, texts[::4])
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_all_wrong_studies(capsys):
    found = wrong_studies(capsys, wrong.of_studies())
    assert not found, "\n".join(found)


# --- values that no run can mean


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_extreme_values(capsys):
    """Each is refused, or does what it says: the run is done (0) or had to stop, with its reason in its record (1)."""
    every = [
        case for case in dict.fromkeys(wrong.of_runs("run", wrong.extreme))
        if "--data" not in case and not re.search(r"\.(steps|epochs|seconds|local_epochs)=\d{9}", case[-1])  # too long
    ]  # fmt: skip
    found, seen = tried(capsys, [(case[0], *SMALL, *case[1:]) for case in spread(every, 100)], (0, 1, 2))
    assert not found, "\n".join(found)
    assert seen[2] > 25
    assert seen[0] > 7


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--model.hidden [1000000000]", "75,000,000,010 parameters takes"),
        ("--attack Gaussian --byzantine 1.0", "an integer below the 2 clients, got 1.0. For one client, write 1."),
        ("--attack Gaussian --byzantine 1.5", "byzantine must be a share in [0, 1), or an integer below the 2 clients"),
        ("--training.lr 1e39", "it is above 3.4e+38, the largest number in single precision"),
        ("--seed 010", "seed must be an integer, got 010"),
        ("--seed 1:30", "seed must be an integer, got 1:30"),
        ("--seed 1000000000000000000", "seed must be an integer, got 1000000000000000000 (it has more than 18 digits)"),
        ("--algorithm null", "or the import path of your own Algorithm, got null"),
        ("--attack builtins.int --byzantine 1", "got builtins.int (it is no subclass of Attack)"),
    ],
)
def test_what_once_passed_or_ended_in_a_traceback(capsys, options, why):
    status, _, err = outcome(capsys, ("run", *SMALL, *options.split()))
    assert (status, why in err) == (2, True), err
    assert not held(".")


def test_an_empty_folder_is_not_this_one(capsys):
    status, _, err = outcome(capsys, ("run", *SMALL, "--folder", ""))
    assert (status, "folder must be a path, or null, got nothing" in err) == (2, True)
    assert not held(".")


# --- files

RUN = ("run", *SMALL)
FILES = {  # what reads a file: the file, the command, and the exit statuses that it may have with a wrong one
    "configuration": ("c.yaml", (*RUN, "--config", "c.yaml"), (0, 2)),
    "configuration of a partition": ("c.yaml", ("partition", "--clients", "2", "--config", "c.yaml"), (0, 2)),
    "options of training": ("c.yaml", (*RUN, "--training", "c.yaml"), (0, 2)),
    "times": ("t.csv", (*RUN, "--latency", "LatencyTrace", "--latency.file", "t.csv"), (2,)),
    "availability": ("t.csv", (*RUN, "--availability", "AvailabilityTrace", "--availability.file", "t.csv"), (2,)),
    "record: configuration": ("done/run.json", ("report", "done"), (2,)),
    "record: summary": ("done/summary.json", ("report", "done"), (2,)),
    "record: history": ("done/history.jsonl", ("report", "done"), (2,)),
    "summary of the same run": ("done/summary.json", (*RUN, "--folder", "done"), (0, 2)),
    "history of the same run": ("done/history.jsonl", (*RUN, "--folder", "done"), (0, 2)),
    "checkpoint": ("done/checkpoint", (*RUN, "--seed", "1", "--folder", "done"), (2,)),
    "sizes in CSV": ("w.csv", ("weights", "w.csv"), (0, 2)),
    "sizes in JSON": ("w.json", ("weights", "w.json", "--alpha", "0.1"), (0, 2)),
    "sizes": ("w", ("weights", "w", "--certify", "5", "--alpha", "0.1"), (0, 1, 2)),
    "roster": ("roster.yaml", ("flower", "roster"), (0, 2)),
    "roster to change": ("roster.yaml", ("flower", "revoke", "1"), (2,)),
    "models": ("done/model.json", ("evaluate", "done"), (2,)),
    "values of a model": ("done/model.safetensors", ("evaluate", "done"), (2,)),
    "seal": ("done/seal.json", ("report", "done"), (0, 2)),
    "study": ("s.yaml", ("study", "s.yaml", "--estimate"), (2,)),
    "record of a study": ("st/records/0.json", ("compare", "st"), (2,)),
    "pages of a paper": ("r/rffl/manifest.json", ("reproduce", "rffl", "all", "--no_training", "--folder", "r"), (2,)),
    "scores": ("lb/digits.jsonl", ("leaderboard", "--no_training", "--folder", "lb"), (2,)),
    "certificate": ("k/server.crt", ("doctor", "--folder", "k"), (0, 1)),
    "examples": ("k/x.npz", ("doctor", "--folder", "k"), (0, 1)),
}
SETS = {  # data sets, and a file of each
    "MNIST": ("mnist", ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                        "t10k-labels-idx1-ubyte"), ()),
    "CIFAR10": ("cifar-10-batches-bin", (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"), ()),
    "AGNews": ("ag_news", ("train.csv", "test.csv"), ("--model", "WordLSTM")),
    "MR": ("mr", ("rt-polarity.neg", "rt-polarity.pos"), ("--model", "KimCNN")),
    "SST": ("sst", ("stsa.fine.train", "stsa.fine.test"), ("--model", "KimCNN")),
    "Shakespeare": ("shakespeare", ("all_data.json",), ("--model", "CharLSTM")),
    "WikiText2": ("wikitext2", ("train.txt", "test.txt"), ("--model", "WordLSTM")),
}  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A folder with a run that is done."""
    folder = tmp_path_factory.mktemp("record") / "done"
    assert main([*RUN, "--folder", str(folder)]) == 0
    return folder


WAITS = ("configuration", "sizes in JSON")  # for who writes into a pipe that the user names: --config <(command)


def wrong_files(capsys, done, cases):
    """Return what is wrong with how commands ended that read a wrong file."""
    found = []
    for reader, kind in cases:
        path, command, allowed = FILES[reader]
        shutil.copytree(done, "done")
        good = Path(path).read_bytes() if Path(path).is_file() else b"client,seconds\n0,1"
        wrong.place(Path(path), kind, good)
        before = held(".")
        rows = 14 if command[0] == "weights" else LINES
        patience = 2 if kind == "a pipe" and reader in WAITS else PATIENCE
        ended = outcome(capsys, command, patience)
        found += [f"{reader}, {kind}: {f}" for f in faults(command, ended, allowed, before, rows)]
        for path in Path().iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found


def pairs():
    kinds, no_file = (*wrong.CONTENTS, *wrong.PLACES), ("nothing", "a folder", "a loop", "a link to nothing")
    return [(r, k) for r in FILES for k in kinds if r != "checkpoint" or k not in no_file]


def test_wrong_files(capsys, done):
    found = wrong_files(capsys, done, pairs()[::37])
    assert not found, "\n".join(found)


@pytest.mark.skipif(sys.platform != "linux", reason="not every system has all of them")
def test_what_has_no_end_or_nothing_to_read(capsys, done):
    """Each reader with one kind of it; `test_all_wrong_files` has all."""
    found = wrong_files(capsys, done, [(reader, wrong.SPECIAL[k % 4]) for k, reader in enumerate(FILES)])
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_all_wrong_files(capsys, done):
    assert len(pairs()) > 600
    found = wrong_files(capsys, done, pairs())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("command", [("report", "done"), ("export", "done")])
def test_a_file_takes_the_place_of_no_device_and_a_link_stays(capsys, done, command):
    shutil.copytree(done, "done")
    os.mkfifo("pipe")
    status, _, err = outcome(capsys, (*command, "--out", "pipe"))
    assert (status, "pipe is a device. Name a file." in err) == (2, True), err
    assert not Path("pipe").is_file()
    Path("link").symlink_to("there")
    assert outcome(capsys, (*command, "--out", "link"))[0] == 0
    assert Path("link").is_symlink()
    assert Path("there").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_wrong_files_of_data_sets(capsys, name):
    folder, files, model = SETS[name]
    kinds = [kind for kind in (*wrong.CONTENTS, *wrong.PLACES) if kind != "a long line"]  # it is a text
    for kind in kinds:
        for file in files:
            wrong.place(Path(folder, file), kind, b"")
        before = held(".")
        command = ("run", "--clients", "2", "--until.steps", "1", "--data", name, "--data.limit", "10", *model)
        found = faults(command, outcome(capsys, command), (0, 1, 2), before)
        assert not found, f"{kind}: {found[0]}"
        for path in Path().iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("reader", FILES)
def test_files_that_may_not_be_read(capsys, done, reader):
    path, command, allowed = FILES[reader]
    shutil.copytree(done, "done")
    wrong.place(Path(path), "JSON", b"")
    Path(path).chmod(0)
    found = faults(command, outcome(capsys, command), (*allowed, 2), held("."))
    assert not found, found[0]


# --- real processes


@pytest.mark.slow
def test_wrong_commands_as_processes(done, tmp_path):
    """The same in a process of its own: nothing of it is caught by what runs the tests."""
    cases = [*spread(typed(), 10), *spread([*wrong.of_parsers(), *wrong.of_names()], 15)]
    cases = [case for case in cases if not any("\0" in word or "\udcff" in word for word in case)]
    for case in cases:
        began = time.perf_counter()
        code = "import sys; from phalanx.cli.main import main; sys.exit(main())"
        ended = subprocess.run(
            [sys.executable, "-c", code, *case], capture_output=True, text=True, check=False, timeout=120
        )
        found = faults(case, (ended.returncode, ended.stdout, ended.stderr), (2,), set())
        assert not found, found[0]
        assert time.perf_counter() - began < 2 * PATIENCE
