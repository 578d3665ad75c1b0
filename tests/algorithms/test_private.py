"""`Private`: what leaves a client is bounded and noisy, and what that guarantees is counted right."""

import dataclasses
import math
import re
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import kstest, norm

from flower.federations import KEYS, SMALL
from phalanx.algorithms import FedAvg, Permuted, Private, QFedAvg, Quorum
from phalanx.algorithms.private import privately, secretly
from phalanx.core import InfeasibleError, Verdict
from phalanx.flower import participant_of
from phalanx.flower.client import ClientWorker
from phalanx.flower.codec import TaskMessage, read_answer, task_content
from phalanx.installation import installation
from phalanx.rng import Entropy
from phalanx.runs import accounting as privacy
from phalanx.runs.record import Record
from phalanx.runs.schema import ClientRecord, StepRecord
from summaries import summary

D = 20_000


def test_an_upload_is_clipped_in_norm_and_keeps_its_direction():
    clips = Private(FedAvg(), clip=5.0, noise_multiplier=0.0)
    sent, memory = clips.upload(torch.tensor([6.0, 8.0]), None)
    assert sent.tolist() == [3.0, 4.0]
    assert memory is None
    short = torch.tensor([0.5, -0.25])
    assert torch.equal(clips.upload(short, None)[0], short)
    assert clips.upload(torch.zeros(2), None)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_what_is_not_finite_is_sent_as_zero_and_noise_and_what_is_huge_is_clipped(bad):
    delta = torch.full((D,), 0.1, dtype=torch.float64)
    delta[3] = bad
    sent, _ = Private(FedAvg(), clip=1.0, noise_multiplier=0.5).upload(delta, None)
    assert sent.isfinite().all()
    assert abs(float(sent.std()) - 0.5) < 0.02


@pytest.mark.parametrize("seed", [0, None], ids=["stream", "system"])
def test_the_noise_is_gaussian_with_the_deviation_that_was_asked_for(seed):
    sent, _ = Private(FedAvg(), clip=4.0, noise_multiplier=0.5, seed=seed).upload(torch.zeros(D), None)
    assert kstest(sent.double().numpy() / 2.0, "norm").pvalue > 1e-6


