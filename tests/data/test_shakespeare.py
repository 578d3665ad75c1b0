"""Shakespeare: what becomes of a speech, by hand; the files that may hold them; the true text."""

import gzip
import json
import os
import re
import time
from pathlib import Path

import pytest
import torch

from commandline import chosen
from phalanx.cli import main as cli
from phalanx.data import NO_LABEL, Natural, Shakespeare, Source
from phalanx.data.shakespeare import CHARACTERS, CLASSES
from phalanx.rng import numpy_generator

N = NO_LABEL
A, BEGIN, END, OTHER = 61, 88, 89, 87  # "a" is 61, "b" 62 ...

ROLES = {
    "PLAY_FIRST": ["abc", "abcd", "abcde"],  # the last fifth, but at least one, is for tests
    "PLAY_DUMB": ["a"],
    "PLAY_SECOND": ["~", "   ", "a  b", "c"],
}


def write_leaf(folder, roles=ROLES):
    """LEAF's all_data.json; a speech is a line."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {user: {"raw": "\n".join(speeches)} for user, speeches in roles.items()}
    (folder / "all_data.json").write_text(json.dumps({"users": list(roles), "user_data": data}))


def write_jsonl(folder, roles=ROLES):
    """One object for each role; a speech is a list of lines, which `ROLES` breaks at double spaces."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"character": c, "speeches": [s.split("  ") for s in texts]}) for c, texts in roles.items()]
    with gzip.open(folder / "roles.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def zipped(content):
    return gzip.compress(content, mtime=0)


def fingerprints(parts):
    return [part.fingerprint() for part in parts]


# --- by hand


def test_characters_are_86_in_the_order_of_ascii():
    assert (len(CHARACTERS), CLASSES) == (86, 90)
    assert "".join(sorted(set(CHARACTERS))) == CHARACTERS
    assert [CHARACTERS.index(c) + 1 for c in "\n z"] == [1, 3, 86]


@pytest.mark.parametrize("write", [write_leaf, write_jsonl])
def test_two_roles_by_hand(tmp_path, write):
    write(tmp_path / "shakespeare")
    train, test = Shakespeare(roles=None, sequence=4).load(tmp_path)
    assert train.x.tolist() == [
        [BEGIN, A, A + 1, A + 2],  # abc: five signs with begin and end, one piece
        [BEGIN, A, A + 1, A + 2],  # abcd: the second piece would be the end alone, without a label
        [BEGIN, OTHER, END, 0],  # ~
        [BEGIN, A, 3, A + 1],  # a  b: white space is one space
    ]
    assert train.y.tolist() == [
        [A, A + 1, A + 2, END],
        [A, A + 1, A + 2, A + 3],
        [OTHER, END, N, N],
        [A, 3, A + 1, END],
    ]
    assert test.x.tolist() == [[BEGIN, A, A + 1, A + 2], [A + 4, END, 0, 0], [BEGIN, A + 2, END, 0]]
    assert test.y.tolist() == [[A, A + 1, A + 2, A + 3], [END, N, N, N], [A + 2, END, N, N]]
    assert train.owners.tolist() == [0, 0, 1, 1]
    assert test.owners.tolist() == [0, 0, 1]
    assert train.classes == test.classes == 90
    assert {part.dtype for part in (train.x, train.y, test.x, test.y)} == {torch.int64}


@pytest.mark.parametrize(("speeches", "tests"), [(2, 1), (5, 1), (9, 1), (10, 2), (14, 2), (15, 3)])
def test_the_last_fifth_of_a_role_is_for_tests(tmp_path, speeches, tests):
    write_leaf(tmp_path / "shakespeare", {"ONE": [chr(ord("a") + k) for k in range(speeches)]})
    train, test = Shakespeare(roles=1, sequence=5).load(tmp_path)
    assert train.x[:, 1].tolist() == [A + k for k in range(speeches - tests)]
    assert test.x[:, 1].tolist() == [A + k for k in range(speeches - tests, speeches)]


def test_pieces_do_not_overlap(tmp_path):
    """The last sign of a piece is an input of none, and the first of the next a label of none."""
    write_leaf(tmp_path / "shakespeare", {"ONE": ["abcdefgh", "a"]})
    train, _ = Shakespeare(roles=1, sequence=3).load(tmp_path)
    assert train.x.tolist() == [[BEGIN, A, A + 1], [A + 3, A + 4, A + 5], [A + 7, END, 0]]
    assert train.y.tolist() == [[A, A + 1, A + 2], [A + 4, A + 5, A + 6], [END, N, N]]


def test_roles_with_most_speeches_are_chosen_in_the_order_of_the_file(tmp_path):
    roles = {name: [name] * count for name, count in (("a", 3), ("b", 4), ("c", 1), ("d", 3), ("e", 5))}
    write_leaf(tmp_path / "shakespeare", roles)
    chosen = {n: Shakespeare(roles=n, sequence=3).load(tmp_path)[0].x[:, 1].unique() for n in (1, 2, 3, 4)}
    assert {n: "".join(chr(int(k) - A + ord("a")) for k in found) for n, found in chosen.items()} == {
        1: "e",
        2: "be",
        3: "abe",  # a and d have three each, a comes first
        4: "abde",
    }
    with pytest.raises(ValueError, match="roles must be at most 4, the number of roles with two speeches, got 5"):
        Shakespeare(roles=5).load(tmp_path)


def test_limits(tmp_path):
    write_leaf(tmp_path / "shakespeare", {name: [name] * 20 for name in "abcd"})
    train, test = Shakespeare(roles=4, sequence=3, limit=3, tests=4).load(tmp_path)
    assert train.owners.bincount().tolist() == [3, 3, 3, 3]
    assert test.owners.tolist() == [0, 1, 2, 3], "4 of 16, one of each"
    assert len(Shakespeare(roles=4, sequence=3, tests=1000).load(tmp_path)[1]) == 16
    assert Shakespeare(roles=4, sequence=3, tests=3).load(tmp_path)[1].owners.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence": 0}, "sequence must be at least 1, got 0"),
        ({"roles": 0}, "roles must be at least 1, got 0"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"tests": -1}, "tests must be at least 1, got -1"),
    ],
)
def test_parameters_out_of_range(fields, message):
    with pytest.raises(ValueError, match=message):
        Shakespeare(**fields)


