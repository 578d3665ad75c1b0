"""Sentences of film reviews, classified by sentiment.

Pang and Lee, "Seeing stars", 2005 (`MR`), and Socher et al., "Recursive Deep Models for Semantic Compositionality Over
a Sentiment Treebank", 2013 (`SST`), in the form of Kim, "Convolutional Neural Networks for Sentence Classification",
2014.  Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020, divide them among five
participants.

As in their code, 9,596 sentences of MR and all 8,544 whole sentences of the train part of SST are for training.
Differences, and choices where they do not say:

* MR has no test part.  Here it is every tenth sentence of each of its two files: 1,066 sentences.  Theirs is another
  tenth, and they report the accuracy on one half of it.
* The vocabulary is of the train part; theirs is of all parts.  Words are used as they are in the files.
* They report the accuracy on SST's validation part, which is not used here; here it is on its 2,210 test sentences.
* Labelled phrases, which Kim adds to the train part of SST, are left out, as in their code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from typing_extensions import override

from phalanx.data.dataset import Dataset
from phalanx.data.published_files import FETCH_AGAIN, Layout, download, found, text_lines
from phalanx.data.sources import Source
from phalanx.data.vocabulary import Vocabulary, VocabularySize, sentences, spread
from phalanx.fields import PositiveInt

Sentence = tuple[int, list[str]]  # class, words

MR_FILES = ("rt-polarity.neg", "rt-polarity.pos")
MR_FOLDER = "rt-polaritydata"
MR_LAYOUTS: list[Layout] = [(MR_FOLDER, MR_FILES), ("mr", MR_FILES)]
SST_LAYOUTS: list[Layout] = [("sst", ("stsa.fine.train", "stsa.fine.test"))]
SST_CLASSES = 5
TENTH = 10


@dataclass(frozen=True)
class MR(Source):
    """Sentences of film reviews, 0 negative or 1 positive: 9,596 for training, 1,066 for tests, half of each class.

    `rt-polarity.neg` and `rt-polarity.pos`, gzipped or not, are expected in `rt-polaritydata/` and `mr/` of the data
    folder.  Use it with `KimCNN`.

    Args:
        vocabulary: largest size of the vocabulary, signs for padding, unknown words and ends included; it holds the
            most frequent words of the whole train part. Null for all words.
        sequence: number of words in an example, at least 1: longer sentences are cut, shorter ones padded. 60 cuts
            none.
        limit: largest number of train examples, at least 1; the first ones are taken. All if not given. The classes
            alternate.
        tests: largest number of test examples, at least 1, evenly spread over the classes; all if not given.
    """

    vocabulary: VocabularySize | None = 20_000
    sequence: PositiveInt = 60
    limit: PositiveInt | None = None
    tests: PositiveInt | None = None

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x is int64 of shape (n, sequence), padded with 0."""
        members = [f"{MR_FOLDER}/{name}" for name in MR_FILES]
        root = download("mr", "", members) if data_dir is None else data_dir
        paths = found("MR", root, MR_LAYOUTS, ("", ".gz"))
        labelled = [[(label, words) for words in _lines(path, "latin-1")] for label, path in enumerate(paths)]
        train, test = (
            [[sentence for k, sentence in enumerate(of_class, 1) if (k % TENTH == 0) == tests] for of_class in labelled]
            for tests in (False, True)  # every tenth sentence, or all others
        )
        return _datasets(self, _in_turn(*train), list(chain.from_iterable(test)), len(MR_FILES))


def _in_turn(first: Sequence[Sentence], second: Sequence[Sentence]) -> list[Sentence]:
    """Return the sentences of both alternately, then the rest of the longer one."""
    both = min(len(first), len(second))
    return [*chain.from_iterable(zip(first, second, strict=False)), *first[both:], *second[both:]]


@dataclass(frozen=True)
class SST(Source):
    """Sentences of film reviews in five classes, 0 very negative to 4 very positive: 8,544 and 2,210.

    `stsa.fine.train` and `stsa.fine.test`, gzipped or not, are expected in `sst/` of the data folder.  Learn it with
    `KimCNN`.

    Args:
        vocabulary: largest size of the vocabulary, signs for padding, unknown words and ends included; it holds the
            most frequent words of the whole train part. Null for all words.
        sequence: number of words in an example, at least 1: longer sentences are cut, shorter ones padded. 60 cuts
            none.
        limit: largest number of train examples, at least 1; the first ones are taken. All if not given.
        tests: largest number of test examples, at least 1, evenly spread; all if not given.
    """

    vocabulary: VocabularySize | None = 20_000
    sequence: PositiveInt = 60
    limit: PositiveInt | None = None
    tests: PositiveInt | None = None

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x is int64 of shape (n, sequence), padded with 0."""
        root = download("sst", "sst") if data_dir is None else data_dir
        paths = found("SST", root, SST_LAYOUTS, ("", ".gz"))
        train, test = (_classed(path) for path in paths)
        return _datasets(self, train, test, SST_CLASSES)


def _classed(path: Path) -> list[Sentence]:
    """Return the sentences of a file of SST; each line begins with the class.

    Raises:
        ValueError: if a line has no class or no words.
    """
    labelled = []
    for label, *words in _lines(path, "utf-8"):
        if not words or label not in ("0", "1", "2", "3", "4"):
            raise ValueError(
                f"{path} must have a class from 0 to {SST_CLASSES - 1} and words on each line, "
                f"got {' '.join([label, *words])[:40]!r}. {FETCH_AGAIN}"
            )
        labelled.append((int(label), words))
    return labelled


# --- common


def _lines(path: Path, encoding: str) -> list[list[str]]:
    """Return the words of each line that is not blank.

    Raises:
        ValueError: if there is no such line.
    """
    lines = [words for line in text_lines(path, encoding) if (words := line.split())]
    if not lines:
        raise ValueError(f"{path} is empty. {FETCH_AGAIN}")
    return lines


def _datasets(
    source: MR | SST, train: Sequence[Sentence], test: Sequence[Sentence], classes: int
) -> tuple[Dataset, Dataset]:
    """Return both parts, encoded by the vocabulary of the train part."""
    known = Vocabulary((words for _, words in train), source.vocabulary)
    parts = []
    for part in (train[: source.limit], test):
        texts, labels = [known.numbers(words) for _, words in part], [label for label, _ in part]
        parts.append(sentences(texts, labels, source.sequence, classes))
    return parts[0], spread(parts[1], source.tests)
