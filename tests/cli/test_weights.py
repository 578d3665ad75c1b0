"""`phalanx weights`: files of sizes, what is said of them, and the commands of the pages on weights."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from phalanx.cli import weights_files
from phalanx.cli.main import main
from phalanx.cli.weights import _points
from phalanx.cli.weights_files import read_sizes, shown
from phalanx.weighting import mwp, truncation_curve
from phalanx.weighting.truncation import shortest, top

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "weighting.md").read_text()
SHOWN = re.findall(r"^```\n\$ ([^\n]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SIZES = "client,examples\na,120\nb,80\nc,100\nd,60\ne,5000\n"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "sizes.csv").write_text(SIZES)


def weights(capsys, *arguments):
    try:
        status = main(["weights", *arguments])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def piped(monkeypatch, content):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))


def cells(line):
    return re.split(r"\s{2,}", line.strip())


# --- two ways to read

SIZE = ["1", "07", "2000", "10" + "0" * 14, "1" + "0" * 15, "0", "", " 3 ", "+4", "5.0", "1e3", "x", '"a"', "a b"]
LINE = st.one_of(st.just(""), st.just(" "), st.lists(st.sampled_from(SIZE), min_size=1, max_size=3).map(",".join))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.sampled_from(["client,examples", "examples", "a,12", "3", ""]), lines=st.lists(LINE, max_size=6))
def test_a_file_without_faults_is_read_at_once_with_the_same_result(first, lines, tmp_path):
    path = tmp_path / "some.csv"
    path.write_text("\n".join([first, *lines]))
    _read_alike(path)


NUMBER = ["5", "0", "007", "-0", "5.0", "1e3", "true", "null", '"5"', "[5]", '{"n": 5}', "1" + "0" * 15, "9" * 20]
VALUE = st.sampled_from([*NUMBER, '" a "', '"a"', '"b"', '"\\u0061"', '{"id": "b", "n": 3}'])
PAIRS = st.lists(st.tuples(st.sampled_from(['"id"', '"n"', '"x"', '"a"']), VALUE), max_size=4)
OBJECT = st.one_of(PAIRS, st.tuples(st.tuples(st.just('"id"'), VALUE), st.tuples(st.just('"n"'), VALUE))).map(
    lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
)
FEW = st.lists(st.one_of(OBJECT, VALUE), max_size=4).map(lambda all_: "[" + ", ".join(all_) + "]")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(FEW, st.lists(OBJECT, min_size=1, max_size=4).map(lambda all_: f"[{', '.join(all_)}]"), OBJECT))
@example(text='[{"id": "a", "n": 5, "x": {"id": "b", "n": 3}}, null]')
@example(text='{"a": 5, "b": 6}')
@example(text='[{"id": 1, "n": 5}, {"n": 6, "id": "b"}]')
def test_a_json_file_without_faults_is_read_at_once_with_the_same_result(text, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(text)
    _read_alike(path)


def _read_alike(path):
    found = []
    for patches in ((), ("_clean", "_clean_json")):
        with pytest.MonkeyPatch.context() as patch:
            for name in patches:
                patch.setattr(weights_files, name, lambda *_: None)
            try:
                found.append(read_sizes(path))
            except ValueError as error:
                found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("form", ["mapping", "objects", "numbers", "table"])
def test_files_without_faults_are_read_once(form, tmp_path):
    """The slow readers, which say where a fault is, are not needed for any of the usual forms."""
    content = {
        "mapping": '{"a": 5, "b": 6}', "objects": '[{"id": "a", "n": 5}, {"id": "b", "n": 6}]', "numbers": "[5, 6]",
        "table": "id,n\na,5\nb,6\n",
    }[form]  # fmt: skip
    (tmp_path / "x").write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights_files, "_checked", None)
        assert list(read_sizes(tmp_path / "x").sizes) == [5, 6]


# --- the page


def test_the_page_shows_commands():
    assert len(SHOWN) == 5


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_what_the_page_shows_is_what_comes_out(command, output, capsys, monkeypatch, tmp_path):
    for name in ("sizes.csv", "hospitals.csv"):
        (tmp_path / name).write_bytes((ROOT / "examples" / name).read_bytes())
    if found := re.match(r"printf '(.*)' \| (.*)", command):
        piped(monkeypatch, found[1].replace("\\n", "\n"))
        command = found[2]
    _, *arguments = shlex.split(command)[1:]
    _, out, err = weights(capsys, *arguments)
    assert [line.rstrip() for line in (out + err).splitlines()] == output.splitlines()


@pytest.mark.parametrize("command", re.findall(r"^phalanx (run .*)$", PAGE, re.MULTILINE))
def test_runs_of_the_page_are_understood(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*shlex.split(command), "--print_config"])
    assert not stop.value.code
    arguments = yaml.safe_load(capsys.readouterr().out)["algorithm"]["init_args"]
    assert arguments["preprocess"]["class_path"] == "phalanx.weighting.Truncate"


def test_the_example_is_the_partition_of_the_paper():
    reported = read_sizes(ROOT / "examples" / "sizes.csv")
    assert (len(reported.sizes), sum(reported.sizes)) == (75, 60_000)
    assert truncation_curve(np.asarray(reported.sizes), 0.5)[7].bound == 875


# --- what it says


def test_truncation_by_hand(capsys, tmp_path):
    """U* = 154 is the largest U with U <= 0.3 (360 + U); weights sum up to 514, before to 5360."""
    status, out, err = weights(capsys, "sizes.csv", "--alpha", "0.2", "--alpha-star", "0.3", "--weights", "w.csv")
    assert (status, err) == (0, "")
    assert "5 clients report 5,360 examples, from 60 to 5,000 each, half of them 100 or less." in out
    assert "alpha = 0.2 (1 of 5 clients), alpha_star = 0.3: U* = 154. 1 client reports more, and counts for that" in out
    assert ["e", "5,000", "154", "93.3 %", "30.0 %"] in map(cells, out.splitlines())
    assert ["the heaviest client", "93.3 %", "30.0 %", "20.0 %"] in map(cells, out.splitlines())
    assert ["effective number of clients", "1.1", "4.5", "5.0"] in map(cells, out.splitlines())
    assert "63.3 % of the weight changes hands, 9.6 % of the reported examples still count." in out
    assert "no one of the 5 clients holds more than 30 % of the weight. The heaviest holds 29.96 %." in out
    assert "TrimmedMean with beta = 0.3 or more tolerate that share. Mean tolerates no attackers" in out
    rows = list(csv.DictReader((tmp_path / "w.csv").read_text().splitlines()))
    assert [row["client"] for row in rows] == list("abcde")
    assert rows[4] | {"share": ""} == {"client": "e", "reported": "5000", "weight": "154", "share": ""}
    assert [float(row["share"]) for row in rows] == pytest.approx([w / 514 for w in (120, 80, 100, 60, 154)])


def test_weights_as_json_are_those_of_csv_and_are_read_again(capsys, tmp_path):
    for suffix in ("csv", "json"):
        weights(capsys, "sizes.csv", "--alpha", "0.4", "--alpha_star", "0.45", "--weights", f"w.{suffix}")
        assert read_sizes(tmp_path / f"w.{suffix}") == read_sizes(tmp_path / "sizes.csv")
    rows = json.loads((tmp_path / "w.json").read_text())
    assert [row["weight"] for row in rows] == [96, 80, 96, 60, 96]
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_the_promise_is_kept_and_less_than_half_does_not_look_like_half(capsys):
    _, out, _ = weights(capsys, str(ROOT / "examples" / "sizes.csv"), "--alpha", "0.1")
    assert "no 8 of the 75 clients hold more than 50 % of the weight. The 8 heaviest hold 49.99 %." in out
    assert "Median and GeometricMedian tolerate less than half of the weight, TrimmedMean its beta." in out
    assert "--alpha_star 0.49 leaves them room" in out


def test_many_truncated_clients_are_twenty_and_a_count(capsys, tmp_path):
    (tmp_path / "many.csv").write_text("\n".join(str(10 + 10 * (k < 30)) for k in range(100)))
    _, out, _ = weights(capsys, "many.csv", "--alpha", "0.3", "--alpha_star", "0.31")
    assert "U* = 10. 30 clients report more" in out
    rows = [cells(line) for line in out.splitlines() if line.endswith("%  ") and " 20 " in line]
    assert [row[0] for row in rows] == [str(k) for k in range(20)]
    assert "and 10 more" in out


def test_nothing_to_truncate_and_nobody_suspected(capsys, tmp_path):
    (tmp_path / "alike.csv").write_text("7\n7\n7\n")
    _, out, _ = weights(capsys, "alike.csv", "--alpha", "0.3")
    assert "alpha_star = 0.5: nothing has to be truncated." in out
    assert "Truncated clients" not in out
    assert "0.0 % of the weight changes hands, 100.0 % of the reported examples still count." in out
    _, out, _ = weights(capsys, "alike.csv", "--alpha", "0", "--picture", "p.png")
    assert "With alpha = 0 nobody is suspected, and nothing is promised." in out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_trade_off_of_a_few_clients_has_all_points(capsys, tmp_path):
    status, out, _ = weights(capsys, "sizes.csv", "--alpha_star", "0.45", "--picture", "p.svg")
    rows = [cells(line) for line in out.splitlines() if re.match(r"\s+0\.\d", line)]
    assert rows == [["0.2", "1", "294", "1", "12.2 %", "3.5"], ["0.4", "2", "96", "3", "8.0 %", "4.9"]]
    assert "phalanx weights sizes.csv --alpha 0.1 --alpha_star 0.45 --weights weights.csv" in out
    assert (status, b"<svg" in (tmp_path / "p.svg").read_bytes()) == (0, True)


def test_how_to_go_on_can_be_pasted(capsys, tmp_path):
    (tmp_path / "my sizes").write_text("site;patients\nnorth;3\nsouth;40\n")
    options = ["my sizes", "--client_column", "site", "--size_column", "patients"]
    _, out, _ = weights(capsys, *options)
    _, *arguments = shlex.split(out.strip().rpartition("go on: phalanx ")[2])
    assert arguments[:5] == options
    assert weights(capsys, *arguments)[0] == 0
    assert (tmp_path / "weights.csv").is_file()


@pytest.mark.parametrize("K", [1, 2, 3, 7, 24, 25, 26, 75, 1000, 99_991])
@pytest.mark.parametrize("alpha_star", [0.13, 0.5, 0.99])
def test_points_of_the_trade_off(K, alpha_star):
    """Each alpha that is shown stands for the number of clients beside it, and both ends are there."""
    feasible = int(alpha_star * K)
    points = _points(feasible, K)
    assert {alpha: top(float(alpha), K) for alpha in points} == points
    assert list(points.values()) == sorted(set(points.values()))
    assert len(points) <= 14
    assert not feasible or (min(points.values()), max(points.values())) == (1, feasible)
    assert feasible > 12 or len(points) == feasible


def test_the_shortest_alpha():
    assert [shortest(t, K) for t, K in ((8, 75), (1, 3), (3, 7), (1, 100_000), (2, 2))] == [
        "0.1", "0.3", "0.4", "0.00001", "1.0"
    ]  # fmt: skip


def test_no_bound_will_do(capsys):
    status, _, err = weights(capsys, "sizes.csv", "--alpha", "0.3", "--alpha_star", "0.3")
    assert status == 2
    assert "alpha = 0.3 of 5 clients means 2" in err
    assert "The largest feasible alpha is 0.2 (1 of 5 clients)." in err
    status, _, err = weights(capsys, "sizes.csv", "--alpha_star", "0.1", "--picture", "p.png")
    assert (status, "No alpha is feasible with fewer than 10 clients." in err) == (2, True)
    assert not Path("p.png").exists()


# --- a sample


def test_a_certificate_and_none(capsys, tmp_path):
    (tmp_path / "sample.csv").write_text("\n".join(str(1 + k % 400) for k in range(4000)))
    arguments = ["sample.csv", "--certify", "400", "--alpha", "0.1", "--alpha_star"]
    status, out, _ = weights(capsys, *arguments, "0.3")
    assert status == 0
    assert "Certified: truncated at 400, no 10 % of the clients hold more than 30 % of the weight." in out
    assert "For at most 5 % of all samples would that be wrong." in out
    assert ["at most, of all clients", "21.8 %"] in map(cells, out.splitlines())
    status, out, _ = weights(capsys, *arguments, "0.2", "--delta", "0.01", "--population", "4007")
    assert status == 1
    assert "Not certified: 4,000 sizes do not show that, truncated at 400, no 401 of the 4,007 clients hold more" in out
    (needed,) = [cells(line)[1] for line in out.splitlines() if "sizes needed" in line]
    assert int(needed.replace(",", "")) > 4000
    status, out, _ = weights(capsys, *arguments, "0.15")
    assert (status, "choose a smaller bound" in out, "no number" in out) == (1, True, True)


def test_a_sample_may_hold_a_client_twice(capsys, tmp_path):
    (tmp_path / "twice.csv").write_text("client,size\n" + "a,5\nb,6\n" * 200)
    status, out, _ = weights(capsys, "twice.csv", "--certify", "6", "--alpha", "0.3", "--alpha_star", "0.6")
    assert (status, "Certified" in out) == (0, True)
    assert "the client is there already, on line 2" in weights(capsys, "twice.csv", "--alpha", "0.3")[2]
    (tmp_path / "twice.csv").write_text("client,size\na,5\na,6\n")
    status, _, err = weights(capsys, "twice.csv", "--certify", "6", "--alpha", "0.3")
    assert (status, "line 3: `a,6`: the client is there already" in err) == (2, True)


# --- options


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", "Name a file of reported sizes, as in `phalanx weights sizes.csv`"),
        ("nowhere.csv", "There is no file nowhere.csv."),
        (".", ". is a folder. Name a CSV or JSON file in it."),
        ("sizes.csv --weights w.csv", "--weights needs --alpha"),
        ("sizes.csv --certify 5", "--certify needs --alpha"),
        ("sizes.csv --alpha 0.2 --delta 0.1", "--delta belongs to --certify"),
        ("sizes.csv --alpha 0.2 --population 10", "--population belongs to --certify"),
        ("sizes.csv --alpha 0.2 --certify 5 --picture p.png", "--picture does not go with --certify"),
        ("sizes.csv --alpha 0.2 --certify 5 --population 4", "--population must be at least 5, the clients in the"),
        ("sizes.csv --frontier --certify 5 --alpha 0.2", "--frontier does not go with --certify"),
        ("sizes.csv --frontier --alpha_star 0.3", "--frontier tries every alpha_star"),
        ("sizes.csv --classes examples", "--classes belongs to --frontier"),
        ("sizes.csv --cost 0.2", "--cost belongs to --frontier"),
        ("sizes.csv --frontier --cost 0", "cost must be above 0"),
        ("sizes.csv --frontier --alpha 0.5", "hold half of the weight"),
        ("sizes.csv --frontier --classes benign", "sizes.csv has no column 'benign'"),
        ("sizes.csv --frontier --classes examples a examples", "--classes names examples twice. Name each column once"),
        ("sizes.csv --alpha 0.2 --certify 0", "bound must be at least 1, got 0"),
        ("sizes.csv --alpha 0.2 --weights w.txt", "w.txt must end in .csv or .json"),
        ("sizes.csv --alpha 0.2 --weights no/w.csv", "there is no folder no"),
        ("sizes.csv --alpha 0.2 --weights sizes.csv", "--weights would replace sizes.csv"),
        ("sizes.csv --picture p.gif", "p.gif must end in .png, .svg or .pdf"),
        ("sizes.csv --alpha 1", "alpha must lie in [0, 1), got 1"),
        ("sizes.csv --alpha 0.1 --alpha_star 0", "alpha_star must lie in (0, 1), got 0"),
        ("sizes.csv --alpha x", "alpha must be a number"),
        ("sizes.csv --alfa_star 0.2", "There is no option --alfa_star. Did you mean --alpha"),
        ("sizes.csv other.csv", "Nothing can be made of other.csv"),
        ("sizes.csv --size_column n", "sizes.csv has no column 'n', as --size_column says. There are: client, ex"),
    ],
)
def test_what_cannot_be_done_says_why_and_leaves_nothing(command, why, capsys, tmp_path):
    status, out, err = weights(capsys, *command.split())
    assert status == 2
    assert why in err
    assert "Traceback" not in err
    assert out == ""
    assert (tmp_path / "sizes.csv").read_text() == SIZES
    assert [path.name for path in tmp_path.iterdir()] == ["sizes.csv"]


def test_counts_that_do_not_sum_to_the_size_are_refused(capsys, tmp_path):
    (tmp_path / "counts.csv").write_text("client,examples,x,y\na,120,60,70\nb,80,40,40\n")
    status, _, err = weights(capsys, "counts.csv", "--frontier", "--classes", "x", "y")
    assert (status, "client a sum to 130, and its size is 120" in err) == (2, True), err


HOSPITALS = (ROOT / "examples" / "hospitals.csv").read_text()
CLASSES = ("--classes", "class 0", "class 1", "class 2")


def test_a_frontier_says_where_the_useful_band_is(capsys, tmp_path):
    (tmp_path / "h.csv").write_text(HOSPITALS)
    saved = ("--weights", "w.csv", "--picture", "p.svg")
    status, out, err = weights(capsys, "h.csv", "--frontier", *CLASSES, *saved)
    assert (status, err) == (0, "")
    assert "The useful band is from 12.5 % to 30 %. At 30 % the clean error is 0.368, and 0.750 if UKA lies: " in out
    assert "the lie leaves 50.5 % of the descent of a step." in out
    rows = {line.split()[0]: cells(line) for line in out.splitlines() if line.startswith((" UKA", " VHIO"))}
    assert rows["UKA"] == ["UKA", "17,834", "51.7 %", "30.0 %", "0.750", "0.750", "12.5 %", "0.627"]
    assert rows["VHIO"] == ["VHIO", "190", "0.6 %", "0.8 %", "0.370", "0.549", "12.5 %", "0.461"]
    assert "No lie of one site does more, whatever size it reports." in out
    rows = [*csv.DictReader(io.StringIO((tmp_path / "w.csv").read_text()))]
    assert float(rows[0]["share"]) == pytest.approx(0.3, abs=1e-4)
    assert (tmp_path / "p.svg").read_text().lstrip().startswith("<?xml")


def test_a_frontier_without_a_useful_band_says_so(capsys, tmp_path):
    (tmp_path / "h.csv").write_text(HOSPITALS)
    status, out, err = weights(capsys, "h.csv", "--frontier", *CLASSES, "--cost", "0.05", "--weights", "w.csv")
    assert (status, "No cap is useful, so w.csv was not written" in err) == (2, True)
    assert not (tmp_path / "w.csv").exists()
    assert weights(capsys, "h.csv", "--frontier", *CLASSES, "--cost", "0.05")[0] == 0
    assert "There is no useful band: the clean error is at least 0.088, at a cap of 45 %, and 0.05 is allowed." in out
    assert "useful band is" not in out


def test_a_frontier_says_that_no_cap_withstands_a_site(capsys, tmp_path):
    (tmp_path / "h.csv").write_text("client,n,x,y\na,900,700,200\nb,30,0,30\nc,20,20,0\nd,10,0,10\n")
    saved = ("--classes", "x", "y", "--cost", "5", "--weights", "w.csv")
    status, out, err = weights(capsys, "h.csv", "--frontier", *saved)
    assert (status, "No cap is useful" in err) == (2, True)
    assert "There is no useful band: the worst lie leaves none of the descent of a step at a cap of" in out
    assert "useful band is" not in out


def test_a_frontier_without_classes_says_what_it_assumes(capsys):
    status, out, _ = weights(capsys, "sizes.csv", "--frontier")
    assert status == 0
    assert "sites are taken to hold the same mix" in out
    assert "class mix" not in out
    assert "worth in examples, by a mean" in out


def test_a_frontier_of_many_liars_says_what_was_not_tried(capsys, tmp_path):
    (tmp_path / "h.csv").write_text("client,n\n" + "".join(f"c{k},{100 + k}\n" for k in range(40)))
    status, out, _ = weights(capsys, "h.csv", "--frontier", "--alpha", "0.1", "--cost", "3")
    assert status == 0
    assert "worst error, at least" in out
    assert re.search(r"and at least 0\.\d+ if c31, c39, c38 and c37 lie: the lie leaves at most \d", out)
    assert "the worst 4 sites lie" in out
    assert "Only the 40 heaviest sites, each with the heaviest others, were tried" in out


def test_class_counts_of_json_and_of_standard_input(capsys, monkeypatch, tmp_path):
    content = json.dumps([{"id": name, "n": 30, "a": 30 - k, "b": k} for k, name in enumerate("uvwxy")])
    (tmp_path / "h.json").write_text(content)
    assert weights(capsys, "h.json", "--frontier", "--classes", "a", "b")[0] == 0
    piped(monkeypatch, content)
    status, _, err = weights(capsys, "-", "--frontier", "--classes", "a", "b")
    assert (status, "standard input can be read only once" in err) == (2, True)


def test_help(capsys):
    status, out, _ = weights(capsys, "--help")
    assert (status, "phalanx weights SIZES [--OPTION VALUE ...]" in out) == (0, True)


# --- files

THREE = {"a": 5, "b": 60, "c": 700}
FORMS = {
    "header": "client,size\na,5\nb,60\nc,700\n",
    "no header": "a,5\nb,60\nc,700",
    "semicolons, BOM, CRLF": "\ufeffid;Examples\r\na;5\r\nb;60\r\nc;700\r\n",
    "tabs": "name\tnum examples\na\t5\nb\t60\nc\t700\n",
    "old line ends": "client,size\ra,5\rb,60\rc,700\r",
    "other order, other columns": "n,region,client\n5,north,a\n60,north,b\n700,south,c\n",
    "blank lines": "\n\nclient,size\n\na,5\n   \nb,60\nc,700\n\n",
    "quotes and spaces": 'client,size\n"a", 5\n"b", "60"\nc,700.0\n',
    "ways to write": "client,size\na,+5\nb,0060\nc,700.\n",
    "JSON mapping": '{"a": 5, "b": 60, "c": 700.0}',
    "JSON objects": '[{"id": "a", "n": 5}, {"n": 60, "id": "b", "x": []}, {"id": "c", "n": 700}]',
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("from_file", [True, False])
def test_forms_of_files(form, from_file, tmp_path, monkeypatch):
    path = tmp_path / ("three.json" if "JSON" in form else "three.csv")
    path.write_bytes(FORMS[form].encode())
    piped(monkeypatch, FORMS[form])
    reported = read_sizes(path if from_file else Path("-"))
    assert {name: reported.sizes[k] for k, name in enumerate(reported.names)} == THREE


@pytest.mark.parametrize(
    "content", ["5\n60\n700\n", "size\n5\n60\n\n700\n", "[5, 60, 700]", '[{"n":5},{"n":60},{"n":700}]']
)
def test_clients_without_names_are_numbered(content, monkeypatch):
    piped(monkeypatch, content)
    assert read_sizes(Path("-")) == (("0", "1", "2"), array("q", [5, 60, 700]))


def test_names_are_any_text_and_reach_the_terminal_as_letters(capsys, tmp_path):
    names = ["[red]x[/]", "a\x1b[31mb", "line\nbreak", "Ospedale Niguarda, Milano", "日本", 'q"q', "=1+1"]
    with (tmp_path / "odd.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["client", "size"], *([name, 100] for name in names), *([k, 1] for k in range(50))])
    status, out, _ = weights(capsys, "odd.csv", "--alpha", "0.1", "--alpha_star", "0.4", "--weights", "w.csv")
    assert status == 0
    assert "\x1b" not in out
    for name in ("[red]x[/]", r"a\x1b[31mb", r"line\nbreak", "Ospedale Niguarda, Milano", "日本"):
        assert name in out
    with (tmp_path / "w.csv").open(newline="", encoding="utf-8") as file:
        assert [row["client"] for row in csv.DictReader(file)][:7] == names


def test_shown_is_short():
    assert shown("a" * 100, 10) == "a" * 9 + "…"
    assert shown("\u202e\x00", 60) == r"\u202e\x00"


BAD = """client,size
a,5
b,5.5
c,-3

