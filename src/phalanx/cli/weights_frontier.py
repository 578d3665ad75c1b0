"""`phalanx weights --frontier`: what each cap on the weight of few sites costs, and what the worst sites can do."""

from collections.abc import Sequence
from math import isinf

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from phalanx.cli.consoles import escape, say, titled_table
from phalanx.cli.options import COST
from phalanx.cli.parser import Options
from phalanx.cli.weights_files import ReportedSizes, read_counts, write_weights
from phalanx.errors import InfeasibleError
from phalanx.promises.frontier import NOISE, Frontier, Point, WeighingCost, frontier
from phalanx.runs.files import write_figure
from phalanx.weighting.truncation import top
from phalanx.wording import percent, shown

POINTS = 14  # caps in the table
LISTED = 20  # sites in the table


def show_frontier(reported: ReportedSizes, options: Options, console: Console) -> None:
    """Print the frontier of a file of sizes, and save what is asked for.

    Raises:
        ValueError: the file or an option is invalid, no cap is low enough, or weights are to be saved and no cap is
            useful; then all else is done.
        OSError: a file cannot be read or written.
    """
    classes = options.classes and read_counts(options.sizes, reported, options.classes, options.client_column)
    K = len(reported.sizes)
    liars = 1 if options.alpha is None else top(options.alpha, K)
    cost = COST if options.cost is None else options.cost
    found = frontier(reported.sizes, classes, liars=liars, cost=cost)
    chosen = found.nearest
    console.print(_caps(found))
    say(console, _band(found, reported.names))
    if classes is None:
        say(console, "Without --classes, sites are taken to hold the same mix: only noise costs anything here.")
    console.print()
    console.print(_weights(found, chosen, reported))
    console.print(_costs(found, chosen, reported, classes))
    say(console, _meaning(found))
    if options.picture is not None:
        from phalanx.promises.frontier_picture import plot_frontier  # noqa: PLC0415  (matplotlib is slow to import)

        picture = plot_frontier(found, reported.names)
        write_figure(picture, options.picture, dpi=100, facecolor="white")
        say(console, f"Picture: {options.picture}")
    if options.weights is not None:
        if found.best is None:
            raise InfeasibleError(
                f"No cap is useful, so {options.weights} was not written. See the sentence on the useful band, or "
                "choose a cap of the table by --alpha and --alpha_star."
            )
        write_weights(options.weights, reported, np.minimum(reported.sizes, found.best.weighing.bound).tolist())
        say(console, f"Weights: {options.weights}")


def _caps(found: Frontier) -> Table:
    liars = "the site" if found.liars == 1 else f"{found.liars} sites"
    table = titled_table(f"Caps on the weight of {'one site' if found.liars == 1 else liars}")
    worst = "worst error" if found.uniform.exact else "worst error, at least"
    for heading in ("cap", "U*", "clean error", worst, "descent left", "useful"):
        table.add_column(heading, justify="right")
    useful, best = found.useful, found.best
    kept = set(np.linspace(0, len(found.points) - 1, POINTS).round().astype(int).tolist())
    for index, point in enumerate(found.points):
        if index in kept or point == best or point in (*useful[:1], *useful[-1:]):
            mark = "best" if point == best else "yes" if point in useful else ""
            way = point.weighing
            errors = _error(way.clean), _error(way.worst)
            table.add_row(_cap(point), f"{way.bound:,}", *errors, _left(way), mark)
    return table


def _band(found: Frontier, names: Sequence[str]) -> str:
    """Return in a sentence where the useful band is, or that there is none."""
    useful, best = found.useful, found.best
    if best is None:
        least = found.nearest
        if not found.affordable:
            return (
                f"There is no useful band: the clean error is at least {least.weighing.clean:.3f}, at a cap of "
                f"{_cap(least)}, and {found.cost:g} is allowed."
            )
        return (
            f"There is no useful band: the worst lie leaves {_left(least.weighing)} of the descent of a step at a cap "
            f"of {_cap(least)}, where it leaves most, and half is needed. More sites, or sites more alike, would help."
        )
    weighing = best.weighing
    liars = _listed([shown(names[site], 40) for site in weighing.liars])
    bound, most = ("", "") if weighing.exact else ("at least ", "at most ")
    whole = found.points.index(useful[-1]) - found.points.index(useful[0]) + 1
    gaps = ", with gaps" if len(useful) < whole else ""
    band = f"from {_cap(useful[0])} to {_cap(useful[-1])}{gaps}" if len(useful) > 1 else f"a single cap, {_cap(best)}"
    return (
        f"The useful band is {band}. At {_cap(best)} the clean error is {weighing.clean:.3f}, and "
        f"{bound}{_error(weighing.worst)} if {liars} {'lies' if found.liars == 1 else 'lie'}: the lie leaves {most}"
        f"{_left(weighing)} of the descent of a step."
    )


