"""The models that a run ends with, as safetensors files in its folder, and as modules.

    model.safetensors   the global model, as the `state_dict` of its module
    models/             the other models that clients are served, each stored once
    model.json          a `ModelIndex`: which client is served which file, and what a model takes
    schema.json         a `Schema`: the columns of the table that the models were trained on, if it was one
    best/               the same files as of the best evaluation, if `SavedModels.best` asks for them

Files are written when the run ends, whatever ends it; those of the best evaluation when it is made.
"""

import math
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import get_ident
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import safetensors.torch
import torch
from msgspec import Meta
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from phalanx.core import Algorithm, AnyState, InfeasibleError, Vector
from phalanx.data import Schema, TableReading
from phalanx.data.table_schema import LARGEST as LARGEST_SCHEMA
from phalanx.data.table_schema import SCHEMA_FILE
from phalanx.engine.observer import Progress
from phalanx.errors import NotInRecordError
from phalanx.fields import INFINITE, CheckedFields
from phalanx.models import Model
from phalanx.reading import LARGEST_PART, contents, from_json, in_words
from phalanx.rng import borrowed
from phalanx.runs.canonical import configuration
from phalanx.runs.files import inside, write_inside
from phalanx.runs.schema import SchemaPart, StepRecord, to_json
from phalanx.runs.seal import SealError
from phalanx.training.evaluation import Metrics
from phalanx.training.vector import FlatModule
from phalanx.trust import UntrustedError, named, reading
from phalanx.wording import shown

MODEL, INDEX, MODELS, BEST, CARD = "model.safetensors", "model.json", "models", "best", "model.md"
FILE = re.compile(rf"{re.escape(MODEL)}|{MODELS}/\d+(-client-\d+)?\.safetensors")  # of a model, in the folder
LARGEST_MODEL = 1 << 34  # bytes of the file of a model
LARGEST_HEADER = 10_000_000  # bytes of what it says about its tensors
GIGABYTE = 10**9

Tensors = Mapping[str, Tensor]  # the `state_dict` of a module, on the CPU
Sure = Callable[[str, bytes], bytes]  # what a file of that name holds, once it is sure to be the right one


@dataclass(frozen=True)
class SavedModels(CheckedFields):
    """The models that a run keeps.  No number of the run depends on it.

    Args:
        best: whether the models of the best evaluation are kept as well.
        gigabytes: room for models, 10^9 bytes each. If the different models of the clients need more, only the global
            model is kept.
        best_by: which evaluation is the best: the one with the highest accuracy, or the one with the lowest loss, which
            every task has.
    """

    best: bool = False
    gigabytes: Annotated[float, Meta(ge=0), INFINITE] = 1.0
    best_by: Literal["accuracy", "loss"] = "accuracy"

    def merit(self, measured: Metrics | None) -> float | None:
        """Return the figure whose highest value is the best evaluation; None if it was not measured."""
        value = None if measured is None else getattr(measured, self.best_by)
        if value is None or math.isnan(value):
            return None
        return float(value if self.best_by == "accuracy" else -value)


THE_LAST = SavedModels()


class Served(NamedTuple):
    """The models of one state.

    Args:
        model: the global one.
        candidates: by client, the models that it can be served, by number, most general first; one client at a time.
        chosen: by client that chooses among several, the number of its choice; the others are served the last.
    """

    model: Vector
    candidates: Iterable[tuple[int, Mapping[int, Vector]]]
    chosen: Mapping[int, int] = {}


class ModelInputs(SchemaPart, frozen=True, kw_only=True):
    """Inputs and outputs of a model.

    Args:
        shape: of one example; of its first input, if there are several.
        dtype: of the same, such as "float32".
        outputs: number of outputs, as the task of the run needs them.
        classes: number of classes of the labels; 0 for targets.
        names: of the inputs, if there are several.
        schema: digest of `schema.json`; empty if the run was not trained on a table file.
        trained_on: SHA-256 of the files with its training rows.
        table: how rows of a table become inputs and labels, of a record that has no `schema.json`.
    """

    shape: tuple[int, ...]
    dtype: str
    outputs: int
    classes: int = 0
    names: tuple[str, ...] = ()
    schema: str = ""
    trained_on: tuple[str, ...] = ()
    table: TableReading | None = None


