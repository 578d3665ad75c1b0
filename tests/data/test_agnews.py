"""AG-News: articles to corpora by hand, the files that may hold them, the true ones, and a run."""

import csv
import gzip
import io
import os
from pathlib import Path

import pytest

from commandline import chosen
from phalanx.cli import main as cli
from phalanx.data import NO_LABEL, AGNews, Natural, Source, Topics
from phalanx.data.vocabulary import END, UNKNOWN, words_of
from phalanx.rng import numpy_generator
from phalanx.runs.record import Record

N = NO_LABEL

# (topic, title, description); world, sports, business and science say w, s, b and c
ROWS = [
    ("1", "W1", "w, x"),
    ("3", "b1", "b"),
    ("1", "w2", "w"),
    ("4", "c1", "c"),
    ("2", "s1", "s"),
    ("1", "w3", "w"),
    ("2", "s2", "s"),
    ("3", "b2", "b"),
    ("4", "c2", "c"),
]
TESTS = [(str(topic + 1), f"{letter}{k}", "new") for k in (1, 2) for topic, letter in enumerate("wsbc")]


def write_published(folder, train=ROWS, test=TESTS, zipped=False):
    folder.mkdir(parents=True)
    for name, rows in (("train.csv", train), ("test.csv", test)):
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
        content = text.getvalue().encode()
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content, mtime=0) if zipped else content)


def write_tokens(folder):
    folder.mkdir(parents=True)
    for name, rows in (("train_tokens", ROWS), ("test_tokens", TESTS)):
        with gzip.open(folder / f"{name}.csv.gz", "wt", newline="") as file:
            csv.writer(file).writerows((topic, " ".join(words_of(" ".join(text)))) for topic, *text in rows)


def texts(data, names):
    """The words of each example, as its labels tell them."""
    return [" ".join(names[int(k)] for k in row if k != N) for row in data.y]


def test_corpora_by_hand(tmp_path):
    write_published(tmp_path / "ag_news")
    source = AGNews(corpora=8, sequence=4)
    train, test = source.load(tmp_path)
    # four of "w"; two of "b", "c" and "s"; the others once: numbers from 3 on, equal ones by the alphabet
    order = ["w", "b", "c", "s", ",", "b1", "b2", "c1", "c2", "s1", "s2", "w1", "w2", "w3", "x"]
    names = {END: ".", UNKNOWN: "?"} | {3 + k: word for k, word in enumerate(order)}
    assert train.classes == 3 + len(order)
    assert texts(train, names) == [
        "w1 w , x",  # World's first and third article
        ". w3 w .",
        "s1 s .",
        "b1 b .",
        "c1 c .",
        "w2 w .",  # its second
        "s2 s .",
        "b2 b .",
        "c2 c .",
    ]
    assert train.owners.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert train.x[:3].tolist() == [[END, 14, 3, 7], [17, END, 16, 3], [END, 12, 6, END]]
    assert texts(test, names) == [f"{letter}{k} ? ." for k in (1, 2) for letter in "wsbc"]
    assert test.owners.tolist() == list(range(8))
    assert test.classes == train.classes


def test_the_vocabulary_is_that_of_the_whole_train_part(tmp_path):
    write_published(tmp_path / "ag_news")
    whole, limited = (AGNews(corpora=4, sequence=4, limit=limit).load(tmp_path)[0] for limit in (None, 1))
    assert limited.owners.tolist() == [0, 1, 2, 3]
    assert limited.classes == whole.classes
    assert limited.x[0].tolist() == whole.x[0].tolist()
    small, tests = AGNews(corpora=4, vocabulary=5, sequence=4, tests=4).load(tmp_path)
    assert small.classes == tests.classes == 5
    assert small.y[0].tolist() == [UNKNOWN, 3, UNKNOWN, UNKNOWN], "w is the most frequent word"
    assert tests.owners.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("zipped", [False, True])
def test_all_forms_of_the_files_give_the_same(tmp_path, zipped):
    write_published(tmp_path / "published/ag_news", zipped=zipped)
    write_tokens(tmp_path / "tokens/ag_news")
    source = AGNews(corpora=4, sequence=3)
    one, two = (source.load(tmp_path / form) for form in ("published", "tokens"))
    assert [part.fingerprint() for part in one] == [part.fingerprint() for part in two]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("5", "a", "b"), "row 2 begins '5,a,b'"),
        (("World", "a"), "must have a topic from 1 to 4 and a text in each row, row 2 begins 'World,a'"),
        (("1", "", " "), "row 2 begins '1,, '"),
        ((), "row 2 begins ''"),
    ],
)
def test_rows_that_are_no_articles_are_named(tmp_path, row, message):
    write_published(tmp_path / "ag_news", [ROWS[0], row])
    with pytest.raises(ValueError, match=message) as caught:
        AGNews(corpora=4).load(tmp_path)
    assert "train.csv" in str(caught.value)


