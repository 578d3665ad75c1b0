"""The summary of a run: how it ended, its metrics, the exclusions, and their agreement with the truth."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from phalanx.core import InfeasibleError, StalledError
from phalanx.engine.observer import StopRunError
from phalanx.engine.suspicion import in_words
from phalanx.runs.canonical import digest, source
from phalanx.runs.provenance import Provenance
from phalanx.runs.record import Record
from phalanx.runs.schema import (
    BestAccuracy,
    ClientRecord,
    DataRecord,
    DetectionCounts,
    Exclusion,
    FilteredShares,
    FinalMetrics,
    InvalidUpdates,
    PromiseRecord,
    Status,
    StepRecord,
    Summary,
    Suspicion,
    plain,
)

if TYPE_CHECKING:
    from phalanx.runs.plan import Run


class Ending(NamedTuple):
    """The end of a run; the error if it failed, or why an observer stopped it."""

    status: Status
    error: str | None


class RunInfo(NamedTuple):
    """The settings and the provenance of a run.

    Args:
        name: of the run, for readers.
        config: in the form of its configuration file.
        identity: SHA-256 of its canonical form.
        source: SHA-256 of the classes from outside the library that it uses; None if it uses none.
        dimension: number of parameters of the model.
        provenance: versions, sources and machine.
        texts: whether the examples are sequences of labels, so that the exponential of the loss is a perplexity.
        findings: remarks on its data and its model before the first step.
    """

    name: str
    config: dict[str, Any]
    identity: str
    source: str | None
    dimension: int
    provenance: Provenance
    texts: bool = False
    findings: tuple[str, ...] = ()


class Population(NamedTuple):
    """The clients of a run, in the terms of `Summary`; empty if nothing is known."""

    clients: Mapping[int, ClientRecord] = {}
    detection: DetectionCounts | None = None
    filtered: FilteredShares = FilteredShares()
    missing: Mapping[int, str] = {}
    data: DataRecord | None = None


def record_of(
    info: RunInfo, history: Sequence[StepRecord], population: Population, how: Ending, wall_seconds: float
) -> Record:
    """Return the record of a run that ended."""
    best, final = _measured(history)
    promise, remarks = promise_in(history)
    summary = Summary(
        name=info.name,
        identity=info.identity,
        source=info.source,
        status=how.status,
        error=how.error,
        steps=history[-1].step,
        seconds=history[-1].seconds,
        wall_seconds=round(wall_seconds, 3),
        dimension=info.dimension,
        final=FinalMetrics() if how.status == "failed" else _final(final, texts=info.texts),
        best=BestAccuracy(accuracy=best.accuracy, step=best.step),
        **population._asdict(),
        provenance=info.provenance,
        lines=len(history),
        config_digest=digest(plain(info.config)),
        remarks=remarks,
        promise=promise,
        findings=info.findings,
    )
    return Record(info.config, history, summary)


def promise_in(history: Iterable[StepRecord]) -> tuple[PromiseRecord | None, tuple[str, ...]]:
    """Return the last promise of a run, with the audit of all steps, and what the run warned of.

    The promise is None if the run was recorded before runs had promises.
    """
    promise, calls, broken, largest, remarks = None, 0, 0, None, dict[str, None]()
    for step in history:
        promise = step.promise or promise
        remarks.update(dict.fromkeys(step.remarks))
        calls, broken = calls + len(step.shares), broken + step.broken
        largest = max((*step.shares, *(() if largest is None else (largest,))), default=None)
    audited = promise and msgspec.structs.replace(promise, calls=calls, largest=largest, broken=broken)
    return audited, tuple(remarks)


def _measured(history: Sequence[StepRecord]) -> tuple[StepRecord, StepRecord]:
    """Return the steps with the best and with the last accuracy; the last evaluation if none was measured.

    Steps are looked at one by one: a long history is in its file, and is not to be in memory as a whole.
    """
    best = final = evaluated = None
    top = -math.inf
    for step in history:
        evaluated = step if step.metrics is not None else evaluated
        if (accuracy := step.accuracy) is not None:
            final = step
            if accuracy > top:
                best, top = step, accuracy
    return best or history[-1], final or evaluated or history[-1]


def ending(error: BaseException | None) -> Ending:
    """Return how a run ended that raised this error, or none."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return Ending("stopped" if error else "finished", None)
    if isinstance(error, StopRunError):
        return Ending("stopped", str(error) or None)
    kind = "" if isinstance(error, (InfeasibleError, StalledError)) else f"{type(error).__name__}: "
    return Ending("failed", "\n".join([f"{kind}{error}", *getattr(error, "__notes__", [])]))


