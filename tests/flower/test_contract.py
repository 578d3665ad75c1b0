"""Hospitals with tables and one schema: right inputs by name, or no part in the federation, and never a guess."""

import dataclasses
import html
import json
import logging
import time

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from flower.federations import FIRST_NODE, KEYS, MINE, QUICK, at_nodes, attacked, named, resigned, roster_of
from phalanx import LocalSGD, Record, Until
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg, Private
from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.data import CSV, Dataset, Parquet, Schema
from phalanx.data.table_impossible import rounded
from phalanx.data.table_schema import UnfitTableError
from phalanx.flower import Coordinator, InProcessGrid, MalformedError, Participant, client_app, codec, coordinate
from phalanx.flower.audit import read
from phalanx.flower.client import ClientWorker
from phalanx.flower.contract import CODES, refusal
from phalanx.flower.gate import MISFIT, received
from phalanx.flower.signed_schema import sign_schema
from phalanx.models import MLP
from phalanx.runs.card import card
from phalanx.runs.files import AUDIT
from phalanx.training import Regression

FOR_TWO = dataclasses.replace(QUICK, least=2, enrolment=3.0)
SECRET = "SMITH, Jane"
TEXT = """{"fields": [
 {"name": "age", "type": "number", "constraints": {"minimum": 0, "maximum": 120},
  "phalanx": {"scaling": {"mean": 50, "deviation": 10}}},
 {"name": "sex", "type": "string", "categories": ["f", "m"]},
 {"name": "pressure", "type": "number",
  "phalanx": {"scaling": {"mean": 130, "deviation": 20}, "impute": {"value": 130}}},
 {"name": "state", "type": "string", "categories": ["healthy", "ill"],
  "phalanx": {"role": "target", "aliases": {"healthy": [0], "ill": [1, 2, 3, 4]}}}],
 "missingValues": ["", "?"]}"""
SCHEMA = Schema.parse(TEXT.encode(), "schema.json")


def table(site, n=90):
    """Patients whose state depends on age and sex, the same rule at each site."""
    rng = np.random.default_rng(site)
    age, sex = rng.integers(30, 80, n), rng.choice(["f", "m"], n)
    grade = np.clip((age - 50) / 8 + (sex == "m") + rng.normal(0, 0.3, n), 0, 4).astype(int)
    return pd.DataFrame({"age": age, "sex": sex, "pressure": rng.normal(130, 20, n).round(1), "state": grade})


def in_euro(frame):
    pressure = frame["pressure"].map("{:.1f}".format).str.replace(".", ",")
    return frame.assign(age=frame["age"].map("{},0".format), pressure=pressure)


def with_a_word(frame):
    return frame.assign(pressure=frame["pressure"].astype(object).where(frame.index % 9 > 0, "n.d."))


SITES = {  # what is written, and how the site says that it is
    "as agreed": (lambda t: t, {}, {}),
    "a class is missing": (lambda t: t[t["state"] == 0], {}, {}),
    "columns in another order": (lambda t: t[["state", "pressure", "sex", "age"]], {}, {}),
    "more columns": (lambda t: t.assign(name=SECRET, id=range(len(t))), {}, {}),
    "another notation": (in_euro, {"sep": ";"}, {"separator": ";", "decimal": ","}),
    "a word for missing": (with_a_word, {}, {"missing": ("n.d.",)}),
    "classes by name": (lambda t: t.assign(state=np.where(t["state"] > 0, "ill", "healthy")), {}, {}),
}  # fmt: skip
UNFIT = {  # what is written, and what the coordinator may learn
    "renamed column": (lambda t: t.rename(columns={"age": "Age"}), "column 'age' (column)"),
    "another class": (lambda t: t.assign(state=t["state"].where(t.index != 3, 9)), "column 'state' (word)"),
    "a text": (lambda t: t.assign(sex=t["sex"].where(t.index >= 13, SECRET)), "column 'sex' (word, about 15 rows)"),
    "another unit": (lambda t: t.assign(age=t["age"] * 12), "column 'age' (range, about 90 rows)"),
    "an empty cell": (lambda t: t.assign(age=t["age"].where(t.index > 1)), "column 'age' (missing)"),
    "unsaid notation": (in_euro, "column 'age' (number, about 90 rows), column 'pressure' (number, about 90 rows)"),
    "no rows": (lambda t: t[:0], "the file (rows)"),
}


