"""Phalanx rules in an existing Flower app, of which one line changes.

    strategy = PhalanxStrategy(aggregator=TrimmedMean(0.2), guard=Guard(max_norm=10.0), fraction_train=0.5)

A malformed reply is invalid, with the reason, and the round goes on.  Such an app has no nonces and signatures, and no
deadlines of Phalanx: the sender of a reply is the one that Flower names, and a round waits as long as Flower's
`start(timeout=...)` says.  `phalanx.flower.server_app` has both.
"""

import logging
import math
import warnings
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.aggregators.aggregator import wrong_number
from phalanx.algorithms import FedAvg
from phalanx.algorithms.rounds import verdicts_of, weights_of
from phalanx.core import (
    ClientReport,
    InfeasibleError,
    Reply,
    Setting,
    StalledError,
    Updates,
    Vector,
    Verdict,
    lost_verdicts,
)
from phalanx.engine.guard import Guard, Sent
from phalanx.engine.lost import LostRounds
from phalanx.engine.suspicion import Conduct, conduct, in_words
from phalanx.flower.codec import Malformed, brief, entries_of, report_of
from phalanx.flower.logs import log_fields
from phalanx.flower.wire import failure
from phalanx.promises import Promise, promise, watched
from phalanx.promises.audit import combine
from phalanx.promises.remarks import beyond_tolerance
from phalanx.weighting import AsReported, Preprocess, Truncate
from phalanx.wording import plural

log = logging.getLogger("phalanx.flower")


