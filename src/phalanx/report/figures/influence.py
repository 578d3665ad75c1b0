"""The distance that attackers could have moved each aggregate, against its length."""

from math import isfinite
from typing import TYPE_CHECKING

from phalanx.report.client_ledger import ClientLedger
from phalanx.report.figures.drawing import HALF, Picture, canvas, line, styled, svg
from phalanx.report.figures.series import Series, number
from phalanx.wording import plural

if TYPE_CHECKING:
    from phalanx.aggregators.influence import Influence
    from phalanx.runs.record import Record


def picture(ledger: ClientLedger, key: str) -> Picture | None:
    """Return the picture; None if the run did not measure the influence of attackers."""
    value, length = curves(ledger.record)
    if not length.x:
        return None
    attackers, known = int(ledger.record.config.get("influence") or 0), len(value.finite)
    end = f" At the last of them {value.finite[-1]:.3g}, of a length of {length.finite[-1]:.3g}." if known else ""
    share = f"Known in {known:,} of {plural(len(length.x), 'step')}."
    return Picture(
        _draw(value, length, key=key, label=f"Influence of {plural(attackers, 'attacker')}. {share}{end}"),
        f"What {plural(attackers, 'attacker')} could have done",
        f"Solid: how far the aggregate could have moved at most if any {attackers:,} of the received updates had been"
        f" replaced by anything. Dashed: its length. {share} Elsewhere it is unbounded, or the rule has no bound.",
    )


def curves(record: "Record") -> tuple[Series, Series]:
    """Return, over the steps with an aggregate, the largest influence on one, and the length of that one."""
    steps = [(float(step.step), _largest(step.influences)) for step in record.history if step.influences]
    x = [at for at, _ in steps]
    return Series(x, [number(worst.value) for _, worst in steps]), Series(
        x, [number(worst.length) for _, worst in steps]
    )


def _largest(influences: "tuple[Influence, ...]") -> "Influence":
    """Return the largest influence; one without a number, which may be infinite, before all others."""
    return max(influences, key=lambda one: (one.value is None or not isfinite(one.value), one.value or 0.0))


def _draw(value: Series, length: Series, *, key: str, label: str) -> str:
    top = 1.06 * max([*value.finite, *length.finite, 0.0]) or 1.0
    with styled(key):
        figure, axes = canvas(HALF, 300)
        line(axes, value.x, value.y, "byzantine", "o", dashed=False)
        line(axes, length.x, length.y, "muted", "", dashed=True)
        axes.set_xlim(0, max(length.x))
        axes.set_ylim(0, top)
        axes.set_xlabel("step")
        axes.set_ylabel("norm")
        return svg(figure, key, label)
