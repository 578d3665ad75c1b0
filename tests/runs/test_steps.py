"""A history in its file, compared with the same steps in a list."""

import copy
import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.algorithms import FedAsync
from phalanx.core import Until, Verdict
from phalanx.runs import steps as module
from phalanx.runs.history import History
from phalanx.runs.plan import Run
from phalanx.runs.record import Record, as_lines, read_lines
from phalanx.runs.schema import StepRecord, to_json
from phalanx.runs.seal import Mark, chain_of, split
from phalanx.runs.session import simulate
from phalanx.runs.steps import BLOCK, StoredSteps


def some(count):
    return [
        StepRecord(step=k, version=k, seconds=k / 3, verdicts={k % 7: Verdict(True, 0.5, None, "x" * (k % 11))})
        for k in range(count)
    ]


def stored(folder, steps):
    path = folder / "history.jsonl"
    path.write_bytes(as_lines(steps) + b'{"torn')
    return StoredSteps(path, [len(to_json(step)) for step in steps])


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_it_is_the_list_of_its_steps(count, tmp_path):
    steps = some(count)
    kept = stored(tmp_path, steps)
    assert len(kept) == count
    assert list(kept) == steps
    assert kept == steps
    assert steps == kept, "in both directions"
    assert kept != steps[1:] or not count
    assert [*reversed(kept)] == steps[::-1]
    assert (kept == tuple(steps), kept == "text") == (True, False)
    assert type(pickle.loads(pickle.dumps(kept))) is list
    assert copy.deepcopy(kept) == steps
    assert bool(kept) == bool(steps)


@given(st.data())
def test_any_index_and_any_slice_gives_what_a_list_gives(tmp_path_factory, data):
    steps = some(data.draw(st.sampled_from([1, 5, BLOCK, 2 * BLOCK + 3])))
    kept = stored(tmp_path_factory.mktemp("steps"), steps)
    ends = st.none() | st.integers(-3 * BLOCK, 3 * BLOCK)
    cut = slice(data.draw(ends), data.draw(ends), data.draw(st.none() | st.integers(-5, 5).filter(bool)))
    assert kept[cut] == steps[cut]
    k = data.draw(st.integers(-len(steps), len(steps) - 1))
    assert kept[k] == steps[k]
    with pytest.raises(IndexError):
        kept[len(steps)]


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 4, 3 * BLOCK])
def test_what_is_cut_off_is_gone_and_new_lines_follow(count, tmp_path):
    steps = some(2 * BLOCK + 5)
    kept = stored(tmp_path, steps)
    assert kept[-1] == steps[-1], "its last block is in memory"
    kept.cut(count)
    left = steps[:count]
    assert (list(kept), kept.size) == (left, len(as_lines(left)))
    new = StepRecord(step=999, version=1, seconds=0.0)
    (tmp_path / "history.jsonl").write_bytes(as_lines([*left, new]))
    kept.note(len(to_json(new)))
    assert kept[len(left)] == new
    assert kept == [*left, new]


def test_steps_can_be_read_when_the_file_is_gone_or_another(tmp_path):
    steps = some(BLOCK + 3)
    kept = stored(tmp_path, steps)
    (tmp_path / "new").write_text("another")
    (tmp_path / "new").replace(tmp_path / "history.jsonl")
    assert kept == steps
    (tmp_path / "history.jsonl").unlink()
    assert kept[0] == steps[0]


def test_the_first_lines_of_a_file_are_checked_and_stay_there(tmp_path):
    steps = some(7)
    stored(tmp_path, steps)
    path = tmp_path / "history.jsonl"
    lines = split(as_lines(steps))
    assert read_lines(path, chain_of(lines[:5]).mark) == steps[:5]
    whole = chain_of(lines).mark
    for mark in (Mark(5, "0" * 64), whole._replace(lines=9), whole._replace(lines=5)):
        with pytest.raises(ValueError, match="lines are not those of its checkpoint"):
            read_lines(path, mark)


def test_a_history_with_a_file_holds_no_steps_in_memory(tmp_path):
    """1.2 KB an arrival in the past."""

    def grown(count):
        tracemalloc.start()
        try:
            with History(path=tmp_path / f"{count}.jsonl") as history:
                for step in some(count):
                    history._write(step)
                return tracemalloc.get_traced_memory()[0], len(history.lines)
        finally:
            tracemalloc.stop()

    grown(300)
    (less, _), (more, count) = grown(1000), grown(5000)
    assert count == 5000
    assert more - less < 40 * 4000, "bytes: the steps of the test itself are gone, and no step is kept"


@pytest.mark.parametrize("small", [0, module.SMALL])
def test_a_run_in_a_folder_has_the_same_record_wherever_its_history_is(small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SMALL", small)
    plan = Run(FedAsync(), clients=4, until=Until(60))
    record = simulate(plan, folder=tmp_path)
    assert type(record.history) is (list if small else StoredSteps)
    plain = simulate(plan)
    assert type(plain.history) is list
    assert record.history == plain.history
    assert record.history[-1:] == plain.history[-1:]
    assert Record.load(tmp_path) == record
    before = (tmp_path / "history.jsonl").stat().st_ino
    record.save(tmp_path)
    assert (tmp_path / "history.jsonl").stat().st_ino == before, "nothing is written twice"