def participant(site, folder, form=("as agreed"), **options):
    write, how, said = SITES[form] if isinstance(form, str) else (form, {}, {})
    path = folder / f"site-{site}.csv"
    write(table(site)).to_csv(path, index=False, **how)
    source = CSV(str(path), "state", **said) if said else path
    given = {"schema": SCHEMA, "data": source, "model": MLP((8,)), "coordinator": "any"} | options
    return Participant(FedAvg(aggregate=Median()), training=LocalSGD(lr=0.1), key=KEYS[site], **given)


def federation(apps, folder, model=MLP((8,)), **options):  # noqa: B008  (a frozen value)
    settings = {"schema": SCHEMA, "until": Until(8), "timeouts": QUICK, "accept": ("no promise",)} | options
    roster = named(len(apps)) if "key" in options else roster_of(len(apps))
    made = Coordinator(FedAvg(aggregate=Median()), model, roster, folder=folder / "run", **settings)
    with InProcessGrid(at_nodes(apps)) as grid:
        coordinate(grid, made)
    return Record.load(folder / "run")


@pytest.mark.parametrize("form", SITES)
def test_a_site_gets_right_inputs_by_name_however_its_file_is_written(form, tmp_path):
    data = participant(0, tmp_path, form).examples
    rows = table(0)
    rows = rows[rows["state"] == 0] if form == "a class is missing" else rows
    kept = torch.ones(len(rows), dtype=torch.bool)
    if data.held_out is not None:
        kept = ~SCHEMA.as_site(CSV("x", "state")).drawn(torch.tensor((rows["state"] > 0).to_numpy()).long(), None)
    wanted = torch.tensor((rows["age"] - 50).to_numpy() / 10)[kept].float()
    assert torch.equal(data.train.tensor[:, 0], wanted)
    assert data.train.tensor[:, 2].tolist() == (rows["sex"] == "m").to_numpy()[kept.numpy()].tolist()
    assert data.train.y.tolist() == (rows["state"] > 0).to_numpy()[kept.numpy()].astype(int).tolist()
    assert data.train.classes == 2
    pressures = torch.tensor((rows["pressure"] - 130).to_numpy() / 20)[kept].float()
    if form == "a word for missing":
        pressures[torch.tensor(rows.index % 9 == 0)[kept]] = 0
    assert data.train.tensor[:, 3].tolist() == pytest.approx(pressures.tolist(), abs=1e-6)


def test_three_sites_of_different_form_train_one_model(tmp_path):
    """A class is missing at one site, and columns are in another order at the next; before: 0.68 and 0.78."""
    forms = ["a class is missing", "columns in another order", "another notation"]
    apps = {i: client_app(participant(i, tmp_path, form)) for i, form in enumerate(forms)}
    record = federation(apps, tmp_path, until=Until(30))
    rows = table(99, 400)
    found = record.predict(rows)
    right = (found["prediction"] == np.where(rows["state"] > 0, "ill", "healthy")).mean()
    assert right > 0.9
    assert [*found.columns] == ["prediction", "probability of healthy", "probability of ill"]
    shuffled = record.predict(rows[["sex", "state", "age", "pressure"]])
    assert shuffled.equals(found)


