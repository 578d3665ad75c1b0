"""What was measured of compositions: a table that comes with the package, made of the records by `measured`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from statistics import fmean

from phalanx.experiments.carrying_out import stored
from phalanx.experiments.choosing.compositions import COMPOSITIONS
from phalanx.experiments.grid import name_of
from phalanx.experiments.leaderboard.ranking import Contest, RankedDefence, ranked
from phalanx.experiments.leaderboard.tiers import Tier
from phalanx.experiments.line_store import LineStore

FILE = "evidence.json"


@dataclass(frozen=True)
class MeasuredComposition:
    """A composition in one federation.

    Args:
        clients: number of clients.
        where: the kind of heterogeneity: "alike", "unlike", or "groups".
        f: number of attackers.
        composition: its name.
        rate: learning rate of the clients that was chosen for it.
        clean: accuracy without attack, for each seed, of which there is at least one.
        worst: accuracy under the worst attack that the search found, for each of them.
        attack: this attack.
    """

    clients: int
    where: str
    f: int
    composition: str
    rate: float
    clean: tuple[float, ...]
    worst: tuple[float, ...]
    attack: str

    @property
    def without_attack(self) -> float:
        """The mean accuracy without attack."""
        return fmean(self.clean)

    @property
    def under_attack(self) -> float:
        """The mean accuracy under the worst attack."""
        return fmean(self.worst)


@cache
def evidence() -> tuple[MeasuredComposition, ...]:
    """Return what was measured."""
    text = files("phalanx.experiments.choosing").joinpath(FILE).read_text(encoding="utf-8")
    return tuple(
        MeasuredComposition(clients, where, f, name, rate, (*clean,), (*worst,), attack)
        for clients, where, f, name, rate, clean, worst, attack in json.loads(text)["rows"]
    )


def measured(tier: Tier, store: LineStore) -> list[MeasuredComposition]:
    """Return what the records of a tier say; compositions whose records are not complete are left out."""
    found = [ranked(tier, one.defence, partial(stored, store=store)) for one in COMPOSITIONS]
    return [row for one in found for row in _rows(tier, one)]


def _rows(tier: Tier, one: RankedDefence) -> list[MeasuredComposition]:
    rows = []
    for where in tier.heterogeneity if one.cells else ():
        clean = one.cells[where, 0].found
        for f in tier.attackers:
            row = _row(tier, one, one.cells[where, f], clean.accuracies if clean is not None else ())
            rows += [] if row is None else [row]
    return rows


def _row(tier: Tier, one: RankedDefence, cell: Contest, clean: Sequence[float | None]) -> MeasuredComposition | None:
    """Return what was measured of a cell; None if a run of it failed, or there is none."""
    trial = cell.worst
    if trial is None or one.setting is None or None in trial.accuracies or None in clean or not clean:
        return None
    return MeasuredComposition(
        tier.base.clients,
        cell.where,
        cell.f,
        one.defence.name,
        one.setting.rate,
        tuple(round(value, 4) for value in clean if value is not None),
        tuple(round(value, 4) for value in trial.accuracies if value is not None),
        name_of(trial.attack),
    )


def text_of(rows: Sequence[MeasuredComposition], origins: Sequence[str]) -> str:
    """Return the text of the file.

    Args:
        rows: what was measured.
        origins: of the records, a sentence each.
    """
    lines = [
        json.dumps([r.clients, r.where, r.f, r.composition, r.rate, r.clean, r.worst, r.attack], allow_nan=False)
        for r in rows
    ]
    inner = ",\n".join(lines)
    return f'{{"origins": {json.dumps(list(origins))},\n"rows": [\n{inner}\n]}}\n'
