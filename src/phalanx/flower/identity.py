"""Identity of clients: keys, signatures, and the roster of the clients that may take part.

Each client holds an Ed25519 key (RFC 8032), which it made itself and never sends.  It signs a request to be entered in
the roster, which proves that it holds the key.  Whose key that is no signature proves: the coordinator compares the
public half with what the client reads out to it, by telephone or in person.  From then on only the key identifies the
client, not its address and not the number that Flower gives its node.
"""

import base64
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from typing_extensions import override

from phalanx.flower.durable_files import locked, replace_durably, write_secret
from phalanx.reading import LARGEST_KEY, contents, decoded, from_json, load
from phalanx.runs.signing import signed_by
from phalanx.runs.statements import statement
from phalanx.runs.transparency import PREFIX, public_key
from phalanx.wording import shown, visible

LARGEST = 10_000_000  # bytes of a roster
FIELDS = ("id", "name", "key", "term", "revoked")  # of an entry in the roster
ROSTER = "roster.yaml"  # file of the roster, where nothing else is said
COORDINATOR_KEY = "coordinator.pem"  # file of the coordinator's private key, next to the roster
LARGEST_REQUEST = 10_000  # bytes
LONGEST_NAME = 100  # characters
# scripts that are written together
EAST_ASIAN = frozenset(("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC"))
VALID = timedelta(days=30)  # for which a request can be used
AHEAD = timedelta(hours=1)  # by which the clock of a client can be fast

UNSEEN = re.compile(  # characters that leave no trace on a page: `Default_Ignorable_Code_Point` of Unicode, and a blank
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

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
        key = load_pem_private_key(contents(path, LARGEST_KEY), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} holds no private key: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} holds a {type(key).__name__}, expected an Ed25519 key as `phalanx flower key` makes.")
    return key


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Return the 32 bytes of the public key."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def public_text(key: Ed25519PrivateKey) -> str:
    """Return the public key as text."""
    return as_text(public_bytes(key))


def as_text(key: bytes) -> str:
    """Return a public key as text: `ed25519:` and base64, as in the roster."""
    return PREFIX + base64.b64encode(key).decode()


def from_text(text: str) -> bytes:
    """Return the public key that a text encodes.

    Raises:
        ValueError: it encodes none.
    """
    if not is_owned(key := public_key(text)):
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


# Requests


class EnrolmentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="phalanx", tag="request"):
    """The request of a client to be entered in the roster, or to get a new key there.

    There is none that the key in it has not signed: that is checked wherever one is made or read.

    Args:
        name: of the client, as reports show it.
        key: its public key, as text.
        coordinator: the public key of the coordinator, as text. Another one cannot use the request.
        time: when it was signed, in UTC.
        signature: of the key over the other fields.

    Raises:
        ValueError: a field is not valid, or the signature is not of this key over these fields.
    """

    name: str
    key: str
    coordinator: str
    time: datetime
    signature: bytes
    version: Literal[1] = 1

    def __post_init__(self) -> None:
        named(self.name)
        from_text(self.coordinator)
        if self.time.utcoffset() != timedelta(0):
            raise ValueError("its time is not in UTC. Make it with `phalanx flower request`.")
        stated = _requested(self.name, self.key, self.coordinator, self.time)
        if not signed_by(from_text(self.key), self.signature, stated):
            raise ValueError(
                "it is not signed by the key that it names: it was changed, or whoever made it does not hold that key. "
                "Let the client make another with `phalanx flower request`."
            )

    @classmethod
    def sign(cls, name: str, key: Ed25519PrivateKey, coordinator: str) -> "EnrolmentRequest":
        """Return the request of the owner of a key, to the coordinator with a public key."""
        time, public = datetime.now(UTC).replace(microsecond=0), public_text(key)
        return cls(name, public, coordinator, time, key.sign(_requested(name, public, coordinator, time)))

    @classmethod
    def load(cls, path: Path, now: datetime | None = None) -> "EnrolmentRequest":
        """Read a request that somebody sent.

        Raises:
            ValueError: it is none, not signed by its key, too old, or of a time to come.
        """
        if not path.is_file():
            raise ValueError(f"There is no request {path}. The client makes it with `phalanx flower request`.")
        try:
            request = from_json(contents(path, LARGEST_REQUEST), cls)
        except ValueError as error:
            raise ValueError(f"{path} is no request of a client: {error}") from error
        age = (now or datetime.now(UTC)) - request.time
        if not -AHEAD <= age <= VALID:
            raise ValueError(
                f"{path} was signed at {request.time.isoformat()}, and a request can be used for {VALID.days} days "
                "from then on. Let the client make another, or set the clock that is wrong."
            )
        return request

    @property
    def text(self) -> bytes:
        """The file of it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def _requested(name: str, key: str, coordinator: str, time: datetime) -> bytes:
    return statement("request", name, key, coordinator, time.isoformat())


def named(name: str) -> None:
    """Raise `ValueError` if a text cannot be the name of a client."""
    if not alike(name):
        raise ValueError("A client needs a name, by which people know it. Give one, such as Lyon.")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"A name has at most {LONGEST_NAME} characters, got {len(name):,}: {shown(name)!r}.")
    one_script(name)


def one_script(name: str) -> None:
    """Raise `ValueError` if a name has letters of several scripts, of which some look like others.

    Each letter's script is the first word of its name in Unicode. Scripts that are written together are taken for one
    (UTS 39, section 5.1, "highly restrictive", where Latin may go with those of Chinese, Japanese and Korean).
    """
    letters = [c for c in unicodedata.normalize("NFKC", name) if c.isalpha() and unicodedata.category(c) != "Lm"]
    scripts = {c: unicodedata.name(c, "UNKNOWN").partition(" ")[0] for c in letters}
    scripts = {c: "EAST ASIAN" if script in EAST_ASIAN else script for c, script in scripts.items()}
    found = set(scripts.values()) - ({"LATIN"} if "EAST ASIAN" in scripts.values() else set())
    if len(found) > 1:
        common = Counter(scripts[c] for c in letters).most_common(1)[0][0]
        odd = next(c for c in letters if scripts[c] != common)
        raise ValueError(
            f"The name {shown(name)} mixes letters of {' and '.join(sorted(found))}, which can look alike: "
            f"{odd!r} is {unicodedata.name(odd, 'unknown')}. Write it in one script."
        )


def alike(name: str) -> str:
    """Return what names have in common that people take for one, whatever their case, width and spaces."""
    folded = unicodedata.normalize("NFKC", UNSEEN.sub("", name)).casefold()
    return " ".join(UNSEEN.sub("", unicodedata.normalize("NFKC", folded)).split())


# The coordinator's key


def coordinator_key(
    key: Ed25519PrivateKey | Path | None, roster: "Path | Roster", coordinator: str
) -> Ed25519PrivateKey | None:
    """Return the private key of a coordinator, whose public half its roster names; None if that names none.

    Args:
        key: the key, or its file; None: `coordinator.pem` next to the file of the roster.
        roster: the roster, or its file.
        coordinator: the public key in the roster; may be empty.

    Raises:
        ValueError: the key cannot be read, or the roster names another one, or none.
    """
    if key is None and coordinator:
        if not isinstance(roster, Path):
            raise ValueError("The roster names the coordinator's key. Give the private one: Coordinator(key=...).")
        key = roster.with_name(COORDINATOR_KEY)
        if not key.is_file():
            raise ValueError(
                f"There is no {key}, the coordinator's private key, by which clients know it. Put it there, or name "
                "its file: Coordinator(key=...)."
            )
    if key is None:
        return None
    found = key if isinstance(key, Ed25519PrivateKey) else load_key(key)
    if public_text(found) != coordinator:
        raise ValueError(
            f"The public key of the coordinator is {public_text(found)}, and the roster names {coordinator or 'none'}, "
            "which clients were given. Give the private key of that: Coordinator(key=...)."
        )
    return found


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

    Raises:
        ValueError: the name is empty.
    """

    id: int
    name: str
    key: bytes
    term: int = 1
    revoked: bool = False

    def __post_init__(self) -> None:
        if not alike(self.name):
            raise ValueError(f"Client {self.id} has no name, by which people know it. Give it one, such as Lyon.")
        if len(self.name) > LONGEST_NAME:
            raise ValueError(
                f"The name of client {self.id} has more than {LONGEST_NAME} characters. Give a shorter one."
            )
        object.__setattr__(self, "name", visible(self.name))

    @override
    def __str__(self) -> str:
        return f"{self.id} ({self.name})"


