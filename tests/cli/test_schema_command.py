"""`phalanx schema`: a draft from the files of hospitals, and what does not fit it, in a terminal and as JSON."""

import json
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.data import Schema

HEART = Path(__file__).parents[2] / "docs" / "tutorials" / "heart"
INIT = ["--target", "target", "--classes", "healthy=0", "ill=1,2,3,4", "--zeros", "chol", "trestbps"]


@pytest.fixture
def called(monkeypatch, tmp_path, capsys):
    """Runs `phalanx schema` in a folder; returns the status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        status = main(["schema", *map(str, words)])
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


def test_four_hospitals_agree_on_a_schema_and_each_checks_its_file(called, tmp_path):
    status, out, _ = called("init", HEART / "*.csv", *INIT)
    assert status == 0
    schema = Schema.load(tmp_path / "schema.json")
    assert out.splitlines()[-1] == f"schema.json: 920 rows of 4 files, 13 inputs, classes healthy, ill. {schema.digest}"
    assert all(line.startswith("decide: ") for line in out.splitlines()[:-1])
    status, out, _ = called("check", HEART / "*.csv")
    assert status == 0
    fits = [line.rpartition("/")[2] for line in out.splitlines() if "fits" in line]
    assert "switzerland.csv fits: 123 rows, healthy 8, ill 115." in fits
    assert "Column 'chol' is missing in every row." in out


def test_a_schema_of_one_hospital_says_what_the_others_lack(called):
    assert called("init", HEART / "cleveland.csv", *INIT)[0] == 0
    status, out, _ = called("check", HEART / "hungarian.csv", HEART / "cleveland.csv")
    assert status == 1
    assert "error: Column 'chol' holds what is no number in 23 of 294 rows (the first: row 3)." in out
    assert "First: line 4, '?'." in out
    assert "hungarian.csv does not fit: " in out
    assert "cleveland.csv fits: 303 rows" in out


def test_json_counts_and_quotes_no_cell(called, tmp_path):
    called("init", HEART / "cleveland.csv", *INIT)
    lines = (HEART / "cleveland.csv").read_text().splitlines()
    lines[5] = lines[5].replace(lines[5].split(",")[0], "Zx9", 1)
    Path(tmp_path / "site.csv").write_text("\n".join(lines))
    assert "First: line 6, 'Zx9'." in called("check", "site.csv")[1]
    status, out, err = called("check", "site.csv", "--json")
    assert (status, err) == (1, "")
    assert "Zx9" not in out
    found = json.loads(out)
    assert found["digest"] == Schema.load(tmp_path / "schema.json").digest
    (error,) = [one for one in found["files"][0]["findings"] if one["error"]]
    assert {**error, "sentence": ""} == {
        "code": "number", "name": "age", "error": True, "rows": 1, "first_row": 5, "first_line": 6, "sentence": "",
    }  # fmt: skip


def test_a_file_in_another_notation_is_checked_as_it_is_written(called, tmp_path):
    called("init", HEART / "cleveland.csv", *INIT)
    text = (HEART / "cleveland.csv").read_text().replace(",", ";").replace(".", ",")
    (tmp_path / "site.csv").write_text(text)
    assert called("check", "site.csv")[0] == 1
    notation = ("--separator", ";", "--decimal", ",")
    assert called("check", "site.csv", *notation)[0] == 0
    (tmp_path / "site.csv").write_text(text.replace(";;", ";n/d;"))
    assert called("check", "site.csv", *notation)[0] == 1
    assert called("check", "site.csv", *notation, "--missing", "n/d")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("init", "none.csv", "--target", "y"), "There is no file none.csv. Correct the path."),
        (("init", HEART / "va.csv", "--target", "y"), "va.csv has no column 'y'; its columns are 'age', 'sex'"),
        (("init", HEART / "va.csv", "--target", "target", "--classes", "ill"), "--classes must name each class once"),
        (("init", HEART / "va.csv", "--target", "target", "--classes", "a=0", "b=0"), "must name each label once"),
        (("init", HEART / "va.csv", "--target", "target", "--drop", "target"), "must be different columns"),
        (("init", HEART / "va.csv", "--target", "age", "-o", HEART / "va.csv"), "holds data that is read"),
        (("check", HEART / "va.csv"), "schema.json: No such file or directory"),
        (("check", "none.csv", "--schema", HEART / "README.md"), "is not a schema"),
    ],
)
def test_a_mistake_in_the_command_ends_with_status_2(called, words, message):
    status, _, err = called(*words)
    assert status == 2
    assert message in err


def test_a_schema_is_not_written_over_and_not_written_with_errors(called, tmp_path):
    (tmp_path / "schema.json").write_text("mine")
    status, _, err = called("init", HEART / "va.csv", *INIT)
    assert (status, (tmp_path / "schema.json").read_text()) == (2, "mine")
    assert "There is a schema.json. Name another file by -o, or give --again" in err
    status, out, _ = called("init", HEART / "va.csv", "--target", "target", "--classes", "a=0", "b=1", "--again")
    assert (status, (tmp_path / "schema.json").read_text()) == (1, "mine")
    assert out.splitlines()[0].startswith("error: Target 'target' is 2, 3, 4 in 93 rows, which is in no class")
    assert called("init", HEART / "va.csv", *INIT, "--again")[0] == 0
    assert Schema.load(tmp_path / "schema.json").labels == ("healthy", "ill")


def test_statistics_and_scale_write_over_nothing(called, tmp_path):
    for k, site in enumerate(("cleveland.csv", "va.csv")):
        (tmp_path / site).write_bytes((HEART / site).read_bytes())
        assert called("init", site, *INIT, "--again")[0] == 0
        assert called("statistics", site, "-o", f"{k}.json")[0] == 0
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for words in (
        ("statistics", "va.csv", "-o", "1.json"),
        ("statistics", "va.csv", "-o", "cleveland.csv"),
        ("statistics", "va.csv", "-o", "va.csv", "--again"),
        ("statistics", "va.csv", "-o", "schema.json", "--again"),
        ("scale", "1.json", "-o", "cleveland.csv"),
        ("scale", "1.json", "-o", "1.json", "--again"),
        ("scale", "1.json", "-o", "schema.json", "--again"),
    ):
        assert called(*words)[0] == 2, words
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept
    assert called("scale", "1.json")[0] == 0
    assert "There is a scaled.json" in called("scale", "1.json")[2]
    assert called("scale", "1.json", "--again")[0] == 0
    assert Schema.load(tmp_path / "scaled.json").labels == ("healthy", "ill")


def test_check_and_statistics_read_a_file_as_the_options_say(called, tmp_path):
    head, *lines = (HEART / "cleveland.csv").read_text().splitlines()
    tens = head.split(",").index("chol")
    called("init", HEART / "cleveland.csv", *INIT)
    rows = [line.split(",") for line in lines]
    written = [[cell.replace(".", ",") for cell in row] for row in rows]
    for row in written:
        row[tens] = f"{row[tens][:1]}'{row[tens][1:]}" if row[tens] else "n/d"
    (tmp_path / "site.csv").write_text("\n".join(";".join(row) for row in [head.split(","), *written]))
    notation = ("--separator", ";", "--decimal", ",", "--missing", "n/d")
    for command in (("check", "site.csv"), ("statistics", "site.csv", "-o", "site.json")):
        assert called(*command, *notation)[0] != 0
        assert called(*command, *notation, "--thousands", "'")[0] == 0
    assert called("statistics", HEART / "cleveland.csv", "-o", "plain.json")[0] == 0
    assert (tmp_path / "site.json").read_bytes() == (tmp_path / "plain.json").read_bytes()


@pytest.mark.parametrize("known", [None, "age"])
@pytest.mark.parametrize("twice", [False, True])
def test_json_quotes_no_cell_of_a_file_without_a_header(called, tmp_path, known, twice):
    called("init", HEART / "cleveland.csv", *INIT)
    lines = (HEART / "cleveland.csv").read_text().splitlines()[1:]
    first = [f"Zx{k if not twice else 0}" for k in range(lines[0].count(",") + 1)]
    if known is not None:
        first[0] = known
    Path(tmp_path / "site.csv").write_text("\n".join([",".join(first), *lines]))
    assert called("check", "site.csv")[0] == 1
    status, out, _ = called("check", "site.csv", "--json")
    assert (status, "Zx" in out) == (1, False)
    if known and not twice:
        assert "no such column: 13 columns." in out


@pytest.mark.parametrize("site", ["cleveland", "hungarian", "switzerland", "va"])
def test_a_file_without_names_becomes_no_schema_and_no_cell_of_it_is_said(called, tmp_path, site):
    names, *lines = (HEART / f"{site}.csv").read_text().splitlines()
    Path(tmp_path / "site.csv").write_text("\n".join(lines))
    status, out, err = called("init", "site.csv", "--target", lines[0].split(",")[-1])
    assert (status, out) == (2, "")
    assert "line 1 looks like a row of data: " in err
    assert "Put a line with the names of the columns first." in err
    assert not [cell for cell in lines[0].split(",") if f"'{cell}'" in err]
    assert not (tmp_path / "schema.json").exists()
    Path(tmp_path / "site.csv").write_text("\n".join([names, *lines]))
    assert called("init", "site.csv", "--target", "target")[0] == 0


def test_a_pooled_scaling_needs_its_acceptance_and_a_liar_is_named(called, tmp_path):
    assert called("init", HEART / "cleveland.csv", *INIT)[0] == 0
    for k in range(3):
        assert called("statistics", HEART / "cleveland.csv", "-o", f"{k}.json")[0] == 0
    forged = json.loads((tmp_path / "2.json").read_text())
    forged["columns"]["age"]["mean"] = 1e9
    (tmp_path / "2.json").write_text(json.dumps(forged))
    files = ("0.json", "1.json", "2.json")
    status, _, err = called("scale", *files, "--rule", "pooled")
    assert status == 2
    assert "accept that by name: --accept 'pooled scaling'" in err
    status, out, _ = called("scale", *files, "--rule", "pooled", "--accept", "pooled scaling")
    assert status == 0
    assert "error: 2.json is left out in column 'age': its mean 1e+09 is outside of the bounds" in out
    assert "scaled.json: pooled from 3 sites" in out
    assert "; no site may lie: it is of all rows together. sha256:" in out
    assert "age" in Schema.load(tmp_path / "scaled.json").pooled
