"""Which clusters of clients a run has found, in words."""

from collections.abc import Iterable

from phalanx.runs.observed import observed
from phalanx.runs.schema import StepRecord
from phalanx.wording import plural

LISTED = 8  # sizes that a sentence names, at most


def found_clusters(history: Iterable[StepRecord]) -> str:
    """Return how many clusters there are at the end, or why there is one; "" if the run looks for none."""
    steps = [step for step in history if observed(step, "clusters")]
    if not steps:
        return ""
    sizes = sorted(map(len, observed(steps[-1], "clusters").values()), reverse=True)
    if len(sizes) == 1:
        looked = (observed(steps[-1], "separation") or {}).values()
        why = next((str(about.get("decision", "")).removeprefix("not split: ") for about in looked), "")
        return f"No groups of clients were found: {why or 'all are in one cluster'}."
    more = f", and {len(sizes) - LISTED} others" if len(sizes) > LISTED else ""
    return f"{plural(len(sizes), 'cluster')} were found, of {', '.join(map(str, sizes[:LISTED]))} clients{more}."
