"""Images by the schema of a federation: drafted, checked, read alike at each site, and refused if they do not fit."""

import json

import numpy as np
import pytest
import torch

from data.test_images import drawn, folder, table
from phalanx import Record, Run, Until, simulate
from phalanx.cli.main import main
from phalanx.data import CSV, ImageFolder, ImageTable, Natural, Schema
from phalanx.data.table_schema import UnfitTableError
from phalanx.errors import NotInRecordError
from phalanx.models import MLP
from phalanx.runs.card import card

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
FORM = {"size": [6, 6], "mean": [0.5, 0.4, 0.3], "deviation": [0.2, 0.2, 0.1]}
TARGET = {"name": "class", "type": "string", "categories": ["cat", "dog"], "phalanx": {"role": "target"}}
SECRET = "SMITH-Jane"


def schema(target=TARGET, **form):
    return Schema.parse(json.dumps({"fields": [target], "phalanx": {"images": FORM | form}}).encode(), "schema.json")


def written(tmp_path, **form):
    (tmp_path / "schema.json").write_bytes(schema(**form).json)
    return str(tmp_path / "schema.json")


def gray(form):
    return form | {"channels": "L", "mean": [], "deviation": []}


def save(image, place, **options):
    place.parent.mkdir(parents=True, exist_ok=True)
    image.save(place, **options)


def test_a_folder_and_a_table_of_the_same_images_become_the_same(tmp_path):
    pets, by = folder(tmp_path / "pets"), written(tmp_path, column="file")
    train, test = ImageFolder(pets, schema=by).load()
    plain, _ = ImageFolder(pets).load()
    mean, deviation = (torch.tensor(FORM[name])[:, None, None] for name in ("mean", "deviation"))
    assert torch.equal(train.x, (plain.x - mean) / deviation)
    assert (train.reading.labels, len(test), Schema.parse(train.reading.schema.encode(), "").digest) == (
        ("cat", "dog"), 2, schema(column="file").digest)  # fmt: skip
    rows = [f"{label}/{i}.png,{label}" for label in ("cat", "dog") for i in range(5)]
    csv = table(tmp_path / "pets", rows, "file,class")
    again, _ = ImageTable(csv, image="file", label="class", schema=by).load()
    assert torch.equal(again.x, train.x)


def test_classes_keep_their_numbers_where_one_is_missing_and_other_words_mean_them(tmp_path):
    pets = folder(tmp_path / "pets", classes=("Hund",), each=5)
    target = TARGET | {"phalanx": {"role": "target", "aliases": {"dog": ["Hund"]}}}
    train, test = schema(target).parts(ImageFolder(pets))
    assert {*train.y.tolist(), *test.y.tolist()} == {1}
    assert train.classes == 2


