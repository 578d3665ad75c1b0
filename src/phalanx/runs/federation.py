"""The clients, data and model of a run, ready to train in this process."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import msgspec
import torch
from jaxtyping import Int
from torch import Tensor

from phalanx.algorithms.hidden import hiding
from phalanx.attacks.data import goal
from phalanx.core import AnyState, InfeasibleError, Vector
from phalanx.data import Dataset, Schema
from phalanx.engine import promised
from phalanx.engine.observer import Progress
from phalanx.engine.settings import LoopSettings
from phalanx.promises import Promise, preprocess_of
from phalanx.rng import borrowed, numpy_generator
from phalanx.runs.accounting import example_epsilons
from phalanx.runs.engine_choice import by_rule, with_engine
from phalanx.runs.models import ModelInputs, Served
from phalanx.runs.plan import Run
from phalanx.runs.preflight import preflight, untrainable
from phalanx.runs.schema import ClientRecord, DataRecord, FilteredShares, StepRecord
from phalanx.runs.summary import Population, detection, exclusions, filtered, invalid_updates, not_enrolled, suspicions
from phalanx.simulation import Simulation
from phalanx.simulation.executor import Blueprint, Executor, ExecutorFactory
from phalanx.training.compiled.trainer import CompiledNetwork
from phalanx.training.evaluation import (
    FineTuning,
    Metrics,
    Score,
    evaluate_each,
    labels_of_owners,
    least_loss,
    metrics_of,
    pooled,
)
from phalanx.training.sgd import ServerTraining
from phalanx.training.task import check_metrics
from phalanx.training.vector import FlatModule, check_size
from phalanx.weighting import Truncate


class Federation:
    """The objects of a run: partitioned data, model, and clients.

    Args:
        plan: the run.
        data_dir: folder of the data sets; they are downloaded if not given.
        device: the torch device.
        executors: trains the clients of a round elsewhere, on CPUs; in this process if not given.
        begun: has a training that names no engine get one by rule, and is the identity of the run that goes on, empty
            if there is none. None: it gets the loop.
    """

    def __init__(
        self,
        plan: Run,
        data_dir: Path | None = None,
        device: torch.device | str = "cpu",
        executors: ExecutorFactory | None = None,
        begun: str | None = None,
    ) -> None:
        self.plan, self.device = plan, torch.device(device)
        if executors is not None and self.device.type != "cpu":
            raise InfeasibleError(f"Clients that train elsewhere do so on CPUs, and this run computes on {device}.")
        if executors is not None and plan.training.remembers:
            raise InfeasibleError(
                f"{type(plan.training).__name__} remembers something of each client, and clients that train elsewhere "
                "cannot. Train in this process, or choose a training that remembers nothing."
            )
        train, test = plan.data.load(data_dir)
        self.fingerprint = {"train": train.fingerprint(), "test": test.fingerprint()}
        traced = {"latency": plan.latency, "availability": plan.availability}
        self.fingerprint |= {name: of for name, part in traced.items() if part is not None and (of := part.fingerprint)}
        self.model = self._built(train)
        self.start = self.model.read()
        self.train, self.test = (part.for_model(self.model.dtype).to(self.device) for part in (train, test))
        self.task = plan.task.fitted(self.train)
        rng = numpy_generator(plan.seed, "partition")
        self.reserved, rest = self._reserved(len(train))
        dealt_out = train.of(rest) if len(self.reserved) else train
        parts = plan.partition.split(dealt_out.y, plan.clients, rng, dealt_out.owners)
        parts = [*parts, *self._beside(parts, len(dealt_out))]
        self.parts = [rest[part] for part in parts] if len(self.reserved) else parts
        self.group = plan.groups.of(plan.clients) if plan.groups else (0,) * plan.population
        dealt = [self.train.of(part.to(self.device)) for part in self.parts]
        held = [self.seen(group, part) for group, part in zip(self.group, dealt, strict=True)]
        divided = [withheld(plan, i, part) for i, part in enumerate(held)]
        self.data, self.kept = [own for own, _ in divided], [kept for _, kept in divided]
        self.tests = {group: self.seen(group, self.test) for group in self.group}
        self.holdings = torch.stack([part.label_counts().cpu() for part in held])
        self.owner = owners_of(dealt, self.test)
        self.names = names_of(dealt, self.train)
        self.byzantine = plan.attackers(self.names)
        self.honest = [i for i in range(plan.population) if i not in self.byzantine]
        attacked = plan.attack if self.byzantine else None
        self.goals = {group: goal(attacked, test) for group, test in self.tests.items()}
        self._try_out()
        self.sitting_out = untrainable(self.model, dict(enumerate(self.data)), plan.seed)
        self.settings = LoopSettings(**{**plan.loop, "guard": plan.guard.excusing(self.sitting_out)})
        self.remarks = preflight(plan, self.train, self.test, self.task, self.model, sitting_out=self.sitting_out)
        self.few = self.train.of(torch.arange(min(3, len(self.train)), device=self.train.y.device))
        sizes = [len(held) for held in self.data]
        first, *then = [plan] if begun is None else by_rule(plan, sizes, self.model.trainable, begun)
        try:
            self._train_as(first, executors)
        except ValueError:
            if not then:
                raise
            self._train_as(then[0], executors)

    def _train_as(self, plan: Run, executors: ExecutorFactory | None) -> None:
        """Make what trains the clients, and what depends on it, for the run with one of its engines."""
        self.plan = plan
        trainer = plan.training.trainer(self.model, self.task, plan.seed)
        trainer.try_out(self.few)
        compiled = plan.training.computed_by == "compiled"
        # Of networks without convolutions torch's evaluation is nearly as fast.
        self.network = CompiledNetwork(self.model) if compiled and self.model.convolutional else None
        epochs = plan.evaluation.local_epochs
        self.tuning = FineTuning(self.model, plan.training, epochs, plan.seed, self.task) if epochs else None
        own = self.reserved.to(self.device)
        self.reference = ServerTraining(trainer, self.train.of(own)) if len(own) else None
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
            elsewhere=self._elsewhere(executors) if executors else None,
            held_out=dict(enumerate(self.kept)) if plan.evaluation.by_clients else None,
            most_examples=self._most_examples if plan.train_truncated else None,
        )

    @property
    def promise(self) -> Promise:
        """What the run promises, by the sizes that its clients report."""
        plan = self.plan
        sizes, refused = self.settings.guard.enroll(self.transport.enroll())
        if not sizes:
            raise InfeasibleError(f"No client can take part: {'; '.join(refused.values())}")
        until, f = plan.until.limit, plan.tolerate
        sample, broken = plan.sampler(self.byzantine), plan.broken_promise
        return promised(plan.algorithm, self.transport, sizes, sample, steps=until, tolerate=f, broken=broken)

    def _built(self, train: Dataset) -> FlatModule:
        """Return the model before training; its initial values are drawn by the stream "model"."""
        plan, outputs = self.plan, self.plan.task.outputs(train)
        check_size(plan.model, train.shape, outputs)
        with borrowed(plan.seed, "model"):
            module = plan.model.build(train.shape, outputs)
        return FlatModule(module, plan.buffers, self.device, plan.training.personal)

    def _most_examples(self, reported: Mapping[int, object]) -> dict[int, int]:
        """Return the number of examples that the weight of each enrolled client counts: its truncated size."""
        sizes, _ = self.settings.guard.enroll(reported)
        truncate = preprocess_of(self.plan.algorithm)
        if not isinstance(truncate, Truncate) or not sizes:
            return {}
        fixed = truncate.scope == "population"
        U = max(truncate(sizes).values()) if fixed else truncate.bound(sizes, self.plan.pools[0].full)
        return {client: int(min(size, U)) for client, size in sizes.items()}

    def _elsewhere(self, executors: ExecutorFactory) -> Callable[[Mapping[int, Dataset]], Executor]:
        """Return a function from the clients' data to the executor that trains them elsewhere."""
        plan, outputs = self.plan, self.plan.task.outputs(self.train)
        blueprint = Blueprint(plan.model, self.train.shape, outputs, plan.buffers, plan.training, plan.seed, self.task)
        return partial(executors.executor, blueprint, exact=plan.algorithm.traits.exact_losses)

    def _reserved(self, examples: int) -> tuple[Int[Tensor, "s"], Int[Tensor, "r"]]:
        """Return the indices of the examples that the server holds, drawn by the stream "server", and of the rest."""
        count = self.plan.server_examples
        if not count:
            return torch.empty(0, dtype=torch.int64), torch.arange(examples)
        if count >= examples:
            raise ValueError(f"server_examples must be below the {examples:,} training examples, got {count:,}.")
        order = torch.from_numpy(numpy_generator(self.plan.seed, "server").permutation(examples))
        return order[:count].sort().values, order[count:].sort().values

    def _beside(self, parts: Sequence[Int[Tensor, "_"]], examples: int) -> list[Int[Tensor, "_"]]:
        """Return the data of additional attackers: examples drawn by the stream "beside" of each."""
        plan = self.plan
        size = max(1, round(sum(len(part) for part in parts) / plan.clients))
        streams = (numpy_generator(plan.seed, "beside", i) for i in range(plan.clients, plan.population))
        drawn = [rng.choice(examples, size, replace=False) for rng in streams]
        return [torch.from_numpy(part).sort().values for part in drawn]

    def seen(self, group: int, data: Dataset) -> Dataset:
        """Return the data as a group of clients sees them."""
        return self.plan.groups.seen_by(group, data) if self.plan.groups else data

    def _try_out(self) -> None:
        """Raise ValueError if the model does not give what the task needs: one score per class for each label, say."""
        few, task = self.test.of(torch.arange(min(2, len(self.test)), device=self.test.y.device)), self.plan.task
        self.model.module.eval()
        try:
            with torch.inference_mode():
                scores = self.model.outputs(few.x)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            said = str(error).splitlines()[0].rstrip(".")
            integers = "dtype" in said and not any(x.is_floating_point() for x in few.inputs.values())
            hint = " They are integers, as indices of words are; make other numbers float32." if integers else ""
            raise ValueError(f"{self.plan.model} cannot take examples of shape {few.shape}: {said}.{hint}") from error
        gave = tuple(scores.shape) if isinstance(scores, torch.Tensor) else f"a {type(scores).__name__}"
        wanted, outputs, positions = task.output_shape(few), task.outputs(few), tuple(few.y.shape[1:])
        if wanted is not None and gave != (len(few), *wanted):
            where = f" at each of {positions[0]} positions, so {(len(few), *wanted)}" if len(wanted) > 1 else ""
            hint = _one_label(self.train.y) if len(wanted) > 1 and gave[:1] == (len(few),) and len(gave) == 2 else ""
            raise ValueError(
                f"{self.plan.model} must give {outputs} scores for each of {len(few)} examples{where}, gave {gave}."
                + hint
                + ("" if isinstance(scores, torch.Tensor) else " Wrap it in a module that returns the tensor.")
            )
        if isinstance(scores, torch.Tensor):
            check_metrics(self.task, scores, few)

    def measure(self, progress: Progress) -> Metrics | None:
        """Return the figures of a state; None if no evaluation is due."""
        due = progress.step % self.plan.evaluation.every == 0 or self.plan.until.reached(progress.step, progress.now)
        return self.evaluate(progress.state, progress.enrolled) if due else None

    def evaluate(self, state: AnyState, enrolled: Collection[int]) -> Metrics | None:
        """Return the figures of a state: of what honest enrolled clients are served, and of what the attacker got.

        None if no honest client is enrolled.
        """
        clients = [i for i in self.honest if i in enrolled]
        if not clients:
            return None
        chosen = self.chosen(state, clients)
        served = self.tested(state, clients, chosen)
        distinct = {(vector.data_ptr(), self.group[i]): vector for i, vector in served.items()}
        scores, successes = dict[tuple[int, int], Score](), dict[tuple[int, int], float]()
        for group in dict.fromkeys(g for _, g in distinct):
            its = {key: vector for key, vector in distinct.items() if key[1] == group}
            scores |= zip(its, self._scores(its.values(), self.tests[group]), strict=True)
            if (goal := self.goals[group]) is not None:
                reached = self._scores(its.values(), goal)
                successes |= zip(its, (score.accuracy for score in reached), strict=True)
        attained = [successes[key] for key in distinct if key in successes]
        by_client: dict[int, Score] = {i: scores[vector.data_ptr(), self.group[i]] for i, vector in served.items()}
        success = sum(attained) / len(attained) if attained else None
        accuracy, loss = self._by_group(by_client)
        found = metrics_of(by_client, self.holdings, success, self.owner)
        if self.owner is not None and self.plan.groups is None and len(distinct) > 1:
            whole = self._on_own(served)
            found = msgspec.structs.replace(found, accuracy=whole.accuracy, loss=whole.loss, extra=whole.extra)
        return msgspec.structs.replace(found, group_accuracy=accuracy, group_loss=loss, chosen=chosen)

    def _on_own(self, served: Mapping[int, Vector]) -> Score:
        """Return the score of models that differ, each on the test examples of the clients that are served it."""
        assert self.owner is not None
        assert self.test.owners is not None
        labels = labels_of_owners(self.test)
        clients = dict[int, list[int]]()
        for i, vector in served.items():
            clients.setdefault(vector.data_ptr(), []).append(i)
        found, sizes = dict[Hashable, Score](), dict[Hashable, int]()
        for place, of in clients.items():
            owners = torch.tensor([self.owner[i] for i in of], device=self.test.owners.device)
            (found[place],) = self._scores([served[of[0]]], self.test.of(torch.isin(self.test.owners, owners)))
            sizes[place] = int(labels[owners.cpu()].sum())
        return pooled(found, sizes)

    def _scores(self, models: Collection[Vector], data: Dataset) -> list[Score]:
        return evaluate_each(self.model, models, data, self.task, self.network)

    def _by_group(self, scores: Mapping[int, Score]) -> tuple[dict[int, float], dict[int, float]]:
        """Return accuracy and loss of each group of clients, the means over its honest ones; empty without groups."""
        if self.plan.groups is None:
            return {}, {}
        members = {g: [s for i, s in scores.items() if self.group[i] == g] for g in sorted(set(self.group))}
        known = {g: of for g, of in members.items() if of}
        accuracy = {g: sum(s.accuracy for s in of) / len(of) for g, of in known.items()}
        return accuracy, {g: sum(s.loss for s in of) / len(of) for g, of in known.items()}

    def tested(self, state: AnyState, clients: Sequence[int], chosen: Mapping[int, int]) -> dict[int, Vector]:
        """Return what is evaluated of each client: its model, trained further if the run's evaluation says so."""
        served, tuning = self.served(state, clients, chosen), self.tuning
        if tuning is None:
            return served
        return {i: tuning(v, self.data[i], client=i, version=state.version) for i, v in served.items()}

    def served(self, state: AnyState, clients: Sequence[int], chosen: Mapping[int, int]) -> dict[int, Vector]:
        """Return the model of each client, the chosen one if it chooses; the same tensor for those served the same."""
        algorithm, model_of = self.plan.algorithm, self.transport.model_of
        candidates = {i: algorithm.candidate_models(state, i) for i in clients}
        downloads = {i: of[chosen[i]] if i in chosen else [*of.values()][-1] for i, of in candidates.items()}
        if algorithm.traits.remembers or self.plan.training.personalizes:
            return {i: model_of(i, download) for i, download in downloads.items()}
        models = {download.data_ptr(): model_of(i, download) for i, download in downloads.items()}
        return {i: models[download.data_ptr()] for i, download in downloads.items()}

    def all_served(self, state: AnyState, clients: Collection[int]) -> Served:
        """Return all models that these clients can be served, in the clear, and which of them they choose."""
        algorithm, model_of = self.plan.algorithm, self.transport.model_of
        here, how = sorted(clients), hiding(algorithm)
        candidates = (
            (i, {k: model_of(i, model) for k, model in algorithm.candidate_models(state, i).items()}) for i in here
        )
        return Served(state.model if how is None else how.revealed(state.model), candidates, self.chosen(state, here))

    @property
    def inputs(self) -> ModelInputs:
        """Inputs and outputs of a model of this run."""
        train = self.train
        (name, first), *others = train.inputs.items()
        return ModelInputs(
            shape=train.shape,
            dtype=str(first.dtype).removeprefix("torch."),
            outputs=self.plan.task.outputs(train),
            classes=train.classes,
            names=(name, *(other for other, _ in others)) if name else (),
            schema=self.schema.digest if self.schema is not None else "",
            trained_on=train.reading.files if train.reading is not None else (),
        )

    @cached_property
    def schema(self) -> Schema | None:
        """The schema of the table, or of the images, that the run is trained on; None if there is none."""
        read = self.train.reading
        return None if read is None or not (read.columns or read.schema) else Schema.of(read)

    def chosen(self, state: AnyState, clients: Sequence[int]) -> dict[int, int]:
        """Return the number, in `Algorithm.candidate_models`, of the model that each client chooses.

        It is the one with the least loss on the examples that the client keeps from training; of equals the most
        specific.  A client that keeps none, or has one candidate only, does not choose.
        """
        candidates = {i: self.plan.algorithm.candidate_models(state, i) for i in clients if len(self.kept[i])}
        return {i: self._best(i, models) for i, models in candidates.items() if len(models) > 1}

    def _best(self, client: int, models: Mapping[int, Vector]) -> int:
        """Return the number of the model with the least loss on a client's validation data; at a tie the last one."""
        served = {k: self.transport.model_of(client, model) for k, model in models.items()}
        return least_loss(self.model, served, self.kept[client], self.task)


