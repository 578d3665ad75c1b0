"""A run as a value, and what becomes of it.

Every parameter that could change a number of a `Run` is part of its identity.  Where its data lies, on which device it
computes and where its results go is not: those are arguments of `simulate`.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

import phalanx
from phalanx.aggregators import Aggregator
from phalanx.algorithms import FedAvg, Private
from phalanx.algorithms.wrappers import Wrapper
from phalanx.attacks import Attack
from phalanx.canonical import canonical, check_fields, identity, source
from phalanx.checkpoint import EVERY_MINUTE, Checkpoint, Keeper, Origin, conditions, resumption
from phalanx.core import Algorithm, AnyState, Infeasible, Observer, Progress, Stalled, Until, Vector
from phalanx.data import Dataset, Digits, Groups, Partition, Source, Uniform
from phalanx.engine import Keep, Participation, Snapshot, everyone, run
from phalanx.evaluation import Evaluation, FineTuning, Score, evaluate, figures, least_loss
from phalanx.guard import Guard
from phalanx.history import HISTORY, History, Record
from phalanx.models import MLP, Model
from phalanx.rng import borrowed, numpy_generator
from phalanx.simulation import Availability, Constant, Deadline, Late, Latency, Simulation
from phalanx.simulation.cohort import Blueprint, Cohort, Spread
from phalanx.summary import ending, environment, outcome, population
from phalanx.training import LocalSGD, ServerTraining, Trainer
from phalanx.vector import BufferPolicy, FlatModule

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
            if type(self.algorithm).join is Algorithm.join:
                raise ValueError(
                    f"{type(self.algorithm).__name__} cannot take in clients that come late. "
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
        """The SHA-256 of every parameter."""
        return identity(self, Run)

    @property
    def config(self) -> dict[str, Any]:
        """What its configuration file says."""
        form: dict[str, Any] = canonical(self, Run)
        return form

    @property
    def title(self) -> str:
        """A name for people, such as `FedAvg(Median), Gaussian x 6`."""
        algorithm = type(self.algorithm).__name__
        rule = getattr(self.algorithm, "aggregate", None)
        inner = f"({rule.title})" if isinstance(rule, Aggregator) and algorithm == "FedAvg" else ""
        enemy = f", {type(self.attack).__name__} x {n}" if (n := len(self.attackers())) else ""
        return f"{algorithm}{inner}{enemy}"

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


class Federation:
    """A run made concrete: its data dealt out, its model built, its clients ready.

    Args:
        plan: the run.
        data_dir: where data sets lie; they are downloaded if not given.
        device: where it computes.
        spread: has the clients of a round train elsewhere, on CPUs; in this process if not given.
    """

    def __init__(
        self,
        plan: Run,
        data_dir: Path | None = None,
        device: torch.device | str = "cpu",
        spread: Spread | None = None,
    ) -> None:
        self.plan, self.device = plan, torch.device(device)
        if spread is not None and self.device.type != "cpu":
            raise Infeasible(f"Clients that train elsewhere do so on CPUs, and this run computes on {device}.")
        train, test = plan.data.load(data_dir)
        self.fingerprint = {"train": train.fingerprint(), "test": test.fingerprint()}
        self.fingerprint |= _traced(latency=plan.latency, availability=plan.availability)
        self.train, self.test = train.to(self.device), test.to(self.device)
        rng = numpy_generator(plan.seed, "partition")
        own, rest = self._reserved(len(train))
        dealt_out = train.of(rest) if len(own) else train
        parts = plan.partition.split(dealt_out.y, plan.clients, rng, dealt_out.owners)
        parts = [*parts, *self._beside(parts, len(dealt_out))]
        self.parts = [rest[part] for part in parts] if len(own) else parts
        self.group = plan.groups.of(plan.clients) if plan.groups else (0,) * plan.population
        dealt = [self.train.of(part.to(self.device)) for part in self.parts]
        held = [self.seen(group, part) for group, part in zip(self.group, dealt, strict=True)]
        divided = [withheld(plan, i, part) for i, part in enumerate(held)]
        self.data, self.kept = [own for own, _ in divided], [kept for _, kept in divided]
        self.tests = {group: self.seen(group, self.test) for group in self.group}
        self.holdings = torch.stack([part.label_counts().cpu() for part in held])
        self.byzantine = plan.attackers()
        self.honest = [i for i in range(plan.population) if i not in self.byzantine]
        attacked = plan.attack if self.byzantine else None
        self.goals = {group: attacked.goal(test) if attacked else None for group, test in self.tests.items()}
        with borrowed(plan.seed, "model"):
            module = plan.model.build(tuple(self.train.x.shape[1:]), self.train.classes)
        self.model = FlatModule(module, plan.buffers, self.device)
        self.start = self.model.read()
        self._try_out()
        trainer = Trainer(self.model, plan.training, plan.seed)
        epochs = plan.evaluation.local_epochs
        self.tuning = FineTuning(self.model, plan.training, epochs, plan.seed) if epochs else None
        self.reference = ServerTraining(trainer, self.train.of(own.to(self.device))) if len(own) else None
        self.transport = Simulation(
            plan.algorithm,
            trainer,
            dict(enumerate(self.data)),
            attack=plan.attack,
            byzantine=self.byzantine,
            latency=plan.latency,
            joining=plan.late.times(plan.clients, plan.seed) if plan.late else None,
            availability=plan.availability,
            deadline=plan.deadline,
            seed=plan.seed,
            elsewhere=self._elsewhere(spread) if spread else None,
        )

    def _elsewhere(self, spread: Spread) -> Callable[[Mapping[int, Dataset]], Cohort]:
        """What makes, from what clients train on, what trains them elsewhere."""
        plan, shape = self.plan, tuple(self.train.x.shape[1:])
        blueprint = Blueprint(plan.model, shape, self.train.classes, plan.buffers, plan.training, plan.seed)
        return partial(spread.cohort, blueprint, exact=plan.algorithm.exact_losses)

    def _reserved(self, examples: int) -> tuple[Int[Tensor, "s"], Int[Tensor, "r"]]:
        """The numbers of the examples that the server holds, drawn by the stream "server", and of the rest."""
        count = self.plan.server_examples
        if not count:
            return torch.empty(0, dtype=torch.int64), torch.arange(examples)
        if count >= examples:
            raise ValueError(f"server_examples must be below the {examples:,} training examples, got {count:,}.")
        order = torch.from_numpy(numpy_generator(self.plan.seed, "server").permutation(examples))
        return order[:count].sort().values, order[count:].sort().values

    def _beside(self, parts: Sequence[Int[Tensor, "_"]], examples: int) -> list[Int[Tensor, "_"]]:
        """What those hold who attack beside the clients: examples drawn by the stream "beside" of each."""
        plan = self.plan
        size = max(1, round(sum(len(part) for part in parts) / plan.clients))
        streams = (numpy_generator(plan.seed, "beside", i) for i in range(plan.clients, plan.population))
        drawn = [rng.choice(examples, size, replace=False) for rng in streams]
        return [torch.from_numpy(part).sort().values for part in drawn]

    def seen(self, group: int, data: Dataset) -> Dataset:
        """The data as a group of clients sees them."""
        return self.plan.groups.seen_by(group, data) if self.plan.groups else data

    def _try_out(self) -> None:
        """Raises ValueError if the model does not give one score per class for each label of each example."""
        x, classes, positions = self.test.x[:2], self.test.classes, tuple(self.test.y.shape[1:])
        self.model.module.eval()
        try:
            with torch.inference_mode():
                scores = self.model.module(x)
        except (RuntimeError, IndexError, ValueError) as error:
            raise ValueError(
                f"{self.plan.model} cannot take examples of shape {tuple(x.shape[1:])}: {error}"
            ) from error
        gave = tuple(scores.shape) if isinstance(scores, torch.Tensor) else f"a {type(scores).__name__}"
        if gave != (len(x), classes, *positions):
            where = f" at each of {positions[0]} positions, so {(len(x), classes, *positions)}" if positions else ""
            raise ValueError(
                f"{self.plan.model} must give {classes} scores for each of {len(x)} examples{where}, gave {gave}."
            )

    def measure(self, progress: Progress) -> Mapping[str, Any]:
        """Evaluates the models of a state, if it is time to."""
        due = progress.step % self.plan.evaluation.every == 0 or self.plan.until.reached(progress.step, progress.now)
        return self.worth(progress.state) if due else {}

    def worth(self, state: AnyState) -> Mapping[str, Any]:
        """The figures of a state: what honest clients are served, and what the attacker got."""
        chosen = self.chosen(state)
        served = self.tested(state, chosen)
        distinct = {(vector.data_ptr(), self.group[i]): vector for i, vector in served.items()}
        scores = {(at, g): evaluate(self.model, vector, self.tests[g]) for (at, g), vector in distinct.items()}
        aims = [(vector, goal) for (_, g), vector in distinct.items() if (goal := self.goals[g]) is not None]
        wishes = [evaluate(self.model, vector, goal).accuracy for vector, goal in aims]
        by_client: dict[int, Score] = {i: scores[vector.data_ptr(), self.group[i]] for i, vector in served.items()}
        found = figures(by_client, dict(enumerate(self.holdings)), sum(wishes) / len(wishes) if wishes else None)
        return found | self._by_group(by_client) | ({"chosen": chosen} if chosen else {})

    def _by_group(self, scores: Mapping[int, Score]) -> dict[str, Any]:
        """Accuracy and loss of each group of clients, the means over its honest ones; nothing without groups."""
        if self.plan.groups is None:
            return {}
        members = {g: [s for i, s in scores.items() if self.group[i] == g] for g in sorted(set(self.group))}
        means = {g: [sum(values) / len(of) for values in zip(*((s.accuracy, s.loss) for s in of), strict=True)]
                 for g, of in members.items() if of}  # fmt: skip
        return {f"group_{name}": {g: m[k] for g, m in means.items()} for k, name in enumerate(("accuracy", "loss"))}

    def tested(self, state: AnyState, chosen: Mapping[int, int]) -> dict[int, Vector]:
        """What is evaluated of each honest client: its model, trained further if the run's evaluation says so."""
        served, tuning = self.served(state, chosen), self.tuning
        if tuning is None:
            return served
        return {i: tuning(v, self.data[i], client=i, version=state.version) for i, v in served.items()}

    def served(self, state: AnyState, chosen: Mapping[int, int]) -> dict[int, Vector]:
        """The model of each honest client, the chosen one if it chooses; the same tensor for those served the same."""
        algorithm, model_of = self.plan.algorithm, self.transport.model_of
        downloads = {
            i: algorithm.offers(state, i)[chosen[i]] if i in chosen else algorithm.download(state, i)
            for i in self.honest
        }
        if algorithm.remembers:
            return {i: model_of(i, download) for i, download in downloads.items()}
        models = {download.data_ptr(): model_of(i, download) for i, download in downloads.items()}
        return {i: models[download.data_ptr()] for i, download in downloads.items()}

    def chosen(self, state: AnyState) -> dict[int, int]:
        """Which of the models that it is offered each honest client takes, by its number in `Algorithm.offers`.

        The one with the least loss on the examples that the client keeps from training; of equals the most specific.
        Nobody chooses who keeps none, or is offered one model only.
        """
        offers = {i: self.plan.algorithm.offers(state, i) for i in self.honest if len(self.kept[i])}
        return {i: self._best(i, models) for i, models in offers.items() if len(models) > 1}

    def _best(self, client: int, models: Mapping[int, Vector]) -> int:
        """The number of the model with the least loss on what a client keeps; of equals the last one."""
        served = {k: self.transport.model_of(client, model) for k, model in models.items()}
        return least_loss(self.model, served, self.kept[client])


