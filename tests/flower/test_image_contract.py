"""Hospitals with images and one schema: a site whose images do not fit takes no part, and their names stay there."""

import dataclasses
import logging

import pytest
import torch
from torch import nn

from data.test_image_schema import SECRET, drawn, save, schema
from data.test_images import folder, table
from flower.federations import FIRST_NODE, KEYS, QUICK, at_nodes, roster_of
from phalanx import LocalSGD, Record, Until
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.core import InfeasibleError
from phalanx.data import CSV, Dataset, ImageFolder, ImageTable
from phalanx.data.table_schema import UnfitTableError
from phalanx.flower import Coordinator, InProcessGrid, Participant, client_app, coordinate
from phalanx.flower.audit import read
from phalanx.flower.contract import refusal
from phalanx.flower.gate import MISFIT
from phalanx.models import MLP
from phalanx.runs.files import AUDIT

SCHEMA = schema()


def site(number, data, **options):
    given = {"schema": SCHEMA, "coordinator": "any", "model": MLP((8,))} | options
    return Participant(FedAvg(aggregate=Median()), training=LocalSGD(lr=0.1), data=data, key=KEYS[number], **given)


@pytest.fixture
def pets(tmp_path):
    return [folder(tmp_path / f"site-{i}", each=8) for i in range(3)]


def test_a_folder_and_a_table_are_read_by_the_schema(pets, tmp_path):
    whole = site(0, tmp_path / "site-0").examples
    assert (len(whole.train), whole.train.shape, whole.held_out) == (16, (3, 6, 6), None)
    rows = [f"{label}/{i}.png,{label}" for label in ("cat", "dog") for i in range(8)]
    csv = table(tmp_path / "site-0", rows, "image,class")
    assert torch.equal(site(0, csv).examples.train.x, whole.train.x)
    for source in (ImageFolder(pets[0]), ImageTable(csv, label="class")):
        train, test = site(0, source).examples
        assert (len(train), len(test)) == (12, 4)


def test_three_sites_train_and_one_whose_images_do_not_fit_is_named_without_a_name_of_a_file(pets, tmp_path, caplog):
    for i in range(13):
        save(drawn("L", height=9), tmp_path / "site-2" / "cat" / f"{SECRET}-{i}.png")
    save(drawn(), tmp_path / "site-2" / SECRET / "1.png")
    apps = {i: client_app(site(i, tmp_path / f"site-{i}")) for i in range(2)}
    apps[2] = client_app(lambda _: site(2, tmp_path / "site-2"))
    times = dataclasses.replace(QUICK, least=2, enrolment=3.0)
    made = Coordinator(
        FedAvg(aggregate=Median()), MLP((8,)), roster_of(3), until=Until(2), folder=tmp_path / "run",
        schema=SCHEMA, timeouts=times, accept=("no promise",),
    )  # fmt: skip
    with caplog.at_level(logging.INFO), InProcessGrid(at_nodes(apps)) as grid:
        coordinate(grid, made)
    (away,) = {one.why for one in read(tmp_path / "run" / AUDIT) if one.event == "turned away"}
    wanted = "the images (word), the images (size, about 15 images)"
    assert away == f"node {FIRST_NODE + 2}: its app failed: {MISFIT}: {wanted}"
    own = "\n".join(one.exc_text or "" for one in caplog.records if one.name == "phalanx.flower.client")
    assert "13 of 30 images: another size than 6 x 6 pixels. Save them so." in own
    assert "1 of 30 images: another class than 'cat', 'dog'" in own
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
    record = Record.load(tmp_path / "run")
    assert [*record.summary.clients] == [0, 1]
    kept = record.kept()
    assert (kept.index.inputs.shape, kept.schema.digest) == ((3, 6, 6), SCHEMA.digest)
    assert record.config["schema"] == SCHEMA.digest


def test_too_few_images_and_no_image_are_refused_by_code(tmp_path, pets):
    with pytest.raises(UnfitTableError) as caught:
        site(0, tmp_path / "site-0", schema=SCHEMA.asking(17))
    assert refusal(caught.value) == "rows 1 0"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnfitTableError) as caught:
        site(0, tmp_path / "empty")
    assert refusal(caught.value) == "file 1 0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics": True}, "statistics are those of a table"),
        ({"schema": None, "model": nn.Flatten()}, "So do images"),
        ({"model": nn.Linear(108, 2)}, r"does not take images of shape \(3, 6, 6\), as those of the schema"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(108, 3))}, "and the schema has 2 classes"),
        ({"data": CSV("x.csv", "class")}, "the schema describes images|describes images, and no table"),
        ({"data": Dataset(torch.zeros(4, 3, 5, 5), torch.zeros(4, dtype=torch.int64), 2)}, r"shape \(3, 6, 6\)"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(options, message, tmp_path, pets):
    with pytest.raises((InfeasibleError, UnfitTableError), match=message):
        site(0, **({"data": tmp_path / "site-0"} | options))


def test_images_that_were_read_by_themselves_are_refused(tmp_path, pets):
    with pytest.raises(InfeasibleError, match="images of data were not read by this schema"):
        site(0, ImageFolder(pets[0]).load()[0])
    (tmp_path / "schema.json").write_bytes(SCHEMA.json)
    site(0, ImageFolder(pets[0], schema=str(tmp_path / "schema.json")).load()[0])
