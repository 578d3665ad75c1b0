"""Certificates and keys of the connection: the coordinator's for TLS, each node's for Flower's authentication.

They protect the connection only.  A client is identified by another key, see `phalanx.flower.identity`.
"""

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from phalanx.errors import InfeasibleError
from phalanx.flower.durable_files import replace_durably, replacing_durably
from phalanx.reading import LARGEST_KEY, contents
from phalanx.wording import shown

CA, CA_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "server.crt", "server.key"

AUTHORITY_DAYS = 3650  # for which an authority is valid
EARLIER = datetime.timedelta(minutes=5)  # clocks of nodes may run behind
LONGEST = 253  # characters of the name of a host
COMMON_NAME = 64  # characters of a name in a certificate; clients compare the alternative names


class Authority(NamedTuple):
    """Who signs the coordinator's certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def make_certificates(
    folder: Path, hosts: Sequence[str], days: int = 365, authority_days: int = AUTHORITY_DAYS
) -> None:
    """Make a certificate authority for the federation, and a certificate of the coordinator signed by it.

    Args:
        folder: receives ca.crt (which nodes need), ca.key (which only renewals need), server.crt and server.key.
        hosts: names and addresses under which nodes reach the coordinator.
        days: for which the coordinator's certificate is valid.
        authority_days: for which the authority is.

    Raises:
        ValueError: a host is neither an address nor a name.
    """
    names = [general_name(host) for host in hosts]
    folder.mkdir(parents=True, exist_ok=True)
    authority = _new_authority(authority_days)
    key = ec.generate_private_key(ec.SECP384R1())
    made = _certified(authority, key.public_key(), names=names, common=hosts[0][:COMMON_NAME], days=days)
    with ExitStack() as files:  # each is on the disk before the first takes the place of an older one
        for name, content in {CA: _pem(authority.certificate), CERTIFICATE: _pem(made)}.items():
            files.enter_context(replacing_durably(folder / name, content))
        for name, secret in {CA_KEY: authority.key, KEY: key}.items():
            files.enter_context(replacing_durably(folder / name, _private(secret), secret=True))


def renew(folder: Path, days: int = 365, authority_key: Path | None = None) -> datetime.datetime:
    """Replace the coordinator's certificate, for the same key; clients need nothing new, as the authority is the same.

    Only one file changes, so that a server never finds a certificate and a key that do not fit.

    Args:
        folder: of the certificates.
        days: for which the new one is valid; no longer than the authority.
        authority_key: the authority's; `folder`/ca.key if not given.

    Returns:
        When the new certificate ends.

    Raises:
        InfeasibleError: a file is missing or is no such file, the key is not that of the newest authority in ca.crt, or
            that has ended.
    """
    old, authority = certificate_of(folder), _authority_of(folder, authority_key)
    names = list(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    (common,) = old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    public = old.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)  # as we make them
    made = _certified(authority, public, names=names, common=str(common.value), days=days)
    replace_durably(folder / CERTIFICATE, _pem(made))
    return made.not_valid_after_utc


def succeed(folder: Path, authority_days: int = AUTHORITY_DAYS) -> datetime.datetime:
    """Make the authority that signs the next renewal; ca.crt then holds it and the one that signed the certificate.

    Clients that have the new ca.crt accept both, so each can replace its own at any time before that renewal.

    Returns:
        By when all clients need the new ca.crt: the certificate's half-life, when it is renewed.

    Raises:
        InfeasibleError: the certificate has passed its half-life, so that clients would have too little time; the last
            successor has not signed yet; or a file is missing or is no such file.
    """
    current = certificate_of(folder)
    if datetime.datetime.now(datetime.UTC) > half_life(current):
        raise InfeasibleError(
            f"{folder / CERTIFICATE} has passed half of its life. Renew it first, so that clients have time to get the "
            "next authority: `phalanx flower certificates --renew`."
        )
    known = authorities_of(folder)
    if not _issued(known[-1], current):
        raise InfeasibleError(
            f"The newest authority in {folder / CA} has signed nothing yet, and clients may have it already. Renew the "
            "certificate first: `phalanx flower certificates --renew`."
        )
    authority = _new_authority(authority_days)
    with replacing_durably(folder / CA_KEY, _private(authority.key), secret=True):  # without it, nobody can renew
        replace_durably(folder / CA, b"".join(map(_pem, [known[-1], authority.certificate])))
    return half_life(current)


def certificate_of(folder: Path) -> x509.Certificate:
    """Return the coordinator's certificate.

    Raises:
        InfeasibleError: there is none, or the file is none.
    """
    return _read(folder / CERTIFICATE)[0]


def half_life(certificate: x509.Certificate) -> datetime.datetime:
    """Return when half of a certificate's validity has passed: from then on it is renewed."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin + (end - begin) / 2


