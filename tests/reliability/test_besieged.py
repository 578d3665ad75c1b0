"""A deployment of processes, with attackers in a network namespace of their own: its run is that of the simulation."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flower.test_live import behind_a_proxy, elsewhere, needs_nginx, refused, wait_until
from phalanx.flower.certificates import make_certificates
from phalanx.flower.live import lines
from phalanx.flower.local_federation import free_ports, marked
from phalanx.runs.record import Record
from reliability import hostile
from reliability.processes import CLIENTS, Deployment, outcome

pytestmark = [pytest.mark.slow, pytest.mark.waits]
__all__ = ["elsewhere"]  # a fixture
ROUNDS, SILENT, SLOW = 3, 60, 20


@contextmanager
def besieged(address, namespace=None):
    """Attackers at an address; gives what came of them, at the end."""
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    command = [*inside, sys.executable, str(Path(__file__).parent / "besiegers.py"), *address.split(":")]
    attackers = subprocess.Popen([*command, str(SILENT), str(SLOW)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    seen = {}
    try:
        yield seen
        out, _ = attackers.communicate(b"\n", timeout=30)
        seen.update(json.loads(out))
    finally:
        attackers.kill()
        attackers.wait()


@contextmanager
def false_server(certificates=None):
    """A server at the port that nodes know: with a certificate, or without TLS at all; gives the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            if certificates is not None:
                context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
            while True:
                with suppress(OSError, ssl.SSLError):
                    accepted, _ = server.accept()
                    if accepted.fileno() < 0 or server.fileno() < 0:
                        return
                    opened = context.wrap_socket(accepted, server_side=True) if certificates else accepted
                    opened.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    opened.close()
                if server.fileno() < 0:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@needs_nginx
def test_a_besieged_deployment_comes_to_the_end_of_the_simulation(elsewhere, tmp_path):
    (door,) = free_ports(1)
    deployment = Deployment(tmp_path, ROUNDS)
    deployment.node_address = f"{elsewhere.here}:{door}"
    with behind_a_proxy(deployment, elsewhere.here), deployment:
        with besieged(deployment.node_address, elsewhere.name) as at_the_proxy, besieged(deployment.address) as direct:
            wait_until(lambda: deployment.tend() or deployment.over)
        for seen in (at_the_proxy, direct):
            assert seen["silent"] >= SILENT
            assert seen["slow"] >= SLOW
            assert not any("200" in answer for answer in seen), "nothing is served without TLS"
            assert any(answer.startswith("without TLS") for answer in seen)
        came = outcome(deployment)
        assert (came.rounds, came.whole, came.wrong) == (ROUNDS, ROUNDS, ""), "each round with all clients"

        deployment.kill_node(CLIENTS - 1)
        make_certificates(tmp_path / "old", ["127.0.0.1"], days=0)
        with false_server(tmp_path / "old") as address:
            deployment.node_address, deployment.node_certificates = address, tmp_path / "old" / "ca.crt"
            assert "certificate has expired" in refused(deployment, CLIENTS - 1)
        with false_server() as address:
            deployment.node_address = address
            assert "WRONG_VERSION_NUMBER" in refused(deployment, CLIENTS - 1), "it does not speak without TLS"
    assert marked(deployment.mark) == []


JUMPS = (86_400, 0, -86_400, 0)  # seconds of the wall clock, after each round


@pytest.mark.skipif(shutil.which("cc") is None, reason="the clock that jumps is a library in C, and there is no cc")
def test_a_machine_whose_clock_jumps_comes_to_the_end_of_the_simulation(tmp_path):
    """The wall clock of all processes jumps by a day, forward and back, after each round."""
    library, ahead = tmp_path / "clock.so", tmp_path / "ahead"
    source = Path(__file__).parent / "jumping_clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    ahead.write_text("0")
    deployment = Deployment(tmp_path / "federation", len(JUMPS) + 1)
    deployment.environment |= {"LD_PRELOAD": str(library), "CLOCK_FILE": str(ahead)}
    with deployment:
        for rounds, jump in enumerate(JUMPS, 1):
            wait_until(lambda: deployment.tend() or len(lines(deployment.results)) > rounds)  # noqa: B023
            (tmp_path / "next").write_text(str(jump))
            (tmp_path / "next").replace(ahead)
        wait_until(lambda: deployment.tend() or deployment.over)
        assert outcome(deployment)._replace(whole=0) == (deployment.rounds, 0, "")
    assert marked(deployment.mark) == []


def test_answers_of_an_earlier_run_are_turned_away_to_the_end(tmp_path):
    """One client sends, in each round of a second run, what it has sent in the first one, signed as then."""
    kept, rounds = [], hostile.STEADY + 2

    def keep(scene):
        kept.append(scene.reply.content)
        hostile.deliver(scene.link, scene.reply)

    def replay(scene):
        hostile.deliver(scene.link, hostile.replace_content(scene.reply, kept[len(replayed) % len(kept)]))
        replayed.append(scene)

    replayed, attacks = [], [hostile.Attack("keep", "", keep)] * 2 + [hostile.Attack("replay", "", replay)] * rounds
    federation = hostile.Hosted(tmp_path, 1, attacks)
    with federation:
        federation.begin(rounds)
        wait_until(lambda: federation.runs[0].poll() is not None)
        federation.results = tmp_path / "second"
        federation.begin(rounds)
        wait_until(lambda: federation.runs[1].poll() is not None)
        federation.stopping.set()
    first, second = (Record.load(tmp_path / name) for name in ("run", "second"))
    assert (first.summary.status, second.summary.status) == ("finished", "finished")
    assert len(kept) == 2
    assert len(replayed) == rounds
    for step in second.history[1:]:
        assert {*step.verdicts} == {0, 1}, "the honest clients take part in each round"
        assert hostile.HOSTILE in step.invalid, "what is of another run is not taken for an answer"
        assert "replayed, or meant for another task" in step.invalid[hostile.HOSTILE]
