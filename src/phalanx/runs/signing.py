"""Who has signed what: Ed25519 signatures (RFC 8032) of deployments."""

import binascii
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from phalanx.runs.statements import statement
from phalanx.runs.transparency import public_key

if TYPE_CHECKING:  # it imports torch, which who makes a key does without
    from phalanx.runs.evidence import SignedUpdate, StepEvidence

SIGNATURE = 64  # bytes of a signature


def signed_by(key: bytes, signature: object, stated: bytes) -> bool:
    """Return whether a signature, which may be of any type, is valid for a public key and a statement."""
    if type(signature) is not bytes or len(signature) != SIGNATURE:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, stated)
    except InvalidSignature:
        return False
    return True


def is_signed(client: int, found: "SignedUpdate", evidence: "StepEvidence") -> bool:
    """Return whether the client whose key is named has signed an update in a piece of evidence of unknown origin."""
    try:
        key, nonce, digest, signature = (
            public_key(found.key), *map(bytes.fromhex, (found.nonce, found.digest, found.signature))
        )  # fmt: skip
    except (ValueError, binascii.Error):
        return False
    task = (evidence.coordinator, evidence.session, nonce, client, found.version, found.turn, evidence.transfer)
    return signed_by(key, signature, statement("train", *task, digest))
