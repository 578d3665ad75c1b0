"""The Merkle tree of RFC 9162 over the lines of a log, and its head in signed notes.

Whoever keeps a head can tell later whether the log still begins with the lines of its time.  Section numbers are of RFC
9162.  A head is signed in the forms of https://c2sp.org/signed-note and https://c2sp.org/tlog-checkpoint, and co-signed
by witnesses in that of https://c2sp.org/tlog-cosignature (version 1).
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from phalanx.wording import shown

PREFIX, KEY = "ed25519:", 32  # of a public key as text; bytes of one
EMPTY = hashlib.sha256().digest()  # the head of no lines (2.1.1)
LOG, WITNESS = "phalanx/coordinator", "phalanx/client"  # names of keys in notes
SIGNED, COSIGNED = b"\x01", b"\x04"  # kinds of signatures
LONGEST = 1000  # characters of a note
HEAD = re.compile(r"(phalanx/[0-9a-z]{1,64})\n(0|[1-9][0-9]{0,14})\n([A-Za-z0-9+/]{43}=)\n")


# The tree


def leaf(line: bytes) -> bytes:
    """Return the hash of a line (2.1.1)."""
    return hashlib.sha256(b"\x00" + line).digest()


def node(left: bytes, right: bytes) -> bytes:
    """Return the hash of two subtrees (2.1.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """The tree over the lines of a log, as they are added.

    It keeps the hash of each full subtree, at most two for each line.
    """

    def __init__(self) -> None:
        self._full = list[list[bytes]]([[]])  # [k][i]: of the lines from i 2^k on, 2^k of them

    def __len__(self) -> int:
        return len(self._full[0])

    def add(self, line: bytes) -> None:
        """Add a line, its end included."""
        self._full[0].append(leaf(line))
        level = 0
        while len(self._full[level]) % 2 == 0:
            if level + 1 == len(self._full):
                self._full.append([])
            self._full[level + 1].append(node(*self._full[level][-2:]))
            level += 1

    def root(self, size: int) -> bytes:
        """Return the hash of the tree over the first lines (MTH, 2.1.1)."""
        return self._hash(0, size) if size else EMPTY

    def _hash(self, start: int, end: int) -> bytes:
        size = end - start
        if size & (size - 1) == 0:
            return self._full[size.bit_length() - 1][start // size]
        middle = start + _split(size)
        return node(self._hash(start, middle), self._hash(middle, end))

    def consistency(self, old: int, new: int) -> list[bytes]:
        """Return the proof that the tree over `new` lines begins with that over `old` of them (PROOF, 2.1.4.1)."""
        return self._proof(old, 0, new, whole=True) if 0 < old < new else []

    def _proof(self, old: int, start: int, end: int, *, whole: bool) -> list[bytes]:
        """Return the proof for the first `old` of some lines; `whole`: their hash is known (SUBPROOF, 2.1.4.1)."""
        if old == end - start:
            return [] if whole else [self._hash(start, end)]
        middle = start + (k := _split(end - start))
        if old <= k:
            return [*self._proof(old, start, middle, whole=whole), self._hash(middle, end)]
        return [*self._proof(old - k, middle, end, whole=False), self._hash(start, middle)]


def _split(size: int) -> int:
    """Return the largest power of two below a size."""
    return 1 << ((size - 1).bit_length() - 1)


class TreeHead(NamedTuple):
    """What a log has come to: its name, the number of its lines, and the root of their tree."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The text of a checkpoint, which is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def goes_on(old: TreeHead, new: TreeHead, proof: Sequence[bytes]) -> bool:
    """Return whether a proof shows that a log goes on from one head to another (2.1.4.2)."""
    if old.origin != new.origin or old.size > new.size:
        return False
    if old.size in (0, new.size):
        return not proof and (old.root == new.root if old.size == new.size else old.root == EMPTY)
    path = [old.root, *proof] if old.size & (old.size - 1) == 0 else [*proof]
    if not path:
        return False
    fn, sn = old.size - 1, new.size - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for c in path[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            fr, sr = node(c, fr), node(c, sr)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = node(sr, c)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and (fr, sr) == (old.root, new.root)


# Keys and notes


def public_key(text: str) -> bytes:
    """Return the bytes of a public key from its text, "ed25519:" and base64.

    Raises:
        ValueError: it is none.
    """
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(PREFIX) or len(key) != KEY:
        raise ValueError(f"A public key must be {PREFIX} followed by 44 characters of base64, got {shown(text)!r}.")
    return key


def sign_note(head: TreeHead, key: Ed25519PrivateKey) -> str:
    """Return a head as a note that the owner of the log has signed."""
    return f"{head.text}\n{_line(LOG, SIGNED, key, key.sign(head.text.encode()))}"


def open_note(note: str, owner: bytes) -> TreeHead:
    """Return the head in a note.

    Args:
        note: text of unknown origin.
        owner: the public key of the owner of the log.

    Raises:
        ValueError: it is no note, or the owner has not signed it.
    """
    found = HEAD.match(note) if len(note) <= LONGEST else None
    if found is None:
        raise ValueError("it is no checkpoint of a log")
    line = note[found.end() + 1 :]
    signature = _signature(line, LOG, SIGNED, owner, 64)
    if note != f"{found[0]}\n{line}" or not _valid(owner, signature, found[0]):
        raise ValueError("it is not signed by the coordinator that it names")
    return TreeHead(found[1], int(found[2]), base64.b64decode(found[3]))


def cosign(head: TreeHead, key: Ed25519PrivateKey, time: int) -> str:
    """Return the line of a witness that has seen a head, in seconds since 1970."""
    signature = key.sign(_witnessed(head, time))
    return _line(WITNESS, COSIGNED, key, time.to_bytes(8, "big") + signature)


def is_cosigned(head: TreeHead, line: str, witness: bytes) -> bool:
    """Return whether a witness with a public key has signed a head, in a line of unknown origin."""
    found = _signature(line, WITNESS, COSIGNED, witness, 72)
    return _valid(witness, found[8:], _witnessed(head, int.from_bytes(found[:8], "big")))


def _witnessed(head: TreeHead, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{head.text}".encode()


def _identified(name: str, kind: bytes, public: bytes) -> bytes:
    """Return the four bytes by which a note names a key."""
    return hashlib.sha256(name.encode() + b"\n" + kind + public).digest()[:4]


def _line(name: str, kind: bytes, key: Ed25519PrivateKey, signature: bytes) -> str:
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return f"— {name} {base64.b64encode(_identified(name, kind, public) + signature).decode()}\n"


def _signature(line: str, name: str, kind: bytes, public: bytes, length: int) -> bytes:
    """Return the signature in a line; zeros, which are none, if it is not of this form and key."""
    try:
        found = base64.b64decode(line.removeprefix(f"— {name} ").removesuffix("\n"), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    whole = line == f"— {name} {base64.b64encode(found).decode()}\n"
    fits = whole and found[:4] == _identified(name, kind, public) and len(found) == 4 + length
    return found[4:] if fits else bytes(length)


def _valid(public: bytes, signature: bytes, signed: str | bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(
            signature, signed.encode() if isinstance(signed, str) else signed
        )
    except InvalidSignature:
        return False
    return True
