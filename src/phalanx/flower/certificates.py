"""Certificates and keys of the connection: the coordinator's for TLS, each node's for Flower's authentication.

They protect the connection only.  A client is identified by another key, see `phalanx.flower.identity`.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from phalanx.flower.files import write_secret
from phalanx.wording import shown

CA, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"

LONGEST = 253  # characters of the name of a host
COMMON_NAME = 64  # characters of a name in a certificate; clients compare the alternative names


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """Make a certificate authority for the federation, and a certificate of the coordinator signed by it.

    The authority's private key is not kept, so new certificates mean a new authority.

    Args:
        folder: receives ca.crt (which nodes need), server.crt and server.key.
        hosts: names and addresses under which nodes reach the coordinator.
        days: validity of the certificates.

    Raises:
        ValueError: a host is neither an address nor a name.
    """
    names = [_general_name(host) for host in hosts]
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    issuer_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Phalanx federation")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:COMMON_NAME])])
    identifier = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())

    def builder_for(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(issuer, name, public, x509.random_serial_number())
        # five minutes back: clocks of nodes may run behind
        begin = now - datetime.timedelta(minutes=5)
        return builder.not_valid_before(begin).not_valid_after(now + datetime.timedelta(days=days))

    authority = builder_for(issuer, issuer_key.public_key())
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    authority = authority.add_extension(identifier, critical=False)
    authority = authority.add_extension(_usage(certifies=True), critical=True)
    server = builder_for(subject, key.public_key())
    server = server.add_extension(x509.SubjectAlternativeName(names), critical=False)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    server = server.add_extension(authority_key, critical=False).add_extension(_usage(certifies=False), critical=True)
    (folder / CA).write_bytes(authority.sign(issuer_key, hashes.SHA384()).public_bytes(Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(server.sign(issuer_key, hashes.SHA384()).public_bytes(Encoding.PEM))
    _replace_secret(folder / KEY, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def make_node_key(path: Path) -> Path:
    """Make the key by which Flower authenticates a node; return the path of its public half, in the same folder."""
    key = ec.generate_private_key(ec.SECP384R1())
    _replace_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def make_secret(path: Path) -> None:
    """Write 32 random bytes to a file that only its owner can read."""
    _replace_secret(path, os.urandom(32))


def _replace_secret(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # an existing file would keep its mode, and whoever has it open would read on
    write_secret(path, content)


def _general_name(host: str) -> x509.GeneralName:
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