MISFITS = {  # what one image of ten is, and the code
    "another size": (lambda place: save(drawn(height=9), place), "size"),
    "gray": (lambda place: save(drawn("L"), place), "channels"),
    "transparent": (lambda place: save(drawn("RGBA"), place), "image"),
    "no image": (lambda place: place.write_bytes(b"x"), "image"),
    "four colours": (lambda place: save(drawn().convert("CMYK"), place, format="TIFF"), "channels"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISFITS)
def test_what_does_not_fit_is_refused_with_its_number_and_its_name_stays_here(kind, tmp_path, capsys):
    pets, by = folder(tmp_path / "pets"), written(tmp_path)
    write, code = MISFITS[kind]
    write(tmp_path / "pets" / "cat" / f"{SECRET}.png")
    (tmp_path / "pets" / "cat" / f"{SECRET}.txt").write_text("a file that is left out")
    with pytest.raises(ValueError, match=r"1 of 11 images") as caught:
        ImageFolder(pets, schema=by).load()
    assert isinstance(caught.value, UnfitTableError)
    assert [one.code for one in caught.value.found] == [code]
    assert SECRET not in str(caught.value)
    assert main(["schema", "check", pets, "--schema", by]) == 1
    told = capsys.readouterr().out
    assert SECRET in told
    assert "does not fit: 1 error" in told
    assert main(["schema", "check", pets, "--schema", by, "--json"]) == 1
    told = capsys.readouterr().out
    assert SECRET not in told
    assert json.loads(told)["files"][0]["findings"][0]["code"] == code


def test_another_class_is_refused_and_all_kinds_are_said_at_once(tmp_path):
    pets = folder(tmp_path / "pets", classes=("cat", "dog", "Dog"))
    save(drawn("L", height=9), tmp_path / "pets" / "cat" / "x.png")
    save(drawn("L"), tmp_path / "pets" / "cat" / "y.png")
    with pytest.raises(UnfitTableError) as caught:
        schema().parts(ImageFolder(pets))
    found = {one.code: one.rows for one in caught.value.found}
    assert found == {"word": 5, "size": 1, "channels": 1}


def test_stretched_images_and_values_of_16_bits(tmp_path):
    for i in range(5):
        for label in ("cat", "dog"):
            array = np.full((8, 4), 1000 * i, dtype=np.uint16)
            save(Image.fromarray(array), tmp_path / "pets" / label / f"{i}.png")
    pets = str(tmp_path / "pets")
    train, test = schema(**gray({"stretch": True, "values": [0, 4000]})).parts(ImageFolder(pets))
    levels = sorted(set(torch.cat((train.x, test.x)).flatten().tolist()))
    assert levels == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=1e-6)
    assert train.shape == (1, 6, 6)
    for values in ([0, 255], [0, 3000], [500, 4000]):
        with pytest.raises(UnfitTableError) as caught:
            schema(**gray({"stretch": True, "values": values})).parts(ImageFolder(pets))
        assert [one.code for one in caught.value.found] == ["range"]


@pytest.mark.parametrize(
    ("form", "target", "why"),
    [
        ({"mean": [0.5]}, TARGET, "a deviation for each of 3 channels"),
        ({"values": [255, 255]}, TARGET, "must be below the second"),
        ({"deviation": [0, 1, 1]}, TARGET, "> 0.0"),
        ({"size": [0, 6]}, TARGET, ">= 1"),
        ({"colour": "RGB"}, TARGET, "colour"),
        ({}, {"name": "y", "type": "number", "phalanx": {"role": "target"}}, "a target of type string"),
        ({}, TARGET | {"phalanx": {"role": "input"}}, "a target of type string"),
    ],
)
def test_a_description_that_cannot_be_is_refused(form, target, why):
    with pytest.raises(ValueError, match=why):
        schema(target, **form)


def test_settings_that_the_schema_has_and_tables_are_refused(tmp_path):
    pets, by = folder(tmp_path / "pets"), written(tmp_path)
    for own in ({"size": 6}, {"channels": "L"}, {"class_names": ("cat",)}, {"standardize": True}):
        with pytest.raises(ValueError, match=f"so does {next(iter(own))}"):
            ImageFolder(pets, schema=by, **own)
    (tmp_path / "t.csv").write_text("a,class\n" + "1,cat\n2,dog\n" * 5)
    with pytest.raises(ValueError, match="describes images, and no table"):
        CSV(str(tmp_path / "t.csv"), "class", schema=by).load()
    (tmp_path / "table.json").write_bytes(Schema.of(CSV(str(tmp_path / "t.csv"), "class").load()[0].reading).json)
    with pytest.raises(ValueError, match="describes a table, and no images"):
        ImageFolder(pets, schema=str(tmp_path / "table.json")).load()
    assert main(["schema", "statistics", pets, "--schema", by, "-o", str(tmp_path / "s.json")]) == 2
    with pytest.raises(FileNotFoundError, match="There is no schema"):
        ImageFolder(pets, schema="none.json").load()


