"""The guard: invalid updates never reach a rule.

A reply is invalid, with a reason, if it does not answer an open download of its client, or if its content cannot have
come from training the model: wrong type, shape or dtype, NaN, infinity, a norm beyond the limit.  A client that
reports an impossible number of examples is not enrolled.  The run goes on without them.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Annotated, ClassVar, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor

from phalanx.core import Updates, Vector
from phalanx.engine.connection import Reply
from phalanx.fields import CheckedFields, NonNegativeInt, PositiveInt
from phalanx.training.vector import rows_as_matrix
from phalanx.wording import plural

LARGEST = torch.finfo(torch.float32).max  # the type of losses


class Sent(NamedTuple):
    """The server's own record of a download that is not answered yet."""

    version: int  # of the state that it was made from
    base: Vector  # what was sent


class Checked(NamedTuple):
    """The result of an inspection."""

    updates: Updates | None  # None if nothing was accepted
    invalid: dict[int, str]  # client -> why
    answered: set[int]  # clients whose outstanding download is answered, with a valid or an invalid update


LONG_NUMBER = 10**21


@dataclass(frozen=True)
class Guard(CheckedFields):
    """The checks of everything that clients send.

    Args:
        max_norm: largest Euclidean norm of an update. The default only excludes what overflows in float32 arithmetic; a
            limit that fits the task is a defence.
        max_staleness: oldest update that is taken, in server updates. None takes all.
        max_size: largest number of examples that a client may report.
    """

    max_norm: Annotated[float, Meta(gt=0, lt=1e18, description="beyond, float32 overflows")] = 1e15
    max_staleness: NonNegativeInt | None = None
    max_size: PositiveInt = 1_000_000_000
    unable: ClassVar[Mapping[int, str]] = MappingProxyType({})  # by client that cannot train, why

    def excusing(self, unable: Mapping[int, str]) -> "Guard":
        """Return a guard that does not let in these clients, which cannot train, each with the reason."""
        other = copy(self)
        object.__setattr__(other, "unable", unable)
        return other

    def enroll(self, reported: Mapping[int, object]) -> tuple[dict[int, int], dict[int, str]]:
        """Return the sizes of the valid clients, in order of id, and the reasons why the others are not enrolled."""
        sizes, invalid = dict[int, int](), dict[int, str]()
        for client in sorted(reported):
            if client in self.unable:
                invalid[client] = self.unable[client]
                continue
            size = _integer(reported[client])
            if size is None:
                invalid[client] = f"reports {_short(reported[client])} examples, which is not an integer"
            elif not 1 <= size <= self.max_size:
                number = f"{size:,}" if abs(size) < LONG_NUMBER else "a number of more than 21 digits of"
                invalid[client] = f"reports {number} examples, allowed are 1 to {self.max_size:,}"
            else:
                sizes[client] = size
        return sizes, invalid

    def inspect(self, replies: Iterable[Reply], sent: Mapping[int, Sent], version: int, model: Vector) -> Checked:
        """Return the valid updates, and the reasons why the other replies are invalid.

        Args:
            replies: as they came.
            sent: the unanswered download of each enrolled client.
            version: the server's current version.
            model: gives the shape, dtype and device of a valid update.
        """
        accepted, invalid, answered = dict[int, Reply](), dict[int, str](), set[int]()
        for reply in replies:
            if why := _unrequested(reply, sent, answered):
                invalid[reply.client] = why if reply.client not in invalid else f"{invalid[reply.client]}; {why}"
                continue
            answered.add(reply.client)
            if why := next(self._complaints(reply, version, model), ""):
                invalid[reply.client] = why
            else:
                accepted[reply.client] = reply
        return Checked(_as_updates(accepted, sent) if accepted else None, invalid, answered)

    def _complaints(self, reply: Reply, version: int, model: Vector) -> Iterator[str]:
        """Yield what is wrong with a reply to an open download.  A later check relies on the earlier ones."""
        delta, loss, age = reply.delta, reply.loss, version - reply.version
        if self.max_staleness is not None and age > self.max_staleness:
            most = "allowed is 1" if self.max_staleness == 1 else f"allowed are {self.max_staleness}"
            yield f"update is {plural(age, 'server update')} old, {most}"
        if type(delta) is not Tensor:  # a subclass brings code of its own
            yield f"update is a {type(delta).__name__}, not a torch.Tensor"
            return
        if delta.layout != torch.strided:
            yield f"update is laid out as {str(delta.layout).removeprefix('torch.')}, expected strided"
            return
        if delta.shape != model.shape:
            yield f"update has shape {tuple(delta.shape)}, expected {tuple(model.shape)}"
        if (delta.dtype, delta.device) != (model.dtype, model.device):
            yield f"update is {_dtype(delta)} on {delta.device}, expected {_dtype(model)} on {model.device}"
        delta = delta.detach() if delta.requires_grad else delta
        norm = float(torch.linalg.vector_norm(delta))  # is NaN or infinite if any entry is
        if not norm <= self.max_norm:
            norm = float(torch.linalg.vector_norm(delta.double()))
            yield _why_not_finite(delta) or f"update has norm {norm:.3g}, allowed is {self.max_norm:.3g}"
        if isinstance(loss, bool) or not isinstance(loss, float | Real) or not 0 <= float(loss) <= LARGEST:
            yield f"loss is {_short(loss)}, not a finite number of at least 0"


def _unrequested(reply: Reply, sent: Mapping[int, Sent], answered: set[int]) -> str:
    """Return why a reply answers no open download; empty if it answers one."""
    if reply.client in answered:
        return f"duplicate: version {reply.version} is answered already"
    if reply.client not in sent:
        return "unrequested: this client has answered all of its downloads"
    if reply.version != sent[reply.client].version:
        return f"answers version {reply.version}, expected version {sent[reply.client].version}"
    return ""


def _why_not_finite(delta: Vector) -> str:
    nan, infinite = int(delta.isnan().sum()), int(delta.isinf().sum())
    counts = [f"{n} {what}" for n, what in ((nan, "NaN"), (infinite, "infinite")) if n]
    return f"update holds {' and '.join(counts)} of {delta.numel()} values" if counts else ""


def _as_updates(accepted: Mapping[int, Reply], sent: Mapping[int, Sent]) -> Updates:
    clients = tuple(sorted(accepted))
    rows = [accepted[i].delta for i in clients]
    losses = [accepted[i].loss for i in clients]
    return Updates(
        clients,
        tuple(sent[i].version for i in clients),
        tuple(sent[i].base for i in clients),
        rows_as_matrix([row.detach() if row.requires_grad else row for row in rows if isinstance(row, Tensor)]),
        torch.tensor([float(loss) for loss in losses if isinstance(loss, float | Real)]),
        reports={i: report for i in clients if (report := accepted[i].report) is not None},
    )


def _integer(value: object) -> int | None:
    """Return the value as an integer, whatever library its type is from; None if it is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
