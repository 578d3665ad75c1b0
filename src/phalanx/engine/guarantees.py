"""Missing guarantees of a run: one sentence for each guarantee that its algorithm, clients and rounds do not give.

The engine checks them before the first step.  Runs that can never work are refused there; the sentences are
Python warnings, and are kept in the record of the run, whose report repeats them.
"""

from collections.abc import Iterator, Mapping
from math import floor
from typing import Any

from phalanx.aggregators.aggregator import BELOW_HALF, Aggregator, Chain, too_few, wrong_number
from phalanx.algorithms.wrapper import Wrapper
from phalanx.core import Algorithm, InfeasibleError, Rule, SmallestSet
from phalanx.weighting import AsReported, Preprocess, Truncate, attacker_share, more_drawn
from phalanx.weighting.truncation import feasible, top
from phalanx.wording import plural


def remarks(
    algorithm: Algorithm[Any], sizes: Mapping[int, int], *, asked: int | None = None, lossy: bool = False
) -> tuple[str, ...]:
    """Return the guarantees that a run does not have, a sentence each.

    Args:
        algorithm: that of the run.
        sizes: number of examples that each client reports, of the clients that are there when it begins.
        asked: number of clients that are drawn at random for each round; None: all take part.
        lossy: whether a round can end without the answers of some clients.

    Raises:
        InfeasibleError: no step could ever be taken, or no step with the guarantee that was asked for.
    """
    n = len(sizes)
    m = n if asked is None else min(asked, n)
    whole, rule = algorithm.smallest_set(m, n), algorithm.rule
    if algorithm.synchronous and rule is not None and (error := wrong_number(rule, whole.full)) is not None:
        raise InfeasibleError(str(error))
    found = [*silence(algorithm, m, n, lossy=lossy)]
    if isinstance(preprocess := preprocess_of(algorithm), Truncate):
        found += weights(preprocess, rule, whole)
        by_scope = {"population": _population, "cohort": _cohort, "subset": _subset}[preprocess.scope]
        drawn = asked if algorithm.synchronous else None
        found += by_scope(preprocess, sizes, whole, drawn, lossy and algorithm.synchronous)
    if isinstance(preprocess, AsReported):
        found += reported(algorithm, sizes, whole)
    return tuple(found)


def preprocess_of(algorithm: Algorithm[Any]) -> Preprocess | None:
    """Return what an algorithm, or the one within, makes weights of sizes with; None if it does not use sizes."""
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.algorithm
    found = getattr(algorithm, "preprocess", None)
    return found if isinstance(found, Preprocess) else None


def tolerated(algorithm: Algorithm[Any]) -> int:
    """Return f, the number of attackers that an algorithm or its rule is set to tolerate; 0 if it has none."""
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.algorithm
    rule: object = algorithm.rule
    while isinstance(rule, Chain):
        rule = rule.rule
    numbers = [getattr(part, "f", 0) for part in (algorithm, rule)]
    return max(f for f in (*numbers, 0) if isinstance(f, int))


def silence(algorithm: Algorithm[Any], m: int, population: int, *, lossy: bool) -> Iterator[str]:
    """Yield why f silent clients would stop the run, if they would.

    Args:
        algorithm: that of the run.
        m: updates of a round from which nobody is missing.
        population: clients that are enrolled.
        lossy: whether a round can end without some answers; if not, one silent client stops any round.
    """
    f = tolerated(algorithm)
    if not f:
        return
    absent = f"If {f} of {plural(m, 'client')} stay silent, {m - f} are left"
    if not algorithm.synchronous:
        whole = algorithm.smallest_set(m, population)
        if m - f < whole.full:
            name = whole.name if whole.size == whole.full else "quorum"
            yield f"{absent}, and a {name} of {whole.full} never comes together. Have {whole.full + f} clients or more."
    elif lossy and (why := _why_lost(algorithm, m - f, population)):
        yield f"{absent}, and every such round is lost: {why}"


def _why_lost(algorithm: Algorithm[Any], m: int, population: int) -> str:
    """Return why a round of m updates is lost, whatever is in them; "" if it need not be."""
    try:
        algorithm.check_round(m, population)
    except InfeasibleError as error:
        return str(error)
    return too_few(algorithm.rule, algorithm.smallest_set(m, population).full) if algorithm.rule is not None else ""


