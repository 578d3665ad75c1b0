"""A consortium's kit: what is in it, what is not, and a federation that is set up by nothing else."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.flower.certificates import authorities_of
from phalanx.flower.demo import deal
from phalanx.flower.kit import COORDINATOR, FOLDER, OFFLINE, SITES, Consortium, Site, archives_of, command_of, write_kit
from phalanx.flower.live import lines
from phalanx.flower.local_federation import QUIET, free_ports, kill_tree
from phalanx.flower.metrics import PrometheusMetrics
from phalanx.runs.record import Record

ROOT = Path(__file__).parents[2]
CACHE = "/var/cache/phalanx"  # of compiled loops, in a container
NAMES = ("St. Mary's", "Hôpital Lyon", "Klinik Süd")


@pytest.fixture
def described(tmp_path):
    """The description of a consortium of three, and its schema."""
    deal(tmp_path / "data", 3)
    sites = "\n".join(f"  - name: {name}" for name in NAMES)
    path = tmp_path / "hospitals.yaml"
    path.write_text(
        f"host: 127.0.0.1\nport: 4430\nschema: data/schema.json\nsites:\n{sites}\n    contact: it@example\n"
    )
    return path


def inside(archive):
    with tarfile.open(archive) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened.getmembers()}


def test_an_archive_holds_no_secret_and_all_that_a_site_needs(described, tmp_path, capsys):
    assert main(["flower", "kit", str(described), "--folder", str(tmp_path / "kit")]) == 0
    said = capsys.readouterr().out
    kit = tmp_path / "kit"
    archives = sorted(path.name for path in (kit / SITES).iterdir())
    assert archives == ["hopital-lyon.tar.gz", "klinik-sud.tar.gz", "st-marys.tar.gz"]
    for archive in archives:
        found = inside(kit / SITES / archive)
        schema = {"schema.json", "schema.json.sig"}
        assert found.keys() == {"README.md", "compose.yaml", "phalanx-node.service", "proxy-ca.crt", *schema}
        assert not any(b"PRIVATE KEY" in content for content in found.values())
        assert not any(b"$" in found[name] for name in ("README.md", "phalanx-node.service")), "all is filled in"
        assert found["proxy-ca.crt"] == (kit / COORDINATOR / "proxy" / "ca.crt").read_bytes()
        assert found["schema.json"] == (tmp_path / "data" / "schema.json").read_bytes()
        key = re.search(r'coordinator="(ed25519:[^"]+)"', found["phalanx-node.service"].decode())[1]
        assert key in said
    assert "it@example" in inside(kit / SITES / "klinik-sud.tar.gz")["README.md"].decode()
    assert "not given" in inside(kit / SITES / "st-marys.tar.gz")["README.md"].decode()


def test_secrets_are_the_coordinators_and_those_of_the_authorities_lie_apart(described, tmp_path):
    write_kit(Consortium.load(described), tmp_path / "kit")
    private = {
        str(path.relative_to(tmp_path / "kit")): path.stat().st_mode & 0o777
        for path in (tmp_path / "kit").rglob("*")
        if path.is_file() and (b"PRIVATE KEY" in path.read_bytes() or path.name == "superexec.secret")
    }
    keys = ("coordinator.pem", "superexec.secret", "proxy/server.key", "certificates/server.key")
    wanted = [f"{OFFLINE}/proxy-ca.key", f"{OFFLINE}/certificates-ca.key", *(f"{COORDINATOR}/{key}" for key in keys)]
    assert private == dict.fromkeys(wanted, 0o600)
    assert all((tmp_path / "kit" / name).stat().st_mode & 0o077 == 0 for name in (OFFLINE, COORDINATOR, SITES))


def test_the_fingerprint_is_that_which_openssl_shows(described, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    compared = write_kit(Consortium.load(described), tmp_path / "kit")
    (tmp_path / "proxy-ca.crt").write_bytes(inside(tmp_path / "kit" / SITES / "st-marys.tar.gz")["proxy-ca.crt"])
    (command,) = [block for block in commands(tmp_path / "kit", "st-marys") if block.startswith("openssl")]
    shown = subprocess.run(
        shlex.split(command.replace(FOLDER, str(tmp_path))), capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip().endswith(compared["fingerprint"])


def commands(kit, site):
    """What a site's page has it type."""
    text = inside(kit / SITES / f"{site}.tar.gz")["README.md"].decode()
    return re.findall(r"^ {7,8}(\S.*)$", text, re.MULTILINE)


