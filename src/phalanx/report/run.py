"""The section of one run: the parts of a record that the template shows."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from phalanx.report import counterfactual, lateness, outcome, page_tables
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.clusters import Clusters
from phalanx.report.figures import (
    alone,
    cosines,
    holdings,
    influence,
    norms,
    participation,
    progress,
    reports,
    reputation,
    separation,
    shares,
    similarity,
    staleness,
    timeline,
    tree,
    weights,
)
from phalanx.report.figures.drawing import Picture, Style
from phalanx.report.flights import flights
from phalanx.report.troubles import Trouble, troubles
from phalanx.report.weightings import weightings
from phalanx.report.words import describe
from phalanx.runs.schema import Summary

if TYPE_CHECKING:
    from phalanx.runs.record import Record

KINDS = 40  # largest number of rows in the table of filtered, invalid and lost updates

SETUP = {
    "accept": "Accepted by the operator",
    "algorithm": "Algorithm",
    "attack": "Attack",
    "byzantine": "Byzantine clients",
    "additional_byzantine": "Additional Byzantine clients",
    "clients": "Clients",
    "data": "Data",
    "partition": "Partition",
    "model": "Model",
    "training": "Training",
    "participation": "Participation",
    "latency": "Latency",
    "guard": "Guard",
    "until": "Runs until",
    "evaluation": "Evaluation",
    "seed": "Seed",
}


@dataclass(frozen=True)
class Counterfactual:
    """The template's values on weights before any training."""

    sentences: tuple[str, ...]
    picture: Picture
    columns: tuple[str, ...]
    rows: tuple[counterfactual.WeightingRow, ...]


@dataclass(frozen=True)
class RunView:
    """The template's values for one record."""

    anchor: str
    name: str
    style: Style
    status: str  # "finished", "stopped" or "failed"
    error: str
    unsealed: str  # what a seal shows, or that there is none; empty if the record is as its run left it
    sentence: str
    row: Mapping[str, page_tables.Cell]
    tiles: tuple[tuple[str, page_tables.Cell, str], ...]
    costs: tuple[str, ...]
    exclusions: tuple[outcome.ExclusionRow, ...]
    pictures: tuple[Picture, ...]
    late: tuple[lateness.AgeRow, ...]  # verdicts on updates by age; empty if ages are unknown
    weights: Counterfactual | None  # None if reported sizes are unknown
    troubles: tuple[Trouble, ...]
    hidden: int  # number of kinds of trouble that the table leaves out
    clients: tuple[page_tables.Client, ...]
    names: Mapping[int, str]  # of the clients that have one
    reports: page_tables.Reports | None  # None if clients reported nothing
    reported: Picture | None
    setup: tuple[tuple[str, str], ...]
    yaml: str
    environment: tuple[tuple[str, str], ...]


def section(ledger: ClientLedger, style: Style, records: "Sequence[Record]", anchor: str) -> RunView:
    """Return the section of the run.

    Args:
        ledger: of the run.
        style: of its curves.
        records: all runs of the report.
        anchor: unique in the page, prefixes every id.
    """
    record = ledger.record
    met = troubles(record.history, ("filtered", "invalid", "lost", "remark"))
    return RunView(
        anchor=anchor,
        name=record.name,
        style=style,
        status=record.summary.status,
        error=outcome.error(record),
        unsealed="" if record.seal is None else record.seal.sentence,
        sentence=outcome.sentence(ledger),
        row=page_tables.comparison(ledger),
        tiles=page_tables.tiles(ledger),
        costs=outcome.costs(ledger, records),
        exclusions=outcome.exclusions(ledger),
        pictures=_pictures(ledger, records, anchor),
        late=lateness.rows(ledger),
        weights=_weights(ledger, anchor),
        troubles=tuple(met[:KINDS]),
        hidden=max(0, len(met) - KINDS),
        clients=page_tables.clients(ledger),
        names=ledger.names,
        reports=page_tables.reports(ledger),
        reported=reports.picture(ledger, f"{anchor}-reports"),
        setup=tuple(
            (label, describe(record.config[key])) for key, label in SETUP.items() if record.config.get(key, []) != []
        ),
        yaml=_yaml(record.config),
        environment=_environment(record.summary),
    )


def _pictures(ledger: ClientLedger, records: "Sequence[Record]", anchor: str) -> tuple[Picture, ...]:
    tasks, clusters = flights(ledger.record), Clusters(ledger)
    matrix = cosines.picture(clusters, f"{anchor}-cosines")
    course = progress.picture(ledger, f"{anchor}-progress", full=not similarity.measured(ledger.record))
    fairness = alone.picture(ledger, records, f"{anchor}-alone")
    candidates = (
        course,
        similarity.picture(ledger, f"{anchor}-alpha", full=course is None),
        reputation.picture(ledger, f"{anchor}-reputation", full=fairness is None),
        fairness,
        tree.picture(clusters, f"{anchor}-tree"),
        norms.picture(clusters, f"{anchor}-norms", full=matrix is None),
        matrix,
        separation.alpha(clusters, f"{anchor}-across"),
        separation.gap(clusters, f"{anchor}-gap"),
        staleness.picture(ledger, tasks, f"{anchor}-ages"),
        shares.picture(ledger, tasks, f"{anchor}-shares"),
        timeline.picture(ledger, tasks, f"{anchor}-timeline"),
        participation.picture(ledger, f"{anchor}-weights"),
        influence.picture(ledger, f"{anchor}-influence"),
        holdings.picture(ledger, f"{anchor}-data"),
    )
    return tuple(picture for picture in candidates if picture)


def _weights(ledger: ClientLedger, anchor: str) -> Counterfactual | None:
    w = weightings(ledger)
    if w is None:
        return None
    return Counterfactual(
        sentences=counterfactual.sentences(w),
        picture=weights.picture(w, f"{anchor}-reported"),
        columns=counterfactual.columns(w),
        rows=counterfactual.rows(w),
    )


def _environment(summary: Summary) -> tuple[tuple[str, str], ...]:
    """Return the software, hardware and data of the run, as far as they are known."""
    parts = [summary.provenance, *([summary.data] if summary.data else [])]
    items = [item for part in parts for item in msgspec.to_builtins(part).items()]
    return tuple((name, describe(value)) for name, value in items if value is not None)


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml  # noqa: PLC0415

    plain = json.loads(json.dumps(config, default=str))
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)).rstrip()