class ModelIndex(SchemaPart, frozen=True, kw_only=True):
    """`model.json`: the files of models.

    Args:
        identity: of the run.
        step: after which they were served.
        clients: by client and number of the model, its file, the most general model first. Empty if `left_out`.
        chosen: by client that chose among several models, the number of its choice.
        left_out: whether the models of clients were left out, for lack of room.
        inputs: what a model takes; None if it is not known, as of real clients.
        architecture: description of the network, as in `run.json`; None if it is not known.
    """

    identity: str
    step: int
    clients: Mapping[int, Mapping[int, str]] = {}
    chosen: Mapping[int, int] = {}
    left_out: bool = False
    inputs: ModelInputs | None = None
    architecture: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for client, files in self.clients.items():
            if wrong := [name for name in files.values() if not FILE.fullmatch(name)]:
                raise ValueError(f"{shown(wrong[0])} is no file of a model")
            if not files or self.chosen.get(client, [*files][-1]) not in files:
                raise ValueError(f"client {client} has no file of its model")

    def file(self, client: int | None) -> str:
        """Return the file of the model that a client is served; of the global model if it is None.

        Raises:
            NotInRecordError: the client did not take part, or its model was left out.
        """
        if client is None:
            return MODEL
        if self.left_out:
            raise NotInRecordError(
                "Only the global model was saved: those of the clients need more room than this run had for models. "
                "Repeat it with more gigabytes of SavedModels (`phalanx run --model_gigabytes`)."
            )
        if client not in self.clients:
            known = ", ".join(map(str, [*self.clients][:20])) + (" ..." if len(self.clients) > 20 else "")
            raise NotInRecordError(f"Client {client} did not take part. Who did: {known or 'nobody'}.")
        candidates = self.clients[client]
        return candidates[self.chosen.get(client, [*candidates][-1])]


@dataclass(frozen=True)
class Models:
    """The models of a run.

    Args:
        index: who is served which.
        tensors: returns the values in a file, by its name.
        architecture: the network; None: as the index describes it.
        trust: whether the index may name a network from elsewhere, whose code then runs.
        schema: of the table that they were trained on; None if it was none.
    """

    index: ModelIndex
    tensors: Callable[[str], Tensors]
    architecture: Model | None = None
    trust: bool = False
    schema: Schema | None = None

    @classmethod
    def load(cls, folder: Path, *, trust: bool = False, sure: Sure = lambda _, data: data) -> "Models":
        """Read the index of a folder; its files are read when they are needed.

        Args:
            folder: of the models.
            trust: as above.
            sure: returns what each file holds, by its name, or raises if it is not what it should be.

        Raises:
            FileNotFoundError: there are no models.
            ValueError: the index or the schema is damaged, or the schema is not that of the models.
        """
        path = inside(folder, INDEX)
        if not path.is_file():
            raise FileNotFoundError(f"There are no models in {folder}: {_why_none(folder)}.")
        try:
            index = from_json(sure(INDEX, contents(path, LARGEST_PART)), ModelIndex)
        except SealError:
            raise
        except ValueError as error:
            raise ValueError(f"{path} is not an index of models: {str(error).rstrip('.')}. Repeat the run.") from error
        read = partial(read_tensors, folder, sure=sure)
        return cls(index, read, trust=trust, schema=_schema(folder, index.inputs, sure))

    def state(self, client: int | None = None) -> Tensors:
        """Return the `state_dict` of the model that a client is served; see `ModelIndex.file`."""
        return self.tensors(self.index.file(client))

    def module(self, client: int | None = None, module: nn.Module | None = None) -> nn.Module:
        """Return the model that a client is served as a module, in evaluation mode.

        Args:
            client: its number; None for the global model.
            module: receives the values; a new one of the run's architecture if not given.

        Raises:
            NotInRecordError: the client did not take part, or its model was left out.
            ValueError: the architecture is not known, or the module is another one.
        """
        state = self.state(client)
        made = self._built(state) if module is None else module
        _load(made, state)
        return made.eval()

    def _built(self, state: Tensors) -> nn.Module:
        inputs = self.index.inputs
        if inputs is not None and self.architecture is not None:
            return _of_any_values(self.architecture, inputs)
        if inputs is None or self.index.architecture is None:
            raise ValueError(
                "The record does not say what the network of this run is: its coordinator was given a module. Give the "
                "same: record.model(module=...), or --module on the command line."
            )
        with reading(trust=self.trust):
            kind = architecture_of(self.index.architecture)
            if not self.trust:
                _check_fit(kind, inputs, state)
            return _of_any_values(kind, inputs)


