"""The worst case: attackers choose their attack, its strength, schedule, sizes and timing against each defence.

A search in three steps, on seeds of its own:

1. every named attack as it is given, on the first seed;
2. the `refined` worst of them with the other factors on their updates (`Together(attack, Rescale(factor))`); the worst
   one with each schedule, with false sizes if the defence weighs by sizes, and with bad timing if clients need not wait
   for each other; and random compositions of two attacks, drawn from a named stream;
3. the `confirm` worst named attacks, and as many of the others, on the other seeds as well.

Then each defence meets the worst named attack and the worst of the others, which is the one found, on the seeds of the
study.  The lower mean of the two is its score.  Candidates of all defences are carried out together.  An attack with
which a run fails is no candidate: it could not be carried out against that defence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from phalanx.attacks import Attack, Flood, HoldBack, Linger, ReportTimes, Rescale, Scheduled, Together
from phalanx.core import InfeasibleError
from phalanx.experiments.grid import Planned, name_of
from phalanx.experiments.results import Results, Row
from phalanx.experiments.sought import Candidate, Sought
from phalanx.experiments.trace import Trace
from phalanx.fields import CheckedFields, NonNegativeInt, PositiveInt
from phalanx.promises import preprocess_of
from phalanx.rng import numpy_generator
from phalanx.runs.plan import Run
from phalanx.weighting import Ignore
from phalanx.wording import percent, plural

NAMED, FOUND, NONE = "worst named", "worst found", "none"  # values of the axis "attack" in the results
TIMING: tuple[Attack, ...] = (Flood(0.25), Linger(3.0), HoldBack())  # added to an attack where clients need not wait
Carried = Callable[[Sequence[Planned]], Mapping[str, Trace]]  # returns the traces of runs, by identity


class MissingRunsError(InfeasibleError):
    """Runs have no record, without which others are not known."""


@dataclass(frozen=True)
class WorstOf(CheckedFields):
    """An axis of attacks of which each defence meets its worst; see `worst_of`.

    Args:
        attacks: by name.
        factors: on the update of an attack; negative ones turn it around.
        schedules: numbers of versions from one attack to the next, for the worst attack.
        sizes: multiples of their number of examples that attackers report, for the worst attack.
        budget: number of random compositions.
        seeds: of the search; the study has none of them.
        seed: of the random compositions.
        refined: number of named attacks, the worst on the first seed, that get the other factors.
        confirm: number of named attacks, and of others, that get the other seeds of the search.
    """

    attacks: Mapping[str, Attack]
    factors: Sequence[float] = (1.0, 0.3, 3.0, -0.3, -1.0, -3.0)
    schedules: Sequence[int] = (2,)
    sizes: Sequence[float] = (10.0,)
    budget: NonNegativeInt = 0
    seeds: Sequence[int] = (2000,)
    seed: int = 0
    refined: PositiveInt = 2
    confirm: PositiveInt = 2

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.attacks or not all(isinstance(attack, Attack) for attack in self.attacks.values()):
            raise InfeasibleError(f"worst_of needs attacks, got {dict(self.attacks)}.")
        if 1.0 not in self.factors or not self.seeds:
            raise InfeasibleError(f"worst_of needs the factor 1 and a seed, got {self.factors} and {self.seeds}.")

    @property
    def runs(self) -> int:
        """The number of runs of the search against one defence, at most."""
        stronger = self.refined * (len(self.factors) - 1) + len(self.schedules) + len(self.sizes) + len(TIMING)
        return len(self.attacks) + stronger + self.budget + 2 * self.confirm * (len(self.seeds) - 1)

    def stronger(self, worst: Sequence[Attack], plan: Callable[[Attack], Run]) -> Iterator[Attack]:
        """Yield attacks made of named ones.

        Args:
            worst: the named attacks, the worst first.
            plan: returns a run of the defence under an attack.
        """
        for attack in worst[: self.refined]:
            yield from (Together(attack, Rescale(factor)) for factor in self.factors if factor != 1)
        for attack in worst[:1]:
            scheduled, sized = self.scheduled(attack), self.sized(attack)
            algorithm = plan(attack).algorithm
            yield from scheduled
            yield from [] if isinstance(preprocess_of(algorithm), Ignore | None) else sized
            yield from [] if algorithm.traits.synchronous else [Together(attack, timing) for timing in TIMING]
        yield from (self.drawn(number) for number in range(self.budget))

    def scheduled(self, attack: Attack) -> list[Attack]:
        """Return an attack with each schedule."""
        return [Scheduled(attack, every=every) for every in self.schedules]

    def sized(self, attack: Attack) -> list[Attack]:
        """Return an attack with each false size."""
        return [Together(attack, ReportTimes(factor)) for factor in self.sizes]

    def drawn(self, number: int) -> Attack:
        """Return the composition of that number: two of the attacks, a factor, and a schedule or a size at times."""
        rng = numpy_generator(self.seed, "worst", number)
        pool = list(self.attacks.values())
        first, second = (pool[int(k)] for k in rng.choice(len(pool), 2))
        factor = float(np.round(rng.choice([-1, 1]) * 10 ** rng.uniform(-1, 1), 3))
        composed: Attack = Together(Together(first, second), Rescale(factor))
        kinds = [composed, *self.scheduled(composed), *self.sized(composed)]
        return kinds[int(rng.choice(len(kinds)))]


def worst_of(attacks: Mapping[str, Attack] | Sequence[Attack], **options: Any) -> WorstOf:
    """Return an axis of attacks, each strengthened against each defence; options are those of `WorstOf`."""
    named = attacks if isinstance(attacks, Mapping) else {name_of(attack): attack for attack in attacks}
    return WorstOf(dict(named), **options)


def search(worst: WorstOf, defences: Sequence[Sought], carried: Carried) -> None:
    """Try attacks on all defences; all of one step are carried out together.

    Args:
        worst: the attacks.
        defences: they take what is found.
        carried: carries out runs, or finds their records.

    Raises:
        MissingRunsError: it leaves out some of them.
    """

    def attempt(candidates: Sequence[tuple[Sought, Attack, bool]], seed: int) -> None:
        names = [name_of(attack) for _, attack, _ in candidates]
        planned = [
            one.planned(attack, seed, f"search: {name}")
            for name, (one, attack, _) in zip(names, candidates, strict=True)
        ]
        known = carried(planned)
        if missing := {one.plan.identity for one in planned} - known.keys():
            raise MissingRunsError(
                f"{plural(len(missing), 'run')} of the search without a record. Carry out the study."
            )
        for (defence, attack, named), name, one in zip(candidates, names, planned, strict=True):
            trace = known[one.plan.identity]
            candidate = defence.tried.setdefault(name, Candidate(attack, named))
            if not trace.failed and (accuracy := trace.final()) is not None:
                candidate.accuracies.append(accuracy)
            else:
                defence.error = trace.error or "the accuracy was not measured"

    first, *others = worst.seeds
    attempt([(one, attack, True) for one in defences for attack in worst.attacks.values()], first)
    attempt(
        [
            (one, attack, False)
            for one in defences
            for attack in worst.stronger(one.worst(named=True), lambda attack, one=one: one.plan(attack, first))  # type: ignore[misc]
        ],
        first,
    )
    for seed in others:
        attempt(
            [
                (one, attack, named)
                for one in defences
                for named in (True, False)
                for attack in one.worst(named=named)[: worst.confirm]
            ],
            seed,
        )


def with_worst(results: Results, folder: Path) -> Results:
    """Return the results with a sentence on the worst attack on each defence, and its run as a configuration file.

    Args:
        results: of a study with the axis "attack".
        folder: in which the page is written.
    """
    by_defence = dict[tuple[str, ...], dict[str, list[Row]]]()
    for row in results.rows:
        defence = tuple(value for axis, value in row.labels.items() if axis != "attack")
        by_defence.setdefault(defence, {}).setdefault(row.labels["attack"], []).append(row)
    notes, alone = list(results.notes), dict[str, Run]()
    for number, (defence, attacks) in enumerate(by_defence.items(), 1):
        means = {name: results.estimate(rows).mean for name, rows in attacks.items()}
        known = {name: mean for name, mean in means.items() if mean is not None}
        if not known or (plan := attacks[name := min(known, key=lambda n: known[n])][0].plan) is None:
            continue
        alone[f"{number}.yaml"] = plan
        notes.append(
            f"{', '.join(defence) or 'The defence'}: worst accuracy {percent(known[name])}, under the attack {name}: "
            f"{name_of(plan.attack)}. Alone: phalanx run --config {folder / 'worst' / f'{number}.yaml'}"
        )
    return replace(results, notes=notes, alone=alone)
