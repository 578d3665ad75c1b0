"""A run as a value: every parameter that can change one of its numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from numbers import Integral
from typing import Annotated, Any

from msgspec import Meta
from torch import nn
from typing_extensions import override

from phalanx.algorithms import FedAvg
from phalanx.algorithms.private import Noisy
from phalanx.algorithms.wrapper import Wrapper
from phalanx.attacks import Attack
from phalanx.attacks.timing import joins_after
from phalanx.core import Algorithm, Pool, Setting
from phalanx.data import Digits, Groups, Partition, Source, Uniform
from phalanx.engine.participation import Participation, Sampler, everyone
from phalanx.engine.settings import LoopSettings
from phalanx.errors import InfeasibleError
from phalanx.fields import NonNegativeInt, PositiveInt, check_fields
from phalanx.models import MLP, GivenModule, Model
from phalanx.promises import preprocess_of
from phalanx.rng import numpy_generator
from phalanx.runs.canonical import FIELD_NAME, canonical, configuration, identity_of
from phalanx.simulation import Availability, Constant, Deadline, Late, Latency
from phalanx.training.evaluation import Evaluation
from phalanx.training.local import LocalTraining
from phalanx.training.private_sgd import PrivateSGD
from phalanx.training.sgd import LocalSGD
from phalanx.training.task import Classification, Task
from phalanx.training.vector import BufferPolicy
from phalanx.weighting import Truncate

REMEDIES = {  # remedies for parameters of a wrong type
    "data": "Wrap tensors: InMemory(Dataset(x, y, classes), Dataset(...)). Dataset.from_numpy, from_pandas and "
    "from_torch read other data, CSV(path, label) a file.",
    "model": 'Give a torch module, or TorchModule("import.path.of.a.Module", {...}), which a file can hold, too.',
}


@dataclass(frozen=True)
class Run(LoopSettings):
    """One federated training run, all of it.

    Args:
        algorithm: what server and clients do with models and updates.
        data: the examples for training and testing.
        clients: number of clients.
        partition: assigns the examples to clients.
        groups: transformations of examples by groups of clients; null for none. Each client is tested on the test
            examples as its group sees them.
        model: the model that is trained; in Python also a torch module, with its values (`GivenModule`).
        buffers: treatment of buffers such as batch statistics: "average", "freeze", or "refuse" such models.
        training: local training of a client.
        task: how outputs and labels become a loss, and what is measured.
        attack: attack of the Byzantine clients; null for none.
        byzantine: number of Byzantine clients, or their share below 1 of the clients, rounded down; or the names of
            those that attack, such as "siteB,siteD", where clients have names.
        additional_byzantine: number of additional clients that attack; the data and draws of the others do not change.
            Each of them holds as many random training examples as one of the others on average.
        participation: share of the ready clients that take part in a round, drawn at random; synchronous only.
        byzantine_per_round: number of Byzantine clients in each round, where a paper fixes it; random if null.
        latency: duration of clients' tasks, in virtual seconds.
        late: clients that join after the run has begun; null if all take part from the start.
        availability: times at which clients are available, and failures of their tasks; null: always, and none.
        deadline: when the server stops waiting for an answer; null if it waits as long as one can arrive.
        suspicion: whether updates that stand out are noted, and clients that keep sending such are named suspicious.
            Nobody is excluded, and no other number of the run depends on it.
        validation: share of its examples that each client keeps from training, drawn at random, to choose among
            several models: it is served the one with the least loss on them. They are unused if the algorithm has
            one model per client.
        train_truncated: whether honest clients train only on as many of their examples, drawn at random, as count after
            truncation (Portnoy et al. 2020, Section 3.4). Needs an algorithm whose `preprocess` is `Truncate`.
        server_examples: number of training examples that the server holds, drawn at random before the others are
            assigned, for algorithms that compare updates with the server's own training.
        evaluation: when models are evaluated.
        seed: source of all randomness.
        accept: findings before the first step that are meant, CODE:NAME each, such as "leak:age"; the error that stops
            the run says which. An accepted error is a remark of its record.
    """

    algorithm: Algorithm = FedAvg()
    data: Source = Digits()
    clients: PositiveInt = 20
    partition: Partition = Uniform()
    groups: Groups | None = None
    model: Model = MLP((512,))
    buffers: BufferPolicy = "refuse"
    training: LocalTraining = LocalSGD()
    task: Task = Classification()
    attack: Attack | None = None
    byzantine: int | float | tuple[str, ...] = 0
    additional_byzantine: NonNegativeInt = field(default=0, metadata={FIELD_NAME: "byzantine_beside"})
    participation: Annotated[float, Meta(gt=0, le=1)] = 1.0
    byzantine_per_round: int | None = None
    latency: Latency = Constant()
    late: Late | None = None
    availability: Availability | None = None
    deadline: Deadline | None = None
    suspicion: bool = False
    validation: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    train_truncated: bool = False
    server_examples: NonNegativeInt = 0
    evaluation: Evaluation = Evaluation()
    seed: int = 0
    accept: tuple[str, ...] = ()

    @override
    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module):
            object.__setattr__(self, "model", GivenModule(self.model))
        given: Any = self.byzantine
        if isinstance(given, str) or (isinstance(given, (tuple, list)) and not all(isinstance(n, str) for n in given)):
            raise InfeasibleError(
                "byzantine must be a number or a share of clients, or a tuple of their names, such as "
                f"('Basel', 'Lyon'), got {given!r}."
            )
        if isinstance(self.byzantine, tuple):
            names = [part.strip() for each in self.byzantine for part in each.split(",")]
            object.__setattr__(self, "byzantine", tuple(sorted({*names} - {""})))
        super().__post_init__()
        check_fields(self, REMEDIES)
        if wrong := [key for key in self.accept if ":" not in key]:
            raise ValueError(f"accept must hold findings as CODE:NAME, such as 'leak:age', got {wrong[0]!r}.")
        if self.influence is not None and self.influence > self.population:
            raise ValueError(
                f"influence must lie in 1..{self.population}, the number of clients, got {self.influence}."
            )
        if self.tolerate is not None and self.tolerate > self.population:
            raise ValueError(f"tolerate must lie in 1..{self.population}, the number of clients, got {self.tolerate}.")
        if self.evaluation.by_clients and not self.validation:
            raise ValueError(
                "evaluation.by_clients measures on examples that clients keep from training, and validation is 0. Set "
                "it to their share, 0.2 say."
            )
        self._check_population()
        if self.algorithm.traits.synchronous and self.participation < 1:
            for pool in self.pools:
                if pool.refused:
                    raise InfeasibleError(pool.refused)
        self.training.check(self.algorithm)
        self._check_server()
        self._check_truncated()
        self._check_times()
        self._check_attack()
        self._check_noise()

    def _check_population(self) -> None:
        """Raise ValueError if clients cannot be grouped, or join late, with these settings."""
        if self.groups is not None:
            self.groups.of(self.clients)
            if self.additional_byzantine:
                raise ValueError(
                    f"additional_byzantine is {self.additional_byzantine}, and no group is named for these. "
                    "Have attackers among the clients instead, by byzantine, or leave groups out."
                )
        if self.late is not None:
            self.late.times(self.clients, self.seed)
        if (late := self._late) and not self.algorithm.traits.can_join:
            raise ValueError(
                f"{self.algorithm.title} cannot take in clients that come late. "
                f"Leave {late} out, or choose an algorithm that can, such as ClusteredFL."
            )

    @property
    def _late(self) -> str:
        """The name of what has clients come late; "" if all take part from the start."""
        attacked = bool(self.byzantine or self.additional_byzantine) and joins_after(self.attack) > 0
        return "late" if self.late is not None else "JoinLate" if attacked else ""

    def _check_server(self) -> None:
        """Raise ValueError if the server needs examples and has none, or has some and does not need them."""
        held, name = self.server_examples, type(self.algorithm).__name__
        if self.algorithm.traits.needs_reference and not held:
            raise ValueError(
                f"{name} needs a training of the server's own, and server_examples is 0. "
                "Set it to the number of examples that the server holds, to 100 say."
            )
        if held and not self.algorithm.traits.needs_reference:
            raise ValueError(
                f"server_examples is {held}, but the server of {name} does not train. Leave it out, or choose an "
                "algorithm that needs it."
            )

    def _check_truncated(self) -> None:
        """Raise `ValueError` if clients are to train on their truncated number of examples, and there is none."""
        truncate = preprocess_of(self.algorithm)
        if isinstance(truncate, Truncate) and truncate.drawn is not None and self._late:
            raise ValueError(
                f"drawn is {truncate.drawn}, and more clients are drawn for a round when others come late. Leave "
                f"{self._late} out, or set drawn to null."
            )
        if not self.train_truncated:
            return
        if not isinstance(truncate, Truncate) or truncate.scope == "cohort":
            raise ValueError(
                f"train_truncated needs a bound that is fixed when the run begins, and {self.algorithm.title} has "
                f"{'none' if truncate is None else truncate}. Choose an algorithm with preprocess = Truncate, and a "
                'scope other than "cohort".'
            )
        if self._late:
            raise ValueError(
                "train_truncated goes with a bound that is fixed when the run begins, and clients that come late "
                f"change it. Leave {self._late} out, or train_truncated."
            )

    def _check_noise(self) -> None:
        """Raise ValueError if clients or server draw noise that cannot be reproduced."""
        layer: object = self.algorithm
        while layer is not None:
            if isinstance(layer, Noisy) and layer.seed is None:
                raise ValueError(
                    f"{type(layer).__name__} has no seed, so that its noise comes from the operating system, and a run "
                    "could not be repeated. Give it one, 0 say; on a deployment the operating system's noise is used "
                    "anyway."
                )
            layer = layer.algorithm if isinstance(layer, Wrapper) else None
        if isinstance(training := self.training.base, PrivateSGD) and training.noise == "system":
            raise ValueError(
                'training.noise is "system", so that the noise comes from the operating system, and a run could not be '
                'repeated. Set it to "stream"; on a deployment the operating system\'s noise is used anyway.'
            )
        if isinstance(training, PrivateSGD) and self.train_truncated:
            raise ValueError(
                "train_truncated changes how many examples clients train on, and the account of PrivateSGD takes the "
                "number that they hold. Set it to false, or choose another training."
            )

    def _check_times(self) -> None:
        """Raise ValueError if late answers should count in rounds of an algorithm without rounds."""
        if self.deadline is not None and self.deadline.grace and not self.algorithm.traits.synchronous:
            raise ValueError(
                f"deadline.grace is {self.deadline.grace}, and {type(self.algorithm).__name__} has no rounds in which "
                "a late answer could count: it takes each one when it comes. Set it to 0, or choose a synchronous "
                "algorithm."
            )

    def _check_attack(self) -> None:
        """Raise ValueError if there is an attack without attackers, or attackers without an attack."""
        n, byzantine, population = self.clients, self.byzantine, self.population
        if isinstance(byzantine, tuple):
            if not len(byzantine) < n:
                raise ValueError(f"byzantine names {len(byzantine)} clients, and one of the {n} must be honest.")
        elif not 0 <= byzantine < (n if isinstance(byzantine, Integral) else 1):
            clients = "one client" if byzantine == 1 else f"{byzantine:.0f} clients"
            whole = f" For {clients}, write {byzantine:.0f}." if 1 <= byzantine < n and byzantine % 1 == 0 else ""
            raise ValueError(
                f"byzantine must be a share in [0, 1), or an integer below the {n} clients, got {byzantine}.{whole}"
            )
        if (given := byzantine or self.additional_byzantine) and self.attack is None:
            name = "byzantine" if byzantine else "additional_byzantine"
            raise ValueError(
                f"{name} is {given}, but attack is not set, so it is not known what these clients do. "
                "Choose an attack, such as Gaussian, SignFlip or LabelFlip."
            )
        if self.attack is not None and not self.attacking:
            given = byzantine if isinstance(byzantine, (int, float)) else 0
            nobody = f", which is {given * n:.3g} of {n} clients, rounded down to nobody" if byzantine else ""
            least = f"a number from 1 to {n - 1}, or a share of at least 1/{n}" if n > 1 else "clients to more than 1"
            raise ValueError(
                f"attack is {type(self.attack).__name__}, but byzantine is {byzantine}{nobody}: nobody would attack. "
                f"Set {'byzantine to ' if n > 1 else ''}{least}; or leave the attack out."
            )

        if (k := self.byzantine_per_round) is not None:
            asked, attackers = self.asked, self.attacking
            if self.participation == 1 or not 0 <= k <= min(asked - 1, attackers):
                raise ValueError(
                    f"byzantine_per_round must lie in 0..{max(min(asked - 1, attackers), 0)}, where {asked} of "
                    f"{population} clients take part in a round and {attackers} are Byzantine, got {k}. "
                    "It needs participation < 1."
                )

    @property
    def asked(self) -> int:
        """The number of clients in a round, if all are available."""
        return max(1, round(self.participation * self.population))

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Return what is combined at once if all clients answer; a round if the algorithm does not say."""
        drawn = self.asked if self.participation < 1 else None
        setting = Setting(self.population, drawn=drawn)
        pools = self.algorithm.pools(setting)
        return (Pool.of_round(self.algorithm.rule, None, setting),) if pools is None else pools

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
        """A readable name, such as `FedAvg(Median), Gaussian x 6`."""
        algorithm = type(self.algorithm).__name__
        rule = self.algorithm.rule
        inner = f"({rule.title})" if rule is not None and algorithm == "FedAvg" else ""
        enemy = f", {type(self.attack).__name__} x {n}" if (n := self.attacking) else ""
        return f"{algorithm}{inner}{enemy}"

    def sampler(self, byzantine: frozenset[int]) -> Sampler:
        """Return how the clients of a round are drawn.

        Args:
            byzantine: the Byzantine clients; see `attackers`.
        """
        if self.participation == 1:
            return everyone
        return Participation(self.participation, self.seed, byzantine, self.byzantine_per_round)

    @property
    def slug(self) -> str:
        """A name for its folder: readable, and different for different runs."""
        words = [type(self.data).__name__, type(self.algorithm).__name__]
        words += [type(self.attack).__name__] if self.attacking else []
        return "-".join([*words, self.identity[:10]]).lower()

    @property
    def population(self) -> int:
        """The number of clients, with additional attackers."""
        return self.clients + self.additional_byzantine

    @property
    def attacking(self) -> int:
        """The number of Byzantine clients."""
        if isinstance(self.byzantine, tuple):
            return len(self.byzantine) + self.additional_byzantine
        share = 0 < self.byzantine < 1
        count = math.floor(self.byzantine * self.clients + 1e-9) if share else int(self.byzantine)
        return count + self.additional_byzantine

    @property
    def drawn_attackers(self) -> tuple[int, ...]:
        """The Byzantine clients; none if they are named, as only the data know whose names these are."""
        return () if isinstance(self.byzantine, tuple) else tuple(sorted(self.attackers()))

    def attackers(self, names: Sequence[str] = ()) -> frozenset[int]:
        """Return the Byzantine clients: those that are named, or drawn by the stream "byzantine", and additional ones.

        Args:
            names: of the clients, in their order; empty if they have none.

        Raises:
            InfeasibleError: a name is that of no client, or clients have no names.
        """
        if isinstance(self.byzantine, tuple):
            if missing := sorted({*self.byzantine} - {*names}):
                known = (
                    f"there are {', '.join(names)}"
                    if names
                    else (
                        "clients have no names here. They are called as the owners of their rows, with the partition "
                        "Natural and as many clients as owners"
                    )
                )
                raise InfeasibleError(f"byzantine names {', '.join(missing)}, and {known}.")
            chosen = frozenset(names.index(name) for name in self.byzantine)
        else:
            chosen = _drawn(self.seed, self.clients, self.attacking - self.additional_byzantine)
        return chosen.union(range(self.clients, self.population))


@lru_cache(maxsize=1024)  # a study has many runs with the same clients and seeds
def _drawn(seed: int, clients: int, count: int) -> frozenset[int]:
    return frozenset(numpy_generator(seed, "byzantine").choice(clients, count, replace=False).tolist())
