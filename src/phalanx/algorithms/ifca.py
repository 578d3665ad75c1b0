"""IFCA: clients choose, among k models, the one that fits their data best.

Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", 2020.  `IFCA` is its
algorithm with model averaging, as the authors' program for MNIST has it, which could be read here as a whole:

    broadcast theta_1, ..., theta_k to the clients M_t of this iteration
    client i:  j_i <- arg min over j of F_i(theta_j),  theta~_i <- theta_{j_i} after tau local steps
    server:    theta_j <- mean of theta~_i over the clients with j_i = j

Deviations:

* A client is sent one model at a time here, not all k.  So an iteration of the paper is k rounds: in each, a client is
  sent one more of the k models, which do not change meanwhile, reports the loss of it on all its examples
  (`exact_losses`), and trains it.  After k rounds j_i follows from the k losses, and of the k trained models the one
  that belongs to the smallest loss is used.  Models, choices and averages are those of the paper; the server sees k - 1
  updates a client more, clients train k times as often, and each sends k updates.
* A client is first sent the model that it chose last.  So evaluations at multiples of k show each client the model of
  its cluster; those in between show others, unless clients keep examples to choose by (`validation` of a run).
* M_t is drawn by `share`, as it has to be the same clients for k rounds, and not by the run's participation.  A client
  that has not answered for all k models when the iteration ends is left out of it.  `patience` lets it last longer.
* The paper's k models are initialised at random, or well, or again and again.  A server here knows one initial model:
  the first is that one, and in the others each parameter is multiplied by a random factor from 1 - `spread` to
  1 + `spread`.
* A model that nobody chose stays as it is, as in the program.
* The mean is without weights.  `preprocess` weighs the clients of a cluster, and `aggregate` is the rule among
  them, as Tao, Yang and Kulkarni, "Byzantine-Robust Clustered Federated Learning", 2023, propose.

The weight sharing between the models that the paper has as a variant is not here.  A client is free to lie about its
losses: it chooses which cluster it attacks, as it does in the paper.
"""

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.arrivals import alone, merged
from phalanx.algorithms.several import NumberedClusters, cluster_pool, step_each, weights_within
from phalanx.core import Algorithm, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.fields import NonNegativeInt, PositiveInt
from phalanx.rng import numpy_generator
from phalanx.weighting import Ignore, Preprocess


class Probe(NamedTuple):
    """The answers of a client in this iteration."""

    losses: tuple[float, ...]  # of the models that it was sent, in the order of `IFCA.order`
    choice: int  # the model with the smallest one, the first at a tie
    update: Updates  # what it made of that one


class IFCAState(NamedTuple):
    """The server's state of `IFCA`."""

    version: int  # rounds completed; an iteration is k of them
    models: tuple[Vector, ...]  # theta_1, ..., theta_k
    sizes: Mapping[int, int]  # as reported
    chosen: Mapping[int, int]  # the model that each client chose last
    iteration: int  # t
    started: int  # the version at which it began
    cohort: frozenset[int]  # M_t
    probes: Mapping[int, Probe]  # of those who answered in this iteration
    aggregates: Mapping[int, Vector]  # what the rule returned last for each model, for rules that start from there
    verdicts: Mapping[int, Verdict]

    @property
    def model(self) -> Vector:
        """The first of the k models."""
        return self.models[0]

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """The clients that chose each model last."""
        return {j: tuple(sorted(i for i, at in self.chosen.items() if at == j)) for j in range(len(self.models))}


