"""`phalanx weights`: the effect of truncation on a file of sizes, before any training."""

from fractions import Fraction
from math import isfinite
from shlex import join

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from phalanx.cli.consoles import escape, say, titled_table
from phalanx.cli.options import ALPHA_STAR, DELTA
from phalanx.cli.parser import Options
from phalanx.cli.weights_files import ReportedSizes, check_target, read_sizes, write_weights
from phalanx.runs.files import write_figure
from phalanx.weighting.certificate import Certificate, certify
from phalanx.weighting.diagnostics import concentration, weight_shift
from phalanx.weighting.truncation import (
    TradeOff,
    heaviest,
    most_tolerated,
    mwp,
    shortest,
    top,
    total,
    truncation_bound,
    truncation_curve,
)
from phalanx.wording import percent, shown

LISTED = 20  # number of clients in the table of truncated sizes
POINTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)  # of alpha, between the least and the most


def weights_command(options: Options, console: Console) -> int:
    """Show a trade-off, a truncation, or a certificate; return the exit status, 1 if not certified.

    Raises:
        ValueError: options exclude each other, or the file or the shares are invalid.
        OSError: a file cannot be read or written.
    """
    _check(options)
    sampled = options.certify is not None
    reported = read_sizes(options.sizes, options.client_column, options.size_column, repeats=sampled)
    if sampled:
        return _certify(reported, options, console)
    if options.frontier:
        from phalanx.cli.weights_frontier import show_frontier  # noqa: PLC0415  (rules are slow to import)

        show_frontier(reported, options, console)
        return 0
    (_show_curve if options.alpha is None else _show_truncation)(reported, options, console)
    if options.picture is not None:
        _draw(reported, options)
        say(console, f"Picture: {options.picture}")
    return 0


def _check(options: Options) -> None:
    """Raise ValueError if an option is missing, or would have no effect."""
    if options.sizes is None:
        raise ValueError("Name a file of reported sizes, as in `phalanx weights sizes.csv`, or - for standard input.")
    sampled = options.certify is not None
    others = ("weights", "picture") if sampled else ("delta", "population")
    if without := [f"--{name}" for name in others if options[name] is not None]:
        goes = "does not go with" if sampled else "belongs to"
        raise ValueError(f"{without[0]} {goes} --certify, which is about a sample of the clients.")
    _check_frontier(options, sampled=sampled)
    if options.alpha is None and (sampled or (options.weights is not None and not options.frontier)):
        raise ValueError(f"--{'certify' if sampled else 'weights'} needs --alpha, the share of clients to tolerate.")
    if options.weights is not None:
        check_target(options.weights, (".csv", ".json"))
        if options.weights.exists() and options.sizes.exists() and options.weights.samefile(options.sizes):
            raise ValueError(f"--weights would replace {options.sizes}, the reported sizes. Choose another file.")
    if options.picture is not None:
        check_target(options.picture, (".png", ".svg", ".pdf"))


def _check_frontier(options: Options, *, sampled: bool) -> None:
    if not options.frontier:
        if without := [f"--{name}" for name in ("classes", "cost") if options[name] is not None]:
            raise ValueError(f"{without[0]} belongs to --frontier.")
        return
    if twice := [name for name in options.classes or () if options.classes.count(name) > 1]:
        raise ValueError(f"--classes names {shown(twice[0])} twice. Name each column once.")
    if sampled:
        raise ValueError("--frontier does not go with --certify, which is about a sample of the clients.")
    if options.alpha_star != ALPHA_STAR:
        raise ValueError("--frontier tries every alpha_star. Leave --alpha_star out.")


# The trade-off


