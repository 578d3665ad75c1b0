"""WikiText-2: which word comes next, in articles of Wikipedia?

Merity, Xiong, Bradbury and Socher, "Pointer Sentinel Mixture Models", 2017.  Cox, Malan, Chen and Decouchant,
"Asynchronous Byzantine Federated Learning", 2024, call their model one of characters; their code learns words, as here:

* Words are in lower case, with punctuation apart (`phalanx.data.words.words_of`).  The set itself has taken out rare
  words; of what is left those that occur four times or more in the train part have a number, 23,654 with the signs.
* The text is one row of words, with an end behind each line, cut in pieces of 128.  Each client holds pieces drawn at
  random.

The part for validation is not used.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.data.dataset import Dataset
from phalanx.data.files import FETCH_AGAIN, Layout, found, text_lines
from phalanx.data.sources import Source
from phalanx.data.words import Vocabulary, check_sizes, language, next_words, spread, words_of
from phalanx.installation import installation

LAYOUTS: list[Layout] = [
    ("wikitext-2", ("wiki.train.tokens", "wiki.test.tokens")),
    ("wikitext2", ("train.txt", "test.txt")),
]

# Where it is downloaded from: a data set on the Hugging Face hub, at one of its commits.
HUB, NAME, REVISION = "Salesforce/wikitext", "wikitext-2-v1", "b08601e04326c79dfdd32d625aee71d232d685c3"

# SHA-256 of the lines of each part, sorted, with single spaces and none at the ends.
HASHES = {
    "train": "a099527d7563ddf101d164cb2864b5c1ebfc65c130f460918f1b5df17839ae07",
    "test": "ef995194d149bc9928197d8cae11613a46edf4356a4983561eeb4b198d870f7a",
}


@dataclass(frozen=True)
class WikiText2(Source):
    """Articles of Wikipedia, two million words for training; the labels of a text are its next words.

    Two files, gzipped or not, are looked for: `wiki.train.tokens` and `wiki.test.tokens` in `wikitext-2/` of the data
    folder, as published, or `train.txt` and `test.txt` in `wikitext2/`.  Learn it with `WordLSTM`.

    Args:
        vocabulary: how many different numbers there are at most, those for padding, unknown words and ends included;
            the most frequent words have one. Null for all that occur often enough.
        least: how often a word must occur in the train part to have a number, at least 1.
        sequence: words of an example, at least 1.
        limit: take only the first so many train examples, at least 1; all if not given. The vocabulary is that of the
            whole train part.
        tests: take only so many test examples, at least 1, evenly spread; all if not given.
    """

    vocabulary: int | None = None
    least: int = 4
    sequence: int = 128
    limit: int | None = None
    tests: int | None = None

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"least must be at least 1, got {self.least}.")
        check_sizes(self)

    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Train and test part; x and y are int64 of shape (n, sequence)."""
        train, test = ([words_of(line) for line in part] for part in _read(data_dir))
        known = Vocabulary(train, self.vocabulary, self.least)
        pieces = [next_words([known.numbers(words) for words in part], self.sequence) for part in (train, test)]
        train_set, test_set = language(pieces[:1], len(known), self.limit), language(pieces[1:], len(known))
        return train_set, spread(test_set, self.tests)


def _read(data_dir: Path | None) -> list[Sequence[str]]:
    """The lines of train and test part.

    Raises:
        ValueError: a file has no line.
    """
    if data_dir is None:
        return _downloaded()
    paths = found("WikiText2", data_dir, LAYOUTS, ("", ".gz"))
    parts: list[Sequence[str]] = [text_lines(path) for path in paths]
    if empty := [str(path) for path, part in zip(paths, parts, strict=True) if not part]:
        raise ValueError(f"{empty[0]} is empty. {FETCH_AGAIN}")
    return parts


def _downloaded() -> list[Sequence[str]]:
    """The lines of train and test part, from the Hugging Face hub or what `datasets` has kept of it.

    Raises:
        ModuleNotFoundError: the package `datasets` is not installed.
        OSError: the hub could not be reached.
        ValueError: what came is not the text that was published.
    """
    remedy = f"lay {' and '.join(LAYOUTS[0][1])} out in FOLDER/{LAYOUTS[0][0]} and give FOLDER as data_dir."
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
    """SHA-256, in hexadecimal, of the lines in the order of their bytes, however they are spaced."""
    plain = sorted(" ".join(line.split()).encode() for line in lines)
    return hashlib.sha256(b"\n".join(plain)).hexdigest()