def _one_label(y: torch.Tensor) -> str:
    """Return what to do if the labels of sequences, (n, t), seem to be one label for each example."""
    single = y.shape[1] == 1
    if not single and not bool(((y == 1).sum(1) == 1).all() and ((y == 0) | (y == 1)).all()):
        return ""
    remedy = "y.squeeze(1)" if single else "y.argmax(1)"
    return f" Each example has labels of shape {tuple(y.shape[1:])}. If it has one label, give {remedy}."


def owners_of(parts: Sequence[Dataset], test: Dataset) -> dict[int, int] | None:
    """Return the owner of each client's examples; None unless each has one of its own, with examples in the test part.

    Args:
        parts: examples of each client.
        test: the test part.
    """
    if test.owners is None or any(part.owners is None or not len(part) for part in parts):
        return None
    found = [[*{*part.owners.tolist()}] for part in parts if part.owners is not None]
    single = [owners[0] for owners in found if len(owners) == 1]
    if len({*single}) < len(parts) or not {*single} <= {*test.owners.tolist()}:
        return None
    return dict(enumerate(single))


def names_of(parts: Sequence[Dataset], train: Dataset) -> list[str]:
    """Return the name of each client: that of the owner of its examples; empty unless each has one of its own.

    Args:
        parts: examples of each client.
        train: the examples of all, which know the names of owners.
    """
    names = train.reading.owners if train.reading is not None else ()
    if not names or any(part.owners is None or not len(part) for part in parts):
        return []
    found = [{*part.owners.tolist()} for part in parts if part.owners is not None]
    called = [str(names[min(owners)]) for owners in found if len(owners) == 1]
    return called if len({*called}) == len(parts) else []


