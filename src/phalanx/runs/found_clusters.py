"""Which clusters of clients a run has found, in words."""

from collections.abc import Iterable

from phalanx.runs.schema import StepRecord
from phalanx.wording import plural

LISTED = 8  # sizes that a sentence names, at most


def found_clusters(history: Iterable[StepRecord]) -> str:
    """Return how many clusters there are at the end, or why there is one; "" if the run looks for none."""
    states = [step.state for step in history if step.state.get("clusters")]
    if not states:
        return ""
    sizes = sorted(map(len, states[-1]["clusters"].values()), reverse=True)
    if len(sizes) == 1:
        looked = states[-1].get("separation", {}).values()
        why = next((str(about.get("decision", "")).removeprefix("not split: ") for about in looked), "")
        return f"No groups of clients were found: {why or 'all are in one cluster'}."
    more = f", and {len(sizes) - LISTED} others" if len(sizes) > LISTED else ""
    return f"{plural(len(sizes), 'cluster')} were found, of {', '.join(map(str, sizes[:LISTED]))} clients{more}."
