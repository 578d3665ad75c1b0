"""Work in several threads."""

import multiprocessing
import os
import sys
import threading
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from numba import njit

from phalanx.numerics import threads
from phalanx.numerics.threads import SMALL, WorkerThreads, alone, claim, in_threads


@pytest.fixture(params=[1, 2, 5])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


TAKING = threading.Lock()


def claimed(parts, taken):
    """The parts that are this thread's, as a kernel claims them."""
    while True:
        with TAKING:
            n, taken[0] = int(taken[0]), taken[0] + 1
        if n >= len(parts):
            return
        yield parts[n]


def squared(results, parts, taken):
    mine = [int(x) for (x,) in claimed(parts, taken)]
    for x in mine:
        results[x] = x * x
    return len(mine)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("count", [1, 2, 50])
def test_each_part_is_done_once(count):
    results = [0] * count
    done = in_threads(squared, (results,), [(x,) for x in range(count)], SMALL + 1)
    assert sum(done) == count
    assert len(done) <= min(count, torch.get_num_threads())
    assert results == [x * x for x in range(count)]


@pytest.mark.usefixtures("_threads")
def test_a_mistake_comes_out_whoever_made_it():
    def checked(parts, taken):
        if 9 in claimed(parts, taken):
            raise ValueError("nine is wrong")

    with pytest.raises(ValueError, match="nine is wrong"):
        in_threads(checked, (), [(x,) for x in range(10)], SMALL + 1)
    assert sum(in_threads(squared, ([0],), [(0,)], SMALL + 1)) == 1, "and the next work goes on"


def who(parts, taken):
    return threading.get_ident(), len(list(claimed(parts, taken)))


@pytest.mark.usefixtures("two_threads")
def test_little_work_stays_in_its_thread():
    assert in_threads(who, (), [(x,) for x in range(9)], SMALL) == [(threading.get_ident(), 9)]


@pytest.mark.usefixtures("two_threads")
def test_several_threads_are_at_work():
    """Each call waits for the other: one thread alone would wait for ever."""
    meeting = threading.Barrier(2, timeout=30)
    assert sorted(in_threads(lambda *_: meeting.wait(), (), [(0,), (1,)], SMALL + 1)) == [0, 1]


@pytest.mark.usefixtures("two_threads")
def test_what_a_thread_did_not_begin_is_done_here(monkeypatch):
    class Busy:
        def submit(self, *_):
            return Future()  # that nobody ever begins

    monkeypatch.setattr(threads, "_pool", lambda _: WorkerThreads(Busy(), []))
    assert in_threads(who, (), [(0,), (1,)], SMALL + 1) == [(threading.get_ident(), 2)]


def _in_a_fork(answers):
    results = [0] * 5
    in_threads(squared, (results,), [(x,) for x in range(5)], SMALL + 1)
    answers.put(results)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    in_threads(squared, ([0, 0],), [(0,), (1,)], SMALL + 1)
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    process = fork.Process(target=_in_a_fork, args=(answers,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert answers.get() == [0, 1, 4, 9, 16]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lets threads be kept off a processor")
@pytest.mark.usefixtures("two_threads")
def test_threads_are_kept_off_the_processor_of_the_one_that_asks(monkeypatch):
    """Only while there is another; nothing else is changed, and no thread of somebody else's."""

    meeting = threading.Barrier(2, timeout=30)

    def allowed(parts, taken):
        meeting.wait()
        return os.sched_getaffinity(threading.get_native_id())

    mine = os.sched_getaffinity(0)
    for here in sorted(mine)[:2]:
        monkeypatch.setattr(threads, "_here", lambda here=here: here)
        in_threads(lambda *_: meeting.wait(), (), [(0,), (1,)], SMALL + 1)  # by now there is a thread
        own, other = in_threads(allowed, (), [(0,), (1,)], SMALL + 1)
        assert own == mine
        assert other == (mine - {here} or mine)
    monkeypatch.setattr(threads, "_here", lambda: -1)
    assert in_threads(allowed, (), [(0,), (1,)], SMALL + 1) == [mine, mine]


def test_a_kernel_claims_each_part_once():
    @njit(nogil=True)
    def count(done, parts, taken):
        n = claim(taken)
        while n < len(parts):
            done[parts[n, 0]] += 1
            n = claim(taken)
        return True

    before, done = torch.get_num_threads(), np.zeros(20_000, np.int64)
    torch.set_num_threads(3)
    try:
        assert all(in_threads(count, (done,), [(x,) for x in range(len(done))], SMALL + 1))
    finally:
        torch.set_num_threads(before)
    assert (done == 1).all()


@pytest.mark.usefixtures("two_threads")
def test_torch_works_alone_for_a_while_also_where_that_fails():
    with alone():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(KeyError), alone():
        raise KeyError
    assert torch.get_num_threads() == 2