def _show_curve(reported: ReportedSizes, options: Options, console: Console) -> None:
    N, K = np.asarray(reported.sizes), len(reported.sizes)
    feasible = most_tolerated(K, options.alpha_star)
    if K == 1:
        raise ValueError("One client holds all of the weight whatever it reports: there is nothing to choose from.")
    if not feasible:
        truncation_bound(N, 1 / K, options.alpha_star)  # raises: says why there is nothing to choose from
    say(console, _population(reported))
    table = titled_table(f"What there is to choose from, with alpha_star = {options.alpha_star:g}")
    for heading in ("alpha", "clients", "U*", "truncated", "examples that count", "effective clients"):
        table.add_column(heading, justify="right")
    points = _points(feasible, K)
    curve, N = truncation_curve(N, options.alpha_star, points.values()), N.astype(np.float64)
    for (alpha, t), (_, U) in zip(points.items(), curve, strict=True):
        kept = np.minimum(N, U)
        many, still, effective = int((N > U).sum()), kept.sum() / N.sum(), kept.sum() ** 2 / (kept @ kept)
        table.add_row(alpha, f"{t:,}", f"{U:,}", f"{many:,}", percent(still), f"{effective:,.1f}")
    console.print(table)
    say(console, "alpha is the share of the clients that may be Byzantine, U* the largest size that counts in full.")
    example = "0.1" if top(0.1, K) <= feasible else shortest(1, K)
    given = [(name, options[name]) for name in ("client_column", "size_column") if options[name] is not None]
    chosen = [("alpha", example), ("alpha_star", f"{options.alpha_star:g}"), ("weights", "weights.csv")]
    words = [word for name, value in (*given, *chosen) for word in (f"--{name}", value)]
    command = join(["phalanx", "weights", str(options.sizes), *words])
    say(console, f"Choose how many Byzantine clients to tolerate, and go on: {command}")


def _points(feasible: int, K: int) -> dict[str, int]:
    """Return the alphas to show, each with its number of clients: all that make a difference, or a dozen of them."""
    if feasible <= len(POINTS):
        return {shortest(t, K): t for t in range(1, feasible + 1)}
    points = {1: shortest(1, K)} | {t: f"{share:g}" for share in POINTS if 1 < (t := top(share, K)) < feasible}
    return {alpha: t for t, alpha in points.items()} | {shortest(feasible, K): feasible}


# Truncation


def _show_truncation(reported: ReportedSizes, options: Options, console: Console) -> None:
    sizes, K = np.asarray(reported.sizes), len(reported.sizes)
    U = truncation_bound(sizes, options.alpha, options.alpha_star)
    kept = np.minimum(sizes, U)
    many, t = int((sizes > U).sum()), top(options.alpha, K)
    say(console, _population(reported))
    given = f"alpha = {options.alpha:g} ({t:,} of {K:,} clients), alpha_star = {options.alpha_star:g}"
    say(console, f"{given}: {_outcome(U, many)}")
    if many:
        console.print(_truncated(reported, U))
    console.print(_comparison(sizes, kept, t))
    moved, still = weight_shift(sizes, kept), total(kept) / total(sizes)
    say(
        console, f"{percent(moved)} of the weight changes hands, {percent(still)} of the reported examples still count."
    )
    most = f"The {f'{t:,} heaviest hold' if t > 1 else 'heaviest holds'} {_held(kept, t)}." if t else ""
    console.print()
    say(console, " ".join(filter(None, (_promise(t, K, options.alpha_star), most))))
    say(console, _caveat(options.alpha_star))
    if options.weights is not None:
        write_weights(options.weights, reported, kept.data)
        say(console, f"Weights: {options.weights}")


def _outcome(U: int, many: int) -> str:
    if not many:
        return "nothing has to be truncated."
    report = "clients report more, and count" if many > 1 else "client reports more, and counts"
    return f"U* = {U:,}. {many:,} {report} for that much."


def _population(reported: ReportedSizes) -> str:
    sizes, half = np.asarray(reported.sizes), (len(reported.sizes) - 1) // 2
    clients = f"{len(sizes):,} clients report" if len(sizes) > 1 else "1 client reports"
    middle = f", half of them {np.partition(sizes, half)[half]:,} or less" if len(sizes) > 1 else ""
    return f"{clients} {total(sizes):,} examples, from {sizes.min():,} to {sizes.max():,} each{middle}."


def _truncated(reported: ReportedSizes, U: int) -> Table:
    """Return a table of the largest clients with truncated sizes."""
    sizes = np.asarray(reported.sizes)
    before, after = total(sizes), total(np.minimum(sizes, U))
    cut = np.argsort(-sizes, kind="stable")[: (sizes > U).sum()]
    table = titled_table("Truncated clients")
    table.add_column("client", overflow="fold")
    for heading in ("reported", "counts as", "share before", "share after"):
        table.add_column(heading, justify="right")
    for k in cut[:LISTED]:
        client = escape(shown(reported.names[k], 40))
        table.add_row(client, f"{sizes[k]:,}", f"{U:,}", percent(sizes[k] / before), percent(U / after))
    if len(cut) > LISTED:
        table.add_row(f"and {len(cut) - LISTED:,} more")
    return table


