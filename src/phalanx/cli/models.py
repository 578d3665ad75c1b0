"""`phalanx evaluate` and `phalanx export`: the models of a run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from jaxtyping import Int
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from phalanx.cli.checks import check_out
from phalanx.cli.configuration import Draft, parameters
from phalanx.cli.consoles import escape, plain_console, say
from phalanx.cli.evaluating import Evaluating
from phalanx.cli.options import data_dir
from phalanx.cli.parser import Options
from phalanx.cli.terminal import TRUTH, say_unsealed
from phalanx.core import InfeasibleError
from phalanx.data import Dataset, Schema, Source
from phalanx.data.images import ImageSource
from phalanx.data.table_files import TableFile, files_of
from phalanx.errors import NotInRecordError
from phalanx.models import TorchModule
from phalanx.runs.export import FORMATS, Format, as_onnx, tensors_as
from phalanx.runs.files import write
from phalanx.runs.models import ModelIndex, ModelInputs, Models
from phalanx.runs.new_rows import NewRows, elsewhere, new_rows, own_files, own_test_part
from phalanx.runs.plan import Run
from phalanx.runs.predicting import meaning
from phalanx.runs.record import Record
from phalanx.runs.reports import fallen
from phalanx.runs.schema import ClientRecord, plain
from phalanx.runs.scores import Scores, scores
from phalanx.runs.table_graph import with_images, with_table
from phalanx.training.evaluation import Score, client_accuracy, confusion
from phalanx.trust import reading, reads_files
from phalanx.wording import percent, plural, visible

ROWS = 50  # clients and classes that a table lists, at most
Confusion = Int[Tensor, "classes classes"]
MATRIX, EACH = 12, 4  # classes of a table of confusions, and of a table of clients with a column for each, at most


def evaluate_command(options: Options, console: Console) -> int:
    """Print how good the models of a run are: on all examples, by class, by client; return the exit status."""
    given = options.draft.make(Evaluating)
    record = _loaded(options, plain_console(stderr=True) if given.json else console)
    own = (given.module or "").rpartition(".")[0]
    with reading(trust=options.trust, allowed=frozenset([own]), files=options.trust):
        return _evaluate(record, given, options.file, console)


def _evaluate(record: Record, given: Evaluating, file: str | None, console: Console) -> int:
    models = record.kept(best=given.best)
    plan = plan_of(record, with_data=given.data is None and file is None)
    inputs = models.index.inputs
    rows = _examples(record, given.data if file is None else _source(record, file), given)
    test = rows.data
    if inputs is not None and (test.shape, test.classes) != (inputs.shape, inputs.classes):
        raise InfeasibleError(
            f"The models take examples of shape {inputs.shape} and know {inputs.classes} classes; the data has "
            f"examples of shape {test.shape} and {test.classes} classes. Choose other --data."
        )
    tests = _as_seen(record, plan, test)
    kind = TorchModule(given.module) if given.module else None
    found = scores(models, test, tests, None if kind is None else lambda: kind.build((), 0), plan.task.fitted(test))
    if given.json:
        console.print_json(data=_as_json(record, models.index, found, rows), indent=1)
    else:
        _show(record, models, found, test, console)
    undefined = ["global model"] * (not math.isfinite(found.model.loss))
    undefined += [f"client {i}" for i, score in found.clients.items() if not math.isfinite(score.loss)]
    if undefined:
        listed = ", ".join(undefined[:ROWS]) + (" ..." if len(undefined) > ROWS else "")
        _say(f"Undefined, as the loss or outputs of the model are NaN or infinite: {listed}. Did the training diverge?")
    return int(bool(undefined))


def _examples(record: Record, source: Source | None, given: Evaluating) -> NewRows:
    """Return the examples of a source, or of the run's own data, that the models were not trained on."""
    place, own = data_dir(given.data_dir), plan_of(record).data if source is None or "data" in record.config else None
    far = "" if own is None or reads_files() else elsewhere(own, place)
    own = None if far else own
    if source is None:
        if far:
            raise InfeasibleError(
                f"The record says that the run's own data is {far}. It is outside the current and the data folder, and "
                "the record may be somebody else's. If the run is yours, give --trust; else name examples by --data."
            )
        return NewRows(own_test_part(record, _schema(record), cast(Source, own), place), 0)
    described = record.kept().schema
    if described is not None and described.images is not None and isinstance(source, ImageSource):
        _say("Which of these images the models were trained on is not looked at: name new ones.")
        return NewRows(described.pictures(source, place).whole(described), None)
    if not isinstance(source, TableFile):
        return NewRows(source.load(place)[1], None)
    if (schema := _schema(record)) is None:
        if source.standardize:
            _say(
                f"The record does not say how inputs were scaled: {source.path} is standardized by its own train part. "
                "If the models were trained on another file, name that in --data.path, and this one in --data.test."
            )
        return NewRows(source.load(place)[1], None)
    rows = new_rows(record, schema, source, own, place, equal_rows=given.equal_rows)
    if rows.left_out is None:
        if record.config.get("engine") == "flower":
            _say("The clients' rows are not here. If some of these rows are among them, the result is too good.")
            return rows
        why = f", {far}, is not read without --trust" if far else " is not there as it was"
        _say(f"The run's own data{why}, so that rows that the models were trained on are not found.")
    elif rows.left_out:
        of = len(rows.data) + rows.left_out
        _say(
            f"{rows.left_out:,} of {plural(of, 'row')} are left out: their inputs and label are those of rows that the "
            "models were trained on. If these are other examples with the same values, give --equal_rows true."
        )
    return rows


