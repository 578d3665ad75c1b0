"""Federated averaging of the products of low-rank adapters, with any rule in place of the average.

An adapter changes a layer by B A, and the mean of products is not the product of means: mean(B_i) mean(A_i) has terms
B_i A_j of different clients.  Nor do A and B say by themselves what a client wants: (B R, R^-1 A) is the same change of
the layer for any R, so that distances, medians and norms of A and B compare a matter of chance.  Here a rule receives,
of each client, the change of the products,

    P_i = B_i A_i - B A,        B A + rule(P_1, ..., P_m) = U S V^T,        B <- U_r S_r,  A <- V_r^T,

and the first r singular values give the next adapter.  Bai et al., "Federated Fine-tuning of Large Language Models
under Heterogeneous Tasks and Client Resources", 2024 (FlexLoRA), aggregate the mean in this way.

Where it differs from the paper: all clients have the same rank; any rule; and S is in B alone, so that a component of
size 0 still learns: its row of A is not 0.  What singular values after the first r hold is lost in each round.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.fedavg import FedAvgState
from phalanx.algorithms.rounds import Weighted, verdicts_of, weights_of
from phalanx.core import InfeasibleError, Pool, Setting, Traits, Updates, Vector
from phalanx.models import Model
from phalanx.promises.promise_watch import combine
from phalanx.rng import borrowed
from phalanx.weighting import AsReported, Preprocess

Row = Shaped[Tensor, "_"]
Rows = Shaped[Tensor, "m _"]  # vectors of one length


@dataclass(frozen=True)
class Adapter:
    """The place of an adapter's A and B in a model's vector.

    Args:
        a: first entry of A, (rank, inputs).
        b: first entry of B, (outputs, rank).
        rank: number of rows of A.
        inputs: number of columns of A.
        outputs: number of rows of B.
    """

    a: int
    b: int
    rank: int
    inputs: int
    outputs: int

    def factors(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return A (m, rank, inputs) and B (m, outputs, rank) of each row."""
        a, b = rows[:, self.a :][:, : self.rank * self.inputs], rows[:, self.b :][:, : self.outputs * self.rank]
        return a.view(-1, self.rank, self.inputs), b.view(-1, self.outputs, self.rank)

    def products(self, rows: Rows) -> Rows:
        """Return B A of each row, flat."""
        a, b = self.factors(rows)
        return (b @ a).flatten(1)

    def write(self, product: Row, model: Row) -> None:
        """Write the factors of the best approximation of a product to a model's vector, in place."""
        u, s, v = torch.linalg.svd(product.view(self.outputs, self.inputs).double(), full_matrices=False)
        a, b = self.factors(model[None])
        a.copy_(v[: self.rank])
        b.copy_(u[:, : self.rank] * s[: self.rank])


@dataclass(frozen=True)
class LowRankProducts(Weighted[FedAvgState]):
    """Rounds in which a rule combines the changes of layers, B A, and not A and B; for models with `LoRA`.

    Args:
        adapters: the places of the adapters; `LowRankProducts.of` finds those of a model. All other entries are
            combined as they are, by the same call of the rule.
        aggregate: the rule. It gets rows as long as the adapted layers are large.
        preprocess: makes weights of the reported sizes.
    """

    adapters: tuple[Adapter, ...] = ()
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = AsReported()

    @classmethod
    def of(cls, model: Model, shape: tuple[int, ...], classes: int, **options: Any) -> "LowRankProducts":
        """Return the algorithm for a model; arguments are those of `Model.build`, and the other fields.

        Raises:
            ValueError: the model has no adapters.
        """
        with borrowed(0, "model"):
            module = model.build(shape, classes)
        at, places = 0, dict[str, tuple[int, torch.Size]]()
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                places[name] = at, parameter.shape
                at += parameter.numel()
        found = []
        for name, (a, (rank, inputs)) in ((n, p) for n, p in places.items() if "lora_A" in n):
            b, (outputs, _) = places[name.replace("lora_A", "lora_B")]
            found.append(Adapter(a, b, rank, inputs, outputs))
        if not found:
            raise ValueError(f"{model} has no adapters. Use LoRA(...), or FedAvg for models without.")
        return cls(tuple(found), **options)

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(knows_layout=bool(self.adapters))

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedAvgState, Set[int]]:
        if any(max(p.a + p.rank * p.inputs, p.b + p.rank * p.outputs) > len(model) for p in self.adapters):
            raise InfeasibleError(
                f"The adapters are those of another model: this one has {len(model):,} parameters. Use "
                "LowRankProducts.of with the run's model."
            )
        weights = self.preprocess.enrolled(sizes)
        return FedAvgState(0, model, sizes, weights, None, {}), weights.keys()

    @override
    def step(self, state: FedAvgState, updates: Updates) -> tuple[FedAvgState, Set[int]]:
        n, parts = weights_of(self.weights(state, updates.clients), updates), self._parts(updates)
        lengths = [part.shape[1] for part in parts]
        together, choice = combine(self.aggregate, torch.cat(parts, 1), n, updates.clients, "round", turn=state.version)
        plain, *changes = torch.split(together, lengths)
        model = state.model.clone()
        model[self._plain(model)] += plain
        for adapter, change in zip(self.adapters, changes, strict=True):
            adapter.write(adapter.products(state.model[None])[0] + change, model)
        verdicts = verdicts_of(updates, n, choice, self.remark(state, updates))
        return state._replace(version=state.version + 1, model=model, verdicts=verdicts), state.weights.keys()

    def _parts(self, updates: Updates) -> list[Rows]:
        """Return what the rule combines: the changes of other entries, and those of each adapter's product."""
        bases = torch.stack(updates.bases)
        trained = bases + updates.deltas
        changes = [adapter.products(trained) - adapter.products(bases) for adapter in self.adapters]
        return [updates.deltas[:, self._plain(updates.deltas[0])], *changes]

    def _plain(self, model: Vector) -> Tensor:
        """Return a mask of the entries that belong to no adapter."""
        mask = torch.ones(len(model), dtype=torch.bool, device=model.device)
        for adapter in self.adapters:
            for part in adapter.factors(mask[None]):
                part.fill_(False)
        return mask

    @override
    def pools(self, setting: Setting, state: FedAvgState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: factors are approximated after the rule."""
        beyond = "Clients train shifted factors: a small shift in each round can be a large one after many."
        return (Pool.of_round(self.rule, self.preprocess, setting, bounds="share", beyond=beyond),)