def can_begin(plan: Run, data_dir: Path | None = None, device: torch.device | str = "cpu") -> bool:
    """Return whether the network, the task, the algorithm and the attack of a run go with its engine.

    Raises:
        InfeasibleError: the run could not begin with the loop either.
        ValueError: the same, for a part that does not fit another.
    """
    try:
        Federation(plan, data_dir, device)
    except ValueError:
        Federation(with_engine(plan, "loop"), data_dir, device)
        return False
    return True


def withheld(plan: Run, client: int, held: Dataset) -> tuple[Dataset, Dataset]:
    """Return a client's training and validation examples, drawn by the stream "validation" of the client.

    At least one example is for training; of two or more, a positive share is at least one for validation.
    """
    count = min(max(round(plan.validation * len(held)), 1), len(held) - 1) if plan.validation and len(held) else 0
    if count == 0:
        return held, held.of(torch.empty(0, dtype=torch.int64, device=held.y.device))
    order = torch.from_numpy(numpy_generator(plan.seed, "validation", client).permutation(len(held)))
    order = order.to(held.y.device)
    return held.of(order[count:].sort().values), held.of(order[:count].sort().values)


def population(federation: Federation, history: Sequence[StepRecord]) -> Population:
    """Return the clients, the exclusions, the unused updates, and their agreement with the truth."""
    excluded, invalid, absent = exclusions(history), invalid_updates(history), not_enrolled(history)
    suspicious, byzantine = suspicions(history), federation.byzantine
    reading = federation.train.reading
    private = example_epsilons(federation.plan.training, [len(part) for part in federation.data], history)
    clients = {
        i: ClientRecord(
            name=federation.names[i] if federation.names else "",
            owner=federation.owner[i] if federation.owner else None,
            reported=size if type(size := federation.transport.reported[i]) is int else None,
            size=len(part),
            classes=tuple(federation.holdings[i].tolist()),
            byzantine=i in byzantine,
            group=federation.group[i],
            excluded=excluded.get(i),
            invalid=invalid.get(i),
            suspicious=suspicious.get(i),
            not_enrolled=absent.get(i),
            epsilon=private.get(i) if i not in byzantine else None,
        )
        for i, part in enumerate(federation.parts)
    }
    unused = FilteredShares(
        byzantine=filtered(history, byzantine), honest=filtered(history, frozenset(federation.honest))
    )
    data = DataRecord(
        name=type(federation.plan.data).__name__,
        train=len(federation.train),
        test=len(federation.test),
        fingerprint=federation.fingerprint,
        client_tests="label-reweighted" if federation.owner is None else "own",
        classes=tuple(map(str, reading.labels)) if reading is not None else (),
    )
    return Population(clients, detection(excluded.keys(), byzantine), unused, data=data)
