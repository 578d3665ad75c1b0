"""A coordinator that is stopped (SIGSTOP) for longer than a deadline, and then all clients: with real processes."""

import os
import signal
import time

import pytest

from flower.test_live import Federation, deal, lines_of, wait_until
from phalanx.flower.audit import read
from phalanx.flower.local_federation import descendants, marked
from phalanx.runs.record import Record

pytestmark = [pytest.mark.slow, pytest.mark.waits]

ANSWER = 60  # seconds; Flower ends the app of a coordinator that gives no sign of life for as many
STOPPED = float(os.environ.get("PHALANX_TEST_STOPPED", "75"))


def stopped(processes, seconds):
    """Stop processes with their children for some seconds."""
    family = {pid for process in processes for pid in (process.pid, *descendants(process.pid))}
    for how, pause in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
        for pid in family:
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue
        time.sleep(pause)


def test_nobody_is_charged_where_the_coordinator_or_all_clients_are_stopped(tmp_path):
    """Each is stopped for longer than the deadline; for ten minutes with the environment PHALANX_TEST_STOPPED=600."""
    with Federation(tmp_path, 4, deal(tmp_path / "data", 4)) as federation:
        results, run = federation.train("rounds", 5, answer=ANSWER)

        def tended():
            for client in range(4):  # as a supervisor does
                node = federation.nodes.get(client)
                if node is None or node.poll() is not None:
                    federation.start_node(client)

        def further():
            tended()
            return len(lines_of(results)) > known

        known = 1
        wait_until(further)
        stopped([federation.executor, federation.server], STOPPED)
        known = len(lines_of(results))
        wait_until((results / "summary.json").is_file)
        assert Record.load(results).summary.status == "stopped"
        run.kill()
        run.wait()
        for client in range(4):  # whose TLS gave up; their processes stay
            federation.kill_node(client)
        _, run = federation.train("rounds", 5, answer=ANSWER)  # as a supervisor does: it goes on from there
        wait_until(further)
        stopped([*federation.nodes.values()], STOPPED)

        def ended():
            tended()
            return run.poll() is not None

        wait_until(ended)
        trail = read(results / "audit.jsonl")
        assert Record.load(results).summary.status == "finished", federation.log()
        assert [line.step for line in lines_of(results)] == [0, 1, 2, 3, 4, 5]
        events = [entry.event for entry in trail]
        assert "suspended" not in events
        assert events.index("paused") < events.index("resumed")
    assert marked(federation.mark) == []
