"""The table of compositions: each algorithm with each wrapper, preprocessing and participation, tried out.

    python tests/compositions.py        # writes docs/compositions.md

Each composition is made a `Run`, and carried out by the engine with clients that send random vectors around a common
one.  It is

* guaranteed: `phalanx.promises.promise` gives a number of attackers, whatever sizes are reported;
* without a guarantee: it works, and the promise says why it is none;
* refused, before the first step, with the reason; one that ends later counts as refused too.
"""

import dataclasses
import itertools
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

import phalanx
from exported import lacking
from phalanx import Run, algorithms
from phalanx.aggregators import Median
from phalanx.core import Algorithm, InfeasibleError, Setting, StalledError, Until
from phalanx.data import Dataset
from phalanx.models import MLP
from phalanx.promises import Promise, promise
from phalanx.rng import borrowed, generator
from phalanx.simulation import Availability, Deadline, Late, Lognormal, Period, Silent, Simulation
from phalanx.simulation.availability import FOREVER
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule
from phalanx.weighting import AsReported, Ignore, Preprocess, Truncate
from phalanx.wording import plural

N, F = 12, 2  # clients, and attackers that a setting is made for
STEPS = 4
PAGE = Path(__file__).parents[1] / "docs" / "compositions.md"
COMMAND = "python tests/compositions.py"

ALGORITHMS: dict[str, Algorithm] = {
    "FedAvg(Mean)": algorithms.FedAvg(),
    "FedAvg(Median)": algorithms.FedAvg(aggregate=Median()),
    "ClusteredFL(Median)": algorithms.ClusteredFL(aggregate=Median()),
    "ByzantineCFL(Median)": algorithms.ByzantineCFL(aggregate=Median(), threshold=0.3),
    "BenignClusters": algorithms.BenignClusters(f=F, threshold=0.3),
    "IFCA": algorithms.IFCA(2),
    "FLHC": algorithms.FLHC(),
    "StoCFL": algorithms.StoCFL(),
    "FLTrust": algorithms.FLTrust(),
    "AsyncFilter": algorithms.AsyncFilter(),
    "DeMoA": algorithms.DeMoA(),
    "FLAME": algorithms.FLAME(f=F),
    "RFFL": algorithms.RFFL(),
    "SCAFFOLD(Median)": algorithms.SCAFFOLD(aggregate=Median()),
    "FedDyn(Median)": algorithms.FedDyn(aggregate=Median()),
    "FedNova(Median)": algorithms.FedNova(aggregate=Median()),
    "LowRankProducts(Median)": algorithms.LowRankProducts((algorithms.Adapter(0, 200, 4, 50, 50),), Median()),
    "FedAdam(Median)": algorithms.FedAdam(algorithms.FedAvg(aggregate=Median(), preprocess=Ignore())),
    "WorkerMomentum(Median)": algorithms.WorkerMomentum(algorithms.FedAvg(aggregate=Median(), preprocess=Ignore())),
    "CentrallyPrivate": algorithms.CentrallyPrivate(algorithms.FedAvg(preprocess=Ignore()), 1.0, 0.1),
    "QFedAvg": algorithms.QFedAvg(),
    "FoolsGold": algorithms.FoolsGold(),
    "SignSGD": algorithms.SignSGD(),
    "ServerAlone": algorithms.ServerAlone(),
    "Standalone": algorithms.Standalone(),
    "Catalyst": algorithms.Catalyst(F, quorum=7),
    "Catalyst(Median)": algorithms.Catalyst(F, quorum=7, aggregate=Median()),
    "FedAsync": algorithms.FedAsync(),
    "FedBuff(Median)": algorithms.FedBuff(size=7, aggregate=Median()),
    "Kardam": algorithms.Kardam(f=F),
    "BASGD": algorithms.BASGD(buffers=5),
    "ZenoPlusPlus": algorithms.ZenoPlusPlus(),
    "AFLGuard": algorithms.AFLGuard(radius=1.0),
    "AsyncMomentum": algorithms.AsyncMomentum(weight_by="clients"),
    "AsyncRFFL": algorithms.AsyncRFFL(),
}


