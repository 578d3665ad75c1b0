"""A real SuperLink and real SuperNodes, each a process, with TLS, authenticated nodes and a proxy: it takes minutes."""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from phalanx.cli.main import main
from phalanx.flower import live
from phalanx.flower.audit import read
from phalanx.flower.certificates import make_certificates, make_node_key
from phalanx.flower.demo import deal, write_app
from phalanx.flower.local_federation import MARK, LocalFederation, free_ports, marked
from phalanx.runs.record import Record
from phalanx.runs.verification import verify

pytestmark = [pytest.mark.slow, pytest.mark.waits]

DEPLOYMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
PATIENT = 420.0  # seconds, on a machine that others use as well


def wait_until(fact, seconds=PATIENT, pause=0.2):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := fact():
            return found
        time.sleep(pause)
    raise AssertionError(f"nothing came within {seconds} s")


lines_of = live.lines


class Federation(LocalFederation):
    """One that runs the demonstration."""

    def train(self, name, steps, **config):
        results = self.folder / name
        app = write_app(self.folder / "app")
        told = {"roster": str(self.folder / "roster.yaml"), "folder": str(results), "clients": self.clients}
        return results, self.run(app, told | {"steps": steps, **config})

    def log(self):
        return "\n".join(p.read_text(errors="replace")[-2000:] for p in sorted((self.folder / "logs").glob("*.log")))


def ends(federation, run):
    status = wait_until(lambda: (run.poll() is not None) and (run.poll(),))[0]
    assert status == 0, federation.log()


@pytest.fixture
def four(tmp_path):
    with Federation(tmp_path, 4, deal(tmp_path / "data", 4)) as federation:
        yield federation
    assert marked(federation.mark) == [], "no process is left"


def clients_of(line):
    """Whose updates came in a step."""
    return set(line.verdicts)


def brought_back(federation, client, fact):
    """Starts a client's SuperNode again whenever it has ended, as a supervisor does, until something is there.

    For a minute Flower takes it for the one that was killed, and refuses it.
    """

    def look():
        node = federation.nodes.get(client)
        if node is None or node.poll() is not None:
            federation.start_node(client)
        return fact()

    return wait_until(look)


def test_rounds_go_on_without_a_node_that_was_killed_and_a_killed_server_goes_on_where_it_was(four):
    results, run = four.train("rounds", 20, answer=150)
    wait_until(lambda: len(lines_of(results)) > 1)
    assert clients_of(lines_of(results)[1]) == {0, 1, 2, 3}
    four.kill_node(3)
    wait_until(lambda: len(lines_of(results)) > 2)
    second = lines_of(results)[2]
    assert second.step == 2
    assert 3 not in clients_of(second)
    assert re.match("no answer within 150 s|it is no longer connected", second.lost[3])
    later = brought_back(four, 3, lambda: [line for line in lines_of(results)[3:] if 3 in clients_of(line)])
    assert not later[-1].lost, "under another number of Flower's perhaps, and the same key"

    four.kill_server_app()
    run.kill()
    run.wait()
    before = lines_of(results)
    assert (results / "checkpoint").is_file()
    four.start_executor()
    last = len(before) + 1
    _, run = four.train("rounds", last, answer=150)
    ends(four, run)
    after = lines_of(results)
    assert after[: len(before) - 1] == before[:-1]
    assert after[-1].step == last
    witnesses = [four.folder / "memory" / str(i) / "tasks.jsonl" for i in range(4)]
    found = verify(results, witnesses, four.coordinator)
    assert (found.findings, found.witnessed) == ((), True), "each has seen one trail, before the kill and after"
    assert (results / "model.safetensors").is_file()
    assert after[-1].accuracy is not None


