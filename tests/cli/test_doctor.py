"""`phalanx doctor`: each thing that can be wrong is found, with its remedy."""

import contextlib
import datetime
import http.server
import os
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Mean, Median
from phalanx.algorithms import FedAvg
from phalanx.cli import deployment_folder, doctor
from phalanx.cli.main import main
from phalanx.flower import Roster, new_key
from phalanx.flower.certificates import make_certificates, make_secret
from phalanx.flower.client import ClientMemory, RememberedTurn
from phalanx.flower.codec import TaskMessage
from phalanx.flower.demo import deal
from phalanx.flower.identity import EnrolmentRequest, public_text
from phalanx.models import MLP
from phalanx.runs.card import promised
from phalanx.runs.schema import PromiseRecord, StepRecord, to_json
from phalanx.weighting import Ignore, Truncate


@pytest.fixture
def folder(tmp_path):
    """Of a coordinator, as docs/deployment.md makes it."""
    make_certificates(tmp_path / "certificates", ["127.0.0.1"])
    make_secret(tmp_path / "superexec.secret")
    key, mine = new_key(tmp_path / "key.pem"), public_text(new_key(tmp_path / "coordinator.pem"))
    Roster(coordinator=mine).adding(EnrolmentRequest.sign("Lyon", key, mine)).save(tmp_path / "roster.yaml")
    return tmp_path


def levels(findings):
    return {level for level, *_ in findings}


def found(findings, level):
    return [f"{subject}: {what} {remedy}".strip() for at, subject, what, remedy in findings if at == level]