def test_a_pooled_scaling_is_accepted_by_name_and_audit_card_and_report_say_so(tmp_path):
    scaling = msgspec.structs.replace(SCHEMA.fields[0].use.scaling, rule="pooled")
    age = msgspec.structs.replace(SCHEMA.fields[0], use=msgspec.structs.replace(SCHEMA.fields[0].use, scaling=scaling))
    pooled = msgspec.structs.replace(SCHEMA, fields=(age, *SCHEMA.fields[1:]))
    (tmp_path / "pooled.json").write_bytes(pooled.json)
    given = {"schema": tmp_path / "pooled.json", "coordinator": MINE}
    for unsigned in ({"schema": pooled}, given | {"schema": pooled}, given):
        with pytest.raises(InfeasibleError, match=r"The scaling of 'age' is pooled|is not signed"):
            ClientWorker(participant(0, tmp_path, **unsigned))
    sign_schema(tmp_path / "pooled.json", KEYS[11])
    apps = {i: client_app(participant(i, tmp_path, **given)) for i in range(3)}
    with pytest.raises(InfeasibleError, match=r"The scaling of 'age' is pooled .* accept that by name"):
        federation(apps, tmp_path, schema=pooled)
    accepted = ("no promise", "pooled scaling")
    record = federation(apps, tmp_path, schema=pooled, until=Until(1), accept=accepted, key=KEYS[11])
    what = "The scaling of 'age' is pooled over all rows: one site that lied moved it as far as it liked."
    first, *_ = [entry.why for entry in read(tmp_path / "run" / AUDIT) if entry.event == "accepted"]
    assert first == what
    rows = [line for line in card(record).splitlines() if line.startswith("| ") and "---" not in line]
    assert rows[1] == r"| accepted by name | \[no promise, pooled scaling\] |"
    assert rows[2] == f"| found before the first step | {what} |"
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "run"), "--out", str(page)]) == 0
    assert f"Before the first step: {what}" in html.unescape(page.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNFIT)
def test_a_site_that_does_not_fit_is_refused_and_only_its_own_log_says_more(kind, tmp_path, caplog):
    change, told = UNFIT[kind]
    change(table(2)).to_csv(tmp_path / "site-2.csv", index=False)

    def unfit(context):
        return Participant(
            FedAvg(aggregate=Median()), MLP((8,)), LocalSGD(), tmp_path / "site-2.csv", KEYS[2], schema=SCHEMA
        )

    apps = {i: client_app(participant(i, tmp_path)) for i in range(2)} | {2: client_app(unfit)}
    with caplog.at_level(logging.INFO):
        record = federation(apps, tmp_path, until=Until(2), timeouts=FOR_TWO)
    (away,) = {one.why for one in read(tmp_path / "run" / AUDIT) if one.event == "turned away"}
    assert away == f"node {FIRST_NODE + 2}: its app failed: {MISFIT}: {told}"
    assert [*record.summary.clients] == [0, 1]
    own = "\n".join(one.exc_text or "" for one in caplog.records if one.name == "phalanx.flower.client")
    assert "UnfitTableError" in own
    assert any(
        remedy in own for remedy in ("Is it 'Age'?", "Correct it", "Fill these cells", "say in the schema", "row")
    )
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
    assert SECRET not in "\n".join(one.getMessage() for one in caplog.records)


def test_a_site_that_corrects_its_file_is_let_in_without_a_restart(tmp_path):
    path = tmp_path / "site-2.csv"
    asked = []

    def made(context):
        asked.append(time.monotonic())
        if len(asked) == 3:
            table(2).to_csv(path, index=False)
        return Participant(
            FedAvg(aggregate=Median()), MLP((8,)), LocalSGD(), path, KEYS[2], schema=SCHEMA, coordinator="any"
        )

    table(2).rename(columns={"age": "Age"}).to_csv(path, index=False)
    apps = {i: client_app(participant(i, tmp_path)) for i in range(2)} | {2: client_app(made)}
    patient = dataclasses.replace(QUICK, absent=0.1, enrolment=20.0)
    record = federation(apps, tmp_path, until=Until(1), timeouts=patient)
    assert [*record.summary.clients] == [0, 1, 2]
    assert len(asked) == 3


def other_schema():
    return Schema.parse(TEXT.replace('"deviation": 10}', '"deviation": 11}').encode(), "other")