def _listed(names: Sequence[str]) -> str:
    """Return at most four names in words."""
    first = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} others"]
    return " and ".join(filter(None, [", ".join(first[:-1]), first[-1]]))


def _weights(found: Frontier, chosen: Point, reported: ReportedSizes) -> Table:
    """Return a table of the weights of each site in three ways, and of the error if it lies."""
    table = titled_table("Share of the weight, and the error if a site lies")
    table.add_column("site", overflow="fold")
    for heading in ("examples", "reported", _capped(chosen), "own size", "any size", "all alike", "error"):
        table.add_column(heading, justify="right")
    sizes, capped, alike = np.asarray(reported.sizes), chosen.weighing, found.uniform
    order = np.argsort(-sizes, kind="stable").tolist()
    for site in order[:LISTED]:
        table.add_row(
            escape(shown(reported.names[site], 40)),
            f"{sizes[site]:,}",
            *(percent(way.shares[site]) for way in (found.reported, capped)),
            *(_error(errors.get(site)) for errors in (capped.errors_with_own_sizes, capped.errors)),
            percent(alike.shares[site]),
            _error(alike.errors.get(site)),
        )
    if len(order) > LISTED:
        table.add_row(f"and {len(order) - LISTED:,} more")
    return table


def _costs(found: Frontier, chosen: Point, reported: ReportedSizes, classes: Sequence[Sequence[int]] | None) -> Table:
    """Return a table of what these weights cost."""
    sizes, ways = np.asarray(reported.sizes), _ways(found, chosen)
    table = titled_table("What they cost")
    table.add_column("")
    for name in ways:
        table.add_column(name, justify="right")
    table.add_row("rule", *map(_rule, ways.values()))
    table.add_row("clean error", *(_error(way.clean) for way in ways.values()))
    who = "the worst site lies" if found.liars == 1 else f"the worst {found.liars} sites lie"
    least = "" if found.uniform.exact else ", at least"
    table.add_row(f"error if {who}{least}", *(_error(way.worst) for way in ways.values()))
    if classes is not None:
        held = np.asarray(classes)
        table.add_row("class mix moved, by a mean", *(percent(_moved(held, sizes, way)) for way in ways.values()))
    table.add_row("worth in examples, by a mean", *(f"{_as_good(sizes, way):,.0f}" for way in ways.values()))
    return table


def _ways(found: Frontier, chosen: Point) -> dict[str, WeighingCost]:
    return {"reported": found.reported, _capped(chosen): chosen.weighing, "all alike": found.uniform}


def _capped(point: Point) -> str:
    return f"cap {_cap(point)}"


def _moved(held: NDArray[np.int64], sizes: NDArray[np.int64], way: WeighingCost) -> float:
    """Return the total variation distance of the weighted mix of classes from that of all examples."""
    mix = np.asarray(way.shares) @ (held / sizes[:, None])
    return float(np.abs(mix - held.sum(0) / sizes.sum()).sum() / 2)


def _as_good(sizes: NDArray[np.int64], way: WeighingCost) -> float:
    """Return the number of examples whose mean has as much noise as the weighted mean of the sites."""
    return float(1 / (np.asarray(way.shares) ** 2 / sizes).sum())


def _meaning(found: Frontier) -> str:
    one = found.liars == 1
    who = "A site that lies knows them all, and sends" if one else "Sites that lie know them all, and send"
    report = (
        "Under 'own size' it reports what it holds; otherwise any size, and the largest is the worst."
        if one
        else "Under 'own size' they report what they hold; otherwise any sizes, and the largest are the worst."
    )
    if found.uniform.exact:
        sizes = "size it reports" if one else "sizes they report"
        worst = f"No lie of {'one site' if one else f'any {found.liars} sites'} does more, whatever {sizes}."
    else:
        sets = "sites were" if one else "sites, each with the heaviest others, were"
        worst = f"Only the {found.uniform.tried} heaviest {sets} tried: others may do more."
    return (
        "Errors are of modelled updates, relative to the update of all examples: a site sends its class proportions in "
        f"random directions, with noise of variance {NOISE**2:g} / n. {who} in each entry more, or less, than all "
        f"others, whichever does most. {report} A mean has no bound. {worst} Descent left: "
        "(1 - worst^2) / (1 - clean^2), for a step on a smooth loss. A useful cap leaves half."
    )


def _rule(way: WeighingCost) -> str:
    beta = getattr(way.rule, "beta", None)
    return way.rule.title if beta is None else f"{way.rule.title}({beta:.3g})"


def _left(way: WeighingCost) -> str:
    return "none" if way.left <= 0 else percent(way.left)


def _error(value: float | None) -> str:
    return "-" if value is None else "no bound" if isinf(value) else f"{value:.3f}"


def _cap(point: Point) -> str:
    return f"{100 * float(point.cap):.3g} %"
