"""One run over its steps: accuracy, the worst client, the attacker's success, and the exclusions."""

from collections.abc import Mapping, Sequence

from phalanx.report.client_ledger import ClientLedger, Exclusions
from phalanx.report.figures.drawing import (
    COLOUR,
    FULL,
    HALF,
    Picture,
    canvas,
    end_label,
    line,
    percents,
    spread,
    styled,
    svg,
)
from phalanx.report.figures.series import Series, series

FIELDS = {"accuracy": "accuracy", "worst client": "worst_client_accuracy", "attack success": "attack_success"}
LOOKS = (("s0", "o", False), ("s4", "^", True), ("s1", "s", True))


def picture(ledger: ClientLedger, key: str, *, full: bool) -> Picture | None:
    """Return the picture; None if nothing was measured."""
    lines = {name: series(ledger.record, field) for name, field in FIELDS.items()}
    lines = {name: s for name, s in lines.items() if s.finite}
    loss = series(ledger.record, "loss")
    if not lines and not loss.finite:
        return None
    shown, text = (
        "Accuracy",
        "Accuracy of the honest clients' models on the whole test set; accuracy of the worst client",
    )
    if not lines:
        lines, shown, text = {"loss": loss}, "Loss", "Mean loss of the honest clients' models on the test set"
    exclusions = ledger.exclusions
    goal = "; share of attempts in which the attack reaches its goal" if "attack success" in lines else ""
    return Picture(
        _draw(
            lines,
            exclusions,
            key=key,
            label=f"{shown} of {ledger.record.name} over steps. Exclusions: {in_words(exclusions)}.",
            width=FULL if full else HALF,
        ),
        "Progress",
        text + goal + (". Dotted verticals: steps in which clients were excluded." if exclusions else "."),
        full=full,
    )


def in_words(exclusions: Sequence[Exclusions]) -> str:
    """Return the exclusions in words, for screen readers."""
    return ", ".join(f"step {r.step}: {r.byzantine} Byzantine and {r.others} other" for r in exclusions) or "none"


def _draw(lines: Mapping[str, Series], exclusions: Sequence[Exclusions], *, key: str, label: str, width: int) -> str:
    """Draw the curves, each with its name at its end, and a dotted vertical for each step with exclusions."""
    with styled(key):
        figure, axes = canvas(width, 280, right=118)
        for exclusion in exclusions:
            axes.axvline(exclusion.step, color=COLOUR["muted"], linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        ends: list[tuple[float, str, str]] = []
        for (name, s), (colour, marker, dashed) in zip(lines.items(), LOOKS, strict=False):
            line(axes, s.x, s.y, colour, marker, dashed=dashed)
            ends.append((s.finite[-1], name, colour))
        if "loss" not in lines:
            percents(axes, 0.0)
        axes.set_xlabel("step")
        ends.sort()
        places = [ends[0][0]] if "loss" in lines else spread([end[0] for end in ends], 0.075)
        for y, (_, name, colour) in zip(places, ends, strict=True):
            end_label(axes, y, name, colour, weight="bold")
        return svg(figure, key, label)
