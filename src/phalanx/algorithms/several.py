"""One step of each of several clusters, for algorithms that keep a model for each."""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

from phalanx.aggregators import Aggregator
from phalanx.algorithms.rounds import MEMBERS, verdicts_of, weights_of
from phalanx.core import InfeasibleError, Pool, Rule, Setting, Updates, Vector, Verdict, Weighting
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Preprocess
from phalanx.wording import plural


@runtime_checkable
class Weighing(Protocol):
    """An algorithm with a rule within each cluster."""

    @property
    def aggregate(self) -> Aggregator:
        """The rule."""

    @property
    def preprocess(self) -> Preprocess:
        """Makes weights of the sizes of a cluster's members, and of no others."""


class NumberedClusters(NamedTuple):
    """Clusters by number."""

    members: Mapping[int, Set[int]]
    models: Mapping[int, Vector]
    aggregates: Mapping[int, Vector]  # what the rule returned last in each, for rules that start from there


class Stepped(NamedTuple):
    """Clusters after a round."""

    models: dict[int, Vector]  # the new ones in place of the old
    aggregates: dict[int, Vector]
    verdicts: dict[int, Verdict]  # of the round's clients; weights are shares in their own cluster


def step_each(
    algorithm: Weighing, clusters: NumberedClusters, sizes: Mapping[int, int], updates: Updates, turn: int
) -> Stepped:
    """Return the clusters after each has added what the rule makes of its members' updates.

    A cluster with too few updates for the rule, or for the preprocessor, stays as it is, and the others go on.

    Args:
        algorithm: says how the updates of a cluster are combined.
        clusters: before the round.
        sizes: reported by all clients.
        updates: of the round; each client is in one of the clusters.
        turn: number of the round, for rules that draw.

    Raises:
        InfeasibleError: no cluster that reported can go on.
    """
    made, errors = Stepped(dict(clusters.models), dict(clusters.aggregates), {}), dict[int, InfeasibleError]()
    reports = {v: updates.of(who) for v, who in clusters.members.items()}
    reports = {v: report for v, report in reports.items() if len(report)}
    for v, report in reports.items():
        who = clusters.members[v]
        try:
            n = weights_of(algorithm.preprocess.within(sizes, who, report.clients), report)
            rule, last = algorithm.aggregate, clusters.aggregates.get(v)
            delta, choice = combine(rule, report.deltas, n, report.clients, "cluster", turn=turn, previous=last)
        except InfeasibleError as error:
            errors[v] = error
            stays = Verdict(False, 0.0, None, f"cluster {v} stays as it is: {error}")
            made.verdicts.update(dict.fromkeys(report.clients, stays))
            continue
        made.models[v] = clusters.models[v] + delta
        made.aggregates[v] = delta
        where = f"cluster {v} of {plural(len(who), 'client')}"
        found = verdicts_of(report, n, choice).items()
        made.verdicts.update({i: replace(one, reason="; ".join(filter(None, (one.reason, where)))) for i, one in found})
    if errors and len(errors) == len(reports):
        v, why = next(iter(errors.items()))
        raise InfeasibleError(f"No cluster can go on. Of cluster {v}: {why}") from why
    return made


def weights_within(
    preprocess: Preprocess, sizes: Mapping[int, int], clusters: Iterable[Collection[int]], clients: Collection[int]
) -> dict[int, float]:
    """Return the weights of clients, each within its cluster; clients of no cluster have none."""
    used = dict[int, float]()
    for members in clusters:
        if there := [i for i in clients if i in members]:
            used |= preprocess.within(sizes, members, there)
    return used


def cluster_pool(rule: Rule | None, weighting: Weighting, setting: Setting) -> Pool:
    """Return what an algorithm aggregates at once that is free to make clusters of one client."""
    larger = "choose an algorithm with larger clusters"
    return Pool("cluster", rule, 1, setting.asked, weighting, larger, chosen="updates", parted=True, beyond=MEMBERS)
