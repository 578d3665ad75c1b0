"""Phalanx rules in an existing job of NVFlare, of which two lines change.

    recipe = FedAvgRecipe(..., aggregator=PhalanxAggregator(Median(), Ignore()), aggregator_data_kind="WEIGHT_DIFF",
                          params_transfer_type="DIFF")

Clients send what changed, since norms and directions are those of changes.  A malformed update is invalid, with the
reason, and the round goes on; a round that has no result changes nothing.  NVFlare says who sends an update, and how
long a round waits.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from nvflare.apis.dxo import DataKind
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from typing_extensions import override

from phalanx.aggregators import Aggregator
from phalanx.core import InfeasibleError, Vector
from phalanx.engine.hosted import HostedRounds, Submitted, hosted_settings, mean_metrics
from phalanx.engine.settings import LoopSettings
from phalanx.weighting import Preprocess
from phalanx.wording import shown

log = logging.getLogger("phalanx.nvflare")

SIZE = "NUM_STEPS_CURRENT_ROUND"  # by which NVFlare weighs, where the job does not set it to examples
MOST_NAMES = 20  # of arrays in a message
BYTES = 8  # of a number, at most
Arrays = Mapping[str, npt.NDArray[Any]]


class PhalanxAggregator(ModelAggregator):  # type: ignore[misc]
    """An aggregator for NVFlare's `FedAvg` with our rules, weights, guard and verdicts.

    Args:
        aggregator: the rule for the updates of a round.
        preprocess: makes weights of the sizes that clients report. The first that a client reports with a valid update
            is used.
        loop: `LoopSettings`: the guard, lost rounds, how many attackers each round must tolerate, and what follows if
            one breaks that promise. NVFlare counts rounds, so that lost ones are skipped, and `until` is not given.
        clients: those that take part; they bound how many attackers each round tolerates.
        size_key: under which clients report their size in the `meta` of a result.
        settings: for the job's file, which is refused if it does not give back the same settings.
        options: fields of `loop` by name, such as `tolerate=1`.

    Attributes:
        rounds: the verdicts, by round from 1 on and by the client's number.
        names: the client of each number.

    Raises:
        InfeasibleError: rounds of these clients cannot tolerate as many attackers as they must, or have no result.
    """

    def __init__(
        self,
        aggregator: Aggregator | None = None,
        preprocess: Preprocess | None = None,
        loop: LoopSettings | None = None,
        *,
        clients: int | None = None,
        size_key: str = SIZE,
        settings: str = "",
        **options: Any,
    ) -> None:
        super().__init__()
        self.expected_data_kind = DataKind.WEIGHT_DIFF
        self.names = list[str]()
        self.loop = hosted_settings(loop, options)
        if options:
            raise TypeError(f"PhalanxAggregator has no option {', '.join(options)}.")
        name = self.names.__getitem__
        self.rounds = HostedRounds(aggregator, preprocess, self.loop, log=log, name=name)
        # A job's file has what stands in attributes of the parameters' names, and makes another aggregator of it.
        self.aggregator, self.preprocess = self.rounds.aggregator, self.rounds.preprocess
        self.clients, self.size_key = clients, size_key
        chosen = (self.aggregator, self.preprocess, self.loop, clients, size_key)
        self.settings = repr(chosen)
        if settings not in ("", self.settings):
            raise InfeasibleError(
                f"The job's file has lost settings: it makes {self.settings} of what was {settings}. Make the "
                "aggregator in a class of your own, without arguments."
            )
        self._number, self._received = 0, list[tuple[str, Any]]()
        self._form: Arrays | None = None
        if clients is not None:
            self.rounds.begin(1, clients, clients)
        elif self.loop.tolerate is not None:
            raise InfeasibleError("tolerate needs clients as well: how many take part decides what can be tolerated.")

    @override
    def accept_model(self, model: FLModel) -> None:
        """Take the result of a client."""
        self._received.append((str((model.meta or {}).get("client_name", AppConstants.CLIENT_UNKNOWN)), model))

    @override
    def reset_stats(self) -> None:
        """Begin a round."""
        self._received = []

    @override
    def aggregate_model(self) -> FLModel:
        """Return the change of the model; zeros, or nothing, if the round is lost.

        Raises:
            StalledError: too many rounds in a row were lost.
        """
        self._number += 1
        # in the order of names, whatever the order of arrival: the same updates give the same bits
        received = sorted(self._received, key=lambda each: each[0])
        self.names += sorted({name for name, _ in received} - {*self.names})
        number = {name: k for k, name in enumerate(self.names)}
        self._form = self._form or self._common([model for _, model in received])
        if self._form is None:
            senders = {number[name] for name, _ in received}
            self.rounds.lose(
                self._number, senders, "too few results hold the same arrays: it is not known what a model is"
            )
            return FLModel(params_type=ParamsType.DIFF, params={})
        form, read, invalid = self._form, list[tuple[int, Submitted]](), dict[int, str]()
        for name, model in received:
            try:
                read.append((number[name], Submitted(_flat(model, form), (model.meta or {}).get(self.size_key))))
            except ValueError as error:
                invalid.setdefault(number[name], str(error))
        d = sum(one.size for one in form.values() if _trains(one))
        senders = {number[name] for name, _ in received}
        delta, weights = self.rounds.end(self._number, torch.zeros(d), senders, read, invalid=invalid, lost={})
        measured = {number[name]: model.metrics or {} for name, model in reversed(received)}  # of each the first
        return FLModel(
            params_type=ParamsType.DIFF,
            params=_shaped(torch.zeros(d) if delta is None else delta, form),
            metrics=mean_metrics((measured[client], weight) for client, weight in weights.items()) or None,
        )

    def _common(self, models: list[FLModel]) -> Arrays | None:
        """Return the arrays that most results hold, by which all are checked, in this round and later.

        An aggregator of NVFlare is not given the model.  None if no more than half of the results hold the same, or no
        more than the attackers that are tolerated.
        """
        found = dict[tuple[Any, ...], list[Arrays]]()
        for model in models:
            with suppress(ValueError):
                arrays = _arrays(model)
                key = tuple((name, one.shape, one.dtype.str) for name, one in arrays.items())
                found.setdefault(key, []).append(arrays)
        most = max(found.values(), key=len, default=[])
        attackers = self.rounds.promise.f if self.rounds.promise else 0
        return most[0] if len(most) > max(len(models) / 2, attackers) else None


def _trains(one: npt.NDArray[Any]) -> bool:
    """Return whether an array is combined; whole numbers, such as counts of batches, do not change."""
    return np.issubdtype(one.dtype, np.floating)


def _arrays(model: FLModel) -> Arrays:
    """Return the arrays of a result; raise ValueError if it holds something else."""
    if model.params_type != ParamsType.DIFF:
        raise ValueError(
            f"holds a whole model and not what changed: set params_transfer_type to {ParamsType.DIFF.value}"
        )
    if not isinstance(model.params, Mapping) or not model.params:
        raise ValueError("holds no arrays")
    return {str(name): _array(str(name), one) for name, one in model.params.items()}


def _array(name: str, one: object) -> npt.NDArray[Any]:
    """Return an array of numbers of a usual kind; raise ValueError if it is none."""
    if isinstance(one, torch.Tensor):
        try:
            one = (one.float() if one.dtype == torch.bfloat16 else one).detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:  # such as sparse or quantized ones
            raise ValueError(f"{shown(name)} is no plain tensor") from error
    if not isinstance(one, np.ndarray) or one.dtype.kind not in "fiu" or one.dtype.itemsize > BYTES:
        raise ValueError(f"{shown(name)} is no array of numbers")
    return one


def _flat(model: FLModel, form: Arrays) -> Vector:
    """Return an update as a vector, its arrays in the order of `form`; raise ValueError if it does not fit that."""
    arrays = _arrays(model)
    if arrays.keys() != form.keys():
        names = ", ".join(sorted(arrays)[:MOST_NAMES])
        raise ValueError(f"arrays are {shown(names, 200)}, expected {', '.join(sorted(form)[:MOST_NAMES])}")
    for name, one in arrays.items():
        if (one.shape, _trains(one)) != (form[name].shape, _trains(form[name])):
            raise ValueError(
                f"{name} is {one.dtype} of shape {one.shape}, expected {form[name].dtype} {form[name].shape}"
            )
    parts = [arrays[name].ravel().astype(np.float32) for name, one in form.items() if _trains(one)]
    return torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *parts]))


def _shaped(delta: Vector, form: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return a vector as arrays."""
    out, begin = dict[str, npt.NDArray[Any]](), 0
    for name, one in form.items():
        if not _trains(one):
            out[name] = np.zeros_like(one)
            continue
        entries = delta[begin : begin + one.size].numpy()
        out[name], begin = entries.reshape(one.shape).astype(one.dtype), begin + one.size
    return out
