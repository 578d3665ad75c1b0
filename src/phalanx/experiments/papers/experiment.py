"""Experiments, and the search for them.

A paper is a package with `PAPER = Paper(...)`.  Each module in it that has a `TITLE` is an experiment, one table or
figure of the paper, and holds

* `TITLE`, the content of the table or figure;
* `CLAIM`, the paper's statement about it, in one sentence;
* `MINUTES`, for each scale the measured duration of the runs of one seed in one process;
* `runs(scale, seed)`, the runs that it needs, by the name of their cell or curve; none if there is nothing to train;
* `render(records, context)`, the tables and figures made from them.

Its name on the command line is that of the module, with `-` for `_`.  A module of several experiments of one form has
`EXPERIMENTS` instead: an `Exhibit` for each, by its name on the command line.  Other modules of the package are
shared by experiments.  The same run may occur in several experiments: it is carried out once.
"""

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeVar, get_args

from phalanx.core import InfeasibleError
from phalanx.experiments.grid import FIELDS, Derived, Fields
from phalanx.experiments.papers.published import FILE, PublishedPaper, published
from phalanx.experiments.papers.rendering import Rendering
from phalanx.experiments.study import Study
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run
from phalanx.trust import find_own, imported
from phalanx.version import URL
from phalanx.wording import shown