def _final(step: StepRecord, *, texts: bool) -> FinalMetrics:
    if (m := step.metrics) is None:
        return FinalMetrics()
    return FinalMetrics(
        accuracy=m.accuracy,
        loss=m.loss,
        worst_client_accuracy=m.worst_client_accuracy,
        attack_success=m.attack_success,
        perplexity=math.exp(min(m.loss, 700.0)) if texts and m.loss is not None else None,  # more is beyond a float
        extra={name: value for name, value in m.extra.items() if not (texts and name == "perplexity")},
    )


def exclusions(history: Iterable[StepRecord]) -> dict[int, Exclusion]:
    """Return the clients that a final verdict excluded, with the step from which on they took no part."""
    out = dict[int, Exclusion]()
    for step in history:
        for client, verdict in step.verdicts.items():
            if verdict.final:
                out.setdefault(client, Exclusion(step=step.step, reason=verdict.reason))
            elif verdict.accepted:
                out.pop(client, None)
    return out


def suspicions(history: Iterable[StepRecord]) -> dict[int, Suspicion]:
    """Return the clients that became suspicious."""
    return {
        client: Suspicion(step=step.step, reason=in_words(found))
        for step in history
        for client, found in step.conduct.items()
        if found.newly
    }


def invalid_updates(history: Iterable[StepRecord]) -> dict[int, InvalidUpdates]:
    """Return the clients that sent invalid updates, with their number."""
    out = dict[int, InvalidUpdates]()
    for step in history:
        for client, reason in step.invalid.items():
            before = out[client].times if client in out else 0
            out[client] = InvalidUpdates(times=before + 1, reason=reason)
    return out


def not_enrolled(history: Iterable[StepRecord]) -> dict[int, str]:
    """Return the clients that never took part, with the reason."""
    out = dict[int, str]()
    for step in history:
        for client, reason in step.not_enrolled.items():
            out.setdefault(client, reason)
    return out


def filtered(history: Iterable[StepRecord], clients: Set[int]) -> float | None:
    """Return the share of the updates of some clients that were filtered or invalid; None if they sent none.

    What counts is whether an update was used: a second copy of one that was is no update of its own.
    """
    unused = list[bool]()
    for step in history:
        used = dict.fromkeys(step.invalid, False) | {c: verdict.accepted for c, verdict in step.decided.items()}
        unused += [not was_used for client, was_used in used.items() if client in clients]
    return sum(unused) / len(unused) if unused else None


def detection(excluded: Set[int], byzantine: Set[int]) -> DetectionCounts:
    """Return how well the excluded clients agree with the Byzantine ones."""
    hits = len(excluded & byzantine)
    return DetectionCounts(
        true_positives=hits,
        false_positives=len(excluded) - hits,
        false_negatives=len(byzantine) - hits,
        precision=hits / len(excluded) if excluded else None,
        recall=hits / len(byzantine) if byzantine else None,
    )


@runtime_checkable
class Past(Protocol):
    """The result of an earlier run: its summary, or its trace."""

    @property
    def status(self) -> str:
        """The end of the run: its status."""

    @property
    def error(self) -> str | None:
        """Why it failed."""

    @property
    def steps(self) -> int:
        """Number of server steps."""

    @property
    def source(self) -> str | None:
        """SHA-256 of the classes from outside the library."""

    @property
    def provenance(self) -> Provenance:
        """The software and hardware that computed it."""


def outdated(plan: "Run", past: Past) -> str:
    """Return why a run that was carried out before could come out differently today; empty if it could not.

    A run that failed by its own parameters fails again.

    Args:
        plan: the run.
        past: the same run, from then.
    """
    return past.provenance.outdated(plan) or unusable(plan, past)


def unusable(plan: "Run", past: Past) -> str:
    """Return why a run that was carried out before was another or did not end; empty if it was this and did.

    Arguments as for `outdated`.
    """
    if past.status == "stopped":
        return f"it was stopped after step {past.steps}"
    if (past.error or "").startswith("DiskFullError: "):
        return "the disk was full"
    if past.source != source(plan):
        return "the source of the classes of your own that it uses has changed since"
    return ""
