import io
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exported import lacking
from phalanx.data import (
    ClassImbalance,
    ClassSplit,
    Dirichlet,
    DirichletMultinomialSizes,
    LinearRamp,
    LognormalSizes,
    Natural,
    Partition,
    PowerLaw,
    Shards,
    Uniform,
    holdings,
    plot_holdings,
)
from phalanx.rng import numpy_generator

ALL = [
    Uniform(),
    Dirichlet(),
    Dirichlet(alpha=100.0),
    Dirichlet(alpha=1e-3),
    Dirichlet(alpha=5e-324),
    Dirichlet(alpha=1.7e308),
    Shards(),
    Shards(classes_per_client=1),
    Shards(classes_per_client=10**15),
    PowerLaw(),
    PowerLaw(exponent=0.0),
    PowerLaw(exponent=1.7e308),
    LinearRamp(),
    LinearRamp(ratio=1.0),
    LinearRamp(ratio=1.7e308),
    ClassImbalance(),
    ClassImbalance(most=10**12),
    ClassSplit(),
    ClassSplit(parts=1),
    LognormalSizes(),
    LognormalSizes(sigma=0.0),
    LognormalSizes(mu=-1e308, sigma=1.7e308),
]
DRAWN = {Natural, DirichletMultinomialSizes}  # owners, or a draw, determine the number of clients: tests of their own
ALL += [make(6, 0) for _, make in lacking(Partition, {type(p) for p in ALL} | DRAWN)]
EMPTY = [type(p)(**{**vars(p), "allow_empty": True}) for p in ALL if "allow_empty" in vars(p)]


def split(partition, labels, clients, seed=0):
    return partition.split(labels, clients, numpy_generator(seed, "partition"))


def sizes(parts):
    return [len(part) for part in parts]


@st.composite
def cases(draw, spare=True):
    """Labels of any kind (sorted, shuffled, with classes missing) and a number of clients."""
    n = draw(st.integers(1 if spare else 0, 60))
    labels = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    clients = draw(st.integers(1, n if spare else 90))
    return torch.tensor(labels, dtype=torch.int64), clients, draw(st.integers(0, 2**63))


def check_cover(parts, n, clients):
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 and (part.diff() > 0).all() for part in parts)
    assert torch.cat(parts).sort().values.tolist() == list(range(n))


# --- what every partition guarantees


@pytest.mark.parametrize("partition", ALL, ids=repr)
@settings(deadline=None, max_examples=25)
@given(case=cases())
def test_every_example_once_and_every_client_some(partition, case):
    labels, clients, seed = case
    parts = split(partition, labels, clients, seed)
    check_cover(parts, len(labels), clients)
    assert min(sizes(parts)) >= 1
    again = split(partition, labels, clients, seed)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("partition", EMPTY, ids=repr)
@settings(deadline=None, max_examples=12)
@given(case=cases(spare=False))
def test_every_example_once_where_clients_may_be_empty(partition, case):
    labels, clients, seed = case
    check_cover(split(partition, labels, clients, seed), len(labels), clients)


@pytest.mark.parametrize("partition", [p for p in ALL if not p.uses_labels], ids=repr)
@settings(deadline=None, max_examples=12)
@given(case=cases())
def test_sizes_of_iid_partitions_ignore_labels(partition, case):
    labels, clients, seed = case
    assert sizes(split(partition, labels, clients, seed)) == sizes(split(partition, labels * 0, clients, seed))


@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_too_few_examples_are_refused_with_both_numbers(partition):
    with pytest.raises(ValueError, match=r"7 clients need at least 7 examples, got 6.*allow_empty"):
        split(partition, torch.zeros(6, dtype=torch.int64), 7)


@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_quick_at_any_parameter(partition):
    start = time.perf_counter()
    parts = split(partition, torch.arange(60_000) % 10, 1000)
    assert time.perf_counter() - start < 5
    check_cover(parts, 60_000, 1000)
    assert min(sizes(parts)) >= 1