def test_an_asynchronous_run_waits_for_nobody_who_was_killed_and_asks_it_again_when_it_is_back(four):
    deadline = 150
    results, run = four.train("arrivals", 1000, asynchronous=True, answer=deadline)
    wait_until(lambda: {0, 1, 2, 3} <= {i for line in lines_of(results) for i in clients_of(line)})
    four.kill_node(3)
    killed = len(lines_of(results))
    wait_until(lambda: len(lines_of(results)) >= killed + 4)
    before = len(lines_of(results))
    brought_back(four, 3, lambda: any(3 in clients_of(line) for line in lines_of(results)[before:]))
    seconds = [line.seconds for line in lines_of(results)[killed - 1 :]]
    assert max(later - earlier for earlier, later in itertools.pairwise(seconds)) < deadline
    assert {i for line in lines_of(results)[killed:] for i in clients_of(line)} == {0, 1, 2, 3}
    assert run.poll() is None


def test_where_all_of_the_coordinator_was_killed_the_run_goes_on_with_the_same_clients(tmp_path):
    """The SuperLink knows its nodes again, from its database."""
    with Federation(tmp_path, 2, deal(tmp_path / "data", 2)) as federation:
        results, run = federation.train("rounds", 3, answer=150)
        wait_until(lambda: len(lines_of(results)) > 1)
        federation.kill_server()
        run.kill()
        run.wait()
        before = lines_of(results)
        assert (results / "checkpoint").is_file()
        assert not (results / "summary.json").exists()
        federation.start_server()
        _, run = federation.train("rounds", 3, answer=150)

        def ended():
            for client, node in [*federation.nodes.items()]:
                if node.poll() is not None:  # as a supervisor does
                    federation.start_node(client)
            return run.poll() is not None

        wait_until(ended)
        ends(federation, run)
        after = lines_of(results)
        assert after[: len(before) - 1] == before[:-1]
        assert [clients_of(line) for line in after[1:]] == [{0, 1}] * 3
        enrolled = [line.client for line in read(results / "audit.jsonl") if line.event == "enrolled"]
        assert sorted(enrolled) == [0, 1], "nobody is new"

        def known():
            runs = json.loads(federation.flwr("list", "here", "--format", "json"))["runs"]
            return sorted(run["status"] for run in runs)

        wait_until(lambda: known() == ["finished:completed", "finished:failed"], pause=5)


# --- the recipe of the documentation


