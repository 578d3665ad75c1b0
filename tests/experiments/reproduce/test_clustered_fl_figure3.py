"""Figure 3 of Clustered Federated Learning: its trials, by hand and against the theorem, and what is drawn."""

import numpy as np
import pytest
import torch

from papers.clustered_fl import PAPER, figure3
from phalanx.clustering import bipartition, correct, max_noise_for_correct_clustering, separation_gap
from phalanx.experiments.papers.experiment import Context, reproductions
from phalanx.experiments.papers.published import PublishedPaper
from phalanx.experiments.shown.plotting import save, styled
from phalanx.numerics.linalg import cosine_similarity
from phalanx.rng import numpy_generator


@pytest.fixture
def small(monkeypatch):
    """Three numbers of distributions and four of noise, 20 trials each."""
    monkeypatch.setattr(figure3, "DISTRIBUTIONS", (2, 3, 10))
    monkeypatch.setattr(figure3, "NOISE", (0.0, 1.0, 2.0, 3.0))
    monkeypatch.setattr(figure3, "TRIALS", {"quick": 20, "paper": 40})


def context(scale="quick", seeds=(0,)):
    return Context(scale, seeds, PublishedPaper("clustered-fl", "", {}))


def test_it_is_found_and_trains_nothing():
    experiment = reproductions()["clustered-fl"].experiments["figure3"]
    assert experiment.paper == PAPER
    assert experiment.exhibit.runs("paper", 0) == {}


@pytest.mark.parametrize("k", [2, 5])
def test_gradients_are_what_the_theorem_assumes(k):
    v, x = figure3.gradients(k, 4, numpy_generator(0))
    assert v.shape == x.shape == (4, 3 * k, 100)
    np.testing.assert_allclose(v.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_array_equal(v[:, ::3], v[:, 2::3])
    np.testing.assert_allclose(np.linalg.norm(x, axis=2), np.linalg.norm(v, axis=2))


def test_judgement_by_hand():
    """Two distributions of three: apart; apart, but one of them only a chain; and with a client in the wrong place."""
    clear = np.full((6, 6), -0.9)
    clear[:3, :3] = clear[3:, 3:] = 0.9
    chain = clear.copy()
    chain[0, 2] = chain[2, 0] = -0.95
    wrong = clear.copy()
    wrong[2, 3:] = wrong[3:, 2] = 0.95
    wrong[2, :2] = wrong[:2, 2] = -0.9
    for alpha in (clear, chain, wrong):
        np.fill_diagonal(alpha, 1)
    np.testing.assert_array_equal(
        figure3.judged(np.stack([clear, chain, wrong])), [[True, True, False], [True, False, False]]
    )


def test_judgement_is_that_of_the_library():
    """Noise at which all three outcomes occur, each trial computed from the gradients themselves."""
    k, gamma, found = 4, 1.7, []
    v, x = figure3.gradients(k, 60, numpy_generator(1, "figure3", k))
    groups = np.arange(3 * k).reshape(k, 3).tolist()
    for updates in torch.from_numpy(v + gamma * x):
        alpha = cosine_similarity(updates)
        found.append((correct(bipartition(alpha), groups), separation_gap(alpha, groups) > 0))
    assert {(True, True), (True, False), (False, False)} <= set(found)
    shares = figure3.simulated([k], [gamma], 60, [1])
    assert (shares.correct[0, 0], shares.gap[0, 0]) == tuple(np.mean(found, axis=0))


def test_the_guarantee_holds_and_much_more_is_borne():
    for k in (2, 3, 8):
        guarantee = 0.999 * max_noise_for_correct_clustering(k)
        shares = figure3.simulated([k], [guarantee, 1.0, 30.0], 40, [0])
        assert shares.correct[0, :2].tolist() == [1, 1]
        assert shares.gap[0, 0] == 1
        assert shares.correct[0, 2] < 0.5
        assert (shares.gap <= shares.correct).all()


def test_trials_of_a_seed_are_its_own():
    one, other = (figure3.simulated([3, 6], [1.9], 30, [seed]).correct for seed in (0, 1))
    np.testing.assert_allclose(figure3.simulated([3, 6], [1.9], 30, [0, 1]).correct, (one + other) / 2)
    np.testing.assert_array_equal(figure3.simulated([6], [1.0, 1.9], 30, [0]).correct[:, 1], one[1])
    assert (one != other).any()


def test_what_is_borne_by_hand():
    noise = (0.5, 1.0, 1.5, 2.0)
    assert figure3.borne(noise, np.array([1.0, 0.95, 0.94, 1.0])) == 1.0
    assert figure3.borne(noise, np.ones(4)) == 2.0
    assert figure3.borne(noise, np.array([0.9, 1.0, 1.0, 1.0])) == 0.0


@pytest.mark.usefixtures("small")
def test_table_and_picture(tmp_path):
    with styled():
        rendering = figure3.render({}, context())
        (table,), (plot,) = rendering.tables, rendering.plots
        files = save(plot.figure, tmp_path / "figure3")
        again = save(figure3.render({}, context()).plots[0].figure, tmp_path / "again")
    assert [row[:3] for row in table.rows] == [["2", "6", "0.707"], ["3", "9", "0.383"], ["10", "30", "0.087"]]
    assert all(float(row[3].removeprefix(">= ")) >= float(row[4].removeprefix(">= ")) >= 1 for row in table.rows)
    assert "20 trials for each k" in table.notes[0]
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
    labels = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert labels == ["correct in 95 % of trials", "separation gap in 95 % of trials", "guaranteed by Theorem 1"]
    steps = plot.figure.axes[0].patches[-1].get_data()
    assert steps.values == pytest.approx([max_noise_for_correct_clustering(k) for k in (2, 3, 10)])


@pytest.mark.usefixtures("small")
def test_trials_by_scale_and_seeds():
    with styled():
        assert "120 trials" in figure3.render({}, context("paper", (0, 1, 2))).tables[0].notes[0]


def test_the_claim_is_on_the_k_with_the_smallest_margin(small):
    (claim,) = figure3.render({}, context(seeds=(0, 1))).claims
    for seed, value in enumerate(claim.values):
        shares = figure3.simulated((2, 3, 10), (0.0, 1.0, 2.0, 3.0), 20, [seed])
        borne = [figure3.borne((0.0, 1.0, 2.0, 3.0), row) for row in shares.correct]
        guaranteed = [max_noise_for_correct_clustering(k) for k in (2, 3, 10)]
        assert value == min(b / g for b, g in zip(borne, guaranteed, strict=True)) > 1
    assert claim.least == 1.0
