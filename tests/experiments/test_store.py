"""Records in files of their own, and packed into one."""

import gzip
import json
from dataclasses import replace

import pandas
import pytest

from phalanx.data import Digits
from phalanx.experiments.store import PACKED, Store
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

PLANS = [Run(data=Digits(), seed=seed) for seed in range(3)]


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    for plan in PLANS:
        store.keep(Trace.of_failure(plan, "Nobody is left.", 1.0 / 3))
    return store


def test_packed_records_are_the_same_and_read_in_one_line(store, tmp_path):
    before = [store.find(plan)[0] for plan in PLANS]
    assert store.pack() == 3
    assert [path.name for path in tmp_path.iterdir()] == [PACKED]
    assert [Store(tmp_path).find(plan)[0] for plan in PLANS] == before
    frame = pandas.read_json(tmp_path / PACKED, lines=True)
    assert set(frame["identity"]) == {plan.identity for plan in PLANS}
    assert set(frame["seed"]) == {0, 1, 2}


def test_packing_again_gives_the_same_bytes(store):
    store.pack()
    before = store.packed.read_bytes()
    assert store.pack() == 3
    assert store.packed.read_bytes() == before


def test_a_newer_record_in_a_file_of_its_own_counts_until_it_replaces_the_packed_one(store):
    store.pack()
    newer = Trace.of_failure(PLANS[0], "The server is gone.", 2.0)
    store.keep(newer)
    assert store.find(PLANS[0])[0] == newer
    assert store.pack() == 3
    assert store.find(PLANS[0])[0] == newer
    assert len(list(store.traces())) == 3


def test_what_is_in_neither_place_is_not_held(store):
    other = replace(PLANS[0], seed=9)
    for _ in range(2):
        assert [store.holds(plan) for plan in (*PLANS, other)] == [True, True, True, False]
        assert store.find(other) == (None, "")
        store.pack()


def test_a_damaged_file_is_an_error_that_names_it(store):
    store.pack()
    good = store.packed.read_bytes()
    for bad in (good[:-20], b"no gzip", gzip.compress(gzip.decompress(good).replace(b'"seed": 0', b'"seed": x'))):
        store.packed.write_bytes(bad)
        with pytest.raises(ValueError, match=r"records\.jsonl\.gz .*estore the file"):
            list(Store(store.packed.parent).traces())


def test_a_damaged_record_is_not_packed(store):
    store.path(PLANS[1]).write_text("{}")
    with pytest.raises(ValueError, match="not the record of a run"):
        store.pack()
    assert not store.packed.exists()
    assert store.path(PLANS[0]).is_file()


# --- seals


@pytest.mark.parametrize("name", ["curves", "status", "seed", "excluded", "detection", "wall_seconds", "error"])
def test_a_record_that_was_changed_is_refused_with_what_changed(name, tmp_path):
    trace = Trace.of_failure(PLANS[0], "Nobody is left.", 1.0)
    trace.save(path := tmp_path / f"{trace.identity}.json")
    form = json.loads(path.read_text())
    form[name] = {"curves": {"accuracy": [0.99]}, "status": "finished", "seed": 7, "wall_seconds": 9.0, "error": "no",
                  "excluded": [{"client": 0, "step": 1, "reason": ""}], "detection": {"recall": 1.0}}[name]  # fmt: skip
    path.write_text(json.dumps(form))
    with pytest.raises(ValueError, match=f"is not the record of a run: {name} changed since it was written"):
        Trace.load(path)


@pytest.mark.parametrize("seal", [{}, [], "x", {"curves": "0" * 16}])
def test_a_seal_that_was_emptied_is_no_seal(seal, tmp_path):
    trace = Trace.of_failure(PLANS[0], "Nobody is left.", 1.0)
    trace.save(path := tmp_path / f"{trace.identity}.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seal": seal}))
    with pytest.raises(ValueError, match="changed since it was written"):
        Trace.load(path)


def test_a_record_without_a_seal_is_read_and_stays_without_one(tmp_path):
    trace = Trace.of_failure(PLANS[0], "Nobody is left.", 1.0)
    trace.save(path := tmp_path / "records" / f"{trace.identity}.json")
    assert Trace.load(path).sealed
    form = json.loads(path.read_text())
    del form["seal"]
    path.write_text(json.dumps(form))
    (found,) = Store(tmp_path).traces()
    assert (found, found.sealed) == (trace, False)
    Store(tmp_path).pack()
    (packed,) = Store(tmp_path).traces()
    assert not packed.sealed


def test_packed_records_keep_their_seals(tmp_path):
    trace = Trace.of_failure(PLANS[0], "Nobody is left.", 1.0)
    trace.save(tmp_path / "records" / f"{trace.identity}.json")
    store = Store(tmp_path)
    store.pack()
    assert [found.sealed for found in Store(tmp_path).traces()] == [True]
    text = gzip.decompress(store.packed.read_bytes()).replace(b'"wall_seconds": ', b'"wall_seconds": 1')
    store.packed.write_bytes(gzip.compress(text))
    with pytest.raises(ValueError, match=r"wall_seconds changed since it was written|holds an invalid record"):
        [*Store(tmp_path).traces()]
