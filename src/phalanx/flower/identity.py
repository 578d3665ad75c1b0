"""Identity of clients: keys, signatures, and the roster of the clients that may take part.

Each client holds an Ed25519 key (RFC 8032).  Its public half reaches the coordinator out of band, by telephone or in
person, and is entered in the roster under the client's id.  From then on only the key identifies the client, not its
address and not the number that Flower gives its node.
"""

import base64
import binascii
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from typing_extensions import override

from phalanx.flower.files import locked, replace_durably, write_secret
from phalanx.reading import contents, decoded, load
from phalanx.wording import shown, visible

LARGEST = 100_000_000  # bytes of a roster
KEY, SIGNATURE = 32, 64  # bytes of a public key and of a signature
PREFIX = "ed25519:"  # of a public key in text
FIELDS = ("id", "name", "key", "term", "revoked")  # of an entry in the roster
FORMAT = 2  # version of what is signed; 1 did not name the coordinator

# Keys


def new_key(path: Path) -> Ed25519PrivateKey:
    """Make a private key and save it in a file that only its owner can read.

    Raises:
        FileExistsError: the file exists.
    """
    key = Ed25519PrivateKey.generate()
    write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def load_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a file written by `new_key`.

    Raises:
        ValueError: there is no such file, others can read it, or it holds no Ed25519 key.
    """
    if not path.is_file():
        raise ValueError(f"There is no key file {path}. Make one with `phalanx flower key {path}`.")
    if (mode := path.stat().st_mode & 0o777) & 0o077:
        raise ValueError(f"Others can read {path} (mode {mode:o}). If nobody has, run `chmod 600 {path}`.")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} holds no private key: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} holds a {type(key).__name__}, expected an Ed25519 key as `phalanx flower key` makes.")
    return key


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Return the 32 bytes of the public key."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def as_text(key: bytes) -> str:
    """Return a public key as text: `ed25519:` and base64, as in the roster."""
    return PREFIX + base64.b64encode(key).decode()


def from_text(text: str) -> bytes:
    """Return the public key that a text encodes.

    Raises:
        ValueError: it encodes none.
    """
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(PREFIX) or len(key) != KEY:
        raise ValueError(f"A public key must be {PREFIX} followed by 44 characters of base64, got {shown(text)!r}.")
    if not is_owned(key):
        raise ValueError(
            f"{shown(text)} is no public key to which somebody has the private one: anybody, or nobody, can sign for "
            "it. Use the key that `phalanx flower key` has shown."
        )
    return key


P = 2**255 - 19  # the field of Ed25519, and the constant of its curve (RFC 8032, section 5.1)
D = -121665 * pow(121666, -1, P) % P


@lru_cache(maxsize=100_000)
def is_owned(key: bytes) -> bool:
    """Return whether a public key is a point of the curve, in its only form, and not of low order.

    Of a point whose order divides 8, signatures are valid for most messages that nobody has signed.
    """
    number = int.from_bytes(key, "little")
    y, odd = number % 2**255, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or x * x % P != square or (x == 0 and odd):
        return False
    for _ in range(3):  # doubles the point; the sign of x does not matter for its order
        product = D * x * x * y * y % P
        x, y = 2 * x * y * pow(1 + product, -1, P) % P, (y * y + x * x) * pow(1 - product, -1, P) % P
    return (x, y) != (0, 1)


# Signatures


def statement(purpose: str, *parts: bytes | int | str) -> bytes:
    """Return the bytes to sign: each part with its type and length, so that different parts give different bytes."""
    items = (purpose, *parts)
    return f"phalanx flower {FORMAT}".encode() + b"".join(_framed(item) for item in items)


def _framed(item: bytes | int | str) -> bytes:
    content = item if isinstance(item, bytes) else str(item).encode()
    return f"{type(item).__name__} {len(content)} ".encode() + content


def signed_by(key: bytes, signature: object, stated: bytes) -> bool:
    """Return whether a signature, which may be of any type, is valid for a public key and a statement."""
    if type(signature) is not bytes or len(signature) != SIGNATURE:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, stated)
    except InvalidSignature:
        return False
    return True


# The roster


@dataclass(frozen=True)
class Member:
    """A client in the roster.

    Args:
        id: the client's permanent id, under which its reputation, turns and strikes are kept.
        name: a readable name. Control characters and those that change the direction of text are escaped in it, since
            it is shown in terminals and logs.
        key: its public key.
        term: strikes start from 0 when this number changes; raising it readmits a suspended client.
        revoked: whether the client may no longer take part. Its id is never reused.
    """

    id: int
    name: str
    key: bytes
    term: int = 1
    revoked: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", visible(self.name))

    @override
    def __str__(self) -> str:
        return f"{self.id} ({self.name})" if self.name else str(self.id)


@dataclass(frozen=True)
class Roster:
    """The clients that may take part, and those that were revoked.

    Args:
        members: the clients in any order.
        coordinator: the name of the coordinator, which its clients sign with each answer. A client answers only the
            coordinator whose name it was given, so that nobody else can use its answer. Empty: the coordinator has no
            name, and clients that were given none answer it.

    Raises:
        ValueError: two members share an id or a key.
    """

    members: tuple[Member, ...] = ()
    coordinator: str = ""

    def __post_init__(self) -> None:
        owners = dict[tuple[str, str], list[Member]]()
        for member in self.members:
            for unique in (("id", str(member.id)), ("key", as_text(member.key))):
                owners.setdefault(unique, []).append(member)
        for (what, value), sharing in owners.items():
            if len(sharing) > 1:
                named = " and ".join(map(str, sharing))
                raise ValueError(f"Each client needs its own {what}, but clients {named} share {value}.")

    @property
    def active(self) -> dict[int, Member]:
        """The members that are not revoked, by id."""
        return {m.id: m for m in sorted(self.members, key=lambda m: m.id) if not m.revoked}

    def owner(self, key: object) -> Member | None:
        """Return the member, revoked or not, with this public key; None if there is none."""
        return next((m for m in self.members if m.key == key), None)

    def adding(self, name: str, key: bytes) -> "Roster":
        """Return the roster with one more member, under the next id.

        Raises:
            ValueError: the name is empty, or that of another member; or the key is taken.
        """
        if not name.strip():
            raise ValueError("A client needs a name, by which people know it. Give one, such as Lyon.")
        if other := next((m for m in self.members if m.name.casefold() == visible(name).casefold()), None):
            raise ValueError(f"Client {other} has this name already. Give the new one another.")
        new = Member(max((m.id for m in self.members), default=-1) + 1, name, key)
        return replace(self, members=(*self.members, new))

    def changing(self, client: int, **fields: Any) -> "Roster":
        """Return the roster with fields of one member replaced.

        Raises:
            ValueError: there is no such member.
        """
        if client not in {m.id for m in self.members}:
            known = ", ".join(str(m.id) for m in self.members) or "none"
            raise ValueError(f"There is no client {client} in the roster. Its clients are: {known}.")
        return replace(self, members=tuple(replace(m, **fields) if m.id == client else m for m in self.members))

    @classmethod
    def load(cls, path: Path) -> "Roster":
        """Read a roster.

        Raises:
            ValueError: the file is missing or is not a roster.
        """
        if not path.is_file():
            raise ValueError(f"There is no roster {path}. Make one with `phalanx flower enrol`.")
        try:
            content = load(decoded(contents(path, LARGEST), path.name), LARGEST)
            if not isinstance(content, Mapping) or not isinstance(content.get("clients"), list):
                raise ValueError("it has no list `clients`. Name the file that `phalanx flower enrol` wrote.")
            if type(coordinator := content.get("coordinator", "")) is not str:
                raise ValueError(f"coordinator must be str, got {coordinator!r}")
            return cls(tuple(_member(entry) for entry in content["clients"]), coordinator)
        except ValueError as error:
            raise ValueError(f"{path} is not a roster: {error}") from error

    def save(self, path: Path) -> None:
        """Write the roster, so that the file is the old or the new one at every moment; see `edit` for changes."""
        entries = [dict(_entry(m)) for m in sorted(self.members, key=lambda m: m.id)]
        named = {"coordinator": self.coordinator} if self.coordinator else {}
        text = yaml.safe_dump({**named, "clients": entries}, sort_keys=False, allow_unicode=True)
        replace_durably(path, text.encode())

    @classmethod
    def edit(cls, path: Path, change: Callable[["Roster"], "Roster"], *, new: bool = False) -> "Roster":
        """Change the roster in a file, and return it: nobody else changes it between reading and writing.

        Args:
            path: of the file.
            change: gets the roster as it is in the file.
            new: make the file if it does not exist, for a coordinator with a new random name.

        Raises:
            ValueError: the file is missing or is not a roster, or the change is impossible.
            InfeasibleError: the file cannot be locked.
        """
        if not new and not path.is_file():
            return cls.load(path)  # raises, and makes no lock file in a folder that was named by mistake
        with locked(path):
            fresh = new and not path.exists()
            roster = change(cls(coordinator=secrets.token_hex(8)) if fresh else cls.load(path))
            roster.save(path)
        return roster


def _entry(member: Member) -> Iterator[tuple[str, Any]]:
    yield from (("id", member.id), ("name", member.name), ("key", as_text(member.key)), ("term", member.term))
    if member.revoked:
        yield "revoked", True


def _member(entry: Any) -> Member:
    """Return the member that an entry describes; raise `ValueError` if it is invalid."""
    if not isinstance(entry, Mapping) or (unknown := sorted(map(str, entry.keys() - set(FIELDS)))):
        what = f"unknown {', '.join(unknown)}" if isinstance(entry, Mapping) else type(entry).__name__
        raise ValueError(f"an entry has {', '.join(FIELDS)}, got {what}")
    kinds: Sequence[tuple[str, type, Any]] = (
        ("id", int, None), ("name", str, ""), ("key", str, None), ("term", int, 1), ("revoked", bool, False),
    )  # fmt: skip
    values = {name: entry.get(name, default) for name, _, default in kinds}
    for name, kind, _ in kinds:
        if type(values[name]) is not kind:
            raise ValueError(f"{name} must be {kind.__name__}, got {values[name]!r}")
    if values["id"] < 0:
        raise ValueError(f"id must be at least 0, got {values['id']}")
    return Member(**values | {"key": from_text(values["key"])})