def _source(record: Record, file: str) -> Source:
    """Return a file as it is read by the schema of a run."""
    schema = record.kept().schema
    return record.schema.source(file) if schema is None or schema.images is None else schema.image_source(file)


def _schema(record: Record) -> Schema | None:
    """Return the schema of the table that a run was trained on; None if it was none."""
    try:
        return record.schema
    except NotInRecordError:
        return None


def _say(sentence: str) -> None:
    """Print a remark on the error stream, which leaves JSON whole."""
    say(plain_console(stderr=True), sentence)


def _loaded(options: Options, console: Console) -> Record:
    if not options.folder.is_dir():
        raise InfeasibleError(f"There is no folder {options.folder}. Name that of a run, such as runs/NAME.")
    record = Record.load(options.folder, trust=options.trust, unsealed=options.unsealed)
    say_unsealed({options.folder: record}, console)
    return record


def plan_of(record: Record, *, with_data: bool = True) -> Run:
    """Return the run as far as its record describes it; of real clients, only what its server knows.

    Call it while `reading`: it makes values of the classes that the record names.

    Raises:
        InfeasibleError: its own data is needed, and is not known.
    """
    config = record.config
    if with_data and "data" not in config:
        raise InfeasibleError("The record does not say on what data this run was trained. Name some by --data.")
    real = config.get("engine") == "flower"
    skipped = {"accept"} if real else set[str]()  # what a coordinator accepts is none of a plan's findings
    skipped |= set() if with_data else {"data"}
    names = [name for name in parameters(Run) if name in config and name not in skipped]
    draft = Draft(Run)
    for name in names:
        draft.set(name, config[name])
    draft.check()
    made: Run = draft.make(Run)
    return made


def _as_seen(record: Record, plan: Run, test: Dataset) -> dict[int, Dataset]:
    """Return the test examples as each client's group sees them; nothing if there are no groups."""
    if plan.groups is None:
        return {}
    groups = {i: client.group for i, client in record.summary.clients.items() if client.group is not None}
    seen = {group: plan.groups.seen_by(group, test) for group in {*groups.values()}}
    return {i: seen[group] for i, group in groups.items()}


