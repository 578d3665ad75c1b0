"""Figure 2 of Clustered Federated Learning: its risks, by autograd, and the two endings."""

import pytest
import torch

from papers.clustered_fl import PAPER, figure2
from phalanx.experiments.papers.experiment import Context, reproductions
from phalanx.experiments.papers.published import PublishedPaper


def test_it_is_found_and_trains_nothing():
    experiment = reproductions()["clustered-fl"].experiments["figure2"]
    assert experiment.paper == PAPER
    assert experiment.exhibit.runs("paper", 0) == {}


@pytest.mark.parametrize("ellipse", [e for pair in figure2.PROBLEMS.values() for e in pair])
def test_the_gradient_is_that_of_the_risk(ellipse):
    for point in 4 * torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) - 2:
        w = point.clone().requires_grad_()
        ellipse.risk(w).backward()
        assert torch.allclose(ellipse.gradient(point), w.grad, atol=1e-6)
    centre = torch.tensor(ellipse.centre)
    assert float(ellipse.risk(centre)) == 0
    assert not ellipse.gradient(centre).any()


def test_only_the_congruent_risks_are_zero_together():
    side = torch.linspace(-4, 4, 161)
    points = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    shared = {
        name: bool(((a.risk(points) == 0) & (b.risk(points) == 0)).any()) for name, (a, b) in figure2.PROBLEMS.items()
    }
    assert shared == {"incongruent": False, "congruent": True}


@pytest.mark.parametrize("seed", [0, 7])
def test_the_clients_are_divided_where_no_model_serves_both(seed):
    paths = {name: figure2.trained(pair, seed) for name, pair in figure2.PROBLEMS.items()}
    apart, together = (figure2.Ending.of(paths[name]) for name in ("incongruent", "congruent"))
    assert apart.cosine == pytest.approx(-1, abs=1e-3)
    assert (apart.mean < figure2.SHORT, apart.shortest > figure2.LONG) == (True, True)
    assert together.longest < figure2.SHORT
    assert [path.clusters for path in paths.values()] == [2, 1]
    for i, ellipse in enumerate(figure2.PROBLEMS["incongruent"]):
        assert float(ellipse.risk(paths["incongruent"].models[-1, i])) < 1e-4, "each cluster has a model of its own"
    assert (paths["congruent"].models[:, 0] == paths["congruent"].models[:, 1]).all()


def test_the_page():
    rendering = figure2.render({}, Context("quick", (0, 1, 2), PublishedPaper("clustered-fl", "", {})))
    assert len(rendering.tables[0].rows) == 6
    assert all(all(values) for values in (claim.values for claim in rendering.claims[1:]))