def nginx_configuration(folder, door, address):
    """That of the page, with the folders and addresses of this machine."""
    (block,) = re.findall(r"^```nginx\n(.*?)^```$", DEPLOYMENT.read_text(), re.MULTILINE | re.DOTALL)
    block = block.replace("/srv/phalanx/proxy", str(folder / "proxy")).replace("/srv/phalanx", str(folder))
    block = block.replace("listen 443 ssl", f"listen {door} ssl").replace("127.0.0.1:8000", address)
    temporary = "".join(
        f"{name}_temp_path {folder / 'nginx'};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root; " if os.geteuid() == 0 else ""  # pytest's folders are nobody else's
    return (
        f"{user}daemon off; pid {folder / 'nginx.pid'}; error_log {folder / 'nginx.log'}; events {{}}"
        f"http {{ access_log off; {temporary} {block} }}"
    )


@contextmanager
def behind_a_proxy(federation, host):
    """The proxy of the page, before the SuperLink of a federation that has not begun; gives the certificate's file.

    It begins after the SuperLink, whose certificate it reads, and before the SuperNodes.
    """
    folder, first = federation.folder, federation.start_superlink
    make_certificates(folder / "proxy", [host, "coordinator.example"])
    (folder / "nginx").mkdir()
    (folder / "nginx.conf").write_text(nginx_configuration(folder, federation.node_address, federation.address))
    federation.node_certificates = folder / "proxy" / "ca.crt"
    proxies = []

    def start_superlink():
        first()
        command = ["nginx", "-c", str(folder / "nginx.conf")]
        proxies.append(subprocess.Popen(command, env=os.environ | {MARK: federation.mark}))
        wait_until(lambda: opened(host, federation.node_address) or proxies[-1].poll() is not None)
        assert proxies[-1].poll() is None, (folder / "nginx.log").read_text()

    federation.start_superlink = start_superlink
    try:
        yield federation.node_certificates
    finally:
        for proxy in proxies:
            proxy.terminate()
            proxy.wait(10)


def opened(host, address):
    try:
        socket.create_connection((host, int(address.rpartition(":")[2])), timeout=5).close()
    except OSError:
        return False
    return True


needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx")


@needs_nginx
def test_the_proxy_of_the_page_lets_clients_in_and_nobody_else(tmp_path):
    (door,) = free_ports(1)
    federation = Federation(tmp_path, 2, deal(tmp_path / "data", 2), proxy=f"127.0.0.1:{door}")
    with behind_a_proxy(federation, "127.0.0.1") as certificate, federation:
        context = ssl.create_default_context(cafile=str(certificate))
        for path in ("/", "/health", "/v1/control/start-run", "/v1/runtime/acquire-task"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"https://127.0.0.1:{door}{path}", b"", timeout=10, context=context)
        results, run = federation.train("rounds", 3)
        wait_until(lambda: len(lines_of(results)) > 1)
        shown = partial(ssl.get_server_certificate, ("127.0.0.1", door))
        before = shown()
        assert main(["flower", "certificates", "--renew", "--again", "--folder", str(tmp_path / "proxy")]) == 0
        subprocess.run(["nginx", "-c", str(tmp_path / "nginx.conf"), "-s", "reload"], check=True, timeout=60)
        wait_until(lambda: shown() != before)
        ends(federation, run)
        assert [set(line.verdicts) for line in lines_of(results)[1:]] == [{0, 1}] * 3, "no round lost a client by that"

        federation.kill_node(1)
        federation.node_certificates = tmp_path / "certificates" / "ca.crt"  # not of whom it finds at the proxy
        assert "CERTIFICATE_VERIFY_FAILED" in refused(federation, 1)
        federation.node_certificates = certificate
        for half in ("node-1", "node-1.pub"):
            (tmp_path / "keys" / half).unlink()
        make_node_key(tmp_path / "keys" / "node-1")
        assert "Failed to activate SuperNode" in refused(federation, 1)
    assert marked(federation.mark) == []


def refused(federation, client):
    """What a SuperNode says that is started and ends by itself."""
    federation.start_node(client)
    status = wait_until(lambda: (federation.nodes[client].poll() is not None) and (federation.nodes[client].poll(),))
    assert status == (1,)
    return (federation.folder / "logs" / f"node-{client}.log").read_text()


# --- two machines, as far as a kernel can make them of one

REACHES = """
import socket, sys
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), timeout=5).close()
        print("open")
    except OSError:
        print("closed")
"""


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True, timeout=30)


class Elsewhere(NamedTuple):
    """A network namespace whose one way out is a cable to this machine, and the addresses of the cable's ends."""

    name: str
    here: str
    there: str


@pytest.fixture
def elsewhere():
    if shutil.which("ip") is None or ip("netns", "list", check=False).returncode:
        pytest.skip("network namespaces are not allowed here")
    made = Elsewhere(f"phalanx{os.getpid()}", *free_addresses())
    name = made.name
    if ip("netns", "add", name, check=False).returncode:
        pytest.skip("network namespaces are not allowed here")
    try:
        ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        ip("address", "add", f"{made.here}/30", "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        for words in (("address", "add", f"{made.there}/30", "dev", f"{name}b"), ("link", "set", f"{name}b", "up"),
                      ("link", "set", "lo", "up")):  # fmt: skip
            ip("-n", name, *words)
        yield made
    finally:
        unplug(name)


def unplug(name):
    ip("link", "del", f"{name}a", check=False)  # at once; with its namespace it goes some time later
    ip("netns", "del", name, check=False)


