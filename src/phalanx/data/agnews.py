"""AG-News: prediction of the next word, in news of four topics.

Zhang, Zhao and LeCun, "Character-level Convolutional Networks for Text Classification", 2015, made the set from the
corpus of A. Gulli: 30,000 articles each of World, Sports, Business and Sci/Tech for training, 1,900 each for tests.
Sattler, Müller and Samek, "Clustered Federated Learning", 2019, Figure 9, train language models on it: 20 clients
hold 20 corpora of equal size, each of articles of one topic.

Where the paper is silent:

* An article is its title and description, in lower case, with punctuation as separate words
  (`phalanx.data.vocabulary.words_of`).
* The articles of a topic go to its corpora in turn, in the order of the file, both for training and for tests.
* A corpus is a sequence of words, with an end sign between two articles, cut into pieces of equal length.
* The size of the vocabulary.  10,000 entries cover 93 % of the words of the train part.  The paper's perplexity of 36
  to 43 is for an unstated vocabulary, so it cannot be compared with the perplexity for another one.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from typing_extensions import override

from phalanx.data.dataset import Dataset
from phalanx.data.published_files import FETCH_AGAIN, Layout, download, found, text_file
from phalanx.data.sources import Source
from phalanx.data.vocabulary import Vocabulary, VocabularySize, language, next_words, spread, words_of
from phalanx.fields import PositiveInt

Article = tuple[int, list[str]]  # topic from 0, words

TOPICS = ("World", "Sports", "Business", "Sci/Tech")
LAYOUTS: list[Layout] = [("ag_news", ("train.csv", "test.csv")), ("ag_news", ("train_tokens.csv", "test_tokens.csv"))]


@dataclass(frozen=True)
class AGNews(Source):
    """News of four topics, one owner for each corpus; the labels of a text are its next words.

    Owner k holds news of topic k mod 4: World, Sports, Business, Sci/Tech.  Use it with the partition `Natural`, as
    many clients as corpora, the groups `Topics` and the model `WordLSTM`.

    Two files, gzipped or not, are expected in `ag_news/` of the data folder: `train.csv` and `test.csv`, as
    published, or `train_tokens.csv` and `test_tokens.csv`.  The first column is the topic, 1 to 4, the others are text.

    Args:
        corpora: number of corpora, a multiple of 4.
        vocabulary: largest size of the vocabulary, signs for padding, unknown words and ends included; it holds the
            most frequent words of the whole train part. Null for all words.
        sequence: number of words in an example, at least 1.
        limit: largest number of train examples of each corpus, at least 1; all if not given.
        tests: largest number of test examples, at least 1, evenly spread over the corpora; all if not given.
    """

    corpora: Annotated[int, Meta(ge=len(TOPICS), multiple_of=len(TOPICS), description="a topic each")] = 20
    vocabulary: VocabularySize | None = 10_000
    sequence: PositiveInt = 50
    limit: PositiveInt | None = None
    tests: PositiveInt | None = None

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x and y are int64 of shape (n, sequence), `owners` are the corpora."""
        root = download("ag_news", "ag_news") if data_dir is None else data_dir
        train, test = (_articles(path) for path in found("AGNews", root, LAYOUTS, ("", ".gz")))
        known = Vocabulary((words for _, words in train), self.vocabulary)
        return self._language(train, known, self.limit), spread(self._language(test, known), self.tests)

    def _language(self, articles: Sequence[Article], known: Vocabulary, limit: int | None = None) -> Dataset:
        parts = [[known.numbers(words) for words in corpus] for corpus in self._dealt(articles)]
        return language([next_words(part, self.sequence) for part in parts], len(known), limit)

    def _dealt(self, articles: Sequence[Article]) -> list[list[list[str]]]:
        """Return the articles of each corpus.

        Raises:
            ValueError: if there are fewer articles of a topic than corpora for them.
        """
        by_topic = [[words for of, words in articles if of == topic] for topic in range(len(TOPICS))]
        each = self.corpora // len(TOPICS)
        if (fewest := min(map(len, by_topic))) < each:
            raise ValueError(
                f"{self.corpora} corpora need at least {each} articles of each topic in both parts, got {fewest}. "
                "Lower corpora."
            )
        return [by_topic[k % len(TOPICS)][k // len(TOPICS) :: each] for k in range(self.corpora)]


def _articles(path: Path) -> list[Article]:
    """Return the articles of a file, in its order.

    Raises:
        ValueError: if a row has no topic or no text.
    """
    articles = []
    with text_file(path, "utf-8") as file:
        for number, row in enumerate(csv.reader(file), 1):
            words = words_of(" ".join(row[1:]))
            if not words or row[0] not in ("1", "2", "3", "4"):
                start = ",".join(row)[:40]
                raise ValueError(
                    f"{path} must have a topic from 1 to {len(TOPICS)} and a text in each row, "
                    f"row {number} begins {start!r}. {FETCH_AGAIN}"
                )
            articles.append((int(row[0]) - 1, words))
    return articles
