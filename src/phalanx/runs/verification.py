"""The verification of a run's folder: what was changed since the run ended, and whether everything is there.

Without a seal only the parts of a record that say something of each other are compared, and neither can be known for
sure.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from phalanx.core import InfeasibleError
from phalanx.installation import installation
from phalanx.reading import lines_of
from phalanx.runs.evidenced import EvidenceComparison, KnownRoster, OwnWitnesses, compare_roster
from phalanx.runs.evidenced import compare as compare_evidence
from phalanx.runs.files import AUDIT, HISTORY, inside
from phalanx.runs.record import SUMMARY, Record, configuration_of
from phalanx.runs.seal import FOLDERS, SEAL, Alteration, breaks, examine, hashes, members, split
from phalanx.runs.witnesses import WITNESSES
from phalanx.wording import plural

Verdict = Literal["yes", "no", "unknown"]


class Verification(NamedTuple):
    """The verdicts on a folder.

    Args:
        sealed: whether it has a seal.
        findings: what was changed, and what is missing.
        ended: whether its run has ended.
        others: files that are not of the record, and never sealed.
        compared: what was compared, in words; empty without a seal.
        witnesses: what was compared with what witnesses hold, in sentences.
        witnessed: whether that could be compared; None if no witness was named.
        evidence: what was compared with the evidence in audit trails, in sentences.
        proves: whether its audit trail shows what the run did; None if it is the folder of a simulation.
        lines: number of those of its audit trail.
        seen: by client, the number of these lines that it has seen; under the empty name by those who do not say who.
        quorum: number of witnesses that a line needs.
    """

    sealed: bool
    findings: tuple[Alteration, ...]
    ended: bool
    others: tuple[str, ...] = ()
    compared: str = ""
    witnesses: tuple[str, ...] = ()
    witnessed: bool | None = None
    evidence: tuple[str, ...] = ()
    proves: bool | None = None
    lines: int = 0
    seen: Mapping[int | str, int] = {}
    quorum: int = 1

    @property
    def unseen(self) -> range:
        """The numbers of the lines of its audit trail that too few witnesses have seen."""
        sizes = sorted(self.seen.values(), reverse=True)
        return range((sizes[self.quorum - 1] if len(sizes) >= self.quorum else 0) + 1, self.lines + 1)

    @property
    def integrity(self) -> Verdict:
        """Whether what is there is as the run left it."""
        if any(finding.kind != "missing" for finding in self.findings):
            return "no"
        return "yes" if self.sealed and self.proves is not False and not self.unseen else "unknown"

    @property
    def completeness(self) -> Verdict:
        """Whether all that the run left is there."""
        if any(finding.kind == "missing" for finding in self.findings) or not self.ended:
            return "no"
        seal_gone = any(finding.file == SEAL for finding in self.findings)
        known = self.sealed and not seal_gone and self.proves is not False and not self.unseen
        return "yes" if known else "unknown"

    @property
    def status(self) -> int:
        """The exit status of `phalanx verify`: 0 if both verdicts are "yes", 1 if something differs, or else 2."""
        if self.findings:
            return 1
        return 0 if self.integrity == self.completeness == "yes" and self.witnessed is not False else 2


def verify(
    folder: Path,
    witnesses: Sequence[Path] = (),
    coordinator: str = "",
    *,
    roster: KnownRoster | None = None,
    quorum: int = 1,
) -> Verification:
    """Return what can be said of a folder; nothing but files is needed, and none of its code is run.

    Args:
        folder: of a run.
        witnesses: files of witnesses of its audit trail; see `phalanx.runs.witnessed.compare`.
        coordinator: the public key of its coordinator, as text; empty: that which each of these files says.
        roster: the keys of the audit trail are compared with it; None: they are taken as they are there.
        quorum: number of witnesses that each line of the audit trail needs.

    Raises:
        InfeasibleError: there is no such folder, no run was made in it, a witness holds nothing, or the quorum is less
            than 1.
        OSError: a file cannot be read.
    """
    if quorum < 1:
        raise InfeasibleError(f"The quorum must be at least 1 client, got {quorum}.")
    hash_of = hashes(folder)  # each file is read once
    own = _verified(folder, hash_of)
    found = _with_evidence(folder, own._replace(quorum=quorum), hash_of, roster)
    known = {finding.file for finding in own.findings}
    trails = [name for name in members(folder) if name.startswith("audit") and (folder / name).is_file()]
    if found.sealed:
        broken = (of for name in trails if name not in known for of in _broken(folder, name))
        found = found._replace(findings=(*found.findings, *broken))
    if not witnesses:
        return found
    try:
        from phalanx.runs.witnessed import compare  # noqa: PLC0415  (needs a package that simulations do not)
    except ModuleNotFoundError as error:
        raise InfeasibleError(f"Signatures of witnesses need a package: {installation('flower')}.") from error
    if missing := next((path for path in witnesses if not path.is_file()), None):
        raise InfeasibleError(f"There is no file {missing}. Name the list of tasks of a client, such as tasks.jsonl.")
    said = compare(folder, trails, witnesses, coordinator)
    findings, seen = (*found.findings, *said.findings), dict(found.seen)
    for witness, size in said.seen.get(AUDIT, {}).items():
        seen[witness] = max(seen.get(witness, 0), size)
    return found._replace(findings=findings, witnesses=said.sentences, witnessed=said.compared, seen=seen)


def _with_evidence(
    folder: Path, found: Verification, hash_of: Callable[[str], str], roster: KnownRoster | None
) -> Verification:
    """Return the verification with what the audit trail and its witnesses say of files that the seal is silent on."""
    if any(of.file == AUDIT and of.line is None for of in found.findings):
        return found
    if AUDIT not in members(folder):
        lacking = f"{AUDIT} is not there: nothing shows who sent which update, and what was made of it."
        if os.path.lexists(folder / WITNESSES) and not any(of.file == AUDIT for of in found.findings):
            gone = Alteration(AUDIT, "missing", f"is missing: clients have co-signed it in {WITNESSES}")
            return found._replace(findings=(*found.findings, gone), evidence=(lacking,), proves=False)
        return found._replace(evidence=(lacking,), proves=False) if _of_clients(folder) else found
    said = compare_evidence(folder, AUDIT, hash_of)
    own = _own_witnesses(folder, said)
    listed = [compare_roster(AUDIT, said.parties, own, roster)] if roster is not None else []
    more = (*said.findings, *own.findings, *(finding for of in listed for finding in of.findings))
    named = {finding.file for finding in more if finding.clients or finding.step is not None} - {AUDIT, HISTORY}
    of_seal = [finding for finding in found.findings if finding.file not in named]
    known = {finding.file for finding in of_seal}
    findings = (*of_seal, *(finding for finding in more if finding.file not in known))
    evidence = (*said.sentences, *filter(None, [own.sentence]), *(of.sentences[0] for of in listed))
    lines = len(split(lines_of(inside(folder, AUDIT))))
    return found._replace(findings=findings, evidence=evidence, proves=said.proves, lines=lines, seen=own.seen)


def _own_witnesses(folder: Path, said: EvidenceComparison) -> OwnWitnesses:
    try:
        from phalanx.runs.witnessed import compare_own  # noqa: PLC0415  (needs a package that simulations do not)
    except ModuleNotFoundError:
        return OwnWitnesses()
    return compare_own(folder, AUDIT, said.parties)


def _of_clients(folder: Path) -> bool:
    """Return whether a folder says that real clients took part in its run, which leaves an audit trail."""
    try:
        return configuration_of(folder).get("engine") == "flower"
    except (OSError, ValueError):
        return False


def _verified(folder: Path, hash_of: Callable[[str], str]) -> Verification:
    """Return what the folder says of itself."""
    if not folder.is_dir():
        raise InfeasibleError(f"There is no folder {folder}. Name that of a run, such as runs/NAME.")
    found = examine(folder, hash_of)
    own = members(folder)
    if not (found.sealed or own):
        raise InfeasibleError(f"{folder} holds no run. Name a folder that a run was written to, such as runs/NAME.")
    there = (f"{below}/{path.name}".lstrip("/") for below in FOLDERS for path in _entries(folder, below))
    others = sorted({name for name in there if name not in {*own, SEAL}})
    if found.sealed:
        compared = f"{plural(found.files, 'file')}, {plural(found.lines, 'line')}" if found.files else ""
        return Verification(True, found.findings, ended=True, others=(*others,), compared=compared)
    findings = list[Alteration]()
    for name in own:
        try:
            path = inside(folder, name)
        except ValueError:
            findings.append(Alteration(name, "changed", "leads out of its folder"))
            continue
        if not path.is_file():
            findings.append(Alteration(name, "changed", "is no file"))
        elif name.startswith("audit"):
            findings += _broken(folder, name)
    ended = (folder / SUMMARY).is_file()
    if ended:
        try:
            Record.load(folder)
        except ValueError as error:
            findings.append(Alteration(SUMMARY, "changed", f"and the files next to it do not fit: {error}"))
        except FileNotFoundError as error:
            findings.append(Alteration(SUMMARY, "missing", f"is not all: {error}"))
    return Verification(False, (*findings,), ended=ended, others=(*others,))


def _broken(folder: Path, name: str) -> Iterator[Alteration]:
    """Yield where the hash chain of an audit trail breaks."""
    lines = [line for line in split(lines_of(inside(folder, name))) if line.endswith(b"\n")]
    yield from (Alteration(name, "changed", why, number) for number, why in breaks(lines))


def _entries(folder: Path, below: str) -> Iterator[Path]:
    """Yield what is in a folder of a record, but for folders of one; a link is listed, and not followed."""
    inner = folder / below
    if below and (inner.is_symlink() or not inner.is_dir()):
        return
    for path in inner.iterdir():
        if path.is_symlink() or not path.is_dir() or path.name not in ("models", "best", "updates"):
            yield path
