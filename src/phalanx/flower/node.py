"""A client's SuperNode whose apps are forks of a process that has already imported torch, Flower and Phalanx.

`flower-supernode` starts a Python process for each task, and most of the time of a small task is its imports.  Here, an
executor imports them once and forks for each task.  A task still has a process of its own: what it does to its memory,
and its end, however bad, is not seen by the next.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

import flwr.supercore.superexec.run_superexec as superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from typing_extensions import override

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # environment variable: how often the executor asks for a task, in seconds
INTERVAL = "0.2"  # in place of Flower's one second
HOST, PORT = "127.0.0.1", 9094  # where the SuperNode listens for its executor: Flower's defaults
PATIENCE = 120  # seconds in which it tries to be taken; for a minute a SuperLink believes that an ended node is there
PAUSE = 10  # seconds between two tries
IMPORTED = ("torch", "flwr.supernode.runtime.run_clientapp", "phalanx.flower", "phalanx.flower.client")


class ForkingExecutor(SubprocessExecutor):
    """Carries out a client's tasks in forks of one process; other kinds of tasks as Flower does.

    Args:
        imported: modules that the process has imported before it forks.
    """

    def __init__(self, imported: Sequence[str] = IMPORTED) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*imported])
        forkserver.ensure_running()  # it imports while there is no task yet
        self._running = list[BaseProcess]()

    @override
    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != TaskType.CLIENT_APP:
            return super().launch(spec)
        process = self._context.Process(target=_carry_out, args=(spec,))
        process.start()
        self._running.append(process)
        return LaunchResult.accepted()

    @override
    def reconcile(self) -> None:
        """Forget tasks that have ended."""
        self._running = [process for process in self._running if process.is_alive()]

    @override
    def close(self) -> None:
        """End the tasks that run, as the end of Flower's executor ends its own."""
        for process in self._running:
            process.terminate()


def _carry_out(spec: ExecutionSpec) -> None:
    """Carry out one task of a client, as `flwr-clientapp` does, in a process that has just been forked."""
    import numpy as np  # noqa: PLC0415  (these are imported already, in the process that this is a fork of)
    import torch  # noqa: PLC0415
    from flwr.supercore.tls import validate_and_resolve_root_certificates  # noqa: PLC0415
    from flwr.supernode.runtime.run_clientapp import run_clientapp  # noqa: PLC0415

    np.random.seed()  # noqa: NPY002  (an app that draws from the global generators must not draw the same in each task)
    torch.seed()
    run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
        parent_pid=spec.parent_pid,
        runtime_dependency_install=spec.runtime_dependency_install,
    )


def execute(address: str, parent: int) -> None:
    """Carry out the tasks of a SuperNode on this machine, until the process `parent` ends."""
    os.environ.setdefault(POLL, INTERVAL)
    vars(superexec)["get_executor"] = lambda *_, **__: ForkingExecutor()
    superexec.run_superexec(address, insecure=True, parent_pid=parent)


def run(arguments: Sequence[str], host: str = HOST, port: int = PORT) -> None:
    """Be a SuperNode, with an executor of its own; if that ends, so does this.

    Args:
        arguments: of `flower-supernode`, except the address.
        host: at which it listens for its executor.
        port: likewise.
    """
    from flwr.supernode.cli import flower_supernode  # noqa: PLC0415  (the executor has no use for them)
    from flwr.supernode.fleet_http_client import FleetHttpClient  # noqa: PLC0415

    FleetHttpClient.ActivateNode = patiently(FleetHttpClient.ActivateNode)  # type: ignore[method-assign, assignment]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    command = [sys.executable, "-m", "phalanx.flower.node", address, str(os.getpid())]
    executor = subprocess.Popen(command)
    threading.Thread(target=partial(_end_with, executor), daemon=True).start()
    sys.argv = ["flower-supernode", *arguments, "--isolation", "process", "--host", host, "--port", str(port)]
    flower_supernode()


def patiently(activate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that asks a SuperLink to take a node, again and again for `PATIENCE` seconds if it does not."""
    import httpx  # noqa: PLC0415  (the executor has no use for them)
    from flwr.supercore.error import ApiErrorCode, FlowerError  # noqa: PLC0415

    def ask(client: Any, request: Any) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return activate(client, request)
            except httpx.HTTPStatusError as error:
                found = FlowerError.from_json(error.response.text)
                refused = found is not None and found.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED
                if not refused or time.monotonic() + PAUSE > deadline:
                    raise
            why = "this node ended less than a minute ago, or its public key is not registered"
            print(f"The SuperLink does not take this node yet: {why}. Next try in {PAUSE} s.", flush=True)
            time.sleep(PAUSE)

    return ask


def _end_with(executor: subprocess.Popen[bytes]) -> None:
    executor.wait()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    execute(sys.argv[1], int(sys.argv[2]))
