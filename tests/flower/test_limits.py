"""The memory that a reply may take at the coordinator."""

import dataclasses
import json
import threading
import time
from hashlib import sha256

import pytest
from flwr.app import Array, ArrayRecord
from flwr.app.message.arraychunk import ArrayChunk
from flwr.superlink.grid import http_grid

import phalanx
from flower.federations import QUICK, SMALL, at_nodes, attacked, coordinator, honest
from phalanx.flower import InProcessGrid, coordinate
from phalanx.flower.codec import MalformedError
from phalanx.flower.limits import at_most, most_bytes
from phalanx.runs.record import Record


def bomb(times):
    """An array of which the only piece, of 1000 bytes, is named so many times; and its pieces."""
    piece = ArrayChunk(memoryview(bytes(1000)))
    number = sha256(piece.deflate()).hexdigest()
    fields = {"dtype": "float32", "shape": [250], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}
    body = json.dumps(fields).encode()
    return f"Array {number} {len(body)}".encode() + b"\0" + body, {number: piece}


def test_an_array_that_names_a_piece_often_is_refused_before_it_is_built():
    content, pieces = bomb(5)
    with at_most(5000):
        assert len(Array.inflate(content, pieces).data) == 5000
    with at_most(4999), pytest.raises(MalformedError, match="more than 4,999 bytes"):
        Array.inflate(content, pieces)
    content, pieces = bomb(1_000_000)
    with at_most(5000), pytest.raises(MalformedError):
        Array.inflate(content, pieces)


def test_the_bytes_of_all_arrays_of_a_reply_count_together():
    content, pieces = bomb(2)
    with at_most(5000):
        Array.inflate(content, pieces)
        Array.inflate(content, pieces)
        with pytest.raises(MalformedError):
            Array.inflate(content, pieces)
    with at_most(5000):
        Array.inflate(content, pieces)


def test_the_bound_is_that_of_a_thread_and_of_a_moment():
    content, pieces = bomb(5)
    sizes = []
    with at_most(10):
        other = threading.Thread(target=lambda: sizes.append(len(Array.inflate(content, pieces).data)))
        other.start()
        other.join()
    assert sizes == [5000]
    assert len(Array.inflate(content, pieces).data) == 5000


def test_no_more_is_fetched_than_a_reply_may_have():
    fetched = []

    def fetch(number):
        fetched.append(number)
        return bytes(1000)

    numbers = [str(k) for k in range(500)]
    with at_most(5500), pytest.raises(MalformedError, match="more than 5,500 bytes"):
        http_grid.pull_objects(numbers, fetch)
    assert 6 <= len(fetched) <= 12, "some are under way in other threads"
    with at_most(500_000):
        assert len(http_grid.pull_objects(numbers, fetch)) == 500
    assert len(http_grid.pull_objects(numbers, fetch)) == 500


def large(message, reply, context):
    """An answer with 64 MB of zeros, which Flower sends as one piece of 5 MB."""
    array = Array("float32", (1 << 24,), "numpy.ndarray", bytes(1 << 26))
    reply.content["vector"] = ArrayRecord({"vector": array})
    return reply


def test_an_answer_that_is_too_large_is_invalid_and_the_run_goes_on(tmp_path):
    plan = dataclasses.replace(SMALL, clients=3, until=phalanx.Until(3))
    apps = honest(plan, tmp_path)
    apps[1] = attacked(apps[1], large)
    with InProcessGrid(at_nodes(apps)) as grid:
        coordinate(grid, coordinator(plan, folder=tmp_path / "run"))
    record = Record.load(tmp_path / "run")
    assert [set(line.verdicts) for line in record.history[1:]] == [{0, 2}] * 3
    size = sum(p.numel() for p in plan.model.build((5,), 2).parameters())
    assert f"more than {most_bytes(size):,} bytes" in record.history[1].invalid[1]


def test_a_stranger_cannot_introduce_itself_with_much(tmp_path, caplog):
    plan = dataclasses.replace(SMALL, clients=3, until=phalanx.Until(1))
    apps = at_nodes(honest(plan, tmp_path))
    apps[7] = attacked(apps[100], large, kind="query")

    def said():
        return [entry.message for entry in caplog.records if "node 7" in entry.message]

    def wait(progress):
        deadline = time.monotonic() + QUICK.introduction
        while not said() and time.monotonic() < deadline:
            time.sleep(0.01)

    with InProcessGrid(apps) as grid:
        coordinate(grid, coordinator(plan, folder=tmp_path / "run", observers=[wait]))
    (line,) = said()
    assert f"more than {most_bytes(0):,} bytes" in line