def test_is_built_from_a_configuration():
    arguments = ["--data=Shakespeare", "--data.roles=20", "--data.limit=null"]
    assert chosen("data", Source, arguments) == Shakespeare(roles=20)


# --- files


def test_both_files_give_the_same(tmp_path):
    write_leaf(tmp_path / "leaf/shakespeare")
    write_jsonl(tmp_path / "jsonl/shakespeare")
    source = Shakespeare(roles=2, sequence=4)
    assert fingerprints(source.load(tmp_path / "leaf")) == fingerprints(source.load(tmp_path / "jsonl"))


@pytest.mark.parametrize("given", [True, False])
def test_missing_files_are_named_and_not_downloaded(tmp_path, given):
    where = str(tmp_path) if given else "the data folder"
    with pytest.raises(FileNotFoundError) as caught:
        Shakespeare().load(tmp_path if given else None)
    message = str(caught.value)
    assert f"needs shakespeare/all_data.json or shakespeare/roles.jsonl.gz in {where}." in message
    assert "https://github.com/TalwalkarLab/leaf" in message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("all_data.json", b"", "is damaged: Expecting value"),
        ("all_data.json", b'{"user_data": {"A": {"raw": "a"}}', "is damaged"),
        ("all_data.json", b"\xff\xfe\xfd", "is damaged"),
        ("all_data.json", b'{"user_data": {"A": {"x": ["a"], "y": ["b"]}}}', r"as LEAF writes them with --raw"),
        ("all_data.json", b'{"user_data": {"A": {"raw": 3}}}', "does not hold speeches by role"),
        ("all_data.json", b"[]", "does not hold speeches by role"),
        ("roles.jsonl.gz", b"text", "is damaged: Not a gzipped file"),
        ("roles.jsonl.gz", zipped(b'{"speeches": [["a"]]}')[:-4], "is damaged"),
        ("roles.jsonl.gz", zipped(b'{"speeches": [["a"]'), "is damaged"),
        ("roles.jsonl.gz", zipped(b'{"lines": [["a"]]}'), "as one JSON object on each line"),
        ("roles.jsonl.gz", zipped(b'{"speeches": [1]}'), "as one JSON object on each line"),
        ("roles.jsonl.gz", zipped(b'{"speeches": ["to be"]}'), "as one JSON object on each line"),
        (
            "all_data.json",
            b'{"user_data": {"A": {"raw": "a"}}}',
            "roles must be at most 0, the number of roles with two",
        ),
    ],
)
def test_files_that_are_something_else(tmp_path, name, content, message):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        Shakespeare(roles=1).load(tmp_path)
    assert name in str(caught.value) or "roles must be" in message


# --- the true text


@pytest.fixture(scope="module")
def published():
    folder = os.environ.get("PHALANX_DATA")
    if not folder or not (Path(folder) / "shakespeare").is_dir():
        pytest.skip("PHALANX_DATA does not name a folder with shakespeare/")
    return Path(folder)


@pytest.mark.parametrize(
    ("roles", "owners", "train", "test"), [(715, 715, 53_133, 12_965), (None, 1088, 55_216, 13_842)]
)
def test_the_plays(published, roles, owners, train, test):
    start = time.perf_counter()
    parts = Shakespeare(roles=roles).load(published)
    assert time.perf_counter() - start < 30
    assert [len(part) for part in parts] == [train, test]
    assert [part.owners.unique().tolist() for part in parts] == [list(range(owners))] * 2
    assert [tuple(part.x.shape[1:]) for part in parts] == [(80,), (80,)]
    found = sum(part.label_counts() for part in parts)
    assert int((found > 0).sum()) == 79, "77 characters of the 86, any other, and end"
    assert found[[0, BEGIN]].tolist() == [0, 0], "padding and begin are never a label"
    assert int(found.argmax()) == 3, "space"
    assert float(found[3] / found.sum()) == pytest.approx(0.181, abs=0.001)
    held = [len(part) for part in Natural().split(parts[0].y, 50, numpy_generator(0, "partition"), parts[0].owners)]
    assert max(held) > 5 * sorted(held)[25], "few roles speak most"


# --- on the command line


def test_partition_shows_examples_and_sums_of_labels(tmp_path, capsys, monkeypatch):
    """Ninety classes are no columns; an example has many labels."""
    monkeypatch.setenv("COLUMNS", "100")
    write_leaf(tmp_path / "shakespeare")
    options = ["--data=Shakespeare", "--data.roles=2", "--data.sequence=4", "--partition=Natural", "--clients=2"]
    assert cli.main(["partition", *options, f"--data_dir={tmp_path}"]) == 0
    rows = [re.findall(r"\w+", line) for line in capsys.readouterr().out.splitlines()]
    assert ["client", "examples", "labels", "classes"] in rows
    assert ["0", "2", "8", "5"] in rows, "abc and its end, abcd: four letters and the end"
    assert ["1", "2", "6", "5"] in rows, "any other and its end; a, space, b and the end"