@pytest.mark.parametrize("partition", [p for p in ALL if type(p) is not ClassImbalance or p.most is None], ids=repr)
def test_an_other_seed_gives_an_other_split(partition):
    labels = torch.arange(300) % 5
    one, two = (split(partition, labels, 6, seed) for seed in (1, 2))
    assert any(not torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_one_client_holds_all(partition):
    (part,) = split(partition, torch.tensor([3, 0, 1, 1]), 1)
    assert part.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("labels", "clients", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), 0, "clients must be at least 1, got 0"),
        (torch.zeros(3, dtype=torch.complex64), 1, r"labels must be \(n,\) or \(n, ...\) integers from 0, got"),
        (torch.tensor(0), 1, "labels must be"),
        (torch.tensor([[0, -100], [-1, 0]]), 1, "labels must be"),
        (torch.zeros(3, 2, dtype=torch.int64), 4, "4 clients need at least 4 examples, got 3"),
        (torch.tensor([0, -1]), 1, "labels must be"),
    ],
)
def test_arguments_are_checked(labels, clients, message):
    with pytest.raises(ValueError, match=message):
        split(Uniform(), labels, clients)


@pytest.mark.parametrize("owners", [[0, 1], [0, 1, 2], [0, 0, -1]])
def test_a_wrong_rule_of_the_users_own_is_caught(owners):
    class Wrong(Partition):
        def assign(self, labels, clients, rng):
            return np.array(owners)

    with pytest.raises(ValueError, match=r"Wrong\.assign must name one of 2 clients for each of 3 examples"):
        split(Wrong(), torch.zeros(3, dtype=torch.int64), 2)


def test_empty_clients_get_an_example_of_the_largest():
    class Hoard(Partition):
        def assign(self, labels, clients, rng):
            return np.array([1, 1, 1, 1, 1, 3, 3, 3])

    # 1 gives to 0 (5 -> 4), 1 gives to 2 (4 -> 3), 1 gives to 4, because it is the first of the largest (3 -> 2)
    parts = split(Hoard(), torch.zeros(8, dtype=torch.int64), 5)
    assert sizes(parts) == [1, 2, 1, 3, 1]
    assert parts[3].tolist() == [5, 6, 7]


def test_examples_given_to_empty_clients_are_typical_of_the_giver():
    labels = (
        torch.arange(10_000) // 1000
    )  # sorted by class: a rule that gave the last examples would give one class only
    parts = split(PowerLaw(exponent=50.0), labels, 500)
    assert set(sizes(parts)[1:]) == {1}
    given_away = torch.bincount(labels[torch.cat(parts[1:])], minlength=10)
    assert given_away.min() > 20
    assert given_away.max() < 90


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dirichlet(alpha=0.0), r"alpha must be positive and finite, got 0\.0"),
        (lambda: Dirichlet(alpha=float("nan")), "alpha must be"),
        (lambda: Dirichlet(alpha=float("inf")), "alpha must be"),
        (lambda: Shards(classes_per_client=0), "classes_per_client must be at least 1, got 0"),
        (lambda: PowerLaw(exponent=-0.1), r"exponent must be at least 0 and finite, got -0\.1"),
        (lambda: LinearRamp(ratio=0.5), r"ratio must be at least 1 and finite, got 0\.5"),
        (lambda: ClassImbalance(fewest=0), "fewest must be at least 1, got 0"),
        (lambda: ClassImbalance(fewest=3, most=2), "most must be at least fewest = 3, got 2"),
        (lambda: LognormalSizes(sigma=-1.0), "sigma must be at least 0 and finite, got -1"),
        (lambda: LognormalSizes(mu=float("inf")), "mu must be finite"),
    ],
)
def test_parameters_out_of_range(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_partitions_are_values():
    assert Dirichlet(0.5) == Dirichlet()
    assert repr(Dirichlet(0.1)) == "Dirichlet(alpha=0.1, allow_empty=False)"
    assert len({Uniform(), Uniform(), Uniform(allow_empty=True), Shards()}) == 3


# --- the rules, one by one


@pytest.mark.parametrize(("n", "clients", "expected"), [(10, 3, [4, 3, 3]), (12, 4, [3] * 4), (5, 5, [1] * 5)])
def test_uniform_sizes(n, clients, expected):
    assert sizes(split(Uniform(), torch.zeros(n, dtype=torch.int64), clients)) == expected


def test_uniform_mixes_sorted_labels():
    labels = torch.arange(10_000) // 1000
    counts = holdings(labels, split(Uniform(), labels, 10), 10)
    assert counts.min() > 60
    assert counts.max() < 140


@pytest.mark.parametrize(("alpha", "clients"), [(0.05, 8), (0.5, 8), (5.0, 4)])
def test_dirichlet_shares_have_the_moments_of_the_distribution(alpha, clients):
    labels = torch.arange(200_000) // 200  # 1,000 classes of 200 examples: 1,000 draws
    parts = split(Dirichlet(alpha, allow_empty=True), labels, clients)
    share = holdings(labels, parts, 1000).double() / 200
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * alpha + 1)
    torch.testing.assert_close(share.mean(1), torch.full((clients,), mean, dtype=torch.float64), atol=0.045, rtol=0)
    assert float(share.var()) == pytest.approx(variance, rel=0.1)


