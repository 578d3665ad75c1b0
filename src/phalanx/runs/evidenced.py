"""The comparison of a folder with the evidence in its audit trail: history, files and signatures of updates."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from phalanx.installation import installation
from phalanx.reading import from_json, lines_of
from phalanx.runs.evidence import SignedUpdate, StepEvidence
from phalanx.runs.files import HISTORY, inside
from phalanx.runs.models import content
from phalanx.runs.record import CONFIG
from phalanx.runs.seal import (
    DIGITS,
    SEAL,
    Alteration,
    chain_of,
    files_of_end,
    files_of_models,
    hashes,
    line_marks,
    located,
    split,
)
from phalanx.runs.statements import fingerprint_of
from phalanx.runs.updates import KeptUpdates, file_of, kept_steps, read_kept
from phalanx.wording import plural, shown

LARGEST_STEP = 10**12  # number of one
FINISHED = "finished"  # the reason in the last line `ended`, of a run that does not go on


class EvidenceComparison(NamedTuple):
    """How a folder compares with the evidence in its audit trail.

    Args:
        findings: what does not fit.
        sentences: what was compared, and what could not be.
        proves: whether it shows what the run did: there is evidence, and clients have signed their updates.
        parties: whose signatures it holds.
    """

    findings: tuple[Alteration, ...]
    sentences: tuple[str, ...]
    proves: bool
    parties: "Parties"


class Parties(NamedTuple):
    """Whose signatures the evidence in force holds.

    Args:
        coordinators: the public keys that tasks named, as text.
        co_signers: clients whose updates answer such a task, and so co-sign the audit trail.
        keys: of clients, by id.
        names: of clients, by id.
    """

    coordinators: frozenset[str]
    co_signers: frozenset[int]
    keys: Mapping[int, Set[str]]
    names: Mapping[int, Set[str]]


class OwnWitnesses(NamedTuple):
    """How an audit trail compares with the co-signatures that its folder holds.

    Args:
        findings: what does not fit.
        sentence: what was compared; empty if there is no co-signature, or none could be checked.
        seen: by client, the number of the lines that it has co-signed.
        keys: of the clients that have co-signed, as text, and their names.
    """

    findings: Sequence[Alteration] = ()
    sentence: str = ""
    seen: Mapping[int | str, int] = {}
    keys: Mapping[int, tuple[str, str]] = {}


class KnownRoster(NamedTuple):
    """The roster as whoever verifies has it from elsewhere.

    Args:
        source: names it.
        clients: name and public key, as text, by id.
        coordinator: the public key of the coordinator, as text; empty if it is not known.
    """

    source: str
    clients: Mapping[int, tuple[str, str]]
    coordinator: str = ""


def compare_roster(name: str, parties: Parties, own: OwnWitnesses, roster: KnownRoster) -> EvidenceComparison:
    """Compare the keys in an audit trail, and those of the co-signatures in its folder, with the roster.

    Args:
        name: of the trail.
        parties: whose signatures it holds.
        own: who has co-signed it.
        roster: from elsewhere.
    """
    findings, source = list[Alteration](), roster.source
    keys = {client: {*parties.keys.get(client, ())} for client in {*parties.keys, *own.keys}}
    names = {client: {*parties.names.get(client, ())} for client in keys}
    for client, (key, called) in own.keys.items():
        keys[client].add(key)
        names[client].add(called)
    for client in sorted(keys):
        called, key = roster.clients.get(client, ("", ""))
        if not key:
            of = shown(" or ".join(sorted(names[client])))
            what = [f"holds signatures of client {client} ({of}), who is not in {source}"]
        else:
            what = [f"holds signatures by {other}, and the key in {source} is {key}" for other in keys[client] - {key}]
            what += [f"calls it {shown(other)}, and {source} {shown(called)}" for other in names[client] - {called}]
        findings += [Alteration(name, "changed", each, clients=(client,)) for each in sorted(what)]
    for other in sorted(parties.coordinators - {roster.coordinator} if roster.coordinator else ()):
        another = f"names the coordinator {other}, and its key in {source} is {roster.coordinator}"
        findings.append(Alteration(name, "changed", another))
    said = f"{plural(len(keys), 'client')} with a signature compared with {source}."
    return EvidenceComparison((*findings,), (said,), proves=bool(keys), parties=parties)


class Evident(NamedTuple):
    """A line of an audit trail with evidence.

    Args:
        number: of the line.
        step: of the run.
        evidence: of the line.
    """

    number: int
    step: int
    evidence: StepEvidence


class _EvidenceLine(msgspec.Struct, frozen=True):
    """The parts of a line of an audit trail that matter here."""

    event: str = ""
    step: Annotated[int, msgspec.Meta(ge=0, lt=LARGEST_STEP)] = 0
    client: int | None = None
    name: str = ""
    why: str = ""
    evidence: StepEvidence | None = None


class InForce(NamedTuple):
    """The evidence of a trail that a resumed run has not replaced.

    Args:
        lines: of the history, by its number of lines then.
        last: of the end of the run, or of where it goes on; None if it has no such line.
        ended: whether it says last that the run has ended.
        findings: lines whose evidence is none.
        renewals: by client, the numbers of the lines that say that it has a new key.
        resumed: the numbers of the lines from which the run goes on, under the roster of that time.
        begun: the numbers of the lines that say that a run has begun, with what each says of it.
        names: of clients, by id.
    """

    lines: Mapping[int, Evident]
    last: Evident | None
    ended: bool
    findings: tuple[Alteration, ...]
    renewals: Mapping[int, tuple[int, ...]] = {}
    resumed: tuple[int, ...] = ()
    begun: tuple[tuple[int, str], ...] = ()
    names: Mapping[int, Set[str]] = {}

    @property
    def parties(self) -> Parties:
        """Whose signatures it holds."""
        keys = defaultdict[int, set[str]](set)
        for one in self.lines.values():
            for client, found in one.evidence.signed.items():
                keys[client].add(found.key)
        named = [one.evidence for one in self.lines.values() if one.evidence.coordinator]
        coordinators = frozenset(evidence.coordinator for evidence in named)
        co_signers = frozenset(client for evidence in named for client in evidence.signed)
        return Parties(coordinators, co_signers, dict(keys), self.names)

    def called(self, client: int) -> str:
        """Return the number of a client, and the name or names that the trail gives it."""
        names = " or ".join(sorted(self.names.get(client, ())))
        return f"client {client} ({shown(names)})" if names else f"client {client}"


def in_force(folder: Path, name: str) -> InForce:
    """Return the evidence in an audit trail, which may be somebody else's.

    Args:
        folder: of the run.
        name: of the trail.
    """
    lines, last, findings = dict[int, Evident](), None, list[Alteration]()
    renewals, resumed = defaultdict[int, tuple[int, ...]](tuple), list[int]()
    begun, names, over, ended = list[tuple[int, str]](), defaultdict[int, set[str]](set), False, False
    for number, text in enumerate(split(lines_of(inside(folder, name))), 1):
        try:
            found = from_json(text, _EvidenceLine)
            if found.evidence is not None and found.evidence.history.lines < (found.event == "recorded"):
                raise ValueError("its number of lines is too small")
        except ValueError as error:
            if text.endswith(b"\n"):  # or its writer was killed
                findings.append(Alteration(name, "changed", f"holds no evidence: {error}", number))
            continue
        if over:
            of = () if found.client is None else (found.client,)
            findings.append(Alteration(name, "added", "comes after the end of the run", number, found.step, of))
            continue
        over = found.event == "ended" and found.why == FINISHED
        ended = found.event == "ended" if found.event in ("ended", "resumed", "recorded") else ended
        if found.event == "new key" and found.client is not None:
            renewals[found.client] += (number,)
        if found.event == "resumed":
            resumed.append(number)
        if found.event == "begun":
            begun.append((number, found.why))
        if found.client is not None:
            names[found.client].add(found.name)
        if found.evidence is None:
            continue
        this = Evident(number, found.step, found.evidence)
        if found.event == "recorded":
            lines[found.evidence.history.lines] = this
        else:
            kept = found.evidence.history.lines
            lines = {count: one for count, one in lines.items() if count <= kept}
            last = this
    return InForce(lines, last, ended, (*findings,), renewals, (*resumed,), (*begun,), names)


def compare(folder: Path, name: str, hash_of: Callable[[str], str] | None = None) -> EvidenceComparison:
    """Compare the files of a folder with the evidence in an audit trail, and check its signatures.

    Args:
        folder: of the run.
        name: of the trail.
        hash_of: the SHA-256 of a file of the folder by name; None: each is computed once more.

    Raises:
        OSError: a file cannot be read.
    """
    known, hash_of = in_force(folder, name), hash_of or hashes(folder)
    kept, said = _updates(folder, name, known, hash_of)
    if not known.lines:
        sentence = f"{name} has no evidence: nothing shows who sent which update, and what was made of it."
        return EvidenceComparison((*known.findings, *kept), (sentence,), proves=False, parties=known.parties)
    history, others = _guarded(HISTORY, partial(_history, folder, known)), [*_files(folder, known, hash_of)]
    signatures = [*_run(name, known), *_end(folder, name, known), *_signatures(name, known)]
    checked = find_spec("cryptography") is not None
    signed = [client for one in known.lines.values() for client in one.evidence.signed]
    files = len(known.last.evidence.files) if known.last is not None else 0
    parts = [f"{plural(len(known.lines), 'line')} of the history"]
    parts += [plural(files, "other file")] if files else []
    parts += [f"{plural(len(signed), 'signature')} of {plural(len({*signed}), 'client')}"] if signed and checked else []
    lacking = f" Signatures were not checked, which needs {installation('flower')}." if signed and not checked else ""
    sentence = f"{name} has the evidence of {', '.join(parts)}.{lacking}"
    findings = (*known.findings, *history, *others, *signatures, *kept)
    sentences = sentence, *said, *_reservations(known)
    return EvidenceComparison(findings, sentences, proves=bool(signed), parties=known.parties)


def _run(name: str, known: InForce) -> Iterator[Alteration]:
    """Yield the lines that do not say of the run that it is the one that clients have signed."""
    if not (sessions := {one.evidence.session for one in known.lines.values()} - {""}):
        return
    if not known.begun:
        yield Alteration(name, "missing", "has no line that says which run has begun")
    for number, why in known.begun:
        if why not in {f"run {session}" for session in sessions}:
            yield Alteration(name, "changed", "names another run than the one that clients have signed", number)


def _end(folder: Path, name: str, known: InForce) -> Iterator[Alteration]:
    """Yield what the trail of a sealed folder must say: that the run has ended, and with which files."""
    if _sealed(folder) and not known.ended:
        yield Alteration(name, "missing", "has no line that says that the run has ended, and the folder is sealed")


def _sealed(folder: Path) -> bool:
    """Return whether a run says that it has ended or was stopped, or somebody in its place."""
    return os.path.lexists(folder / SEAL)


def _reservations(known: InForce) -> Iterator[str]:
    """Yield what the evidence does not show, in sentences."""
    last = known.last.evidence.history.lines if known.last is not None else 0
    if gaps := max(last, *known.lines) - len(known.lines):
        yield f"Without evidence: {plural(gaps, 'line')} of the history."
    if any(one.evidence.updates and not one.evidence.kept for one in known.lines.values()):
        yield "Updates that were not kept cannot be compared with what clients signed."
    keys = known.parties.keys
    if renewed := [known.called(client) for client in sorted(keys) if len(keys[client]) > 1]:
        yield f"More than one key, to be compared with the roster: {', '.join(renewed)}."


def _guarded(name: str, compared: Callable[[], Iterator[Alteration]]) -> list[Alteration]:
    try:
        return [*compared()]
    except FileNotFoundError:
        return [Alteration(name, "missing", "is missing")]
    except ValueError as error:
        return [Alteration(name, "changed", f"cannot be compared: {error}")]


def _history(folder: Path, known: InForce) -> Iterator[Alteration]:
    """Yield the lines of the history that are not those of the evidence."""
    lines = split(lines_of(inside(folder, HISTORY)))
    most = known.last.evidence.history.lines if known.last is not None else 0
    most = max(most, *known.lines)
    if most > len(lines) + len(known.lines):  # more are missing than there is evidence of
        yield Alteration(HISTORY, "missing", f"has {plural(len(lines), 'line')} of {most:,} in the evidence")
        return
    old = [known.lines[k].evidence.line[:DIGITS] if k in known.lines else "" for k in range(1, most + 1)]
    new = line_marks(lines)
    ended = known.last is not None and known.last.evidence.history.lines >= max(known.lines)
    compared = new if ended or _sealed(folder) else new[:most]  # a run that was killed can have one line more
    old = [mark or (new[k] if k < len(new) else "") for k, mark in enumerate(old)]  # of lines without evidence
    if compared != old:
        yield from located(HISTORY, lines[: len(compared)], compared, old)
        return
    marks = [one.evidence.history for one in known.lines.values()]
    marks += [known.last.evidence.history] if known.last is not None else []
    chain, links = chain_of(()), dict[int, str]()
    for line in lines:
        chain.add(line)
        links[chain.mark.lines] = chain.mark.link
    if wrong := [mark.lines for mark in marks if mark.lines and links.get(mark.lines) != mark.link]:
        yield Alteration(HISTORY, "changed", "is not the line of the evidence", min(wrong))


def _files(folder: Path, known: InForce, hash_of: Callable[[str], str]) -> Iterator[Alteration]:
    """Yield the other files that are not those of the evidence; nothing of a run that has not ended."""
    if known.last is None or not known.last.evidence.files:
        return
    expected = known.last.evidence.files
    # Older evidence is of the models only.
    there = files_of_end(folder) if CONFIG in expected else files_of_models(folder)
    for name in sorted({*expected, *there}):
        if name not in expected:
            yield Alteration(name, "added", "was added")
        elif name not in there:
            yield Alteration(name, "missing", "is missing")
        else:
            yield from _guarded(name, partial(_file, name, expected[name], hash_of))


def _file(name: str, digest: str, hash_of: Callable[[str], str]) -> Iterator[Alteration]:
    if hash_of(name) != digest:
        yield Alteration(name, "changed", "was changed")


def _updates(
    folder: Path, name: str, known: InForce, hash_of: Callable[[str], str]
) -> tuple[list[Alteration], list[str]]:
    """Return the kept updates that are not those of the evidence, and what was compared, in words."""
    evident = {one.step: one.evidence for one in known.lines.values() if one.evidence.kept}
    findings, compared = list[Alteration](), 0
    there = [step for step in (0, *kept_steps(folder)) if (folder / file_of(step)).exists()]
    for step in sorted({*evident, *there}):
        if step not in evident:
            findings.append(Alteration(file_of(step), "added", "was added", step=step))
            continue
        found = _guarded(file_of(step), partial(_unfit_step, folder, step, evident[step], hash_of))
        findings += [finding._replace(step=step) for finding in found]
        compared += len(evident[step].updates)
    for one in known.lines.values():  # of a run that keeps updates, no step lacks them
        if one.evidence.updates and not one.evidence.kept and one.step < max(evident, default=0):
            findings.append(Alteration(file_of(one.step), "missing", "is missing", step=one.step))
    return findings, [f"{plural(compared, 'kept update')} compared with {name}."] if evident else []


def _unfit_step(folder: Path, step: int, evidence: StepEvidence, hash_of: Callable[[str], str]) -> Iterator[Alteration]:
    """Yield what of a kept step does not fit; raise `FileNotFoundError` if it is missing."""
    file = file_of(step)
    same = hash_of(file) == evidence.kept
    try:
        located = [*_unfit_updates(file, read_kept(folder, step), evidence)]
    except ValueError as error:
        located = [Alteration(file, "changed", f"is damaged: {error}")]
    yield from located
    if not (same or located):
        yield Alteration(file, "changed", "was changed")


def _unfit_updates(file: str, kept: KeptUpdates, evidence: StepEvidence) -> Iterator[Alteration]:
    for client in sorted({*evidence.updates, *kept.about.clients}):
        signed, fits = evidence.signed.get(client), False
        try:
            fits = content(kept.update(client)).hex() == evidence.updates.get(client)
            if fits and signed is not None:
                fits = fingerprint_of(kept.fingerprint_parts(client)).hex() == signed.digest
        except (ValueError, KeyError):
            fits = False
        if not fits:
            yield Alteration(file, "changed", "holds another update", clients=(client,))
    if (kept.about.result, kept.about.others) != (evidence.result, evidence.others):
        yield Alteration(file, "changed", "names another result")


def _signatures(name: str, known: InForce) -> Iterator[Alteration]:
    """Yield the updates that their client has not signed for this task of this run, with its key of that time."""
    signs, session, used, keys = _signs(), "", set[str](), dict[int, str]()
    renewals = dict[int, list[int]]()
    for one in sorted(known.lines.values()):
        evidence = one.evidence
        for client in sorted({*evidence.updates, *evidence.signed}):
            what, found, who = "", evidence.signed.get(client), known.called(client)
            if found is None:
                what = f"names an update that {who} has not signed"
            elif client not in evidence.updates:
                what = f"names no update of {who}, which has signed one"
            elif not signs(client, found, evidence):
                what = f"holds a signature that the key of {who} has not made"
            elif session not in ("", evidence.session):
                what = f"holds a signature that {who} has made in another run"
            elif used & {found.nonce, found.digest}:
                what = f"holds an answer of {who} that was used before"
            elif keys.get(client, found.key) != found.key and not _renewed(client, one.number, renewals, known):
                what = f"names another key of {who} than before, and no line says that it has a new one"
            if what:
                yield Alteration(name, "changed", what, one.number, one.step, (client,))
            elif found is not None:
                used |= {found.nonce, found.digest}
                keys[client], session = found.key, evidence.session


def _renewed(client: int, number: int, renewals: dict[int, list[int]], known: InForce) -> bool:
    """Return whether a client has got a new key before a line; each counts once."""
    # A roster that changed while the run was stopped leaves no line.
    left = renewals.setdefault(client, [*known.renewals.get(client, ()), *known.resumed])
    if not (earlier := [of for of in left if of < number]):
        return False
    left.remove(max(earlier))
    return True


def _signs() -> Callable[[int, SignedUpdate, StepEvidence], bool]:
    """Return what checks a signature; without the package for it, what takes each for valid."""
    if find_spec("cryptography") is None:
        return lambda client, found, evidence: True
    from phalanx.runs.signing import is_signed  # noqa: PLC0415  (needs a package that simulations do not)

    return is_signed
