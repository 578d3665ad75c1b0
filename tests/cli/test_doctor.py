"""`phalanx doctor`: each thing that can be wrong is found, with its remedy."""

import datetime
import os
import socket

import pytest

from phalanx import doctor
from phalanx.cli import main
from phalanx.flower import Roster, new_key
from phalanx.flower.certificates import make_certificates, make_secret
from phalanx.flower.identity import public_bytes


@pytest.fixture
def folder(tmp_path):
    """Of a coordinator, as docs/deployment.md makes it."""
    make_certificates(tmp_path / "certificates", ["127.0.0.1"])
    make_secret(tmp_path / "superexec.secret")
    key = new_key(tmp_path / "key.pem")
    Roster().adding("Lyon", public_bytes(key)).save(tmp_path / "roster.yaml")
    return tmp_path


def levels(findings):
    return {level for level, *_ in findings}


def found(findings, level):
    return [f"{subject}: {what} {remedy}".strip() for at, subject, what, remedy in findings if at == level]


def test_where_all_is_well_it_says_so_and_exits_with_0(folder, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_kept_by_network", lambda: True)
    monkeypatch.setattr(doctor, "SPACE", 1.0)
    port = free_port()
    assert main(["doctor", "--folder", str(folder), "--ports", str(port)]) == 0
    out = capsys.readouterr().out
    assert "roster: 1 client may take part, 0 are revoked" in out
    assert f"port {port}: free" in out
    assert out.count("a private key, which only its owner can read") == 3
    assert "0 wrong, 0 to look at" in out


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def test_a_key_that_others_can_read_is_wrong_and_the_exit_status_1(folder, capsys):
    os.chmod(folder / "key.pem", 0o640)
    assert main(["doctor", "--folder", str(folder), "--ports", str(free_port())]) == 1
    out = capsys.readouterr().out
    assert f"wrong    {folder}/key.pem: can be read or changed by others (mode 640)." in out
    assert f"chmod 600 {folder}/key.pem" in out


@pytest.mark.parametrize(("days", "level", "what"), [(0, "wrong", "expired on"), (20, "warning", "expires on")])
def test_certificates_that_end_are_told_of(tmp_path, days, level, what):
    make_certificates(tmp_path, ["127.0.0.1"], days)
    told = found(doctor.at(tmp_path), level)
    assert sum(f"{name}: {what}" in line for line in told for name in ("ca.crt", "server.crt")) == 2
    assert "Make new ones (`phalanx flower certificates`)" in told[0]


def test_a_certificate_of_another_key_or_another_authority_or_without_key_is_wrong(folder, tmp_path):
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    for name, what in (("server.key", "is not the key of server.crt"), ("ca.crt", "is not signed by ca.crt beside it")):
        path = folder / "certificates" / name
        before = path.read_bytes()
        path.write_bytes((tmp_path / "other" / name).read_bytes())
        (told,) = found(doctor.at(folder), "wrong")
        assert what in told
        path.write_bytes(before)
    (folder / "certificates" / "server.key").unlink()
    (told,) = found(doctor.at(folder), "wrong")
    assert "has no key beside it, server.key is missing." in told


def test_a_damaged_certificate_and_a_damaged_roster_are_wrong(folder):
    (folder / "certificates" / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nnothing\n")
    (folder / "roster.yaml").write_text("clients: 3")
    told = found(doctor.at(folder), "wrong")
    assert any("cannot be read as a certificate" in line for line in told)
    assert any("is not a roster" in line for line in told)


def test_a_port_that_somebody_holds_is_wrong(folder):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        (told,) = found(doctor.free([held.getsockname()[1]], None), "wrong")
    assert "cannot be taken: Address already in use." in told
    assert "--ports" in told
    assert levels(doctor.free([70000], None)) == {"wrong"}


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