def test_dirichlet_at_tiny_alpha_gives_each_class_to_one_client():
    labels = torch.arange(1000) % 10
    counts = holdings(labels, split(Dirichlet(1e-3, allow_empty=True), labels, 20), 10)
    assert ((counts > 0).sum(0) == 1).sum() >= 8
    winners = {
        int(split(Dirichlet(5e-324, allow_empty=True), torch.zeros(4, dtype=torch.int64), 3, s)[0].numel())
        for s in range(20)
    }
    assert winners == {0, 4}  # all or nothing, and not always the same client


def test_dirichlet_at_huge_alpha_shares_equally():
    labels = torch.arange(1000) % 10
    assert (holdings(labels, split(Dirichlet(1.7e308), labels, 20), 10) == 5).all()


def test_shards_by_hand():
    # 12 examples of 3 classes, 6 shards of 2 examples: no shard straddles two classes
    labels = torch.tensor([2, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 0])
    for seed in range(10):
        parts = split(Shards(2), labels, 3, seed)
        assert sizes(parts) == [4, 4, 4]
        counts = holdings(labels, parts, 3)
        assert set(counts.unique().tolist()) <= {0, 2, 4}
        assert ((counts > 0).sum(1) <= 2).all()


@settings(deadline=None)
@given(case=cases(), k=st.integers(1, 4))
def test_shards_sizes_differ_by_little(case, k):
    labels, clients, seed = case
    parts = split(Shards(k, allow_empty=True), labels, clients, seed)
    assert max(sizes(parts)) - min(sizes(parts)) <= k


def test_shards_of_mnists_size_are_two_classes_each():
    labels = torch.arange(60_000) % 10
    parts = split(Shards(2), labels, 100)
    assert set(sizes(parts)) == {600}
    assert (holdings(labels, parts, 10) > 0).sum(1).max() <= 2


def test_power_law_by_hand():
    # 1, 1/2, 1/3 of 11/6: 66 -> 36, 18, 12
    assert sizes(split(PowerLaw(1.0), torch.zeros(66, dtype=torch.int64), 3)) == [36, 18, 12]
    # quotas 5.4545.., 2.7272.., 1.8181..: floors 5, 2, 1, and the two largest remainders are the last two
    assert sizes(split(PowerLaw(1.0), torch.zeros(10, dtype=torch.int64), 3)) == [5, 3, 2]


def test_linear_ramp_is_that_of_xu_and_lyu():
    found = sizes(split(LinearRamp(), torch.zeros(6005, dtype=torch.int64), 10))
    assert found == [71, 189, 306, 424, 542, 659, 777, 895, 1012, 1130]


def test_class_imbalance_by_hand():
    # owners of class 0: all four, of class 1: 1..3, of class 2: 2 and 3, of class 3: 3; 12 examples of each class
    labels = torch.arange(48) % 4
    counts = holdings(labels, split(ClassImbalance(), labels, 4), 4)
    assert counts.tolist() == [[3, 0, 0, 0], [3, 4, 0, 0], [3, 4, 6, 0], [3, 4, 6, 12]]


