"""Workers on a Ray cluster: processes of one CPU and one thread each, with the same results to the bit as this one.

A job of a worker that dies is done again by another; the result depends on the job alone, so that it is the same to the
bit.  A job over which several workers have died is not given to another.
"""

import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import AuthenticationError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from typing_extensions import override

from phalanx.core import InfeasibleError
from phalanx.numerics.allocation import keep_freed_memory
from phalanx.pool import AWAKE, Died, Done, Failed, Message, Ready, WorkerPool, looked_at
from phalanx.runs.provenance import conditions
from phalanx.version import VERSION

log = logging.getLogger("phalanx.ray")

START = 180.0  # seconds that a worker has to begin, if there is no other
PATIENCE = 5.0  # seconds in which the CPUs of workers that have ended become free
FREED = 60.0  # the same on a busy machine, where none is free
REACH = 10.0  # seconds in which the head of a cluster must take a connection
TRIES = 3  # workers that may die over a task
STATISTICS = "RAY_USAGE_STATS_ENABLED"  # environment variable: whether Ray sends usage statistics
CPU = torch.device("cpu")

Conditions = Mapping[str, str | int]
Job = Callable[[Any], Any]  # gives a worker a job; returns Ray's reference to its result


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Connect this process to a Ray cluster, for the duration of the context.

    Args:
        address: of the head of the cluster, such as `10.0.0.1:6379`; "auto" for the one to which this machine
            belongs; "local" for one of this machine alone, which begins and ends with the context.

    Raises:
        InfeasibleError: there is no cluster.
    """
    if ray.is_initialized():  # by the caller, which also ends it
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
    """Raise InfeasibleError if nobody listens at an address; Ray itself would try for minutes.

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
    """Return why a cluster cannot be joined, and what to do."""
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
    """Return the first line of an error, as a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."


class Place(NamedTuple):
    """Where a worker is: its host, Ray's name of that machine, and the process there."""

    host: str
    node: str
    pid: int


class RayWorker:
    """A worker on the cluster, in a process of its own; subclasses define its methods."""

    def __init__(self) -> None:
        keep_freed_memory()

    def begin(self) -> tuple[Place, Conditions]:
        """Return where it is, and the conditions on which its results depend to the bit."""
        torch.set_num_threads(1)
        return Place(socket.gethostname(), ray.get_runtime_context().get_node_id(), os.getpid()), stated()


def _cpus(resources: Callable[[], Mapping[str, float]]) -> int:
    return int(resources().get("CPU", 0))


def stated() -> Conditions:
    """Return the conditions on which the results of this process depend to the bit, on its CPU."""
    return {"phalanx": VERSION, **conditions(CPU)}


def check(host: str, there: Conditions, here: Conditions) -> None:
    """Raise InfeasibleError if a worker on a host may compute other bits than this process, by its conditions."""
    differing = [f"{name} {there.get(name)}, and this is {value}" for name, value in here.items()
                 if there.get(name) != value]  # fmt: skip
    if differing:
        raise InfeasibleError(
            f"The worker on {host} computes with {'; '.join(differing)}: it would give other bits. Install the same on "
            "all machines, use machines with the same instructions, and one thread in this process."
        )


