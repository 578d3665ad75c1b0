"""The runs that experiments need, and their existing records."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from phalanx.core import InfeasibleError
from phalanx.experiments.papers.experiment import CELL, Experiment, Scale
from phalanx.experiments.papers.manifest import Page
from phalanx.experiments.papers.writing import shortened
from phalanx.experiments.trace import Trace
from phalanx.runs.engine_choice import named
from phalanx.runs.plan import Run
from phalanx.runs.provenance import NUMERICS, commit_date, counts_as

Traces = Mapping[str, Trace]  # by identity
Form = Callable[[Run], Run]  # of an experiment's run: with an engine, the loop where neither it nor a user names one


@dataclass(frozen=True)
class Needed:
    """The runs of some experiments, each once.

    Args:
        plans: by identity.
        names: the first place where each is used, by identity.
        cells: identity by experiment, cell and seed.
        pages: the records of each experiment's page.
    """

    plans: dict[str, Run] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    cells: dict[str, dict[str, dict[int, str]]] = field(default_factory=dict)
    pages: Mapping[str, Page] = field(default_factory=dict)

    @classmethod
    def by(
        cls, experiments: Sequence[Experiment], scale: Scale, pages: Mapping[str, Page], form: Form = named
    ) -> "Needed":
        """Return the runs that the pages of experiments need on a scale, each in some form."""
        out = cls(pages=pages)
        for experiment in experiments:
            cells = out.cells.setdefault(experiment.name, {})
            seeds = pages[experiment.name].seeds
            trained = experiment.exhibit.runs(scale, seeds[0])
            planned = experiment.study(scale, seeds).planned if trained else ()
            for one in sorted(planned, key=lambda one: seeds.index(one.plan.seed)):
                plan, cell = form(one.plan), one.labels[CELL]
                out.plans.setdefault(plan.identity, plan)
                out.names.setdefault(plan.identity, f"{experiment.name}: {one.name}")
                cells.setdefault(cell, {})[plan.seed] = plan.identity
        return out

    def like(self, pattern: str | None) -> set[str]:
        """Return the identities of runs in a cell whose name is like a pattern.

        Raises:
            InfeasibleError: no name is like it.
        """
        if pattern is None:
            return set(self.plans)
        cells = [pair for cells in self.cells.values() for pair in cells.items()]
        found = {i for cell, seeds in cells if fnmatchcase(cell, pattern) for i in seeds.values()}
        if not found:
            names = shortened(list(dict(cells)))
            raise InfeasibleError(f"No cell has a name like {pattern!r}. There are: {names}.")
        return found

    def missing(self, experiment: Experiment, known: Traces) -> list[str]:
        """Return the names, in an experiment, of the runs that its page does not show."""
        names = dict[str, str]()
        for cell, seeds in self.cells[experiment.name].items():
            for seed, i in seeds.items():
                names.setdefault(i, f"{experiment.name}: {cell} (seed {seed})")
        return [name for i, name in names.items() if not self._shown(experiment, i, known)]

    def traces(self, experiment: Experiment, known: Traces) -> dict[str, list[Trace]]:
        """Return the traces that the page of an experiment shows, by cell; that of a run without chance is one."""
        cells = self.cells[experiment.name]
        return {
            cell: [known[i] for i in dict.fromkeys(seeds.values()) if self._shown(experiment, i, known)]
            for cell, seeds in cells.items()
        }

    def baselines(self, experiment: Experiment, known: Traces) -> dict[str, tuple[Run, list[Trace]]]:
        """Return a run of each cell of an experiment, and the traces that its page shows."""
        cells = self.cells[experiment.name]
        shown = self.traces(experiment, known)
        return {cell: (self.plans[next(iter(seeds.values()))], shown[cell]) for cell, seeds in cells.items()}

    def page(self, experiment: Experiment, known: Traces) -> Page:
        """Return the records of an experiment's page, with their newest date, or else the one that is known."""
        cells = self.cells[experiment.name].items()
        absent = {c: tuple(s for s, i in seeds.items() if not self._shown(experiment, i, known)) for c, seeds in cells}
        commits = {t.provenance.commit for some in self.traces(experiment, known).values() for t in some}
        dates = [date for commit in commits if commit and (date := commit_date(commit))]
        page = self.pages[experiment.name]
        return Page(page.seeds, {cell: seeds for cell, seeds in absent.items() if seeds}, max(dates, default=page.date))

    def numerics(self, experiment: Experiment, known: Traces, computed: set[str]) -> Counter[int]:
        """Return how many of an experiment's records count as each version, after some runs have been computed."""
        kept = (i for i in self._runs(experiment) if i in known and i not in computed)
        there = (counts_as(known[i].provenance.numerics, self.plans[i]) for i in kept)
        return Counter([*there, *(NUMERICS for i in self._runs(experiment) if i in computed)])

    def _runs(self, experiment: Experiment) -> dict[str, None]:
        return {i: None for seeds in self.cells[experiment.name].values() for i in seeds.values()}

    def _shown(self, experiment: Experiment, identity: str, known: Traces) -> bool:
        """Return whether a run has a record that the page shows."""
        cells, without = self.cells[experiment.name], self.pages[experiment.name].without
        absent = {cells[cell].get(seed) for cell, seeds in without.items() if cell in cells for seed in seeds}
        return identity in known and identity not in absent