def _show(record: Record, models: Models, found: Scores, test: Dataset, console: Console) -> None:
    clients = record.summary.clients
    honest = [found.clients[i] for i in found.clients if i not in clients or clients[i].byzantine is not True]
    console.print(f"{record.name}: {len(test):,} test examples", markup=False)
    table = _table("", "accuracy", "loss", *found.model.extra)
    _add(table, "global model", [found.model])
    if honest:
        _add(table, "mean over honest clients", honest)
    console.print(table)
    if not math.isnan(found.model.accuracy):
        console.print(_classes(found.model, honest, test))
    if (confused := _confused(found, test)) is not None and len(confused) <= MATRIX:
        console.print(_matrix(confused, test))
    if _differ(record, models.index, found, test):
        console.print(_clients(record, models.index, found, test))


def _as_json(record: Record, index: ModelIndex, found: Scores, rows: NewRows) -> Any:
    """Return all figures of an evaluation; None for what is not defined."""
    test = rows.data
    counts, by_class = test.label_counts().tolist(), found.model.by_class.tolist()
    names, confused = _names(test), _confused(found, test)
    owned = _owned(record, found.clients, test)
    clients = [
        {
            "client": i,
            "name": _named(record, i),
            "model": index.file(i),
            **_figures(score),
            "accuracy_on_own_examples" if owned else "label_reweighted_accuracy": _own(about, score, test, owned=owned),
            **({"confusion_on_own_examples": _listed(_confused(found, test, i, about))} if owned else {}),
            "byzantine": None if about is None else about.byzantine,
        }
        for i, score in found.clients.items()
        for about in [record.summary.clients.get(i)]
    ]
    classes = [{"class": names[k], "examples": counts[k], "accuracy": share} for k, share in enumerate(by_class)]
    about = {"run": record.name, "identity": record.summary.identity, "examples": len(test), "left_out": rows.left_out}
    whole = {"model": _figures(found.model), "classes": classes, "confusion": _listed(confused)}
    return plain({**about, **whole, "clients": clients})


def _names(test: Dataset) -> tuple[Any, ...]:
    """Return the names of the classes, or their numbers."""
    known = test.reading.labels if test.reading is not None else ()
    return known or tuple(range(test.classes))


def _confused(
    found: Scores, test: Dataset, client: int | None = None, about: ClientRecord | None = None
) -> Confusion | None:
    """Return how many examples of each class are taken for each: of all by the global model, or a client's by its own.

    None where that is not defined, and for a client without examples of its own.
    """
    if (answers := found.answers[client]) is None:
        return None
    if client is None:
        return confusion(*answers, test.classes)
    if (owner := _number(about, test)) is None or test.owners is None:
        return None
    own = test.owners.cpu() == owner
    return confusion(answers.true[own], answers.predicted[own], test.classes) if bool(own.any()) else None


def _listed(matrix: Confusion | None) -> list[list[int]] | None:
    return None if matrix is None else matrix.tolist()


def _matrix(confused: Confusion, test: Dataset) -> Table:
    """Return the table of confusions of the global model: a row for each true class, a column for each predicted."""
    names = [escape(str(name)) for name in _names(test)]
    table = _table("class", *(f"taken for {name}" for name in names))
    for name, row in zip(names, confused.tolist(), strict=True):
        if any(row):
            table.add_row(name, *(f"{count:,}" for count in row))
    return table


def _figures(score: Score) -> dict[str, float]:
    return {"accuracy": score.accuracy, "loss": score.loss, **score.extra}


def _add(table: Table, name: str, found: Sequence[Score]) -> None:
    """Add a row with means over some models: accuracy, loss, and the other metrics of the task."""
    extra = [f"{_mean(score.extra[name] for score in found):.4f}" for name in found[0].extra]
    accuracy, loss = _mean(score.accuracy for score in found), _mean(score.loss for score in found)
    table.add_row(name, _share(accuracy), f"{loss:.4f}", *extra)


def _share(value: float) -> str:
    return percent(None if math.isnan(value) else value)


