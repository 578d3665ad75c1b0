"""Executors of Flower's tasks whose apps are forks of a process that has already imported torch, Flower and Phalanx.

Flower starts a Python process for each task, and most of the time of a small task is its imports.  A SuperLink gives
the server's app 30 seconds to say that it has begun, which a busy host needs for the imports alone.  Here, an executor
imports them once and forks for each task.  A task still has a process of its own: what it does to its memory, and its
end, however bad, is not seen by the next.
"""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from queue import Queue
from typing import Any

import flwr.supercore.superexec.run_superexec as superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from typing_extensions import override

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # environment variable: how often the executor asks for a task, in seconds
INTERVAL = "0.2"  # in place of Flower's one second
IMPORTED = {  # what apps like those of `examples/flower` import
    TaskType.CLIENT_APP: ("flwr.supernode.runtime.run_clientapp", "phalanx.flower.client", "phalanx.flower.from_run"),
    TaskType.SERVER_APP: ("flwr.superlink.runtime.run_serverapp", "phalanx.flower.server", "phalanx.flower.from_run"),
}


class ForkingExecutor(SubprocessExecutor):
    """Carries out tasks of one kind in forks of one process; tasks of other kinds as Flower does.

    Args:
        kind: of the tasks, of a client or of the server.
        imported: modules that the process has imported before it forks.
    """

    def __init__(self, kind: TaskType, imported: Sequence[str] | None = None) -> None:
        self._kind = kind
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*(IMPORTED[kind] if imported is None else imported)])
        forkserver.ensure_running()  # it imports while there is no task yet
        self._running = list[BaseProcess]()

    @override
    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != self._kind:
            return super().launch(spec)
        process = self._context.Process(target=carry_out, args=(spec,))
        process.start()
        self._running.append(process)
        return LaunchResult.accepted()

    @override
    def reconcile(self) -> None:
        """Forget tasks that have ended."""
        self._running = [process for process in self._running if process.is_alive()]

    @override
    def close(self) -> None:
        """End the tasks that run: they look for the executor, and would end by themselves."""
        for process in self._running:
            process.terminate()


def carry_out(spec: ExecutionSpec) -> None:
    """Carry out one task, as `flwr-clientapp` or `flwr-serverapp` does, in a process that has just been forked."""
    import numpy as np  # noqa: PLC0415  (these are imported already, in the process that this is a fork of)
    import torch  # noqa: PLC0415
    from flwr.supercore.tls import validate_and_resolve_root_certificates  # noqa: PLC0415

    np.random.seed()  # noqa: NPY002  (an app that draws from the global generators must not draw the same in each task)
    torch.seed()
    words: dict[str, Any] = {
        "runtime_api_address": spec.runtime_api_address,
        "token": spec.token,
        "insecure": spec.insecure,
        "certificates": validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
        "parent_pid": spec.parent_pid,
        "runtime_dependency_install": spec.runtime_dependency_install,
    }
    if spec.task_type == TaskType.CLIENT_APP:
        from flwr.supernode.runtime.run_clientapp import run_clientapp  # noqa: PLC0415

        run_clientapp(**words)
        return
    from flwr.supercore.logger import mirror_output_to_queue, restore_output  # noqa: PLC0415
    from flwr.superlink.runtime import run_serverapp  # noqa: PLC0415

    said: Queue[str | None] = Queue()
    mirror_output_to_queue(said)  # for `flwr run --stream`
    run_serverapp(log_queue=said, **words)
    restore_output()


def use(kind: TaskType) -> None:
    """Have the executor that Flower starts next in this process fork for tasks of a kind."""
    os.environ.setdefault(POLL, INTERVAL)
    vars(superexec)["get_executor"] = lambda *_, **__: ForkingExecutor(kind)


def run(arguments: Sequence[str]) -> None:
    """Be the executor of the server's app, until it is stopped.

    Args:
        arguments: of `flower-superexec`.
    """
    from flwr.supercore.cli import flower_superexec  # noqa: PLC0415  (a client's executor has no use for it)

    use(TaskType.SERVER_APP)
    sys.argv = ["flower-superexec", *arguments]
    flower_superexec()