@dataclasses.dataclass(frozen=True)
class Leaves(Availability):
    """Client 0 leaves for good, in the middle of a task."""

    def periods(self, client, seed):
        yield Period(0.0, 2.5 if client == 0 else FOREVER)


WRAPPERS = {
    "": lambda algorithm: algorithm,
    "Quorum": lambda algorithm: algorithms.Quorum(algorithm, k=7),
    "Permuted": algorithms.Permuted,
    "Private": lambda algorithm: algorithms.Private(algorithm, clip=1.0, noise_multiplier=0.1, seed=0),
    "PerCluster": algorithms.PerCluster,
    "Rewarded": algorithms.Rewarded,
}
NOT_TRIED = {  # algorithms without a section of their own, by reason
    "a step on the same pseudo-gradient as FedAdam": {"FedAdagrad", "FedAvgM", "FedYogi"},
    "hides updates as Permuted, with fewer rules": {"Rotated"},
}
PREPROCESSING: dict[str, Preprocess | None] = {
    "as reported": AsReported(beyond_tolerance="remark"),
    "ignored": Ignore(),
    "truncated": Truncate(F / N, 0.4),
    "truncated once": Truncate.as_published(F / N, 0.4),
}
PARTICIPATION = {
    "all": {},
    "sampled": {"participation": 0.75},
    "deadline": {"latency": Lognormal(), "deadline": Deadline(2.0)},
    "silent": {"availability": Silent(1 / N), "deadline": Deadline(2.0)},
    "joins": {"late": Late(1, 2.0)},
    "leaves": {"availability": Leaves(), "deadline": Deadline(2.0)},
}
known = {getattr(algorithms, name) for name in {*WRAPPERS}.union(*NOT_TRIED.values()) if name}
known |= {type(algorithm) for algorithm in ALGORITHMS.values()}
ALGORITHMS |= {kind.__name__: made(N, F) for kind, made in lacking(Algorithm, known)}
NONE, ANY, ALONE, SHARED = "none", "any", "y all", "no update of one reaches another"
KINDS = ("guaranteed", "no guarantee", "refused")


class Outcome(NamedTuple):
    """The outcome of one composition."""

    kind: str  # one of KINDS
    words: str  # how many attackers are tolerated, why none are, or why it is refused


class Around(Trainer):
    """Each client sends a random vector around (1, 1, ...)."""

    def train(self, task, data):
        rng = generator(task.client, "around", task.turn)
        task.row.copy_(1 + 0.1 * torch.randn(len(task.row), generator=rng))
        return 1.0


def preprocessing(algorithm: Algorithm) -> dict[str, Preprocess | None]:
    """Return the ways in which an algorithm can use sizes, by name; one without a name if it has no such option."""
    options = {f.name for f in dataclasses.fields(algorithm)}
    return PREPROCESSING if "preprocess" in options else {"": None}


def compositions() -> Iterator[tuple[str, str, str, str]]:
    """Yield the names of all, preprocessing "" where an algorithm does not use sizes."""
    for name, algorithm in ALGORITHMS.items():
        sizes = preprocessing(algorithm)
        for wrapper in WRAPPERS:
            yield from ((name, wrapper, preprocess, part) for preprocess in sizes for part in PARTICIPATION)


def composed(name: str, wrapper: str, preprocess: str) -> Algorithm:
    """Return the algorithm of a composition; raise `ValueError` or `InfeasibleError` if it does not exist."""
    algorithm = ALGORITHMS[name]
    if preprocess:
        algorithm = dataclasses.replace(algorithm, preprocess=PREPROCESSING[preprocess])
    return WRAPPERS[wrapper](algorithm)


