"""The comparison of the audit trails of a folder with the heads that witnesses were shown of them."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.core import InfeasibleError
from phalanx.reading import contents, from_json, lines_of
from phalanx.runs.evidenced import OwnWitnesses, Parties
from phalanx.runs.files import inside
from phalanx.runs.seal import Alteration, breaks, split
from phalanx.runs.transparency import MerkleTree, TreeHead, is_cosigned, open_note, public_key
from phalanx.runs.witnesses import LARGEST, WITNESSES, SeenTask, Witness, Witnesses, as_json
from phalanx.wording import plural, shown

NOT_CO_SIGNED = "it is not co-signed by the client that it names"
HEADS = 10  # heads that are listed
RUN = re.compile(r"run ([0-9a-z]{1,64})")  # the reason in the line `begun`


class WitnessComparison(NamedTuple):
    """How the audit trails of a folder compare with heads that witnesses were shown.

    Args:
        findings: what does not fit.
        sentences: what was compared, and what cannot be said.
        compared: whether each file holds heads of a trail of the folder, and nothing that its coordinator has not
            signed.
        seen: by name of a trail, the number of its lines that each witness has seen.
    """

    findings: tuple[Alteration, ...]
    sentences: tuple[str, ...]
    compared: bool
    seen: Mapping[str, Mapping[int | str, int]]


class _Trail(NamedTuple):
    """An audit trail: the origin of its heads, its name in the folder, its lines, and the tree over them."""

    origin: str
    name: str
    lines: Sequence[bytes]
    tree: MerkleTree


class _Begun(msgspec.Struct, frozen=True):
    """The parts of a line by which a trail says of which run it is."""

    event: str = ""
    why: str = ""


class _Entries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `witnesses.json`, each entry for itself."""

    clients: dict[int, msgspec.Raw]


class _Held(NamedTuple):
    """What a witness holds: the heads, who saw each, the keys that have signed them, and what is none."""

    heads: Sequence[TreeHead]
    witnesses: Mapping[TreeHead, Set[int | str]]
    keys: Sequence[str]
    faults: Sequence[str]


def compare(folder: Path, names: Sequence[str], files: Sequence[Path], coordinator: str = "") -> WitnessComparison:
    """Compare the audit trails of a folder with the heads that witnesses were shown.

    Args:
        folder: of a run.
        names: of the audit trails in it.
        files: the list of tasks of a client, or `witnesses.json` of a coordinator.
        coordinator: the public key of the coordinator, as text; empty: that which each file says.

    Raises:
        InfeasibleError: a file holds no heads.
        OSError: a file cannot be read.
    """
    found = (_trail(folder, name) for name in names)
    trails = {trail.origin: trail for trail in found if trail.origin}
    shown_first = dict[tuple[str, int], tuple[bytes, str]]()
    findings, sentences, compared, seen = (
        list[Alteration](),
        list[str](),
        True,
        defaultdict[str, defaultdict[int | str, int]](lambda: defaultdict(int)),
    )
    for path in files:
        held = _held(path, coordinator)
        for head in held.heads:
            root, first = shown_first.setdefault(head[:2], (head.root, path.name))
            if root != head.root:
                name = trails[head.origin].name if head.origin in trails else head.origin
                what = f"was signed in two forms, shown to {shown(first)} and to {shown(path.name)}: the trail forked"
                findings.append(Alteration(name, "changed", what, head.size))
        ours = [head for head in held.heads if head.origin in trails]
        sentences += held.faults
        compared &= bool(ours) and not held.faults
        if not ours:
            sentences.append(
                f"{path} is a witness of other runs: no trail here is of a run that it names. If its client took part, "
                "the trail here is not the one that it saw."
            )
            continue
        for origin in dict.fromkeys(head.origin for head in ours):
            findings += _unfit(trails[origin], sorted({head for head in ours if head.origin == origin}), path.name)
        last = max(head.size for head in ours)
        for head in ours:
            for witness in held.witnesses[head]:
                sizes = seen[trails[head.origin].name]
                sizes[witness] = max(sizes[witness], head.size)
        sentences.append(
            f"{path} holds {plural(len({*ours}), 'checkpoint')} of this folder, up to line {last}, signed by "
            f"{', '.join(held.keys)}."
        )
    return WitnessComparison((*dict.fromkeys(findings),), (*sentences,), compared, seen)


