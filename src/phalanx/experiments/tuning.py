"""Equal chances: every method of a study has equally many settings, chosen on other runs than those of the result."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from phalanx.core import InfeasibleError
from phalanx.data.held_out import HeldOut
from phalanx.experiments.grid import Fields, Settings, axis_values, name_of
from phalanx.experiments.results import Results
from phalanx.fields import CheckedFields, PositiveInt
from phalanx.report.words import percent
from phalanx.rng import numpy_generator

EVERY = "all"  # in place of the name of a method: options of all that have none of their own


class NoSettingError(InfeasibleError):
    """No tuning run of a method has a result.

    Args:
        method: its name.
        errors: of its runs.
    """

    def __init__(self, method: str, errors: Sequence[str]) -> None:
        self.why = "no setting gave a result in the tuning runs" + (f": {errors[-1].rstrip('.')}" if errors else "")
        super().__init__(f"{method}: {self.why}. Give it other options.")


@dataclass(frozen=True)
class Tuning(CheckedFields):
    """The tuning budget of a study.

    A method's settings are random combinations of its options.  Each is carried out in every cell of the method, on
    other seeds, so with other clients and data, and tested on examples that are held out from training.  The one with
    the highest accuracy at the end, the mean over cells and seeds, is used in the study.  A run without a result counts
    as an accuracy of 0.

    Args:
        axis: of the study whose values are the methods.
        options: by the name of a method, the values to choose from by field of a run; "all" for the others.
        settings: number of settings of each method, the same for all.
        seeds: of the tuning runs; the study has none of them.
        held_out: share of the training examples on which settings are compared, between 0 and 1.
        grid: values of other axes in the tuning runs, in place of those of the study.
    """

    axis: str
    options: Mapping[str, Mapping[str, Sequence[Any]]]
    settings: PositiveInt
    seeds: Sequence[int] = (1000,)
    held_out: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    grid: Mapping[str, Mapping[str, Any] | Sequence[Any]] = field(default_factory=dict)

    def check(self, axes: Mapping[str, Mapping[str, Settings]], seeds: Sequence[int]) -> None:
        """Raise `InfeasibleError` if a study with these axes and seeds cannot be tuned in this way."""
        if self.axis not in axes:
            raise InfeasibleError(
                f"tuning.axis is {self.axis}, which is no axis. There are: {', '.join(axes) or 'none'}."
            )
        if unknown := self.grid.keys() - (axes.keys() - {self.axis}):
            raise InfeasibleError(f"tuning.grid names {min(unknown)}, which is no other axis of the study.")
        if common := set(seeds) & set(self.seeds):
            raise InfeasibleError(
                f"The study uses the seed {min(common)}, on which its settings are chosen. Give tuning other seeds."
            )
        if unknown := self.options.keys() - axes[self.axis].keys() - {EVERY}:
            raise InfeasibleError(
                f"tuning.options names {min(unknown)}, which {self.axis} does not have. "
                f"It has: {', '.join(axes[self.axis])}."
            )
        for method in axes[self.axis]:
            if (number := len(list(self._combinations(method)))) < self.settings:
                raise InfeasibleError(
                    f"{method} has {number} settings to choose from, and each method gets {self.settings}. "
                    "Give it more options, or all fewer settings."
                )

    def _options(self, method: str) -> Mapping[str, Sequence[Any]]:
        return self.options.get(method, self.options.get(EVERY, {}))

    def _combinations(self, method: str) -> Iterator[dict[str, Any]]:
        options = self._options(method)
        return (dict(zip(options, values, strict=True)) for values in itertools.product(*options.values()))

    def values(self, method: str) -> Iterator[tuple[str, Any]]:
        """Yield each option of a method with each of its values."""
        return ((path, value) for path, values in self._options(method).items() for value in values)

    def candidates(self, method: str) -> dict[str, Settings]:
        """Return the settings of a method, by name."""
        every = list(self._combinations(method))
        drawn = numpy_generator(self.seeds[0], "tuning").choice(len(every), self.settings, replace=False)
        return {
            ", ".join(f"{field} {name_of(value)}" for field, value in every[k].items()): every[k] for k in sorted(drawn)
        }

    def trial(
        self, axes: Mapping[str, Mapping[str, Settings]], exclude: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, dict[str, Fields]], list[dict[str, Any]]]:
        """Return the grid and the exclusions of the tuning runs: each method with each of its settings."""
        axes = {**axes, **{axis: axis_values(axis, given) for axis, given in self.grid.items()}}
        grid = {axis: {name: Fields(value) for name, value in values.items()} for axis, values in axes.items()}
        variants = {method: self.candidates(method) for method in axes[self.axis]}
        grid[self.axis] = {
            _variant(method, name): Fields({**axes[self.axis][method], **settings})
            for method, found in variants.items()
            for name, settings in found.items()
        }
        return grid, [dict(rule) | self._expanded(rule, variants) for rule in exclude]

    def _expanded(self, rule: Mapping[str, Any], variants: Mapping[str, Mapping[str, Settings]]) -> dict[str, Any]:
        """Return the methods of an exclusion with all their settings."""
        if self.axis not in rule:
            return {}
        given = rule[self.axis]
        methods = [given] if isinstance(given, str) else given
        return {self.axis: [_variant(method, name) for method in methods for name in variants[method]]}

    def choice(self, results: Results, methods: Sequence[str]) -> tuple[dict[str, Settings], list[str]]:
        """Return the best settings of each method, the first at a tie, and a sentence on each.

        Args:
            results: of the tuning runs.
            methods: the names of the methods.

        Raises:
            NoSettingError: no run of a method has a result.
        """
        chosen, notes = dict[str, Settings](), list[str]()
        for method in methods:
            found = self.candidates(method)
            rows = {name: results.where({self.axis: _variant(method, name)}) for name in found}
            if not (most := max(map(len, rows.values()))):
                raise NoSettingError(method, ["all are left out, as no run can be carried out"])
            means = {name: sum(row.value("accuracy") or 0.0 for row in of) / most for name, of in rows.items()}
            best = max(means, key=lambda name: means[name])
            if not means[best]:
                raise NoSettingError(method, [row.trace.error for of in rows.values() for row in of if row.trace.error])
            chosen[method] = found[best]
            seeds = ", ".join(map(str, self.seeds))
            notes.append(
                f"{method}: {best}, chosen among {self.settings} settings by an accuracy of {percent(means[best])} "
                f"on held-out examples (worst setting {percent(min(means.values()))}; seeds {seeds})."
            )
        return chosen, notes

    def source(self, data: Any) -> HeldOut:
        """Return the data of the tuning runs."""
        return HeldOut(data, self.held_out)


def _variant(method: str, name: str) -> str:
    return f"{method}: {name}"