def _comparison(sizes: NDArray[np.int64], kept: NDArray[np.int64], t: int) -> Table:
    """Return a table of the concentration of weights, before and after truncation, and with sizes ignored."""
    K = len(sizes)
    ways = (sizes, kept, np.ones_like(sizes))
    figures = [concentration(way) for way in ways]
    table = titled_table("Share of the weight")
    table.add_column("", min_width=28)
    for heading in ("as reported", "truncated", "all alike"):
        table.add_column(heading, justify="right")
    tenth = top(0.1, K)
    table.add_row("the heaviest client", *(percent(figure.largest) for figure in figures))
    if t not in (0, 1, tenth):
        table.add_row(f"the heaviest {t:,} (alpha)", *(percent(mwp(way, t / K)) for way in ways))
    if tenth > 1:
        table.add_row(f"the heaviest {tenth:,} (10 %)", *(percent(figure.top_tenth) for figure in figures))
    table.add_row("effective number of clients", *(f"{figure.effective:,.1f}" for figure in figures))
    return table


def _promise(t: int, K: int, alpha_star: float) -> str:
    """Return the guarantee in plain words."""
    if t == 0:
        return "With alpha = 0 nobody is suspected, and nothing is promised."
    share = f"{_percent(alpha_star)} of the weight"
    if t == 1:
        return f"Whatever they report, no one of the {K:,} clients holds more than {share}."
    return f"Whatever they report, no {t:,} of the {K:,} clients hold more than {share}."


def _caveat(alpha_star: float) -> str:
    stand = f"Median, GeometricMedian, and TrimmedMean with beta = {alpha_star:g} or more tolerate that share."
    if alpha_star >= 0.5:
        stand = "Median and GeometricMedian tolerate less than half of the weight, TrimmedMean its beta."
    room = " --alpha_star 0.49 leaves them room." if alpha_star == 0.5 else ""
    return f"{stand}{room} Mean tolerates no attackers: truncation alone is no defence."


def _held(weights: NDArray[np.int64], t: int) -> str:
    """Return the share of the t heaviest, rounded down, so that less than half does not look like half."""
    return f"{10_000 * heaviest(weights, t) // total(weights) / 100:g} %"


# A sample


def _certify(reported: ReportedSizes, options: Options, console: Console) -> int:
    k, K, delta = len(reported.sizes), options.population, DELTA if options.delta is None else options.delta
    if K is not None and len(set(reported.names)) > K:
        held = len(set(reported.names))
        raise ValueError(f"--population must be at least {held:,}, the clients in the file, got {K:,}.")
    found = certify(reported.sizes, options.certify, options.alpha, options.alpha_star, delta, clients=K)
    who = (
        f"{options.alpha * 100:g} % of the clients" if K is None else f"{top(options.alpha, K):,} of the {K:,} clients"
    )
    claim = f"truncated at {options.certify:,}, no {who} hold more than {_percent(options.alpha_star)} of the weight"
    if found.holds:
        say(console, f"Certified: {claim}. For at most {_percent(delta)} of all samples would that be wrong.")
    else:
        say(console, f"Not certified: {k:,} sizes do not show that, {claim}.")
        say(console, f"{found.reason[0].upper()}{found.reason[1:]}.")
    console.print(_figures(found, k, options.alpha_star))
    say(
        console,
        "This holds if the clients were drawn at random from all, and the bound was chosen without these sizes.",
    )
    return 0 if found.holds else 1


def _figures(found: Certificate, k: int, alpha_star: float) -> Table:
    table = titled_table("Largest share of the weight")
    table.show_header = False
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("allowed (alpha_star)", percent(alpha_star))
    table.add_row("in this sample", percent(found.estimate))
    table.add_row("at most, of all clients", percent(found.ceiling) if isfinite(found.ceiling) else "not known")
    table.add_row("sizes in the sample", f"{k:,}")
    table.add_row("sizes needed, if they were like these", "no number" if found.needed is None else f"{found.needed:,}")
    return table


# Output


def _draw(reported: ReportedSizes, options: Options) -> None:
    from phalanx.weighting.picture import plot_truncation_curve  # noqa: PLC0415  (matplotlib is slow to import)

    sizes, chosen = dict(enumerate(reported.sizes)), None
    if options.alpha is not None and top(options.alpha, len(sizes)):
        chosen = TradeOff(options.alpha, truncation_bound(sizes, options.alpha, options.alpha_star))
    curve = truncation_curve(sizes, options.alpha_star)
    write_figure(plot_truncation_curve(curve, sizes, chosen), options.picture, dpi=150)


def _percent(share: float) -> str:
    return f"{float(100 * Fraction(repr(share))):g} %"