def outcome(name: str, wrapper: str, preprocess: str, participation: str) -> Outcome:
    """Return the outcome of a composition; anything but a refusal in words is raised."""
    try:
        algorithm = composed(name, wrapper, preprocess)
        plan = Run(
            algorithm=algorithm,
            clients=N,
            until=Until(STEPS if algorithm.traits.synchronous else STEPS * N),
            server_examples=20 if algorithm.traits.needs_reference else 0,
            **PARTICIPATION[participation],
        )
        carried_out(plan)
        found = promised(plan)
    except (ValueError, InfeasibleError) as refusal:
        return Outcome("refused", str(refusal))
    except StalledError as end:
        return Outcome("refused", f"Ends during the run: {end}")
    return outcome_of(found)


def outcome_of(found: Promise) -> Outcome:
    """Return the outcome of a composition that works."""
    if not found.f:
        return Outcome("no guarantee", found.missing[0])
    return Outcome("guaranteed", plural(found.f, "attacker") if found.bounds else SHARED)


def promised(plan: Run) -> Promise:
    """Return the promise of a run at its start, whatever sizes its clients report."""
    drawn = plan.asked if plan.participation < 1 else None
    lossy = plan.deadline is not None or plan.availability is not None
    enrolled = N - plan.late.count if plan.late else N
    return promise(plan.algorithm, Setting(enrolled, drawn=drawn, lossy=lossy, joins=plan.late is not None))


def carried_out(plan: Run) -> Promise:
    """Return the promise of a run that the engine has carried out to its end, by the sizes that its clients report."""
    with borrowed(0, "model"):
        model = FlatModule(MLP(()).build((100,), 10))
    data = Dataset(torch.zeros(2, 100), torch.zeros(2, dtype=torch.int64), 10)
    simulation = Simulation(
        plan.algorithm,
        Around(model, LocalSGD(), 0),
        dict.fromkeys(range(N), data),
        latency=plan.latency,
        joining=plan.late.times(N, 0) if plan.late else None,
        availability=plan.availability,
        deadline=plan.deadline,
    )
    seen = list[phalanx.engine.observer.Progress]()
    with warnings.catch_warnings(action="ignore"):
        phalanx.run(
            plan.algorithm,
            simulation,
            model.values.clone(),
            plan,
            sample=plan.sampler(plan.attackers()),
            reference=lambda values, version: torch.ones_like(values),
            observers=[seen.append],
        )
    assert seen[-1].step == plan.until.steps
    assert seen[0].promise is not None
    return seen[0].promise


def short(words: str) -> str:
    """Return the first sentence, which no table's bar cuts, without names by which only the same reasons differ."""
    first = words.split(". ", maxsplit=1)[0].split("\n", maxsplit=1)[0].rstrip(".").replace("|", "\\|") + "."
    first = re.sub(
        r"^[A-Z]\w*(\([A-Z]\w*\))? (?=is asynchronous|has no proof|lets |cannot take in|needs |compares )", "It ", first
    )
    first = re.sub(r"(?<=, and )\w+ (?=is so already|has the server)", "this one ", first)
    return re.sub(r"LowRankProducts\(.*\) has", "LowRankProducts has", first)


