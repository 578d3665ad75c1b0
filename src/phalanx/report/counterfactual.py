"""A comparison of the weights of a run with other weightings, in a table and in sentences, without any training."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from phalanx.aggregators import Mean
from phalanx.core import InfeasibleError
from phalanx.report.page_tables import Cell
from phalanx.report.weightings import NAMES, REPORTED, TRUNCATED, UNIFORM, Weightings, sizeless
from phalanx.report.words import NONE, ids, portion
from phalanx.runs.canonical import import_path
from phalanx.weighting import concentration, mwp, weight_shift
from phalanx.weighting.truncation import top
from phalanx.wording import plural

FEW = 5  # clients that a sentence lists one by one


class WeightingRow(NamedTuple):
    """A weighting in the table.

    Args:
        name: one of NAMES.
        used: whether it is the one in use.
        cells: one for each of `columns`.
    """

    name: str
    used: bool
    cells: tuple[Cell, ...]


def columns(w: Weightings) -> tuple[str, ...]:
    """Return the headings of the cells."""
    K, tenth = len(w.sizes), top(0.1, len(w.sizes))
    byzantine = (f"Byzantine clients ({len(w.byzantine):,} of {K:,})",) if w.byzantine else ()
    held = (*byzantine, "Largest client", f"Heaviest 10 % ({tenth:,} of {K:,})")
    return "U*", *held, f"Effective of {w.count}", f"Changes hands against {_base(w)}"


def rows(w: Weightings) -> tuple[WeightingRow, ...]:
    """Return the rows of the table, one for each weighting."""
    return tuple(WeightingRow(name, name == w.used, _cells(w, name)) for name in NAMES)


def _cells(w: Weightings, name: str) -> tuple[Cell, ...]:
    if name not in w.shares:
        return Cell("infeasible"), *[Cell(NONE)] * (len(columns(w)) - 1)
    share, U = w.shares[name], w.bound
    bound = Cell(f"{U:,}", U) if name == TRUNCATED and not isinstance(U, InfeasibleError) else Cell(NONE)
    largest, tenth, effective = concentration(share)
    byzantine = [sum(share[c] for c in w.byzantine)] if w.byzantine else []
    held = [Cell(portion(x), x) for x in (*byzantine, largest, tenth)]
    moved = weight_shift(w.shares[_base(w)], share)
    return bound, *held, Cell(f"{effective:,.1f}", effective), Cell(portion(moved), moved)


def _base(w: Weightings) -> str:
    """Return the weighting with which others are compared: the one in use if it is among them."""
    return w.used if w.used in w.shares else REPORTED


def sentences(w: Weightings) -> tuple[str, ...]:
    """Return sentences on the weights of the run, and on the actual or possible effect of truncation."""
    return _usage(w), *_rule(w), _truncation(w), *_beyond_bound(w)


def _usage(w: Weightings) -> str:
    what, algorithm = w.preprocess, w.algorithm.name or "its algorithm"
    if sizeless(w.algorithm):
        return f"{algorithm} has no preprocess, and does not weigh by sizes: what clients reported was not used."
    if not what.path:
        return f"The configuration of {algorithm} has no preprocess: as far as it says, reported sizes were not used."
    words = {
        REPORTED: "weighed clients by the sizes that they reported",
        TRUNCATED: "truncated reported sizes",
        UNIFORM: "gave all clients the same weight, whatever they reported",
    }
    cohort = ", in each step for the clients that took part in it. What follows is for all clients together"
    does = words.get(w.used, "weighed clients in none of the three ways below")
    by = f"{what.name}()" if w.used == REPORTED else what
    return f"This run {does}: {by}{cohort if w.used == TRUNCATED and w.per_cohort else ''}."


def _rule(w: Weightings) -> Iterator[str]:
    """Yield a sentence for rules other than the weighted mean."""
    rule = w.algorithm.part("aggregate")
    if w.preprocess.path and rule.path not in {"", import_path(Mean)}:
        yield f"These weights went to the rule {rule}, which decides how much each update weighs."


def _truncation(w: Weightings) -> str:
    did, U = w.used == TRUNCATED and not w.per_cohort, w.bound
    if isinstance(U, InfeasibleError):
        return f"Truncation is infeasible here: {U}"
    largest = max(w.sizes.values())
    if largest <= U:
        return f"Nothing {'was' if did else 'would be'} truncated: {_harmless(w)}."
    who = [c for c, size in w.sizes.items() if size == largest]
    before, after = (portion(sum(w.shares[name][c] for c in who)) for name in (REPORTED, TRUNCATED))
    each, all_of, they = (" each", "together ", "they") if len(who) > 1 else ("", "", "it")
    return (
        f"{_named(who, w)} reported {largest:,} examples{each}, {all_of}{before} of all; truncated at {U:,} {they}"
        f" {'held' if did else 'would hold'} {after}."
        f" Of {w.count}, {sum(size > U for size in w.sizes.values()):,} reported more than that bound."
    )


def _harmless(w: Weightings) -> str:
    """Return why nothing needs truncation."""
    alpha, K = w.truncate.alpha, len(w.sizes)
    return (
        f"the largest {100 * alpha:g} % of the clients ({top(alpha, K):,} of {K:,}) reported"
        f" {portion(mwp(w.sizes, alpha))} of all examples, which is no more than alpha_star = {w.truncate.alpha_star:g}"
    )


def _named(who: Sequence[int], w: Weightings) -> str:
    """Return some clients in words, for the beginning of a sentence."""
    noun = "Byzantine client" if w.byzantine.issuperset(who) else "client"
    if len(who) > FEW:
        return plural(len(who), noun)
    return f"{noun[0].upper()}{noun[1:]}{'s' if len(who) > 1 else ''} {ids(who)}"


def _beyond_bound(w: Weightings) -> Iterator[str]:
    """Yield a sentence if there are more attackers than U* limits the weight of; the promise is another number."""
    meant = top(w.truncate.alpha, len(w.sizes))
    if len(w.byzantine) > meant and not isinstance(w.bound, InfeasibleError):
        yield (
            f"U* is made for alpha = {w.truncate.alpha:g}: truncation by it limits what {meant:,} of {w.count} hold, "
            f"and not what the {len(w.byzantine):,} Byzantine clients hold here."
        )
