"""Sites agree on the scaling of their schema before a run: small cells stay, and what cannot be is named."""

import dataclasses
import json
import shutil
import time
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from flower.federations import KEYS, QUICK, at_nodes, roster_of
from phalanx import LocalSGD, Until
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg, Private
from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.data import CSV, Schema
from phalanx.data.table_columns import Scaling, Use
from phalanx.data.table_statistics import NoStatisticsError, SiteStatistics, scaled_by, statistics_of
from phalanx.flower import Coordinator, InProcessGrid, Participant, Roster, client_app
from phalanx.flower.audit import read
from phalanx.flower.demo import DIGITS_SCHEMA, deal
from phalanx.flower.gathered_statistics import IMPOSSIBLE, STATISTICS, gather
from phalanx.flower.local_federation import LocalFederation, marked
from phalanx.models import MLP
from phalanx.runs.files import AUDIT

APP = Path(__file__).parents[2] / "examples" / "flower"
SECRET = "SMITH, Jane"
TEXT = """{"fields": [
 {"name": "age", "type": "number", "constraints": {"minimum": 0, "maximum": 120},
  "phalanx": {"scaling": {"mean": 0, "deviation": 1}, "impute": {"value": 0}}},
 {"name": "state", "type": "string", "categories": ["healthy", "ill"], "phalanx": {"role": "target"}}]}"""
SCHEMA = Schema.parse(TEXT.encode(), "schema.json")


@dataclasses.dataclass(frozen=True, eq=False)
class Liar(Participant):
    """A site that tells what it likes."""

    lie: bytes = b""

    def table_statistics(self):
        return self.lie


def table(site, n=90, ill=40):
    rng = np.random.default_rng(site)
    return pd.DataFrame({"age": rng.integers(30, 80, n), "state": ["ill"] * ill + ["healthy"] * (n - ill)})


def site(number, folder, made=Participant, frame=None, **options):
    path = folder / f"site-{number}.csv"
    (table(number) if frame is None else frame).to_csv(path, index=False)
    given = {"data": path, "schema": SCHEMA, "statistics": True} | options
    plan = FedAvg(aggregate=Median()), MLP((8,)), LocalSGD(lr=0.1)
    return made(*plan, key=KEYS[number], coordinator="any", **given)


def asked(sites, folder, **options):
    settings = {"statistics": True, "schema": SCHEMA, "until": Until(1), "timeouts": QUICK} | options
    made = Coordinator(FedAvg(aggregate=Median()), MLP((8,)), roster_of(len(sites)), folder=folder, **settings)
    with InProcessGrid(at_nodes({i: client_app(one) for i, one in enumerate(sites)})) as grid:
        return gather(grid, made)


def events(folder, event=IMPOSSIBLE):
    return [(entry.client, entry.why) for entry in read(folder / STATISTICS / AUDIT) if entry.event == event]


def lie(**changes):
    """What a site tells, changed."""
    column = {"mean": 50.0, "deviation": 14.0} | changes.pop("age", {})
    told = {"schema": SCHEMA.digest, "rows": 90, "classes": {"healthy": 50, "ill": 40}, "columns": {"age": column}}
    return json.dumps(told | changes).encode()


def test_sites_agree_on_the_median_of_what_their_files_say(tmp_path):
    sites = [site(0, tmp_path), site(1, tmp_path, frame=table(1, ill=3)), site(2, tmp_path)]
    found = asked(sites, tmp_path)
    assert not (tmp_path / STATISTICS / "schema.json.sig").exists(), "this coordinator has no key"
    told = {str(i): statistics_of(SCHEMA, str(one.data)) for i, one in enumerate(sites)}
    assert found == scaled_by(SCHEMA, told).schema != SCHEMA
    folder = tmp_path / STATISTICS
    assert Schema.load(folder / "schema.json") == found
    kept = [SiteStatistics.parse((folder / f"{i}.json").read_bytes(), "kept") for i in range(3)]
    assert kept == [*told.values()]
    assert kept[1].classes == {"healthy": 85, "ill": 0}, "fewer than five are not counted"
    trail = read(folder / AUDIT)
    assert [entry.event for entry in trail].count("enrolled") == 3
    assert trail[-1].event == "ended"
    assert "the median of 3 sites, about 270 rows" in trail[-1].why
    assert "1 site may lie" in trail[-1].why
    assert events(tmp_path) == []
    files = [str(folder / f"{i}.json") for i in range(3)]
    (tmp_path / "open.json").write_bytes(SCHEMA.json)
    assert (
        main(["schema", "scale", *files, "--schema", str(tmp_path / "open.json"), "-o", str(tmp_path / "s.json")]) == 0
    )
    assert Schema.load(tmp_path / "s.json") == found


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (lie(age={"mean": 1e9}), "its mean 1e+09 is outside of the bounds 0 to 120"),
        (lie(age={"deviation": 70.0}), "its deviation 70 is above 59.2, the largest"),
        (lie(rows=1000), "its classes have 90 rows, and it has 1,000"),
        (lie(rows=-5), "rows"),
        (lie(age={"mean": float("nan")}), "no JSON"),
        (lie(schema="sha256:" + "0" * 64), "statistics by the schema"),
        (lie(columns={}), "does not have the statistics of the columns"),
        (b"[" * 10_000, "holds no statistics"),
        (b" " * 1_000_001, "1,000,000 at most"),
    ],
)  # fmt: skip
def test_impossible_statistics_are_an_event_of_the_audit_trail_and_not_used(told, why, tmp_path):
    sites = [site(0, tmp_path), site(1, tmp_path), site(2, tmp_path, Liar, lie=told)]
    found = asked(sites, tmp_path)
    ((client, said),) = events(tmp_path)
    assert client == 2
    assert why in said
    honest = {str(i): statistics_of(SCHEMA, str(sites[i].data)) for i in range(2)}
    assert found == scaled_by(SCHEMA, honest).schema