def test_the_page_of_deployment_shows_the_same(described, tmp_path):
    """The page is for one coordinator, and so is this kit: coordinator.example, port 443."""
    described.write_text(described.read_text().replace("127.0.0.1", "coordinator.example").replace("4430", "443"))
    write_kit(Consortium.load(described), tmp_path / "kit")
    page = (ROOT / "docs" / "deployment.md").read_text()
    home = tmp_path / "kit" / COORDINATOR
    for name, kind in (("nginx.conf", "nginx"), ("config.toml", "toml")):
        assert (home / name).read_text() in re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    words = " ".join(page.replace("\\\n", " ").split())
    for unit in ("phalanx-superlink.service", "phalanx-superexec.service"):
        assert " ".join(command_of((home / unit).read_text())) in words


def test_ports_and_the_folder_are_settings_that_reach_every_file(described, tmp_path):
    given = {"port": 4431, "superlink": 4432, "metrics": 4433, "node": 4434, "folder": "/opt/federation"}
    text = described.read_text().replace("port: 4430", "\n".join(f"{name}: {value}" for name, value in given.items()))
    described.write_text(text)
    write_kit(Consortium.load(described), tmp_path / "kit")
    home = tmp_path / "kit" / COORDINATOR
    files = {
        path.name: path.read_text()
        for path in home.iterdir()
        if path.is_file() and path.suffix != ".secret" and path.name != "schema.json"
    }
    site = {name: text.decode() for name, text in inside(tmp_path / "kit" / SITES / "st-marys.tar.gz").items()}
    everything = "\n".join([*files.values(), *site.values()])
    for default in ("/srv/phalanx", "8000", "9094", "9464"):
        assert default not in everything
    assert "listen 4431 ssl;" in files["nginx.conf"]
    assert "proxy_pass https://127.0.0.1:4432;" in files["nginx.conf"]
    assert 'address = "127.0.0.1:4432"' in files["config.toml"]
    assert "--port 4432 " in files["phalanx-superlink.service"]
    assert "127.0.0.1:4432 " in files["phalanx-superexec.service"]
    assert "Coordinator(metrics=4433)" in files["README.md"]
    assert "--superlink 127.0.0.1:4431 --port 4434 " in site["phalanx-node.service"]
    assert "--ports 4434" in site["README.md"]
    (node,) = yaml.safe_load(site["compose.yaml"])["services"].values()
    assert (node["working_dir"], node["environment"], node["volumes"][0]) == (
        "/opt/federation", {"HOME": "/opt/federation"}, ".:/opt/federation"
    )  # fmt: skip


def test_containers_do_what_the_units_do_and_write_to_volumes_alone(described, tmp_path):
    write_kit(Consortium.load(described), tmp_path / "kit")
    home, site = tmp_path / "kit" / COORDINATOR, inside(tmp_path / "kit" / SITES / "klinik-sud.tar.gz")
    units = {f"coordinator {path.name}": path.read_text() for path in home.glob("*.service")}
    units |= {f"site {name}": text.decode() for name, text in site.items() if name.endswith(".service")}
    services = {
        f"{where} phalanx-{name}.service": service
        for where, text in (("coordinator", (home / "compose.yaml").read_text()), ("site", site["compose.yaml"]))
        for name, service in yaml.safe_load(text)["services"].items()
    }
    proxy = services.pop("coordinator phalanx-proxy.service")
    assert {name: service["command"] for name, service in services.items()} == {
        name: command_of(text) for name, text in units.items()
    }
    for service in (*services.values(), proxy):
        assert service["read_only"]
        assert service["restart"] == "unless-stopped"
    for service in services.values():
        assert service["volumes"] == [f".:{FOLDER}", "compiled:/var/cache/phalanx"]
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    mounted = dict(volume.split(":")[:2] for volume in proxy["volumes"])
    used = {word.rstrip(";") for word in (home / "nginx.conf").read_text().split() if word.startswith(FOLDER)}
    assert all(any(path == place or path.startswith(f"{place}/") for place in mounted.values()) for path in used)
    assert all((home / name).exists() for name in mounted)


