"""Observed figures of algorithms as pages and measures read them: of a known form, or not at all.

A history says what it likes: it may come from elsewhere, or from an algorithm of one's own that means something else by
the same name.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from typing_extensions import TypedDict

from phalanx.runs.schema import StepRecord

Clients = tuple[int, ...]


class Alike(TypedDict):
    """The cosines of a cluster's updates, by row and column in the order of its clients."""

    clients: Clients
    alpha: tuple[tuple[float | None, ...], ...]


FORMS: Mapping[str, Any] = {
    "clusters": dict[int, Clients],
    "parents": dict[int, int | None],
    "born": dict[int, int],
    "separation": dict[int, dict[str, Any]],
    "norms": dict[int, dict[str, Any]],
    "similarity": dict[int, Alike],
    "reputation": dict[int, float | None],
    "quota": dict[int, float | None],
    "proven": dict[int, float | None],
    "threshold": float | None,
    "alpha_cross": float | None,
}


def observed(step: StepRecord, name: str) -> Any:
    """Return a figure of a step's state, one of FORMS; None if it is not there, or has another form."""
    try:
        found = msgspec.convert(step.state.get(name), FORMS[name] | None)
    except msgspec.ValidationError:
        return None
    if name == "similarity" and found and not all(_square(about) for about in found.values()):
        return None
    return found


def _square(about: Alike) -> bool:
    m = len(about["clients"])
    return len(about["alpha"]) == m and all(len(row) == m for row in about["alpha"])


def observed_tree(step: StepRecord) -> tuple[dict[int, Clients], dict[int, int | None], dict[int, int]] | None:
    """Return the clusters of a step, the parents and the births of all that ever were; None if they are no tree."""
    clusters, parents, born = (observed(step, name) for name in ("clusters", "parents", "born"))
    if not (clusters and parents and born) or not clusters.keys() <= parents.keys() == born.keys():
        return None
    above = (parent is None or (parent < v and parent in parents) for v, parent in parents.items())
    return (clusters, parents, born) if all(above) and 0 in parents else None