def test_a_draft_of_a_folder_fits_it_and_leaves_rare_classes_out(tmp_path, capsys):
    pets, out = folder(tmp_path / "pets"), str(tmp_path / "schema.json")
    save(drawn(), tmp_path / "pets" / SECRET / "1.png")
    assert main(["schema", "init", pets, "-o", out]) == 0
    told, made = capsys.readouterr().out, Schema.load(out)
    assert f"1 class of fewer than 5 images: '{SECRET}' (1)" in told
    assert SECRET not in made.json.decode()
    assert (made.labels, made.shape, made.images.stretch) == (("cat", "dog"), (3, 6, 6), False)
    assert made.images.mean == pytest.approx([0.5] * 3, abs=0.05)
    assert main(["schema", "check", pets, "--schema", out]) == 1
    (tmp_path / "pets" / SECRET / "1.png").unlink()
    assert main(["schema", "check", pets, "--schema", out]) == 0
    assert "10 images, cat 5, dog 5." in capsys.readouterr().out
    assert main(["doctor", "--schema", out, "--tables", pets, "--ports", "1"]) in (0, 1)
    assert "10 images, cat 5, dog 5" in capsys.readouterr().out


def test_a_draft_of_several_sizes_asks_for_one_and_one_of_a_table_names_its_columns(tmp_path, capsys):
    save(drawn(height=9), tmp_path / "pets" / "cat" / "x.png")
    pets, out = folder(tmp_path / "pets" / "..", classes=()), str(tmp_path / "schema.json")
    pets = folder(tmp_path / "more")
    save(drawn(height=9), tmp_path / "more" / "cat" / "x.png")
    assert main(["schema", "init", pets, "-o", out]) == 1
    assert "2 sizes, from 6 x 6 to 9 x 6 pixels" in capsys.readouterr().out
    assert main(["schema", "init", pets, "--size", "4", "-o", out]) == 0
    assert (Schema.load(out).images.size, Schema.load(out).images.stretch) == ((4, 4), True)
    rows = [f"{label}/{i}.png,{label}" for label in ("cat", "dog") for i in range(5)]
    csv = table(tmp_path / "more", rows, "file,animal")
    assert main(["schema", "init", csv, "--image", "file", "--target", "animal", "-o", out, "--again"]) == 0
    assert (Schema.load(out).images.column, Schema.load(out).target.name) == ("file", "animal")
    assert main(["schema", "check", csv, "--schema", out]) == 0
    for wrong in (["--size", "0"], ["--owner", "x"]):
        assert main(["schema", "init", pets, *wrong, "-o", out, "--again"]) == 2


def test_a_run_keeps_the_schema_and_its_card_evaluation_and_record_say_so(tmp_path, capsys):
    folder(tmp_path / "sites", ("east", "west"))
    by = written(tmp_path)
    data = ImageFolder(str(tmp_path / "sites" / "*"), schema=by)
    plan = Run(data=data, clients=2, partition=Natural(), model=MLP((8,)), until=Until(2))
    simulate(plan, folder=tmp_path / "run")
    record = Record.load(tmp_path / "run")
    kept = record.kept()
    assert kept.index.inputs.schema == kept.schema.digest == schema().digest
    assert f"{schema().digest}, in schema.json" in card(record)
    assert "6 x 6 pixels, RGB, values 0 to 255, scaled" in card(record)
    assert "record.inputs" not in card(record)
    with pytest.raises(NotInRecordError, match="trained on images"):
        _ = record.schema
    pets = folder(tmp_path / "new")
    named = ["evaluate", str(tmp_path / "run"), "--data", "ImageFolder", "--data.path", pets]
    assert main([*named, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 10
    save(drawn("L"), tmp_path / "new" / "cat" / "x.png")
    assert main(named) == 2
    onnx, out = pytest.importorskip("onnx"), str(tmp_path / "m.onnx")
    assert main(["export", str(tmp_path / "run"), "--format", "onnx", "--out", out]) == 0
    about = {one.key: one.value for one in onnx.load(out).metadata_props}
    assert Schema.parse(about["phalanx.schema"].encode(), "") == schema()
    assert about["phalanx.schema.digest"] == schema().digest