@pytest.mark.slow
def test_where_the_coordinator_has_no_schema_a_client_that_has_one_is_turned_away(tmp_path):
    made = [participant(i, tmp_path, schema=None, data=SCHEMA.dataset(table(i)), model=MLP((8,)).build((4,), 2))
            for i in range(2)]  # fmt: skip
    apps = {i: client_app(one) for i, one in enumerate([*made, participant(2, tmp_path)])}
    federation(apps, tmp_path, until=Until(1), timeouts=FOR_TWO, schema=None, model=MLP((8,)).build((4,), 2))
    (away,) = {one.why for one in read(tmp_path / "run" / AUDIT) if one.event == "turned away"}
    assert f"client 2 (clinic-2) has the schema {SCHEMA.digest}, and the coordinator none" in away


@pytest.mark.slow
@pytest.mark.parametrize("has", ["another schema", "no schema"])
def test_a_client_with_another_schema_or_none_is_turned_away_with_a_sentence(has, tmp_path):
    data = SCHEMA.dataset(table(2))
    odd = {"schema": other_schema()} if has == "another schema" else {"schema": None, "data": data}
    model = {"model": MLP((8,)).build((4,), 2)} if has == "no schema" else {}
    participants = [participant(i, tmp_path) for i in range(2)]
    participants.append(
        Participant(
            **{"algorithm": FedAvg(aggregate=Median()), "model": MLP((8,)), "training": LocalSGD(), "key": KEYS[2],
               "coordinator": "any", "data": tmp_path / "site-0.csv", **odd, **model}
        )
    )  # fmt: skip
    apps = {i: client_app(made) for i, made in enumerate(participants)}
    federation(apps, tmp_path, until=Until(1), timeouts=FOR_TWO)
    (away,) = {one.why for one in read(tmp_path / "run" / AUDIT) if one.event == "turned away"}
    named = f"the schema {other_schema().digest}" if has == "another schema" else "no schema"
    said = f"client 2 (clinic-2) has {named}, and the coordinator {SCHEMA.digest}. Give it the coordinator's file"
    assert away.startswith(f"node {FIRST_NODE + 2}: {said}"[:190])


@pytest.mark.parametrize(
    "digest", ["sha256:short", "x" * 10_000, SECRET, SCHEMA.digest.upper(), b"bytes", ["list"], 7, f"{SCHEMA.digest}\n"]
)
def test_a_forged_digest_is_malformed_and_not_repeated(digest, tmp_path):
    content = codec.answer_content(codec.AnswerMessage(b"", b"", 0, 1, b""), schema=SCHEMA.digest)
    content["schema"]["digest"] = digest
    with pytest.raises(MalformedError, match="expected sha256: and 64 digits") as error:
        codec.read_schema(content)
    assert len(str(error.value)) < 150


def test_a_schema_that_changes_during_the_run_makes_updates_invalid(tmp_path):
    """A site that trains on other inputs from one task to the next; its signed answer names the other digest."""

    def swapped(message, reply, context):
        reply.content["schema"]["digest"] = other_schema().digest
        reply.content = resigned(message, reply.content, KEYS[2])
        return reply

    apps = {i: client_app(participant(i, tmp_path)) for i in range(3)}
    record = federation(apps | {2: attacked(apps[2], swapped)}, tmp_path, until=Until(2))
    assert all("has the schema sha256:" in step.invalid[2] for step in record.history if step.step)


