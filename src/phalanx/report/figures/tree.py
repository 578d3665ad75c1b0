"""The tree of clusters: the steps of the splits, the clients and the accuracy of each cluster."""

from typing import TYPE_CHECKING

from phalanx.report.client_ledger import BYZANTINE
from phalanx.report.clusters import Clusters, colour
from phalanx.report.figures.drawing import COLOUR, FULL, Picture, canvas, styled, svg
from phalanx.report.words import ids, percent
from phalanx.wording import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, RIGHT, ROW = 24, 330, 44  # pixels
ROOM = 58  # pixels that an accuracy needs on the line of a cluster
LONGEST = 42  # characters that the ids of a cluster may take


def picture(clusters: Clusters, key: str) -> Picture | None:
    """Return the picture; None if nothing was split."""
    if len(clusters.leaves) < 2:
        return None
    leaves = "; ".join(
        f"cluster {v}: {_who(clusters, v)}, {percent(clusters.nodes[v].accuracy)}" for v in clusters.leaves
    )
    return Picture(
        _draw(clusters, key=key, label=f"Tree of {plural(len(clusters.nodes), 'cluster')}. At the end, {leaves}."),
        "Tree of clusters",
        "Each line is a cluster from the step in which it was split off to that in which it was split itself; the more"
        " clients, the thicker. Percentages: mean accuracy of what its clients were served, at the end, and before the"
        " split.",
        full=True,
    )


def _who(clusters: Clusters, cluster: int) -> str:
    """Return the clients of a cluster in words: "3 clients, 1 Byzantine: 0–2"; by name if all have one."""
    who = clusters.nodes[cluster].clients
    bad = sum(clusters.ledger.truth.get(client) == BYZANTINE for client in who)
    named = ids(who, clusters.ledger.names)
    whole = named[:LONGEST].rpartition(",")[0]
    short = named if len(named) <= LONGEST else f"{whole}, …" if whole else f"{named[: LONGEST - 1]}…"
    return f"{plural(len(who), 'client')}{f', {bad} Byzantine' if bad else ''}: {short}"


def _draw(clusters: Clusters, *, key: str, label: str) -> str:
    leaves, nodes = clusters.leaves, clusters.nodes
    last = clusters.steps[-1].step
    with styled(key):
        figure, axes = canvas(FULL, ROW * len(leaves) + 56, left=LEFT, right=RIGHT, bottom=44, grid=False)
        axes.set_xlim(0, last)
        axes.set_ylim(len(leaves) - 0.4, -0.6)
        y = {v: float(place) for place, v in enumerate(leaves)}
        for v in sorted(nodes, reverse=True):  # children before parents
            if children := clusters.children(v):
                y[v] = sum(y[child] for child in children) / len(children)
        for v in nodes:
            _draw_node(axes, clusters, v, y, last)
        for v in leaves:
            accuracy = percent(nodes[v].accuracy)
            axes.annotate(f"cluster {v}: {accuracy}", (last, y[v]), (12, 1), textcoords="offset points", va="bottom",
                          color=COLOUR[colour(v)], fontweight="bold", annotation_clip=False)  # fmt: skip
            axes.annotate(_who(clusters, v), (last, y[v]), (12, -2), textcoords="offset points", va="top",
                          color=COLOUR["muted"], fontsize=11, annotation_clip=False, parse_math=False)  # fmt: skip
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("step")
        return svg(figure, key, label)


def _draw_node(axes: "Axes", clusters: Clusters, v: int, y: dict[int, float], last: int) -> None:
    """Draw the line of a cluster, the branch to its children, and the accuracy of its model at the split."""
    node, everybody = clusters.nodes[v], max(len(clusters.nodes[0].clients), 1)
    end = last if node.ended is None else node.ended
    width = 2 + 10 * len(node.clients) / everybody
    axes.plot([node.born, end], [y[v], y[v]], color=COLOUR[colour(v)], linewidth=width, solid_capstyle="butt", zorder=3)
    if node.ended is None:
        return
    ends = [y[child] for child in clusters.children(v)]
    axes.plot([end, end], [min(ends), max(ends)], color=COLOUR["muted"], linewidth=1.5, zorder=2)
    if node.accuracy is not None and (end - node.born) * (FULL - LEFT - RIGHT) / last > ROOM:
        axes.annotate(percent(node.accuracy), (end, y[v]), (-6, 4 + width / 2), textcoords="offset points", ha="right",
                      va="bottom", color=COLOUR[colour(v)], fontweight="bold")  # fmt: skip
