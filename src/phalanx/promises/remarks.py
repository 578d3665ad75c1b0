"""What a run warns of at its start, and what it refuses."""

import dataclasses
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from math import ceil, floor
from typing import Any, TypeVar

from phalanx.aggregators.aggregator import Aggregator, Chain, too_few, wrong_number
from phalanx.core import Algorithm, InfeasibleError, Pool, Rule, Setting
from phalanx.weighting import AsReported, Preprocess, Truncate, attacker_share, more_drawn
from phalanx.weighting.truncation import feasible
from phalanx.wording import plural

Sizes = Mapping[int, int]
A = TypeVar("A", bound=Algorithm[Any])


def refuse(algorithm: Algorithm[Any], pools: tuple[Pool, ...] | None, setting: Setting, f: int | None = None) -> None:
    """Raise `InfeasibleError` if no step could ever be taken, or none with the guarantee that was asked for.

    Args:
        algorithm: that of the run.
        pools: what it combines.
        setting: that of the run.
        f: number of attackers that must be tolerated; None: that is not said.
    """
    whole = _whole(algorithm, pools, setting)
    if why := next((pool.refused for pool in pools or () if pool.refused), ""):
        raise InfeasibleError(why)
    rule = algorithm.rule
    if algorithm.traits.synchronous and rule is not None and (error := wrong_number(rule, whole.full)) is not None:
        raise InfeasibleError(str(error))
    if f is None and (why := void_by_one(algorithm, pools, setting)):
        raise InfeasibleError(why)
    truncate, sizes = preprocess_of(algorithm), _sizes(setting)
    if not isinstance(truncate, Truncate):
        return
    if truncate.scope == "cohort":
        for _ in _cohort(truncate, sizes, whole, _drawn(algorithm, setting)):
            pass
    if truncate.of_any:
        _refuse_subset(truncate, sizes, whole, _drawn(algorithm, setting))


def void_by_one(algorithm: Algorithm[Any], pools: tuple[Pool, ...] | None, setting: Setting) -> str:
    """Return why a rule tolerates not even one client, by the size that it reports, with the remedy; else "".

    Also "" if `AsReported.beyond_tolerance` lets that pass.
    """
    preprocess, sizes, whole = preprocess_of(algorithm), _sizes(setting), _whole(algorithm, pools, setting)
    by_default = isinstance(preprocess, AsReported) and preprocess.beyond_tolerance == "refuse"
    if not by_default or _fewest(algorithm, sizes, whole) != 1:
        return ""
    (why,), by_name = reported(algorithm, sizes, whole), 'AsReported(beyond_tolerance="remark")'
    return f"{why} To run all the same, set preprocess to {by_name}."


def remarks(
    algorithm: Algorithm[Any], pools: tuple[Pool, ...] | None, setting: Setting, promised: int
) -> tuple[str, ...]:
    """Return what a run warns of at its start, a sentence each.

    Args:
        algorithm: that of the run.
        pools: what it combines.
        setting: that of the run.
        promised: the number of attackers that are tolerated by its promise.
    """
    whole, rule, sizes = _whole(algorithm, pools, setting), algorithm.rule, _sizes(setting)
    found = [*silence(algorithm, whole, setting)]
    preprocess, drawn = preprocess_of(algorithm), _drawn(algorithm, setting)
    if isinstance(preprocess, Truncate):
        lossy = setting.lossy and algorithm.traits.synchronous
        short = promised < preprocess.most(setting.clients)
        if short:
            found += beyond_tolerance(preprocess, rule)
            if preprocess.scope == "population":
                found += _population(preprocess, sizes, whole, drawn, lossy=lossy)
        if preprocess.scope == "cohort":
            found += _cohort(preprocess, sizes, whole, drawn)
        if preprocess.of_any:
            found += _subset(preprocess, sizes, whole, lossy=lossy)
    if isinstance(preprocess, AsReported) and setting.sizes is not None:
        found += reported(algorithm, sizes, whole)
    return (*found, *predicted(algorithm))


def _whole(algorithm: Algorithm[Any], pools: tuple[Pool, ...] | None, setting: Setting) -> Pool:
    """Return the first of the pools; if there are none, a round or a single arrival."""
    if pools:
        return pools[0]
    return Pool.of_round(algorithm.rule, None, setting) if algorithm.traits.synchronous else Pool.of_one(algorithm.rule)


def _sizes(setting: Setting) -> Sizes:
    return setting.sizes if setting.sizes is not None else dict.fromkeys(range(setting.clients), 1)


def _drawn(algorithm: Algorithm[Any], setting: Setting) -> int | None:
    return setting.drawn if algorithm.traits.synchronous else None