Scale = Literal["quick", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
PACKAGE = "papers"  # next to `src` in the repository, and not in the wheel
REPOSITORY = Path(__file__).parents[4]  # if the library runs from its repository
ALL = "all"  # on the command line, in place of an experiment's name
CELL = "cell"  # the axis of an exhibit's study


@dataclass(frozen=True)
class Paper:
    """A paper whose tables and figures are reproduced.

    Args:
        name: on the command line, and of its folder of results.
        title: of the paper.
        citation: authors, title, publication, year.
    """

    name: str
    title: str
    citation: str


def form_of(scale: Scale, engine: str | None) -> str:
    """Return the end of the names of an experiment's files: the scale, and an engine that is not its own."""
    return scale if engine is None else f"{scale}-{engine}"


@dataclass(frozen=True)
class Context:
    """The inputs of an experiment's rendering in addition to its records.

    Args:
        scale: of its runs.
        seeds: of its runs. Records of a seed can be missing.
        published: the numbers that the paper publishes.
        data_dir: folder of the data sets; they are downloaded if None.
        engine: that the runs train by where they have it; None: the experiment's own.
        own_size: whether the runs are of the paper's own size: only then they are compared with published numbers.
    """

    scale: Scale
    seeds: Sequence[int]
    published: PublishedPaper
    data_dir: Path | None = None
    engine: str | None = None
    own_size: bool = True

    @property
    def form(self) -> str:
        """See `form_of`."""
        return form_of(self.scale, self.engine)


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A table or figure, with the runs that it needs.

    Args:
        title: of the table or figure.
        claim: the paper's statement about it, in one sentence.
        minutes: measured duration of the runs of one seed in one process, by scale.
        runs: returns the runs for a scale and a seed, by cell; none if there is nothing to train.
        render: returns tables and figures, from the traces of each cell by increasing seed, failed ones among them.
    """

    title: str
    claim: str
    minutes: Mapping[Scale, float]
    runs: Callable[[Scale, int], dict[str, Run]]
    render: Callable[[Mapping[str, Sequence[Trace]], Context], Rendering]

    def own_size(self, scale: Scale) -> bool:
        """Return whether the runs of a scale are of the paper's own size: some experiments are as large on both."""
        return scale == "paper" or self.runs(scale, 0) == self.runs("paper", 0)

    def study(self, scale: Scale, seeds: Sequence[int] = (0, 1, 2), name: str = "exhibit") -> Study:
        """Return the runs as a study with the axis `cell`.  Its records are those of `phalanx reproduce`.

        The base is the first run.  A cell sets what differs from it, so that another cell needs only that.

        Raises:
            InfeasibleError: there is nothing to train.
        """
        by_seed = {seed: self.runs(scale, seed) for seed in seeds}
        first = by_seed[seeds[0]]
        if not first:
            raise InfeasibleError(f"{self.title}: nothing is trained for it, so it is no study.")
        base = next(iter(first.values()))
        cells = {cell: _differing(base, {s: runs[cell] for s, runs in by_seed.items()}) for cell in first}
        return Study(base, {CELL: cells}, seeds, name=name)

    def results(self, records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
        """Return what `render` does; without published numbers where the runs are smaller than the paper's."""
        found = self.render(records, context)
        return found if context.own_size else found.alone

    @classmethod
    def of(cls, module: ModuleType) -> "Exhibit":
        """Return the only exhibit of a module; raise `InfeasibleError` if the module lacks something."""
        if missing := [name for name in MUST_HOLD if not hasattr(module, name)]:
            raise InfeasibleError(f"{module.__name__} is no experiment: it lacks {', '.join(missing)}.")
        return cls(*(getattr(module, name) for name in MUST_HOLD))


def _differing(base: Run, runs: Mapping[int, Run]) -> Fields:
    """Return the fields in which the runs of a cell, by seed, differ from another run."""
    first = next(iter(runs.values()))
    names = [name for name in FIELDS if name != "seed"]
    drawn = [name for name in names if any(getattr(run, name) != getattr(first, name) for run in runs.values())]
    fixed = {name: getattr(first, name) for name in names if getattr(first, name) != getattr(base, name)}
    if not drawn:
        return Fields(fixed)
    by_seed = Derived(lambda run: {name: getattr(runs[run["seed"]], name) for name in drawn}, "by seed")
    return Fields({name: value for name, value in fixed.items() if name not in drawn} | {"by seed": by_seed})


MUST_HOLD = ("TITLE", "CLAIM", "MINUTES", "runs", "render")


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Args:
        paper: its paper.
        name: on the command line.
        exhibit: its table or figure.
    """

    paper: Paper
    name: str
    exhibit: Exhibit

    @property
    def title(self) -> str:
        """The names of paper and experiment on the command line."""
        return f"{self.paper.name} {self.name}"

    def study(self, scale: Scale, seeds: Sequence[int] = (0, 1, 2)) -> Study:
        """See `Exhibit.study`."""
        return self.exhibit.study(scale, seeds, self.title.replace(" ", "-"))


@dataclass(frozen=True)
class Reproduction:
    """A paper with its experiments, by name.

    Args:
        paper: the paper.
        experiments: found in its package.
        published: its numbers.
    """

    paper: Paper
    experiments: Mapping[str, Experiment]
    published: PublishedPaper


def reproductions(package: str = PACKAGE) -> dict[str, Reproduction]:
    """Return all papers of a package, by name.

    Args:
        package: import path of a package that has a package for each paper, and may have a `published.yaml`.

    Raises:
        InfeasibleError: there is no such package, or one of its modules is invalid.
    """
    inner = [module for module in _below(_imported(package)) if hasattr(module, "__path__")]
    numbers = published(package)
    found = [_reproduction(module, numbers) for module in inner]
    return {reproduction.paper.name: reproduction for reproduction in found}


def _reproduction(module: ModuleType, numbers: Mapping[str, PublishedPaper]) -> Reproduction:
    paper = getattr(module, "PAPER", None)
    if not isinstance(paper, Paper):
        raise InfeasibleError(
            f"{module.__name__} must say which paper it is about: PAPER = Paper(...) in its __init__.py."
        )
    found = [experiment for inner in _below(module) for experiment in _experiments(paper, inner)]
    by_name = {e.name: e for e in sorted(found, key=lambda e: _natural(e.name))}
    if len(by_name) < len(found):
        twice = [name for name, count in Counter(e.name for e in found).items() if count > 1]
        raise InfeasibleError(
            f"{module.__name__} has several experiments named {', '.join(twice)}. Rename all but one."
        )
    return Reproduction(paper, by_name, numbers.get(paper.name) or PublishedPaper(paper.name, paper.citation, {}))


def _experiments(paper: Paper, module: ModuleType) -> list[Experiment]:
    """Return the experiments in a module of a paper: one, several, or none."""
    exhibits: Mapping[str, Exhibit] = getattr(module, "EXPERIMENTS", {})
    if not exhibits and (hasattr(module, "TITLE") or hasattr(module, "render")):
        exhibits = {module.__name__.rpartition(".")[2].replace("_", "-"): Exhibit.of(module)}
    for name, exhibit in exhibits.items():
        if wrong := [scale for scale in SCALES if scale not in exhibit.minutes]:
            raise InfeasibleError(
                f"{module.__name__}: MINUTES of {name} must have each scale, {', '.join(wrong)} missing."
            )
    return [Experiment(paper, name, exhibit) for name, exhibit in exhibits.items()]


def _imported(package: str) -> ModuleType:
    if not all(part.isidentifier() for part in package.split(".")):
        raise InfeasibleError(
            f"{shown(package) or 'An empty text'} is no import path. Give that of a package of papers."
        )
    if package == PACKAGE and importlib.util.find_spec(package) is None:
        sys.path += [str(folder) for folder in (REPOSITORY, Path.cwd()) if (folder / package / FILE).is_file()]
    if package != PACKAGE:
        find_own()
    try:
        module = importlib.import_module(package) if package == PACKAGE else imported(package)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        remedy = "Give the import path of one that holds papers."
        if package == PACKAGE:
            remedy = (
                f"The experiments of the papers are not installed with the library. Get them with `git clone {URL}`, "
                "and run the command in the folder that it makes."
            )
        raise InfeasibleError(f"There is no package {package}. {remedy}") from error
    if not hasattr(module, "__path__"):
        raise InfeasibleError(f"{package} is a module. Give the import path of a package that holds papers.")
    return module


def _below(package: ModuleType) -> list[ModuleType]:
    """Return the modules and packages right below a package."""
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts figure2 before figure10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


# Search by name

Named = TypeVar("Named", Reproduction, Experiment)


def chosen(found: Mapping[str, Reproduction], paper: str, experiment: str) -> tuple[Reproduction, list[Experiment]]:
    """Return the paper of that name, and its experiment of that name, or all of them.

    Raises:
        InfeasibleError: there is none of that name; the message lists all names, the most similar first.
    """
    reproduction = named(found, paper, "paper")
    if experiment == ALL:
        return reproduction, list(reproduction.experiments.values())
    return reproduction, [named(reproduction.experiments, experiment, f"experiment of {paper}", (ALL,))]


def named(known: Mapping[str, Named], name: str, what: str, others: Iterable[str] = ()) -> Named:
    """Return the value of that name; raise `InfeasibleError` with all names if there is none."""
    if name in known:
        return known[name]
    names = [*known, *others]
    names.sort(key=lambda k: -difflib.SequenceMatcher(None, name.lower().replace("_", "-"), k).ratio())
    raise InfeasibleError(f"There is no {what} {name!r}. There are: {', '.join(names) or 'none'}.")
