"""The schema of a record: what `history.jsonl` and `summary.json` hold, as typed values.

`docs/record.md` describes every field.  `phalanx.runs.record` keeps records in folders.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators.influence import Influence
from phalanx.core import ClientReport, Verdict
from phalanx.engine.suspicion import Conduct
from phalanx.runs.provenance import Provenance
from phalanx.training.evaluation import Metrics
from phalanx.wording import percent, plural, shown

SCHEMA = 2
NAMED = 12  # excluded clients that a summary in words names

Status = Literal["finished", "failed", "stopped"]


class SchemaPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The base class of the parts of the schema: frozen values; JSON leaves out fields at their default."""


class PromiseRecord(SchemaPart, frozen=True, kw_only=True):
    """The promise of a run, and its audit.

    Args:
        f: number of clients, whichever they are, that may be attackers at once; 0: nothing is promised.
        clients: number of clients that were enrolled.
        text: the promise in words, with its reasons, and what is not promised; the first sentence is the promise.
        calls: number of aggregations that were checked.
        largest: the largest share of the weight that f clients held in one of them; None if none was checked.
        broken: how many of them broke the promise, and were done all the same, as the settings say.
    """

    f: int
    clients: int
    text: tuple[str, ...]
    calls: int = 0
    largest: float | None = None
    broken: int = 0

    @property
    def audit(self) -> str:
        """The audit in words."""
        if not self.f:
            return "Audit: nothing was promised, so that nothing was checked."
        if self.largest is None:
            return "Audit: no aggregation was checked."
        within = f"{self.calls - self.broken} of {self.calls} aggregations within the bound"
        return f"Audit: {within}; largest share {self.largest:.3g}."


