"""The life of certificates: renewed for clients that notice nothing, and an authority that gives way to the next."""

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.flower.certificates import (
    CA_KEY,
    CERTIFICATE,
    authorities_of,
    certificate_of,
    half_life,
    make_certificates,
    renew,
    succeed,
)

HOST = "coordinator.example"


def trusts(ca, folder):
    """Whether a client that has this ca.crt trusts the server of the folder, over TLS."""
    client, server = ssl.create_default_context(cadata=ca), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / CERTIFICATE, folder / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname=HOST), server.wrap_bio(to_server, to_client, True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
            except ssl.SSLError:
                continue
    return True


@pytest.fixture
def folder(tmp_path):
    make_certificates(tmp_path / "door", [HOST, "10.0.0.7"], 100)
    return tmp_path / "door"


def test_clients_need_nothing_new_when_a_certificate_is_renewed(folder):
    ca, before = (folder / "ca.crt").read_text(), certificate_of(folder)
    assert trusts(ca, folder)
    end = renew(folder, 200)
    after = certificate_of(folder)
    assert after.not_valid_after_utc == end
    assert end - before.not_valid_after_utc > timedelta(days=99)
    assert after.serial_number != before.serial_number
    assert after.public_key() == before.public_key(), "so that one file changes, and it always fits the other"
    assert [str(e.value) for e in after.extensions] == [str(e.value) for e in before.extensions]
    assert trusts(ca, folder)
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600


def test_a_server_of_another_authority_is_not_trusted(folder, tmp_path):
    make_certificates(tmp_path / "other", [HOST])
    assert not trusts((folder / "ca.crt").read_text(), tmp_path / "other")


def test_an_authority_gives_way_to_the_next_while_clients_have_the_one_or_the_other(folder):
    first = (folder / "ca.crt").read_text()
    old_key = (folder / CA_KEY).read_bytes()
    by = succeed(folder)
    assert by == half_life(certificate_of(folder))
    both = (folder / "ca.crt").read_text()
    assert both.count("BEGIN CERTIFICATE") == 2
    assert (folder / CA_KEY).read_bytes() != old_key
    assert trusts(first, folder)
    assert trusts(both, folder), "before the renewal, clients may have either"
    renew(folder)
    assert trusts(both, folder)
    assert not trusts(first, folder), "who did not get the new one in time"
    succeed(folder)
    renew(folder)
    third = (folder / "ca.crt").read_text()
    assert third.count("BEGIN CERTIFICATE") == 2, "an authority that signs nothing any more is left out"
    assert trusts(third, folder)
    assert not trusts(first, folder)


def test_an_authority_that_gave_way_signs_nothing_any_more_and_its_successor_signs_before_the_next(folder, tmp_path):
    old = tmp_path / "offline.key"
    old.write_bytes((folder / CA_KEY).read_bytes())
    succeed(folder)
    before = (folder / CERTIFICATE).read_bytes(), (folder / "ca.crt").read_bytes(), (folder / CA_KEY).read_bytes()
    with pytest.raises(InfeasibleError, match="not the key of the newest authority"):
        renew(folder, authority_key=old)
    with pytest.raises(InfeasibleError, match="has signed nothing yet"):
        succeed(folder)
    assert before == (
        (folder / CERTIFICATE).read_bytes(), (folder / "ca.crt").read_bytes(), (folder / CA_KEY).read_bytes()
    )  # fmt: skip


def test_no_certificate_outlives_its_authority_and_one_that_ended_signs_nothing(tmp_path):
    make_certificates(tmp_path / "short", [HOST], 365, 5)
    limit = authorities_of(tmp_path / "short")[0].not_valid_after_utc
    assert certificate_of(tmp_path / "short").not_valid_after_utc <= limit
    assert renew(tmp_path / "short", 365) <= limit
    make_certificates(tmp_path / "over", [HOST], 365, 0)
    with pytest.raises(InfeasibleError, match="has ended"):
        renew(tmp_path / "over")


def test_the_authority_gives_way_only_while_clients_have_time(tmp_path):
    make_certificates(tmp_path, [HOST], 0)  # has ended, so that more than half is over
    before = (tmp_path / "ca.crt").read_bytes(), (tmp_path / CA_KEY).read_bytes()
    with pytest.raises(InfeasibleError, match="Renew it first"):
        succeed(tmp_path)
    assert before == ((tmp_path / "ca.crt").read_bytes(), (tmp_path / CA_KEY).read_bytes())


def test_the_key_of_the_authority_can_be_elsewhere_and_no_other_key_will_do(folder, tmp_path):
    away = tmp_path / "stick.key"
    (folder / CA_KEY).rename(away)
    with pytest.raises(InfeasibleError, match="Name it with --authority"):
        renew(folder)
    assert trusts((folder / "ca.crt").read_text(), folder)
    renew(folder, authority_key=away)
    make_certificates(tmp_path / "other", [HOST])
    for wrong, why in (
        (tmp_path / "other" / CA_KEY, "not the key of the newest authority"),
        (folder / "ca.crt", "no private key"),
    ):
        before = (folder / CERTIFICATE).read_bytes()
        with pytest.raises(InfeasibleError, match=why):
            renew(folder, authority_key=wrong)
        assert (folder / CERTIFICATE).read_bytes() == before


def test_by_command_it_is_renewed_from_half_of_its_life_on(folder, capsys):
    command = ["flower", "certificates", "--folder", str(folder)]
    before = certificate_of(folder)
    assert main([*command, "--renew"]) == 0
    due = datetime.now(UTC) + timedelta(days=50)
    (said,) = re.findall(r"Not due before (\S+), half", capsys.readouterr().out)
    assert abs(datetime.fromisoformat(said).replace(tzinfo=UTC) - due) < timedelta(days=2)
    assert certificate_of(folder) == before
    assert main([*command, "--renew", "--again", "--days", "30"]) == 0
    assert "Clients need nothing" in capsys.readouterr().out
    assert certificate_of(folder) != before
    assert main([*command, "--next_authority"]) == 0
    assert f"Give {folder / 'ca.crt'} to each client before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "Give HOSTS"),
        ([HOST], "--renew replaces what expires"),
        ([HOST, "--renew"], "The hosts stay those of the certificate"),
        (["--renew", "--next_authority"], "Give --renew or --next_authority"),
        (["--renew", "--days", "0"], "--days must be 1 to"),
        (["--renew", "--folder", "none"], "There is no none/server.crt"),
    ],
)
def test_what_cannot_be_is_said(folder, words, why, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert main(["flower", "certificates", "--folder", "door", *words]) == 2
    assert why in capsys.readouterr().err
    assert Path("door/server.crt").is_file()