def test_class_imbalance_steps_are_rounded_down():
    # c = int(linspace(1, 4, 6)) = 1, 1, 2, 2, 3, 4
    labels = torch.arange(4 * 60) % 4
    counts = holdings(labels, split(ClassImbalance(), labels, 6), 4)
    assert (counts > 0).sum(1).tolist() == [1, 1, 2, 2, 3, 4]
    assert counts[:, 0].tolist() == [10] * 6
    assert counts[:, 1].tolist() == [0, 0, 15, 15, 15, 15]


def test_class_split_of_two_clients_is_that_of_figure_7():
    labels = torch.arange(600) % 10
    counts = holdings(labels, split(ClassSplit(), labels, 2), 10)
    assert counts.tolist() == [[60] * 5 + [0] * 5, [0] * 5 + [60] * 5]


def test_class_split_by_hand():
    labels = torch.arange(35) % 7
    # three parts of seven classes: 0 1 2, 3 4, 5 6; of five clients: 0 1, 2 3, 4
    counts = holdings(labels, split(ClassSplit(parts=3), labels, 5), 7)
    of_part = [counts[:2].sum(0), counts[2:4].sum(0), counts[4]]
    assert [held.tolist() for held in of_part] == [[5, 5, 5, 0, 0, 0, 0], [0, 0, 0, 5, 5, 0, 0], [0, 0, 0, 0, 0, 5, 5]]
    assert sorted(counts.sum(1)[:2].tolist()) == [7, 8]
    assert counts.sum(1)[2:].tolist() == [5, 5, 10]
    # as many parts as possible: seven clients of one class each; nine, of which two classes have two
    assert torch.equal(holdings(labels, split(ClassSplit(), labels, 7), 7), 5 * torch.eye(7, dtype=torch.int64))
    assert (holdings(labels, split(ClassSplit(), labels, 9), 7) > 0).sum(1).tolist() == [1] * 9


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (lambda: ClassSplit(0), 2, "parts must be at least 1, got 0"),
        (lambda: ClassSplit(3), 2, "parts must be at most 2, of 2 clients and 7 classes, got 3"),
        (lambda: ClassSplit(8), 9, "parts must be at most 7, of 9 clients and 7 classes, got 8"),
    ],
)
def test_class_split_into_too_many_parts_is_refused(partition, clients, message):
    with pytest.raises(ValueError, match=message):
        split(partition(), torch.arange(35) % 7, clients)


def test_class_imbalance_with_clients_of_one_size_by_hand():
    # 12 each of the classes owned: 12 of class 0; 6 of 0 and 1; 4 of 0, 1 and 2; 3 of all
    labels = torch.arange(200) % 4
    parts = split(ClassImbalance(each=12), labels, 4)
    assert holdings(labels, parts, 4).tolist() == [[12, 0, 0, 0], [6, 6, 0, 0], [4, 4, 4, 0], [3, 3, 3, 3]]
    held = torch.cat(parts)
    assert len(held.unique()) == len(held) == 48, "no example is held twice, and the rest is left out"
    odd = holdings(labels, split(ClassImbalance(each=5), labels, 4), 4)
    assert odd.tolist() == [[5, 0, 0, 0], [3, 2, 0, 0], [2, 2, 1, 0], [2, 1, 1, 1]]
    with pytest.raises(ValueError, match=r"needs 75 examples of class 0 for 4 clients, got 50\. Use more examples"):
        split(ClassImbalance(each=36), labels, 4)
    with pytest.raises(ValueError, match="each must be at least 1, got 0"):
        ClassImbalance(each=0)


@pytest.mark.parametrize(
    ("clients", "classes"),
    [
        (5, [1, 3, 5, 7, 10]),
        (10, list(range(1, 11))),
        (20, [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10]),
    ],
)
def test_splits_of_xu_and_lyu(clients, classes):
    """600 of MNIST's 60,000 for each participant: the same for all, or from 71 to 1,130, or of so many classes."""
    labels = torch.arange(60_000) % 10
    assert set(sizes(split(Uniform(), labels[: 600 * clients], clients))) == {600}
    ramp = sizes(split(LinearRamp(), labels[: 600 * clients], clients))
    assert ramp == sorted(ramp)
    assert abs(ramp[0] - 71) + abs(ramp[-1] - 1130) <= 1
    parts = split(ClassImbalance(each=600), labels, clients)
    assert set(sizes(parts)) == {600}
    assert (holdings(labels, parts, 10) > 0).sum(1).tolist() == classes


