"""Sentences with one label: by hand, the files that may hold them, the true ones, and a run."""

import gzip
import json
import os
from pathlib import Path

import pytest

from commandline import chosen
from phalanx.cli import main as cli
from phalanx.data import MR, SST, Source, published_files
from phalanx.data.vocabulary import PAD, UNKNOWN

NEGATIVE = [f"bad b{k}" for k in range(1, 13)]
POSITIVE = [f"fine p{k} caf\xe9" for k in range(1, 12)]
FINE = ["4 a stirring film", "0 a dull film", "2 a film", "1 dull"]
FINE_TESTS = ["3 a film\xe9", "0 new"]


def write_mr(folder, zipped=False, negative=NEGATIVE, positive=POSITIVE):
    folder.mkdir(parents=True)
    for name, lines in (("neg", negative), ("pos", positive)):
        content = "".join(f"{line} \n" for line in lines).encode("latin-1")
        path = folder / (f"rt-polarity.{name}" + ".gz" * zipped)
        path.write_bytes(gzip.compress(content) if zipped else content)


def write_sst(folder, zipped=False, train=FINE, test=FINE_TESTS):
    folder.mkdir(parents=True)
    for name, lines in (("train", train), ("test", test)):
        content = "".join(f"{line}\n" for line in lines).encode()
        path = folder / (f"stsa.fine.{name}" + ".gz" * zipped)
        path.write_bytes(gzip.compress(content) if zipped else content)


def test_mr_by_hand(tmp_path):
    write_mr(tmp_path / "rt-polaritydata")
    train, test = MR(sequence=2).load(tmp_path)
    assert train.y.tolist() == [0, 1] * 10 + [0], "the classes take turns until one is used up"
    assert test.y.tolist() == [0, 1], "the tenth of each file"
    # bad 11, then café and fine 10 each; all others once, by the alphabet: b1 b11 b12 b2 ...
    assert train.classes == 2
    bad, fine = 3, 5
    assert train.x[:2].tolist() == [[bad, 6], [fine, 17]]
    assert test.x.tolist() == [[bad, UNKNOWN], [fine, UNKNOWN]], "b10 and p10 are not in the train part; café is cut"


def test_few_examples_of_mr_are_of_both_classes(tmp_path):
    write_mr(tmp_path / "mr", negative=NEGATIVE[:10] * 6, positive=POSITIVE[:10] * 6)
    for count in (2, 4, 6):
        train, test = MR(limit=count, tests=count).load(tmp_path)
        assert train.label_counts().tolist() == test.label_counts().tolist() == [count // 2] * 2


def test_sst_by_hand(tmp_path):
    write_sst(tmp_path / "sst")
    train, test = SST(sequence=4).load(tmp_path)
    a, film, dull, stirring = 3, 4, 5, 6
    assert train.x.tolist() == [[a, stirring, film, PAD], [a, dull, film, PAD], [a, film, PAD, PAD], [dull] + [PAD] * 3]
    assert train.y.tolist() == [4, 0, 2, 1]
    assert test.x.tolist() == [[a, UNKNOWN, PAD, PAD], [UNKNOWN] + [PAD] * 3]
    assert test.y.tolist() == [3, 0]
    assert train.classes == test.classes == 5
    assert train.owners is None


def test_limits_leave_the_vocabulary_alone(tmp_path):
    write_sst(tmp_path / "sst")
    train, test = SST(sequence=1, limit=2, tests=1).load(tmp_path)
    assert (train.y.tolist(), test.y.tolist()) == ([4, 0], [3])
    assert SST(sequence=2, limit=1).load(tmp_path)[0].x.tolist() == [[3, 6]], "dull, which is left out, is counted"
    assert SST(vocabulary=5, sequence=3).load(tmp_path)[0].x[0].tolist() == [3, UNKNOWN, 4]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("source", "write", "folders"),
    [(MR(), write_mr, ("rt-polaritydata", "mr")), (SST(), write_sst, ("sst", "sst"))],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_all_forms_of_the_files_give_the_same(tmp_path, source, write, folders, zipped):
    write(tmp_path / "one" / folders[0])
    write(tmp_path / "two" / folders[1], zipped)
    one, two = (source.load(tmp_path / form) for form in ("one", "two"))
    assert [part.fingerprint() for part in one] == [part.fingerprint() for part in two]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], r"stsa\.fine\.train is empty"),
        (["  "], r"stsa\.fine\.train is empty"),
        (["4 fine", "5 what"], "must have a class from 0 to 4 and words on each line, got '5 what'"),
        (["fine film"], "got 'fine film'"),
        (["4"], "got '4'"),
    ],
)
def test_lines_that_are_no_sentences_are_named(tmp_path, train, message):
    write_sst(tmp_path / "sst", train=train)
    with pytest.raises(ValueError, match=message) as caught:
        SST().load(tmp_path)
    assert "stsa.fine.train" in str(caught.value)


