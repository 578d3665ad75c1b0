import html
from dataclasses import replace

import numpy as np
import pytest
import report_records as records

from phalanx import Run, Until, simulate
from phalanx.algorithms import FLHC
from phalanx.models import MLP
from phalanx.report import render
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.clusters import ClusterNode, Clusters
from phalanx.report.figures import cosines, norms, separation, tree

TITLES = ("Tree of clusters", "Norms of updates by cluster", "Cosines between updates",
          "Similarity across the two best parts", "Separation gaps")  # fmt: skip


@pytest.fixture(scope="module")
def three() -> Clusters:
    """Six clients in three groups: cluster 0 is split in step 3, its part 2 in step 4."""
    return Clusters(ClientLedger(records.make_clusters(6, 3)))


def test_tree(three: Clusters) -> None:
    assert three.nodes == {
        0: ClusterNode(None, 0, 3, (0, 1, 2, 3, 4, 5), pytest.approx(0.2)),  # before the split, not after
        1: ClusterNode(0, 3, None, (0, 1), pytest.approx(0.5)),
        2: ClusterNode(0, 3, 4, (2, 3, 4, 5), pytest.approx(0.2)),
        3: ClusterNode(2, 4, None, (2, 3), pytest.approx(0.51)),
        4: ClusterNode(2, 4, None, (4, 5), pytest.approx(0.52)),
    }
    assert three.leaves == (1, 3, 4)
    picture = tree.picture(three, "k")
    assert picture is not None
    assert "cluster 3: 2 clients: 2, 3, 51.0 %" in picture.svg


def test_a_tree_calls_clients_by_name_if_all_of_a_cluster_have_one() -> None:
    clusters = Clusters(ClientLedger(records.make_clusters(6, 3)))
    clusters.ledger.names |= {0: "Bern", 1: "Lyon", 2: "St. Mary's", 4: "Klinik " + "x" * 60, 5: "Süd"}
    picture = tree.picture(clusters, "k")
    assert picture is not None
    drawn = html.unescape(picture.svg)
    assert "cluster 1: 2 clients: Bern, Lyon, 50.0 %" in drawn
    assert "cluster 3: 2 clients: 2, 3, 51.0 %" in drawn
    assert f"cluster 4: 2 clients: Klinik {'x' * 34}…, 52.0 %" in drawn


def test_splits_and_whether_they_tear_a_group(three: Clusters) -> None:
    assert [tuple(split) for split in three.splits] == [
        (3, 0, pytest.approx(-0.3), 2, False),
        (4, 2, pytest.approx(-0.4), 2, False),
    ]
    record = records.make_clusters(6, 3)
    records.alter(record, 1, group=2)  # 1 and 0 are split off together; its peers 4 and 5 stay
    assert [split.torn for split in Clusters(ClientLedger(record)).splits] == [True, False]
    records.alter(record, 1, byzantine=True)  # nobody asks where attackers end
    assert [split.torn for split in Clusters(ClientLedger(record)).splits] == [False, False]
    records.alter(record, 0, group=None)
    assert Clusters(ClientLedger(record)).splits[0].torn is None


def test_a_clustering_into_one_cluster_is_no_split_and_one_into_three_is() -> None:
    plan = Run(clients=6, model=MLP(()), until=Until(2), algorithm=FLHC(rounds=0, clusters=1))
    one = Clusters(ClientLedger(record := simulate(plan)))
    assert [node.ended for node in one.nodes.values()] == [1, None]
    assert one.splits == []
    assert "Tree of clusters" not in render([record], "one")
    record = simulate(replace(plan, algorithm=FLHC(rounds=0, clusters=3)))
    ledger = ClientLedger(record)
    parts = [Clusters(ledger).nodes[v].clients for v in Clusters(ledger).children(0)]
    for shared in (False, True):  # the last two parts have a client of one group, or not
        for group, part in enumerate(parts):
            for client in part:
                records.alter(record, client, group=1 if shared and group == 2 else group)
        (split,) = Clusters(ClientLedger(record)).splits
        assert (split.smaller, split.torn) == (min(map(len, parts)), shared)


def test_curves_are_those_of_the_record(three: Clusters) -> None:
    assert three.curve(0, "norms", "mean") == ([1.0, 2.0, 3.0], [1.0, 0.5, pytest.approx(1 / 3)])
    assert three.curve(2, "separation", "gap") == ([4.0], [0.9])


def test_matrix_is_sorted_by_cluster() -> None:
    record = records.make_clusters(6, 3)
    for step in record.history[1:]:
        for about in step.state["similarity"].values():
            about["clients"] = [5, 4, 3, 2, 1, 0]
            about["alpha"] = [[round(0.1 * (5 - i) - 0.01 * (5 - j), 2) for j in range(6)] for i in range(6)]
    told = cosines.cosines(Clusters(ClientLedger(record)))
    assert told is not None
    assert (told.step, told.clients, told.blocks) == (3, (0, 1, 2, 3, 4, 5), ((1, 2), (3, 2), (4, 2)))
    np.testing.assert_allclose(told.alpha, [[0.1 * i - 0.01 * j for j in range(6)] for i in range(6)], atol=1e-9)


def test_pixels_are_blue_where_updates_agree(three: Clusters) -> None:
    told = cosines.cosines(three)
    assert told is not None
    pixels = cosines._pixels(told)
    assert pixels[0, 1].tolist() == [*cosines.BLUE, 255]
    assert pixels[0, 2].tolist() == [*cosines.VERMILLION, round(255 * 0.2 / told.full)]


def test_run_without_a_split_has_curves_and_no_tree() -> None:
    record = records.make_clusters(6, 3)
    del record.history[3:]
    clusters = Clusters(ClientLedger(record))
    assert tree.picture(clusters, "k") is None
    assert norms.picture(clusters, "k", full=True) is not None
    alpha = separation.alpha(clusters, "k")
    assert alpha is not None
    assert "No cluster was split in this run." in alpha.caption


@pytest.mark.slow
def test_page_has_them_where_there_are_clusters_only() -> None:
    page = render([records.make_clusters(100, 12)], "t")
    assert all(title in page for title in TITLES)
    assert "9 clients: 0–8" in page
    assert not any(title in render([records.make(steps=2)], "t") for title in TITLES)
