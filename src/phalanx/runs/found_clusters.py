"""Which clusters of clients a run has found, and whether they are the groups that there are."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from phalanx.runs.observed import observed
from phalanx.runs.schema import ClientRecord, StepRecord
from phalanx.wording import plural

LISTED = 8  # sizes that a sentence names, at most


def found_clusters(history: Iterable[StepRecord], clients: Mapping[int, ClientRecord]) -> str:
    """Return how many clusters there are at the end, and whether they are the groups, or why there is one.

    "" if the run looks for none.
    """
    steps = [step for step in history if observed(step, "clusters")]
    if not steps:
        return ""
    clusters, groups = last_clusters(steps), groups_of(clients)
    sizes = sorted(map(len, clusters), reverse=True)
    if len(sizes) == 1:
        looked = (observed(steps[-1], "separation") or {}).values()
        why = next((str(about.get("decision", "")).removeprefix("not split: ") for about in looked), "")
        return f"No groups of clients were found: {why or 'all are in one cluster'}."
    more = f", and {len(sizes) - LISTED} others" if len(sizes) > LISTED else ""
    said = f"{plural(len(sizes), 'cluster')} were found, of {', '.join(map(str, sizes[:LISTED]))} clients{more}"
    bad = [i for i, client in clients.items() if client.byzantine]
    if (index := rand_index(clusters, groups, bad)) is None:
        return f"{said}."
    right = are_groups(clusters, groups, bad)
    return f"{said}{', which are the groups' if right else f'; adjusted Rand index with the groups {index:.2f}'}."


def last_clusters(history: Iterable[StepRecord]) -> tuple[tuple[int, ...], ...]:
    """Return the clients of each cluster at the end; nothing if the run forms no clusters."""
    last: Mapping[int, tuple[int, ...]] = {}
    for step in history:
        last = observed(step, "clusters") or last
    return tuple(last.values())


def groups_of(clients: Mapping[int, ClientRecord]) -> dict[int, int]:
    """Return the number of the group of each client that is of one."""
    return {i: client.group for i, client in clients.items() if client.group is not None}


def are_groups(
    clusters: Sequence[Collection[int]], groups: Mapping[int, int], without: Collection[int] = ()
) -> bool | None:
    """Return whether the clients of each cluster are all those of a group, as far as they are in some cluster.

    A group of which no client is in a cluster is not found.

    Args:
        clusters: clients of each.
        groups: number of the group of each client that is of one; others do not count.
        without: clients that do not count, such as attackers.

    Returns:
        None if there are no clusters, or fewer than two groups.
    """
    known = _counted(groups, without)
    if not clusters or not known:
        return None
    pairs = {(v, known[i]) for v, members in enumerate(clusters) for i in members if i in known}
    return all(len({*side}) == len(pairs) for side in (*zip(*pairs, strict=True), known.values()))


def rand_index(
    clusters: Sequence[Collection[int]], groups: Mapping[int, int], without: Collection[int] = ()
) -> float | None:
    """Return the adjusted Rand index of clusters and groups (Hubert and Arabie, 1985), of the clients in clusters.

    1 where they are equal, 0 on average for clusters at random of these sizes.

    Args:
        clusters: clients of each.
        groups: number of the group of each client that is of one; others do not count.
        without: clients that do not count, such as attackers.

    Returns:
        None if there are fewer than two groups, no clusters, or nobody in them.
    """
    known = _counted(groups, without)
    of = {i: v for v, members in enumerate(clusters) for i in members if i in known}
    if not of:
        return None
    from sklearn.metrics import adjusted_rand_score  # noqa: PLC0415  (slow to import)

    return float(adjusted_rand_score([known[i] for i in of], [*of.values()]))


def _counted(groups: Mapping[int, int], without: Collection[int]) -> dict[int, int]:
    """Return the groups of the clients that count; nothing if there is one only, as in a run without groups."""
    known = {i: group for i, group in groups.items() if i not in without}
    return known if len({*known.values()}) > 1 else {}