def _authority_of(folder: Path, key: Path | None) -> Authority:
    path = key or folder / CA_KEY
    try:
        loaded = load_pem_private_key(contents(path, LARGEST_KEY), None)
    except FileNotFoundError as error:
        raise InfeasibleError(
            f"There is no {path}, the key of the authority. Name it with --authority if it is elsewhere. If it is "
            "lost, make new certificates in another folder, and give their ca.crt to each client."
        ) from error
    except (ValueError, TypeError) as error:
        raise InfeasibleError(f"{path} holds no private key: {error}.") from error
    newest = authorities_of(folder)[-1]
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or newest.public_key() != loaded.public_key():
        raise InfeasibleError(
            f"{path} is not the key of the newest authority in {folder / CA}, which signs from now on."
        )
    if newest.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise InfeasibleError(
            f"The authority in {folder / CA} has ended on {newest.not_valid_after_utc:%Y-%m-%d}. Make new certificates "
            "in another folder, and give their ca.crt to each client."
        )
    return Authority(loaded, newest)


def authorities_of(folder: Path) -> list[x509.Certificate]:
    """Return the authorities that clients trust: one, or two while one gives way to the next.

    Raises:
        InfeasibleError: there is none, or the file is none.
    """
    return _read(folder / CA)


def _read(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(contents(path, LARGEST_KEY))
    except FileNotFoundError as error:
        raise InfeasibleError(f"There is no {path}. `phalanx flower certificates HOST` makes certificates.") from error
    except ValueError as error:
        raise InfeasibleError(f"{path} holds no certificate: {error}.") from error


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _new_authority(days: int) -> Authority:
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Phalanx federation {secrets.token_hex(4)}")])
    builder = _builder(issuer, issuer, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    signed = builder.add_extension(_usage(certifies=True), critical=True).sign(key, hashes.SHA384())
    return Authority(key, signed)


def _certified(
    authority: Authority,
    public: ec.EllipticCurvePublicKey,
    *,
    names: Sequence[x509.GeneralName],
    common: str,
    days: int,
) -> x509.Certificate:
    """Return a new certificate of the coordinator's key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    builder = _builder(authority.certificate.subject, subject, public, days, authority.certificate.not_valid_after_utc)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    builder = builder.add_extension(issuer, critical=False).add_extension(_usage(certifies=False), critical=True)
    return builder.sign(authority.key, hashes.SHA384())


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    days: int,
    latest: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
    return builder.not_valid_before(now - EARLIER).not_valid_after(min(end, latest) if latest else end)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_node_key(path: Path) -> Path:
    """Make the key by which Flower authenticates a node; return the path of its public half, in the same folder."""
    key = ec.generate_private_key(ec.SECP384R1())
    public, content = path.with_suffix(".pub"), key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    with replacing_durably(path, secret, secret=True):
        replace_durably(public, content + b"\n")
    return public


def make_secret(path: Path) -> None:
    """Write 32 random bytes to a file that only its owner can read."""
    replace_durably(path, os.urandom(32), secret=True)


def general_name(host: str) -> x509.GeneralName:
    """Return a host as a certificate names it.

    Raises:
        ValueError: it is neither an address nor a name.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        labels = host.removeprefix("*.").split(".")
        plain = all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", label) for label in labels)
        if not plain or len(host) > LONGEST or labels[-1].isdecimal():  # such as 10.0.0.700
            raise ValueError(
                f"A host must be an address such as 10.0.0.7, or a name of letters, digits and dots such as "
                f"coordinator.example, got {shown(host)!r}. Write names in other alphabets in their xn-- form."
            ) from None
        return x509.DNSName(host)


def _usage(*, certifies: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certifies,
        key_cert_sign=certifies,
        crl_sign=certifies,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
