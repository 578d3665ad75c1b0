"""What is signed in deployments, as bytes."""

import hashlib
from collections.abc import Iterable

FORMAT = 3  # version of what is signed; 1 did not name the coordinator, 2 not its key


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
