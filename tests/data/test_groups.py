"""Groups of clients that see different data."""

import pytest
import torch

from phalanx.data import Dataset, PermutedLabels, RotatedImages, SwappedLabels, Topics

TEN = Dataset(torch.arange(40.0).reshape(10, 1, 2, 2), torch.arange(10), 10)
OWNED = Dataset(torch.arange(7.0), torch.zeros(7).long(), 1, torch.tensor([0, 3, 1, 4, 5, 0, 4]))


def test_clients_are_divided_evenly_neighbours_together():
    assert PermutedLabels(2).of(4) == (0, 0, 1, 1)
    assert PermutedLabels(4).of(20) == tuple(g for g in range(4) for _ in range(5))
    assert sorted(PermutedLabels(3).of(10).count(g) for g in range(3)) == [3, 3, 4]
    with pytest.raises(ValueError, match="4 groups need at least 4 clients, got 3"):
        PermutedLabels(4).of(3)


def test_permuted_labels_rename_classes_and_nothing_else():
    groups = PermutedLabels(4, seed=1)
    seen = [groups.seen_by(g, TEN) for g in range(4)]
    for data in seen:
        assert torch.equal(data.x, TEN.x)
        assert sorted(data.y.tolist()) == list(range(10))
    assert len({tuple(data.y.tolist()) for data in seen}) == 4
    assert torch.equal(groups.seen_by(2, TEN).y, seen[2].y), "the same each time"
    assert not torch.equal(PermutedLabels(4, seed=2).seen_by(0, TEN).y, seen[0].y)


def test_permutations_are_distinct_or_refused():
    assert {tuple(p.tolist()) for p in PermutedLabels(6).permutations(3)} == {
        (0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0),
    }  # fmt: skip
    with pytest.raises(ValueError, match="2 classes cannot be permuted in 3 ways"):
        PermutedLabels(3).permutations(2)
    with pytest.raises(ValueError, match="count must be at least 1"):
        PermutedLabels(0)


def test_swapped_labels_by_hand():
    groups = SwappedLabels(((1, 7), (3, 5)))
    assert groups.number == 2
    assert groups.seen_by(0, TEN).y.tolist() == [0, 7, 2, 3, 4, 5, 6, 1, 8, 9]
    assert groups.seen_by(1, TEN).y.tolist() == [0, 1, 2, 5, 4, 3, 6, 7, 8, 9]
    twice = groups.seen_by(0, groups.seen_by(0, TEN))
    assert torch.equal(twice.y, TEN.y)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SwappedLabels(()), "pairs must name two classes"),
        (lambda: SwappedLabels(((3, 3),)), "two different classes"),
        (lambda: SwappedLabels(((-1, 3),)), "two different classes"),
        (lambda: SwappedLabels(((1, 10),)).seen_by(0, TEN), r"\(1, 10\) names a class that is not among 0..9"),
        (lambda: RotatedImages(()), "quarter_turns must name"),
        (lambda: Topics(0), "count must be at least 1, got 0"),
        (lambda: Topics().seen_by(0, TEN), "these data have none"),
        (lambda: Topics().of(3), "4 groups need at least 4 clients, got 3"),
        (
            lambda: Topics(3).seen_by(2, OWNED.of(OWNED.owners != 5)),
            "None of 6 examples is of topic 2. Use the partition",
        ),
        (lambda: RotatedImages().seen_by(1, Dataset(torch.zeros(2, 3), torch.zeros(2).long(), 2)), "Only images"),
        (lambda: RotatedImages((1,)).seen_by(0, Dataset(torch.zeros(2, 1, 2, 3), torch.zeros(2).long(), 2)), "square"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_sequences_keep_positions_without_a_label():
    texts = Dataset(torch.zeros(2, 3), torch.tensor([[1, -100, 7], [-100, 1, 0]]), 10)
    assert SwappedLabels(((1, 7),)).seen_by(0, texts).y.tolist() == [[7, -100, 1], [-100, 7, 0]]


def test_rotated_images_by_hand():
    data = Dataset(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([0]), 1)
    turned = RotatedImages((0, 1, 2, -1, 4))
    assert turned.seen_by(0, data) is data
    assert turned.seen_by(1, data).x.flatten().tolist() == [2.0, 4.0, 1.0, 3.0]
    assert turned.seen_by(2, data).x.flatten().tolist() == [4.0, 3.0, 2.0, 1.0]
    assert turned.seen_by(3, data).x.flatten().tolist() == [3.0, 1.0, 4.0, 2.0]
    assert turned.seen_by(4, data) is data


def test_topics_take_turns():
    """Owners 0 and 3 have the first of three topics, 1 and 4 the second, 2 and 5 the third."""
    topics = Topics(3)
    assert topics.number == 3
    assert topics.of(7) == (0, 1, 2, 0, 1, 2, 0)
    assert [topics.seen_by(group, OWNED).x.tolist() for group in range(3)] == [[0, 1, 5], [2, 3, 6], [4]]
    first = topics.seen_by(0, OWNED)
    assert first.owners.tolist() == [0, 3, 0]
    assert topics.seen_by(0, first) is first
    nothing = OWNED.of(torch.zeros(7, dtype=torch.bool))
    assert len(topics.seen_by(1, nothing)) == 0, "a client without examples"
