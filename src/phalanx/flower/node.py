"""A client's SuperNode, with an executor of its own that forks for each task (`phalanx.flower.forking_executor`)."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flwr.supercore.superexec.run_superexec as superexec
from flwr.supercore.constant import TaskType

from phalanx.flower.forking_executor import use

HOST, PORT = "127.0.0.1", 9094  # where the SuperNode listens for its executor: Flower's defaults
PATIENCE = 120  # seconds in which it tries to be taken; for a minute a SuperLink believes that an ended node is there
PAUSE = 10  # seconds between two tries


def execute(address: str, parent: int) -> None:
    """Carry out the tasks of a SuperNode on this machine, until the process `parent` ends."""
    use(TaskType.CLIENT_APP)
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