def test_files_that_lack_or_are_damaged_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"SST needs 2 files .* each also with \.gz: .*lacks stsa\.fine\.train"):
        SST().load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"MR needs 2 files .*rt-polaritydata lacks .*; .*mr lacks rt-polar"):
        MR().load(tmp_path)
    write_mr(tmp_path / "mr", negative=[])
    with pytest.raises(ValueError, match=r"rt-polarity\.neg is empty"):
        MR().load(tmp_path)
    (tmp_path / "mr/rt-polarity.neg").write_bytes(gzip.compress(b"bad\n")[:-3])
    with pytest.raises(ValueError, match=r"rt-polarity\.neg is damaged: "):
        MR().load(tmp_path)


@pytest.mark.parametrize("source", [MR, SST])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocabulary": 3}, "vocabulary must be at least 4"),
        ({"sequence": 0}, "sequence must be at least 1, got"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"tests": 0}, "tests must be at least 1"),
    ],
)
def test_parameters_out_of_range(source, fields, message):
    with pytest.raises(ValueError, match=message):
        source(**fields)


@pytest.mark.parametrize("source", [MR, SST])
def test_is_built_from_a_configuration(source):
    assert chosen("data", Source, [f"--data={source.__name__}", "--data.limit=7"]) == source(limit=7)


@pytest.mark.parametrize(
    ("source", "write"), [("MR", lambda f: write_mr(f / "mr")), ("SST", lambda f: write_sst(f / "sst"))]
)
def test_a_run_with_the_network_for_sentences(tmp_path, source, write):
    write(tmp_path / "data")
    options = [f"--data={source}", "--data.sequence=5", "--clients=2", "--model=KimCNN", "--model.embedding=4"]
    options += ["--model.filters=3", "--until.steps=2", f"--data_dir={tmp_path}/data", f"--folder={tmp_path}/run"]
    assert cli.main(["run", *options, "--accept", '["labels:3", "labels:4"]']) == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "finished"


# --- the true sentences


@pytest.fixture(scope="module")
def published():
    folder = os.environ.get("PHALANX_DATA")
    if not folder or not (Path(folder) / "sst").is_dir() or not (Path(folder) / "rt-polaritydata").is_dir():
        pytest.skip("PHALANX_DATA does not name a folder with sst/ and rt-polaritydata/")
    return Path(folder)


def test_the_sentences_of_mr(published):
    train, test = MR().load(published)
    assert train.label_counts().tolist() == [4_798, 4_798], "9,596 as in the paper"
    assert test.label_counts().tolist() == [533, 533]
    assert int(train.x.max()) == 19_999, "the 233 last of 20,230 words have no number"
    longest = MR(sequence=61).load(published)
    assert all(not part.x[:, 60].any() for part in longest), "60 cuts none"


def test_the_sentences_of_sst(published):
    train, test = SST().load(published)
    assert train.label_counts().tolist() == [1092, 2218, 1624, 2322, 1288]
    assert test.label_counts().tolist() == [279, 633, 389, 510, 399]
    assert int(train.x.max()) == 16_579 + 2
    assert not (train.x == UNKNOWN).any()


def test_the_files_of_sst_have_the_hashes_that_downloads_must_have(published):
    import hashlib

    for name, digest in published_files.HASHES["sst"].items():
        assert hashlib.sha256((published / "sst" / name).read_bytes()).hexdigest() == digest
