"""Files of a deployment with one hostile value in the place of each text: read, they are refused or harmless."""

import base64
import json
import shutil
from datetime import datetime

import pytest
import yaml
from PIL import Image

from phalanx.data import Schema
from phalanx.data.image_form import Images
from phalanx.data.table_columns import Constraints, Field, Imputation, Scaling, Use
from phalanx.data.table_schema import Writing
from phalanx.data.table_statistics import SiteStatistics, statistics_of
from phalanx.flower.identity import EnrolmentRequest, Roster, load_key, new_key, public_text
from phalanx.flower.signed_schema import SchemaSignature, sign_schema
from phalanx.runs.statements import statement
from reliability.test_trust import MODULE, watched

pytestmark = pytest.mark.slow
OUTSIDE = "/etc/hostname"
HOSTILE = {
    "path": "../" * 40 + OUTSIDE[1:], "link": "link", "url": "https://127.0.0.1:9/$(touch marker)`touch marker`",
    "code": "hostile.Boom", "long": "x" * 200_000, "signs": "\x1b[2J\u202e<b>\r\n${key}",
}  # fmt: skip
MOST_SAID = 10_000  # characters, about a text of 200,000
TABLE = Schema(
    name="patients",
    missing_values=("", "none"),
    fields=(
        Field(name="age", type="number", title="Age", description="in years", constraints=Constraints(maximum=150),
              use=Use(unit="a", scaling=Scaling(mean=40, deviation=9), impute=Imputation(value=40))),
        Field(name="sex", type="string", categories=("m", "f"), missing_values=("", "none", "x"),
              use=Use(aliases={"m": ("male",)}, impute=Imputation())),
        Field(name="seen", type="date", format="%d.%m.%Y"),
        Field(name="site", type="string", use=Use(role="owner")),
        Field(name="y", type="string", categories=("no", "yes"), use=Use(role="target")),
    ),
)  # fmt: skip
IMAGES = Schema(
    name="scans",
    fields=(Field(name="kind", type="string", categories=("a", "b"), use=Use(role="target")),),
    writing=Writing(
        images=Images(size=(8, 8), channels="L", stretch=True, values=(1, 9), mean=(0,), deviation=(1,), column="x")
    ),
)


def variants(value, where=""):
    """A document with a hostile value in the place of each text, and of each name, with what is where."""
    if isinstance(value, str) or value is None:
        yield from ((f"{where} {what}", hostile) for what, hostile in HOSTILE.items())
    elif isinstance(value, list):
        for k, each in enumerate(value):
            yield from ((name, [*value[:k], made, *value[k + 1 :]]) for name, made in variants(each, f"{where}.{k}"))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from ((name, value | {key: made}) for name, made in variants(each, f"{where}.{key}"))
        for what in ("code", "long", "signs") if value else ():
            yield f"{where} name {what}", value | {HOSTILE[what]: next(iter(value.values()))}


COMMANDS = {  # that read a file, by its name; @ is the folder with the hostile file
    "request.json": ("flower enrol @request.json --roster @roster.yaml",),
    "renewal.json": ("flower rotate 0 @renewal.json --roster @roster.yaml",),
    "roster.yaml": ("flower roster --roster @roster.yaml", "flower enrol request.json --roster @roster.yaml",
                    "flower rotate 0 renewal.json --roster @roster.yaml", "flower readmit 0 --roster @roster.yaml",
                    "flower revoke 0 --roster @roster.yaml"),
    "schema.json": ("schema check t.csv --schema @schema.json", "schema sign @schema.json",
                    "schema scale site.json --schema @schema.json --out @scaled", "partition --config @config.json"),
    "images.json": ("schema check images --schema @images.json",),
    "schema.json.sig": ("schema verify @schema.json --coordinator KEY",),
    "site.json": ("schema scale @site.json other.json --out @scaled",),
    "consortium.yaml": ("flower kit @consortium.yaml --folder @kit",),
}  # fmt: skip


