"""What another algorithm would have made of the updates of a run, step by step.

The run's own algorithm is replayed first: if each model comes out as it was recorded, to the last bit, then the record
of what it did with these updates is true.  Another algorithm is given the same updates, from the model that the run had
before each step, and remembers what it has seen of them.  What it answers in a step is exact.  A trajectory it is not:
after the first difference, clients would have trained from other models, and sent other updates.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped

from phalanx.algorithms.private import secretly
from phalanx.core import Algorithm, InfeasibleError, Updates, Vector, Verdict
from phalanx.promises import BrokenPromise, watched
from phalanx.runs.evidence import StepEvidence
from phalanx.runs.evidenced import in_force
from phalanx.runs.files import AUDIT
from phalanx.runs.models import MODEL, Models, Tensors, content, others, served_alike
from phalanx.runs.updates import KeptUpdates, kept_steps, read_kept


class ReplayedStep(NamedTuple):
    """What the replay of a step has found.

    Args:
        step: its number.
        same: whether the run's own algorithm came to the same bytes as it did then, as far as the folder says it: in
            the same file, in the audit trail, and after the last step in the saved model.
        length: Euclidean length of the run's own step.
        difference: Euclidean distance between the models after the step by the run's own algorithm and by the other
            one; None without another one.
        verdicts: of the other algorithm, by client; of its own without another one.
        lost: why the other algorithm would have lost the round; empty if it would not.
    """

    step: int
    same: bool
    length: float
    difference: float | None
    verdicts: Mapping[int, Verdict]
    lost: str = ""


@dataclass(frozen=True)
class UpdateReplay:
    """The replay of a run whose updates were kept.

    Args:
        folder: of the run.
        own: the run's algorithm.
        other: what gets the updates; None: the same.
        without: clients whose updates are left out then, as if they did not take part.
        secret: whether the server drew noise that nobody can draw again, as real servers do.

    Raises:
        InfeasibleError: no updates were kept, such a client did not take part, or the run cannot be replayed.
    """

    folder: Path
    own: Algorithm[Any]
    other: Algorithm[Any] | None = None
    without: frozenset[int] = frozenset()
    secret: bool = False

    def __post_init__(self) -> None:
        if not kept_steps(self.folder):
            raise InfeasibleError(
                f"{self.folder} holds no updates. Repeat the run with --keep_updates, simulate(..., keep_updates=True) "
                "or Coordinator(keep_updates=True)."
            )
        if self.secret and secretly(self.own) != self.own:
            raise InfeasibleError(
                f"{self.own.title} drew noise on the server that nobody can draw again, so that it cannot be replayed."
            )

    @property
    def differs(self) -> bool:
        """Whether something else than the run's own algorithm, or fewer clients, are replayed."""
        return self.other is not None or bool(self.without)

    def steps(self) -> Iterator[ReplayedStep]:
        """Yield each step.

        Raises:
            InfeasibleError: the other algorithm cannot serve these clients, or keeps more than one model.
            ValueError: the updates are damaged, or those of a step are missing.
        """
        start, evidence, last = read_kept(self.folder, 0), self._evidence, self._saved
        model, sizes = start.tensors["model"], dict(start.about.joined)
        states = _States(self.own, self.own.init(model.clone(), dict(sizes))[0])
        another: _States | None = None
        if self.differs:
            algorithm, left = self.other or self.own, {i: n for i, n in sizes.items() if i not in self.without}
            another = _States(algorithm, algorithm.init(model.clone(), left)[0])
        known, steps = {*sizes}, kept_steps(self.folder)
        for expected, step in enumerate(steps, 1):
            if step != expected:
                raise ValueError(f"The updates of step {expected} are missing in {self.folder}.")
            kept = read_kept(self.folder, step)
            known |= kept.about.joined.keys()
            if strange := sorted({*kept.about.clients} - known):
                raise ValueError(
                    f"Step {step} in {self.folder} holds an update of client {strange[0]}, which never joined."
                )
            found = self._step(kept, states, another, known)
            same = found.same and (evidence is None or _is_of(kept, evidence.get(step)))
            if step == steps[-1] and last is not None:
                same = same and last[0] == step and _holds(last[1], states.state.model)
            yield found._replace(same=same)
        if strange := sorted(self.without - known):
            named = ", ".join(map(str, strange))
            raise InfeasibleError(f"No such client took part: {named}. Who did: {', '.join(map(str, sorted(known)))}.")

    @cached_property
    def _evidence(self) -> dict[int, StepEvidence] | None:
        """What the audit trail says of each step with updates; None if there is no trail."""
        if not (self.folder / AUDIT).exists():
            return None
        return {one.step: one.evidence for one in in_force(self.folder, AUDIT).lines.values() if one.evidence.updates}

    @cached_property
    def _saved(self) -> tuple[int, Tensors] | None:
        """The step of the saved global model, and its values; None if there is none."""
        try:
            models = Models.load(self.folder)
        except FileNotFoundError:
            return None
        return models.index.step, models.state()

    @property
    def compared(self) -> str:
        """What each step is compared with, in words."""
        trail = [] if self._evidence is None else [AUDIT]
        model = [] if self._saved is None else [f"after the last step, {MODEL}"]
        return "; ".join([", ".join(["what updates/ says of each step", *trail]), *model])

    def _step(self, kept: KeptUpdates, own: "_States", another: "_States | None", known: Set[int]) -> ReplayedStep:
        about, before, version = kept.about, own.state.model, own.state.version
        early = {i: n for i, n in about.joined.items() if i in about.clients}
        late = {i: n for i, n in about.joined.items() if i not in early}
        own.join(early)
        updates = kept.updates(before, own.algorithm.traits.vectors * len(before))
        tolerated = max(0, about.watched - about.bad) if own.algorithm.traits.synchronous else about.watched
        own.advance(updates, tolerated, about.lost, about.broken_promise)
        length, difference, lost, verdicts = _distance(own.state.model, before), None, "", own.state.verdicts
        served = served_alike(own.algorithm, own.state, known - late.keys())
        same = (content(served.model).hex(), others(served)) == (about.result, about.others)
        if another is not None:
            left = updates.of({*updates.clients} - self.without)
            another.move(before, version)
            another.join({i: n for i, n in early.items() if i not in self.without})
            lost = another.advance(left, 0, "") if len(left) else "no updates are left"
            difference, verdicts = _distance(another.state.model, own.state.model), another.state.verdicts
            another.join({i: n for i, n in late.items() if i not in self.without})
        own.join(late)
        return ReplayedStep(about.step, same, length, difference, verdicts if not lost else {}, lost)