def weights(preprocess: Truncate, rule: Rule | None, whole: SmallestSet | None = None) -> Iterator[str]:
    """Yield why a rule does not tolerate the share of the weight that truncation leaves attackers, if it does not.

    Args:
        preprocess: the truncation.
        rule: that of the algorithm.
        whole: what the rule combines at once.
    """
    if not isinstance(rule, Aggregator):
        return
    tolerates = rule.breakdown_point()
    if tolerates is None or tolerates >= preprocess.alpha_star:
        return
    limit, choice = f"no more than {tolerates:.3g}", f"Set alpha_star to {tolerates:.3g} or less"
    if tolerates == BELOW_HALF:
        limit, choice = "less than one half", "Set alpha_star to 0.49, say"
    if tolerates == 0:
        limit, choice = "no share by any proof", "Take a rule that tolerates attackers, such as Median"
    yield (
        f"{_named(preprocess)} lets attackers have {preprocess.alpha_star:.3g} of the weight, and {rule} tolerates "
        f"{limit}. {choice}."
    )


def reported(algorithm: Algorithm[Any], sizes: Mapping[int, int], whole: SmallestSet) -> Iterator[str]:
    """Yield that few clients report so much that they have more weight than the rule tolerates, if they do.

    They are fewer than those that the rule would tolerate if all weighed the same.  Sizes that differ by less than one
    client of average size are not mentioned.

    Args:
        algorithm: that of the run; it weighs by the reported sizes.
        sizes: number of examples that each client reports.
        whole: what the rule combines at once.
    """
    rule, q = algorithm.rule, min(whole.size, len(sizes))
    if not isinstance(rule, Aggregator):
        return
    by_theory = rule.breakdown_point()
    tolerates = tolerated(algorithm) / max(q, 1) if by_theory is None else by_theory
    alike = floor(tolerates * q + 1e-9)  # clients that are tolerated if all weigh the same
    if not alike or attacker_share(sizes, alike, q) < (alike + 1) / q:
        return
    few = next(c for c in range(1, alike + 1) if attacker_share(sizes, c, q) > tolerates)
    limit = "less than one half" if tolerates == BELOW_HALF else f"{tolerates:.3g} at most"
    yield (
        f"AsReported() weighs by what clients report, and {few} of {plural(q, 'client')} can hold "
        f"{attacker_share(sizes, few, q):.3g} of the weight: {rule} tolerates {limit}. "
        "Set preprocess to Truncate(alpha, alpha_star), which bounds it, or to Ignore()."
    )


def _population(
    preprocess: Truncate, sizes: Mapping[int, int], whole: SmallestSet, drawn: int | None, lossy: bool
) -> Iterator[str]:
    """Yield what is not guaranteed of the sets of clients that are aggregated, where U* is that of all clients."""
    n, most = len(sizes), preprocess.alpha_star
    f = top(preprocess.alpha, n)
    kept = preprocess(sizes)
    share = attacker_share(kept, f, whole.size)
    attackers, bounds = (
        plural(f, "attacker"),
        f"{_named(preprocess)} bounds what attackers hold of all {plural(n, 'client')}",
    )
    if whole.name == "cluster" and f:
        yield (
            f"{_named(preprocess)} bounds what attackers hold of a cluster as long as they are {preprocess.alpha:g} of "
            f'it at most, and {attackers} of {n} clients can be in one cluster. Set scope to "subset".'
        )
    elif whole.name == "round" and drawn is not None and share > most + 1e-12:
        x = max(x for x in range(f + 1) if attacker_share(kept, x, drawn) <= most + 1e-12)
        yield (
            f"{bounds}, and in a round of {drawn} drawn at random {x + 1} or more of {attackers} take part with "
            f"probability {float(more_drawn(n, f, drawn, x)):.2g}, who can hold more than {most:g} of it. "
            f'Set scope to "subset" and drawn to {drawn}.'
        )
    elif share > most + 1e-12:
        yield (
            f"{bounds}, not of a {whole.name} of {whole.size}: there {attackers} can hold {share:.3g}. "
            f"{_remedy(preprocess, f, n, whole)}"
        )
    if lossy and f and whole.name == "round":
        yield (
            f"{bounds}, and of a round in which some clients do not answer they can hold more. "
            'Set scope to "subset": rounds of too few clients are then lost.'
        )