def _traced(**parts: Latency | Availability | None) -> dict[str, str]:
    """The fingerprints of the files that these parts of a run read."""
    return {name: found for name, part in parts.items() if part is not None and (found := part.fingerprint)}


def withheld(plan: Run, client: int, held: Dataset) -> tuple[Dataset, Dataset]:
    """What a client trains on and what it keeps from training, drawn by the stream "validation" of the client.

    Nobody keeps the last example from training; who has two and is to keep any keeps one at least.
    """
    count = min(max(round(plan.validation * len(held)), 1), len(held) - 1) if plan.validation and len(held) else 0
    if count == 0:
        return held, held.of(torch.empty(0, dtype=torch.int64, device=held.y.device))
    order = torch.from_numpy(numpy_generator(plan.seed, "validation", client).permutation(len(held)))
    order = order.to(held.y.device)
    return held.of(order[count:].sort().values), held.of(order[:count].sort().values)


def simulate(
    plan: Run,
    *,
    name: str | None = None,
    folder: Path | None = None,
    data_dir: Path | None = None,
    device: torch.device | str = "cpu",
    observers: Sequence[Observer] = (),
    checkpoint: Checkpoint | None = EVERY_MINUTE,
    spread: Spread | None = None,
) -> Record:
    """Carries out a run in this process, on virtual time.

    Args:
        plan: what to do.
        name: for people; made from the run if not given.
        folder: where run.json, history.jsonl and summary.json go, in place of an older run's; nothing is written if not
            given, nor before the run has begun. If this run was begun there before, and stopped or killed, it goes on.
        data_dir: where data sets lie; they are downloaded if not given.
        device: where it computes.
        observers: are shown each step; of a run that goes on, those that are left.
        checkpoint: when the run is saved on its way in `folder`, so that it can go on; None for never.
        spread: has the clients of a round train elsewhere, to the same bits, such as `phalanx.cluster.Cohorts`.

    Returns:
        What happened; but for `wall_seconds` the same to the bit, also if the run was killed and went on. A run that
        had to stop, because nobody was left who could go on or the algorithm could not, has the status "failed" and the
        error in its summary.

    Raises:
        Infeasible: the run cannot even begin; or it was begun under conditions (threads, versions, device, data) that
            give other bits than those of today.
        ValueError: the same, for a part that does not fit another (a model and its data, say), or a file in `folder`
            that is damaged.
        KeyboardInterrupt: the user stopped it. What was done until then is in the folder, with the status "stopped";
            any other mistake of a part of the run leaves the status "failed". Called again, the run goes on.
    """
    begun, made_by = time.perf_counter(), source(plan)
    federation = Federation(plan, data_dir, device, spread)
    origin = Origin(plan.identity, made_by, phalanx.__version__, federation.fingerprint, conditions(federation.device))
    resumed = resumption(folder, checkpoint, origin, federation.device)
    begun -= resumed.seconds
    history = History(
        plan.algorithm.observed,
        federation.measure,
        folder / HISTORY if folder else None,
        lambda: Record.begin(folder, plan.config, resumed=resumed.snapshot is not None) if folder else None,
        resumed.lines,
    )
    keeper = Keeper(folder, checkpoint, origin, history, begun)

    def recorded(error: BaseException | None) -> Record:
        summary: dict[str, Any] = ending(error) | {"identity": plan.identity, "source": made_by}
        summary |= {"wall_seconds": round(time.perf_counter() - begun, 3), "dimension": len(federation.start)}
        summary |= outcome(history.lines, texts=federation.test.y.ndim == 2) | population(federation, history.lines)
        record = Record(
            name or plan.title, plan.config, history.lines, summary | {"environment": environment(federation.device)}
        )
        if folder is not None:
            record.save(folder)
        return record

    try:
        with history, reproducible(federation.device):
            failure = _carry_out(federation, history, observers, keeper, resumed.snapshot)
    except BaseException as error:  # a mistake in somebody's class, or Ctrl-C: it goes on its way, and leaves a record
        if history.lines and folder is not None:
            keeper.leave()
            recorded(error)
            error.add_note(f"What was done until then is in {folder}; phalanx report {folder} shows it.")
            if keeper.step:
                error.add_note(f"When it is run again, it goes on after step {keeper.step}.")
        raise
    record = recorded(failure)
    keeper.discard()
    return record


def _carry_out(
    federation: Federation, history: History, observers: Sequence[Observer], keep: Keep, resume: Snapshot[Any] | None
) -> Exception | None:
    """The run itself; returns why it had to stop, if it had to."""
    plan, failure = federation.plan, None
    try:
        run(
            plan.algorithm,
            federation.transport,
            federation.start,
            until=plan.until,
            sample=everyone if plan.participation == 1 else _sampler(plan, federation.byzantine),
            guard=plan.guard,
            reference=federation.reference,
            observers=(history, *observers),
            keep=keep,
            resume=resume,
        )
    except (Infeasible, Stalled, ValueError) as error:
        if not history.lines:
            raise
        failure = error
    history.conclude(federation.worth)
    return failure


def _sampler(plan: Run, byzantine: frozenset[int]) -> Participation:
    return Participation(plan.participation, plan.seed, byzantine, plan.byzantine_per_round)


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Has a GPU compute the same bits each time, as a CPU does anyway; puts its settings back on leaving."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
