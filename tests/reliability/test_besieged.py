"""A deployment of processes, with attackers in a network namespace of their own: its run is that of the simulation."""

import json
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flower.test_live import HERE, behind_a_proxy, elsewhere, needs_nginx, refused, wait_until
from phalanx.flower.certificates import make_certificates
from phalanx.flower.local_federation import free_ports, marked
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
    deployment.node_address = f"{HERE}:{door}"
    with behind_a_proxy(deployment, HERE), deployment:
        with besieged(deployment.node_address, elsewhere) as at_the_proxy, besieged(deployment.address) as direct:
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