@pytest.fixture(scope="module")
def received(tmp_path_factory):
    """The folder of a coordinator and what sites have sent to it, and the documents by the name of their file."""
    folder = tmp_path_factory.mktemp("received")
    (folder / "hostile.py").write_text(MODULE.format(marker=folder / "marker"))
    key = new_key(folder / "coordinator.pem")
    coordinator = public_text(key)
    other = EnrolmentRequest.sign("Other", new_key(folder / "old.pem"), coordinator)
    Roster(coordinator=coordinator).adding(other).save(folder / "roster.yaml")
    for file, name in (("request.json", "Site"), ("renewal.json", "Other")):
        own = new_key(folder / f"{name}.pem")
        (folder / file).write_bytes(EnrolmentRequest.sign(name, own, coordinator).text)
    rows = [f"{30 + k},{'mf'[k % 2]},{k + 1:02}.03.2024,{'ab'[k % 2]},{('no', 'yes')[k % 2]}" for k in range(24)]
    (folder / "t.csv").write_text("\n".join(["age,sex,seen,site,y", *rows, ""]))
    (folder / "schema.json").write_bytes(TABLE.json)
    (folder / "images.json").write_bytes(IMAGES.json)
    sign_schema(folder / "schema.json", key)
    for name in ("site.json", "other.json"):
        (folder / name).write_bytes(statistics_of(Schema.load(folder / "schema.json"), str(folder / "t.csv")).json)
    for kind in "ab":
        (folder / "images" / kind).mkdir(parents=True)
        Image.new("L", (8, 8), 5).save(folder / "images" / kind / "1.png")
    sites = [{"name": "A", "contact": "a"}, {"name": "B"}, {"name": "C"}]
    described = {"host": "localhost", "sites": sites, "schema": "schema.json", "folder": "/srv/phalanx"}
    (folder / "consortium.yaml").write_text(json.dumps(described))
    documents = {name: yaml.safe_load((folder / name).read_text()) for name in COMMANDS}
    return folder, documents


def signed(document, key):
    """A request with the signature of a client that signs whatever it likes."""
    time = datetime.fromisoformat(document["time"]).isoformat()
    stated = statement("request", document["name"], document["key"], document["coordinator"], time)
    return document | {"signature": base64.b64encode(key.sign(stated)).decode()}


def jobs(folder, documents):
    """Commands on the documents as they are, and with one hostile value."""
    keys, own = (
        {name: load_key(folder / f"{name}.pem") for name in ("Site", "Other")},
        documents["roster.yaml"]["coordinator"],
    )
    for file, commands in COMMANDS.items():
        for number, (what, document) in enumerate([("as it is", documents[file]), *variants(documents[file])]):
            where = folder / f"{file}-{number}"
            where.mkdir()
            (where / "link").symlink_to(OUTSIDE)
            for name in ("schema.json", "schema.json.sig"):
                (where / name).symlink_to(folder / name)
            source = {"path": "t.csv", "label": "y", "schema": str(where / "schema.json")}
            config = {"clients": 2, "data": {"class_path": "phalanx.data.CSV", "init_args": source}}
            (where / "config.json").write_text(json.dumps(config))
            shutil.copy(folder / "roster.yaml", where)
            named = file in ("request.json", "renewal.json") and what.startswith(".name ")
            made = signed(document, keys[documents[file]["name"]]) if named else document
            (where / file).unlink(missing_ok=True)
            (where / file).write_text(json.dumps(made))
            for command in commands:
                words = [word.replace("@", f"{where}/").replace("KEY", own) for word in command.split()]
                yield f"{file} {what}: {command}", words


def test_no_text_of_a_file_of_a_deployment_is_a_path_a_program_or_an_address(received):
    folder, documents = received
    held = json.dumps(documents)
    for kind in (Schema, Writing, Field, Use, Images, EnrolmentRequest, SchemaSignature, SiteStatistics):
        texts = [name for name in kind.__struct_encode_fields__ if name not in ("leastRows", "fieldsMatch")]
        assert [name for name in texts if f'"{name}"' not in held] == [], kind
    before = {*folder.parent.iterdir()}
    found = watched(folder, dict(jobs(folder, documents)))
    plain = {name: report["status"] for name, report in found.items() if "as it is" in name}
    assert plain == dict.fromkeys(plain, 0), [found[name]["err"] for name in plain]
    wrong = {}
    for name, report in found.items():
        said = report["out"] + report["err"]
        named = name.startswith("consortium.yaml .schema ")  # one's own file, whose schema may be anywhere
        noted = [event for event in report["noted"] if not (named and event == ["open", OUTSIDE])]
        if noted or report["status"] not in (0, 1, 2) or len(said) > MOST_SAID or {*"\x1b\u202e"} & {*said}:
            wrong[name] = noted, report["status"], said[:300]
    assert wrong == {}, json.dumps(wrong, indent=1)
    assert not (folder / "marker").exists()
    assert {*folder.parent.iterdir()} == before
    assert len(found) > 1000