@dataclass(frozen=True)
class IFCA(Algorithm[IFCAState]):
    """Trains k models, each with the clients whose loss it makes smallest.

    The number of groups must be known.  Runs depend on the initial models: two that are close are chosen by the same
    clients, and one that nobody chooses is never trained.  No defence by itself; robust rules compose.

    Args:
        k: number of models. `until.steps` and `evaluation.every` should be multiples of it.
        share: share of the clients that take part in an iteration, drawn at random; instead of the run's
            `participation`, with which few clients would be asked k times in a row.
        patience: rounds beyond k for which an iteration waits for clients that have not answered for all k models.
        spread: how far the initial models are apart, in (0, 1]: the largest relative change of a parameter.
        seed: of the initial models and of who takes part.
        aggregate: the rule within a cluster; the mean in the paper.
        preprocess: makes weights of the reported sizes within a cluster; all are equal in the paper.
    """

    k: PositiveInt = 2
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    patience: NonNegativeInt = 0
    spread: Annotated[float, Meta(gt=0, le=1)] = 1.0
    seed: int = 0
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(observed=("clusters", "iteration"), can_join=True, exact_losses=True)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[IFCAState, Set[int]]:
        self.preprocess.enrolled(sizes)  # raises if nothing can be made of them
        models = tuple(self._initial(model, j) for j in range(self.k))
        cohort = self._drawn(sizes, 0)
        return IFCAState(0, models, dict(sizes), {}, 0, 0, cohort, {}, {}, {}), cohort

    @override
    def join(self, state: IFCAState, client: int, size: int) -> IFCAState:
        """See `Algorithm`: it takes part from now on."""
        return state._replace(sizes={**state.sizes, client: size}, cohort=state.cohort | {client})

    def order(self, state: IFCAState, client: int) -> list[int]:
        """Return the numbers of the models in the order in which a client is sent them."""
        own = state.chosen.get(client, 0)
        return [own, *(j for j in range(self.k) if j != own)]

    @override
    def download(self, state: IFCAState, client: int) -> Vector:
        """See `Algorithm`: the broadcast, one model at a time."""
        return state.models[self._next(state, client)]

    @override
    def candidate_models(self, state: IFCAState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`: all k models."""
        last = self._next(state, client)
        others = {j: model for j, model in enumerate(state.models) if j != last}
        return {**others, last: state.models[last]}

    @override
    def weights(self, state: IFCAState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: those within the cluster of each client."""
        used = weights_within(self.preprocess, state.sizes, state.clusters.values(), clients)
        return {i: used.get(i, 1.0) for i in clients}

    @override
    def step(self, state: IFCAState, updates: Updates) -> tuple[IFCAState, Set[int]]:
        """See `Algorithm`.

        Raises:
            InfeasibleError: of no cluster are there enough clients for the rule.
        """
        state = state._replace(verdicts={})
        for i in updates.clients:
            state = self._answered(state, i, alone(updates, i))
        state = state._replace(version=state.version + 1)
        finished = {i for i, probe in state.probes.items() if len(probe.losses) == self.k}
        lasted = state.version - state.started
        if not finished or (finished < state.cohort and lasted < self.k + self.patience):
            return state, state.cohort - finished
        return self._averaged(state, finished)

    def _next(self, state: IFCAState, client: int) -> int:
        """Return the number of the model that a client is sent next."""
        answered = len(state.probes[client].losses) if client in state.probes else 0
        return self.order(state, client)[answered % self.k]

    def _initial(self, model: Vector, j: int) -> Vector:
        """Return theta_j^(0)."""
        if j == 0:
            return model
        drawn = numpy_generator(self.seed, "ifca models", j).uniform(1 - self.spread, 1 + self.spread, len(model))
        return model * torch.from_numpy(drawn).to(model)

    def _drawn(self, clients: Mapping[int, int], iteration: int) -> frozenset[int]:
        """Return M_t."""
        if self.share == 1:
            return frozenset(clients)
        rng = numpy_generator(self.seed, "ifca clients", iteration)
        count = max(1, round(self.share * len(clients)))
        return frozenset(rng.choice(sorted(clients), count, replace=False).tolist())

    def _answered(self, state: IFCAState, i: int, update: Updates) -> IFCAState:
        """Return the state with the loss of one more model, and what the client made of it."""
        before = state.probes.get(i)
        losses = before.losses if before else ()
        if i not in state.cohort or update.versions[0] < state.started or len(losses) == self.k:
            late = Verdict(False, 0.0, None, "answers for a model of an earlier iteration")
            return state._replace(verdicts={**state.verdicts, i: late})
        j, loss = self.order(state, i)[len(losses)], _comparable(float(update.losses[0]))
        if before is None or (loss, j) < (_comparable(float(before.update.losses[0])), before.choice):
            probe = Probe((*losses, loss), j, update)
        else:
            probe = before._replace(losses=(*losses, loss))
        reason = f"loss {loss:.4g} of model {j}; has answered for {len(probe.losses)} of {self.k} models"
        waits = Verdict(True, 0.0, loss, reason, waits=True)
        return state._replace(probes={**state.probes, i: probe}, verdicts={**state.verdicts, i: waits})

    def _averaged(self, state: IFCAState, finished: Set[int]) -> tuple[IFCAState, Set[int]]:
        """Return the state after the averages, and who takes part in the next iteration."""
        probes = {i: state.probes[i] for i in sorted(finished)}
        members = {j: frozenset(i for i in probes if probes[i].choice == j) for j in range(self.k)}
        clusters = NumberedClusters(members, dict(enumerate(state.models)), state.aggregates)
        updates = merged(probe.update for probe in probes.values())
        made = step_each(self, clusters, state.sizes, updates, state.iteration)
        missing = {i: len(probe.losses) for i, probe in state.probes.items() if i not in finished}
        why = f"of {self.k} models when the iteration ended"
        left = {i: Verdict(False, 0.0, None, f"had answered for {n} {why}") for i, n in missing.items()}
        cohort = self._drawn(state.sizes, state.iteration + 1)
        new = state._replace(
            models=tuple(made.models[j] for j in range(self.k)),
            chosen={**state.chosen, **{i: probe.choice for i, probe in probes.items()}},
            iteration=state.iteration + 1,
            started=state.version,
            cohort=cohort,
            probes={},
            aggregates=made.aggregates,
            verdicts=dict(sorted({**state.verdicts, **made.verdicts, **left}.items())),
        )
        return new, cohort

    @override
    def pools(self, setting: Setting, state: IFCAState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: a cluster, which can be one client."""
        return (cluster_pool(self.rule, self.preprocess, setting),)


def _comparable(loss: float) -> float:
    """Return the loss, infinite if it is not a number."""
    return math.inf if math.isnan(loss) else loss