def compare_own(folder: Path, name: str, parties: Parties) -> OwnWitnesses:
    """Compare an audit trail with the co-signatures of clients that the folder itself holds.

    Args:
        folder: of a run.
        name: of the trail.
        parties: whose signatures the evidence in the trail holds.
    """
    try:
        text = contents(inside(folder, WITNESSES), LARGEST)
        entries = from_json(text, _Entries).clients
    except FileNotFoundError:
        what = "is missing: clients have co-signed this audit trail"
        return OwnWitnesses([Alteration(WITNESSES, "missing", what)] if parties.coordinators else [])
    except ValueError as error:
        return OwnWitnesses([Alteration(WITNESSES, "changed", f"holds no co-signatures: {error}")])
    findings, heads, known = list[Alteration](), dict[int, TreeHead](), dict[int, Witness]()
    for client in sorted({*entries, *parties.co_signers}):
        if client not in entries:
            findings.append(Alteration(WITNESSES, "missing", "lacks a client that has co-signed", clients=(client,)))
            continue
        try:
            witness = from_json(bytes(entries[client]), Witness)
            heads[client] = _co_signed(client, witness, parties)
            known[client] = witness
        except ValueError as error:
            what = f"holds no co-signature: {str(error).rstrip('.')}"
            findings.append(Alteration(WITNESSES, "changed", what, clients=(client,)))
    if len(known) == len(entries) and text != as_json(known):
        findings.append(Alteration(WITNESSES, "changed", "is not as a coordinator writes it"))
    if not heads:
        return OwnWitnesses(findings)
    of_trail = _trail(folder, name, max(heads.values()).origin)
    ours = {client: head for client, head in heads.items() if head.origin == of_trail.origin}
    for client in sorted(heads.keys() - ours.keys()):
        what = f"is of another run than {name}, {heads[client].origin}"
        findings.append(Alteration(WITNESSES, "changed", what, clients=(client,)))
    findings += _unfit(of_trail, sorted({*ours.values()}), WITNESSES)
    seen: dict[int | str, int] = {client: head.size for client, head in ours.items()}
    keys = {client: (witness.key, witness.name) for client, witness in known.items()}
    clients = {*entries, *parties.keys}
    return OwnWitnesses(findings, _in_words(name, seen, len(clients)), seen, keys)


def _in_words(name: str, seen: Mapping[int | str, int], clients: int) -> str:
    """Return how many clients have co-signed up to which line."""
    sizes = sorted({*seen.values()}, reverse=True)
    parts = [f"{sum(size <= of for of in seen.values())} of {clients} up to line {size}" for size in sizes[:HEADS]]
    more = f", and fewer lines {sum(of < sizes[HEADS - 1] for of in seen.values())} more" if len(sizes) > HEADS else ""
    return f"Clients that co-signed {name}: {', '.join(parts) or f'0 of {clients}'}{more}."


def _co_signed(client: int, found: Witness, parties: Parties) -> TreeHead:
    """Return the head that a client has co-signed; raise `ValueError` if it has not, or is not the one of the trail."""
    head = open_note(found.checkpoint, public_key(found.coordinator))
    if not is_cosigned(head, found.cosignature, public_key(found.key)):
        raise ValueError(NOT_CO_SIGNED)
    if parties.coordinators and found.coordinator not in parties.coordinators:
        raise ValueError("it names another coordinator than clients have signed")
    if found.key not in parties.keys.get(client, {found.key}):
        raise ValueError("it names another key than the one that signed the updates")
    if found.name not in parties.names.get(client, {found.name}):
        raise ValueError("it names the client otherwise than the audit trail")
    return head


