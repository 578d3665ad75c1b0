"""The properties of partitions, as `Partition` states them."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.contracts.breach import TRIED, Found, Make, Property, UntriedError, drawing, same, value
from phalanx.data import Partition
from phalanx.errors import InfeasibleError
from phalanx.rng import generator, numpy_generator


class Examples(NamedTuple):
    """Labels to divide, with their natural owners."""

    labels: Tensor
    owners: Tensor
    clients: int

    @override
    def __str__(self) -> str:
        return f"{len(self.labels)} examples of {int(self.labels.max()) + 1} labels among {self.clients} clients."


CASES = tuple(
    Examples(torch.randint(0, k, (n,), generator=generator(n, "labels")), torch.arange(n) % clients, clients)
    for n, k, clients in ((60, 10, 6), (41, 3, 7), (300, 10, 20), (9, 9, 9), (5, 1, 1))
)


def _made(make: Make) -> Partition:
    partition: Partition = make(6, 0)
    return partition


def _split(partition: Partition, case: Examples, seed: int = 0) -> list[Tensor]:
    return partition.split(case.labels.clone(), case.clients, numpy_generator(seed, "partition"), case.owners.clone())


def _cases(partition: Partition) -> list[Examples]:
    """Return the cases that a partition takes.

    Raises:
        InfeasibleError: it takes none.
    """
    taken, why = list[Examples](), InfeasibleError()
    for case in CASES:
        try:
            _split(partition, case)
            taken.append(case)
        except InfeasibleError as error:
            why = error
    if not taken:
        raise why
    return taken


def _form(make: Make) -> Iterator[Found]:
    for case in _cases(_made(make)):
        parts = _split(_made(make), case)
        if len(parts) != case.clients:
            yield "`split` must return a part for each client.", f"It returned {len(parts)} parts. {case}"
        for part in parts:
            if part.dtype != torch.int64 or not bool((part.diff() > 0).all()):
                yield "The indices of a client must be int64 and increase.", f"It returned {part.tolist()}. {case}"
        yield TRIED


def _holders(make: Make) -> Iterator[Found]:
    partition = _made(make)
    for case in _cases(partition):
        parts = _split(partition, case)
        held = torch.cat(parts).bincount(minlength=len(case.labels))
        if len(held) > len(case.labels) or bool((held > 1).any()):
            yield "An example must have one client, and be among those given.", f"Held: {held.tolist()}. {case}"
        if not partition.partial and not bool((held == 1).all()):
            yield "Every example must have a client, or set `partial`.", f"Held: {held.tolist()}. {case}"
        if not partition.allow_empty and not all(map(len, parts)):
            yield "Every client must have an example.", f"Sizes: {[*map(len, parts)]}. {case}"
        yield TRIED


def _repetition(make: Make) -> Iterator[Found]:
    for case in _cases(_made(make)):
        drawn = drawing()
        if not same(_split(_made(make), case), _split(_made(make), case)):
            yield "The same stream must give the same parts. Draw from `rng` only.", str(case)
        if not same(drawing(), drawn):
            yield "It must not draw from a global generator, but from `rng`.", "The global generator has moved."
        yield TRIED


def _arguments(make: Make) -> Iterator[Found]:
    for case in _cases(_made(make)):
        given = case.labels.clone(), case.owners.clone()
        _made(make).split(given[0], case.clients, numpy_generator(0, "partition"), given[1])
        if not same(given, (case.labels, case.owners)):
            yield "It must not change the labels and owners that it is given.", str(case)
        yield TRIED


def _labels(make: Make) -> Iterator[Found]:
    partition = _made(make)
    if partition.uses_labels:
        raise UntriedError("it says that labels count")
    for case in _cases(partition):
        others = case._replace(labels=case.labels.flip(0))
        if not same(_split(partition, case), _split(partition, others)):
            yield "Labels change its parts: leave `uses_labels` true.", f"The labels were reversed. {case}"
        yield TRIED


PROPERTIES: dict[str, Property] = {
    "value": value,
    "form": _form,
    "holders": _holders,
    "repetition": _repetition,
    "arguments": _arguments,
    "labels": _labels,
}