def test_noise_of_the_system_is_never_the_same_and_standard_normal_for_odd_counts_too():
    a, b = Entropy().standard_normal(D + 1), Entropy().standard_normal(D + 1)
    assert a.shape == (D + 1,)
    assert not np.array_equal(a, b)
    assert abs(np.corrcoef(a[: D // 2], a[-(D // 2) :])[0, 1]) < 0.05, "the halves of a transform are independent"
    assert kstest(a, "norm").pvalue > 1e-6


def test_noise_of_a_stream_is_the_same_for_the_same_upload_and_another_for_another():
    private = Private(FedAvg(), clip=1.0, noise_multiplier=1.0, seed=3)
    delta = torch.zeros(50)
    other = delta.clone()
    other[0] = 1e-9
    once, again, different = (private.upload(x, None)[0] for x in (delta, delta, other))
    assert torch.equal(once, again)
    assert not torch.allclose(once, different, atol=1e-2)
    assert not torch.equal(once, dataclasses.replace(private, seed=4).upload(delta, None)[0])


def test_on_a_deployment_the_noise_is_the_systems_wherever_private_is():
    inner = Private(FedAvg(), clip=1.0, noise_multiplier=1.0, seed=3)
    assert secretly(inner).seed is None
    nested = secretly(Quorum(Permuted(inner, seed=7), k=2))
    assert nested == Quorum(Permuted(dataclasses.replace(inner, seed=None), seed=7), k=2)
    plain = Permuted(FedAvg(), seed=7)
    assert secretly(plain) is plain
    assert privately(nested)
    assert not privately(plain)


def sent_by(participant):
    worker = ClientWorker(participant)
    task = TaskMessage("train", "abc", bytes(32), 1, 0, 0, "float32")
    return worker.train(task_content(task, torch.zeros(worker.trainer.model.size)))


@pytest.mark.parametrize(("noise", "alike"), [("system", False), ("stream", True)])
def test_a_participant_asks_the_system_and_sends_no_loss_unless_it_is_as_in_a_simulation(noise, alike):
    plan = dataclasses.replace(SMALL, algorithm=Private(FedAvg(), clip=1.0, noise_multiplier=1.0))
    participant = dataclasses.replace(participant_of(plan, 1, KEYS[1]), noise=noise)
    one, other = sent_by(participant), sent_by(participant)
    arrays = [next(iter(next(iter(content.array_records.values())).values())).data for content in (one, other)]
    assert (arrays[0] == arrays[1]) is alike
    assert (read_answer(one).value == 0.0) is (noise == "system"), "a loss tells what the noise is to hide"


def test_what_cannot_be_is_refused():
    with pytest.raises(InfeasibleError, match="QFedAvg needs the exact loss of each client"):
        Private(QFedAvg(), clip=1.0, noise_multiplier=1.0)
    for wrong in ({"clip": 0.0}, {"clip": math.inf}, {"noise_multiplier": -1.0}, {"noise_multiplier": math.nan}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Private(FedAvg(), **{"clip": 1.0, "noise_multiplier": 1.0, **wrong})
    with pytest.raises(ValueError, match=r"a run could not be repeated\. Give it one, 0 say"):
        dataclasses.replace(SMALL, algorithm=Quorum(Private(FedAvg(), 1.0, 1.0, seed=None), k=2))


# --- what it guarantees


def of_one_gaussian(multiplier, delta):
    """Balle and Wang 2018, Theorem 8: the exact epsilon of one Gaussian mechanism."""

    def excess(eps):
        a, b = 1 / (2 * multiplier), eps * multiplier
        return norm.cdf(a - b) - math.exp(eps) * norm.cdf(-a - b) - delta

    return brentq(excess, 0, 300)


@pytest.mark.parametrize(("z", "uploads"), [(10.0, 1), (20.0, 20), (8.0, 20)])
def test_the_account_is_that_of_the_formula_for_half_the_multiplier(z, uploads):
    """T Gaussian mechanisms of multiplier s are one of s / sqrt(T); two clipped updates differ by 2 clip."""
    wanted = of_one_gaussian(z / 2 / math.sqrt(uploads), 1e-5)
    assert privacy.epsilon(z, uploads) == pytest.approx(wanted, rel=1e-4)


def test_no_uploads_tell_nothing_and_no_noise_guarantees_nothing():
    assert privacy.epsilon(1.0, 0) == 0.0
    assert privacy.epsilon(0.0, 3) == math.inf


@pytest.mark.slow
def test_the_noise_that_is_needed_is_found():
    z = privacy.noise_multiplier_for(5.0, 20)
    assert 4.95 < of_one_gaussian(z / 2 / math.sqrt(20), 1e-5) <= 5.0


@pytest.mark.parametrize("wrong", [(-1.0, 1, 1e-5), (1.0, -1, 1e-5), (1.0, 1, 0.0), (1.0, 1, 1.0)])
def test_an_account_of_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must (be at least 0|lie in \(0, 1\))"):
        privacy.epsilon(*wrong)


def test_uploads_in_a_simulation_are_counted_from_its_history_and_never_too_few():
    used = Verdict(True, 1.0)
    history = [
        StepRecord(step=0, version=0, seconds=0.0, not_enrolled={9: "reports nothing"}),
        StepRecord(step=1, version=1, seconds=1.0, verdicts={0: used, 1: used}, lost={2: "silent"}),
        StepRecord(step=2, version=2, seconds=2.0, verdicts={1: used}, invalid={0: "NaN"}),
    ]
    assert privacy.uploads(Record({}, history, summary(clients={0: ClientRecord()}))) == {0: 2, 1: 2, 2: 1}


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(installation("privacy"))):
        privacy.epsilon(1.0, 1)