def test_class_imbalance_needs_an_owner_for_each_class():
    with pytest.raises(ValueError, match=r"most = 2 leaves the labels 2\.\.3 without an owner"):
        split(ClassImbalance(most=2), torch.arange(8) % 4, 2)
    with pytest.raises(ValueError, match="fewest must be at most the number of classes, 4, got 5"):
        split(ClassImbalance(fewest=5), torch.arange(8) % 4, 2)


def test_lognormal_sizes_are_heavy_tailed_and_ignore_mu():
    labels = torch.zeros(60_000, dtype=torch.int64)
    found = sizes(split(LognormalSizes(), labels, 100))
    assert max(found) > 10_000
    assert sorted(found)[50] < 600
    assert found == sizes(split(LognormalSizes(mu=-7.0), labels, 100))
    draws = np.exp(3.45 * numpy_generator(0, "partition").standard_normal(100))
    assert int(np.argmax(found)) == int(np.argmax(draws))


def test_drawn_sizes_by_their_own_seed_and_examples_by_that_of_the_run():
    labels, partition = torch.arange(300) % 5, DirichletMultinomialSizes(mu=3.0, sigma=0.0, draws=6)
    one, two = (split(partition, labels, 6, seed) for seed in (1, 2))
    check_cover(one, 300, 6)
    assert sizes(one) == sizes(two) == partition.sizes(300).tolist()
    assert any(not torch.equal(a, b) for a, b in zip(one, two, strict=True))
    with pytest.raises(ValueError, match="divides 300 examples among 6 clients, not 7"):
        split(partition, labels, 7)


# --- sequences of labels


@pytest.mark.parametrize("partition", [p for p in ALL if not p.uses_labels], ids=repr)
def test_rules_that_look_at_no_label_deal_sequences_of_them_alike(partition):
    sequences = torch.tensor([[k % 5, -100, 3] for k in range(40)])
    ours, theirs = split(partition, sequences, 6), split(partition, torch.arange(40), 6)
    assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]


@pytest.mark.parametrize("partition", [p for p in ALL if p.uses_labels], ids=repr)
def test_rules_that_deal_by_label_refuse_sequences_of_them(partition):
    name = type(partition).__name__
    with pytest.raises(ValueError, match=rf"{name} partitions by label, and each .* of 3 labels\. .* such as Uniform"):
        split(partition, torch.zeros(40, 3, dtype=torch.int64), 6)


def test_a_rule_of_the_users_own_is_taken_to_deal_by_label():
    class Own(Partition):
        def assign(self, labels, clients, rng):
            return labels % clients

    with pytest.raises(ValueError, match="Own partitions by label"):
        split(Own(), torch.zeros(4, 2, dtype=torch.int64), 2)


# --- owners

OWNERS = torch.tensor([4, 0, 4, 9, 0, 4])  # of six examples


def natural(clients, owners=OWNERS, seed=0):
    labels = torch.zeros(len(OWNERS), dtype=torch.int64)
    return [part.tolist() for part in Natural().split(labels, clients, numpy_generator(seed, "partition"), owners)]


@pytest.mark.parametrize("seed", range(3))
def test_as_many_clients_as_owners_hold_what_is_theirs(seed):
    assert natural(3, seed=seed) == [[1, 4], [0, 2, 5], [3]]


def test_fewer_clients_are_owners_drawn_by_seed():
    assert {tuple(map(tuple, natural(2, seed=seed))) for seed in range(20)} == {
        ((1, 4), (0, 2, 5)),
        ((1, 4), (3,)),
        ((0, 2, 5), (3,)),
    }
    assert natural(2, seed=5) == natural(2, seed=5)


