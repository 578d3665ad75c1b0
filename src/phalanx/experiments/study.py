"""A study as a value: a run, axes on which it changes, and seeds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators.aggregator import wrong_number
from phalanx.attacks import Attack
from phalanx.core import InfeasibleError
from phalanx.experiments.carrying_out import Carrier, Means, Workers, local_workers, stored
from phalanx.experiments.cost import Cost, cost
from phalanx.experiments.grid import Fields, GridCell, Labels, Planned, Settings, applied, axis_values, cells
from phalanx.experiments.results import METRICS, Results, Row
from phalanx.experiments.sought import Sought
from phalanx.experiments.store import Store
from phalanx.experiments.trace import Measures
from phalanx.experiments.tuning import Tuning
from phalanx.experiments.worst import FOUND, NAMED, NONE, Carried, MissingRunsError, WorstOf, search, with_worst
from phalanx.fields import CheckedFields
from phalanx.processes import check_script
from phalanx.promises.remarks import with_remark
from phalanx.runs.lock import exclusive
from phalanx.runs.plan import Run
from phalanx.wording import is_path, plural, shown

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console

MOST = 100_000  # runs of a study
TOO_MANY = f"The study has more than {MOST:,} runs, which is the most. Divide it."
LONGEST = 240  # bytes of its name; a file system takes 255


@dataclass(frozen=True)
class Study(CheckedFields):
    """A comparison: a run, changed along axes, for some seeds.

    The same run is carried out once, whichever studies contain it: its record is stored under its identity.  Local
    training that names no engine gets one by rule, as by `simulate`; a run that has a record by another one keeps it.

    Args:
        base: the run that is changed.
        grid: by the name of each axis its values, by name or in a list. An axis named as a field of a run, by its
            dotted path ("algorithm.aggregate"), sets that field; any other axis has mappings of fields to values, which
            go together; `Derived` values depend on the rest of the run. An attack of None leaves no Byzantine clients,
            and 0 Byzantine clients leave no attack. `worst_of(attacks)`, as the axis "attack", has each defence meet
            the worst attack for it.
        seeds: how many, counted from 0; or which.
        exclude: combinations that are left out: by axis the name of a value, or a list of names.
        name: of the study, and of its folder.
        target: accuracy in (0, 1] for the time to accuracy; 95 % of the best cell's if None.
        tuning: gives each method the same number of settings, of which the best on other runs is used; None: as given.
        leave_out: whether cells that cannot be carried out are left out, with the reason in `infeasible`. If not, they
            are an error.
        measures: figures of your own, by name: a function of the record of a run that ended. What it returns is kept as
            JSON in `trace.measured` of the run; a number is a figure of the results as well. A run whose record lacks
            one is carried out again; give a function that has changed another name.

    Raises:
        TypeError: a field holds another type than declared.
        ValueError: target is out of its range.
        InfeasibleError: the grid is wrong, or a run of it cannot begin.
    """

    base: Run
    grid: Mapping[str, Mapping[str, Any] | Sequence[Any] | WorstOf]
    seeds: int | Sequence[int] = 3
    exclude: Sequence[Mapping[str, Any]] = ()
    name: str = "study"
    target: Annotated[float, Meta(gt=0, le=1, description="it is an accuracy")] | None = None
    tuning: Tuning | None = None
    leave_out: bool = False
    measures: Measures = field(default_factory=dict)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.seeds, int) and self.seeds > MOST:
            raise InfeasibleError(TOO_MANY)
        seeds = [*range(self.seeds)] if isinstance(self.seeds, int) else [*self.seeds]
        if not seeds or len(set(seeds)) < len(seeds) or not all(type(seed) is int and seed >= 0 for seed in seeds):
            raise InfeasibleError(f"seeds must be a number of at least 1, or different integers, got {self.seeds}.")
        object.__setattr__(self, "seeds", tuple(seeds))
        if not is_path(self.name) or self.name != Path(self.name).name or self.name == "..":
            raise InfeasibleError(f"name must be usable as the name of a folder, got {shown(self.name)!r}.")
        if len(self.name.encode()) > LONGEST:
            raise InfeasibleError(f"name must be at most {LONGEST} bytes long in UTF-8, got {shown(self.name)}.")
        for name, measure in self.measures.items():
            if name in METRICS:
                raise InfeasibleError(f"measures cannot be named as a figure that each run has, got {name}. Rename it.")
            if "<" in getattr(measure, "__qualname__", ""):
                raise InfeasibleError(
                    f"The measure {name} must be a function at the top of a file: processes import it."
                )
        _ = self._grid
        if self.worst is not None and (common := set(seeds) & set(self.worst.seeds)):
            raise InfeasibleError(
                f"The study uses the seed {min(common)} of the search for attacks. Give others to it."
            )
        if any(isinstance(given, WorstOf) for name, given in self.grid.items() if name != "attack"):
            raise InfeasibleError("worst_of is an axis named attack. Rename the axis.")
        if self.tuning is not None:
            self.tuning.check(self.axes, seeds)
            self._check_options(self.tuning)
            _ = self.trial

    def _check_options(self, tuning: Tuning) -> None:
        """Raise `InfeasibleError` if a method does not go with one of its options, also if that is not drawn."""
        cells = dict[str, GridCell]()
        for cell in () if self.leave_out else self._cells():
            cells.setdefault(cell.labels[tuning.axis], cell)
        for method, cell in cells.items():
            for path, value in tuning.values(method):
                try:
                    applied(self.base, {**cell.settings, path: value})
                except InfeasibleError as error:
                    raise InfeasibleError(f"tuning.options of {method}, {path} {shown(str(value))}: {error}") from error

    @cached_property
    def trial(self) -> "Study":
        """The study of the tuning runs; raise `InfeasibleError` if there is no tuning."""
        if self.tuning is None:
            raise InfeasibleError(f"The study {self.name} has no tuning.")
        grid, exclude = self.tuning.trial(self.axes, self.exclude)
        base = replace(self.base, data=self.tuning.source(self.base.data))
        return Study(base, grid, self.tuning.seeds, exclude, self.name, leave_out=self.leave_out)

    def tuned(self, trial: Results) -> tuple["Study", list[str]]:
        """Return the study with the settings that are best in its tuning runs, and a sentence on each method.

        Args:
            trial: the results of the tuning runs.

        Raises:
            MissingRunsError: some of them are missing.
            NoSettingError: no setting of a method gave a result.
        """
        if self.tuning is None:
            return self, []
        if trial.missing:
            why = "They failed, or were not carried out. Carry out the study, which says so."
            raise MissingRunsError(f"{plural(trial.missing, 'tuning run')} without a record. {why}")
        axis = self.tuning.axis
        chosen, notes = self.tuning.choice(trial, list(self.axes[axis]))
        values = {name: Fields({**settings, **chosen[name]}) for name, settings in self.axes[axis].items()}
        return replace(self, grid={**self.grid, axis: values}, tuning=None), notes

    @cached_property
    def axes(self) -> dict[str, dict[str, Settings]]:
        """The settings of each value, by axis and name."""
        return {
            name: axis_values(name, given.attacks if isinstance(given, WorstOf) else given)
            for name, given in self.grid.items()
        }

    @property
    def planned(self) -> tuple[Planned, ...]:
        """The runs, all seeds of a cell one after the other; with `worst_of`, each defence under one attack."""
        return self._grid[0]

    @property
    def infeasible(self) -> Mapping[tuple[str, ...], str]:
        """Why cells cannot be carried out, by the names of their values; without the attack's if that is `worst_of`."""
        return self._grid[1]

    @cached_property
    def _grid(self) -> tuple[tuple[Planned, ...], dict[tuple[str, ...], str]]:
        found, refused = list[Planned](), dict[tuple[str, ...], str]()
        for cell in self._cells():
            try:
                planned = [Planned(cell.labels, self._plan(cell.settings, seed)) for seed in self.seeds]  # type: ignore[union-attr]  # a tuple by now
                check_round(planned[0].plan)
            except ValueError as error:
                if not self.leave_out:
                    where = ", ".join(f"{axis}: {value}" for axis, value in cell.labels.items())
                    raise InfeasibleError(
                        f"The cell {{{where}}} cannot be carried out: {error} To leave it out, add it to exclude."
                    ) from error
                refused[self._place(cell.labels)] = str(error)
                continue
            found += planned
            if len(found) > MOST:
                raise InfeasibleError(TOO_MANY)
        if not found and not refused:
            raise InfeasibleError("exclude leaves no run of the study. Exclude less.")
        return tuple(found), refused

    def _cells(self) -> Iterator[GridCell]:
        """Yield the cells; with `worst_of`, one of each defence."""
        seen = set[tuple[str, ...]]()
        for cell in cells(self.axes, self.exclude):
            if (place := self._place(cell.labels)) not in seen:
                seen.add(place)
                yield cell

    def _place(self, labels: Labels) -> tuple[str, ...]:
        return tuple(value for axis, value in labels.items() if self.worst is None or axis != "attack")

    def _plan(self, settings: Settings, seed: int) -> Run:
        return applied(self.base, {"seed": seed, **settings})

    @property
    def folder(self) -> Path:
        """The folder of its records and results if none is given."""
        return Path("studies") / self.name

    def cost(self, folder: Path | str | None = None, *, data_dir: Path | str | None = None) -> Cost:
        """Return the estimated cost of the runs that have no record yet; some of them are begun, to time a step.

        Args:
            folder: of the study; `folder` of this value if not given.
            data_dir: where data sets lie; they are downloaded if not given.
        """
        store, planned = Store(Path(folder or self.folder)), self.planned
        if self.tuning is not None:
            trial = self.trial.results(store.folder.parent)
            planned = (*self.trial.planned, *(planned if trial.missing else self.tuned(trial)[0].planned))
        found = cost(planned, store, Path(data_dir) if data_dir else None, self.measures)
        if self.worst is None:
            return found
        defences = len(self.planned) // len(self.seeds)  # type: ignore[arg-type]
        return replace(found, searched=(self.worst.runs + len(self.seeds)) * defences)  # type: ignore[arg-type]

    def run(
        self,
        folder: Path | str | None = None,
        *,
        jobs: int = 1,
        data_dir: Path | str | None = None,
        device: str = "cpu",
        again: bool = False,
        console: "Console | None" = None,
        workers: Callable[[], AbstractContextManager[Workers]] | None = None,
    ) -> Results:
        """Carry out the runs that have no record yet, and return all results.

        A study that was stopped or killed goes on where it was, and so does one that has grown.

        Args:
            folder: of records and results; `folder` of this value if not given.
            jobs: number of runs at a time, in processes. Scripts call this below `if __name__ == "__main__":`.
            data_dir: where data sets lie; they are downloaded if not given.
            device: the torch device.
            again: whether runs that have a record are repeated.
            console: shows the progress; standard error if not given.
            workers: starts what carries out the runs, in place of processes of this machine; `Means` hold `measures`.

        Raises:
            InfeasibleError: another process writes in the folder.
        """
        check_script()  # before its folder, which another process holds then, is locked
        where, store = Path(data_dir) if data_dir else None, Store(Path(folder or self.folder))
        means = Means(where, device, resume=not again, measures=self.measures)
        start = workers or partial(local_workers, jobs, store, means)
        alone = exclusive(store.folder.parent, needed=False)
        with alone, Carrier(store, start, where, console, again=again, measured=self.measures) as carried:
            return self.found(carried, store.folder.parent)

    def results(self, folder: Path | str | None = None) -> Results:
        """Return the results of the runs that have a record.

        Args:
            folder: of the study; `folder` of this value if not given.
        """
        where = Path(folder or self.folder)
        return self.found(partial(stored, store=Store(where), measured=self.measures), where)

    def frame(self, folder: Path | str | None = None) -> "DataFrame":
        """Return a table of pandas with a row for each run that has a record; see `Results.frame`."""
        return self.results(folder).frame()

    def found(self, carried: Carried, folder: Path | None = None) -> Results:
        """Return the results: of the tuning runs and of the search, if there are any, and of the runs after these.

        Args:
            carried: carries out the runs, or finds their records.
            folder: in which a page would be written; `folder` of this value if not given.

        Raises:
            MissingRunsError: runs of the tuning, or of the search for the worst attack, have no record.
        """
        if self.tuning is not None:
            tuned, notes = self.tuned(self.trial.found(carried, folder))
            found = tuned.found(carried, folder)
            return replace(found, notes=[*notes, *found.notes])
        planned, sought = self.planned, list[Sought]()
        axes = {name: tuple(values) for name, values in self.axes.items()}
        if self.worst is not None:
            planned, sought = self._at_their_worst(self.worst, carried)
            axes["attack"] = tuple(dict.fromkeys(one.labels["attack"] for one in planned))
        known = carried(planned)
        rows = tuple(
            Row(one.labels, known[one.plan.identity], one.plan) for one in planned if one.plan.identity in known
        )
        notes = [f"{', '.join(place)} is left out: {why}" for place, why in self.infeasible.items()]
        found = Results(self.name, axes, rows, len(planned) - len(rows), self.target, notes, sought=sought)
        return found if self.worst is None else with_worst(found, folder or self.folder)

    @property
    def worst(self) -> WorstOf | None:
        """The attacks of which each defence meets its worst; None if the attacks are as given."""
        given = self.grid.get("attack")
        return given if isinstance(given, WorstOf) else None

    def _at_their_worst(self, worst: WorstOf, carried: Carried) -> tuple[tuple[Planned, ...], list[Sought]]:
        """Return the runs of each defence under its worst attacks, which are searched first, and the search."""
        defences = list[tuple[Sought, bool]]()
        attacked = {self._place(one.labels): one.plan.attack is not None for one in self.planned}
        for cell in self._cells():
            if (place := self._place(cell.labels)) in self.infeasible:
                continue

            def plan(attack: Attack, seed: int, settings: Settings = cell.settings) -> Run:
                run = self._plan({**settings, "attack": attack}, seed)
                return replace(run, algorithm=with_remark(run.algorithm))

            one = Sought({axis: value for axis, value in cell.labels.items() if axis != "attack"}, plan)
            defences.append((one, attacked[place]))
        search(worst, [one for one, hostile in defences if hostile], carried)
        planned = list[Planned]()
        for one, hostile in defences:
            chosen = {NONE: next(iter(worst.attacks.values()))}
            if hostile:
                chosen = {sort: found[0] for sort in (NAMED, FOUND) if (found := one.worst(named=sort == NAMED))}
            planned += [one.planned(attack, seed, sort) for sort, attack in chosen.items() for seed in self.seeds]  # type: ignore[union-attr]
        return tuple(planned), [one for one, _ in defences]


def check_round(plan: Run) -> None:
    """Raise `InfeasibleError` if no round of a run could ever have enough updates for its rule."""
    rule: Any = plan.algorithm.rule
    if not plan.algorithm.traits.synchronous or rule is None or not (pools := plan.pools):
        return
    try:
        why = _wrong_number(rule, pools[0].full)
    except TypeError:  # a rule of the user's own without a hash
        why = wrong_number(rule, pools[0].full)
    if why:
        raise InfeasibleError(str(why))


_wrong_number = lru_cache(maxsize=1024)(wrong_number)  # many cells of a study have one rule