def _least(whole: Pool) -> int:
    """Return the size of the smallest set, if everybody answers a round."""
    return whole.full if whole.name == "round" else whole.smallest


def innermost(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """Return the algorithm within all wrappers."""
    while isinstance(inner := getattr(algorithm, "algorithm", None), Algorithm):
        algorithm = inner
    return algorithm


def with_attackers(algorithm: Algorithm[Any], clients: int) -> Algorithm[Any]:
    """Return an algorithm whose truncation is made for as many attackers in a part of the clients as in all of them."""
    name, inner = "algorithm", getattr(algorithm, "algorithm", None)
    if isinstance(inner, Algorithm):
        changed: object = with_attackers(inner, clients)
    else:
        name, changed = "preprocess", getattr(algorithm, "preprocess", None)
        if not isinstance(changed, Truncate) or not changed.of_any:
            return algorithm
        changed = changed.fixed(clients)
    found: Algorithm[Any] = dataclasses.replace(algorithm, **{name: changed})  # type: ignore[type-var]
    return found


def preprocess_of(algorithm: Algorithm[Any]) -> Preprocess | None:
    """Return what an algorithm, or the one within, makes weights of sizes with; None if it does not use sizes."""
    found = getattr(innermost(algorithm), "preprocess", None)
    return found if isinstance(found, Preprocess) else None


def with_remark(algorithm: A) -> A:
    """Return an algorithm that is not refused for sizes beyond its rule's tolerance, as where attackers report them."""
    inner, preprocess = getattr(algorithm, "algorithm", None), getattr(algorithm, "preprocess", None)
    changed: dict[str, Any] = {}
    if isinstance(inner, Algorithm):
        changed = {"algorithm": with_remark(inner)}
    elif isinstance(preprocess, AsReported):
        changed = {"preprocess": dataclasses.replace(preprocess, beyond_tolerance="remark")}
    given: Any = algorithm  # a dataclass, as all algorithms are
    return dataclasses.replace(given, **changed) if changed else algorithm


def tolerated(algorithm: Algorithm[Any]) -> int:
    """Return f, the number of attackers that an algorithm or its rule is set to tolerate; 0 if it has none."""
    algorithm = innermost(algorithm)
    rule: object = algorithm.rule
    while isinstance(rule, Chain):
        rule = rule.rule
    numbers = [getattr(part, "f", 0) for part in (algorithm, rule)]
    return max(f for f in (*numbers, 0) if isinstance(f, int))


def silence(algorithm: Algorithm[Any], whole: Pool, setting: Setting) -> Iterator[str]:
    """Yield why f silent clients would stop the run, if they would."""
    f, m = tolerated(algorithm), setting.asked
    if not f:
        return
    absent = f"If {f} of {plural(m, 'client')} stay silent, {m - f} are left"
    if not algorithm.traits.synchronous:
        if m - f < whole.full:
            name = whole.name if whole.smallest == whole.full else "quorum"
            yield f"{absent}, and a {name} of {whole.full} never comes together. Have {whole.full + f} clients or more."
    elif setting.lossy and (why := _why_lost(algorithm, Setting(setting.clients, drawn=m - f))):
        yield f"{absent}, and every such round is lost: {why}"


def _why_lost(algorithm: Algorithm[Any], setting: Setting) -> str:
    """Return why a round is lost, whatever is in it; "" if it need not be."""
    pools = algorithm.pools(setting)
    if why := next((pool.refused for pool in pools or () if pool.refused), ""):
        return why
    return too_few(algorithm.rule, _whole(algorithm, pools, setting).full) if algorithm.rule is not None else ""


def predicted(algorithm: Algorithm[Any]) -> Iterator[str]:
    """Yield that free riders are rewarded, or honest clients perhaps not, for each part that rewards agreement."""
    parts = [algorithm]
    while isinstance(inner := getattr(parts[-1], "algorithm", None), Algorithm):
        parts.append(inner)
    for part in parts:
        name, asks = type(part).__name__, getattr(part, "challenge", ...)
        if asks is ... or getattr(part, "sharpness", 1.0) == 0:
            continue
        if asks is None:
            back = getattr(part, "unsent", None) is None
            sent = "sends back the last change of its model" if back else "copies another"
            yield (
                f"{name} rewards agreement, and a client that trains nothing and {sent} agrees. Leave challenge at its "
                "default, Challenge(), or reward only clients that are known to train."
            )
        elif any(getattr(one, "noise_multiplier", 0.0) for one in parts):
            yield (
                f"{name} rewards only clients that are seen to train, and noise on updates can hide that: then the "
                "honest get nothing, or, if nobody is seen to train, all are rewarded. The history has what is proven. "
                "Set challenge to null if clients are known to train."
            )


def beyond_tolerance(preprocess: Truncate, rule: Rule | None) -> Iterator[str]:
    """Yield why a rule does not tolerate the share of the weight that truncation leaves attackers, if it does not."""
    if not isinstance(rule, Aggregator):
        return
    tolerance = rule.tolerates(1)
    if tolerance.share == rule.tolerates(2).share and not tolerance.allows(preprocess.alpha_star):
        limit, choice = tolerance.limit, f"Set alpha_star to {float(tolerance.share):.3g} or less"
        if tolerance.strict:
            choice = "Set alpha_star to 0.49, say"
        if not tolerance.share:
            limit, choice = "no share by any proof", "Take a rule that tolerates attackers, such as Median"
        else:
            limit = limit if tolerance.strict else f"no more than {float(tolerance.share):.3g}"
        yield (
            f"{named(preprocess)} lets attackers have {preprocess.alpha_star:.3g} of the weight, and {rule} tolerates "
            f"{limit}. {choice}."
        )


def _fewest(algorithm: Algorithm[Any], sizes: Sizes, whole: Pool) -> int | None:
    """Return the number of clients that can have more weight than the rule tolerates, by what they report.

    None if they are no fewer than those that it would not tolerate if all weighed the same, or if the sizes differ by
    less than one client of average size.
    """
    rule, q = algorithm.rule, min(_least(whole), len(sizes))
    if not isinstance(rule, Aggregator):
        return None
    tolerance = rule.tolerates(q)
    alike = floor(float(tolerance.share) * q - (1e-9 if tolerance.strict else -1e-9))
    if alike < 1 or attacker_share(sizes, alike, q) < (alike + 1) / q:
        return None
    return next(c for c in range(1, alike + 1) if not tolerance.allows(attacker_share(sizes, c, q)))


def reported(algorithm: Algorithm[Any], sizes: Sizes, whole: Pool) -> Iterator[str]:
    """Yield that few clients report so much that they have more weight than the rule tolerates, if they do."""
    rule, q = algorithm.rule, min(_least(whole), len(sizes))
    if (few := _fewest(algorithm, sizes, whole)) is None or not isinstance(rule, Aggregator):
        return
    tolerance = rule.tolerates(q)
    alpha_star = 0.49 if tolerance.strict else floor(1000 * tolerance.share) / 1000
    f = max(1, min(ceil(len(sizes) / 10), floor(alpha_star * q)))
    yield (
        f"AsReported() weighs by what clients report, and {few} of {plural(q, 'client')} can hold "
        f"{attacker_share(sizes, few, q):.3g} of the weight: {rule} tolerates {tolerance.limit}. "
        f"Set preprocess to Truncate(f={f}, alpha_star={alpha_star:g}), which bounds what {f} can hold, or to Ignore()."
    )


def outweighs(algorithm: Algorithm[Any], state: Any, client: int, clients: Collection[int]) -> str:
    """Return that a client holds more of the weight than the rule tolerates of one, by what it reports; else "".

    Args:
        algorithm: that of the run.
        state: its state.
        client: the client.
        clients: those that take part, this one among them.
    """
    if not isinstance(preprocess_of(algorithm), AsReported):
        return ""
    sizes = {i: round(weight) for i, weight in algorithm.weights(state, clients).items()}
    setting = Setting(len(sizes), sizes)
    whole = _whole(algorithm, algorithm.pools(setting), setting)
    alone = _fewest(algorithm, sizes, whole) == 1 and sizes.get(client) == max(sizes.values())
    return next(reported(algorithm, sizes, whole)) if alone else ""


def _population(preprocess: Truncate, sizes: Sizes, whole: Pool, drawn: int | None, *, lossy: bool) -> Iterator[str]:
    """Yield what is not guaranteed of the sets of clients that are aggregated, where U* is that of all clients."""
    n, most = len(sizes), preprocess.alpha_star
    f, size = preprocess.most(n), _least(whole)
    kept = preprocess(sizes)
    share = attacker_share(kept, f, size)
    attackers, bounds = (
        plural(f, "attacker"),
        f"{named(preprocess)} bounds what attackers hold of all {plural(n, 'client')}",
    )
    if whole.name == "cluster" and f:
        yield (
            f"{named(preprocess)} bounds what attackers hold of a cluster as long as they are {preprocess.alpha:g} of "
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
            f"{bounds}, not of a {whole.name} of {size}: there {attackers} can hold {share:.3g}. "
            f"{_remedy(preprocess, f, n, whole)}"
        )
    if lossy and f and whole.name == "round":
        yield (
            f"{bounds}, and of a round in which some clients do not answer they can hold more. "
            'Set scope to "subset": rounds of too few clients are then lost.'
        )


def _remedy(preprocess: Truncate, f: int, n: int, whole: Pool) -> str:
    """Return what gives a guarantee where truncation over the population does not."""
    if not _unbounded(
        Truncate(preprocess.alpha, preprocess.alpha_star, "subset"), dict.fromkeys(range(n), 1), _least(whole)
    ):
        return 'Set scope to "subset".'
    enough = feasible(f, _least(whole), n, preprocess.alpha_star)
    return f'Set scope to "subset", which is feasible with {enough}. For more clients, {whole.larger}.'


def named(preprocess: Truncate) -> str:
    """Return the truncation in words, as short as its options allow."""
    scope = "" if preprocess.scope is None else f", {preprocess.scope}"
    return f"Truncate({preprocess.alpha:g}, {preprocess.alpha_star:g}{scope})"


def _cohort(preprocess: Truncate, sizes: Sizes, whole: Pool, drawn: int | None) -> Iterator[str]:
    """Yield what is not guaranteed where alpha is the share of attackers in each set of clients."""
    f, size = preprocess.most(len(sizes)), _least(whole)
    few = preprocess.most(size)
    if few < min(f, size):
        yield (
            f"{named(preprocess)} is made for {plural(few, 'attacker')} in a {whole.name} of {size}, and {f} of "
            f'{len(sizes)} clients can be in it. Set scope to "subset".'
        )
    try:
        preprocess.among(preprocess.enrolled(dict.fromkeys(range(whole.full), 1)), range(whole.full))
    except InfeasibleError as error:
        if drawn is not None or whole.name == "round":
            raise InfeasibleError(f"No {whole.name} of {whole.full} can be weighed: {error}") from error
        yield f"A {whole.name} of {whole.full} is held back until more updates come: {error}"


def _refuse_subset(preprocess: Truncate, sizes: Sizes, whole: Pool, drawn: int | None) -> None:
    """Raise `InfeasibleError` if nothing is guaranteed where any clients can be in a set."""
    if preprocess.drawn is not None and (drawn is None or drawn > preprocess.drawn):
        found = "no clients are drawn" if drawn is None else f"{drawn} are"
        raise InfeasibleError(
            f"{named(preprocess)} counts on {preprocess.drawn} clients drawn at random for each round, and {found}. "
            f"Set drawn to {'null' if drawn is None else drawn}, or change participation."
        )
    if preprocess.drawn is not None and whole.versions > 1:
        raise InfeasibleError(
            f"{named(preprocess)} counts on the clients drawn for one round, and updates of {whole.versions} rounds "
            f"meet in a {whole.name}. Set memory.reuse to 0, or drawn to null."
        )
    if preprocess.infeasible == "hold" and (why := _unbounded(preprocess, sizes, whole.full)):
        by_lot = dataclasses.replace(preprocess, drawn=drawn)
        lot = (
            ""
            if drawn is None or _unbounded(by_lot, sizes, whole.full)
            else f" For clients by lot, set drawn to {drawn}."
        )
        raise InfeasibleError(f"No {whole.name} can be weighed: {why} For more clients, {whole.larger}.{lot}")


def _subset(preprocess: Truncate, sizes: Sizes, whole: Pool, *, lossy: bool) -> Iterator[str]:
    """Yield which sets are too small to be weighed, where any clients can be in a set."""
    if why := _unbounded(preprocess, sizes, whole.full):
        yield f"The clients of a {whole.name} of {whole.full} weigh the same, without a guarantee: {why}"
        return
    f, then = preprocess.attackers(len(sizes)), "is lost" if preprocess.infeasible == "hold" else "is not weighted"
    smaller = range(_least(whole), whole.full)
    least = _least(whole) + bisect_left(smaller, True, key=lambda q: not _unbounded(preprocess, sizes, q))
    if least > _least(whole):
        yield f"A {whole.name} of fewer than {least} {then}: {_unbounded(preprocess, sizes, least - 1)}"
    if lossy and f and (why := _unbounded(preprocess, sizes, whole.full - f)):
        yield f"If {f} of {plural(whole.full, 'client')} stay silent, the round {then}: {why}"
    if lossy and preprocess.drawn is not None:
        yield (
            f"{named(preprocess)} counts on draws among all {plural(len(sizes), 'client')}: "
            "if some cannot be reached, more attackers are drawn."
        )


def _unbounded(preprocess: Truncate, sizes: Sizes, size: int) -> str:
    """Return why no bound is feasible for sets of so many clients; "" if one is."""
    try:
        preprocess.bound(sizes, max(size, 1))
    except InfeasibleError as error:
        return str(error)
    return ""