def _load(module: nn.Module, state: Tensors) -> None:
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise ValueError(f"The values of the model do not fit {type(module).__name__}: {shown(why, 300)}") from error


def _check_fit(kind: Model, inputs: ModelInputs, state: Tensors) -> None:
    """Raise `ValueError` if values do not fit a network; no memory is taken for one that is larger than they are."""
    own, count, size = get_ident(), 0, sum(1 + value.numel() for value in state.values())

    def noted(_: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        if parameter is not None and get_ident() == own:
            count += 1 + parameter.numel()
            if count > 2 * size:  # adapters register the parameter of a layer once more
                raise ValueError("it is larger than the file of its values")

    hook = register_module_parameter_registration_hook(noted)
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            made = _of_any_values(kind, inputs)
            _load(made, state)
    except InfeasibleError:
        raise
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"The network {type(kind).__name__} does not fit the models: {shown(why, 300)}.") from error
    finally:
        hook.remove()


def _of_any_values(kind: Model, inputs: ModelInputs) -> nn.Module:
    with borrowed(0, "model"):  # whose values are replaced
        return kind.build(inputs.shape, inputs.outputs)


def read_tensors(folder: Path, name: str, *, sure: Sure = lambda _, data: data) -> Tensors:
    """Return the values in a file of models; raise `ValueError` if it is damaged, and as `sure` does."""
    path = inside(folder, name)
    data = sure(name, contents(path, LARGEST_MODEL))  # and not mapped: somebody could change or cut the file meanwhile
    if int.from_bytes(data[:8], "little") > LARGEST_HEADER:
        limit = f"more than {LARGEST_HEADER:,} bytes about its tensors"
        raise ValueError(f"{path} holds no model: it says {limit}, which no model does. Repeat the run.")
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:  # it has no type of that name
        raise ValueError(f"{path} holds no model: {shown(str(error), 300)}. Repeat the run.") from error


def _schema(folder: Path, inputs: ModelInputs | None, sure: Sure) -> Schema | None:
    """Return the schema of the models in a folder; None if they have none."""
    if inputs is None or not inputs.schema:
        return None
    path = inside(folder, SCHEMA_FILE)
    if not path.is_file():
        raise ValueError(f"{path} is missing, which says how rows become inputs. Put it back, or repeat the run.")
    schema = Schema.parse(sure(SCHEMA_FILE, contents(path, LARGEST_SCHEMA)), str(path))
    if schema.digest != inputs.schema:
        raise ValueError(
            f"{path} is not the schema that these models were trained with: {schema.digest}, expected {inputs.schema}. "
            "Put that back, or repeat the run."
        )
    return schema


def _why_none(folder: Path) -> str:
    if folder.name == BEST:
        return "the run was not asked to keep those of its best evaluation (SavedModels(best=True), --keep_best)"
    return "the run is not over, or was made by a version that saved none"


