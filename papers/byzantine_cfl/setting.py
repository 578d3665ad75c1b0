"""Common parts of the experiments: four scenarios, two methods, and the federations of the two tables.

Where the paper is silent, or contradicts itself:

* The tables tell no number of clients.  Table 1 is taken for 100 clients, as Figure 2, Table 2 for 10.
* The paper does not give the number of local epochs: one.
* Pixels are standardised.  With pixels in [0, 1], too, all adversaries of the noisy scenario are separated at once, but
  later: in the paper's full setting on MNIST in round 34 (one run that is not among the records).
* Whether the noise of the noisy scenario is drawn again in each round: once for each client.
* Adversaries of the noisy scenario keep their labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from papers.clustered_fl.setting import Drawn
from phalanx.algorithms import ByzantineCFL, FedAvg
from phalanx.attacks import AllLabelsTo, Attack, Gaussian, NoiseInputs
from phalanx.core import Algorithm, Until
from phalanx.data import CIFAR10, MNIST, FashionMNIST, Source
from phalanx.experiments.papers.claims import Claim, finals, lead
from phalanx.experiments.papers.comparison import Cell, Table, compared
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.shown.plotting import curves
from phalanx.experiments.trace import Trace
from phalanx.models import Model, SattlerCNN, SattlerVGG
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD
from phalanx.weighting import Ignore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCENARIOS: Mapping[str, Attack | None] = {
    "byzantine": Gaussian(std=1.0),
    "noisy": NoiseInputs(),
    "label flip": AllLabelsTo(0),
    "clean": None,
}
STABLE = "CFL, until stable"
METHODS: Mapping[str, Algorithm] = {
    "FL": FedAvg(preprocess=Ignore()),
    "CFL": ByzantineCFL.as_published(),
    STABLE: replace(ByzantineCFL.as_published(), until_stable=True),
}
ADVERSARIES = 0.3  # of all clients
THRESHOLD = 0.02


@dataclass(frozen=True)
class Problem:
    """A data set with its model and training.

    Args:
        source: the data.
        model: the paper's network.
        momentum: of the paper's SGD.
    """

    source: Source
    model: Model
    momentum: float = 0.0


TASKS: Mapping[str, Problem] = {
    "MNIST": Problem(MNIST(standardize=True), SattlerCNN()),
    "Fashion-MNIST": Problem(FashionMNIST(standardize=True), SattlerCNN()),
    "CIFAR-10": Problem(CIFAR10(standardize=True), SattlerVGG(), momentum=0.9),
}
SHOWN: Mapping[Scale, Sequence[str]] = {"quick": ("MNIST",), "paper": tuple(TASKS)}
EACH: Mapping[int, int] = {100: 60, 10: 200}  # examples of a client at quick scale, by the number of clients
SMALLER = (
    "At quick scale clients hold {each} examples instead of {full:,}, batches are of 10 instead of 100, the learning "
    "rate is 0.02 instead of 0.01, and there are 40 rounds instead of 200, tested on 2,000 images. So accuracies lie "
    "below the published ones, and are to be compared with each other."
)


def base(data: str, clients: int, scale: Scale, seed: int) -> Run:
    """Return the federation without adversaries."""
    task = TASKS[data]
    if scale == "quick":
        return Run(
            data=Drawn(task.source, clients * EACH[clients], 2000, seed=seed),
            clients=clients,
            model=task.model,
            training=LocalSGD(batch_size=10, lr=0.02, momentum=task.momentum),
            until=Until(steps=40),
            evaluation=Evaluation(every=5),
            seed=seed,
        )
    return Run(
        data=task.source,
        clients=clients,
        model=task.model,
        training=LocalSGD(batch_size=100, lr=0.01, momentum=task.momentum),
        until=Until(steps=200),
        evaluation=Evaluation(every=10),
        seed=seed,
    )


def name(data: str, method: str, scenario: str) -> str:
    """Return the name of a cell."""
    return f"{data} / {method} / {scenario}"


def cells(clients: int, scale: Scale, seed: int, methods: Sequence[str] = ("FL", "CFL")) -> dict[str, Run]:
    """Return a run for each data set, method and scenario; only the Byzantine one splits until stable."""
    out = {}
    for data in SHOWN[scale]:
        plain = base(data, clients, scale, seed)
        for method in methods:
            for scenario, attack in SCENARIOS.items():
                if method == STABLE and scenario != "byzantine":
                    continue
                run = replace(plain, algorithm=METHODS[method])
                out[name(data, method, scenario)] = (
                    replace(run, attack=attack, byzantine=ADVERSARIES) if attack else run
                )
    return out


def accuracies(entry: str, clients: int, records: Mapping[str, Sequence[Trace]], context: Context, title: str) -> Table:
    """Return accuracies with the published ones: a row for each data set and method, a column for each scenario."""
    rows = list[list[Cell]]()
    for data in SHOWN[context.scale]:
        for method in METHODS:
            row: list[Cell] = [data, method]
            for scenario in SCENARIOS:
                known = method != STABLE
                published = context.published.of(entry, data, method, scenario) if known else None
                traces = records.get(name(data, method, scenario), ())
                row.append(compared(traces, published) if known or scenario == "byzantine" else "")
            rows.append(row)
    notes = (
        "The mean of the honest clients' models on all test examples, after the last round.",
        f'"{STABLE}" is ours: it splits in each round until nobody leaves, where Algorithm 1 splits once.',
        "A run fails where noise throws the model so far off that no client trains it to finite numbers any more. The "
        "published 9.8 % on MNIST is the share of zeros among the tests: what a model of no numbers gets.",
    )
    columns = ["data", "method", *(f"{scenario}, %" for scenario in SCENARIOS)]
    return Table(title, columns, rows, notes)


# Separations


def separated(trace: Trace) -> tuple[int, int]:
    """Return the number of excluded adversaries and that of excluded honest clients."""
    excluded = {r.client for r in trace.excluded}
    bad = len(excluded & set(trace.byzantine))
    return bad, len(excluded) - bad


def correct(trace: Trace) -> bool:
    """Return whether all adversaries were excluded and no other client."""
    return not trace.failed and separated(trace) == (len(trace.byzantine), 0)


def removals(clients: int, records: Mapping[str, Sequence[Trace]], context: Context) -> Table:
    """Return the exclusions and their rounds in words; a verdict for each scenario."""
    rows = []
    for data in SHOWN[context.scale]:
        for method in ("CFL", STABLE):
            for scenario in SCENARIOS:
                traces = [t for t in records.get(name(data, method, scenario), ()) if not t.failed]
                if traces:
                    rows.append([data, method, scenario, *_cells(traces)])
    columns = ("data", "method", "scenario", "adversaries excluded", "honest excluded", "in rounds", "as claimed")
    of = round(ADVERSARIES * clients)
    notes = (
        f"For each seed. Adversaries: {of} of {clients}, none in the clean scenario. As claimed: all adversaries and "
        "no honest client are excluded.",
    )
    return Table("Excluded clients", columns, rows, notes)


def _cells(traces: Sequence[Trace]) -> list[str]:
    found = [separated(trace) for trace in traces]
    steps = [sorted({r.step for r in trace.excluded}) for trace in traces]
    when = ["-" if not s else f"{s[0]}" if len(s) == 1 else f"{s[0]} to {s[-1]}" for s in steps]
    good = sum(map(correct, traces))
    cells = [", ".join(str(bad) for bad, _ in found), ", ".join(str(honest) for _, honest in found), ", ".join(when)]
    return [*cells, "yes" if good == len(traces) else f"in {good} of {len(traces)} seeds"]


# Claims of the tables

CLEAN_COST = 1.0  # points by which CFL may be below federated learning without adversaries


def claims(entry: str, records: Mapping[str, Sequence[Trace]], context: Context) -> list[Claim]:
    """Return the claims that CFL is ahead of federated learning, and that it excludes adversaries and no other."""
    out = []
    for data in SHOWN[context.scale]:
        for scenario in SCENARIOS:
            ahead = lead(*(finals(records.get(name(data, method, scenario), ())) for method in ("CFL", "FL")))
            least = -CLEAN_COST if scenario == "clean" else 0.0
            fl, cfl = (context.published.of(entry, data, method, scenario).value for method in ("FL", "CFL"))
            known = f"{cfl - fl:+.1f}" if context.own_size and fl is not None and cfl is not None else ""
            published = f"above {least:g}" + (f"; published {known}" if known else "")
            out.append(Claim(f"{data}, {scenario}: CFL minus FL", ahead, least, published=published))
        for scenario in SCENARIOS:
            seen = [correct(t) for t in records.get(name(data, "CFL", scenario), ())]
            out.append(Claim(f"{data}, {scenario}: CFL excludes all adversaries, and no other", seen, None))
    return out


def curves_of(records: Mapping[str, Sequence[Trace]], context: Context) -> "Figure":
    """Return a panel for each data set and scenario, a curve for each method."""
    panels = {
        (data if len(SHOWN[context.scale]) > 1 else "", scenario): {
            method: records.get(name(data, method, scenario), ())
            for method in METHODS
            if method != STABLE or scenario == "byzantine"
        }
        for data in SHOWN[context.scale]
        for scenario in SCENARIOS
    }
    return curves(panels)
