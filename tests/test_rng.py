"""Streams by name: the same name is the same numbers, and nobody outside can tell."""

import itertools
import threading

import numpy as np
import pytest
import torch
from torch import nn

from phalanx.rng import borrowed, generator, numpy_generator, stream

KEYS = [
    (),
    ("a",),
    ("b",),
    ("a", "b"),
    ("ab",),
    ("a", 1),
    ("a", "1"),
    ("a", 1, 2),
    ("a", 12),
    ("a", 2, 1),
    (1,),
    ("1",),
]


def from_torch(seed, *key):
    return torch.rand(8, generator=generator(seed, *key)).tolist()


def from_numpy(seed, *key):
    return numpy_generator(seed, *key).random(8).tolist()


def from_borrowed(seed, *key):
    with borrowed(seed, *key):
        return torch.rand(8).tolist()


draws = pytest.mark.parametrize("draw", [from_torch, from_numpy, from_borrowed])


def global_states():
    """torch's and NumPy's global states, as something that can be compared."""
    name, keys, position, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), name, keys.tolist(), position, rest


@draws
def test_the_same_name_is_the_same_numbers(draw):
    for key in KEYS:
        assert draw(0, *key) == draw(0, *key)


@draws
def test_other_names_and_seeds_are_other_numbers(draw):
    drawn = [draw(seed, *key) for seed in (0, 1, -1) for key in KEYS]
    assert all(one != other for one, other in itertools.combinations(drawn, 2))


@draws
def test_streams_do_not_depend_on_the_order_in_which_they_are_asked_for(draw):
    forward = {key: draw(3, *key) for key in KEYS}
    backward = {key: draw(3, *key) for key in reversed(KEYS)}
    assert forward == backward


def test_streams_advance_on_their_own():
    one, other = generator(0, "a"), generator(0, "a")
    first = torch.rand(4, generator=one)
    torch.rand(4, generator=generator(0, "b"))
    assert torch.equal(torch.rand(4, generator=other), first)
    assert not torch.equal(torch.rand(4, generator=one), first)


def test_borrowed_is_the_generator_of_that_name():
    assert from_borrowed(5, "x", 2) == from_torch(5, "x", 2)


def test_names_are_64_bits_and_stay_what_they_are():
    """The numbers of published runs hang on these."""
    assert stream(0, "batches", 3, 1) == int.from_bytes(bytes.fromhex("75a22a03714753dc"), "little")
    assert all(0 <= stream(seed, *key) < 2**64 for seed in range(20) for key in KEYS)
    assert max(stream(seed) for seed in range(64)) > 2**60


@draws
def test_no_global_state_is_changed(draw):
    before = global_states()
    draw(0, "a")
    assert global_states() == before


def test_no_global_state_is_read():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = from_torch(0, "a"), from_numpy(0, "a"), from_borrowed(0, "a")
        torch.manual_seed(2)
        assert (from_torch(0, "a"), from_numpy(0, "a"), from_borrowed(0, "a")) == first


def test_borrowed_puts_the_state_back_when_its_body_raises():
    def fails():
        with borrowed(0, "a"):
            torch.rand(100)
            raise KeyError

    before = global_states()
    with pytest.raises(KeyError):
        fails()
    assert global_states() == before


def test_borrowed_nests():
    with borrowed(0, "outer"):
        first = torch.rand(3)
        with borrowed(0, "inner"):
            torch.rand(5)
        second = torch.rand(3)
    with borrowed(0, "outer"):
        assert torch.equal(torch.rand(6), torch.cat([first, second]))


def test_borrowed_is_lent_to_one_thread_at_a_time():
    """Two federations in one process: neither draws from the other's stream."""
    alone, drawn = {key: from_borrowed(0, key) for key in ("a", "b")}, {}
    inside = threading.Event()

    def other():
        inside.wait()
        drawn["b"] = from_borrowed(0, "b")

    thread = threading.Thread(target=other)
    thread.start()
    before = global_states()
    with borrowed(0, "a"):
        inside.set()
        thread.join(timeout=0.2)  # it would be done long ago
        assert not drawn
        drawn["a"] = torch.rand(len(alone["a"])).tolist()
    thread.join()
    assert drawn == alone
    assert global_states() == before


def test_borrowed_reaches_dropout_and_initialisation():
    dropout, x = nn.Dropout(0.5), torch.ones(200)

    def lent(*key):
        with borrowed(0, *key):
            return torch.cat([dropout(x), nn.Linear(3, 4).weight.detach().flatten()])

    assert torch.equal(lent("dropout", 1), lent("dropout", 1))
    assert not torch.equal(lent("dropout", 1), lent("dropout", 2))