def architecture_of(form: Mapping[str, Any]) -> Model:
    """Return the description of a network that a configuration names; see `phalanx.trust` for which it may.

    Raises:
        ValueError: there is no such class, it may not be named, or it is not made of these values.
    """
    path, values = str(form.get("class_path")), form.get("init_args", {})
    try:
        kind = named(path)
        found = msgspec.convert(values, kind) if isinstance(kind, type) and issubclass(kind, Model) else None
    except UntrustedError:
        raise
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        why = in_words(str(error)) if isinstance(error, msgspec.ValidationError) else str(error)
        raise ValueError(f"The network {shown(path)} of this run cannot be made here: {why}.") from error
    if not isinstance(found, Model):
        raise ValueError(f"{shown(path)}, the network of this run, is no phalanx.models.Model.")
    return found


Key = tuple[()] | tuple[int, int]  # of a model: its number and the first client with it; empty for the global one


class Layout(NamedTuple):
    """The files of the models of one state, and who is served which."""

    files: Mapping[str, Vector]
    clients: Mapping[int, Mapping[int, str]]


def layout(served: Served, most: float) -> Layout | None:
    """Return the different models with names for their files; None if those of clients have more than `most` bytes.

    Equal models are one file: the global one, or that of the first client which is offered it.
    """
    held: dict[Key, Vector] = {(): served.model}
    by_place: dict[int, Key] = {served.model.data_ptr(): ()}
    by_content: dict[bytes, Key] = {content(served.model): ()}
    clients, room = dict[int, dict[int, Key]](), most
    for client, candidates in served.candidates:
        clients[client] = {}
        for number, vector in candidates.items():
            key = by_place.get(vector.data_ptr())
            if key is None:
                key = by_content.setdefault(content(vector), (number, client))
            if key not in held:
                held[key], by_place[vector.data_ptr()] = vector, key  # held, so that no other vector has its place
                room -= vector.nbytes
                if room < 0:
                    return None
            clients[client][number] = key
    names = _names(held)
    files = {names[key]: vector for key, vector in held.items()}
    return Layout(files, {i: {number: names[key] for number, key in of.items()} for i, of in clients.items()})


def _names(keys: Iterable[Key]) -> dict[Key, str]:
    """Return a file name for each model; of models with one number, it says to which client each was offered first."""
    count = Counter(key[0] for key in keys if key)
    return {
        key: f"{MODELS}/{key[0]}{f'-client-{key[1]}' if count[key[0]] > 1 else ''}.safetensors" if key else MODEL
        for key in keys
    }


def content(vector: Vector) -> bytes:
    """Return the SHA-256 of the entries of a vector, as they are in memory."""
    return sha256(vector.detach().cpu().contiguous().view(torch.uint8).numpy().data).digest()


def served_alike(algorithm: Algorithm, state: AnyState, clients: Collection[int]) -> Served:
    """Return the models of a state as the server knows them, without what clients add of their own."""
    if algorithm.traits.vectors != 1:  # downloads begin with the global model
        return Served(state.model, ((i, {0: state.model}) for i in sorted(clients)))
    return Served(state.model, ((i, algorithm.candidate_models(state, i)) for i in sorted(clients)))


def others(served: Served) -> str:
    """Return the digest of the models that clients are served instead of the global one; empty if there are none."""
    known = {served.model.data_ptr(): (served.model, content(served.model))}  # the vectors keep their places
    own, differ, digest = known[served.model.data_ptr()][1], False, sha256()
    for client, candidates in served.candidates:
        for number, vector in candidates.items():
            place = vector.data_ptr()
            if place not in known:
                known[place] = vector, content(vector)
            found = known[place][1]
            differ = differ or found != own
            digest.update(f"{client} {number} {found.hex()}\n".encode())
    return digest.hexdigest() if differ else ""