def free_addresses():
    """Two addresses of one cable, of those that the standards keep for examples; cables of the dead are taken away.

    Each process draws from its own, so that two that begin at once do not meet.
    """
    for name in re.findall(r"^phalanx(\d+)\b", ip("netns", "list").stdout, re.MULTILINE):
        if not Path(f"/proc/{name}").exists():
            unplug(f"phalanx{name}")
    taken = ip("-o", "-4", "address").stdout
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    for first in range(32 * worker, 32 * (worker + 1), 4):
        here, there = (f"198.51.100.{first + k}" for k in (1, 2))
        if f" {here}/" not in taken:
            return here, there
    raise AssertionError(f"all addresses of this process are taken: {taken}")


class Apart(Federation):
    """One whose SuperNodes run in a network namespace."""

    namespace = ""

    def _command(self, name, program, *arguments):
        inside = ["ip", "netns", "exec", self.namespace] if name.startswith("node-") else []
        return [*inside, *super()._command(name, program, *arguments)]


@needs_nginx
def test_the_recipe_of_the_page_between_two_machines(elsewhere, tmp_path):
    (door,) = free_ports(1)
    federation = Apart(tmp_path, 2, deal(tmp_path / "data", 2), proxy=f"{elsewhere.here}:{door}")
    federation.namespace = elsewhere.name
    with behind_a_proxy(federation, elsewhere.here), federation:

        def reached(host):
            ask = ["ip", "netns", "exec", elsewhere.name, sys.executable, "-c", REACHES]
            asked = [*ask, host, str(door), str(federation.ports[0])]
            return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.split()

        for host, wanted in ((elsewhere.here, ["open", "closed"]), ("127.0.0.1", ["closed", "closed"])):
            assert reached(host) == wanted, "of the coordinator's machine, clients reach the proxy and nothing else"
        results, run = federation.train("rounds", 2)
        ends(federation, run)
        assert [set(line.verdicts) for line in lines_of(results)[1:]] == [{0, 1}] * 2
    assert marked(federation.mark) == []


@needs_nginx
def test_sites_leave_come_back_and_change_their_machine_while_a_run_goes_on(elsewhere, tmp_path):
    """One command for each, and the certificate is renewed as well; the run comes to its end as planned.

    Client 0 attacks, and is excluded in the first round.
    """
    (door,) = free_ports(1)
    steps, roster = 30, str(tmp_path / "roster.yaml")
    federation = Apart(tmp_path, 5, deal(tmp_path / "data", 5), proxy=f"{elsewhere.here}:{door}")
    federation.namespace = elsewhere.name
    with behind_a_proxy(federation, elsewhere.here), federation:
        results, run = federation.train("rounds", steps)

        def next_line(fact):
            begun = len(lines_of(results))

            def come():
                assert run.poll() is None, federation.log()
                return next((line for line in lines_of(results)[begun:] if fact(line)), None)

            return wait_until(come)

        next_line(lambda line: clients_of(line) == {1, 2, 3, 4})
        assert main(["flower", "revoke", "client-2", "--roster", roster]) == 0
        next_line(lambda line: clients_of(line) == {1, 3, 4})
        assert main(["flower", "readmit", "client-2", "--revoked", "--roster", roster]) == 0
        next_line(lambda line: clients_of(line) == {1, 2, 3, 4})

        assert main(["flower", "certificates", "--renew", "--again", "--folder", str(tmp_path / "proxy")]) == 0
        subprocess.run(["nginx", "-c", str(tmp_path / "nginx.conf"), "-s", "reload"], check=True, timeout=60)

        federation.kill_node(1)  # its machine is gone with both keys
        keys = tmp_path / "keys"
        for name in ("client-1.pem", "node-1", "node-1.pub"):
            (keys / name).unlink()
        assert main(["flower", "key", str(keys / "client-1.pem")]) == 0
        made = ["flower", "request", "client-1", str(keys / "client-1.pem"), federation.coordinator]
        assert main([*made, "--out", str(tmp_path / "request.json")]) == 0
        assert main(["flower", "rotate", "client-1", str(tmp_path / "request.json"), "--roster", roster]) == 0
        make_node_key(keys / "node-1")
        federation.register(1)
        federation.start_node(1)
        later = next_line(lambda line: clients_of(line) == {1, 2, 3, 4})
        assert later.step < steps
        ends(federation, run)
    lines, trail = lines_of(results), read(results / "audit.jsonl")
    assert (lines[-1].step, Record.load(results).summary.status) == (steps, "finished")
    assert [line.lost for line in lines if line.lost and {3, 4} & line.lost.keys()] == [], (
        "the others miss nothing by it"
    )
    assert [(entry.event, entry.client) for entry in trail if entry.event in ("revoked", "re-admitted", "new key")] == [
        ("revoked", 2), ("re-admitted", 2), ("new key", 1),
    ]  # fmt: skip
    assert not [entry for entry in trail if entry.event == "suspended"]
    assert verify(results).status == 0
    assert marked(federation.mark) == []


