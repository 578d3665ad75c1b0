"""Figure 2: asynchronous and synchronous learning on MNIST, over time."""

from collections.abc import Sequence
from dataclasses import replace

from papers.catalyst import grid, setting
from phalanx.algorithms import FedAvg
from phalanx.experiments.papers.claims import Claim, lead
from phalanx.experiments.papers.comparison import Cell, Sample, Table, compared
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import ACCURACY, SECONDS, curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "MNIST, 40 clients, no attack: accuracy over virtual seconds, synchronous and asynchronous"
CLAIM = "Asynchronous learning needs less time to converge than synchronous learning."
MINUTES = {"quick": 0.3, "paper": 5.0}
SYNCHRONOUS = "FedAvg, synchronous"
SHOWN = {  # label -> cell
    SYNCHRONOUS: SYNCHRONOUS,
    "FedAsync": setting.name(setting.NONE, "FedAsync", "ours"),
    "FedAsync, authors' form": setting.name(setting.NONE, "FedAsync", "authors"),
    "Catalyst, f = 0": setting.name(setting.NONE, "Catalyst", "ours"),
}
LEVELS = (0.5, 0.8, 0.9)  # of accuracy


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: FedAvg, and three runs of Table 1."""
    task = setting.mnist(scale, seed)
    shared = setting.cells(task, seed, (setting.NONE,), ("FedAsync", "Catalyst"))
    plain = setting.attacked(task, setting.NONE, seed)
    rounds = replace(plain, algorithm=FedAvg(), evaluation=replace(plain.evaluation, every=1))
    return {SYNCHRONOUS: rounds} | {cell: shared[cell] for cell in SHOWN.values() if cell in shared}


def render(records: grid.Records, context: Context) -> Rendering:
    """Return the times to 50, 80 and 90 %, and the curves."""
    rows = [[label, *_times(records.get(cell, ())), compared(records.get(cell, ()))] for label, cell in SHOWN.items()]
    columns = ("algorithm", *(f"s to {level:.0%}" for level in LEVELS), "accuracy, %")
    notes = (
        "Virtual seconds until the first evaluation at or above a level, mean and 95 % interval over the seeds that "
        "got there; with n in brackets if not all did.",
        "A synchronous round lasts as long as its slowest client, some 140 s; the faster ones idle.",
        *((setting.SMALL,) if context.scale == "quick" else ()),
    )
    panel = {label: records.get(cell, ()) for label, cell in SHOWN.items()}
    figure = curves({("", ""): panel}, over="seconds", x=SECONDS, y=ACCURACY)
    table = Table("Time to accuracy, MNIST, 750 s", columns, rows, notes)
    plot = Plot(figure, caption="Accuracy on the test images over virtual seconds.")
    return Rendering((table,), (plot,), claims=[_claim(records, label) for label in list(SHOWN)[1:]])


def _claim(records: grid.Records, label: str) -> Claim:
    """Return the claim that an asynchronous algorithm gets to 80 % sooner, of seeds in which both get there."""
    times = [
        [(t.seed, time) for t in records.get(SHOWN[name], ()) if (time := reached(t, LEVELS[1])) is not None]
        for name in (SYNCHRONOUS, label)
    ]
    return Claim(
        f"MNIST, time to {LEVELS[1]:.0%}: synchronous FedAvg minus {label}", lead(*times), 0.0, "s", decimals=0
    )


def _times(traces: Sequence[Trace]) -> list[Cell]:
    """Return for each level the time at which it was reached, in words."""
    out: list[Cell] = []
    for level in LEVELS:
        found = [time for trace in traces if (time := reached(trace, level)) is not None]
        some = f" ({len(found)} of {len(traces)})" if found and len(found) < len(traces) else ""
        out.append(Sample.of(found).text(0) + some if found else "-")
    return out


def reached(trace: Trace, level: float) -> float | None:
    """Return the virtual second of the first evaluation with this accuracy or more; None if there is none."""
    pairs = zip(trace.curves.get("seconds", ()), trace.curves.get("accuracy", ()), strict=True)
    return next((time for time, value in pairs if value is not None and time is not None and value >= level), None)