class ModelKeeper:
    """An observer that keeps the models of a run: those of the best evaluation on the way, those of the end at the end.

    Args:
        model: the module; its values are overwritten.
        served: returns the models of a state for its enrolled clients.
        folder: where files go; None: models are held in memory.
        settings: what is kept; None: nothing.
        identity: of the run.
        inputs: what a model takes, if it is known.
        architecture: the network, if it is known.
        schema: of the table that it is trained on, if it is one.
    """

    def __init__(
        self,
        model: FlatModule,
        served: Callable[[AnyState, Collection[int]], Served],
        folder: Path | None,
        *,
        settings: SavedModels | None,
        identity: str,
        inputs: ModelInputs | None = None,
        architecture: Model | None = None,
        schema: Schema | None = None,
    ) -> None:
        self._model, self._served, self._folder = model, served, folder
        self._keeps, self._settings = settings is not None, settings or THE_LAST
        self._identity, self._inputs, self._architecture, self._schema = identity, inputs, architecture, schema
        self._last: Progress | None = None
        self._top: float | None = None
        self.models: Models | None = None  # once they are saved
        self.best: Models | None = None

    def go_on(self, history: Iterable[StepRecord]) -> None:
        """Take the best evaluation of the steps that a resumed run has behind it, whose models are in the folder.

        Raises:
            InfeasibleError: they are not.
        """
        if self._settings.best:
            merits = (self._settings.merit(step.metrics) for step in history)
            self._top = max((merit for merit in merits if merit is not None), default=None)
            if self._top is not None and self._folder is not None:
                if not (self._folder / BEST / INDEX).is_file():
                    raise InfeasibleError(
                        f"{self._folder} does not hold the models of the best evaluation so far. Go on without those "
                        "of the best, or start over."
                    )
                self.best = Models.load(self._folder / BEST)

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        self._last = progress._replace(updates=None)  # which are the memory of the next round
        merit = self._settings.merit(progress.metrics) if self._settings.best else None
        if merit is not None and (self._top is None or merit > self._top):
            self._top = merit
            self.best = self._keep(progress, None if self._folder is None else self._folder / BEST)

    def keep(self) -> None:
        """Keep the models of the last state; raise `OSError` if they cannot be written."""
        if self._last is not None and self._keeps:
            self.models = self._keep(self._last, self._folder)

    def _keep(self, progress: Progress, folder: Path | None) -> Models:
        served = self._served(progress.state, progress.enrolled)
        found = layout(served, self._settings.gigabytes * GIGABYTE)
        if found is None:
            warnings.warn(
                f"The models of the clients need more than {self._settings.gigabytes:g} GB, and only the global model "
                "is kept. Give more gigabytes of SavedModels to keep them all.",
                stacklevel=2,
            )
        files, clients = found or Layout({MODEL: served.model}, {})
        known = self._architecture
        index = ModelIndex(
            identity=self._identity,
            step=progress.step,
            clients=clients,
            chosen=dict(served.chosen),
            left_out=found is None,
            inputs=self._inputs,
            architecture=configuration(known, Model) if known is not None and self._inputs is not None else None,
        )
        if folder is None:
            held = {name: self._state(vector) for name, vector in files.items()}
            return Models(index, held.__getitem__, known, schema=self._schema)
        forget(folder)
        (folder / MODELS if len(files) > 1 else folder).mkdir(parents=True, exist_ok=True)
        for name, vector in files.items():
            write_inside(folder, name, safetensors.torch.save(self._state(vector), {"identity": self._identity}))
        if self._schema is not None:
            write_inside(folder, SCHEMA_FILE, self._schema.json)
        write_inside(folder, INDEX, to_json(index) + b"\n")
        return Models(index, partial(read_tensors, folder), known, schema=self._schema)

    def _state(self, vector: Vector) -> dict[str, Tensor]:
        """Return the `state_dict` of a model, in memory of its own."""
        self._model.load(vector)
        state = self._model.module.state_dict().items()
        return {name: held.detach().cpu().clone(memory_format=torch.contiguous_format) for name, held in state}


def forget(folder: Path, *, best: bool = False) -> None:
    """Remove the models of a folder, their index first; those of the best evaluation only if `best`."""
    for name in (INDEX, CARD, MODEL, SCHEMA_FILE):
        (folder / name).unlink(missing_ok=True)
    for name in (MODELS, BEST) if best else (MODELS,):
        shutil.rmtree(folder / name, ignore_errors=True)
