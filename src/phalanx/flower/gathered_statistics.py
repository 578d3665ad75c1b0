"""The schema that real sites agree on, before a run: each sends the statistics of its table when it enrols.

They are those of `phalanx schema statistics`, signed by the site.  What cannot be is not used: an event of the audit
trail names the site.  A site sends them only if its own configuration says so.
"""

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.serverapp import Grid

from phalanx.core import InfeasibleError
from phalanx.data import Schema
from phalanx.data.findings import Finding
from phalanx.data.table_schema import SCHEMA_FILE
from phalanx.data.table_statistics import (
    LARGEST_STATISTICS,
    NoStatisticsError,
    SiteStatistics,
    check_schema,
    scaled_by,
    together,
)
from phalanx.flower.audit import Audit, Note
from phalanx.flower.codec import brief
from phalanx.flower.durable_files import only_for_owner
from phalanx.flower.identity import Roster, coordinator_key
from phalanx.flower.logs import log_fields
from phalanx.flower.register import Register
from phalanx.flower.signed_schema import sign_schema
from phalanx.flower.suspension import Suspension
from phalanx.flower.timeouts import Timeouts
from phalanx.runs.files import AUDIT, write_inside
from phalanx.runs.lock import exclusive
from phalanx.wording import plural

log = logging.getLogger("phalanx.flower")

STATISTICS = "statistics"  # folder, in that of a run
IMPOSSIBLE = "impossible statistics"  # event of the audit trail
LONGEST = 300  # characters of a reason


@runtime_checkable
class Gathering(Protocol):
    """What is needed of a `Coordinator`."""

    @property
    def contract(self) -> Schema | None:
        """The schema."""

    @property
    def folder(self) -> Path | None:
        """Where the folder `statistics` goes."""

    @property
    def roster(self) -> Path | Roster:
        """The sites."""

    @property
    def timeouts(self) -> Timeouts:
        """How long sites are waited for."""

    @property
    def suspension(self) -> Suspension:
        """Who is suspended."""

    @property
    def key(self) -> Ed25519PrivateKey | Path | None:
        """The coordinator's private key."""


def gather(grid: Grid, coordinator: Gathering) -> Schema:
    """Ask the sites of a roster for the statistics of their tables; return the schema with the median of them.

    The folder `statistics` holds the schema, what each site has sent, as a file for `phalanx schema scale`, and an
    audit trail.

    Raises:
        InfeasibleError: there is no schema or no folder, or fewer sites enrolled than `Timeouts.least`, by default all.
        NoStatisticsError: nothing that they sent can be used.
    """
    schema, folder = coordinator.contract, coordinator.folder
    if schema is None or folder is None:
        raise InfeasibleError("Statistics need Coordinator(schema=..., folder=...).")
    place = folder / STATISTICS
    place.mkdir(parents=True, exist_ok=True)
    with only_for_owner(place), exclusive(place):
        audit = Audit(place / AUDIT, lambda: register.now, lambda i: names.get(i, ""), session=lambda: register.session)
        register = Register(
            grid,
            coordinator.roster,
            coordinator.timeouts,
            coordinator.suspension,
            came=lambda: None,
            tell=audit.note,
            schema=schema,
            key=coordinator.key,
            keeps_statistics=True,
        )
        names = {i: member.name or f"client {i}" for i, member in register.roster.active.items()}
        try:
            _wait(register, coordinator)
            audit.begin()
            sites = _read(register, schema, names, audit)
            for client, name in names.items():
                if name in sites:
                    write_inside(place, f"{client}.json", sites[name].json)
            made = scaled_by(schema, sites)
            _note(made.findings, names, audit)
        except NoStatisticsError as error:
            _note(error.found, names, audit)
            audit.end(f"failed: {error}"[:LONGEST])
            raise
        finally:
            register.close()
        write_inside(place, SCHEMA_FILE, made.schema.json)
        if (key := coordinator_key(coordinator.key, coordinator.roster, register.roster.coordinator)) is not None:
            sign_schema(place / SCHEMA_FILE, key)
        what = f"the median of {together([sites[name] for name in made.counted])}; {made.promise}. {made.schema.digest}"
        log.info("%s: %s", place / SCHEMA_FILE, what, extra=log_fields("statistics"))
        audit.end(f"finished: {what}")
        return made.schema


def _wait(register: Register, coordinator: Gathering) -> None:
    """Wait until the sites of the roster have enrolled; raise `InfeasibleError` if too few have."""
    register.begin(secrets.token_hex(16))
    missing = register.wait_for(lambda: set(register.roster.active))
    reported, wanted = register.enrolled(), coordinator.timeouts.least or len(register.roster.active)
    if len(reported) < max(wanted, 1):
        named = ", ".join(map(str, missing)) or "nobody, as the roster is empty"
        raise InfeasibleError(
            f"{plural(len(reported), 'site')} of the {wanted} that are needed enrolled. Missing: {named}. "
            f"{register.remedy()}"
        )


def _read(register: Register, schema: Schema, names: Mapping[int, str], audit: Audit) -> dict[str, SiteStatistics]:
    """Return by name what sites have sent; note which sent nothing for this schema."""
    sites = dict[str, SiteStatistics]()
    for client in sorted(register.reported):
        name, sent = names.get(client, f"client {client}"), register.statistics.get(client)
        if sent is None:
            audit.note(Note("lost", client, "it sent no statistics: its plan needs Participant(statistics=True)"))
            continue
        try:
            if len(sent) > LARGEST_STATISTICS:
                raise ValueError(f"{len(sent):,} bytes, and {LARGEST_STATISTICS:,} at most")
            site = SiteStatistics.parse(sent, name)
            check_schema(schema, name, site)
        except ValueError as error:
            audit.note(Note(IMPOSSIBLE, client, brief(str(error), LONGEST)))
        else:
            sites[name] = site
    if not sites:
        audit.end("failed: no site sent statistics of the schema")
        raise InfeasibleError("No site sent statistics of the schema. The audit trail has the reason for each.")
    return sites


def _note(found: tuple[Finding, ...], names: Mapping[int, str], audit: Audit) -> None:
    """Record what cannot be, and remarks, in the audit trail and the log."""
    ids = {name: client for client, name in names.items()}
    for one in found:
        log.warning("%s", one.sentence, extra=log_fields(IMPOSSIBLE if one.error else "warning"))
        audit.note(Note(IMPOSSIBLE if one.error else "warning", ids.get(one.site), one.sentence))