@dataclass(frozen=True)
class Roster:
    """The clients that may take part, and those that were revoked.

    Args:
        members: the clients in any order.
        coordinator: the public key of the coordinator, as text. It signs each task, and clients answer only the
            coordinator whose key they were given. Empty: it has none, and only clients that answer any coordinator
            answer it, as in a test.

    Raises:
        ValueError: two members share an id, a key or a name, or the coordinator's key is none.
    """

    members: tuple[Member, ...] = ()
    coordinator: str = ""

    def __post_init__(self) -> None:
        if self.coordinator:
            try:
                from_text(self.coordinator)
            except ValueError as error:
                raise ValueError(
                    f"the coordinator is known by its key and no longer by a name. {error} Remove the line "
                    "`coordinator`, and run `phalanx flower coordinator`."
                ) from error
        owners = dict[tuple[str, str], list[Member]]()
        for member in self.members:
            for unique in (("id", str(member.id)), ("key", as_text(member.key)), ("name", alike(member.name))):
                owners.setdefault(unique, []).append(member)
        for (what, value), sharing in owners.items():
            if len(sharing) > 1:
                both = " and ".join(map(str, sharing))
                raise ValueError(f"Each client needs its own {what}, but clients {both} share {value}.")

    @property
    def active(self) -> dict[int, Member]:
        """The members that are not revoked, by id."""
        return {m.id: m for m in sorted(self.members, key=lambda m: m.id) if not m.revoked}

    def owner(self, key: object) -> Member | None:
        """Return the member, revoked or not, with this public key; None if there is none."""
        return next((m for m in self.members if m.key == key), None)

    def adding(self, request: EnrolmentRequest) -> "Roster":
        """Return the roster with one more member, under the next id.

        Raises:
            ValueError: its name or its key is that of another member, or the request is to another coordinator.
        """
        self._check_addressee(request)
        new = Member(max((m.id for m in self.members), default=-1) + 1, request.name, from_text(request.key))
        return replace(self, members=(*self.members, new))

    def rekeying(self, client: int, request: EnrolmentRequest) -> "Roster":
        """Return the roster with another key of one member, who has signed for it.

        Raises:
            ValueError: there is no such member, the request names another client or coordinator, or the key is taken.
        """
        self._check_addressee(request)
        changed = self.changing(client, key=from_text(request.key))
        member = next(m for m in self.members if m.id == client)
        if alike(member.name) != alike(visible(request.name)):
            raise ValueError(
                f"The request is of {shown(request.name)}, and client {client} is {member.name}. Name the client whose "
                "it is, or let it make one in its own name."
            )
        return changed

    def _check_addressee(self, request: EnrolmentRequest) -> None:
        if request.coordinator != self.coordinator:
            mine = self.coordinator or "none. Make it with `phalanx flower coordinator`"
            raise ValueError(
                f"The request is to the coordinator with the key {request.coordinator}, and the key of this one is "
                f"{mine}. Let the client make another with this key."
            )

    def member(self, client: str) -> Member:
        """Return the member of that name, or of that id.

        Raises:
            ValueError: there is none, or one has the name and another the id.
        """
        found = [m for m in self.members if client == str(m.id) or alike(m.name) == alike(client)]
        if len(found) == 1:
            return found[0]
        what = "two clients of this name and this id" if found else f"no client {shown(client)}"
        raise ValueError(f"There is {what} in the roster. Its clients are: {self._known}.")

    @property
    def _known(self) -> str:
        return ", ".join(f"{m.id} ({m.name})" for m in self.members) or "none"

    def changing(self, client: int, **fields: Any) -> "Roster":
        """Return the roster with fields of one member replaced.

        Raises:
            ValueError: there is no such member.
        """
        if client not in {m.id for m in self.members}:
            raise ValueError(f"There is no client {client} in the roster. Its clients are: {self._known}.")
        return replace(self, members=tuple(replace(m, **fields) if m.id == client else m for m in self.members))

    @classmethod
    def load(cls, path: Path) -> "Roster":
        """Read a roster.

        Raises:
            ValueError: the file is missing or is not a roster.
        """
        if not path.is_file():
            raise ValueError(f"There is no roster {path}. Make one with `phalanx flower coordinator`.")
        try:
            content = load(decoded(contents(path, LARGEST), path.name), LARGEST)
            if not isinstance(content, Mapping) or not isinstance(content.get("clients"), list):
                raise ValueError("it has no list `clients`. Name the file that `phalanx flower coordinator` wrote.")
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
            new: make the file if it does not exist.

        Raises:
            ValueError: the file is missing or is not a roster, or the change is impossible.
            InfeasibleError: the file cannot be locked.
        """
        if not new and not path.is_file():
            return cls.load(path)  # raises, and makes no lock file in a folder that was named by mistake
        with locked(path):
            roster = change(cls() if new and not path.exists() else cls.load(path))
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