def _remedy(preprocess: Truncate, f: int, n: int, whole: SmallestSet) -> str:
    """Return what gives a guarantee where truncation over the population does not."""
    if not _unbounded(
        Truncate(preprocess.alpha, preprocess.alpha_star, "subset"), dict.fromkeys(range(n), 1), whole.size
    ):
        return 'Set scope to "subset".'
    enough = feasible(f, whole.size, n, preprocess.alpha_star)
    return f'Set scope to "subset", which is feasible with {enough}. For more clients, {whole.remedy}.'


def _named(preprocess: Truncate) -> str:
    """Return the truncation in words, as short as its options allow."""
    scope = "" if preprocess.scope == "population" else f", {preprocess.scope}"
    return f"Truncate({preprocess.alpha:g}, {preprocess.alpha_star:g}{scope})"


def _cohort(
    preprocess: Truncate, sizes: Mapping[int, int], whole: SmallestSet, drawn: int | None, lossy: bool
) -> Iterator[str]:
    """Yield what is not guaranteed where alpha is the share of attackers in each set of clients."""
    f = top(preprocess.alpha, len(sizes))
    few = top(preprocess.alpha, whole.size)
    if few < min(f, whole.size):
        yield (
            f"{_named(preprocess)} is made for {plural(few, 'attacker')} in a {whole.name} of {whole.size}, and {f} of "
            f'{len(sizes)} clients can be in it. Set scope to "subset".'
        )
    try:
        preprocess.among(preprocess.enrolled(dict.fromkeys(range(whole.full), 1)), range(whole.full))
    except InfeasibleError as error:
        if drawn is not None or whole.name == "round":
            raise InfeasibleError(f"No {whole.name} of {whole.full} can be weighed: {error}") from error
        yield f"A {whole.name} of {whole.full} is held back until more updates come: {error}"


def _subset(
    preprocess: Truncate, sizes: Mapping[int, int], whole: SmallestSet, drawn: int | None, lossy: bool
) -> Iterator[str]:
    """Yield what is not guaranteed where any clients can be in a set; raise `InfeasibleError` if nothing is."""
    if preprocess.drawn is not None and (drawn is None or drawn > preprocess.drawn):
        found = "no clients are drawn" if drawn is None else f"{drawn} are"
        raise InfeasibleError(
            f"{_named(preprocess)} counts on {preprocess.drawn} clients drawn at random for each round, and {found}. "
            f"Set drawn to {'null' if drawn is None else drawn}, or change participation."
        )
    if preprocess.drawn is not None and whole.rounds > 1:
        raise InfeasibleError(
            f"{_named(preprocess)} counts on the clients drawn for one round, and updates of {whole.rounds} rounds "
            f"meet in a {whole.name}. Set memory.reuse to 0, or drawn to null."
        )
    hold = preprocess.infeasible == "hold"
    if why := _unbounded(preprocess, sizes, whole.full):
        if hold:
            raise InfeasibleError(f"No {whole.name} can be weighed: {why} For more clients, {whole.remedy}.")
        yield f"The clients of a {whole.name} of {whole.full} weigh the same, without a guarantee: {why}"
        return
    f, then = preprocess.attackers(len(sizes)), "is lost" if hold else "is not weighted"
    if whole.size < whole.full and (why := _unbounded(preprocess, sizes, whole.size)):
        yield f"A {whole.name} of {whole.size} {then}: {why}"
    if lossy and f and (why := _unbounded(preprocess, sizes, whole.full - f)):
        yield f"If {f} of {plural(whole.full, 'client')} stay silent, the round {then}: {why}"
    if lossy and preprocess.drawn is not None:
        yield (
            f"{_named(preprocess)} counts on draws among all {plural(len(sizes), 'client')}: "
            "if some cannot be reached, more attackers are drawn."
        )


def _unbounded(preprocess: Truncate, sizes: Mapping[int, int], size: int) -> str:
    """Return why no bound is feasible for sets of so many clients; "" if one is."""
    try:
        preprocess.bound(sizes, max(size, 1))
    except InfeasibleError as error:
        return str(error)
    return ""


def remarks_at_start(
    algorithm: Algorithm[Any], sizes: Mapping[int, int], sample: object, *, lossy: bool
) -> tuple[str, ...]:
    """Return the remarks of a run with this sampler, as in `remarks`.

    Args:
        algorithm: that of the run.
        sizes: as in `remarks`.
        sample: draws the clients of a round; with a method `count`, as `Participation` has, if it draws a fixed number.
        lossy: as in `remarks`.
    """
    count = getattr(sample, "count", None)
    return remarks(algorithm, sizes, asked=count(len(sizes)) if callable(count) else None, lossy=lossy)
