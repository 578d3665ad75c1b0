"""Workers on a Ray cluster: processes of one CPU and one thread each, that compute the same bits as this one.

A task of a worker that dies is done again by another; what is done depends on the task alone, so that the bits are the
same.  A task that has cost several workers is not given to one more.
"""

import logging
import math
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import AuthenticationError, RayError, RayTaskError

import phalanx
from phalanx.core import InfeasibleError
from phalanx.numerics.memory import keep_freed_memory
from phalanx.runs.provenance import conditions

log = logging.getLogger("phalanx.ray")

START = 180.0  # seconds that a worker has to begin, where no other is there
FREED = 5.0  # seconds after which the CPUs of workers that have ended are free
REACH = 10.0  # seconds in which the head of a cluster must take a connection
TRIES = 3  # workers that a task may cost
STATISTICS = "RAY_USAGE_STATS_ENABLED"  # environment variable: whether Ray reports to its makers
CPU = torch.device("cpu")

Conditions = Mapping[str, str | int]
Job = Callable[[Any], Any]  # gives a worker something to do; returns Ray's reference to what will come of it


@contextmanager
def joined(address: str) -> Iterator[None]:
    """This process as one that gives out work on a Ray cluster.

    Args:
        address: where the head of the cluster is, as `10.0.0.1:6379`; "auto" for the one to which this machine
            belongs; "local" for one of this machine alone, which begins and ends with the context.

    Raises:
        InfeasibleError: there is no cluster.
    """
    if ray.is_initialized():  # by the caller, who also ends it
        yield
        return
    os.environ.setdefault(STATISTICS, "0")
    _reach(address)
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises bare exceptions, too
        raise InfeasibleError(_unreachable(address, error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raises InfeasibleError if nobody listens at an address; Ray itself would try for minutes.

    "auto" and "local" are Ray's to find, as is an address with a scheme, such as `ray://head:10001`.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH).close()
    except (OSError, OverflowError) as error:
        raise InfeasibleError(_unreachable(address, error)) from error


def _unreachable(address: str, error: BaseException) -> str:
    """Why a cluster cannot be joined, and what to do."""
    if isinstance(error, AuthenticationError) or AuthenticationError.__name__ in str(error.__cause__):
        return (
            f"The Ray cluster at {address} does not let this machine in, for want of its token. Copy the file "
            "~/.ray/auth_token of its head to the same place here, and set RAY_AUTH_MODE=token."
        )
    return (
        f"There is no Ray cluster at {address}: {first_line(error)} Start one by `ray start --head`, or give `local`, "
        "which uses the CPUs of this machine."
    )


def first_line(error: BaseException) -> str:
    """The first line of what an error says, as a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."


class RayWorker:
    """What runs on the cluster, in a process of its own; subclasses say what it does."""

    def __init__(self) -> None:
        keep_freed_memory()

    def begin(self) -> tuple[str, Conditions]:
        """Where it is, and what the bits that it computes depend on."""
        torch.set_num_threads(1)
        return socket.gethostname(), stated()


def _cpus(resources: Callable[[], Mapping[str, float]]) -> int:
    return int(resources().get("CPU", 0))


def stated() -> Conditions:
    """What the bits depend on that this process computes on its CPU."""
    return {"phalanx": phalanx.__version__, **conditions(CPU)}


def check(host: str, there: Conditions, here: Conditions) -> None:
    """Raises InfeasibleError if a worker on a host computes other bits than this process, as far as can be told."""
    differing = [f"{name} {there.get(name)}, and this is {value}" for name, value in here.items()
                 if there.get(name) != value]  # fmt: skip
    if differing:
        raise InfeasibleError(
            f"The worker on {host} computes with {'; '.join(differing)}: it would give other bits. Install the same on "
            "all machines, use machines with the same instructions, and one thread in this process."
        )


class Given(NamedTuple):
    """A worker has been given a job."""

    job: int
    worker: Any


class Done(NamedTuple):
    """A job is done."""

    job: int
    result: Any


class Again(NamedTuple):
    """The worker that had a job is dead; another one will be given it."""

    job: int
    why: str


class Failed(NamedTuple):
    """A job cannot be done."""

    job: int
    error: BaseException


class Pause(NamedTuple):
    """Nothing has happened for a while."""


Happening = Given | Done | Again | Failed | Pause


@dataclass(eq=False)
class Member:
    """A worker that is there."""

    handle: Any
    jobs: int = 0  # that it was given and has not done


@dataclass(eq=False)
class Crew:
    """The workers, as a context; who dies is replaced, as soon as a CPU is free.

    Args:
        kind: what they are.
        count: how many at most; as many as the cluster has free CPUs if None.
        ahead: how many jobs a worker has at one time, the one that it does included.
        here: what this process states of itself, which has to hold of each worker.
        options: of Ray, for the workers.
    """

    kind: type[RayWorker]
    count: int | None
    ahead: int
    here: Conditions
    options: Mapping[str, Any] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    hosts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._starting = dict[Any, Any]()  # workers that are about to begin, by the reference to their first words
        self._first: Job | None = None

    def __enter__(self) -> "Crew":
        for _ in range(self._places()):
            self._hire()
        try:
            self._wait_for_one()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for handle in (*(member.handle for member in self.members), *self._starting.values()):
            ray.kill(handle)
        self.members.clear()
        self._starting.clear()

    def _places(self) -> int:
        """How many workers there can be; waits a little for CPUs of workers that have just ended."""
        deadline = time.monotonic() + FREED
        while True:
            free, known = _cpus(ray.available_resources), _cpus(ray.cluster_resources)
            wanted = self.count or known
            if free >= min(wanted, known) > 0:
                return min(wanted, known)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        if free < 1:
            raise InfeasibleError(
                f"None of the {known} CPUs of the Ray cluster is free. Wait for what else runs there, or add machines."
            )
        return min(free, wanted)

    def prepare(self, first: Job) -> None:
        """Has each worker do something before all that comes from now on, those who come later as well."""
        self._first = first
        for member in self.members:
            first(member.handle)

    def _hire(self) -> None:
        handle: Any = ray.remote(self.kind).options(num_cpus=1, **self.options).remote()
        self._starting[handle.begin.remote()] = handle

    def _wait_for_one(self) -> None:
        """Waits for workers to begin; for all of them that begin within the time, and for one at least.

        Raises:
            ConnectionError: none has begun.
            InfeasibleError: one computes other bits.
        """
        deadline = time.monotonic() + START
        while self._starting and time.monotonic() < deadline:
            ready, _ = ray.wait(list(self._starting), timeout=1.0)
            for reference in ready:
                self._admit(reference)
        if not self.members:
            raise ConnectionError(f"No worker has begun on the Ray cluster within {START:g} s. Its logs tell why.")

    def _admit(self, reference: Any) -> None:
        """Takes up a worker that has begun; forgets one that could not."""
        handle = self._starting.pop(reference)
        try:
            host, there = ray.get(reference)
            check(host, there, self.here)
        except RayError as error:
            log.warning("a worker could not begin: %s", first_line(error))
            return
        except InfeasibleError:
            ray.kill(handle)
            raise
        self.hosts[host] += 1
        if self._first is not None:
            self._first(handle)
        self.members.append(Member(handle))

    def _lose(self, member: Member) -> None:
        """Replaces a worker that has died."""
        if member not in self.members:  # it had several jobs, and is known to be dead
            return
        self.members.remove(member)
        ray.kill(member.handle)
        self._hire()

    def do(self, jobs: Sequence[Job], pause: float = 1.0) -> Iterator[Happening]:
        """Has the workers do some jobs, and tells what happens: for each job there is one `Done` or one `Failed`.

        Args:
            jobs: begun in their order.
            pause: seconds after which it tells that nothing has happened.

        Raises:
            ConnectionError: no worker is left, and none begins.
        """
        todo, died, flying = deque(range(len(jobs))), Counter[int](), dict[Any, tuple[int, Member]]()
        since = time.monotonic()  # nobody is at work
        try:
            while todo or flying:
                while todo and (member := self._free()):
                    job = todo.popleft()
                    flying[jobs[job](member.handle)] = job, member
                    member.jobs += 1
                    yield Given(job, member.handle)
                since = time.monotonic() if flying else since
                ready, _ = ray.wait([*flying, *self._starting], timeout=pause) if flying or self._starting else ([], [])
                for reference in ready:
                    if reference in self._starting:
                        self._admit(reference)
                        continue
                    job, member = flying.pop(reference)
                    happened = self._outcome(job, member, reference, died)
                    if isinstance(happened, Again):
                        todo.appendleft(job)
                    yield happened
                if not ready:
                    self._check_hope(since)
                    yield Pause()
        finally:
            for _, member in flying.values():  # nobody waits for that any more
                self._lose(member)

    def _free(self) -> Member | None:
        """The worker with the fewest jobs, if it may have one more."""
        found = min(self.members, key=lambda member: member.jobs, default=None)
        return found if found is not None and found.jobs < self.ahead else None

    def _outcome(self, job: int, member: Member, reference: Any, died: Counter[int]) -> Happening:
        """What came of a job."""
        member.jobs -= 1
        try:
            return Done(job, ray.get(reference))
        except RayTaskError as error:
            return Failed(job, error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:  # the worker is gone, or what it had computed
            died[job] += 1
            why = first_line(error)
            self._lose(member)
        if died[job] < TRIES:
            return Again(job, why)
        return Failed(job, ConnectionError(
            f"{TRIES} workers have died over it, one after the other, as they do when memory runs out: use fewer "
            f"workers, or larger machines. The last: {why}"
        ))  # fmt: skip

    def _check_hope(self, since: float) -> None:
        """Raises ConnectionError where nobody is at work since a time, and nobody has begun."""
        nobody = time.monotonic() - since if not self.members else -math.inf
        if nobody > START or (not self.members and not self._starting):
            raise ConnectionError(
                f"No worker is left on the Ray cluster, and none has begun within {START:g} s. When the cluster has "
                "machines again, the same command goes on."
            )