def test_where_nobody_tells_what_can_be_nothing_is_written_and_the_trail_says_why(tmp_path):
    sites = [site(i, tmp_path, Liar, lie=lie(age={"mean": 1e9})) for i in range(2)]
    with pytest.raises(NoStatisticsError, match="No site has statistics of any column that can be"):
        asked(sites, tmp_path)
    assert [client for client, _ in events(tmp_path)] == [0, 1]
    assert not (tmp_path / STATISTICS / "schema.json").exists()


def test_a_site_tells_only_if_its_own_settings_say_so(tmp_path):
    silent = site(2, tmp_path, statistics=False)
    asked([site(0, tmp_path), site(1, tmp_path), silent], tmp_path)
    assert [client for client, _ in events(tmp_path, "lost")] == [2]
    assert not (tmp_path / STATISTICS / "2.json").exists()
    with pytest.raises(InfeasibleError, match="No site sent statistics"):
        asked([dataclasses.replace(silent, key=KEYS[0])], tmp_path / "none")


@pytest.mark.slow
def test_a_refusal_quotes_no_cell(tmp_path):
    frame = table(2).astype({"age": object})
    frame.loc[3, "age"] = SECRET
    lost = dataclasses.replace(QUICK, least=2, enrolment=3.0)
    bad = tmp_path / "site-2.csv"
    frame.to_csv(bad, index=False)

    def app(message, context):
        return client_app(lambda _: site(2, tmp_path, frame=frame))(message, context)

    made = Coordinator(FedAvg(aggregate=Median()), MLP((8,)), roster_of(3), folder=tmp_path, statistics=True,
                       schema=SCHEMA, until=Until(1), timeouts=lost)  # fmt: skip
    nodes = at_nodes({**{i: client_app(site(i, tmp_path)) for i in range(2)}, 2: app})
    with InProcessGrid(nodes) as grid:
        gather(grid, made)
    assert any("column 'age' (number)" in why for _, why in events(tmp_path, "turned away"))
    assert not [file for file in (tmp_path / STATISTICS).iterdir() if SECRET.encode() in file.read_bytes()]


@pytest.mark.slow
def test_too_few_sites_or_rows_end_it(tmp_path):
    few = site(1, tmp_path, frame=table(1, n=19, ill=9))
    quick = dataclasses.replace(QUICK, enrolment=2.0)
    with pytest.raises(InfeasibleError, match=r"1 site of the 2 that are needed enrolled"):
        asked([site(0, tmp_path), few], tmp_path, timeouts=quick)
    with pytest.raises(InfeasibleError, match="statistics need 20"):
        few.table_statistics()


def test_what_tells_no_statistics_is_refused(tmp_path):
    plain = site(0, tmp_path)
    with pytest.raises(InfeasibleError, match="statistics are those of a table by a schema"):
        dataclasses.replace(plain, data=plain.examples.train)
    with pytest.raises(InfeasibleError, match="noise does not hide them"):
        dataclasses.replace(plain, algorithm=Private(FedAvg(), clip=1.0, noise_multiplier=1.0))
    with pytest.raises(InfeasibleError, match="Give schema and folder"):
        Coordinator(FedAvg(), MLP((8,)), roster_of(1), until=Until(1), schema=SCHEMA, statistics=True)
    other = site(1, tmp_path, data=CSV(str(tmp_path / "site-1.csv"), "state"))
    assert other.table_statistics() == statistics_of(SCHEMA, str(tmp_path / "site-1.csv")).json


@pytest.mark.slow
def test_real_sites_agree_between_processes(tmp_path):
    configs = deal(tmp_path / "data", 4)
    scaled = [msgspec.structs.replace(each, use=Use(scaling=Scaling(mean=0, deviation=1)))
              for each in DIGITS_SCHEMA.inputs_of]  # fmt: skip
    schema = tmp_path / "data" / "schema.json"
    schema.write_bytes(msgspec.structs.replace(DIGITS_SCHEMA, fields=(*scaled, DIGITS_SCHEMA.target)).json)
    app = tmp_path / "app"
    shutil.copytree(APP, app)
    server = app / "hospitals" / "server.py"
    server.write_text(server.read_text().replace("Timeouts(answer=120.0)", "Timeouts(enrolment=300.0)"))
    told = {"roster": str(tmp_path / "roster.yaml"), "folder": str(tmp_path / "run"), "schema": str(schema)}
    with LocalFederation(tmp_path, 4, configs) as federation:
        run = federation.run(app, told | {"statistics": True})
        deadline = time.monotonic() + 400
        while run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        log = (tmp_path / "logs" / "run.log").read_text(errors="replace")
        assert run.poll() == 0, log[-3000:]
    assert marked(federation.mark) == []
    sites = {str(i): statistics_of(Schema.load(schema), configs[i]["table"]) for i in range(4)}
    assert Schema.load(tmp_path / "run" / STATISTICS / "schema.json") == scaled_by(Schema.load(schema), sites).schema
    agreed, key = tmp_path / "run" / STATISTICS / "schema.json", Roster.load(tmp_path / "roster.yaml").coordinator
    assert main(["schema", "verify", str(agreed), "--coordinator", key]) == 0
    assert "the median of 4 sites" in read(tmp_path / "run" / STATISTICS / AUDIT)[-1].why
    assert not (tmp_path / "run" / "history.jsonl").exists()