def _unfit(trail: _Trail, heads: Sequence[TreeHead], witness: str) -> Iterator[Alteration]:
    """Yield what of a trail does not fit the heads, which are in the order of their sizes."""
    fits, lines = 0, len(trail.tree)
    for head in (head for head in heads if head.size <= lines):
        if trail.tree.root(head.size) != head.root:
            one = head.size <= fits + 1
            what = "is not the one" if one else f"to {head.size}: one or more of them are not those"
            at = [number for number, _ in breaks(trail.lines) if fits < number <= head.size + 1]
            broken = f"; the hash chain breaks at line {at[0]}" if at else ""
            yield Alteration(trail.name, "changed", f"{what} of which {shown(witness)} is a witness{broken}", fits + 1)
            break
        fits = head.size
    whole = lines - (lines > 0 and not trail.lines[-1].endswith(b"\n"))
    if heads and (most := heads[-1].size) > whole:
        why = f"{shown(witness)} is a witness of {most} lines, and there are {whole}"
        some = f"to {most}: {most - whole} missing" if whole > fits else "is missing"
        yield Alteration(trail.name, "missing", f"{some}: {why}", min(fits, whole) + 1)


def _trail(folder: Path, name: str, origin: str = "") -> _Trail:
    """Return a trail, with this origin if it does not say itself of which run it is."""
    tree, own = MerkleTree(), ""
    lines = split(lines_of(inside(folder, name)))
    for line in lines:
        tree.add(line)
        if not own and b'"begun"' in line:
            try:
                begun = from_json(line, _Begun)
            except ValueError:
                continue
            if begun.event == "begun" and (run := RUN.fullmatch(begun.why)):
                own = f"phalanx/{run[1]}"
    return _Trail(own or origin, name, lines, tree)


def _held(path: Path, coordinator: str = "") -> _Held:
    """Return what a witness holds."""
    heads, keys, faults = list[TreeHead](), dict[str, None](), list[str]()
    witnesses = defaultdict[TreeHead, set[int | str]](set)
    for place, note, signer, witness, client in _notes(path):
        try:
            head = open_note(note, public_key(coordinator or signer))
            if witness is not None and not is_cosigned(head, witness.cosignature, public_key(witness.key)):
                raise ValueError(NOT_CO_SIGNED)
        except ValueError as error:
            faults.append(f"{path}, {place}: {str(error).rstrip('.')}.")
            continue
        heads.append(head)
        witnesses[head].add(client)
        keys[coordinator or signer] = None
    if not heads and not faults:
        raise InfeasibleError(
            f"{path} holds no checkpoint. Name the list of tasks of a client, tasks.jsonl in its memory or next to its "
            "key, or witnesses.json of a coordinator."
        )
    return _Held(heads, witnesses, [*keys], faults)


def _task(line: bytes) -> SeenTask | None:
    """Return a line of a list of tasks; None if it is none."""
    try:
        return from_json(line, SeenTask)
    except ValueError:
        return None


def _notes(path: Path) -> Iterator[tuple[str, str, str, Witness | None, int | str]]:
    """Yield the notes of a file: where they are, their text, who should have signed them, and who has co-signed.

    Last comes the client that saw it; empty if the file does not say, so that all such files count as one client.
    """
    try:
        text = contents(path, LARGEST)
    except ValueError as error:
        raise InfeasibleError(str(error)) from error
    try:
        for client, witness in from_json(text, Witnesses).clients.items():
            yield f"client {client}", witness.checkpoint, witness.coordinator, witness, client
        return
    except ValueError:  # or it is a list of tasks
        pass
    tasks = [_task(line) for line in split(text)]
    whose: int | str = next((seen.client for seen in tasks if seen is not None and seen.client >= 0), "")
    for number, seen in enumerate(tasks, 1):
        if seen is None:
            yield f"line {number}", "", "", None, whose
        elif seen.checkpoint:
            yield f"line {number}", seen.checkpoint, seen.coordinator, None, whose