class StepRecord(SchemaPart, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """One line of `history.jsonl`: a step of the server, or a wait that brought no usable update.

    The first line is the state before training.  A line that repeats the step of the line above is a wait that brought
    only invalid or lost updates, or, at the end, the evaluation of the last state.

    Args:
        step: number of steps so far: rounds, or single arrivals of an asynchronous algorithm.
        version: number of server updates so far.
        seconds: on the run's clock; virtual ones in a simulation.
        metrics: what the evaluation after this step measured; None if there was none.
        state: the observed figures of the algorithm, by the names of its fields. Mappings by client have integer keys.
        verdicts: by client, what the algorithm decided on an update that arrived or waited.
        versions: by client whose update arrived, the version that it trained on. Only where updates arrive one by one,
            or some of a round are late; the age of an update is the `version` of the line above minus this.
        not_enrolled: by client, why it takes no part in the run.
        invalid: by client, why the guard did not let its update in.
        lost: by client, why its task brought no update.
        reports: by client, what it measured of the model that it was sent, and reported with its update.
        remarks: what the run warns of, a sentence each; most are of the first line.
        influences: how far attackers could have moved each aggregate of this step; empty unless the run measures it.
        promise: what the run promises; of the first line, and of a line with which it changes.
        shares: for each aggregation of this step, the largest share of the weight that as many clients hold as are
            promised to be tolerated; empty if nothing is promised.
        broken: how many of these break the promise of the run, and are done all the same, by `broken_promise`.
        conduct: by client, how its update compares with the result and with the others; empty unless the run judges it.
    """

    step: int
    version: int
    seconds: float
    metrics: Metrics | None = None
    state: Mapping[str, Any] = {}
    verdicts: Mapping[int, Verdict] = {}
    versions: Mapping[int, int] = {}
    not_enrolled: Mapping[int, str] = {}
    invalid: Mapping[int, str] = {}
    lost: Mapping[int, str] = {}
    reports: Mapping[int, ClientReport] = {}
    remarks: tuple[str, ...] = ()
    influences: tuple[Influence, ...] = ()
    promise: PromiseRecord | None = None
    shares: tuple[float, ...] = ()
    broken: int = 0
    conduct: Mapping[int, Conduct] = {}

    def __post_init__(self) -> None:
        if self.state:
            msgspec.structs.force_setattr(self, "state", {name: _numbered(v) for name, v in self.state.items()})

    @property
    def decided(self) -> dict[int, Verdict]:
        """The verdicts without those on updates that still wait."""
        return {client: verdict for client, verdict in self.verdicts.items() if not verdict.waits}

    @property
    def accuracy(self) -> float | None:
        """The accuracy; None if it was not measured, or is not finite."""
        return None if self.metrics is None else self.metrics.accuracy


def _numbered(value: Any) -> Any:
    """Return the value with integer keys in mappings whose keys are all integers, which JSON holds as text."""
    if not isinstance(value, dict):
        return value
    inner = {key: _numbered(item) for key, item in value.items()}
    try:
        return {int(key): item for key, item in inner.items()}
    except ValueError:
        return inner


class Exclusion(SchemaPart, frozen=True, kw_only=True):
    """The step and the reason of a client's exclusion.

    Args:
        step: from which on it takes no part.
        reason: in the words of the algorithm.
    """

    step: int
    reason: str = ""


class Suspicion(SchemaPart, frozen=True, kw_only=True):
    """When and why a client became suspicious.

    Args:
        step: after which the evidence sufficed.
        reason: what stood out in its update, and the evidence.
    """

    step: int
    reason: str = ""


class InvalidUpdates(SchemaPart, frozen=True, kw_only=True):
    """The number of invalid updates of a client.

    Args:
        times: number of invalid updates.
        reason: of the last one.
    """

    times: int
    reason: str = ""


class ClientRecord(SchemaPart, frozen=True, kw_only=True):
    """The record of one client at the end of a run.  Unknown fields, as of real clients, are None or empty.

    Args:
        name: in the roster of a deployment; in a simulation, of the owner of its examples.
        owner: number of the owner of its examples in the test part; None if it is not the one owner of some.
        reported: number of examples that the client reports; None if it is no whole number.
        size: number of examples that it holds.
        classes: number of labels of each class that it holds.
        byzantine: whether it attacks.
        group: number of its group of clients.
        excluded: when and why it was excluded; None if it was not.
        invalid: its invalid updates; None if there were none.
        suspicious: when and why it became suspicious; None if it did not, or the run does not judge updates.
        not_enrolled: why it never took part; None if it did.
        tasks: number of tasks that a deployment gave it.
        epsilon: privacy of its examples, where clients train by `PrivateSGD`: that of the guarantee (epsilon, delta)
            after the updates that it sent.
    """

    name: str = ""
    owner: int | None = None
    reported: int | None = None
    size: int | None = None
    classes: tuple[int, ...] = ()
    byzantine: bool | None = None
    group: int | None = None
    excluded: Exclusion | None = None
    invalid: InvalidUpdates | None = None
    suspicious: Suspicion | None = None
    not_enrolled: str | None = None
    tasks: int | None = None
    epsilon: float | None = None


class FinalMetrics(SchemaPart, frozen=True, kw_only=True):
    """The last evaluation of a run.  None: not measured, or not finite.

    Args:
        accuracy: as in `Metrics`.
        loss: as in `Metrics`.
        worst_client_accuracy: as in `Metrics`.
        attack_success: as in `Metrics`.
        perplexity: the exponential of the loss, where examples are texts.
        extra: further metrics of the task, by name, such as "AUROC"; those that are not finite are None.
    """

    accuracy: float | None = None
    loss: float | None = None
    worst_client_accuracy: float | None = None
    attack_success: float | None = None
    perplexity: float | None = None
    extra: Mapping[str, float | None] = {}


class BestAccuracy(SchemaPart, frozen=True, kw_only=True):
    """The highest accuracy of a run.

    Args:
        accuracy: None if none was measured.
        step: after which it was measured first.
    """

    accuracy: float | None = None
    step: int


class DetectionCounts(SchemaPart, frozen=True, kw_only=True):
    """The agreement of the excluded clients with the Byzantine ones.

    Args:
        true_positives: excluded clients that are Byzantine.
        false_positives: excluded clients that are honest.
        false_negatives: Byzantine clients that were not excluded.
        precision: share of the excluded that are Byzantine; None if nobody was excluded.
        recall: share of the Byzantine that were excluded; None if nobody is Byzantine.
    """

    true_positives: int
    false_positives: int
    false_negatives: int
    precision: float | None = None
    recall: float | None = None


class FilteredShares(SchemaPart, frozen=True, kw_only=True):
    """The share of the updates that were filtered by the algorithm, or invalid.

    Args:
        byzantine: of Byzantine clients; None if they sent none, or are not known.
        honest: of honest clients; None likewise.
    """

    byzantine: float | None = None
    honest: float | None = None


class DataRecord(SchemaPart, frozen=True, kw_only=True):
    """The data of a run.

    Args:
        name: of the data set.
        train: number of training examples.
        test: number of test examples.
        fingerprint: SHA-256 by part: "train", "test", and files of traces.
        client_tests: what accuracies of clients are of: "own", the test examples that each client owns; or all test
            examples, each class weighted by the client's number of its labels ("label-reweighted").
        classes: the labels by number, of a table; empty if they have no names.
    """

    name: str
    train: int
    test: int
    fingerprint: Mapping[str, str] = {}
    client_tests: Literal["own", "label-reweighted"] = "label-reweighted"
    classes: tuple[str, ...] = ()


class Summary(SchemaPart, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """`summary.json`: the outcome of a run, its clients, and its provenance.

    Args:
        name: of the run, for readers.
        identity: SHA-256 of the canonical form of the run.
        source: SHA-256 of the classes from outside the library that it uses; None if it uses none.
        status: "finished"; "failed" if it could not go on; "stopped" if the user or an observer stopped it.
        error: why it failed, or why an observer stopped it; None otherwise.
        steps: number of server steps.
        seconds: on the run's clock; virtual ones in a simulation.
        wall_seconds: time that it took to compute.
        dimension: number of parameters of the model.
        final: the last evaluation; without figures if the run failed.
        best: the highest accuracy.
        clients: by client.
        detection: how well the excluded agree with the Byzantine clients; None if it is not known who is Byzantine.
        filtered: share of the updates that were not used.
        missing: by client that is on the roster of a deployment and never enrolled, its name.
        data: the data set; None if it is not known.
        provenance: versions, sources and machine.
        lines: number of lines of the history.
        config_digest: SHA-256 of the configuration.
        remarks: what the run warned of, a sentence each.
        promise: what it promised, with its audit; None if it was recorded before runs had promises.
        findings: remarks on its data, its model and its clients before the first step, a sentence each.
    """

    name: str
    identity: str
    source: str | None = None
    status: Status
    error: str | None = None
    steps: int
    seconds: float
    wall_seconds: float
    dimension: int
    final: FinalMetrics
    best: BestAccuracy
    clients: Mapping[int, ClientRecord]
    detection: DetectionCounts | None = None
    filtered: FilteredShares
    missing: Mapping[int, str] = {}
    data: DataRecord | None = None
    provenance: Provenance
    lines: int
    config_digest: str
    remarks: tuple[str, ...] = ()
    promise: PromiseRecord | None = None
    findings: tuple[str, ...] = ()

    @property
    def in_words(self) -> dict[str, str]:
        """The outcome, by title; what does not apply is left out."""
        final, best = self.final, self.best
        excluded = [i for i, client in self.clients.items() if client.excluded]
        bad = sum(client.byzantine is True for client in self.clients.values())
        unused = {"Byzantine": self.filtered.byzantine, "honest": self.filtered.honest}
        rows = {
            "outcome": f"{self.status} after {plural(self.steps, 'step')}",
            "why": self.error or "",
            "accuracy": f"{percent(final.accuracy)} (best {percent(best.accuracy)}, step {best.step})",
            "loss": "" if final.loss is None else f"{final.loss:.4f}",
            "attack": "" if final.attack_success is None else f"succeeds on {percent(final.attack_success)}",
            "clients": plural(len(self.clients), "client") + (f", {bad} Byzantine" if bad else ""),
            "excluded": (f"{len(excluded)}: " if excluded else "none") + ", ".join(map(str, excluded[:NAMED])),
            "unused updates": ", ".join(f"{percent(share)} of {who} clients" for who, share in unused.items() if share),
            "promise": self.promise.text[0] if self.promise is not None else "",
            "found before": " ".join(self.findings),
            "took": f"{self.wall_seconds:.1f} s",
        }
        rows["excluded"] += ", ..." if len(excluded) > NAMED else ""
        return {title: value for title, value in rows.items() if value}

    @override
    def __repr__(self) -> str:
        """Return the outcome in a few lines; the fields have the rest."""
        return "\n".join([shown(self.name), *(f"  {k:<14}  {shown(v, 160)}" for k, v in self.in_words.items())])


# JSON


def to_json(value: object) -> bytes:
    """Return a part of the schema as JSON on one line; numbers that are not finite are null."""
    return _ENCODER.encode(value)


def _plain(value: object) -> object:
    """Return the JSON form of a tensor, of a number of NumPy, or of a mapping that is no dict."""
    if isinstance(value, (Tensor, np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"A record cannot hold a {type(value).__name__}.")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def plain(value: Any) -> Any:
    """Return the value in the types of JSON: keys as text, sets as sorted lists, None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