# --- the command


def start_up(folder, *options, clients=2):
    """`phalanx flower up` in a process of its own, that Ctrl-C reaches."""
    program = str(Path(sys.executable).parent / "phalanx")
    command = [program, "flower", "up", "--clients", str(clients), "--folder", "here"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here would be there, too
    up = subprocess.Popen([*command, *options], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    signal.signal(signal.SIGINT, before)
    return up


def test_a_federation_that_is_stopped_while_it_starts_leaves_no_process(tmp_path):
    up = start_up(tmp_path)
    try:
        wait_until((tmp_path / "here" / "logs" / "run.log").is_file)
        mark = wait_until(lambda: _mark(tmp_path / "here" / "logs" / "superlink.log"))
        assert len(marked(mark)) >= 3
        up.send_signal(signal.SIGTERM)
        out, _ = up.communicate(timeout=PATIENT)
    finally:
        up.kill()
    assert up.returncode == 130, out
    assert "Stopped.\nThe run had not begun: there are no results." in out
    assert marked(mark) == []


def test_the_example_is_stopped_with_ctrl_c_and_goes_on(tmp_path):
    shutil.copytree(DEPLOYMENT.parents[1] / "examples" / "flower", tmp_path / "app")
    told = tmp_path / "app" / "pyproject.toml"
    told.write_text(told.read_text().replace("rounds = 20", "rounds = 3"))
    results = tmp_path / "here" / "run"
    up = start_up(tmp_path, "--app", "app", clients=4)
    try:
        wait_until(lambda: len(lines_of(results)) > 1)
        mark = _mark(tmp_path / "here" / "logs" / "superlink.log")
        up.send_signal(signal.SIGINT)
        out, _ = up.communicate(timeout=PATIENT)
    finally:
        up.kill()
    assert up.returncode == 130, out
    assert marked(mark) == []
    record = Record.load(results)
    assert record.summary.status == "stopped"
    trail = read(results / "audit.jsonl")
    assert (trail[-1].event, trail[-1].why) == ("ended", "stopped")
    assert f"`phalanx report {results}` makes a page of them. The same command goes on from there." in out

    again = start_up(tmp_path, "--app", "app", clients=4)
    out, _ = again.communicate(timeout=PATIENT)
    assert again.returncode == 0, out
    assert f"Goes on after step {record.history[-1].step}, where the run was stopped." in out
    assert [line.step for line in lines_of(results)] == [0, 1, 2, 3]
    assert [clients_of(line) for line in lines_of(results)[1:]] == [{0, 1, 2, 3}] * 3


def _mark(log):
    """The mark of the federation that writes to a log."""
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            writes = environment and any(os.path.realpath(fd) == str(log) for fd in (entry / "fd").iterdir())
        except OSError:
            continue
        if writes:
            return next(v.partition(b"=")[2].decode() for v in environment if v.startswith(MARK.encode()))
    return None