class Crew(WorkerPool):
    """Workers on a Ray cluster that was joined, as a context.

    A job is called with the worker that does it, and returns Ray's reference to the result.

    Args:
        kind: class of the workers.
        count: largest number of workers; the free CPUs of the cluster if None.
        ahead: number of jobs that a worker has at one time, the current one included.
        here: conditions of this process, which each worker must share.
        options: of Ray, for the workers.
    """

    def __init__(
        self,
        kind: type[RayWorker],
        count: int | None,
        ahead: int,
        here: Conditions,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.count, self.ahead, self.here, self.options = kind, count, ahead, here, options or {}
        self.places, self._seen = 0, 0.0  # number of workers for which there is room; when there was one last
        self._starting = dict[Any, Any]()  # workers that are about to begin, by the reference to their conditions
        self._flying = dict[Any, tuple[int, Any]]()  # number and worker of each job, by the reference to its result
        self._at = dict[Any, Place]()  # where each worker is
        self._looked, self._looks = 0.0, dict[str, Any]()  # when workers were last looked at; by node, a look under way
        self._first: Job | None = None

    def __enter__(self) -> "Crew":
        self.places, self._seen = self._room(), time.monotonic()
        self.start(self.places)
        try:
            self._wait_for_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for handle in (*self.workers, *self._starting.values()):
            ray.kill(handle)
        self.workers.clear()
        self._starting.clear()

    def _room(self) -> int:
        """Return the possible number of workers; wait a little for CPUs of workers that have just ended."""
        began, said = time.monotonic(), False
        while True:
            free, known = _cpus(ray.available_resources), _cpus(ray.cluster_resources)
            wanted = self.count or known
            if free >= min(wanted, known) > 0:
                return min(wanted, known)
            waited = time.monotonic() - began
            if waited >= (FREED if free < 1 else PATIENCE):
                break
            if waited >= PATIENCE and not said:
                said = True
                log.warning("none of the %d CPUs of the Ray cluster is free: waiting up to %g s for one", known, FREED)
            time.sleep(0.1)
        if free < 1:
            raise InfeasibleError(
                f"None of the {known} CPUs of the Ray cluster is free. Wait for what else runs there, or add machines."
            )
        return min(free, wanted)

    def _wait_for_all(self) -> None:
        """Wait for workers to begin: all that begin within the time, and at least one.

        Raises:
            ConnectionError: none has begun.
            InfeasibleError: one computes other bits.
        """
        deadline = time.monotonic() + START
        while self._starting and time.monotonic() < deadline:
            for ready in self.wait(1.0):
                assert isinstance(ready, Ready)
                self.workers[ready.worker] = []
        if not self.workers:
            raise ConnectionError(f"No worker has begun on the Ray cluster within {START:g} s. See its logs.")

    def prepare(self, first: Job) -> None:
        """Make each worker do something before its next jobs, including workers that begin later."""
        self._first = first
        for worker in self.workers:
            first(worker)

    @override
    def start(self, wanted: int) -> None:
        if self.workers:
            self._seen = time.monotonic()
        while len(self.workers) + len(self._starting) < min(wanted, self.places):
            handle: Any = ray.remote(self.kind).options(num_cpus=1, **self.options).remote()
            self._starting[handle.begin.remote()] = handle
        if not self.workers and (not self._starting or time.monotonic() - self._seen > START):
            raise ConnectionError(
                f"No worker is left on the Ray cluster, and none has begun within {START:g} s. When the cluster has "
                "machines again, the same command goes on."
            )

    @override
    def give(self, worker: Any, number: int, job: Job) -> None:
        self._flying[job(worker)] = number, worker

    @override
    def wait(self, seconds: float) -> Sequence[Message]:
        references = [*self._flying, *self._starting]
        ready, _ = ray.wait(references, timeout=seconds) if references else ([], [])
        begun = [self._admitted(reference) for reference in ready if reference in self._starting]
        done = [self._outcome(reference) for reference in ready if reference in self._flying]  # not of a dead worker
        return [*filter(None, begun), *done, *self._asleep()]

    def _asleep(self) -> Iterator[Message]:
        """Look on each machine whether workers were stopped."""
        if (now := time.monotonic()) - self._looked < AWAKE:
            return
        self._looked, machines = now, defaultdict[str, list[Any]](list)
        for worker in self._busy():
            machines[self._at[worker].node].append(worker)
        for node, workers in machines.items():
            before, found = self._looks.get(node), list[int]()
            if before is not None and not ray.wait([before], timeout=0)[0]:
                continue
            with suppress(RayError):  # its machine is gone, or the process of the look; Ray reports its workers
                found = ray.get(before) if before is not None else []
            ended = list[int]()
            for worker in workers:
                host, _, pid = self._at[worker]
                for died in self.halted(worker, f"{pid} on {host}", stopped=pid in found):
                    ended.append(pid)
                    yield died
            left = [self._at[worker].pid for worker in workers if self._at[worker].pid not in ended]
            options = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
            look: Any = ray.remote(looked_at)
            self._looks[node] = look.options(**options).remote(left, ended)

    def _admitted(self, reference: Any) -> Ready | None:
        """Return a worker that has begun; None if it could not."""
        handle = self._starting.pop(reference)
        try:
            self._at[handle], there = ray.get(reference)
            check(self._at[handle].host, there, self.here)
        except RayError as error:
            log.warning("a worker could not begin: %s", first_line(error))
            self.places -= 1
            return None
        except InfeasibleError:
            ray.kill(handle)
            raise
        if self._first is not None:
            self._first(handle)
        return Ready(handle)

    def _outcome(self, reference: Any) -> Message:
        """Return the event that ends a job."""
        number, worker = self._flying.pop(reference)
        try:
            return Done(number, ray.get(reference))
        except RayTaskError as error:
            return Failed(number, error.cause if isinstance(error.cause, Exception) else error)
        except RayError as error:  # the worker is gone, or its result is
            self.stop(worker)
            return Died(worker, first_line(error))

    @override
    def stop(self, worker: Any) -> None:
        self._flying = {reference: given for reference, given in self._flying.items() if given[1] is not worker}
        ray.kill(worker)

    @override
    def surrender(self, deaths: int, died: Died) -> Exception | None:
        if deaths < TRIES:
            return None
        return ConnectionError(
            f"{TRIES} workers have died over it, one after the other, as they do when memory runs out: use fewer "
            f"workers, or larger machines. The last: {died.why}"
        )
