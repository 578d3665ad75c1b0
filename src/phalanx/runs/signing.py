"""What is signed, and who has signed it: statements of deployments, and Ed25519 signatures (RFC 8032)."""

import binascii
import hashlib
from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from phalanx.runs.evidence import Evidence, SignedUpdate
from phalanx.runs.transparency import public_key

FORMAT = 3  # version of what is signed; 1 did not name the coordinator, 2 not its key
SIGNATURE = 64  # bytes of a signature


def statement(purpose: str, *parts: bytes | int | str) -> bytes:
    """Return the bytes to sign: each part with its type and length, so that different parts give different bytes."""
    items = (purpose, *parts)
    return f"phalanx flower {FORMAT}".encode() + b"".join(_framed(item) for item in items)


def _framed(item: bytes | int | str) -> bytes:
    content = item if isinstance(item, bytes) else str(item).encode()
    return f"{type(item).__name__} {len(content)} ".encode() + content


def fingerprint_of(parts: Iterable[str | bytes]) -> bytes:
    """Return the SHA-256 over the parts of a message: texts, and digests of arrays."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(statement("", part) if isinstance(part, str) else part)
    return digest.digest()


def signed_by(key: bytes, signature: object, stated: bytes) -> bool:
    """Return whether a signature, which may be of any type, is valid for a public key and a statement."""
    if type(signature) is not bytes or len(signature) != SIGNATURE:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, stated)
    except InvalidSignature:
        return False
    return True


def is_signed(client: int, found: SignedUpdate, evidence: Evidence) -> bool:
    """Return whether the client whose key is named has signed an update in a piece of evidence of unknown origin."""
    try:
        key, nonce, digest, signature = (
            public_key(found.key), *map(bytes.fromhex, (found.nonce, found.digest, found.signature))
        )  # fmt: skip
    except (ValueError, binascii.Error):
        return False
    task = (evidence.coordinator, evidence.session, nonce, client, found.version, found.turn, evidence.transfer)
    return signed_by(key, signature, statement("train", *task, digest))
