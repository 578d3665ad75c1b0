"""The rendering of Table 1: a block for each data set, of attacks, methods and forms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from papers.catalyst.setting import ATTACKS, COST, FORMS, METHODS, NONE, name
from phalanx.experiments.papers.claims import Claim, finals, lead
from phalanx.experiments.papers.comparison import Cell, ComparedCell, Sample, Table, compared
from phalanx.experiments.papers.experiment import Context
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import ACCURACY, SECONDS, Axis, Panels, curves
from phalanx.experiments.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Records = Mapping[str, Sequence[Trace]]
BASGD_ALONE = (
    'BASGD, "no attack": with f = 0 there is one buffer. In the authors\' program each fresh model then replaces the '
    "server's, which is the published number; ours is asynchronous SGD with a server's learning rate of 0.1."
)
NOTES = (
    '"authors": as their published program has it, by named flags; "ours": the paper, repaired. "Published" is the '
    'same number for both. "best" is each run\'s best evaluation: a starred number of the paper is the best of runs '
    "that broke off.",
    '"No attack" is no upper bound: f is 0 there as in the paper, so that BASGD has one buffer and Catalyst steps on '
    "two answers, where under attack they have 21 each (f = 10). The last rows have f = 10, and nobody attacks.",
    BASGD_ALONE,
    "Kardam: the program's clients compute their Lipschitz coefficients themselves, attackers before they poison, so "
    "that its filter never sees the attack. Here the server computes them in both forms.",
    "FedAsync: the program mixes with weight lr / (age + 1), about 0.001 for 40 clients; Xie's FedAsync, which is "
    "ours, with 0.6 / sqrt(age + 1).",
)


@dataclass(frozen=True)
class Shown:
    """The contents of a block.

    Args:
        data: its column of the published table.
        figure: the measured curve.
        heading: of the column, with its unit.
    """

    data: str
    figure: str = "accuracy"
    heading: str = "accuracy, %"

    @property
    def perplexity(self) -> bool:
        """Whether the figure is the perplexity of a language model."""
        return self.figure == "loss"


def block(shown: Shown, records: Records, context: Context, title: str, notes: Sequence[str] = ()) -> Table:
    """Return a row for each attack, method and form; those of `COST` last, if there are any."""
    rows = [_row(shown, records, context, (a, method, form)) for a in ATTACKS for method in METHODS for form in FORMS]
    if any(cell.startswith(COST) for cell in records):
        rows += [_row(shown, records, context, (COST, method, "ours")) for method in METHODS[1:]]
    columns = ("attack", "method", "form", shown.heading)
    return Table(title, columns, rows, (*notes, *NOTES))


def _row(shown: Shown, records: Records, context: Context, labels: tuple[str, str, str]) -> list[Cell]:
    """Return the row of an attack, a method and a form."""
    attack, method, form = labels
    published = None if attack == COST else context.published.of("table1", attack, method, shown.data)
    traces = records.get(name(attack, method, form), ())
    cell = compared(traces, published, figure=shown.figure, lowest=shown.perplexity)
    return [attack, method, form, perplexities(cell, traces) if shown.perplexity else cell]


AHEAD = {  # under attack, of BASGD, as the paper says
    "MNIST": 5.0,
    "CIFAR-10": 7.0,
}
LEVEL = 3.0  # points within which two methods are level


def claims(shown: Shown, records: Records) -> list[Claim]:
    """Return the claims on Catalyst against its rivals, all in the authors' form, of which the published numbers are.

    There is none on perplexities, since the paper claims no least amount of them.
    """
    if shown.perplexity:
        return []
    out, least = [], AHEAD[shown.data]
    for attack in ATTACKS:
        for rival in METHODS[1:3]:
            values = lead(*(finals(records.get(name(attack, method, "authors"), ())) for method in ("Catalyst", rival)))
            known = attack != NONE and rival == "BASGD"
            if known or (attack == NONE and rival == "Kardam"):
                text = f"{shown.data}, {attack}: Catalyst minus {rival}, authors' form"
                level = f"level, within {LEVEL:g}"
                out.append(Claim(text, values, least if known else -LEVEL, published="" if known else level))
    return out


def perplexities(cell: ComparedCell, traces: Sequence[Trace]) -> ComparedCell:
    """Return the same cell, with the exponential of losses in nats per label; diverged runs count as failed."""
    done = [trace for trace in traces if not trace.failed]
    final, best = ([_perplexity(loss) for loss in losses if loss is not None] for losses in (
        [trace.final("loss") for trace in done], [trace.best("loss", lowest=True) for trace in done]
    ))  # fmt: skip
    finite = [value for value in final if math.isfinite(value)]
    return ComparedCell(
        Sample.of(finite),
        Sample.of(value for value in best if math.isfinite(value)),
        cell.published,
        cell.remark,
        len(traces) - len(finite),
        decimals=0,
    )


def _perplexity(loss: float) -> float:
    """Return exp(loss), infinite beyond a million: the run has diverged, and the value has no meaning."""
    return math.exp(loss) if loss < math.log(1e6) else math.inf


def drawn(records: Records, attacks: Sequence[str], y: Axis = ACCURACY, figure: str = "accuracy") -> "Figure":
    """Draw a row of panels for each form, a column for each attack, a curve for each method, over virtual seconds."""
    panels: Panels = {
        (f"{form}' form" if form == "authors" else "our form", attack): {
            method: records.get(name(attack, method, form), ()) for method in METHODS
        }
        for form in FORMS
        for attack in attacks
    }
    return curves(panels, figure=figure, over="seconds", x=SECONDS, y=y)


LOSS = Axis("test loss, nats per word", 2.0, 8.0)
SHOWN_ATTACKS = (NONE, "gradient inversion")  # of Figures 4 to 6

PARTS = (0.25, 0.5, 1.0)  # of a run's time, at which Figures 4 to 6 are read


def over_time(shown: Shown, records: Records, context: Context, seconds: float, notes: Sequence[str] = ()) -> Rendering:
    """Return the contents of Figures 4 to 6: curves, and a table of their values at some times."""
    times = [part * seconds for part in PARTS]
    rows = [
        [attack, method, form, *(_at(shown, records.get(name(attack, method, form), ()), time) for time in times)]
        for attack in SHOWN_ATTACKS
        for method in METHODS
        for form in FORMS
    ]
    what = "perplexity" if shown.perplexity else "accuracy, %"
    columns = ("attack", "method", "form", *(f"{what} at {time:,.0f} s" for time in times))
    note = (
        "Mean and 95 % interval over seeds, of the last evaluation until then; runs that had broken off are left out."
    )
    table = Table(f"{shown.data} over time", columns, rows, (note, *notes))
    figure = drawn(records, SHOWN_ATTACKS, LOSS if shown.perplexity else ACCURACY, shown.figure)
    caption = f"{'Loss' if shown.perplexity else 'Accuracy'} over virtual seconds; above the authors' form, below ours."
    return Rendering((table,), (Plot(figure, caption=caption),))


def _at(shown: Shown, traces: Sequence[Trace], time: float) -> str:
    """Return mean and 95 % interval over the seeds at a time, in words."""
    found = [value for trace in traces if not trace.failed and (value := at(trace, shown.figure, time)) is not None]
    if shown.perplexity:
        return Sample.of(value for loss in found if math.isfinite(value := _perplexity(loss))).text(0)
    return Sample.of(100 * value for value in found).text()


def at(trace: Trace, figure: str, time: float) -> float | None:
    """Return the last finite value of a curve until a virtual second; None if there is none."""
    pairs = zip(trace.curves.get("seconds", ()), trace.curves.get(figure, ()), strict=False)
    known = [value for when, value in pairs if value is not None and when is not None and when <= time]
    return known[-1] if known else None
