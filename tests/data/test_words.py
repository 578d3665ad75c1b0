"""Words, their numbers, and the examples that they make: by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data import NO_LABEL, Dataset
from phalanx.data.vocabulary import (
    END,
    PAD,
    SIGNS,
    UNKNOWN,
    Vocabulary,
    language,
    next_words,
    sentences,
    spread,
    words_of,
)

N = NO_LABEL


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Fears for T N pension", "fears for t n pension"),
        ('It\'s U.S. (AP): "no"!', "it ' s u . s . ( ap ) no !"),
        ("one;two<br />three,four?", "one two three , four ?"),
        ("a  #36;5 re-imagining\tof\\it", "a #36 5 re-imagining of\\it"),
        ("", ""),
    ],
)
def test_words_by_hand(text, words):
    assert words_of(text) == words.split()


@given(st.text())
def test_what_has_been_cut_in_words_is_left_as_it_is(text):
    once = words_of(text)
    assert words_of(" ".join(once)) == once


def test_the_most_frequent_words_come_first_and_equal_ones_by_the_alphabet():
    known = Vocabulary([["b", "c", "a"], ["c", "<unk>", "<unk>", "<unk>"], ["d", "d"]])
    assert known.words == ("c", "d", "a", "b")
    assert len(known) == 7
    assert known.numbers(["c", "b", "never", "<unk>"]).tolist() == [3, 6, UNKNOWN, UNKNOWN]
    assert known.numbers([]).tolist() == []


def test_a_vocabulary_is_cut_by_size_and_by_frequency():
    texts = [["a"] * 4, ["b"] * 3, ["c"] * 3, ["d"]]
    assert Vocabulary(texts, size=5).words == ("a", "b"), "padding, unknown and end are counted"
    assert Vocabulary(texts, least=3).words == ("a", "b", "c")
    assert Vocabulary(texts, size=5, least=4).words == ("a",)
    assert len(Vocabulary(texts, size=100)) == SIGNS + 4


def test_next_words_by_hand():
    texts = [np.array([5, 6]), np.array([7]), np.array([], np.int64)]
    x, y = next_words(texts, 3)  # end 5 6 end 7 end end
    assert x.tolist() == [[END, 5, 6], [END, 7, END]]
    assert y.tolist() == [[5, 6, END], [7, END, END]]
    x, y = next_words(texts, 4)
    assert x.tolist() == [[END, 5, 6, END], [7, END, END, PAD]]
    assert y.tolist() == [[5, 6, END, 7], [END, END, PAD, PAD]]


@given(st.lists(st.lists(st.integers(SIGNS, 9), max_size=6), min_size=1, max_size=5), st.integers(1, 9))
def test_every_word_is_a_label_once_and_follows_its_input(texts, sequence):
    row = [END, *(word for text in texts for word in [*text, END])]
    x, y = next_words([np.array(text, np.int64) for text in texts], sequence)
    assert x.shape == y.shape == (-(-(len(row) - 1) // sequence), sequence)
    assert [int(word) for word in y.flatten() if word != PAD] == row[1:]
    assert x.flatten().tolist()[: len(row) - 1] == row[:-1]


def test_a_language_of_two_owners():
    parts = [next_words([np.array([5, 6, 7])], 2), next_words([np.array([8, 9])], 2)]
    data = language(parts, 10)
    assert data.x.tolist() == [[END, 5], [6, 7], [END, 8], [9, END]]
    assert data.y.tolist() == [[5, 6], [7, END], [8, 9], [END, N]]
    assert data.owners.tolist() == [0, 0, 1, 1]
    first = language(parts, 10, limit=1)
    assert first.x.tolist() == [[END, 5], [END, 8]]
    assert first.owners.tolist() == [0, 1]
    assert language(parts[:1], 10).owners is None


def test_sentences_are_padded_or_cut():
    data = sentences([np.array([5]), np.array([6, 7, 8, 9])], [1, 0], 3, 2)
    assert data.x.tolist() == [[5, PAD, PAD], [6, 7, 8]]
    assert data.y.tolist() == [1, 0]
    assert data.x.dtype == torch.int64


def test_spread():
    data = Dataset(torch.arange(10), torch.zeros(10, dtype=torch.int64), 1)
    assert spread(data, 4).x.tolist() == [0, 2, 5, 7]
    assert spread(data, None) is data
    assert spread(data, 10) is data
    assert spread(data, 11) is data