d,0
a,7
e,NaN
f,1000000000000001
g
,5
h,1e3
i,1,2
j,
k,x
"""


def test_bad_rows_are_named_all_with_line_content_and_reason(capsys, tmp_path):
    (tmp_path / "bad.csv").write_text(BAD)
    status, out, err = weights(capsys, "bad.csv", "--alpha", "0.1", "--weights", "w.csv")
    assert (status, out, (tmp_path / "w.csv").exists()) == (2, "", False)
    assert err.splitlines()[:12] == [
        "phalanx weights: bad.csv: 12 rows are no client with a size from 1 to 10^15. Nothing was computed.",
        "  line 3: `b,5.5`: the size is not an integer",
        "  line 4: `c,-3`: the size is negative",
        "  line 6: `d,0`: the size is zero",
        "  line 7: `a,7`: the client is there already, on line 2",
        "  line 8: `e,NaN`: the size is not a number",
        "  line 9: `f,1000000000000001`: the size is above 10^15",
        "  line 10: `g`: 1 field, expected 2",
        "  line 11: `,5`: the client has no name",
        "  line 12: `h,1e3`: write the size in plain digits",
        "  line 13: `i,1,2`: 3 fields, expected 2",
        "  and 2 more",
    ]


def test_bad_rows_after_one_that_spans_lines(monkeypatch):
    piped(monkeypatch, 'client,size\n"two\nlines",5\nx,y\n')
    with pytest.raises(ValueError, match=r"1 row is no client.*\n  line 4: `x,y`: the size is not a number"):
        read_sizes(Path("-"))


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("0.0", "zero"),
        ("000", "zero"),
        ("inf", "above"),
        ("-inf", "negative"),
        ("nan", "not a number"),
        ("1_000", "plain digits"),
        ("٣", "plain digits"),
        ("-0.5", "negative"),
        (".5", "not an integer"),
        ("0x10", "not a number"),
        ("1 000", "not a number"),
        ("9" * 5000, "above"),
        ("1e400", "above"),
        ("", "missing"),
        (".", "not a number"),
        ("+", "not a number"),
    ],
)
def test_what_is_no_size(size, why, monkeypatch):
    piped(monkeypatch, f"client,size\na,{size}\nb,3\n")
    with pytest.raises(ValueError, match=rf"line 2: .*{why}"):
        read_sizes(Path("-"))


@pytest.mark.parametrize("size", ["1", "1000000000000000", "0" * 5000 + "7"])
def test_what_is_a_size(size, monkeypatch):
    piped(monkeypatch, f"client,size\na,{size}\n")
    assert list(read_sizes(Path("-")).sizes) == [int(size.lstrip("0"))]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "standard input is empty"),
        ("\n \n", "standard input is empty"),
        ("client,size\n", "holds no client"),
        ("[]", "holds no client"),
        ("{}", "holds no client"),
        ("a,b,5\nc,d,6\n", "has 3 columns and no header"),
        ("hospital,size\na,5\n", "no column has a name known for clients .* There are: hospital, size"),
        ("client,patients\na,5\n", "no column has a name known for sizes .* Say which: --size_column"),
        ("client,2024\na,5\n", "no column has a name known for sizes"),
        ("a\n5\n", "no column has a name known for sizes"),
        ("id,name,size\n1,a,5\n", "several columns could be meant. There are: id, name, size. Say which: --client"),
        ('a,"5\nb,6\n', "line 1: this is no CSV .* Is a quotation mark missing"),
        ('client,size\na,5\nb,"6" 7\n', "line 3: this is no CSV"),
        ('{"a": 5,}', "line 1: this is no JSON"),
        ("[" * 100_000, "nested too deeply|no JSON"),
        ('{"a": 5, "b": true}', "entry 2: `b: true`: the size is not a number"),
        ('{"a": "5"}', 'entry 1: `a: "5"`: the size is not a number'),
        ('{"a": 5, "a": 6}', "entry 2: `a: 6`: the client is there already, as entry 1"),
        ("[5, null, NaN, -Infinity]", r"3 rows .*\n.*entry 2: .*not a number\n.*entry 3: .*not a num.*\n.*negative"),
        ('[{"id": 1, "n": 5}, {"id": 2}, 7]', "entry 2: .*: it needs one n\n  entry 3: `7`: it needs one id"),
        ('[{"id": 1, "n": 5}, {"id": 2, "n": 5, "n": 6}]', "entry 2: .*: it needs one n"),
        ('[{"id": null, "n": 5}]', "the client is no name or number"),
        ('[{"id": [1], "n": 5}]', "the client is no name or number"),
        ('[{"id": 1, "n": 5}, {"id": "1", "n": 5}]', "the client is there already, as entry 1"),
    ],
)
def test_files_that_are_none(content, why, monkeypatch):
    piped(monkeypatch, content)
    with pytest.raises(ValueError, match=why):
        read_sizes(Path("-"))


def test_json_is_what_says_so_or_looks_so(tmp_path):
    (tmp_path / "x.json").write_text("5")
    with pytest.raises(ValueError, match="must hold a mapping of clients to sizes, or a list, got 5"):
        read_sizes(tmp_path / "x.json")
    (tmp_path / "x.csv").write_text("[a],5\n[b],6\n")
    assert read_sizes(tmp_path / "x.csv").names == ("[a]", "[b]")
    (tmp_path / "x").write_text(' {"a": 5}')
    assert read_sizes(tmp_path / "x").names == ("a",)
    with pytest.raises(ValueError, match="has no columns"):
        read_sizes(tmp_path / "x", size_column="n")


def test_other_encodings_are_refused_by_line(tmp_path):
    (tmp_path / "x.csv").write_bytes("client,size\na,5\nMünchen,6\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"x.csv, line 3: the text is not UTF-8. Save the file in UTF-8."):
        read_sizes(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_bytes("client,size\na,5\n".encode("utf-16"))
    with pytest.raises(ValueError, match=r"line 1: the text is not UTF-8"):
        read_sizes(tmp_path / "x.csv")


@pytest.mark.slow
def test_a_process_with_thousands_of_rows(tmp_path):
    sizes = {f"client {k}": 1 + k * k % 9973 for k in range(20_000)}
    content = "client,size\n" + "".join(f"{name},{size}\n" for name, size in sizes.items())
    program = Path(sys.executable).with_name("phalanx")
    done = subprocess.run(
        [program, "weights", "-", "--alpha", "0.2", "--alpha-star", "0.25", "--weights", "w.csv"],
        input=content, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "no 4,000 of the 20,000 clients hold more than 25 % of the weight" in done.stdout
    rows = list(csv.DictReader((tmp_path / "w.csv").read_text().splitlines()))
    assert {row["client"]: int(row["reported"]) for row in rows} == sizes
    kept = {k: int(row["weight"]) for k, row in enumerate(rows)}
    U = max(kept.values())
    assert mwp(kept, 0.2) <= 0.25 < mwp({k: min(size, U + 1) for k, size in enumerate(sizes.values())}, 0.2)
