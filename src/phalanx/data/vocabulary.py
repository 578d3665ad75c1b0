"""Texts as indices: their words, the vocabulary of a train part, and examples of equal length.

Index 0 is padding, 1 any word that is not in the vocabulary, 2 the end of a text; from 3 on follow the words of the
vocabulary, the most frequent first.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta

from phalanx.data.dataset import NO_LABEL, Dataset

Words = Sequence[str]
Numbers = npt.NDArray[np.int64]  # (words,)

PAD, UNKNOWN, END = 0, 1, 2
SIGNS = 3
UNKNOWN_WORD = "<unk>"  # replaces rare words in published texts
APART = str.maketrans({mark: f" {mark} " for mark in ".,()!?'"} | {'"': "", ";": " ", ":": " "})


def words_of(text: str) -> list[str]:
    """Return the words of an English text, in lower case; `.,()!?'` are words, and `";:` are left out.

    This is the tokenizer "basic_english" of torchtext.  Texts that it has already processed do not change.
    """
    return text.lower().replace("<br />", " ").translate(APART).split()


VocabularySize = Annotated[int, Meta(ge=SIGNS + 1, description="padding, unknown, end and a word")]


class Vocabulary:
    """A map from words to indices.

    Args:
        texts: the texts in which words are counted: the train part.
        size: largest number of indices, padding, unknown and end included; no limit if None.
        least: smallest number of occurrences of a word.
    """

    def __init__(self, texts: Iterable[Words], size: int | None = None, least: int = 1) -> None:
        counts = Counter(chain.from_iterable(texts))
        counts.pop(UNKNOWN_WORD, None)
        frequent = sorted((word for word in counts if counts[word] >= least), key=lambda word: (-counts[word], word))
        self.words = tuple(frequent if size is None else frequent[: size - SIGNS])
        self._numbers = {word: SIGNS + k for k, word in enumerate(self.words)}

    def __len__(self) -> int:
        return SIGNS + len(self.words)

    def numbers(self, words: Words) -> Numbers:
        """Return the index of each word."""
        return np.fromiter((self._numbers.get(word, UNKNOWN) for word in words), np.int64, len(words))


def next_words(texts: Sequence[Numbers], sequence: int) -> tuple[Numbers, Numbers]:
    """Return pieces of the concatenated texts and the next word at each position; the last piece is padded.

    The texts are concatenated, with an end sign before the first and after each.  Every word and every end sign except
    the first is a label exactly once.

    Args:
        texts: the indices of their words, at least one text.
        sequence: number of words in a piece.

    Returns:
        Pieces and next words, both (n, sequence).
    """
    end = np.array([END])
    row = np.concatenate([end, *chain.from_iterable((text, end) for text in texts)])
    n = -(-(len(row) - 1) // sequence)
    padded = np.full(n * sequence + 1, PAD)
    padded[: len(row)] = row
    return padded[:-1].reshape(n, sequence), padded[1:].reshape(n, sequence)


def language(parts: Sequence[tuple[Numbers, Numbers]], classes: int, limit: int | None = None) -> Dataset:
    """Return a data set of the results of `next_words` for each owner, or of the first `limit` pieces of each."""
    x, y = (torch.from_numpy(np.concatenate([part[which][:limit] for part in parts])) for which in (0, 1))
    sizes = torch.tensor([len(part[0][:limit]) for part in parts])
    owners = torch.arange(len(parts)).repeat_interleave(sizes) if len(parts) > 1 else None
    return Dataset(x, y.masked_fill_(y == PAD, NO_LABEL), classes, owners)


def sentences(texts: Sequence[Numbers], labels: Sequence[int], sequence: int, classes: int) -> Dataset:
    """Return a data set with one example for each text: its first `sequence` words, padded at the end."""
    x = torch.full((len(texts), sequence), PAD)
    for row, text in zip(x, texts, strict=True):
        row[: len(text)] = torch.from_numpy(text[:sequence])
    return Dataset(x, torch.tensor(labels, dtype=torch.int64), classes)


def spread(data: Dataset, count: int | None) -> Dataset:
    """Return `count` examples, evenly spread over all; all examples if there are fewer, or if None."""
    n, total = len(data) if count is None else min(count, len(data)), len(data)
    return data if n == total else data.of(torch.arange(n) * total // n)
