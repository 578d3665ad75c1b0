"""`ByClass`: who disagrees on a class, by hand, and label flippers on real digits."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

import phalanx
from phalanx import fairness
from phalanx.algorithms import RFFL, ByClass
from phalanx.algorithms.agreement import Agreement
from phalanx.attacks import LabelFlip
from phalanx.core import InfeasibleError
from phalanx.data import Digits
from phalanx.models import MLP, KimCNN, Model, XuLyuMnistCNN
from phalanx.rng import generator
from toys import updates

TWO = ByClass(start=1, classes=2, features=1, least=0.5, patience=0)  # one entry before, two weights, two biases


def rows_of(*updates_):
    return TWO.rows(torch.tensor(updates_))


def test_a_row_has_the_weights_and_the_bias_of_a_class():
    rows = rows_of([9.0, 1.0, 2.0, 3.0, 4.0])
    assert rows.tolist() == [[[1.0, 3.0], [2.0, 4.0]]]
    assert rows.dtype == torch.float64


def test_the_class_on_which_they_agree_least():
    rows = rows_of([0.0, 1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 5.0])
    found = TWO.agreements(dict(enumerate(rows)))
    assert found[2] == Agreement(pytest.approx(0.0), 1), "(0, 5) against (2, 0)"
    assert found[0] == Agreement(pytest.approx(1 / 26**0.5), 1), "(1, 0) against (1, 5)"


def test_against_a_plain_loop():
    rng = generator(0, "agreement")
    algorithm = ByClass(start=3, classes=4, features=5)
    rows = algorithm.rows(torch.randn(6, 40, generator=rng))
    found = algorithm.agreements(dict(enumerate(rows)))
    for i in range(6):
        cosines = []
        for c in range(4):
            others = sum(rows[j, c] for j in range(6) if j != i)
            cosines.append(float(rows[i, c] @ others / rows[i, c].norm() / others.norm()))
        assert found[i].cosine == pytest.approx(min(cosines))
        assert found[i].disputed == cosines.index(min(cosines))


def test_who_says_nothing_of_a_class_agrees_on_it():
    rows = rows_of([0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0])
    assert [a.cosine for a in TWO.agreements(dict(enumerate(rows))).values()] == pytest.approx([1.0, 1.0, 1.0])
    assert TWO.agreements({7: rows[0]}) == {7: Agreement(1.0, 0)}


@pytest.mark.parametrize("m", [3, 5])
def test_order_and_scale_do_not_matter(m):
    rows = ByClass(0, 3, 4).rows(torch.randn(m, 15, generator=generator(m, "order")))
    algorithm = ByClass(0, 3, 4)
    found = algorithm.agreements(dict(enumerate(rows)))
    again = algorithm.agreements({m - 1 - i: 7.0 * row for i, row in enumerate(rows.flip(0))})
    assert {i: a.disputed for i, a in found.items()} == {i: a.disputed for i, a in again.items()}
    assert all(a.cosine == pytest.approx(again[i].cosine) for i, a in found.items())


# --- in RFFL: two classes, and a client that lies about the second

HONEST, LIAR = [1.0, 1.0, 1.0, 0.0, 0.0], [1.0, 1.0, -1.0, 0.0, 0.0]
ASKED = RFFL(clip=None, threshold=0.0, agreement=TWO)


def rounds(algorithm, sent, n=1):
    state, ready = algorithm.init(torch.zeros(5), dict.fromkeys(range(len(sent)), 10))
    for _ in range(n):
        clients = sorted(ready)
        state, ready = algorithm.step(state, updates([sent[i] for i in clients], clients))
    return state, ready


def test_a_liar_is_removed_and_the_class_is_named():
    state, ready = rounds(ASKED, [HONEST, HONEST, HONEST, LIAR])
    assert ready == {0, 1, 2}
    assert state.verdicts[3].reason == "agrees by -1.00 < 0.5 on class 1, excluded"
    assert state.verdicts[3].final
    assert 3 not in state.sent
    assert rounds(replace(ASKED, agreement=None), [HONEST, HONEST, HONEST, LIAR])[1] == {0, 1, 2, 3}


def test_who_agrees_by_the_least_that_is_asked_stays():
    aside = [1.0, 1.0, 0.0, 0.0, 1.0]  # the row of class 1 is (0, 1), that of the others (1, 0)
    for least, left in ((0.0, {0, 1, 2, 3}), (0.01, {0, 1, 2})):
        algorithm = replace(ASKED, agreement=replace(TWO, least=least))
        assert rounds(algorithm, [HONEST, HONEST, HONEST, aside])[1] == left


def test_patience_and_probation():
    patient = replace(ASKED, agreement=replace(TWO, patience=2))
    assert rounds(patient, [HONEST, HONEST, HONEST, LIAR], 2)[1] == {0, 1, 2, 3}
    assert rounds(patient, [HONEST, HONEST, HONEST, LIAR], 3)[1] == {0, 1, 2}
    state, ready = rounds(replace(ASKED, probation=2), [HONEST, HONEST, HONEST, LIAR])
    assert (ready, dict(state.probation)) == ({0, 1, 2, 3}, {3: 1})
    assert state.verdicts[3].reason == "agrees by -1.00 < 0.5 on class 1, on probation since round 1"


def test_a_liar_is_removed_in_the_warm_up_which_spares_low_reputations_only():
    lenient, low = replace(ASKED, warmup=5), replace(ASKED, agreement=None, threshold=0.99)
    assert rounds(lenient, [HONEST, HONEST, HONEST, LIAR])[1] == {0, 1, 2}
    assert rounds(low, [HONEST, HONEST, HONEST, LIAR])[1] == {0, 1, 2}
    assert rounds(replace(low, warmup=5), [HONEST, HONEST, HONEST, LIAR])[1] == {0, 1, 2, 3}


def test_who_agrees_again_comes_back():
    algorithm = replace(ASKED, probation=9)
    state, ready = rounds(algorithm, [HONEST, HONEST, HONEST, LIAR])
    for _ in range(3):  # what it sent since the start adds up to the truth
        state, ready = algorithm.step(state, updates([HONEST] * 4, range(4)))
    assert (dict(state.probation), ready) == ({}, {0, 1, 2, 3})


@pytest.mark.parametrize("sent", [[HONEST, LIAR], [HONEST, HONEST, LIAR, LIAR], [HONEST, LIAR, LIAR]])
def test_without_a_majority_nobody_leaves_for_it(sent):
    state, ready = rounds(ASKED, sent)
    assert len(state.reputable) * 2 > len(sent) or len(ready) == len(sent)
    assert ready, "never is everybody removed"


def test_layers_of_models():
    found = ByClass.of(XuLyuMnistCNN(), (1, 28, 28), 10)
    assert (found.start, found.stop) == (576 + 64 + 50_176 + 16 + 51_200 + 200, 104_242)
    assert (found.classes, found.features) == (10, 200)
    assert ByClass.of(MLP((16,)), (64,), 10, least=0.2, patience=5) == ByClass(64 * 16 + 16, 10, 16, 0.2, 5)
    assert ByClass.of(KimCNN(100, 8, 4), (20,), 2).features == 12


def test_a_model_without_such_a_layer_is_refused():
    with pytest.raises(ValueError, match="ByClass needs a fully connected output layer"):
        ByClass.of(Convolutional(), (1, 8, 8), 3)
    with pytest.raises(ValueError, match=r"have the shapes \[\(3, 64\), \(3, 3\)\]"):
        ByClass.of(Unbiased(), (1, 8, 8), 3)
    with pytest.raises(InfeasibleError, match="would end at entry 5, and the model has 4"):
        ASKED.init(torch.zeros(4), {0: 1, 1: 1})


@dataclass(frozen=True)
class Convolutional(Model):
    """A model that ends with a convolution."""

    def build(self, shape, classes):
        return torch.nn.Conv2d(shape[0], classes, 8)


@dataclass(frozen=True)
class Unbiased(Model):
    """A model with a row for each class in its last two layers, and no bias."""

    def build(self, shape, classes):
        hidden = torch.nn.Linear(math.prod(shape), classes, bias=False)
        return torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.Linear(classes, classes, bias=False))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"start": -1}, "start must be at least 0, got -1"),
        ({"classes": 1}, "classes must be at least 2, got 1"),
        ({"features": 0}, "features must be at least 1, got 0"),
        ({"least": 1.0}, r"least must lie in \(-1, 1\), got 1.0"),
        ({"patience": -1}, "patience must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_meant(fields, why):
    with pytest.raises(ValueError, match=why):
        replace(TWO, **fields)


def test_a_label_flipper_among_digits_leaves_and_the_honest_stay():
    plan = phalanx.Run(
        data=Digits(),
        clients=6,
        algorithm=RFFL(agreement=ByClass.of(MLP((32,)), (64,), 10, patience=4)),
        attack=LabelFlip(1, 7),
        additional_byzantine=1,
        model=MLP((32,)),
        until=phalanx.Until(steps=6),
    )
    record = phalanx.simulate(plan)
    assert fairness.detection(record).after == {6: 5}
    assert not fairness.detection(record).honest
    assert record.history[5].state["agreement"][6] == [pytest.approx(-0.14, abs=0.05), 1]
    plain = phalanx.simulate(replace(plan, algorithm=RFFL()))
    assert fairness.detection(plain).after == {6: None}
