"""What an experiment is, and how experiments are found.

A paper is a package with `PAPER = Paper(...)`.  Each module in it that has a `TITLE` is an experiment, one table or
figure of the paper, and holds

* `TITLE`, what the table or figure shows;
* `CLAIM`, what the paper says about it, in one sentence;
* `MINUTES`, for each scale how long the runs of one seed take in one process, as measured;
* `runs(scale, seed)`, the runs that it needs, by the name of the cell or curve that they are for; none if there is
  nothing to train;
* `render(records, context)`, the tables and figures that come of them.

Its name on the command line is that of the module, with `-` for `_`.  Other modules of the package are what experiments
share.  The same run may occur in several experiments: it is carried out once.
"""

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, Protocol, TypeVar, cast, get_args, runtime_checkable

from phalanx.core import InfeasibleError
from phalanx.reproduce.published import PublishedPaper, published
from phalanx.reproduce.results import Rendering
from phalanx.reproduce.trace import Trace
from phalanx.runs.plan import Run

Scale = Literal["quick", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
PACKAGE = "papers"  # beside the library in its repository, and no part of the installed wheel
REPOSITORY = Path(__file__).parents[3]  # of an editable installation
ALL = "all"  # on the command line, in place of an experiment's name


@dataclass(frozen=True)
class Paper:
    """A paper of which tables and figures are computed again.

    Args:
        name: on the command line, and of its folder of results.
        title: of the paper.
        citation: authors, title, where it appeared, year.
    """

    name: str
    title: str
    citation: str


@dataclass(frozen=True)
class Context:
    """What an experiment may need beside its records.

    Args:
        scale: of its runs.
        seeds: of its runs. Records of a seed can be missing.
        published: the numbers that the paper publishes.
        data_dir: where data sets lie; they are downloaded if None.
    """

    scale: Scale
    seeds: Sequence[int]
    published: PublishedPaper
    data_dir: Path | None = None


@runtime_checkable
class Module(Protocol):
    """What a module of an experiment holds; see above."""

    __name__: str
    TITLE: str
    CLAIM: str
    MINUTES: Mapping[Scale, float]

    def runs(self, scale: Scale, seed: int) -> dict[str, Run]:
        """The runs for one seed, by cell."""

    def render(self, records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
        """Tables and figures.

        Args:
            records: for each cell the traces that there are, by increasing seed; failed ones are among them.
            context: scale, seeds and published numbers.
        """


MUST_HOLD = ("TITLE", "CLAIM", "MINUTES", "runs", "render")


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Args:
        paper: where it is from.
        name: on the command line.
        module: what computes it.
    """

    paper: Paper
    name: str
    module: Module

    @property
    def title(self) -> str:
        """Paper and experiment as on the command line."""
        return f"{self.paper.name} {self.name}"


@dataclass(frozen=True)
class Study:
    """A paper with its experiments, by name.

    Args:
        paper: which.
        experiments: found in its package.
        published: its numbers.
    """

    paper: Paper
    experiments: Mapping[str, Experiment]
    published: PublishedPaper


def studies(package: str = PACKAGE) -> dict[str, Study]:
    """All papers of a package, by name.

    Args:
        package: import path of a package that has a package for each paper, and may have a `published.yaml`.

    Raises:
        InfeasibleError: there is no such package, or something in it is not what it must be.
    """
    inner = [module for module in _below(_imported(package)) if hasattr(module, "__path__")]
    numbers = published(package)
    found = [_study(module, numbers) for module in inner]
    return {study.paper.name: study for study in found}


def _study(module: ModuleType, numbers: Mapping[str, PublishedPaper]) -> Study:
    paper = getattr(module, "PAPER", None)
    if not isinstance(paper, Paper):
        raise InfeasibleError(
            f"{module.__name__} must say which paper it is about: PAPER = Paper(...) in its __init__.py."
        )
    inner = [m for m in _below(module) if hasattr(m, "TITLE") or hasattr(m, "render")]
    experiments = [_experiment(paper, m) for m in inner]
    by_name = {e.name: e for e in sorted(experiments, key=lambda e: _natural(e.name))}
    return Study(paper, by_name, numbers.get(paper.name) or PublishedPaper(paper.name, paper.citation, {}))


def _experiment(paper: Paper, module: ModuleType) -> Experiment:
    if missing := [name for name in MUST_HOLD if not hasattr(module, name)]:
        raise InfeasibleError(f"{module.__name__} is no experiment: it lacks {', '.join(missing)}.")
    if wrong := [scale for scale in SCALES if scale not in module.MINUTES]:
        raise InfeasibleError(f"{module.__name__}.MINUTES must tell of each scale, {', '.join(wrong)} missing.")
    return Experiment(paper, module.__name__.rpartition(".")[2].replace("_", "-"), cast(Module, module))


def _imported(package: str) -> ModuleType:
    if package == PACKAGE and importlib.util.find_spec(package) is None:
        sys.path.append(str(REPOSITORY))
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        remedy = "Give the import path of one that holds papers."
        if package == PACKAGE:
            remedy = "The papers' experiments are not installed with the library: clone its repository, and run there."
        raise InfeasibleError(f"There is no package {package}. {remedy}") from error
    if not hasattr(module, "__path__"):
        raise InfeasibleError(f"{package} is a module. Give the import path of a package that holds papers.")
    return module


def _below(package: ModuleType) -> list[ModuleType]:
    """The modules and packages right below a package."""
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts figure2 before figure10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


# What is meant by a name

Named = TypeVar("Named", Study, Experiment)


def chosen(found: Mapping[str, Study], paper: str, experiment: str) -> tuple[Study, list[Experiment]]:
    """The paper of that name, and its experiment of that name, or all of them.

    Raises:
        InfeasibleError: there is none of that name; the message lists those that there are, the most similar first.
    """
    study = named(found, paper, "paper")
    if experiment == ALL:
        return study, list(study.experiments.values())
    return study, [named(study.experiments, experiment, f"experiment of {paper}", (ALL,))]


def named(known: Mapping[str, Named], name: str, what: str, others: Iterable[str] = ()) -> Named:
    """The value of that name; InfeasibleError if there is none, with all names and `others`, the most similar first."""
    if name in known:
        return known[name]
    names = [*known, *others]
    names.sort(key=lambda k: -difflib.SequenceMatcher(None, name.lower().replace("_", "-"), k).ratio())
    raise InfeasibleError(f"There is no {what} {name!r}. There are: {', '.join(names) or 'none'}.")