@pytest.mark.parametrize("content", [gzip.compress(b'"1","a","b"\n', mtime=0)[:-4], b'"1","\xff"\n'])
def test_damaged_files_are_named(tmp_path, content):
    write_published(tmp_path / "ag_news")
    (tmp_path / "ag_news/train.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"train\.csv is damaged: .* Delete it and fetch it again"):
        AGNews(corpora=4).load(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"AGNews needs 2 files .*lacks train\.csv, test\.csv; .*train_tokens"):
        AGNews().load(tmp_path)


def test_too_many_corpora_are_refused(tmp_path):
    write_published(tmp_path / "ag_news")
    with pytest.raises(ValueError, match="12 corpora need at least 3 articles of each topic in both parts, got 2"):
        AGNews(corpora=12).load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"corpora": 6}, "corpora must be a multiple of 4, at least 4, got 6: a topic each"),
        ({"corpora": 0}, "corpora must be a multiple of 4, at least 4, got 0"),
        ({"vocabulary": 3}, "vocabulary must be at least 4, got 3: padding, unknown, end and a word"),
        ({"sequence": 0}, "sequence must be at least 1, got 0"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"tests": 0}, "tests must be at least 1, got 0"),
    ],
)
def test_parameters_out_of_range(fields, message):
    with pytest.raises(ValueError, match=message):
        AGNews(**fields)


def test_is_built_from_a_configuration():
    arguments = ["--data=AGNews", "--data.corpora=8", "--data.vocabulary=null"]
    assert chosen("data", Source, arguments) == AGNews(8, vocabulary=None)


def test_topics_are_those_of_the_clients(tmp_path):
    """Dealt to as many clients as corpora, each client holds its group's topic, and is tested on it."""
    write_published(tmp_path / "ag_news")
    train, test = AGNews(corpora=8, sequence=4).load(tmp_path)
    topics = Topics()
    parts = Natural().split(train.y, 8, numpy_generator(0, "partition"), train.owners)
    for client, group in enumerate(topics.of(8)):
        held = train.of(parts[client])
        assert topics.seen_by(group, held) is held
        assert topics.seen_by(group, test).owners.tolist() == [group, group + 4]


def test_a_run_with_topics(tmp_path):
    write_published(tmp_path / "data/ag_news")
    options = ["--data=AGNews", "--data.corpora=4", "--data.sequence=4", "--partition=Natural", "--clients=4"]
    options += ["--groups=Topics", "--model=WordLSTM", "--model.embedding=4", "--model.hidden=4", "--until.steps=2"]
    places = [f"--data_dir={tmp_path}/data", f"--folder={tmp_path}/run"]
    assert cli.main(["run", *options, *places]) == 0
    summary = Record.load(tmp_path / "run").summary
    assert summary.status == "finished"
    assert summary.steps == 2
    assert [client.group for client in summary.clients.values()] == [0, 1, 2, 3]


def test_a_run_with_another_number_of_clients_than_corpora_is_refused(tmp_path, capsys):
    write_published(tmp_path / "data/ag_news")
    options = ["--data=AGNews", "--data.corpora=8", "--partition=Natural", "--clients=4", "--groups=Topics"]
    places = [f"--data_dir={tmp_path}/data", f"--folder={tmp_path}/run"]
    assert cli.main(["run", *options, "--model=WordLSTM", *places]) == 2
    assert "Use the partition Natural with as many clients as the data have owners" in " ".join(
        capsys.readouterr().err.split()
    )


# --- the true articles


@pytest.mark.slow
def test_the_news():
    folder = os.environ.get("PHALANX_DATA")
    if not folder or not (Path(folder) / "ag_news").is_dir():
        pytest.skip("PHALANX_DATA does not name a folder with ag_news/")
    train, test = AGNews().load(Path(folder))
    assert (train.classes, test.classes) == (10_000, 10_000)
    labels = sum(part.label_counts() for part in (train, test))
    assert labels[[0, END]].tolist() == [0, 127_600], "an end behind each article, and padding is never a label"
    assert 1 - float((train.x == UNKNOWN).float().mean()) == pytest.approx(0.93, abs=0.005)
    assert [part.owners.unique().tolist() for part in (train, test)] == [list(range(20))] * 2
    sizes = train.owners.bincount()
    assert sizes.max() < 1.06 * sizes.min(), "corpora are of as many articles, and of about as many words"
