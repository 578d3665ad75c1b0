"""Texts as numbers: their words, the vocabulary of a train part, and examples of one length.

A word is a number: 0 is padding, 1 any word that is not in the vocabulary, 2 the end of a text, and from 3 on come the
words, the most frequent first.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from phalanx.data.dataset import NO_LABEL, Dataset

Words = Sequence[str]
Numbers = npt.NDArray[np.int64]  # (words,)

PAD, UNKNOWN, END = 0, 1, 2
SIGNS = 3
UNKNOWN_WORD = "<unk>"  # as it stands in texts whose rare words have been taken out
APART = str.maketrans({mark: f" {mark} " for mark in ".,()!?'"} | {'"': "", ";": " ", ":": " "})


def words_of(text: str) -> list[str]:
    """The words of an English text, in lower case; `.,()!?'` are words, and `";:` are left out.

    This is the rule that torchtext calls "basic_english".  What it has made is left as it is.
    """
    return text.lower().replace("<br />", " ").translate(APART).split()


class Vocabulary:
    """The numbers of words.

    Args:
        texts: where the words are counted: the train part.
        size: how many numbers there are at most, padding, unknown and end included; as many as needed if None.
        least: how often a word must occur to have a number.
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
        """The number of each word."""
        return np.fromiter((self._numbers.get(word, UNKNOWN) for word in words), np.int64, len(words))


def next_words(texts: Sequence[Numbers], sequence: int) -> tuple[Numbers, Numbers]:
    """Pieces of a row of texts, and the word that follows at each position; the last piece is padded.

    The texts stand one behind the other, an end before the first and behind each.  Every word and every end but the
    first is a label once.

    Args:
        texts: the numbers of their words, at least one text.
        sequence: words of a piece.

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
    """One data set of what `next_words` gives for each owner, or of the first `limit` pieces of each."""
    x, y = (torch.from_numpy(np.concatenate([part[which][:limit] for part in parts])) for which in (0, 1))
    sizes = torch.tensor([len(part[0][:limit]) for part in parts])
    owners = torch.arange(len(parts)).repeat_interleave(sizes) if len(parts) > 1 else None
    return Dataset(x, y.masked_fill_(y == PAD, NO_LABEL), classes, owners)


def sentences(texts: Sequence[Numbers], labels: Sequence[int], sequence: int, classes: int) -> Dataset:
    """One example of each text: its first `sequence` words, padded behind."""
    x = torch.full((len(texts), sequence), PAD)
    for row, text in zip(x, texts, strict=True):
        row[: len(text)] = torch.from_numpy(text[:sequence])
    return Dataset(x, torch.tensor(labels, dtype=torch.int64), classes)


def spread(data: Dataset, count: int | None) -> Dataset:
    """So many examples, evenly spread over all; all if there are no more, or if None."""
    n, total = len(data) if count is None else min(count, len(data)), len(data)
    return data if n == total else data.of(torch.arange(n) * total // n)


def check_sizes(source: Any) -> None:
    """Refuses sizes of a source of texts that cannot be.

    Raises:
        ValueError: `vocabulary` has no room for a word, `sequence` is below 1, or `limit` or `tests` is.
    """
    if source.vocabulary is not None and source.vocabulary <= SIGNS:
        raise ValueError(
            f"vocabulary must be at least {SIGNS + 1}, a word beside padding, unknown and end, got {source.vocabulary}."
        )
    if source.sequence < 1:
        raise ValueError(f"sequence must be at least 1 word, got {source.sequence}.")
    for name in ("limit", "tests"):
        value = getattr(source, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, or null for all, got {value}.")
