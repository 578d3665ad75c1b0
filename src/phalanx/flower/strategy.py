"""Phalanx rules in an existing Flower app, of which one line changes.

    strategy = PhalanxStrategy(TrimmedMean(0.2), guard=Guard(max_norm=10.0), tolerate=1, fraction_train=0.5)

A malformed reply is invalid, with the reason, and the round goes on.  Such an app has no nonces and signatures, and no
deadlines of Phalanx: the sender of a reply is the one that Flower names, and a round waits as long as Flower's
`start(timeout=...)` says.  `phalanx.flower.server_app` has both.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from typing_extensions import override

from phalanx.aggregators import Aggregator
from phalanx.aggregators.aggregator import TooFewRowsError, TooManyRowsError
from phalanx.core import ClientReport, InfeasibleError, Vector
from phalanx.engine.hosted import HostedRounds, Submitted, hosted_settings, mean_metrics
from phalanx.engine.settings import LoopSettings
from phalanx.flower.codec import MalformedError, brief, entries_of, report_of
from phalanx.flower.logs import log_fields
from phalanx.flower.wire import failure
from phalanx.promises import Promise
from phalanx.weighting import Preprocess

log = logging.getLogger("phalanx.flower")


class PhalanxStrategy(FlowersFedAvg):
    """A strategy for `flwr.serverapp` with our rules, weights, guard and verdicts.

    Args:
        aggregator: the rule for the updates of a round.
        preprocess: makes weights of the reported numbers of examples. The first that a node reports with a valid update
            is used. For the scope "population", the population is all nodes that have sent one so far.
        loop: `LoopSettings`: the guard, lost rounds, how many attackers each round must tolerate, and what follows if
            one breaks that promise. Flower counts every round and says when the run ends, so that lost rounds are
            skipped, and `until` is not given.
        loss_key: the name of the loss in answers to Flower's "evaluate" messages, in which clients measure the model of
            the round on examples of their own. These are `reports`.
        accuracy_key: the name of the accuracy there.
        options: fields of `loop` by name, such as `tolerate=1`; and those of Flower's `FedAvg`: whom to sample, and the
            names of records.
    """

    def __init__(
        self,
        aggregator: Aggregator | None = None,
        preprocess: Preprocess | None = None,
        loop: LoopSettings | None = None,
        *,
        loss_key: str = "eval_loss",
        accuracy_key: str = "eval_acc",
        **options: Any,
    ) -> None:
        settings = hosted_settings(loop, options)
        super().__init__(**options)
        self._rounds = HostedRounds(aggregator, preprocess, settings, log=log, called="node")
        self.verdicts, self.conduct = self._rounds.verdicts, self._rounds.conduct  # by round and node, as the next two
        self.invalid, self.lost = self._rounds.invalid, self._rounds.lost
        self.shares = self._rounds.shares  # by round: the most that as many nodes held of the weight
        self.broken = self._rounds.broken  # by round: aggregations that broke the promise and were done all the same
        self.reports = dict[int, dict[int, ClientReport]]()  # by round and node: of the model that the round made
        self._measured = {"examples": self.weighted_by_key, "loss": loss_key, "accuracy": accuracy_key}
        self._own_metrics = bool(options.get("train_metrics_aggr_fn"))
        self._arrays, self._asked = ArrayRecord(), list[Message]()

    @property
    def promise(self) -> Promise | None:
        """Of how many attackers are tolerated, from the first round on."""
        return self._rounds.promise

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
        try:
            self._rounds.begin(server_round, len(self._asked), len(list(grid.get_node_ids())))
        except (TooFewRowsError, TooManyRowsError) as error:
            raise InfeasibleError(
                f"{error} A round has so many by fraction_train, min_train_nodes and min_available_nodes."
            ) from error
        return self._asked

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
        contents, answers = dict[int, Message](), list[tuple[int, Submitted]]()
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in self._asked}  # Flower's ids, once it is sent
        for message in replies:
            node = message.metadata.src_node_id
            if message.has_error():  # reported by the SuperLink, which is a node, too
                lost[asked.get(message.metadata.reply_to_message_id, node)] = failure(message)
                continue
            try:
                answers.append((node, self._read(message, base)))
            except MalformedError as error:
                invalid.setdefault(node, str(error))
                continue
            contents.setdefault(node, message)
        delta, weights = self._rounds.end(server_round, base, [*asked.values()], answers, invalid=invalid, lost=lost)
        if delta is None:
            return None, None
        return _shaped(base + delta, self._arrays), self._metrics([(contents[i], w) for i, w in weights.items()])

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
            except MalformedError as error:
                said = log_fields("invalid", node=node, step=server_round)
                log.warning("round %d, the report of node %d is invalid: %s", server_round, node, error, extra=said)
        return self._metrics([(m, 1.0) for m in {m.metadata.src_node_id: m for m in good}.values()])

    def _read(self, message: Message, base: Vector) -> Submitted:
        """Return the update and the reported size of a reply; raise MalformedError if it has none."""
        arrays, metrics = list(message.content.array_records.values()), list(message.content.metric_records.values())
        if (len(arrays), len(metrics)) != (1, 1):
            raise MalformedError(
                f"holds {len(arrays)} ArrayRecords and {len(metrics)} MetricRecords, expected one of each"
            )
        if arrays[0].keys() != self._arrays.keys():
            raise MalformedError(
                f"arrays are {brief(', '.join(sorted(arrays[0])), 200)}, expected {', '.join(self._arrays)}"
            )
        forms = {name: (one.dtype, tuple(one.shape)) for name, one in self._arrays.items()}
        parts = {name: entries_of(name, arrays[0][name], *form) for name, form in forms.items()}
        floating = [part for part in parts.values() if np.issubdtype(part.dtype, np.floating)]
        delta = torch.from_numpy(np.concatenate(floating).astype(np.float32)) - base
        return Submitted(delta, metrics[0].get(self.weighted_by_key))

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
        measured = [(next(iter(m.content.metric_records.values())), weight) for m, weight in weighed]
        own = (({n: v for n, v in of.items() if n != self.weighted_by_key}, weight) for of, weight in measured)
        return MetricRecord({**mean_metrics(own)})


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