def test_the_image_holds_the_library_and_starts_as_the_containers_need_it():
    """There is no engine here: its steps are compared with what other tests carry out."""
    text = (ROOT / "Dockerfile").read_text()
    steps = text.replace("\\\n", " ")
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert "pip install torch --index-url https://download.pytorch.org/whl/cpu" in page
    assert "pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu" in steps
    (extras,) = re.findall(r"/usr/src/phalanx\[([a-z,]+)\]", steps)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared, texts = (
        project["project"],
        project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"],
    )
    assert {*extras.split(",")} <= declared["optional-dependencies"].keys()
    assert f"NUMBA_CACHE_DIR={CACHE} " in steps
    assert f"HOME={FOLDER} " in steps
    assert "phalanx doctor --compile" in steps
    page = (ROOT / "src" / "phalanx" / "flower" / "kit_files" / "site.md").read_text()
    typed = {line.split()[0] for line in re.findall(r"^ {7,8}(\S.*)$", page, re.MULTILINE)}
    assert typed - {*OF_ROOT, "python3", "openssl", "grep"} == {"cd", "phalanx", "ssh-keygen"}, "what a container needs"
    assert "openssh-client" in steps  # ssh-keygen
    taken = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    needed = [*(text["path"] for text in texts), *declared["license-files"], "pyproject.toml", "src"]
    assert sorted(taken) == sorted(needed)
    assert all((ROOT / name).exists() for name in taken)


STEPS = {  # of the Dockerfile, by how each begins: whether the test below carries it out, or only sees that it is there
    "FROM python:": "an image, which names the version of Python",
    "RUN apt-get update": "a program that the test above looks for",
    "RUN pip install --no-cache-dir torch": "the command of the page",
    "COPY . ": "carried out",
    "RUN pip install --no-cache-dir '/usr/src/phalanx": "carried out, without what it depends on",
    "ENV HOME=": "carried out",
    "RUN useradd": "carried out, but for the user and whose the folders are",
    "USER phalanx": "not carried out",
    "WORKDIR ": "carried out",
}


LATER = """
import torch
from phalanx.aggregators import MDA, Krum, Median, TrimmedMean
from phalanx import Run, Until, simulate
from phalanx.algorithms import ByzantineCFL, FedAvg
from phalanx.training import LocalSGD
for rule in (Median(), TrimmedMean(), Krum(f=1), MDA(f=1)):
    for dtype in (torch.float32, torch.float64):
        rule(torch.rand(10, 4000, dtype=dtype))
        rule(torch.rand(10, 4000, dtype=dtype), 1_000 * torch.arange(1.0, 11))
        rule(torch.rand(10, 4000, dtype=dtype), torch.arange(1.0, 11).double() / 7)
        rule.influence(torch.rand(10, 4000, dtype=dtype))
for algorithm in (FedAvg(aggregate=Median()), ByzantineCFL()):
    for engine in ("loop", "compiled"):
        simulate(Run(algorithm=algorithm, training=LocalSGD(engine=engine), until=Until(steps=2)))
"""  # with and without weights, in both precisions, by both engines