class _States:
    """An algorithm with its state, from step to step."""

    def __init__(self, algorithm: Algorithm[Any], state: Any) -> None:
        self.algorithm, self.state = algorithm, state

    def advance(self, updates: Updates, f: int, lost: str, broken: BrokenPromise = "hold") -> str:
        """Take a step, or lose the round for the reason that is given; return why it is lost, if it is."""
        if not lost:
            try:
                with watched(f, then=broken):
                    self.state, _ = self.algorithm.step(self.state, updates)
                return ""
            except InfeasibleError as error:
                lost = str(error)
        self.state, _ = self.algorithm.lose_round(self.state, updates, lost)
        return lost

    def join(self, clients: Mapping[int, int]) -> None:
        """Take in clients that came later, if the algorithm can."""
        for client, size in clients.items() if self.algorithm.traits.can_join else ():
            self.state = self.algorithm.join(self.state, client, size)

    def move(self, model: Vector, version: int) -> None:
        """Have the next step begin at another model."""
        self.state = _moved(self.state, {"model": model, "version": version}, self.algorithm.title)


def _moved(state: Any, values: Mapping[str, Any], title: str) -> Any:
    """Return a state with another global model, and all that it remembers."""
    names = getattr(state, "_fields", None) or (
        tuple(state.__dataclass_fields__) if is_dataclass(state) else ()
    )  # of a NamedTuple or a dataclass
    if "model" in names:
        given = {name: value for name, value in values.items() if name in names}
        return state._replace(**given) if hasattr(state, "_replace") else replace(state, **given)
    if "inner" in names:
        inner = _moved(state.inner, values, title)
        return state._replace(inner=inner) if hasattr(state, "_replace") else replace(state, inner=inner)
    raise InfeasibleError(
        f"{title} keeps several models, those of its own earlier rounds: what it would have made of a round of another "
        "algorithm is not defined. Ask for one that keeps a single model, such as FedAvg with another rule."
    )


def _is_of(kept: KeptUpdates, evidence: StepEvidence | None) -> bool:
    """Return whether a step is that of the evidence: the updates, and the models after it."""
    if evidence is None:
        return False
    updates = {client: content(kept.update(client)).hex() for client in kept.about.clients}
    made = kept.about.result, kept.about.others
    return (updates, made) == (evidence.updates, (evidence.result, evidence.others))


def _holds(saved: Tensors, model: Vector) -> bool:
    """Return whether all entries of a model are among those of a file, which has them in an order of its own."""
    entries = [value.flatten() for value in saved.values() if value.dtype == model.dtype]
    there, counts = np.unique(_bits(torch.cat([*entries, model[:0]])), return_counts=True)
    needed, least = np.unique(_bits(model), return_counts=True)
    return bool(np.isin(needed, there).all() and (counts[np.searchsorted(there, needed)] >= least).all())


def _bits(vector: Vector) -> Shaped[np.ndarray, "_"]:
    return vector.contiguous().view(torch.uint8).numpy().view(f"u{vector.element_size()}")


def _distance(a: Vector, b: Vector) -> float:
    return float((a.double() - b.double()).norm())