def page(found: Mapping[tuple[str, str, str, str], Outcome]) -> str:
    """Return the page of the outcomes of all compositions."""
    count = Counter(o.kind for o in found.values())
    late = sum(o.words.startswith("Ends during") for o in found.values())
    all_but = f"all but {late} of them" if late else "all of them"
    lines = [
        "# Compositions",
        "",
        f"{len(found):,} compositions of algorithm, wrapper, preprocessing of sizes and participation, each tried out",
        f"with {N} clients (`python tests/compositions.py`): {count['guaranteed']:,} have a guarantee,",
        f"{count['no guarantee']:,} work without one, and {count['refused']:,} are refused, {all_but} before the",
        "first step.",
        "",
        "- **y5**: guaranteed. Any five clients, whatever they send and report, hold no more of the weight of anything",
        "  that is aggregated than the rule tolerates. Sets in which they could are not aggregated.",
        f"  **{ALONE}**: no update of a client reaches another.",
        "- **-1**: works, and promises nothing, for this [reason](#reasons).",
        "- **x2**: refused, for this reason. *It* and *this one* are the algorithm of the row.",
        "",
        "All is for any sizes that clients report. A run weighs them when it begins: with equal ones it may promise",
        "more, and with unequal ones it may name another reason, or be refused.",
        "",
        "Wrappers, or uses of sizes, with the same cells share a row, and algorithms with the same table a section.",
    ]
    reasons = dict[str, int]()
    tables = dict[tuple[str, ...], list[str]]()
    for name in ALGORITHMS:
        tables.setdefault(tuple(table(name, found, reasons)), []).append(name)
    for rows, names in tables.items():
        lines += [
            "",
            f"## {', '.join(names)}",
            "",
            f"| wrapper | sizes | {' | '.join(PARTICIPATION)} |",
            "| --- | --- |" + " --- |" * len(PARTICIPATION),
            *rows,
        ]
    lines += ["", "## Reasons", ""]
    lines += [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join(lines) + "\n"


def table(name: str, found: Mapping[tuple[str, str, str, str], Outcome], reasons: dict[str, int]) -> Iterator[str]:
    """Yield the rows of an algorithm; numbers new reasons."""
    sizes = [*preprocessing(ALGORITHMS[name])]
    blocks = dict[tuple[tuple[str, ...], ...], list[str]]()  # wrappers, by their cells for each use of sizes
    for wrapper in WRAPPERS:
        cells = tuple(
            tuple(cell(found[name, wrapper, size, part], reasons) for part in PARTICIPATION) for size in sizes
        )
        blocks.setdefault(cells, []).append(wrapper or NONE)
    for block, wrappers in blocks.items():
        alike = dict[tuple[str, ...], list[str]]()
        for size, cells in zip(sizes, block, strict=True):
            alike.setdefault(cells, []).append(size or NONE)
        for cells, which in alike.items():
            words = ANY if len(which) == len(sizes) > 1 else ", ".join(which)
            yield f"| {', '.join(wrappers)} | {words} | {' | '.join(cells)} |"


def cell(found: Outcome, reasons: dict[str, int]) -> str:
    """Return a cell of the table; numbers new reasons."""
    if found.kind == "guaranteed":
        return f"y{found.words.split()[0]}" if found.words != SHARED else ALONE
    number = reasons.setdefault(short(found.words), len(reasons) + 1)
    return f"{'-' if found.kind == 'no guarantee' else 'x'}{number}"


def cells() -> Iterator[tuple[tuple[str, str, str, str], tuple[str, str]]]:
    """Yield the cells of the page: what they name, with the cell and its reason, if it has one."""
    text = PAGE.read_text(encoding="utf-8")
    reasons, names = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)), list[str]()
    for line in text.splitlines():
        names = line[3:].split(", ") if line.startswith("## ") else names
        row = [part.strip() for part in line.strip("|").split("|")]
        if names and names[0] in ALGORITHMS and len(row) == 2 + len(PARTICIPATION) and row[0] not in ("wrapper", "---"):
            sizes = list(PREPROCESSING) if row[1] == ANY else ["" if s == NONE else s for s in row[1].split(", ")]
            for name, wrapper, size in itertools.product(names, row[0].split(", "), sizes):
                for part, shown in zip(PARTICIPATION, row[2:], strict=True):
                    where = name, "" if wrapper == NONE else wrapper, size, part
                    yield where, (shown, reasons.get(shown[1:], ""))


if __name__ == "__main__":
    PAGE.write_text(page({names: outcome(*names) for names in compositions()}), encoding="utf-8")
    sys.stdout.write(f"{PAGE} is written.\n")