@pytest.mark.slow
def test_the_steps_of_the_image_end_in_a_library_that_is_installed_and_compiled(tmp_path):
    """No engine is needed: the steps make folders in place of the image's.  A step that is new has no place above."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    steps = [line for line in text.splitlines() if line]
    assert [next((begin for begin in STEPS if step.startswith(begin)), step) for step in steps] == [*STEPS]
    version = re.match(r"FROM python:([\d.]+)-slim", steps[0])[1]
    assert f"Programming Language :: Python :: {version}" in (ROOT / "pyproject.toml").read_text()
    places = {"/usr/src/phalanx": tmp_path / "source", FOLDER: tmp_path / "home", CACHE: tmp_path / "cache"}
    taken = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    places["/usr/src/phalanx"].mkdir()
    for name in taken:  # COPY
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, places["/usr/src/phalanx"] / name)

    def inner(step):
        for place, folder in places.items():
            step = step.replace(place, str(folder))
        return step

    install = inner(steps[4]).removeprefix("RUN ").replace("[flower,tables,metrics]", "")
    target = tmp_path / "installed"
    options = f"--no-deps --no-build-isolation --quiet --target {target} "
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    plain = {"PATH": path, "LANG": "C.UTF-8"}
    subprocess.run(
        ["bash", "-c", install.replace("install ", f"install {options}")], check=True, env=os.environ | plain
    )
    set_up = inner(steps[6]).removeprefix("RUN ")
    *_, made, compiled, owned = (part.strip() for part in re.split(r"&&|(?=mkdir)", set_up) if part.strip())
    assert (made.split()[0], compiled, owned.split()[0]) == ("mkdir", "phalanx doctor --compile", "chown")
    variables = dict(word.split("=", 1) for word in inner(steps[5]).split()[1:])
    environment = plain | variables | {"PYTHONPATH": str(target)}
    program = f"{sys.executable} {target / 'bin' / 'phalanx'}"
    subprocess.run(["bash", "-c", f"{made} && {program} doctor --compile"], check=True, env=environment, cwd=tmp_path)
    code = "import phalanx; print(phalanx.__file__)"
    asked = subprocess.run([sys.executable, "-c", code], env=environment, cwd=inner(steps[8]).split()[1],
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert asked.stdout.startswith(str(target))
    stored = {path.name for path in places[CACHE].rglob("*.nb[ic]")}
    assert stored, "compiled loops lie where the containers have a volume"
    subprocess.run([sys.executable, "-c", LATER], env=environment, cwd=tmp_path, check=True)
    assert stored == {path.name for path in places[CACHE].rglob("*.nb[ic]")}, "nothing is compiled again"


def test_the_dashboard_shows_figures_that_there_are(described, tmp_path):
    write_kit(Consortium.load(described), tmp_path / "kit")
    found = json.loads((tmp_path / "kit" / COORDINATOR / "dashboard.json").read_text())
    queries = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    named = {name for query in queries for name in re.findall(r"phalanx_\w+", query)}
    pytest.importorskip("prometheus_client")
    served = PrometheusMetrics(Counter, lambda: 0).registry.collect()
    assert named <= {sample.name for family in served for sample in family.samples}
    assert len(named) >= 6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("port: 4430", "port: 0"), "port: expected an integer >= 1"),
        (("port: 4430", "tolerate: 2"), "tolerate must be below half of the 3 sites"),
        (("port: 4430", "prot: 443"), "it has no field prot"),
        (("host: 127.0.0.1\n", ""), "host is missing"),
        (("St. Mary's", "KLINIK  SÜD"), "Two sites are called klinik süd"),
        (("St. Mary's", '""'), "must have 1 to 100 visible characters"),
        (("St. Mary's", '"a\\nb"'), "must have 1 to 100 visible characters"),
        (("data/schema", "data/none"), "none.json"),
        (("host: 127.0.0.1", "host: 10.0.0.700"), "A host must be an address"),
        (("host: 127.0.0.1", 'host: "::1"'), "host must be a name or an IPv4 address"),
        (("port: 4430", "port: 8000"), "port and superlink must not both be 8000"),
        (("port: 4430", "metrics: 443"), "port and metrics must not both be 443. Give metrics another port"),
        (("port: 4430", "node: 9464"), "metrics and node must not both be 9464"),
        (("port: 4430", "superlink: 70000"), "superlink: expected an integer <= 65535"),
        (("port: 4430", "folder: data"), "folder must be a path from the root"),
        (("port: 4430", "folder: /a b"), "folder must be a path from the root"),
        (("port: 4430", "folder: /a/../b"), "folder must be a path from the root"),
        (("port: 4430", "folder: /tmp/phalanx"), "folder must not be /tmp/phalanx"),
        (("St. Mary's", "--help"), "not begin with a hyphen"),
    ],
)
def test_what_makes_no_kit_is_said(described, tmp_path, capsys, change, why):
    described.write_text(described.read_text().replace(*change))
    assert main(["flower", "kit", str(described), "--folder", str(tmp_path / "kit")]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "kit").exists(), "half a kit would hold keys, and the next try would be refused"


def test_each_site_has_an_archive_of_its_own():
    names = ("Site 3", "東京", "京都", "Site", "site 3!", "Site 3-2")
    found = archives_of([Site(name) for name in names])
    assert len({*found}) == len(names)
    assert found[:3] == ["site-3.tar.gz", "site.tar.gz", "site-2.tar.gz"]


def test_keys_are_not_written_over(described, tmp_path):
    write_kit(Consortium.load(described), tmp_path / "kit")
    before = authorities_of(tmp_path / "kit" / COORDINATOR / "proxy")
    with pytest.raises(InfeasibleError, match="keys are not written over"):
        write_kit(Consortium.load(described), tmp_path / "kit")
    assert authorities_of(tmp_path / "kit" / COORDINATOR / "proxy") == before


# --- a federation by the kit


OF_ROOT = ("systemctl", "journalctl", "useradd", "venv")  # what would change the machine of the tests


class Machine:
    """Where a unit's command is carried out, in a folder in place of /srv/phalanx."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | QUIET | {"PATH": path, "FLWR_HOME": str(folder / "flwr"), "HOME": str(folder)}

    def here(self, text):
        return text.replace(f"{FOLDER}/venv/bin", str(Path(sys.executable).parent)).replace(FOLDER, str(self.folder))

    def start(self, command):
        with (self.folder / "log").open("ab") as log:
            started = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.folder)
        self.stack.callback(kill_tree, started)
        return started

    def unit(self, name, *more):
        return self.start([*map(self.here, command_of((self.folder / name).read_text())), *more])

    def does(self, command):
        done = subprocess.run(["bash", "-c", self.here(command)], env=self.environment, cwd=self.folder, timeout=120,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def listens(port):
    with socket.socket() as held:
        return held.connect_ex(("127.0.0.1", port)) == 0


def until(fact, said, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, said()
        time.sleep(0.2)


def test_a_kit_that_another_process_writes_meanwhile_keeps_its_keys(described, tmp_path, monkeypatch):
    theirs = tmp_path / "kit" / COORDINATOR / "coordinator.pem"

    def meanwhile(path):
        theirs.parent.mkdir(parents=True)
        theirs.write_text("their key")

    monkeypatch.setattr("phalanx.flower.kit.Schema.load", meanwhile)
    with pytest.raises(FileExistsError):
        write_kit(Consortium.load(described), tmp_path / "kit")
    assert theirs.read_text() == "their key"


@pytest.mark.slow
@pytest.mark.waits
def test_three_sites_train_with_nothing_but_the_kit(described, tmp_path):
    if any(shutil.which(program) is None for program in ("nginx", "openssl", "ssh-keygen")):
        pytest.skip("there is no nginx, openssl or ssh-keygen")
    ports = free_ports(5)
    described.write_text(described.read_text().replace("4430", f"{ports[1]}\nsuperlink: {ports[0]}"))
    compared = write_kit(Consortium.load(described), tmp_path / "kit")
    with ExitStack() as stack:
        home = Machine(tmp_path / "kit" / COORDINATOR, stack)
        (home.folder / "flwr").mkdir()
        (home.folder / "flwr" / "config.toml").write_text(home.here((home.folder / "config.toml").read_text()))
        superlink = home.unit("phalanx-superlink.service")
        until(lambda: listens(ports[0]), (home.folder / "log").read_text)
        home.unit("phalanx-superexec.service")
        folders = "".join(f"{name}_temp_path {home.folder};" for name in
                          ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))  # fmt: skip
        server = home.here((home.folder / "nginx.conf").read_text())
        user = "user root; " if os.geteuid() == 0 else ""
        (home.folder / "all.conf").write_text(
            f"{user}daemon off; pid {home.folder}/pid; error_log {home.folder}/log; events {{}}"
            f"http {{ access_log off; {folders} {server} }}"
        )
        home.start(["nginx", "-c", str(home.folder / "all.conf")])
        for k, archive in enumerate(("st-marys", "hopital-lyon", "klinik-sud")):
            site = Machine(tmp_path / archive, stack)
            site.folder.mkdir()
            with tarfile.open(tmp_path / "kit" / SITES / f"{archive}.tar.gz") as opened:
                opened.extractall(site.folder, filter="data")
            shutil.copy(tmp_path / "data" / f"data-{k}.csv", site.folder / "patients.csv")
            typed = [line for line in commands(tmp_path / "kit", archive) if not any(word in line for word in OF_ROOT)]
            said = [site.does(f"cd {FOLDER}; {line}") for line in typed if "cd " not in line]
            assert compared["fingerprint"] in said[0]
            assert said[1].strip() == compared["key"]
            shutil.copy(site.folder / "request.json", home.folder / "request.json")
            shutil.copy(site.folder / "node.pub", home.folder / "node.pub")
            page = (home.folder / "README.md").read_text()
            for line in re.findall(r"^    ((?:phalanx flower enrol|flwr supernode register) .*)$", page, re.MULTILINE):
                home.does(line)
            site.unit("phalanx-node.service", "--port", str(ports[2 + k]))
        assert [line.split("  ")[-1].strip() for line in home.does(
            f"phalanx flower roster --roster {FOLDER}/roster.yaml").splitlines()] == [*NAMES]  # fmt: skip
        results = home.folder / "runs" / "hospitals"
        files = {"roster": "roster.yaml", "schema": "schema.json", "folder": "runs/hospitals"}
        config = " ".join(f'{name}="{FOLDER}/{file}"' for name, file in files.items())
        home.does(f"flwr run {ROOT / 'examples' / 'flower'} here --run-config '{config} rounds=2'")
        until((results / "summary.json").is_file, (home.folder / "log").read_text)
        assert Record.load(results).summary.status == "finished"
        assert [{*line.verdicts} for line in lines(results)[1:]] == [{0, 1, 2}] * 2
        assert superlink.poll() is None
