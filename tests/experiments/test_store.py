"""Records in files of their own, and packed into one."""

import gzip
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
