"""Shakespeare's plays by speaking role: prediction of the next character.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", 2017, made each role a client; Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018,
published the procedure.  The task is that of Reddi et al., "Adaptive Federated Optimization", 2021, which Portnoy,
Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020, adopted.

As in the code of Reddi et al.:

* There are 90 classes: 86 characters, and signs for padding, other characters, and begin and end of a speech.
* A speech is begin, its characters, end, then padding to a multiple of 81.  Each piece of 81 is an example: its first
  80 are the input, its last 80 the labels.  Padding is no label.
* A role needs two speeches, at least one for training and one for tests.
* There is one test set: the test parts of all roles.

Differences, and choices where they do not say:

* They have 715 roles and 18,424 speeches of the set that TensorFlow Federated hosts, whose selection cannot be derived
  from the plays.  The 715 roles with most speeches replace them; they have more speeches, 28,679.
* The last fifth of the speeches of a role, in the order of the play, is for tests, rounded down but at least one.
* White space, ends of lines included, becomes one space.
* Characters are numbered in the order of ASCII.
* A piece without a label, which holds only the end of a speech, is dropped.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import override

from phalanx.data.dataset import NO_LABEL, Dataset
from phalanx.data.published_files import FETCH_AGAIN, LARGEST_TEXT
from phalanx.data.sources import Source
from phalanx.fields import PositiveInt
from phalanx.reading import contents, unzipped

Role = list[str]  # speeches, in the order of the play
Pieces = npt.NDArray[np.int64]  # (n, sequence + 1), indices of characters

CHARACTERS = "".join(sorted(ascii_letters + digits + "\n\r !\"#$%&'()*,-./:;?@[]_"))
PAD, OTHER, BEGIN, END = 0, len(CHARACTERS) + 1, len(CHARACTERS) + 2, len(CHARACTERS) + 3
CLASSES = len(CHARACTERS) + 4
LARGEST_PLAYS = 1 << 30  # bytes of LEAF's file
NUMBERS = np.full(256, OTHER)  # index of the character of each byte
NUMBERS[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(1, OTHER)


@dataclass(frozen=True)
class Shakespeare(Source):
    """Shakespeare's plays, one owner for each speaking role; the labels of a text are its next characters.

    One of two files is expected in `shakespeare/` of the data folder: `all_data.json`, as LEAF writes it with the
    users' text (`--raw`), a line for each speech; or `roles.jsonl.gz`, one JSON object for each role with its
    `speeches`, lists of lines.  Use it with the partition `Natural` and the model `CharLSTM`.

    Args:
        roles: number of roles, those with most speeches (the first ones at a tie); null for all with two speeches.
        sequence: number of characters in an example, at least 1.
        limit: largest number of train examples of each role, at least 1; all if not given.
        tests: largest number of test examples, at least 1, evenly spread over the roles; all if not given.
    """

    roles: PositiveInt | None = 715
    sequence: PositiveInt = 80
    limit: PositiveInt | None = None
    tests: PositiveInt | None = None

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x and y are int64 of shape (n, sequence), and `owners` the roles, from 0."""
        train, test = [], []
        for role in self._chosen(_read(data_dir)):
            last = max(1, len(role) // 5)
            train.append(_pieces(role[:-last], self.sequence)[: self.limit])
            test.append(_pieces(role[-last:], self.sequence))
        whole = _dataset(test)
        count = min(self.tests or len(whole), len(whole))
        return _dataset(train), whole.of(torch.arange(count) * len(whole) // count)

    def _chosen(self, roles: Sequence[Role]) -> list[Role]:
        """Return the roles with most speeches, in the order of the file."""
        able = [role for role in roles if len(role) > 1]
        count = len(able) if self.roles is None else self.roles
        if not 0 < count <= len(able):
            raise ValueError(f"roles must be at most {len(able)}, the number of roles with two speeches, got {count}.")
        most = sorted(range(len(able)), key=lambda i: -len(able[i]))[:count]
        return [able[i] for i in sorted(most)]


def _pieces(speeches: Sequence[str], sequence: int) -> Pieces:
    """Return the speeches as indices, each padded and cut into pieces; pieces without a label are left out."""
    parts = []
    for speech in speeches:
        numbers = NUMBERS[np.frombuffer(speech.encode(), np.uint8)]
        padded = np.full(-(-(len(numbers) + 2) // (sequence + 1)) * (sequence + 1), PAD)
        padded[: len(numbers) + 2] = [BEGIN, *numbers, END]
        parts.append(padded.reshape(-1, sequence + 1))
    whole: Pieces = np.concatenate(parts)
    labelled: Pieces = whole[whole[:, 1] != PAD]
    return labelled


def _dataset(parts: Sequence[Pieces]) -> Dataset:
    """Return a data set of the pieces of all roles."""
    pieces = torch.from_numpy(np.concatenate(parts))
    owners = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))
    labels = pieces[:, 1:].contiguous()
    return Dataset(pieces[:, :-1].contiguous(), labels.masked_fill_(labels == PAD, NO_LABEL), CLASSES, owners)


# --- files ------------------------------------------------------------------------------------------------------------


def _read(data_dir: Path | None) -> list[Role]:
    """Return the roles of the first file that exists."""
    where = "the data folder" if data_dir is None else str(Path(data_dir))
    for name, read in READERS.items():
        if data_dir is not None and (path := Path(data_dir) / "shakespeare" / name).is_file():
            return _checked(path, read)
    raise FileNotFoundError(
        f"Shakespeare needs {' or '.join(f'shakespeare/{name}' for name in READERS)} in {where}. Neither is published "
        "with a checksum, so they are not downloaded. Make all_data.json with LEAF "
        "(https://github.com/TalwalkarLab/leaf, data/shakespeare, ./preprocess.sh --raw), put it there, and give the "
        "folder as data_dir."
    )


def _checked(path: Path, read: Callable[[Path], list[Role]]) -> list[Role]:
    """Return the roles in a file, without empty speeches.

    Raises:
        ValueError: if the contents of the file do not match its name.
    """
    try:
        roles = read(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: its text is not UTF-8. {FETCH_AGAIN}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is damaged: it is nested too deeply. {FETCH_AGAIN}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}. {FETCH_AGAIN}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not hold speeches by role as {HOLDS[path.name]}. {FETCH_AGAIN}") from error
    return [[text for speech in role if (text := " ".join(speech.split()))] for role in roles]


def _leaf(path: Path) -> list[Role]:
    users: dict[str, Any] = json.loads(contents(path, LARGEST_PLAYS))["user_data"]
    return [user["raw"].split("\n") for user in users.values()]


def _jsonl(path: Path) -> list[Role]:
    text = unzipped(path, LARGEST_TEXT).decode()
    roles = [json.loads(line)["speeches"] for line in text.removesuffix("\n").split("\n")]
    if not all(isinstance(speech, list) for role in roles for speech in role):
        raise TypeError("a speech is a list of lines")
    return [[" ".join(speech) for speech in role] for role in roles]


READERS: dict[str, Callable[[Path], list[Role]]] = {"all_data.json": _leaf, "roles.jsonl.gz": _jsonl}
HOLDS = {
    "all_data.json": 'LEAF writes them with --raw: {"user_data": {user: {"raw": text}}}',
    "roles.jsonl.gz": 'one JSON object on each line: {"speeches": [[line, ...], ...]}',
}
