"""`phalanx verify`: what was changed in the folder of a run since the run ended."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from phalanx.cli.consoles import say
from phalanx.cli.parser import Options
from phalanx.runs.evidenced import KnownRoster
from phalanx.runs.files import AUDIT
from phalanx.runs.seal import Alteration
from phalanx.runs.verification import Verification, verify

LISTED = 100  # findings that are printed, at most

INTEGRITY = {
    "yes": "intact. What is there is as the run left it.",
    "no": "broken.",
    "unknown": "not known. The folder has no seal: it was made before runs were sealed, or its seal was removed.",
}
COMPLETENESS = {
    "yes": "complete. All that the run left is there.",
    "no": "not complete.",
    "unknown": "not known. Only a seal says what was there.",
}
NOTHING = (
    "not known. Nothing is proven: no evidence, or no signature of a client, is in the audit trail. "
    "Older versions wrote none, or it was removed; a seal can be written by anybody."
)
NOT_OVER = "not complete. Its run goes on or was killed, or its summary was removed."


def verify_command(options: Options, console: Console) -> int:
    """Print the verdicts and what they rest on; return the exit status."""
    roster = _roster(options.roster) if options.roster is not None else None
    coordinator = options.coordinator or (roster.coordinator if roster is not None else "")
    found = verify(options.folder, options.witness, coordinator, roster=roster, quorum=options.quorum)
    say(console, *text(found))
    return found.status


def _roster(path: Path) -> KnownRoster:
    from phalanx.flower.identity import Roster, as_text  # noqa: PLC0415  (needs packages that simulations do not)

    roster = Roster.load(path)
    clients = {member.id: (member.name, as_text(member.key)) for member in roster.members}
    return KnownRoster(str(path), clients, roster.coordinator)


def text(found: Verification) -> list[str]:
    """Return the verdicts and the findings, line by line."""
    missing = [finding for finding in found.findings if finding.kind == "missing"]
    changed = [finding for finding in found.findings if finding.kind != "missing"]
    lines = [f"Compared with the seal: {found.compared}."] if found.compared else []
    lines += [f"Evidence: {sentence}" for sentence in found.evidence]
    lines += [f"Witness: {sentence}" for sentence in found.witnesses]
    integrity, completeness = INTEGRITY[found.integrity], COMPLETENESS[found.completeness]
    if found.unseen:
        too_few = "No co-signature that was checked covers"
        if found.quorum > 1:
            too_few = f"Co-signatures that were checked are of fewer than {found.quorum} clients for"
        unseen = (
            f"not known. {too_few} {AUDIT} from line {found.unseen.start} on: "
            "whoever owns the folder can have changed or removed what came then. Ask clients for their lists of tasks, "
            "and give them with --witness."
        )
        integrity = unseen if found.integrity == "unknown" else integrity
        completeness = unseen if found.completeness == "unknown" else completeness
    if found.proves is False:
        integrity = NOTHING if found.integrity == "unknown" else integrity
        completeness = NOTHING if found.completeness == "unknown" else completeness
    lines += [f"Integrity: {integrity}", *_listed(changed)]
    lines += [f"Completeness: {completeness if found.ended else NOT_OVER}", *_listed(missing)]
    if found.others:
        lines.append(f"Not of the record, and not sealed: {', '.join(found.others)}.")
    return lines


def _listed(findings: Sequence[Alteration]) -> list[str]:
    more = len(findings) - LISTED
    lines = [f"  {finding.text}" for finding in findings[:LISTED]]
    return [*lines, f"  and {more} more"] if more > 0 else lines