def _classes(model: Score, honest: list[Score], test: Dataset) -> Table:
    """Return the accuracy of each class: of the global model, and the mean over honest clients."""
    counts = test.label_counts().tolist()
    names = _names(test)
    mean = torch.stack([s.by_class for s in honest or [model]]).mean(0).tolist()
    table = _table("class", "examples", "global model", "honest clients")
    for label, (own, of_clients) in enumerate(zip(model.by_class.tolist(), mean, strict=True)):
        if counts[label] and table.row_count < ROWS:
            table.add_row(escape(str(names[label])), f"{counts[label]:,}", _share(own), _share(of_clients))
    if (more := sum(map(bool, counts)) - table.row_count) > 0:
        table.add_row(f"and {more} more")
    return table


def _differ(record: Record, index: ModelIndex, found: Scores, test: Dataset) -> bool:
    """Return whether there is anything to say of single clients: models, or examples or labels, of their own."""
    clients, owned = record.summary.clients, _owned(record, found.clients, test)
    own = (_own(clients.get(i), score, test, owned=owned) for i, score in found.clients.items())
    return len({index.file(i) for i in found.clients}) > 1 or not all(map(math.isnan, own))


def _clients(record: Record, index: ModelIndex, found: Scores, test: Dataset) -> Table:
    """Return the accuracy of each client's model: on all examples, and on its own or under its labels.

    A client has examples of its own where these have its owner; then the accuracy on each class of these, if there are
    few classes.
    """
    clients = record.summary.clients
    owned = _owned(record, found.clients, test)
    names = _names(test) if owned and test.classes <= EACH and found.answers[None] is not None else ()
    own = ["own examples", *(f"own {escape(str(name))}" for name in names)] if owned else ["label-reweighted"]
    table = _table("client", "model", "accuracy", *own, "truth")
    for i, score in [*found.clients.items()][:ROWS]:
        about = clients.get(i)
        truth = "unknown" if about is None or about.byzantine is None else TRUTH[about.byzantine]
        named = f"{i} {visible(name)}" if (name := _named(record, i)) else str(i)
        share = _share(_own(about, score, test, owned=owned))
        confused = _confused(found, test, i, about) if names else None
        right = (
            [math.nan] * len(names) if confused is None else (confused.diagonal() / confused.sum(1).double()).tolist()
        )
        table.add_row(escape(named), index.file(i), _share(score.accuracy), share, *map(_share, right), truth)
    if len(found.clients) > ROWS:
        table.add_row("", f"and {plural(len(found.clients) - ROWS, 'client')} more")
    return table


def _named(record: Record, client: int) -> str:
    """Return the name of a client; empty if it has none."""
    about = record.summary.clients.get(client)
    return about.name if about is not None else ""


def _owned(record: Record, found: Mapping[int, Score], test: Dataset) -> bool:
    """Return whether some clients have examples of their own among these."""
    return any(_own_rows(record.summary.clients.get(i), score, test) is not None for i, score in found.items())


def _own(about: ClientRecord | None, score: Score, test: Dataset, *, owned: bool) -> float:
    """Return the accuracy of a client's model on its own examples, or if nobody has some, under its labels.

    NaN if it has no own examples, or labels of a class that the examples lack.
    """
    if owned:
        rows = _own_rows(about, score, test)
        return math.nan if rows is None else rows
    held = torch.tensor(about.classes if about is not None else ())
    fits = len(held) == len(score.by_class) > 0 and not (score.by_class.isnan() & (held > 0)).any()
    return client_accuracy(score.by_class[None], held[None])[0] if fits else math.nan


def _own_rows(about: ClientRecord | None, score: Score, test: Dataset) -> float | None:
    """Return the accuracy of a client's model on its own examples; None if none are known.

    Args:
        about: the client.
        score: of its model.
        test: the examples.
    """
    number = _number(about, test)
    return None if number is None else score.by_owner.get(number)


def _number(about: ClientRecord | None, test: Dataset) -> int | None:
    """Return the number that a client has as an owner of examples; None if it owns none."""
    if about is None or about.owner is None:
        return None
    names = test.reading.owners if test.reading is not None else ()
    return next((n for n, name in enumerate(names) if str(name) == about.name), None) if names else about.owner


def _table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "client", "class", "model", "truth") else "right")
    return table


def _mean(values: Iterable[float]) -> float:
    held = [*values]
    return sum(held) / len(held)