@pytest.mark.slow
def test_the_record_of_a_deployment_takes_tables(tmp_path, capsys, monkeypatch):
    apps = {i: client_app(participant(i, tmp_path)) for i in range(3)}
    record = federation(apps, tmp_path)
    folder = tmp_path / "run"
    assert record.config["schema"] == SCHEMA.digest
    assert SCHEMA.digest in (folder / "model.md").read_text()
    assert Schema.load(folder / "schema.json").digest == SCHEMA.digest
    table(9, 1000).to_csv(tmp_path / "new.csv", index=False)
    commands = [
        ("predict", folder, "--data", tmp_path / "new.csv", "-o", tmp_path / "out.csv"),
        ("evaluate", folder, "--data", tmp_path / "new.csv", "--json"),
        ("export", folder, "--format", "onnx", "-o", tmp_path / "model.onnx"),
    ]
    for command in commands:
        assert main([*map(str, command)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--data", str(tmp_path / "new.csv")]) == 0
    said = capsys.readouterr()
    assert "clinic-0" not in said.out, "rows of nobody say nothing of a single hospital"
    assert "The clients' rows are not here." in said.err, "and nothing was moved"
    assert main(["verify", str(folder)]) == 2, "its coordinator has no key, so that nobody has co-signed its trail"
    said = capsys.readouterr().out
    assert "Integrity: not known." in said
    found = pd.read_csv(tmp_path / "out.csv")
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    rows = table(9, 1000)
    fed = {"age": rows[["age"]].to_numpy(dtype=np.float64), "sex": rows[["sex"]].to_numpy(dtype=object),
           "pressure": rows[["pressure"]].to_numpy()}  # fmt: skip
    classes, shares = session.run(None, fed)
    assert classes.tolist() == found["prediction"].tolist()
    assert shares[:, 1].tolist() == pytest.approx(found["probability of ill"].tolist(), abs=1e-5)


def test_a_run_goes_on_with_the_same_schema_only(tmp_path):
    made = Coordinator(FedAvg(), MLP((8,)), roster_of(3), until=Until(1), schema=SCHEMA)
    assert made.config(9) == dataclasses.replace(made, until=Until(5)).config(9)
    assert made.config(9) != dataclasses.replace(made, schema=other_schema()).config(9)
    assert "schema" not in dataclasses.replace(made, schema=None, model=nn.Linear(4, 2)).config(9)


# --- what a participant is given


def test_a_file_of_the_schema_and_a_value_are_one(tmp_path):
    (tmp_path / "schema.json").write_bytes(SCHEMA.json)
    made = participant(0, tmp_path, schema=tmp_path / "schema.json")
    assert made.contract.digest == SCHEMA.digest
    assert made.module(torch.zeros(2, 4)).shape == (2, 2)


def test_a_table_has_a_test_part_that_is_held_out_and_a_path_has_none(tmp_path):
    whole = participant(0, tmp_path).examples
    split = participant(0, tmp_path, data=CSV(str(tmp_path / "site-0.csv"), "state", test_share=0.3)).examples
    assert (len(whole.train), whole.held_out) == (90, None)
    assert len(split.train) + len(split.held_out) == 90
    assert len(split.held_out) == pytest.approx(27, abs=1)


def test_a_parquet_file_is_a_table_too(tmp_path):
    table(0).to_parquet(tmp_path / "site.parquet")
    for data in (tmp_path / "site.parquet", str(tmp_path / "site.parquet")):
        assert torch.equal(
            participant(0, tmp_path, data=data).examples.train.x, participant(0, tmp_path).examples.train.x
        )
    assert participant(0, tmp_path, data=Parquet(str(tmp_path / "site.parquet"), "state")).examples.held_out is not None


def regression():
    """The schema, with a number as its target."""
    form = json.loads(TEXT)
    form["fields"][-1] = {"name": "state", "type": "number",
                          "phalanx": {"role": "target", "scaling": {"mean": 2, "deviation": 4}}}  # fmt: skip
    return Schema.parse(json.dumps(form).encode(), "schema.json")


def read_by_itself():
    """A table with as many inputs and classes as the schema has, scaled by its own rows."""
    data = SCHEMA.dataset(table(0))
    own = [dataclasses.replace(column, mean=column.mean + 1) for column in data.reading.columns]
    return dataclasses.replace(data, reading=dataclasses.replace(data.reading, columns=tuple(own)))


def zeros(width, classes):
    return Dataset(torch.zeros(4, width), torch.zeros(4, dtype=torch.int64), classes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": None, "model": nn.Linear(4, 2)}, "A table needs the schema of the federation"),
        ({"schema": None, "data": zeros(4, 2)}, "MLP describes a network"),
        ({"data": CSV("site-0.csv", "age")}, "label of the table is 'age', and the target of the schema 'state'"),
        ({"model": nn.Linear(4, 10)}, r"outputs of shape \(10,\), and the schema has 2 classes"),
        ({"model": nn.Linear(4, 2), "schema": regression()}, "the schema has a number as its target"),
        ({"data": read_by_itself()}, "its columns, scaling or classes are not those of the schema"),
        ({"model": nn.Linear(5, 2)}, "does not take the 4 inputs of the schema"),
        ({"data": zeros(5, 2)}, r"examples of shape \(4,\) with 2 classes"),
        ({"data": zeros(4, 3)}, "with 3. Give the table itself"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_a_sentence(options, message, tmp_path):
    with pytest.raises(InfeasibleError, match=message):
        participant(0, tmp_path, **options)


def test_noise_and_a_test_part_do_not_go_together(tmp_path):
    participant(0, tmp_path)
    source = CSV(str(tmp_path / "site-0.csv"), "state")
    with pytest.raises(InfeasibleError, match="of a table, give the path in place of a CSV"):
        Participant(
            Private(FedAvg(), clip=1.0, noise_multiplier=1.0), MLP((8,)), LocalSGD(), source, KEYS[0], schema=SCHEMA
        )


def test_a_coordinator_with_another_model_is_refused():
    with pytest.raises(InfeasibleError, match=r"outputs of shape \(3,\), and the schema has 2 classes"):
        Coordinator(FedAvg(), nn.Linear(4, 3), roster_of(3), until=Until(1), schema=SCHEMA)


def test_targets_are_trained_in_the_scale_of_the_schema(tmp_path):
    made = participant(0, tmp_path, schema=regression(), task=Regression())
    assert made.module(torch.zeros(2, 4)).shape == (2, 1)
    assert made.task.fitted(made.examples.train) == Regression(mean=2.0, deviation=4.0)


# --- what a refusal tells


@pytest.mark.parametrize(
    ("rows", "told"), [(0, 0), (1, 0), (4, 0), (5, 5), (7, 5), (8, 10), (122, 120), (10**6 + 2, 10**6)]
)
def test_numbers_of_rows_are_rounded(rows, told):
    assert rounded(rows) == told


def test_a_refusal_names_nothing_that_the_coordinator_does_not_have(tmp_path):
    (tmp_path / "site.csv").write_text(f"age,sex,pressure,state\n40,f,{SECRET.replace(',', '')},0\n")
    with pytest.raises(UnfitTableError) as error:
        participant(0, tmp_path, data=tmp_path / "site.csv")
    assert refusal(error.value) == "number 2 0"
    (tmp_path / "site.csv").write_text(f"{SECRET}\n40,f\n")
    with pytest.raises(UnfitTableError) as error:
        participant(0, tmp_path, data=tmp_path / "site.csv")
    told = refusal(error.value)
    assert {part.split(" ")[0] for part in told.split(", ")} <= {*CODES}
    assert "Jane" not in told


@pytest.mark.parametrize(
    ("told", "understood"),
    [
        ("word 1 15", ": column 'sex' (word, about 15 rows)"),
        ("word 1 17", ": column 'sex' (word, about 15 rows)"),
        ("word 1 0, range 0 5", ": column 'sex' (word), column 'age' (range, about 5 rows)"),
        ("word 999 5", ": the file (word, about 5 rows)"),
        ("word 1 99999999999999", ""),
        ("word -1 5", ""),
        ("word sex 5", ""),
        ("secret 1 5", ""),
        ("word 1 5 7", ""),
        ("", ""),
        (SECRET, ""),
        (", ".join(["word 1 5"] * 10_000), None),
    ],
)
def test_a_forged_refusal_tells_no_more_than_codes_columns_and_numbers(told, understood):
    found = received(f"<class 'E'>:<'{MISFIT}: {told}'>", SCHEMA)
    if understood is None:
        assert len(found) < 1500
    else:
        assert found == f"{MISFIT}{understood}"
    assert received(f"<'{MISFIT}: {told}'>") == MISFIT, "without a schema"


def test_a_digest_that_is_the_same_is_the_same_reading():
    again = msgspec.structs.replace(SCHEMA, name="renamed")
    assert again.digest == SCHEMA.digest
    assert again.reading == SCHEMA.reading