class PhalanxStrategy(FlowersFedAvg):
    """A strategy for `flwr.serverapp` with our rules, weights, guard and verdicts.

    Args:
        aggregator: the rule for the updates of a round.
        preprocess: makes weights of the reported numbers of examples. The first that a node reports with a valid update
            is used. For the scope "population", the population is all nodes that have sent one so far.
        guard: which replies and sizes are invalid.
        loss_key: the name of the loss in answers to Flower's "evaluate" messages, in which clients measure the model of
            the round on examples of their own. These are `reports`.
        accuracy_key: the name of the accuracy there.
        lost_rounds: after how many rounds in a row without a result the run ends with `StalledError`. Flower counts
            every round, so that only "skip" can be meant.
        tolerate: number of Byzantine nodes that each aggregation must tolerate: rounds that do not are lost. None: as
            many as any round does. `promise` says how many that is, for the nodes of the first round; see there.
        options: of Flower's `FedAvg`: whom to sample, and the names of records.
    """

    def __init__(
        self,
        aggregator: Aggregator | None = None,
        preprocess: Preprocess | None = None,
        guard: Guard | None = None,
        lost_rounds: LostRounds | None = None,
        *,
        tolerate: int | None = None,
        loss_key: str = "eval_loss",
        accuracy_key: str = "eval_acc",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.aggregator, self.preprocess = aggregator or Mean(), preprocess or AsReported()
        self.guard = guard or Guard()
        self.lost_rounds, self.tolerate = lost_rounds or LostRounds(), tolerate
        self.promise: Promise | None = None  # of how many attackers are tolerated, from the first round on
        self.shares = dict[int, float]()  # by round: the most that as many nodes held of the weight
        if self.lost_rounds.then != "skip":
            raise ValueError('then must be "skip", got "wait": Flower counts every round. `server_app` can wait.')
        if isinstance(self.preprocess, Truncate):
            for remark in beyond_tolerance(self.preprocess, self.aggregator):
                warnings.warn(remark, stacklevel=2)
        self.verdicts = dict[int, dict[int, Verdict]]()  # by round and node
        self.invalid = dict[int, dict[int, str]]()  # by round and node
        self.lost = dict[int, dict[int, str]]()  # by round and node: failures, and missing answers
        self.conduct = dict[int, dict[int, Conduct]]()  # by round and node: how its update compares with the others
        self.reports = dict[int, dict[int, ClientReport]]()  # by round and node: of the model that the round made
        self._measured = {"examples": self.weighted_by_key, "loss": loss_key, "accuracy": accuracy_key}
        self._own_metrics = bool(options.get("train_metrics_aggr_fn"))
        self._arrays, self._asked = ArrayRecord(), list[Message]()
        self._sizes = dict[int, int]()  # of nodes that have answered with a valid update
        self._previous: Vector | None = None
        self._lost_in_a_row = 0
        self._last_conduct = dict[int, Conduct]()

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See Flower's `Strategy`.  The sampled nodes are noted.

        Raises:
            InfeasibleError: the first round would be lost even if all of them answer, or cannot tolerate as many
                attackers as it must.
        """
        self._arrays, self._asked = arrays, list(super().configure_train(server_round, arrays, config, grid))
        if server_round == 1 and (error := wrong_number(self.aggregator, len(self._asked))) is not None:
            raise InfeasibleError(
                f"{error} A round has so many by fraction_train, min_train_nodes and min_available_nodes."
            )
        if self.promise is None and self._asked:
            self._promise(len(self._asked), len(list(grid.get_node_ids())))
        return self._asked

    def _promise(self, asked: int, nodes: int) -> None:
        """Compute and say what is promised: rounds of so many of the nodes, of which some may not answer."""
        setting = Setting(max(nodes, asked), drawn=asked if asked < nodes else None, lossy=True, joins=True)
        try:
            self.promise = promise(FedAvg(self.aggregator, self.preprocess), setting, f=self.tolerate)
        except InfeasibleError as error:
            if self.tolerate is not None:
                raise
            log.warning("promises nothing: %s", error)  # as long as no more nodes have come
            return
        (log.info if self.promise.f else log.warning)("%s", self.promise.sentence)

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """See Flower's `Strategy`.  None, so that the model stays as it was, if the round is lost.

        It is if no reply is fit, too few are, or the rule has no result for them.

        Raises:
            StalledError: too many rounds in a row were lost.
        """
        base, invalid, lost = _flat(self._arrays), dict[int, str](), dict[int, str]()
        contents, taken, sizes = dict[int, Message](), list[Reply](), dict[int, int]()
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in self._asked}  # Flower's ids, once it is sent
        sent = {node: Sent(server_round, base) for node in asked.values()}
        for message in replies:
            node = message.metadata.src_node_id
            if message.has_error():  # reported by the SuperLink, which is a node, too
                lost[asked.get(message.metadata.reply_to_message_id, node)] = failure(message)
                continue
            try:
                delta, reported = self._read(message, base)
                size = self._size(node, reported)
            except Malformed as error:
                invalid.setdefault(node, str(error))
                continue
            contents.setdefault(node, message)
            sizes.setdefault(node, size)
            taken.append(Reply(node, server_round, delta, 0.0))
        checked = self.guard.inspect(taken, sent, server_round, base)
        self.invalid[server_round] = invalid = {**invalid, **checked.invalid}
        silent = sent.keys() - contents.keys() - invalid.keys() - lost.keys()
        self.lost[server_round] = lost = {**lost, **dict.fromkeys(silent, "it did not answer before the round ended")}
        for what, nodes in (("invalid", invalid), ("lost", lost)):
            for node, why in sorted(nodes.items()):
                said = log_fields(what, node=node, step=server_round)
                log.warning("round %d, node %d %s: %s", server_round, node, what, why, extra=said)
        updates = checked.updates
        if updates is None:
            return self._lose(server_round, (), "no reply is fit")
        self._sizes |= {node: sizes[node] for node in updates.clients}
        try:
            enrolled = self.preprocess.enrolled(self._sizes)
            weights = weights_of(self.preprocess.among(enrolled, updates.clients), updates)
            # honest nodes send nothing invalid, so those that did are among the attackers
            left = max(0, self.promise.in_step - len(checked.invalid.keys() | invalid.keys())) if self.promise else 0
            with watched(left) as held:
                delta, choice = combine(
                    self.aggregator,
                    updates.deltas,
                    weights,
                    updates.clients,
                    "round",
                    turn=server_round - 1,
                    previous=self._previous,
                )
        except InfeasibleError as error:
            return self._lose(server_round, updates.clients, str(error))
        self._previous, self._lost_in_a_row = delta, 0
        self.shares |= {server_round: max(held)} if held else {}
        remark = self.preprocess.remark(enrolled, updates.clients)
        self.verdicts[server_round] = verdicts_of(updates, weights, choice, remark)
        shares = {i: float(w) for i, w in zip(updates.clients, weights, strict=True)}
        self._judge(server_round, updates, delta, shares)
        return _shaped(base + delta, self._arrays), self._metrics([(contents[i], w) for i, w in shares.items()])

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """See Flower's `Strategy`.  The reports of the clients are kept."""
        good = [m for m in replies if not m.has_error() and len(m.content.metric_records) == 1]
        self.reports[server_round] = reports = dict[int, ClientReport]()
        for message in good:
            node, metrics = message.metadata.src_node_id, next(iter(message.content.metric_records.values()))
            try:
                found = {field: (key, metrics[key]) for field, key in self._measured.items() if key in metrics}
                if "examples" in found and len(found) > 1:
                    reports[node] = report_of(found)
            except Malformed as error:
                said = log_fields("invalid", node=node, step=server_round)
                log.warning("round %d, the report of node %d is invalid: %s", server_round, node, error, extra=said)
        return self._metrics([(m, 1.0) for m in {m.metadata.src_node_id: m for m in good}.values()])

    def _judge(self, server_round: int, updates: Updates, delta: Vector, weights: Mapping[int, float]) -> None:
        """Keep how each update compares with the others, and log who becomes suspicious."""
        found = conduct(updates, delta, self._last_conduct, sizes=self._sizes, weights=weights)
        self.conduct[server_round] = found
        self._last_conduct |= found
        for node, one in found.items():
            if one.newly:
                said = log_fields("suspicious", node=node, step=server_round)
                log.warning("round %d, node %d is suspicious: %s", server_round, node, in_words(one), extra=said)

    def _lose(self, server_round: int, clients: Iterable[int], why: str) -> tuple[None, None]:
        """Leave the model as it was; raise `StalledError` if that has happened too often in a row."""
        log.error("round %d changes nothing, it is lost: %s", server_round, why)
        self.verdicts[server_round] = lost_verdicts(clients, why)
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= self.lost_rounds.most:
            raise StalledError(f"{plural(self._lost_in_a_row, 'round')} in a row were lost, the last one because {why}")
        return None, None

    def _read(self, message: Message, base: Vector) -> tuple[Vector, object]:
        """Return the update and the reported size of a reply; raise Malformed if it has none."""
        arrays, metrics = list(message.content.array_records.values()), list(message.content.metric_records.values())
        if (len(arrays), len(metrics)) != (1, 1):
            raise Malformed(f"holds {len(arrays)} ArrayRecords and {len(metrics)} MetricRecords, expected one of each")
        if arrays[0].keys() != self._arrays.keys():
            raise Malformed(
                f"arrays are {brief(', '.join(sorted(arrays[0])), 200)}, expected {', '.join(self._arrays)}"
            )
        forms = {name: (one.dtype, tuple(one.shape)) for name, one in self._arrays.items()}
        parts = {name: entries_of(name, arrays[0][name], *form) for name, form in forms.items()}
        floating = [part for part in parts.values() if np.issubdtype(part.dtype, np.floating)]
        return torch.from_numpy(np.concatenate(floating).astype(np.float32)) - base, metrics[0].get(
            self.weighted_by_key
        )

    def _size(self, node: int, reported: object) -> int:
        """Return the size of a node, the first that came with a valid update; raise Malformed if it is impossible."""
        if node in self._sizes:
            return self._sizes[node]
        sizes, invalid = self.guard.enroll({node: reported})
        if invalid:
            raise Malformed(invalid[node])
        return sizes[node]

    def _metrics(self, weighed: list[tuple[Message, float]]) -> MetricRecord | None:
        """Return the mean of each metric over nodes with a finite number, unless the app has a function of its own."""
        if not weighed:
            return None
        if self._own_metrics:
            try:
                return self.train_metrics_aggr_fn([m.content for m, _ in weighed], self.weighted_by_key)
            except Exception as error:  # somebody else's function, on numbers that clients have made up
                log.error("metrics cannot be combined: %s", error)
                return None
        sums = dict[str, list[tuple[float, float]]]()
        for message, weight in weighed:
            for name, value in next(iter(message.content.metric_records.values())).items():
                if name != self.weighted_by_key and isinstance(value, Real) and math.isfinite(value):
                    sums.setdefault(name, []).append((float(value), weight))
        return MetricRecord({n: sum(v * w for v, w in of) / sum(w for _, w in of) for n, of in sums.items()})


def _flat(arrays: Mapping[str, Array]) -> Vector:
    """Return all floating-point entries of the server's own arrays, one after another."""
    parts = [array.numpy().ravel() for array in arrays.values()]
    floating = [part for part in parts if np.issubdtype(part.dtype, np.floating)]
    if not floating:
        raise InfeasibleError("There is nothing to train: no array of the model holds floating-point numbers.")
    return torch.from_numpy(np.concatenate(floating).astype(np.float32))


def _shaped(vector: Vector, arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return the vector as arrays; those of whole numbers do not change."""
    out, begin = dict[str, Array](), 0
    for name, array in arrays.items():
        was = array.numpy()
        if np.issubdtype(was.dtype, np.floating):
            entries = vector[begin : begin + was.size].numpy()
            out[name], begin = Array(entries.reshape(was.shape).astype(was.dtype)), begin + was.size
        else:
            out[name] = array
    return ArrayRecord(out)
