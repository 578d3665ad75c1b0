"""SCAFFOLD: clients whose training is corrected by how they differ from the others.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020, Algorithm 1 with option
II: each client of a round takes K steps y <- y - eta (g(y) + c - c_i) from the model x, and then

    c_i' = c_i - c + (x - y) / (K eta),    x <- x + eta_g mean(y - x),    c <- mean of the c_i of all clients.

Here the variates are kept as displacements, D_i = -K eta c_i, how far the client's own gradients move it in a round:

    y <- y - eta g(y) + (D - D_i) / K,       D_i' = (y - x) - (D - D_i),      D = mean of all D_i

which is the same where all clients take K steps with one rate, and needs neither K nor eta at the server.  Where they
differ (epochs over unequal data), a client is corrected by the difference of whole rounds, not of single gradients.

Where it differs from the paper:

* The server computes D_i' from the update, and sends each client D - D_i with the model.  So clients need no memory,
  and a lost update leaves server and client with the same variate.  Downloads are twice as long, as in the paper;
  uploads are not.  The server keeps one vector for each client.
* Mean is any rule: for x of the updates of a round, for D of the variates of all clients, zero before their first
  update.  What a rule tolerates of a round it must tolerate of all clients.

A Byzantine client sets its own D_i to anything, and so D as far as the rule lets it.  Its error is in the training of
every honest client in the next round, but not for longer than the false D_i is there: D is computed from the present
variates in each round, not added to.  (The paper's c, with a robust rule on what is added, would sum up its errors.)
An update that the guard or a deadline drops leaves its client's variate.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.rounds import Weighted, drift, stays_in_range, verdicts_of, weights_of
from phalanx.core import Correction, Download, Local, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.fields import PositiveFloat
from phalanx.promises.promise_watch import combine
from phalanx.weighting import AsReported, Preprocess


class SCAFFOLDState(NamedTuple):
    """The server's state of `SCAFFOLD`."""

    version: int  # rounds completed
    model: Vector  # x
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing, or before it if that is per cohort
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    variate: Vector  # D
    variates: Mapping[int, Vector]  # D_i of clients whose update has come; zero for the others
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class SCAFFOLD(Weighted[SCAFFOLDState]):
    """`FedAvg` whose clients are corrected for the drift of their training towards their own data.

    Args:
        aggregate: the rule, of updates and of variates; the mean is SCAFFOLD proper.
        preprocess: makes weights of the reported sizes.
        server_lr: eta_g, a factor on the aggregate; 1 in the paper's experiments.
    """

    aggregate: Aggregator = Mean()
    preprocess: Preprocess = AsReported()
    server_lr: PositiveFloat = 1.0

    @property
    @override
    def traits(self) -> Traits:
        """See `Algorithm`: the server sends all that a client needs, model and correction."""
        return super().traits._replace(vectors=2, keeps="nothing")

    # Role: client

    @override
    def integrate(self, local: Local | None, download: Download) -> Vector:
        """See `Algorithm`: the first half of the download."""
        return download[: len(download) // 2]

    @override
    def correction(self, local: Local | None, download: Download, reach: float) -> Correction:
        """See `Algorithm`: the second half of the download, D - D_i, in equal parts at each step."""
        return Correction(download[len(download) // 2 :] / -reach)

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[SCAFFOLDState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        return SCAFFOLDState(0, model, sizes, weights, None, torch.zeros_like(model), {}, {}), weights.keys()

    @override
    def part(self, state: SCAFFOLDState, clients: Mapping[int, int]) -> tuple[SCAFFOLDState, Set[int]]:
        """See `Algorithm`: variates stay; D becomes that of the part in its first round."""
        new, ready = self.init(state.model, clients)
        kept = {i: variate for i, variate in state.variates.items() if i in clients}
        return new._replace(variate=state.variate, variates=kept), ready

    @override
    def download(self, state: SCAFFOLDState, client: int) -> Download:
        """See `Algorithm`: the model, and D - D_i."""
        own = state.variates.get(client)
        return torch.cat([state.model, state.variate if own is None else state.variate - own])

    @override
    def step(self, state: SCAFFOLDState, updates: Updates) -> tuple[SCAFFOLDState, Set[int]]:
        n, d = weights_of(self.weights(state, updates.clients), updates), len(state.model)
        delta, choice = combine(
            self.aggregate, updates.deltas, n, updates.clients, "round", turn=state.version, previous=state.aggregate
        )
        sent = zip(updates.clients, updates.deltas, updates.bases, strict=True)
        variates = {**state.variates, **{i: row - base[d:] for i, row, base in sent}}
        everybody = sorted(state.weights)
        weights = self.weights(state, everybody)
        new = state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            aggregate=delta,
            variate=combine(
                self.aggregate,
                torch.stack([variates.get(i, torch.zeros_like(delta)) for i in everybody]),
                torch.tensor([weights[i] for i in everybody], dtype=torch.float64, device=delta.device),
                everybody,
                "set of variates",
                turn=state.version,
                previous=state.variate,
            )[0],
            variates=variates,
            verdicts=verdicts_of(updates, n, choice, self.remark(state, updates)),
        )
        return new, state.weights.keys()

    @override
    def pools(self, setting: Setting, state: SCAFFOLDState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: a round, and the variates of all clients."""
        n = setting.clients
        bounds: Literal["shift", "share"] = "shift" if stays_in_range(self.rule) else "share"
        carried = "Control variates carry a small shift of a round over to what honest clients send in later ones."
        beyond = drift(carried, self.rule, self.server_lr)
        return (
            Pool.of_round(self.rule, self.preprocess, setting, bounds=bounds, beyond=beyond),
            Pool("set of variates", self.rule, n, n, self.preprocess, "have more clients", bounds=bounds),
        )
