"""Which clusters a run has found, in words."""

from phalanx.runs.found_clusters import LISTED, found_clusters
from phalanx.runs.schema import StepRecord


def step(**state):
    return StepRecord(step=1, version=1, seconds=0.0, state=state)


def test_the_last_step_with_clusters_counts():
    first, last = step(clusters={0: (0, 1, 2)}), step(clusters={1: (0,), 2: (1, 2)})
    assert found_clusters([first, last, step()]) == "2 clusters were found, of 2, 1 clients."
    assert found_clusters([first]) == "No groups of clients were found: all are in one cluster."
    assert found_clusters([step()]) == "", "nothing looked for clusters"


def test_why_there_is_one_is_said():
    about = {0: {"decision": "not split: no groups, gap 0.100, min_gap 0.3"}}
    said = "No groups of clients were found: no groups, gap 0.100, min_gap 0.3."
    assert found_clusters([step(clusters={0: (0, 1)}, separation=about)]) == said


def test_many_clusters_are_not_all_listed():
    sizes = [5] * LISTED + [1] * 3
    said = found_clusters([step(clusters={v: tuple(range(n)) for v, n in enumerate(sizes)})])
    assert said == f"11 clusters were found, of {', '.join(['5'] * LISTED)} clients, and 3 others."
