"""WikiText-2: prediction of the next word, in articles of Wikipedia.

Merity, Xiong, Bradbury and Socher, "Pointer Sentinel Mixture Models", 2017.  Cox, Malan, Chen and Decouchant,
"Asynchronous Byzantine Federated Learning", 2024, call it a character model; their code predicts words, as here:

* Words are in lower case, with punctuation as separate words (`phalanx.data.vocabulary.words_of`).  Rare words
  are already removed from the published set; the vocabulary has the remaining words that occur at least four times
  in the train part, 23,654 with the signs.
* The text is a sequence of words, with an end sign after each line, cut into pieces of 128.  Each client holds random
  pieces.

The validation part is not used.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from phalanx.data.dataset import Dataset
from phalanx.data.published_files import FETCH_AGAIN, Layout, found, text_lines
from phalanx.data.sources import Source
from phalanx.data.vocabulary import Vocabulary, VocabularySize, language, next_words, spread, words_of
from phalanx.fields import PositiveInt
from phalanx.installation import installation

LAYOUTS: list[Layout] = [
    ("wikitext-2", ("wiki.train.tokens", "wiki.test.tokens")),
    ("wikitext2", ("train.txt", "test.txt")),
]

# The download: a data set on the Hugging Face hub, at a fixed commit.
HUB, NAME, REVISION = "Salesforce/wikitext", "wikitext-2-v1", "b08601e04326c79dfdd32d625aee71d232d685c3"

# SHA-256 of the sorted lines of each part, with single spaces and none at the ends.
HASHES = {
    "train": "a099527d7563ddf101d164cb2864b5c1ebfc65c130f460918f1b5df17839ae07",
    "test": "ef995194d149bc9928197d8cae11613a46edf4356a4983561eeb4b198d870f7a",
}


@dataclass(frozen=True)
class WikiText2(Source):
    """Articles of Wikipedia, two million words for training; the labels of a text are its next words.

    Two files, gzipped or not, are expected: `wiki.train.tokens` and `wiki.test.tokens` in `wikitext-2/` of the data
    folder, as published, or `train.txt` and `test.txt` in `wikitext2/`.  Use it with `WordLSTM`.

    Args:
        vocabulary: largest size of the vocabulary, signs for padding, unknown words and ends included; it holds the
            most frequent words. Null for all words that occur often enough.
        least: smallest number of occurrences of a word of the vocabulary in the train part, at least 1.
        sequence: number of words in an example, at least 1.
        limit: largest number of train examples, at least 1; the first ones are taken. All if not given. The
            vocabulary is always of the whole train part.
        tests: largest number of test examples, at least 1, evenly spread; all if not given.
    """

    vocabulary: VocabularySize | None = None
    least: PositiveInt = 4
    sequence: PositiveInt = 128
    limit: PositiveInt | None = None
    tests: PositiveInt | None = None

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x and y are int64 of shape (n, sequence)."""
        train, test = ([words_of(line) for line in part] for part in _read(data_dir))
        known = Vocabulary(train, self.vocabulary, self.least)
        pieces = [next_words([known.numbers(words) for words in part], self.sequence) for part in (train, test)]
        train_set, test_set = language(pieces[:1], len(known), self.limit), language(pieces[1:], len(known))
        return train_set, spread(test_set, self.tests)


def _read(data_dir: Path | None) -> list[Sequence[str]]:
    """Return the lines of train and test part.

    Raises:
        ValueError: if a file has no line.
    """
    if data_dir is None:
        return _downloaded()
    paths = found("WikiText2", data_dir, LAYOUTS, ("", ".gz"))
    parts: list[Sequence[str]] = [text_lines(path) for path in paths]
    if empty := [str(path) for path, part in zip(paths, parts, strict=True) if not part]:
        raise ValueError(f"{empty[0]} is empty. {FETCH_AGAIN}")
    return parts


def _downloaded() -> list[Sequence[str]]:
    """Return the lines of train and test part, from the Hugging Face hub or the cache of `datasets`.

    Raises:
        ModuleNotFoundError: if the package `datasets` is not installed.
        OSError: if the hub cannot be reached.
        ValueError: if the text is not the published one.
    """
    remedy = f"put {' and '.join(LAYOUTS[0][1])} into FOLDER/{LAYOUTS[0][0]} and give FOLDER as data_dir."
    try:
        import datasets  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"WikiText2 is downloaded by the package datasets. Install it: {installation('huggingface')}; or {remedy}"
        ) from error
    try:
        splits = datasets.load_dataset(HUB, NAME, split=list(HASHES), revision=REVISION)
    except OSError as error:
        raise OSError(f"{HUB} could not be downloaded: {error}. Without network access: {remedy}") from error
    parts: list[Sequence[str]] = [list(split["text"]) for split in splits]
    for (name, expected), lines in zip(HASHES.items(), parts, strict=True):
        if (got := digest(lines)) != expected:
            raise ValueError(
                f"The {name} part of {HUB} is refused: the SHA-256 of its lines must be {expected}, got {got}. "
                f"Instead, {remedy}"
            )
    return parts


def digest(lines: Sequence[str]) -> str:
    """Return the SHA-256, in hexadecimal, of the lines in the order of their bytes, with normalised spaces."""
    plain = sorted(" ".join(line.split()).encode() for line in lines)
    return hashlib.sha256(b"\n".join(plain)).hexdigest()
