"""Common parts of algorithms on whole rounds: weights of updates, and verdicts."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeVar

import torch
from typing_extensions import override

from phalanx.aggregators import Aggregator, Choice
from phalanx.core import Algorithm, AnyState, Pool, Rule, Setting, State, Traits, Updates, Verdict, Weights
from phalanx.weighting import Preprocess

UNCHOSEN = "the rule uses none of this update and gives no reason, which says nothing for or against it"
WEIGHTLESS = "its size counts as 0, so that it has no weight"
S = TypeVar("S", bound="WeightedState")


class WeightedState(AnyState, Protocol):
    """A state with the reported sizes of all clients, and their weights."""

    @property
    def sizes(self) -> Mapping[int, int]:
        """As reported."""

    @property
    def weights(self) -> Mapping[int, float]:
        """The result of `Preprocess.enrolled` for the sizes."""

    def _replace(self: S, *args: Any, **kwargs: Any) -> S:
        """See `NamedTuple`."""


class Weighted(Algorithm[S]):
    """An algorithm that weighs clients by their reported sizes after `preprocess`."""

    preprocess: Preprocess

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(can_join=True)

    @override
    def join(self, state: S, client: int, size: int) -> S:
        """See `Algorithm`.  All weights are computed again, since truncation depends on everybody's size."""
        sizes = {**state.sizes, client: size}
        return state._replace(sizes=sizes, weights=self.preprocess.enrolled(sizes))

    @override
    def weights(self, state: S, clients: Collection[int]) -> dict[int, float]:
        return self.preprocess.among(state.weights, clients)

    def remark(self, state: S, updates: Updates) -> str:
        """Return what verdicts on updates that are aggregated at once say of their weights."""
        return self.preprocess.remark(state.weights, updates.clients)

    @override
    def pools(self, setting: Setting, state: S | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: a round, or a single arrival."""
        if not self.traits.synchronous:
            return (Pool.of_one(self.rule, no_proof(self)),)
        if self.rule is None:
            return (Pool.of_round(None, None, setting, unproven=no_proof(self)),)
        return (Pool.of_round(self.rule, self.preprocess, setting),)


class Unweighted(Algorithm[State]):
    """An algorithm that uses no reported sizes; the clients that take part are the `clients` of its state."""

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(can_join=True)

    @override
    def join(self, state: Any, client: int, size: int) -> Any:
        return state._replace(clients=state.clients | {client})

    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...]:
        return (Pool.of_round(None, None, setting, unproven=no_proof(self)),)


MANY = 1000  # rows, for which every rule has a result
MEMBERS = "Who is in a cluster is not bounded: attackers choose whom they resemble."
UNBOUNDED = "Who is in a cluster, and when it splits, is not bounded: attackers choose whom they resemble."


def no_proof(algorithm: Algorithm[Any]) -> str:
    """Return that nothing is proven for an algorithm, in words."""
    other = "FedAvg(Median())" if algorithm.traits.synchronous else "Quorum(FedAvg(Median()), k)"
    return (
        f"{algorithm.title} has no proof for a number of attackers of any strength. "
        f"Choose an algorithm that has one, such as {other}, for a promise."
    )


def stays_in_range(rule: Rule | None) -> bool:
    """Return whether each entry of a rule's result stays between honest entries, up to the share that it tolerates."""
    return isinstance(rule, Aggregator) and rule.tolerates(MANY).means == "range"


def drift(entries: str, rule: Rule | None, step: float = 1.0, far: str = "H") -> str:
    """Return what attackers reach who push one way for many steps, in words.

    Args:
        entries: what an honest entry is, or what is not bounded; a sentence.
        rule: whose result a model moves by.
        step: factor on the result.
        far: sum of the results that a model has moved by after H steps, if each is 1.
    """
    if not stays_in_range(rule):
        return f"{entries} What attackers shift in each step adds up if they push one way."
    far = f"{step:g} {far}" if step != 1 else far
    reached = f"shift a model by at most {far} times the honest range of a step"
    return f"{entries} Attackers who push one way in H steps {reached}."


def weights_of(weights: Mapping[int, float], updates: Updates) -> Weights:
    """Return the weights of the clients that sent `updates`, in their order, float64."""
    return torch.tensor([weights[i] for i in updates.clients], dtype=torch.float64, device=updates.deltas.device)


def relative_weights(weights: Mapping[int, float], clients: Collection[int]) -> dict[int, float]:
    """Return the weights of clients whose updates are used one at a time, as parts of the largest of all weights.

    Args:
        weights: of all clients; at least one is positive.
        clients: those whose weights are returned.
    """
    largest = max(weights.values())
    return {i: weights[i] / largest for i in clients}


def weigh_all(algorithm: Any) -> None:
    """Have an algorithm that is being made, and uses updates one at a time, weigh clients by the sizes of all.

    Raises:
        ValueError: weights are to be made of the clients of each step, where a step has one client only.
    """
    found: Preprocess = algorithm.preprocess.one_by_one()
    if found.scope != "population":
        raise ValueError(
            f"{algorithm.title} uses updates one at a time: among the clients of a step, one, weights mean nothing. "
            'Set scope to "population".'
        )
    object.__setattr__(algorithm, "preprocess", found)


def verdicts_of(updates: Updates, weights: Weights, choice: Choice | None, remark: str = "") -> dict[int, Verdict]:
    """Return what a rule made of each update.

    Args:
        updates: what it received.
        weights: theirs.
        choice: the share of each; where the rule does not treat updates as a whole, each has its share of the weight.
        remark: what there is to say of the weights, as by `Preprocess.remark`.
    """
    if choice is None:
        shares = (weights / weights.sum()).tolist()
        return {i: Verdict(True, w, None, remark) for i, w in zip(updates.clients, shares, strict=True)}
    verdicts = {}
    for k, (i, share) in enumerate(zip(updates.clients, choice.shares.tolist(), strict=True)):
        score = None if choice.scores is None else float(choice.scores[k])
        why = choice.reasons[k] if choice.reasons else ""
        if not share > 0:
            why = (why or UNCHOSEN) if weights[k] > 0 else WEIGHTLESS
        reason = "; ".join(filter(None, (why, remark)))
        verdicts[i] = Verdict(share > 0, share, score, reason)
    return verdicts