def test_natural_deals_sequences_and_many_owners():
    owners = torch.arange(3000) // 3
    parts = Natural().split(torch.zeros(3000, 2, dtype=torch.int64), 500, numpy_generator(0, "partition"), owners)
    drawn = [owners[part].unique().tolist() for part in parts]
    assert all(len(part) == 3 and part.dtype == torch.int64 for part in parts)
    assert drawn == sorted(drawn)
    assert len({one for (one,) in drawn}) == 500


@pytest.mark.parametrize(
    ("clients", "owners", "message"),
    [
        (4, OWNERS, r"4 clients need as many owners, and these examples have 3\. Use at most 3 clients"),
        (0, OWNERS, "clients must be at least 1, got 0"),
        (2, None, "these data have no owners"),
        (2, OWNERS[:3], r"owners must be \(6,\), one for each example, got \(3,\)"),
    ],
)
def test_natural_says_what_is_wrong(clients, owners, message):
    with pytest.raises(ValueError, match=message):
        natural(clients, owners)


def test_others_ignore_owners():
    labels, rng = torch.arange(6), numpy_generator(0, "partition")
    parts = Uniform().split(labels, 2, rng, OWNERS)
    assert [part.tolist() for part in parts] == [part.tolist() for part in split(Uniform(), labels, 2)]


# --- holdings


def test_holdings_by_hand():
    labels = torch.tensor([0, 2, 2, 1])
    parts = [torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64), torch.tensor([0, 3])]
    counts = holdings(labels, parts, 4)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [[0, 0, 2, 0], [0, 0, 0, 0], [1, 1, 0, 0]]
    assert holdings(labels, [], 4).shape == (0, 4)
    with pytest.raises(ValueError, match=r"in 0\.\.1, got 0\.\.2"):
        holdings(labels, parts, 2)


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (5, 10), (25, 12), (200, 10), (30, 100)])
def test_plot_holdings_draws_all_of_it(clients, classes):
    labels = torch.arange(5000) % classes
    counts = holdings(labels, split(Dirichlet(0.1, allow_empty=True), labels, clients), classes)
    figure = plot_holdings(counts, {0, clients - 1})
    figure.savefig(png := io.BytesIO(), dpi=50)
    assert png.getvalue().startswith(b"\x89PNG")
    mix, size = figure.axes[2], figure.axes[3]
    (image,) = mix.images
    held = counts.sum(1) > 0
    expected = 100 * counts[held] / counts[held].sum(1, keepdim=True)
    np.testing.assert_allclose(image.get_array()[held.numpy()], expected, rtol=1e-6)
    assert image.get_array().mask[~held.numpy()].all()
    assert image.norm.vmax >= float(expected.max())
    assert [bar.get_width() for bar in size.patches] == counts.sum(1).tolist()
    assert list(mix.lines[-1].get_ydata()) == sorted({0, clients - 1})


def test_holdings_count_the_labels_of_sequences():
    labels = torch.tensor([[0, 1], [1, -100], [-100, 3]])
    parts = [torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([], dtype=torch.int64)]
    assert holdings(labels, parts, 4).tolist() == [[1, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    with pytest.raises(ValueError, match=r"Labels must be in 0\.\.2, got 0\.\.3"):
        holdings(labels, parts, 3)


def test_plot_holdings_draws_sizes_that_are_not_sums_of_labels():
    figure = plot_holdings(torch.tensor([[3, 4], [5, 0]]), sizes=[2, 1])
    assert [bar.get_width() for bar in figure.axes[3].patches] == [2, 1]
    with pytest.raises(ValueError, match="sizes must be one for each of 2 clients, got 3"):
        plot_holdings(torch.tensor([[3, 4], [5, 0]]), sizes=[2, 1, 1])


def test_plot_holdings_of_nothing_at_all():
    plot_holdings(torch.zeros(3, 2, dtype=torch.int64)).savefig(io.BytesIO(), dpi=50)


def test_plot_holdings_checks_its_arguments():
    with pytest.raises(ValueError, match=r"clients in 0\.\.2, got \[3, 7\]"):
        plot_holdings(torch.ones(3, 2, dtype=torch.int64), {7, 1, 3})
    with pytest.raises(ValueError, match="counts must be"):
        plot_holdings(torch.ones(3, dtype=torch.int64))
