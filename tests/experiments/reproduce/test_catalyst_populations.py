"""Which client holds what, and how fast it is, in the experiments of Cox et al."""

import numpy as np
import pytest
import torch

from papers.catalyst.populations import LabelGroups, LabelsEach, LateOnes, RareLabels, Subset
from phalanx.data import Dataset, Digits
from phalanx.rng import numpy_generator
from phalanx.simulation import Constant
from phalanx.simulation.latency import Workload

LABELS = torch.arange(10).repeat_interleave(210)


def held(parts):
    return [sorted(set(LABELS[part].tolist())) for part in parts]


@pytest.mark.parametrize("clients", [10, 30, 40])
def test_everybody_holds_seven_labels_and_as_many_examples(clients):
    parts = LabelsEach(7).split(LABELS, clients, numpy_generator(3, "partition"))
    assert torch.cat(parts).sort().values.equal(torch.arange(len(LABELS)))
    assert {len(labels) for labels in held(parts)} == {7}
    counts = np.bincount([label for labels in held(parts) for label in labels])
    assert set(counts.tolist()) == {7 * clients // 10}  # each label is held equally often
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 7


def test_neighbours_miss_different_labels():
    parts = LabelsEach(7).split(LABELS, 10, numpy_generator(0, "partition"))
    missing = [set(range(10)) - set(labels) for labels in held(parts)]
    assert not missing[0] & missing[1]
    assert not missing[1] & missing[2]


def test_a_label_that_nobody_would_hold_is_an_error():
    with pytest.raises(ValueError, match=r"1 client with 7 labels each leave .* to nobody\. Take more of either"):
        LabelsEach(7).split(LABELS, 1, numpy_generator(0, "partition"))
    with pytest.raises(ValueError, match="labels must be at most the number of labels, 10, got 11"):
        LabelsEach(11).split(LABELS, 20, numpy_generator(0, "partition"))
    with pytest.raises(ValueError, match="labels must be at least 1, got 0"):
        LabelsEach(0)


def test_the_last_clients_hold_the_rare_labels_and_their_share_of_the_others():
    parts = RareLabels((8, 9), 4).split(LABELS, 20, numpy_generator(0, "partition"))
    assert all(labels == list(range(10)) for labels in held(parts)[-4:])
    assert all(labels == list(range(8)) for labels in held(parts)[:-4])
    assert [len(part) for part in parts] == [84] * 16 + [84 + 105] * 4
    with pytest.raises(ValueError, match=r"holders must lie in 1\.\.19, got 20"):
        RareLabels((8, 9), 20).split(LABELS, 20, numpy_generator(0, "partition"))


def test_one_group_sees_common_labels_and_the_other_all():
    groups = LabelGroups((8, 9), 4)
    assert groups.of(20) == (0,) * 16 + (1,) * 4
    data = Dataset(torch.zeros(len(LABELS), 1), LABELS, 10)
    assert groups.seen_by(1, data).y.equal(LABELS)
    assert groups.seen_by(0, data).y.equal(LABELS[LABELS < 8])
    with pytest.raises(ValueError, match=r"holders must lie in 1\.\.3, got 4"):
        groups.of(4)


def test_the_last_clients_are_slower():
    clock = LateOnes(Constant(10.0), 4, 3.0)
    assert [clock.seconds(Workload(i, clients=20), 0) for i in (0, 15, 16, 19)] == [10.0, 10.0, 30.0, 30.0]
    with pytest.raises(ValueError, match=r"factor must be at least 1 and finite, got 0\.5"):
        LateOnes(factor=0.5)


def test_a_subset_is_drawn_by_its_seed():
    train, test = Subset(Digits(), 100, 50, seed=1).load()
    assert (len(train), len(test)) == (100, 50)
    again, whole = Subset(Digits(), 100, seed=1).load()
    assert again.fingerprint() == train.fingerprint() != Subset(Digits(), 100, seed=2).load()[0].fingerprint()
    assert len(whole) == len(Digits().load()[1])
    with pytest.raises(ValueError, match=r"The train part has 1,438 examples, of which 5,000 cannot be drawn"):
        Subset(Digits(), 5000).load()
