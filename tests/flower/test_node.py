"""`phalanx flower node`: tasks in forks of one process, and no process that outlives the others."""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import flwr.superlink.runtime as flowers_server
import flwr.supernode.runtime.run_clientapp as flowers
import httpx
import numpy as np
import pytest
import torch
from flwr.supercore.constant import TaskType
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

from phalanx.cli.main import main
from phalanx.flower import forking_executor as executors
from phalanx.flower import node as nodes
from phalanx.flower.demo import deal
from phalanx.flower.local_federation import LocalFederation, descendants, marked

SPEC = ExecutionSpec(
    task_type=TaskType.CLIENT_APP, runtime_api_address="127.0.0.1:9", token="t", insecure=True,
    root_certificates_path=None, runtime_dependency_install=False, parent_pid=7, suppress_output=False, task_id=1,
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """What Flower's function for one task is called with."""
    seen = []
    monkeypatch.setattr(flowers, "run_clientapp", lambda **words: seen.append(words))
    return seen


def test_a_task_is_carried_out_as_flower_would(asked):
    executors.carry_out(SPEC)
    assert asked == [
        {"runtime_api_address": "127.0.0.1:9", "token": "t", "insecure": True, "certificates": None, "parent_pid": 7,
         "runtime_dependency_install": False}
    ]  # fmt: skip


def test_the_servers_app_is_carried_out_as_flower_would(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # so that it is put back
    seen = []

    def run(log_queue, **words):
        print("It says so.")
        seen.append((words, "".join(iter(log_queue.get_nowait, "It says so."))))

    monkeypatch.setattr(flowers_server, "run_serverapp", run)
    executors.carry_out(replace(SPEC, task_type=TaskType.SERVER_APP))
    ((words, before),) = seen
    assert words == {"runtime_api_address": "127.0.0.1:9", "token": "t", "insecure": True, "certificates": None,
                     "parent_pid": 7, "runtime_dependency_install": False}  # fmt: skip
    assert not before, "what it says is in the queue from which Flower sends it"
    assert sys.stdout is sys.__stdout__, "it is restored"


def test_an_executor_without_its_files_does_not_begin(tmp_path, capsys):
    words = [
        "flower",
        "executor",
        "--runtime-api-address",
        "127.0.0.1:9",
        "--root-certificates",
        str(tmp_path / "none"),
    ]
    assert main([*words, "--superexec-auth-secret-file", str(tmp_path / "none")]) == 2
    assert "There is no file" in capsys.readouterr().err


def test_two_tasks_do_not_draw_the_same_from_the_global_generators(asked):
    def drawn():
        np.random.seed(0)
        torch.manual_seed(0)
        executors.carry_out(SPEC)
        return np.random.random(), torch.rand(()).item()

    first, second = drawn(), drawn()
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_other_kinds_of_tasks_are_flowers(monkeypatch):
    seen = []
    monkeypatch.setattr(SubprocessExecutor, "launch", lambda self, spec: seen.append(spec) or LaunchResult.accepted())
    other = replace(SPEC, task_type=TaskType.SERVER_APP)
    executors.ForkingExecutor(TaskType.CLIENT_APP, ()).launch(other)
    executors.ForkingExecutor(TaskType.SERVER_APP, ()).launch(SPEC)
    assert seen == [other, SPEC]


def test_what_it_imports_is_there():
    """`multiprocessing` passes over a module that it cannot import, without a word."""
    for name in {name for names in executors.IMPORTED.values() for name in names}:
        __import__(name)


def test_tasks_that_run_end_with_the_executor():
    """Nothing listens at the address, so a task tries again and again."""
    executor = executors.ForkingExecutor(TaskType.CLIENT_APP, ())
    executor.launch(replace(SPEC, parent_pid=None))
    (process,) = executor._running
    assert process.is_alive()
    executor.reconcile()
    assert executor._running == [process]
    executor.close()
    process.join(30)
    assert not process.is_alive()
    executor.reconcile()
    assert executor._running == []


def test_without_its_files_it_does_not_begin(tmp_path, capsys):
    (tmp_path / "ca.crt").write_text("")
    words = ["flower", "node", "--superlink", "127.0.0.1:9", "--node-config", "key='a'"]
    for name, key, missing in (("none.crt", "key", "--root-certificates"), ("ca.crt", "none", "--auth-supernode")):
        files = ["--root-certificates", str(tmp_path / name), "--auth-supernode-private-key", str(tmp_path / key)]
        assert main([*words, *files]) == 2
        said = capsys.readouterr().err
        assert "There is no file" in said
        assert missing in said


@pytest.fixture
def waited(monkeypatch):
    """The seconds that a node has waited, which nobody waits."""
    slept = [0.0]
    monkeypatch.setattr(nodes.time, "monotonic", lambda: sum(slept))
    monkeypatch.setattr(nodes.time, "sleep", slept.append)
    return slept


def refusing(times, code):
    """Return a function that takes a node after so many refusals."""

    def activate(client, request):
        if (left := next(refusals, None)) is None:
            return client, request
        answer = httpx.Response(412, text=json.dumps({"code": code, "detail": f"No, {left}."}))
        raise httpx.HTTPStatusError("412", request=httpx.Request("POST", "https://127.0.0.1"), response=answer)

    refusals = iter(range(times))
    return activate


def test_a_node_that_is_not_taken_yet_asks_again_and_says_so(waited, capsys):
    code = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
    assert nodes.patiently(refusing(7, code))("client", "request") == ("client", "request")
    assert sum(waited) == 7 * nodes.PAUSE
    assert capsys.readouterr().out.count("does not take this node yet: this node ended less than a minute ago") == 7


@pytest.mark.parametrize(("code", "seconds"), [(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, nodes.PATIENCE), (0, 0)])
def test_a_node_gives_up_after_a_while_and_at_once_where_time_does_not_help(waited, code, seconds):
    with pytest.raises(httpx.HTTPStatusError):
        nodes.patiently(refusing(100, int(code)))("client", "request")
    assert sum(waited) == seconds


def until(fact, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.1)
    return fact()


@pytest.mark.slow
def test_no_process_of_a_client_outlives_the_others(tmp_path):
    with LocalFederation(tmp_path, 2, deal(tmp_path / "data", 2)) as federation:
        ends_with(federation, federation.nodes[0], "node")
        ends_with(federation, federation.nodes[1], "executor")


def forks(pid):
    """Whether a process has the child from which tasks are forked; others come and go while it is imported."""
    for child in descendants(pid):
        with suppress(OSError):
            if b"multiprocessing.forkserver" in Path(f"/proc/{child}/cmdline").read_bytes():
                return True
    return False


def ends_with(federation, node, killed):
    """Kill one process of a client: all of them end."""
    grown = until(lambda: node.poll() is not None or forks(node.pid))
    log = "".join(path.read_text(errors="replace") for path in sorted((federation.folder / "logs").glob("node-*.log")))
    assert grown, f"an executor, and the process that it forks from: {log}"
    assert node.poll() is None, log
    family = {node.pid, *descendants(node.pid)}
    os.kill(node.pid if killed == "node" else min(family - {node.pid}), signal.SIGKILL)
    assert until(lambda: node.poll() is not None and not family & {*marked(federation.mark)}), killed
    assert node.returncode == (-signal.SIGKILL if killed == "node" else 0)
