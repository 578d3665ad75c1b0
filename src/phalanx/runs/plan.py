"""A run as a value: every parameter that can change one of its numbers."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phalanx.algorithms import FedAvg, Private
from phalanx.algorithms.wrapper import Wrapper
from phalanx.attacks import Attack
from phalanx.core import Algorithm, Until
from phalanx.data import Digits, Groups, Partition, Source, Uniform
from phalanx.engine.guard import Guard
from phalanx.engine.participation import Participation, Sampler, everyone
from phalanx.models import MLP, Model
from phalanx.rng import numpy_generator
from phalanx.runs.canonical import canonical, check_fields, configuration, identity_of
from phalanx.simulation import Availability, Constant, Deadline, Late, Latency
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD
from phalanx.training.vector import BufferPolicy

REMEDIES = {  # for parameters of a run that are something else than they must be
    "data": "Wrap tensors: InMemory(Dataset(x, y, classes), Dataset(...)). Dataset.from_torch reads a torch data set.",
    "model": 'TorchModule("import.path.of.a.Module", {...}) makes a model of any torch module.',
    "until": "Until(steps=30), Until(seconds=60.0), or a number of steps.",
}


@dataclass(frozen=True)
class Run:
    """One federated training run, all of it.

    Args:
        algorithm: what server and clients do with models and updates.
        data: the examples, to train and to test on.
        clients: number of clients.
        partition: which client holds which examples.
        groups: how groups of clients see their examples; null if all see them as they are. Each client is tested on
            the test examples as its group sees them.
        model: what is trained.
        buffers: what becomes of buffers such as batch statistics: "average", "freeze", or "refuse" such models.
        training: how a client trains.
        attack: what Byzantine clients do; null for none.
        byzantine: how many clients attack: a number, or a share of the clients below 1, rounded down.
        byzantine_beside: how many more clients attack, beside all these, who hold and draw what they do without them.
            Each of them holds as many random training examples as one of these does on average.
        participation: share of the ready clients that take part in a round, drawn at random; synchronous only.
        byzantine_per_round: how many of those who take part in a round attack, where a paper fixes it; as it comes
            if null.
        latency: how long clients take, in virtual seconds.
        late: which clients come after the run has begun; null if all are there from the start.
        availability: when clients can be reached, and which of their tasks come to nothing; null if they always can.
        deadline: when the server stops waiting for an answer; null if it waits as long as one can come.
        validation: share of its examples that each client keeps from training, drawn at random, to choose by where it
            is offered several models: it is served the one with the least loss on them. With an algorithm that offers
            one only they are left out.
        server_examples: how many of the training examples the server holds itself, drawn at random before the others
            are dealt out, for algorithms that compare updates with a training of the server's own.
        guard: what is refused at the door.
        until: when the run ends; in Python a number of steps will do.
        evaluation: when models are evaluated.
        seed: where all randomness comes from.
    """

    algorithm: Algorithm = FedAvg()
    data: Source = Digits()
    clients: int = 20
    partition: Partition = Uniform()
    groups: Groups | None = None
    model: Model = MLP((512,))
    buffers: BufferPolicy = "refuse"
    training: LocalSGD = LocalSGD()
    attack: Attack | None = None
    byzantine: int | float = 0
    byzantine_beside: int = 0
    participation: float = 1.0
    byzantine_per_round: int | None = None
    latency: Latency = Constant()
    late: Late | None = None
    availability: Availability | None = None
    deadline: Deadline | None = None
    validation: float = 0.0
    server_examples: int = 0
    guard: Guard = Guard()
    until: Until = Until()
    evaluation: Evaluation = Evaluation()
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.until, int) and not isinstance(self.until, bool):
            object.__setattr__(self, "until", Until.of(self.until))
        check_fields(self, REMEDIES)
        if self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}.")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must lie in (0, 1], got {self.participation}.")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be a share in [0, 1), got {self.validation}.")
        self._check_population()
        if self.algorithm.synchronous and self.participation < 1:
            self.algorithm.check_round(self._asked, self.population)
        self._check_server()
        self._check_times()
        self._check_attack()
        self._check_noise()

    def _check_population(self) -> None:
        """Raises ValueError if clients cannot be grouped, or come late, as is asked for."""
        if self.byzantine_beside < 0:
            raise ValueError(f"byzantine_beside must be at least 0, got {self.byzantine_beside}.")
        if self.groups is not None:
            self.groups.of(self.clients)
            if self.byzantine_beside:
                raise ValueError(
                    f"byzantine_beside is {self.byzantine_beside}, and nobody says in which of the groups those are. "
                    "Have attackers among the clients instead, by byzantine, or leave groups out."
                )
        if self.late is not None:
            self.late.times(self.clients, self.seed)
            if not self.algorithm.can_join:
                raise ValueError(
                    f"{self.algorithm.title} cannot take in clients that come late. "
                    "Leave late out, or choose an algorithm that can, such as ClusteredFL."
                )

    def _check_server(self) -> None:
        """Raises ValueError if the server needs examples and has none, or has some and does not need them."""
        held, name = self.server_examples, type(self.algorithm).__name__
        if held < 0:
            raise ValueError(f"server_examples must be at least 0, got {held}.")
        if self.algorithm.needs_reference and not held:
            raise ValueError(
                f"{name} compares updates with a training of the server's own, and server_examples is 0. "
                "Set it to the number of examples that the server holds, to 100 say."
            )
        if held and not self.algorithm.needs_reference:
            raise ValueError(
                f"server_examples is {held}, but the server of {name} does not train. Leave it out, or choose an "
                "algorithm that needs it."
            )

    def _check_noise(self) -> None:
        """Raises ValueError if clients draw noise that nobody can draw again."""
        layer: object = self.algorithm
        while layer is not None:
            if isinstance(layer, Private) and layer.seed is None:
                raise ValueError(
                    "Private has no seed, so that its noise comes from the operating system, and a run could not be "
                    "repeated. Give it one, 0 say; on a deployment clients use the operating system's noise anyway."
                )
            layer = layer.algorithm if isinstance(layer, Wrapper) else None

    def _check_times(self) -> None:
        """Raises ValueError if late answers are to count in rounds that there are not."""
        if self.deadline is not None and self.deadline.grace and not self.algorithm.synchronous:
            raise ValueError(
                f"deadline.grace is {self.deadline.grace}, and {type(self.algorithm).__name__} has no rounds in which "
                "a late answer could count: it takes each one when it comes. Set it to 0, or choose a synchronous "
                "algorithm."
            )

    def _check_attack(self) -> None:
        """Raises ValueError if somebody is to attack, and nobody could, or the other way round."""
        n, byzantine, population = self.clients, self.byzantine, self.population
        if not 0 <= byzantine < n or (byzantine > 1 and byzantine != int(byzantine)):
            raise ValueError(f"byzantine must be a share in [0, 1) or a number of clients below {n}, got {byzantine}.")
        if (given := byzantine or self.byzantine_beside) and self.attack is None:
            name = "byzantine" if byzantine else "byzantine_beside"
            raise ValueError(f"{name} is {given}, but attack is not set. Choose one, e.g. Gaussian.")
        if self.attack is not None and not self.attackers():
            nobody = f", which is {byzantine * n:.3g} of {n} clients, rounded down to nobody" if byzantine else ""
            least = f"a number from 1 to {n - 1}, or a share of at least 1/{n}" if n > 1 else "clients to more than 1"
            raise ValueError(
                f"attack is {type(self.attack).__name__}, but byzantine is {byzantine}{nobody}: nobody would attack. "
                f"Set {'byzantine to ' if n > 1 else ''}{least}; or leave the attack out."
            )

        if (k := self.byzantine_per_round) is not None:
            asked, attackers = self._asked, len(self.attackers())
            if self.participation == 1 or not 0 <= k <= min(asked - 1, attackers):
                raise ValueError(
                    f"byzantine_per_round must lie in 0..{max(min(asked - 1, attackers), 0)}, where {asked} of "
                    f"{population} clients take part in a round and {attackers} are Byzantine, got {k}. "
                    "It needs participation < 1."
                )

    @property
    def _asked(self) -> int:
        """How many clients take part in a round, if all are there."""
        return max(1, round(self.participation * self.population))

    @cached_property
    def identity(self) -> str:
        """Return the SHA-256 of all that was set other than by default; see `phalanx.runs.canonical`."""
        return identity_of(self.settings)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return its canonical form: what was set other than by default."""
        form: dict[str, Any] = canonical(self, Run)
        return form

    @property
    def config(self) -> dict[str, Any]:
        """Return what a configuration file of it holds: every parameter."""
        form: dict[str, Any] = configuration(self, Run)
        return form

    @property
    def title(self) -> str:
        """A name for people, such as `FedAvg(Median), Gaussian x 6`."""
        algorithm = type(self.algorithm).__name__
        rule = self.algorithm.rule
        inner = f"({rule.title})" if rule is not None and algorithm == "FedAvg" else ""
        enemy = f", {type(self.attack).__name__} x {n}" if (n := len(self.attackers())) else ""
        return f"{algorithm}{inner}{enemy}"

    @property
    def sampler(self) -> Sampler:
        """Return how the clients of a round are drawn."""
        if self.participation == 1:
            return everyone
        return Participation(self.participation, self.seed, self.attackers(), self.byzantine_per_round)

    @property
    def slug(self) -> str:
        """A name for its folder: readable, and different for different runs."""
        words = [type(self.data).__name__, type(self.algorithm).__name__]
        words += [type(self.attack).__name__] if self.attackers() else []
        return "-".join([*words, self.identity[:10]]).lower()

    @property
    def population(self) -> int:
        """The number of clients, those who attack beside them included."""
        return self.clients + self.byzantine_beside

    def attackers(self) -> frozenset[int]:
        """Who is Byzantine: of the clients some, drawn by the stream "byzantine"; and those beside, the last ones."""
        share = 0 < self.byzantine < 1
        count = math.floor(self.byzantine * self.clients + 1e-9) if share else int(self.byzantine)
        drawn = numpy_generator(self.seed, "byzantine").choice(self.clients, count, replace=False)
        return frozenset(drawn.tolist()).union(range(self.clients, self.population))
