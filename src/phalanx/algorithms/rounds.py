"""What algorithms share that work on whole rounds: weights of updates, and verdicts."""

import warnings
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from phalanx.aggregators import Aggregator, Choice
from phalanx.aggregators.aggregator import BELOW_HALF
from phalanx.core import Algorithm, AnyState, Updates, Verdict, Weights
from phalanx.weighting import Preprocess, Truncate

S = TypeVar("S", bound="WeightedState")


class WeightedState(AnyState, Protocol):
    """A state with the reported sizes of all clients, and the weights that were made of them."""

    @property
    def sizes(self) -> Mapping[int, int]:
        """As reported."""

    @property
    def weights(self) -> Mapping[int, float]:
        """What `Preprocess.enrolled` returned for the sizes."""

    def _replace(self: S, *args: Any, **kwargs: Any) -> S:
        """See `NamedTuple`."""


class Weighted(Algorithm[S]):
    """An algorithm that weighs clients by what `preprocess` makes of the sizes that they report."""

    can_join: ClassVar[bool] = True

    preprocess: Preprocess

    def join(self, state: S, client: int, size: int) -> S:
        """See `Algorithm`.  All weights are computed again, since truncation depends on everybody's size."""
        sizes = {**state.sizes, client: size}
        return state._replace(sizes=sizes, weights=self.preprocess.enrolled(sizes))

    def weights(self, state: S, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`."""
        return self.preprocess.among(state.weights, clients)


def weights_of(weights: Mapping[int, float], updates: Updates) -> Weights:
    """Return the weights of the clients that sent `updates`, in their order, float64."""
    return torch.tensor([weights[i] for i in updates.clients], dtype=torch.float64, device=updates.deltas.device)


def warn_of_weights(preprocess: Preprocess, rule: Aggregator) -> None:
    """Warns if truncation leaves attackers more of the weight than the rule stands."""
    stands = rule.breakdown_point()
    if not isinstance(preprocess, Truncate) or stands is None or stands >= preprocess.alpha_star:
        return
    limit, choice = f"no more than {stands:.3g}", f"Set alpha_star to {stands:.3g} or less"
    if stands == BELOW_HALF:
        limit, choice = "less than one half", "Set alpha_star to 0.49, say"
    if stands == 0:
        limit, choice = "nothing by any proof", "Take a rule that stands attackers, such as Median"
    warnings.warn(
        f"{preprocess} lets attackers have {preprocess.alpha_star:.3g} of the weight, and {rule} stands {limit}. "
        f"{choice}.",
        stacklevel=4,
    )


def verdicts_of(updates: Updates, weights: Weights, choice: Choice | None) -> dict[int, Verdict]:
    """What a rule made of each update; where it does not treat updates as a whole, each has its share of the weight."""
    if choice is None:
        return {i: Verdict(True, w) for i, w in zip(updates.clients, (weights / weights.sum()).tolist(), strict=True)}
    verdicts = {}
    for k, (i, share) in enumerate(zip(updates.clients, choice.shares.tolist(), strict=True)):
        score = None if choice.scores is None else float(choice.scores[k])
        verdicts[i] = Verdict(share > 0, share, score, choice.reasons[k] if choice.reasons else "")
    return verdicts
