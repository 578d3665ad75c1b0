"""Which clusters a run has found, in words, and whether they are the groups."""

import itertools

import pytest
from sklearn.metrics import adjusted_rand_score

from phalanx.runs.found_clusters import LISTED, are_groups, found_clusters, groups_of, last_clusters, rand_index
from phalanx.runs.schema import ClientRecord, StepRecord


def step(**state):
    return StepRecord(step=1, version=1, seconds=0.0, state=state)


def test_the_last_step_with_clusters_counts():
    first, last = step(clusters={0: (0, 1, 2)}), step(clusters={1: (0,), 2: (1, 2)})
    assert found_clusters([first, last, step()], {}) == "2 clusters were found, of 2, 1 clients."
    assert found_clusters([first], {}) == "No groups of clients were found: all are in one cluster."
    assert found_clusters([step()], {}) == "", "nothing looked for clusters"


def test_why_there_is_one_is_said():
    about = {0: {"decision": "not split: no groups, gap 0.100, min_gap 0.3"}}
    said = "No groups of clients were found: no groups, gap 0.100, min_gap 0.3."
    assert found_clusters([step(clusters={0: (0, 1)}, separation=about)], {}) == said


def test_many_clusters_are_not_all_listed():
    sizes = [5] * LISTED + [1] * 3
    said = found_clusters([step(clusters={v: tuple(range(n)) for v, n in enumerate(sizes)})], {})
    assert said == f"11 clusters were found, of {', '.join(['5'] * LISTED)} clients, and 3 others."


def clients(groups, bad=()):
    return {i: ClientRecord(group=g, byzantine=i in bad) for i, g in enumerate(groups)}


def test_whether_they_are_the_groups_is_said_where_the_groups_are_known():
    divided = [step(clusters={1: (0, 1, 4), 2: (2, 3)})]
    assert found_clusters(divided, clients([0, 0, 1, 1, 0])).endswith("of 3, 2 clients, which are the groups.")
    assert found_clusters(divided, clients([0, 0, 1, 1, 1], bad=[4])).endswith("which are the groups."), "an attacker"
    index = adjusted_rand_score([0, 0, 1, 1, 1], [0, 0, 1, 1, 0])
    assert found_clusters(divided, clients([0, 0, 1, 1, 1])).endswith(f"Rand index with the groups {index:.2f}.")
    for none in ([None] * 5, [0] * 5):
        assert found_clusters(divided, clients(none)) == "2 clusters were found, of 3, 2 clients."
    lost = [step(clusters={1: (0, 1), 2: (4,)})]
    assert not found_clusters(lost, clients([0, 0, 1, 1, 1], bad=[4])).endswith("which are the groups."), "one is lost"


def test_clusters_are_the_groups_if_neither_divides_the_other():
    def oracle(clusters, groups, without):
        honest = [{*members} - {*without} for members in clusters]
        of = {i for members in honest for i in members}
        there = {g for i, g in groups.items() if i not in without}
        found = {frozenset(c) for c in honest if c} == {frozenset(i for i in of if groups[i] == g) for g in there}
        return found if len(there) > 1 else None

    tried = {True: 0, False: 0, None: 0}
    for n, without in ((4, ()), (4, (1,))):
        for groups, places in itertools.product(
            itertools.product(range(2), repeat=n), itertools.product(range(3), repeat=n)
        ):
            clusters = [tuple(i for i in range(n) if places[i] == v) for v in range(2)]  # place 2 is in no cluster
            about = dict(enumerate(groups))
            found = are_groups(clusters, about, without)
            assert found is oracle(clusters, about, without)
            tried[found] += 1
            index = rand_index(clusters, about, without)
            if found is None:
                assert index is None, "there is one group"
            elif {groups[i] for i in about if places[i] < 2 and i not in without} == {0, 1}:
                assert (index == 1) == found
            else:
                assert not found, "a group is in no cluster"
    assert min(tried.values()) > 100


@pytest.mark.parametrize(
    ("clusters", "groups"), [([], {0: 0}), ([(0, 1)], {}), ([(0, 1)], {5: 0}), ([(0, 1)], {0: 0, 1: 0})]
)
def test_without_groups_or_clusters_there_is_no_index(clusters, groups):
    assert rand_index(clusters, groups) is None
    assert not are_groups(clusters, groups)


def test_clusters_and_groups_of_a_record():
    assert last_clusters([step(clusters={0: (0, 1)}), step(clusters={3: (1,), 4: (0,)}), step()]) == ((1,), (0,))
    assert last_clusters([step()]) == ()
    assert groups_of(clients([1, None, 0])) == {0: 1, 2: 0}
