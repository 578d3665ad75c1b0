"""The promise of a run: how many attackers it tolerates, in what, and why; or that it promises nothing, and why.

At each call of a rule that changes a model or a memory, any f of the clients ever enrolled hold at most a share of the
weight that the rule tolerates.  Attackers choose updates, losses, sizes, timing and absence, and whom they resemble.
The server's records are true, and an attacker under several names is several clients.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from phalanx.aggregators import Aggregator
from phalanx.core import Algorithm, InfeasibleError, Pool, Setting, Tolerance
from phalanx.promises.promise_watch import BrokenPromise
from phalanx.promises.remarks import named, refuse, remarks
from phalanx.weighting import AsReported, Truncate
from phalanx.weighting.sampling import more_drawn
from phalanx.wording import plural

MOSTLY = 0.9  # share of clients above the bound from which truncation leaves hardly a difference
TAKEN = {"unweighted": "aggregated with equal weights, and counted", "remark": "aggregated all the same, and counted"}
LIKELY = Fraction(1, 100)  # largest probability that a run draws more attackers than a promise says


@dataclass(frozen=True)
class Bound:
    """What is promised of one pool.

    Args:
        pool: what is combined.
        f: number of clients.
        share: the largest share of the weight that any f clients hold.
        tolerance: that of the rule.
        by: "construction" if it follows from the settings; "audit" if smaller sets are not aggregated.
        least: number of clients of the smallest set that is aggregated.
        broken: treatment of smaller sets, as by `LoopSettings.broken_promise`.
    """

    pool: Pool
    f: int
    share: Fraction
    tolerance: Tolerance
    by: Literal["construction", "audit"]
    least: int
    broken: BrokenPromise = "hold"

    @property
    def because(self) -> str:
        """Why the pool tolerates f attackers, in words."""
        less = TAKEN.get(self.broken, "not aggregated")
        return (
            f"In each {self.pool.name} they hold at most {float(self.share):.3g} of the weight, and "
            f"{self.tolerance.limit} is tolerated: {_bounded(self)}."
            + (f" Sets of fewer than {self.least} are {less}." if self.least > self.pool.smallest else "")
        )


@dataclass(frozen=True)
class Promise:
    """The promise of a run.

    Args:
        f: number of clients, any of those enrolled, that may be attackers at once.
        clients: number of clients that are enrolled.
        bounds: why, for each thing that is aggregated; none if f is 0, or if nothing is shared.
        missing: why nothing, or less than was asked for, is promised, with the remedy; a sentence each.
        beyond: what else is not promised; a sentence each.
        in_step: how many of the f can be in one aggregation, but for `failure`.
        failure: the largest probability in a round that more of them are drawn.
        likely: number of attackers that are tolerated but for the probability `unlikely` in the whole run; None if it
            is no other than f.
        unlikely: see `likely`.
        remarks: what a run warns of at its start, a sentence each: promises that were asked for and are not given, and
            attackers that stop the run by silence.
        needs: how many answers an aggregation needs, and what brings them, in words; "" if any number does.
    """

    f: int
    clients: int
    bounds: tuple[Bound, ...] = ()
    missing: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    in_step: int = 0
    failure: Fraction = Fraction(0)
    likely: int | None = None
    unlikely: Fraction = Fraction(0)
    remarks: tuple[str, ...] = field(default=(), compare=False)
    needs: str = field(default="", compare=False)

    @property
    def sentence(self) -> str:
        """The promise in a sentence."""
        if not self.f:
            why = self.missing[0]
            name = why.split(" ")[0][1:]  # FedAvg, Truncate(0.1, 0.5): such a name keeps its capital
            return f"Promises nothing: {why if name and not name.islower() else why[:1].lower() + why[1:]}"
        if not self.bounds:
            return f"Tolerates any number of the {plural(self.clients, 'client')}: no update of one reaches another."
        words = f"Tolerates any {self.f} of {plural(self.clients, 'client')}"
        if self.failure:
            words += f", except with probability {float(self.failure):.2g} in a round"
        if self.likely is not None:
            words += f"; {self.likely}, chosen before the draws, except with probability {float(self.unlikely):.2g}"
        broken = {bound.broken for bound in self.bounds} - {"hold"}
        return f"{words}. What breaks that is {TAKEN[broken.pop()]}." if broken else f"{words}."

    @property
    def text(self) -> tuple[str, ...]:
        """The promise in words, with its reasons and limits; a sentence or two each."""
        found = [self.sentence, *(bound.because for bound in self.bounds), *self.missing[0 if self.f else 1 :]]
        found += [self.needs] if self.needs else []
        limits = self.beyond if not self.f else (*self.beyond, "Accuracy is not promised.")
        return tuple(dict.fromkeys((*found, *limits)))


def promise(
    algorithm: Algorithm[Any], setting: Setting, *, f: int | None = None, broken: BrokenPromise = "hold"
) -> Promise:
    """Return what an algorithm promises.

    Args:
        algorithm: of the run.
        setting: of the run.
        f: number of attackers that must be tolerated: sets in which they could hold too much are not aggregated. None:
            as many as the weights are made for, such as by `Truncate`, or else as many as any set tolerates.
        broken: treatment of sets in which they could hold too much, as by `LoopSettings.broken_promise`.

    Raises:
        InfeasibleError: no step could ever be taken, or none that tolerates f attackers.

    Example:
        >>> from phalanx.aggregators import Median
        >>> from phalanx.algorithms import FedAvg, Quorum
        >>> from phalanx.weighting import Ignore
        >>> promise(Quorum(FedAvg(Median(), Ignore()), k=7), Setting(clients=12)).sentence
        'Tolerates any 3 of 12 clients.'
        >>> promise(FedAvg(), Setting(clients=12)).f
        0
    """
    pools = algorithm.pools(setting)
    refuse(algorithm, pools, setting, f)
    if pools is None:
        why = f"It is not said what {algorithm.title} combines. Define `pools`."
        return _nothing(algorithm, setting, None, (why,), f)
    if not pools:
        n = setting.clients
        return Promise(n, n, in_step=n, remarks=remarks(algorithm, pools, setting, n))
    asked = f if f is not None else _requested(pools, setting)
    certain = min(_most(pool, setting) for pool in pools)
    found = certain if asked is None else min(certain, asked)
    if asked is not None and asked > certain and _can_hold(pools, setting, asked, forced=f is not None):
        found = asked
    if found == 0 or (f is not None and found < f):
        missing = tuple(dict.fromkeys(_why(algorithm, pool, setting) for pool in pools if not _most(pool, setting)))
        if f is not None and found < f:
            why = missing[0] if missing else f"only {certain} are tolerated."
            raise InfeasibleError(f"{plural(f, 'attacker')} of {plural(setting.clients, 'client')}: {why}")
        return _nothing(algorithm, setting, pools, missing, f)
    by: Literal["construction", "audit"] = "audit" if found > certain else "construction"
    bounds = tuple(replace(_bound(pool, setting, found, by), broken=broken) for pool in pools)
    in_step = max(_inside(pool, setting, found) for pool in pools)
    failure = max(_failure(pool, setting, found) for pool in pools)
    likely, unlikely = _likely(pools, setting, found)
    said = remarks(algorithm, pools, setting, found)
    missing = said if asked is not None and found < asked else ()
    said_beyond = dict.fromkeys(
        (*(pool.beyond for pool in pools if pool.beyond), *_alike(pools[0], setting), *_by_sizes(pools, setting))
    )
    beyond = tuple(one for one in said_beyond if not any(one != more and one in more for more in said_beyond))
    needs = _needs(bounds, setting) if algorithm.traits.synchronous else ""
    return Promise(found, setting.clients, bounds, missing, beyond, in_step, failure, likely, unlikely, said, needs)


def _nothing(
    algorithm: Algorithm[Any], setting: Setting, pools: tuple[Pool, ...] | None, missing: tuple[str, ...], f: int | None
) -> Promise:
    """Return that nothing is promised; raise `InfeasibleError` if a promise is required."""
    if f:
        raise InfeasibleError(f"{plural(f, 'attacker')} of {plural(setting.clients, 'client')}: {missing[0]}")
    return Promise(0, setting.clients, (), missing, remarks=remarks(algorithm, pools, setting, 0))


def _requested(pools: tuple[Pool, ...], setting: Setting) -> int | None:
    """Return the number of attackers that the weights are made for; None for no number."""
    found = [pool.weighting.requested(setting.clients) for pool in pools if pool.weighting is not None]
    return max((number for number in found if number is not None), default=None)


def tolerance(pool: Pool, q: int) -> Tolerance:
    """Return what the rule of a pool tolerates of q rows."""
    if isinstance(pool.rule, Aggregator):
        return pool.rule.tolerates(q)
    name = f"The rule {pool.rule.title}" if pool.rule is not None else "No rule"
    return Tolerance.none(f"{name} states no share of the weight that it tolerates.")


def _share(pool: Pool, setting: Setting, f: int, q: int) -> Fraction:
    """Return the largest share of the weight that any f clients hold of q clients of a pool."""
    if not f or (pool.several and f):
        return Fraction(bool(f))
    if pool.weighting is None:
        return Fraction(min(f, q), q)
    sizes = None if setting.joins else setting.sizes
    inside = _inside(pool, setting, f)
    return pool.weighting.held(sizes, inside, q, setting.clients, parted=pool.parted)


def _inside(pool: Pool, setting: Setting, f: int) -> int:
    """Return how many of f attackers can be in one set, but for a small probability if these are drawn."""
    if pool.chosen == "lot" and not setting.lossy and pool.weighting is not None:
        return pool.weighting.taking_part(f, setting.clients)
    return f


def _keeps(pool: Pool, setting: Setting, f: int, q: int) -> bool:
    """Return whether a set of q clients tolerates f attackers."""
    allowed = tolerance(pool, q)
    alike = not allowed.equal or _share(pool, replace_sizes(setting), 1, q) == Fraction(1, q)
    return alike and allowed.allows(_share(pool, setting, f, q))


def replace_sizes(setting: Setting) -> Setting:
    """Return the setting with any sizes."""
    return replace(setting, sizes=None)


def _reachable(pool: Pool, setting: Setting) -> Iterator[int]:
    """Yield the sizes of sets that are aggregated: neither the rule nor the weights refuse them."""
    for q in range(pool.smallest, pool.full + 1):
        if tolerance(pool, q).least <= q and (pool.weighting is None or pool.weighting.feasible(q, setting.clients)):
            yield q


def _most(pool: Pool, setting: Setting) -> int:
    """Return the largest number of attackers that every set of a pool tolerates, by construction."""
    if pool.unproven or pool.several:
        return 0
    sizes = list(_reachable(pool, setting)) or [pool.full]
    if len({tolerance(pool, q).share for q in (sizes[0], sizes[-1])}) == 1:
        sizes = sizes[:1]  # a smaller set never tolerates more, if the share is the same
    low, high = 0, setting.clients
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if all(_keeps(pool, setting, middle, q) for q in sizes) else (low, middle - 1)
    return low


def _can_hold(pools: tuple[Pool, ...], setting: Setting, f: int, *, forced: bool) -> bool:
    """Return whether sets that do not tolerate f attackers are held back, and a full set tolerates them."""
    return all(
        not pool.unproven
        and (_most(pool, setting) >= f or forced or (pool.weighting is not None and pool.weighting.holds))
        and _keeps(pool, setting, f, pool.full)
        for pool in pools
    )


def _bound(pool: Pool, setting: Setting, f: int, by: Literal["construction", "audit"]) -> Bound:
    """Return what is promised of a pool that tolerates f attackers."""
    sizes = list(_reachable(pool, setting)) or [pool.full]
    q = next(q for q in (*sizes, pool.full) if _keeps(pool, setting, f, q))
    return Bound(pool, f, _share(pool, setting, f, q), tolerance(pool, q), by, q)


def _needs(bounds: tuple[Bound, ...], setting: Setting) -> str:
    """Return how many answers an aggregation of a round needs, and what brings them; "" if any number does."""
    held = [bound for bound in bounds if bound.least > bound.pool.smallest]
    if not held:
        return ""
    bound = max(held, key=lambda bound: bound.least)
    pool, remedy = bound.pool, bound.pool.larger
    if setting.lossy:
        remedy = (
            "raise the deadline, let late answers count by deadline.grace, or choose Quorum, which waits for enough"
        )
    needed = f"A {pool.name} needs the answers of at least {bound.least} of {plural(pool.full, 'client')}."
    return f"{needed} If fewer come, {remedy}."


def _failure(pool: Pool, setting: Setting, f: int) -> Fraction:
    """Return the probability that a draw brings more of f attackers than the weights are made for."""
    inside = _inside(pool, setting, f)
    return Fraction(0) if inside == f else more_drawn(setting.clients, f, setting.asked, inside)


def _likely(pools: tuple[Pool, ...], setting: Setting, f: int) -> tuple[int | None, Fraction]:
    """Return the number of attackers of whom a whole run draws more than f at once with a small probability only."""
    steps, n = setting.steps, setting.clients
    by_lot = all(pool.chosen == "lot" and pool.versions == 1 for pool in pools)
    if not by_lot or setting.lossy or steps is None or any(_inside(pool, setting, f) != f for pool in pools):
        return None, Fraction(0)
    low, high = f, n
    while low < high:
        middle = (low + high + 1) // 2
        rare = steps * more_drawn(n, middle, setting.asked, f) <= LIKELY
        low, high = (middle, high) if rare else (low, middle - 1)
    return (low, steps * more_drawn(n, low, setting.asked, f)) if low > f else (None, Fraction(0))


def _alike(pool: Pool, setting: Setting) -> Iterator[str]:
    """Yield that truncation leaves hardly a difference between clients, if it does."""
    truncate, sizes = pool.weighting, setting.sizes
    if not isinstance(truncate, Truncate) or truncate.scope == "cohort" or sizes is None:
        return
    q = next(_reachable(pool, setting), pool.full)
    try:
        bound = max(truncate(sizes).values()) if truncate.scope == "population" else truncate.bound(sizes, q)
    except InfeasibleError:
        return  # they weigh the same, and the run warns of it
    above, least = sum(size > bound for size in sizes.values()), min(sizes, key=lambda i: sizes[i])
    if above >= MOSTLY * len(sizes):
        yield (
            f"{named(truncate)} counts sizes above {bound:g} as {bound:g}, those of {above} of "
            f"{plural(len(sizes), 'client')}, which weigh alike. Client {least} reports the least, {sizes[least]}."
        )


def _by_sizes(pools: tuple[Pool, ...], setting: Setting) -> Iterator[str]:
    """Yield that the promise is for the sizes that were reported, if other sizes would change it."""
    if setting.sizes is not None and not setting.joins and any(isinstance(one.weighting, AsReported) for one in pools):
        yield "It is for the sizes that were reported."


def _why(algorithm: Algorithm[Any], pool: Pool, setting: Setting) -> str:
    """Return why a pool tolerates nobody, with the remedy."""
    allowed = tolerance(pool, pool.full)
    if pool.unproven or not allowed.share:
        return pool.unproven or f"{allowed.source} Choose another rule, such as Median."
    if pool.several:
        return f"One fast client can send every update of a {pool.name}. To bound that, {pool.larger}."
    alike = replace(pool, weighting=None, parted=False)
    if not _keeps(pool, setting, 1, pool.full):
        return _by_weight(pool, allowed) if _keeps(alike, setting, 1, pool.full) else _too_small(pool, pool.full)
    if pool.name == "round" and setting.lossy:
        return (
            "A round that ends without some answers can be one of attackers alone. Set tolerate to the number of "
            "attackers, or preprocess to Truncate(alpha, alpha_star): smaller rounds are then lost."
        )
    least = next(_reachable(pool, setting), pool.full)
    return _by_weight(pool, allowed) if _keeps(alike, setting, 1, least) else _too_small(pool, pool.smallest)


def _by_weight(pool: Pool, allowed: Tolerance) -> str:
    """Return that one client can have too much weight, with the remedy."""
    remedy = "Set preprocess to Truncate(alpha, alpha_star) or to Ignore()."
    if isinstance(pool.weighting, Truncate) and pool.weighting.scope == "subset":
        remedy = "Lower alpha_star, or set preprocess to Ignore()."
    weights = named(pool.weighting) if isinstance(pool.weighting, Truncate) else str(pool.weighting)
    if pool.parted and isinstance(pool.weighting, Truncate):
        return f"{weights} bounds what attackers hold of all clients, and all of them can be in one cluster. {remedy}"
    return (
        f"By {weights}, a client that reports enough examples can hold too much of a {pool.name}: {allowed.limit} is "
        f"tolerated. {remedy}"
    )


def _too_small(pool: Pool, size: int) -> str:
    return (
        f"A {pool.name} can be of {plural(size, 'client')}, of which one attacker is too many. "
        f"To tolerate one, {pool.larger}, or set tolerate to 1: smaller sets are then not aggregated."
    )


def _bounded(bound: Bound) -> str:
    """Return what is bounded, in words."""
    if bound.pool.bounds == "share":
        return "no more than their share is bounded"
    if bound.pool.bounds == "shift":
        of = "range of honest entries" if bound.tolerance.means == "range" else "length of the longest honest update"
        return f"what they shift is bounded by the {of}"
    return {
        "range": "each entry stays between honest entries",
        "distance": "the result stays near the honest updates",
        "length": "the result is no longer than the longest honest update",
        "selection": "an honest update is always among those that are used",
        "nothing": "nothing",
    }[bound.tolerance.means]
