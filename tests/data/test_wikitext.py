"""WikiText-2: lines to pieces by hand, the files that may hold them, the hub, and the true text."""

import gzip
import os
import re
import sys
from pathlib import Path

import datasets
import pytest

from commandline import chosen
from phalanx.data import NO_LABEL, Source, WikiText2, wikitext
from phalanx.data.vocabulary import END, UNKNOWN
from phalanx.data.wikitext import digest
from phalanx.installation import installation
from phalanx.models import WordLSTM

N = NO_LABEL
TRAIN = [" = The A = ", " ", " the a the a the a . ", " The <unk> b . "]
TEST = [" the b c "]


def write(folder, names=("wiki.train.tokens", "wiki.test.tokens"), zipped=False):
    folder.mkdir(parents=True)
    for name, lines in zip(names, (TRAIN, TEST), strict=True):
        content = "".join(f"{line}\n" for line in lines).encode()
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)


def test_lines_by_hand(tmp_path):
    write(tmp_path / "wikitext-2")
    train, test = WikiText2(least=2, sequence=5).load(tmp_path)
    # the: 5, a: 4, then = and . with 2 each; b occurs once, the sign for rare words has no number of its own
    the, a, dot, equals = 3, 4, 5, 6
    row = [END, equals, the, a, equals, END, END, the, a, the, a, the, a, dot, END, the, UNKNOWN, UNKNOWN, dot, END]
    assert train.classes == test.classes == 7
    assert train.x.flatten().tolist() == [*row[:-1], END]
    assert train.y.flatten().tolist() == [*row[1:], N]
    assert test.x.tolist() == [[END, the, UNKNOWN, UNKNOWN, END]]
    assert test.y.tolist() == [[the, UNKNOWN, UNKNOWN, END, N]]
    assert train.owners is None


def test_limits_leave_the_vocabulary_alone(tmp_path):
    write(tmp_path / "wikitext-2")
    train, test = WikiText2(least=1, sequence=2, limit=3, tests=1).load(tmp_path)
    assert (len(train), len(test)) == (3, 1)
    assert train.classes == 3 + 5
    assert WikiText2(vocabulary=5, least=1).load(tmp_path)[0].classes == 5


@pytest.mark.parametrize("zipped", [False, True])
def test_all_forms_of_the_files_give_the_same(tmp_path, zipped):
    write(tmp_path / "one/wikitext-2")
    write(tmp_path / "two/wikitext2", ("train.txt", "test.txt"), zipped)
    one, two = (WikiText2(least=1, sequence=3).load(tmp_path / form) for form in ("one", "two"))
    assert [part.fingerprint() for part in one] == [part.fingerprint() for part in two]


def test_files_that_lack_or_are_empty_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"WikiText2 needs 2 files .*wikitext-2 lacks wiki\.train\.tokens"):
        WikiText2().load(tmp_path)
    write(tmp_path / "wikitext-2")
    (tmp_path / "wikitext-2/wiki.test.tokens").write_bytes(b"")
    with pytest.raises(ValueError, match=r"wiki\.test\.tokens is empty\. Delete it and fetch it again"):
        WikiText2().load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"least": 0}, "least must be at least 1, got 0"),
        ({"vocabulary": 0}, "vocabulary must be at least 4"),
        ({"sequence": 0}, "sequence must be at least 1, got"),
    ],
)
def test_parameters_out_of_range(fields, message):
    with pytest.raises(ValueError, match=message):
        WikiText2(**fields)


def test_is_built_from_a_configuration():
    assert chosen("data", Source, ["--data=WikiText2", "--data.vocabulary=2000"]) == WikiText2(2000)


# --- the hub


def hub(monkeypatch, train=TRAIN, test=TEST):
    """Stands for the Hugging Face hub, where lines end with a line feed and blank ones are empty."""
    asked = []

    def load_dataset(path, name, **options):
        asked.append((path, name, options))
        return [{"text": [f"{line}\n" if line.strip() else "" for line in part]} for part in (train, test)]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(wikitext, "HASHES", {"train": digest(TRAIN), "test": digest(TEST)})
    return asked


def test_the_hub_gives_the_same_as_the_files(tmp_path, monkeypatch):
    asked = hub(monkeypatch)
    write(tmp_path / "wikitext-2")
    source = WikiText2(least=1, sequence=3)
    assert [part.fingerprint() for part in source.load()] == [part.fingerprint() for part in source.load(tmp_path)]
    ((path, name, options),) = asked
    assert (path, name) == ("Salesforce/wikitext", "wikitext-2-v1")
    assert options["split"] == ["train", "test"]
    assert len(bytes.fromhex(options["revision"])) == 20, "a commit, which cannot change"


def test_another_text_on_the_hub_is_refused(monkeypatch):
    hub(monkeypatch, test=["the b d"])
    with pytest.raises(ValueError, match=r"The test part of Salesforce/wikitext is refused: .*SHA-256.* as data_dir"):
        WikiText2().load()


def test_without_a_network_the_error_says_what_to_do(monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(OSError, match=r"could not be downloaded: no route\. Without network access: put wiki\.train"):
        WikiText2().load()


def test_without_the_package_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"{installation('huggingface')}; or put wiki.train")):
        WikiText2().load()


def test_a_digest_looks_at_lines_and_not_at_their_order_or_spacing():
    assert digest(["a  b", "c\n", ""]) == digest([" ", "c", " a b "])
    assert len({digest(lines) for lines in (["a b"], ["a", "b"], ["b a"], ["a b", ""])}) == 4


# --- the true text


@pytest.mark.slow
def test_the_articles():
    folder = os.environ.get("PHALANX_DATA")
    if not folder or not (Path(folder) / "wikitext-2").is_dir():
        pytest.skip("PHALANX_DATA does not name a folder with wikitext-2/")
    train, test = WikiText2().load(Path(folder))
    assert train.classes == 23_654, "as many as in the code of Cox et al."
    assert [int(part.label_counts()[END]) for part in (train, test)] == [36_718, 4_358], "an end behind each line"
    assert int((train.y != N).sum()) == 2_049_990 + 36_718
    model = WordLSTM().build(tuple(train.x.shape[1:]), train.classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == 9_337_406
    for name, expected in wikitext.HASHES.items():
        lines = (Path(folder) / f"wikitext-2/wiki.{name}.tokens").read_text(encoding="utf-8").split("\n")[:-1]
        assert digest(lines) == expected, "what a download must have"