def test_where_all_is_well_it_says_so_and_exits_with_0(folder, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_kept_by_network", lambda: True)
    monkeypatch.setattr(deployment_folder, "SPACE", 1.0)
    port = free_port()
    assert main(["doctor", "--folder", str(folder), "--ports", str(port)]) == 0
    out = capsys.readouterr().out
    assert "roster: 1 client may take part, 0 are revoked" in out
    assert f"port {port}: free" in out
    assert out.count("a private key, which only its owner can read") == 5
    assert "0 wrong, 0 to look at" in out


def test_a_site_learns_whether_its_table_fits_the_schema(tmp_path, capsys):
    deal(tmp_path, 2)
    schema, good, bad = tmp_path / "schema.json", tmp_path / "data-0.csv", tmp_path / "bad.csv"
    bad.write_text(good.read_text().replace("pixel 7,", "pixel seven,"))
    assert levels(doctor.site(schema, [str(good)])) <= {"ok", "warning"}
    told = found(doctor.site(schema, [str(bad)]), "wrong")
    assert f"{bad}: {bad} does not fit: 1 error" in told
    assert any("Column 'pixel 7' is missing." in line for line in told)
    (told,) = found(doctor.site(schema, [str(tmp_path / "none.csv")]), "wrong")
    assert "finds no file" in told
    (told,) = found(doctor.site(good, []), "wrong")
    assert "is not a schema" in told
    port = str(free_port())
    assert main(["doctor", "--ports", port, "--schema", str(schema), "--tables", str(bad)]) == 1
    assert main(["doctor", "--ports", port, "--tables", str(bad)]) == 2
    assert "Name that as well: --schema FILE." in capsys.readouterr().err
    other = tmp_path / "other.csv"
    other.write_text(good.read_text().replace(",", ";").replace(".", ","))
    command = ["doctor", "--ports", port, "--schema", str(schema), "--tables", str(other)]
    assert main(command) == 1
    capsys.readouterr()
    assert main([*command, "--separator", ";", "--decimal", ","]) == 0
    assert f"{other}: {other} fits" in " ".join(capsys.readouterr().out.split())
    assert main(["doctor", "--ports", port, "--tables", str(bad)]) == 2
    assert "Name that as well: --schema FILE." in capsys.readouterr().err


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def test_it_says_all_that_a_run_promises_in_the_words_of_its_card(folder):
    tiny = Run(clients=3, model=MLP(()), until=Until(1))
    runs = {name: simulate(replace(tiny, algorithm=FedAvg(rule, Ignore())), folder=folder / "runs" / name)
            for name, rule in (("mean", Mean()), ("median", Median()))}  # fmt: skip
    alpha = replace(tiny, algorithm=FedAvg(Median(), Truncate(0.4, 0.6)), clients=5)
    with pytest.warns(UserWarning, match="alpha_star"):
        runs["alpha"] = simulate(alpha, folder=folder / "runs" / "alpha")
    said = {name: " ".join(promised(record.summary.promise, record.summary.remarks)) for name, record in runs.items()}
    findings = list(deployment_folder.at(folder))
    assert f"{folder}/runs/median: {said['median']}" in found(findings, "ok")
    assert f"{folder}/runs/mean: {said['mean']}" in found(findings, "warning")
    assert f"{folder}/runs/alpha: {said['alpha']}" in found(findings, "warning")
    assert runs["alpha"].summary.remarks
    late = folder / "runs" / "mean" / "history.jsonl"
    changed = PromiseRecord(f=1, clients=3, text=("Tolerates any 1 of 3 clients.", "Accuracy is not promised."))
    after = StepRecord(step=2, version=2, seconds=2.0, promise=changed, remarks=("Two have left.",), shares=(0.4,))
    late.write_bytes(late.read_bytes() + to_json(after) + b'\n{"unfinished')
    (what,) = [one for one in found(deployment_folder.at(folder), "ok") if "runs/mean" in one]
    assert what.endswith("1 of 1 aggregations within the bound; largest share 0.4. Two have left.")
    late.write_text("nothing\n")
    assert not any("runs/mean" in subject for _, subject, *_ in deployment_folder.at(folder))


def test_a_key_that_others_can_read_is_wrong_and_the_exit_status_1(folder, capsys):
    os.chmod(folder / "key.pem", 0o640)
    assert main(["doctor", "--folder", str(folder), "--ports", str(free_port())]) == 1
    out = capsys.readouterr().out
    assert f"wrong    {folder}/key.pem: can be read or changed by others (mode 640)." in out
    assert f"chmod 600 {folder}/key.pem" in out


@pytest.mark.parametrize(("days", "level", "what"), [(0, "wrong", "expired on"), (20, "warning", "expires on")])
def test_certificates_that_end_are_told_of(tmp_path, days, level, what):
    make_certificates(tmp_path, ["127.0.0.1"], days, days)
    told = found(doctor.at(tmp_path), level)
    assert sum(f"{name}: {what}" in line for line in told for name in ("ca.crt", "server.crt")) == 2
    assert all(("--renew" if "server.crt" in line else "--next_authority") in line for line in told)


def test_a_certificate_of_another_key_or_another_authority_or_without_key_is_wrong(folder, tmp_path):
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    authority = "is not signed by ca.crt in its folder"
    for name, what in (("server.key", "is not the key of server.crt"), ("ca.crt", authority)):
        path = folder / "certificates" / name
        before = path.read_bytes()
        path.write_bytes((tmp_path / "other" / name).read_bytes())
        (told,) = found(doctor.at(folder), "wrong")
        assert what in told
        path.write_bytes(before)
    (folder / "certificates" / "server.key").unlink()
    (told,) = found(doctor.at(folder), "wrong")
    assert "has no key in its folder, server.key is missing." in told


def test_a_damaged_certificate_and_a_damaged_roster_are_wrong(folder):
    (folder / "certificates" / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nnothing\n")
    (folder / "roster.yaml").write_text("clients: 3")
    told = found(doctor.at(folder), "wrong")
    assert any("cannot be read as a certificate" in line for line in told)
    assert any("is not a roster" in line for line in told)


def test_a_port_that_somebody_holds_is_wrong(folder, monkeypatch):
    monkeypatch.setattr(doctor, "TIMEOUT", 0.2)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        (told,) = found(doctor.free([held.getsockname()[1]], None), "wrong")
    assert "cannot be taken: Address already in use." in told
    assert "--ports" in told
    assert levels(doctor.free([70000], None)) == {"wrong"}


class Healthy(http.server.BaseHTTPRequestHandler):
    """As a SuperLink, or as some other server that says something of itself."""

    said = b""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.said)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(handler, certificates=None):
    """A server on a free port, with TLS by the certificates of a folder."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def test_a_port_where_our_superlink_listens_is_fine_whether_or_not_its_certificate_is_known(folder, tmp_path):
    certificates = folder / "certificates"
    make_certificates(tmp_path / "other" / "certificates", ["127.0.0.1"])
    with served(Healthy, certificates) as port:
        told = [found(doctor.free([port], at), "ok") for at in (folder, None, tmp_path / "other")]
    with_tls = f"port {port}: a SuperLink listens there, with "
    assert told[0] == [f"{with_tls}the certificate of this folder"]
    assert told[1] == [f"{with_tls}a certificate which was not checked: --folder names the one that has ca.crt"]
    assert told[2] == [f"{with_tls}a certificate not by {tmp_path}/other/certificates/ca.crt"]
    with served(Healthy) as port:
        assert found(doctor.free([port], None), "ok") == [f"port {port}: a SuperLink listens there, without TLS"]
    with served(type("Other", (Healthy,), {"said": b"welcome"})) as port:
        assert levels(doctor.free([port], None)) == {"wrong"}


BAD_EXAMPLES = {
    "another length": ({"x": np.zeros((3, 2)), "y": np.zeros(4, int)}, "x has 3 rows, and y 4 labels."),
    "no labels": ({"x": np.zeros((3, 2))}, "holds no y, but x."),
    "other names": ({"a": np.zeros(3), "b": np.zeros(3)}, "holds no x and no y, but a, b."),
    "NaN": ({"x": np.array([[np.nan, 1.0], [np.inf, 0.0]]), "y": np.zeros(2, int)}, "x holds 2 NaN or infinite of 4"),
    "labels with a point": ({"x": np.zeros((2, 2)), "y": np.zeros(2)}, "labels are float64, expected whole numbers."),
    "a label below 0": ({"x": np.zeros((2, 2)), "y": np.array([0, -1])}, "the smallest label is -1, expected 0"),
    "nobody": ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "there is no example."),
    "numbers": ({"x": np.zeros(3), "y": np.zeros(3, int)}, "x has shape (3,) and y (3,), expected one row"),
    "nothing": ({}, "holds nothing."),
    "text": ({"x": np.full((2, 2), "a"), "y": np.zeros(2, int)}, "x is <U1, expected numbers."),
    "complex numbers": ({"x": np.zeros((2, 2), complex), "y": np.zeros(2, int)}, "x is complex128, expected numbers."),
    "objects": ({"x": np.array([{}, {}]), "y": np.zeros(2, int)}, "cannot be read: Object arrays cannot be loaded"),
}


@pytest.mark.parametrize(("held", "what"), BAD_EXAMPLES.values(), ids=BAD_EXAMPLES)
def test_examples_that_a_client_cannot_train_on_are_wrong(held, what, folder):
    np.savez(folder / "data.npz", **held)
    (told,) = found(doctor.at(folder), "warning" if what.startswith("holds no ") else "wrong")
    assert told.startswith(f"{folder}/data.npz: {what}")


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.uint8, np.int32, bool], ids=lambda kind: kind.__name__)
def test_examples_of_all_kinds_of_numbers_are_fine(kind, folder):
    np.savez(folder / "data.npz", x=np.ones((2, 3), kind), y=np.zeros(2, int))
    assert found(doctor.at(folder), "wrong") == []


def hides(monkeypatch, hidden):
    """Has the system keep back a file, or a folder with what is in it; from root, too, as which tests may run."""

    def kept_back(name, *, itself):
        real = getattr(Path, name)

        def method(path, *arguments, **options):
            if hidden in path.parents or (itself and path == hidden):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *arguments, **options)

        monkeypatch.setattr(Path, name, method)

    kept_back("iterdir", itself=True)
    kept_back("open", itself=True)
    kept_back("stat", itself=False)


@pytest.mark.parametrize("name", ["data", "certificates", "."])
def test_a_folder_that_cannot_be_looked_at_is_told_of_beside_all_else(name, folder, capsys, monkeypatch):
    deal(folder / "data", 2)
    os.chmod(folder / "key.pem", 0o644)
    hidden = folder / name
    hides(monkeypatch, hidden)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert main(["doctor", "--folder", str(folder), "--ports", str(port)]) == 1
    out = capsys.readouterr().out
    what = f"wrong    {hidden}: cannot be looked at: Permission denied. Run this as whoever owns it, or: chmod -R u+rX"
    assert out.count(what) == 1
    assert f"wrong    port {port}: cannot be taken" in out
    assert ("key.pem: can be read or changed by others" in out) is (name != ".")


@pytest.mark.parametrize(
    "name", ["key.pem", "roster.yaml", "data/data-0.npz", "certificates/server.key", "certificates/ca.crt"]
)
def test_a_file_that_cannot_be_looked_at_is_told_of_once(name, folder, monkeypatch):
    deal(folder / "data", 2)
    hides(monkeypatch, folder / name)
    told = f"{folder / name}: cannot be looked at: Permission denied. "
    assert [line.startswith(told) for line in found(doctor.at(folder), "wrong")] == [True]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"no archive", None], ids=repr)
def test_a_file_of_examples_that_is_damaged_is_wrong(content, folder):
    path = folder / "data.npz"
    np.savez_compressed(path, x=np.arange(2000.0).reshape(1000, 2), y=np.zeros(1000, int))
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(20) + whole[220:] if content is None else content)
    (told,) = found(doctor.at(folder), "wrong")
    assert told.startswith(f"{path}: cannot be read: ")
    assert "numpy.savez(path, x=x, y=y)" in told


def test_examples_as_the_apps_have_them_are_fine_and_what_clients_remember_is_passed_over(folder):
    deal(folder / "data", 2)
    ClientMemory(folder / "memory").keep(
        TaskMessage("train", "abc", bytes(32), 1, 0, 0, "float32"), RememberedTurn(None, torch.ones(2))
    )
    told = found(doctor.at(folder), "ok")
    files = tuple(f"{folder}/data/data-{i}.npz: " for i in range(2))
    assert [line.partition(" examples, ")[2] for line in told if line.startswith(files)] == [
        "float32 (64,), labels int64"
    ] * 2
    assert not [subject for _, subject, *_ in doctor.at(folder) if subject.startswith(f"{folder}/memory")]
    assert found(doctor.at(folder), "wrong") == []


def test_a_clock_behind_its_own_files_is_wrong(folder, monkeypatch):
    monkeypatch.setattr(doctor, "_kept_by_network", lambda: None)
    assert levels(doctor.clock(folder)) == {"ok"}
    ahead = datetime.datetime.now().timestamp() + 3600
    os.utime(folder / "roster.yaml", (ahead, ahead))
    (told,) = found(doctor.clock(folder), "wrong")
    assert "3600 s newer. Set it" in told or "3599 s newer. Set it" in told
    monkeypatch.setattr(doctor, "_kept_by_network", lambda: False)
    assert found(doctor.clock(None), "warning")


def test_versions_are_compared_with_what_is_asked_for(monkeypatch):
    assert levels(doctor.versions()) == {"ok"}
    real = doctor.version
    monkeypatch.setattr(doctor, "requires", lambda name: ["torch>=2.6", "flwr<1.43,>=1.41; extra == 'flower'"])
    monkeypatch.setattr(doctor, "version", lambda name: "1.20.0" if name == "flwr" else real(name))
    (told,) = found(doctor.versions(), "wrong")
    assert told.startswith("flwr: 1.20.0, expected ")
    assert "pip install 'flwr" in told

    def none(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", none)
    assert [line.split(":")[0] for line in found(doctor.versions(), "wrong")] == ["torch", "numpy"]
    assert "flwr: not installed, needed for real clients" in " ".join(found(doctor.versions(), "ok"))


def test_the_folder_of_data_is_looked_at(tmp_path):
    assert levels(doctor.data(None)) == {"ok"}
    assert "Name another one, by --data_dir" in found(doctor.data(tmp_path / "none"), "wrong")[0]
    assert found(doctor.data(tmp_path), "warning")
    (tmp_path / "mnist").mkdir()
    assert found(doctor.data(tmp_path), "ok") == [f"data: {tmp_path} holds mnist"]


def test_a_folder_that_is_not_there_is_wrong_and_an_empty_one_is_remarked(tmp_path):
    assert found(doctor.at(tmp_path / "none"), "wrong") == [
        f"folder: there is no folder {tmp_path}/none. Name another one: --folder."
    ]
    told = found(doctor.at(tmp_path), "warning")
    assert any("there is no private key" in line for line in told)
    assert any("there is no certificate" in line for line in told)