def predict_command(options: Options, console: Console) -> int:
    """Write a prediction for each row of a table; return the exit status."""
    record = _loaded(options, console)
    record.kept(best=options.best)
    schema = record.schema
    check_out(options.out, "predictions.csv", [*files_of(str(options.data), None), *own_files(record, data_dir(None))])
    with reading(trust=options.trust, allowed=frozenset([(options.module or "").rpartition(".")[0]])):
        frame = schema.read(options.data)
        module = _module(options.module, (len(schema.reading.columns),))
        try:
            found = record.predict(frame, options.client, module=module, best=options.best)
        except ValueError as error:
            raise ValueError(f"{options.data}: {error}") from error
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write(options.out, found.to_csv(index=False).encode())
    say(console, *(remark.sentence for remark in schema.check(frame, labels=False)))  # such as columns without use
    say(console, f"{options.out}: predictions of {plural(len(found), 'row')}")
    return 0


def _module(given: str | None, shape: tuple[int, ...]) -> nn.Module | None:
    """Return the network that an option names; None if it names none."""
    return TorchModule(given).build(shape, 0) if given else None


def export_command(options: Options, console: Console) -> int:
    """Write a model of a run in a format; return the exit status."""
    if options.format not in FORMATS:
        raise InfeasibleError(f"--format must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {options.format}.")
    form = cast(Format, options.format)
    record = _loaded(options, console)
    models = record.kept(best=options.best)
    state = models.state(options.client)
    for line in _falls(record, models.index, options):
        _say(line)
    check_out(options.out, f"model.{form}", own_files(record, data_dir(None)))
    if form == "onnx":
        inputs = _inputs(options, models.index.inputs)
        content = as_onnx(models.module(options.client, _module(options.module, inputs.shape)), inputs)
        content = content if options.network else _with_table(record, content)
    else:
        content = tensors_as(state, form)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write(options.out, content)
    whose = "the global model" if options.client is None else f"the model of client {options.client}"
    say(console, f"{options.out}: {whose}, {len(content):,} bytes")
    return 0


def _falls(record: Record, index: ModelIndex, options: Options) -> list[str]:
    """Return which clients' accuracy has fallen until a model was made, in words; a client's own, if it is that one's.

    Raises:
        InfeasibleError: there are such clients, and that is not accepted.
    """
    steps = [step for step in record.history if step.step <= index.step + 1]  # a model is measured in the next round
    names = {i: client.name for i, client in record.summary.clients.items()}
    found = [*fallen(steps, names, None if options.client is None else [options.client])]
    if found and not options.fallen:
        raise InfeasibleError(
            f"{' '.join(found)} Find out why, or export another model, such as that of --best. To export it all the "
            "same give --fallen."
        )
    return found


def _with_table(record: Record, network: bytes) -> bytes:
    """Return the ONNX model of a network, of a run on a table with what that needs around it.

    Images are decoded and scaled outside of it: their schema is in its metadata.
    """
    if (described := record.kept().schema) is not None and described.images is not None:
        return with_images(network, described, record.summary.identity)
    if (schema := _schema(record)) is None:
        return network
    try:
        outputs = meaning(schema, record.config)
    except InfeasibleError as error:
        raise InfeasibleError(f"{error} For the network alone give --network.") from error
    return with_table(network, schema, outputs, record.summary.identity)


def _inputs(options: Options, known: ModelInputs | None) -> ModelInputs:
    """Return what the model takes; raise `InfeasibleError` if it is not known and not given."""
    if options.shape is None and known is None:
        raise InfeasibleError(
            "The record does not say what examples the model takes. Give the shape of one: --shape 3 32 32."
        )
    if options.shape is None:
        return cast(ModelInputs, known)
    if min(options.shape) < 1:
        raise InfeasibleError(f"--shape must be positive numbers, got {' '.join(map(str, options.shape))}.")
    dtype = known.dtype if known is not None else "float32"
    return ModelInputs(shape=tuple(options.shape), dtype=dtype, outputs=known.outputs if known else 0)
