"""The check before the first step: what would make the result of a run wrong, and what may be meant.

It reads what is in memory already, and passes a few examples through the model.
"""

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping

from phalanx.core import InfeasibleError
from phalanx.data import Dataset, Uniform
from phalanx.data.findings import Finding, clipped, unseen
from phalanx.runs.plan import Run
from phalanx.training.task import Regression, Task, undefined
from phalanx.training.trial import diverges, gradients, targets_apart, trains_on_one
from phalanx.training.vector import FlatModule
from phalanx.wording import plural

ENOUGH = 89  # examples a client, from which on groups are found: benchmarks/groups_found.py, where 16 hold 1,438
ACCEPTED = " (accepted)"  # ends the sentence of an accepted error


def preflight(
    plan: Run, train: Dataset, test: Dataset, task: Task, model: FlatModule, *, sitting_out: Mapping[int, str]
) -> tuple[str, ...]:
    """Return the remarks on a run that has not begun, a sentence each.

    Args:
        plan: the run.
        train: all examples of its clients.
        test: its test part.
        task: of the run.
        model: of the run.
        sitting_out: clients that do not train, each with the reason.

    Raises:
        InfeasibleError: its result would be wrong, and the run does not accept that.
    """
    found = _findings(plan, train, test, task, model)
    sits = (Finding("sits_out", str(i), f"Client {i} sits out: {why}.", error=False) for i, why in sitting_out.items())
    return judged([*found, *sits], plan.accept)


def judged(found: Iterable[Finding], accept: Collection[str]) -> tuple[str, ...]:
    """Return the sentences of remarks, and of errors that are accepted.

    Args:
        found: what was found.
        accept: the keys of accepted findings.

    Raises:
        InfeasibleError: there is an error that is not accepted; the message says how it would be.
    """
    listed = clipped([*found])
    if errors := [one for one in listed if one.error and one.key not in accept]:
        keys = [one.key for one in errors]
        given = shlex.quote(keys[0] if len(keys) == 1 else json.dumps(keys, ensure_ascii=False))
        sentences = " ".join(one.sentence for one in errors)
        raise InfeasibleError(f"{sentences} If that is meant: --accept {given} (in Python accept).")
    kept = [one for one in listed if one.error or one.key not in accept]  # an accepted remark is not repeated
    return tuple(f"{one.sentence}{ACCEPTED}" if one.error else one.sentence for one in kept)


def _findings(plan: Run, train: Dataset, test: Dataset, task: Task, model: FlatModule) -> Iterator[Finding]:
    """Yield what was found about the data and the model of a run."""
    yield from train.findings
    yield from _labels(train, test)
    yield from _metrics(task, test)
    yield from _groups(plan, len(train))
    if isinstance(task, Regression) and task.unscaled:
        yield from targets_apart(train.y)
    if len(train):
        yield from gradients(model, task, train, plan.seed)
    if isinstance(task, Regression) and len(train):
        yield from diverges(model, plan.training, task, train, plan.seed)


def _labels(train: Dataset, test: Dataset) -> Iterator[Finding]:
    """Yield the labels of the test part that never occur in training; not of texts, whose words are many."""
    if train.classes and train.y.ndim == 1:
        names = train.reading.labels if train.reading is not None else ()
        yield from unseen(train.label_counts().tolist(), test.label_counts().tolist(), names)


def _groups(plan: Run, examples: int) -> Iterator[Finding]:
    """Yield why groups of clients may not be found, where an algorithm looks for some that the clients can have."""
    search, rounds = plan.algorithm.traits.groups, plan.algorithm.traits.synchronous
    if search is None or (plan.groups is None and isinstance(plan.partition, Uniform)):
        return
    look, may = "Look at the clusters at the end.", f"{search.by} may not find their groups"
    if (smallest := plan.clients // (plan.groups.number if plan.groups is not None else 2)) < search.least:
        why = f"{search.by} finds no group of fewer than {plural(search.least, 'client')}"
        remedy = f"and there are groups of {smallest}. Set min_part_size to {smallest} or less."
        yield Finding("groups", "size", f"{why}, {remedy}", error=False)
    if (each := examples / plan.clients) < ENOUGH:
        why = f"Clients hold {each:.0f} examples on average, and {may}: on digits it found groups in {search.found}"
        yield Finding("groups", "examples", f"{why}. {look}", error=False)
    if search.in_part and rounds and plan.participation < 1:
        why = f"Not all clients take part in a round, and {may}: {search.in_part}"
        yield Finding("groups", "participation", f"{why}. {look}", error=False)
    if rounds and plan.until.limit is not None and (sent := plan.until.limit * plan.participation) < search.turns:
        why = f"{search.by} divides no cluster before its clients have sent {search.turns} updates each"
        remedy = f"and {plural(plan.until.limit, 'round')} bring {sent:.3g}. Lower min_turns."
        yield Finding("groups", "turns", f"{why}, {remedy}", error=False)


def _metrics(task: Task, test: Dataset) -> Iterator[Finding]:
    """Yield the metrics of a task that are undefined for some classes of the test part."""
    names = test.reading.labels if test.reading is not None else ()
    for metric, classes in undefined(task, test).items():
        listed = ", ".join(repr(names[c]) if names else str(c) for c in classes[:5])
        yield Finding(
            "metric",
            metric,
            f"{metric} is undefined for class {listed}, as the test part has no such row, or no other: it is the mean "
            "over the other classes.",
            error=False,
        )


def untrainable(model: FlatModule, data: Mapping[int, Dataset], seed: int) -> dict[int, str]:
    """Return the clients that cannot train, with the reason."""
    single = [client for client, held in data.items() if len(held) == 1]
    if not single or trains_on_one(model, data[single[0]], seed):
        return {}
    why = "it holds one example, and the model takes statistics of a batch, which need two"
    return dict.fromkeys(single, why)
