"""What a client and the coordinator make of the schema of their federation: examples, a model, and a refusal.

Both have the schema; its digest is in each signed answer.  A client whose table does not fit does not enrol.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from phalanx.core import InfeasibleError
from phalanx.data import Dataset, Schema
from phalanx.data.findings import Finding
from phalanx.data.images import ImageSource
from phalanx.data.table_files import TableFile
from phalanx.data.table_impossible import ROUNDED, rounded
from phalanx.data.table_schema import UnfitTableError
from phalanx.models import Model
from phalanx.rng import borrowed
from phalanx.runs.models import ModelInputs
from phalanx.training.vector import BufferPolicy, FlatModule
from phalanx.wording import plural

CODES = (
    "channels",
    "column",
    "file",
    "image",
    "missing",
    "number",
    "range",
    "rows",
    "size",
    "type",
    "word",
)  # of what does not fit
MOST = 20  # columns that a refusal names
TRIED = 2  # examples with which the outputs of a model are looked at


class ClientExamples(NamedTuple):
    """The examples of a client.

    Args:
        train: those that it trains on.
        held_out: those that it measures models on; None if there are none.
    """

    train: Dataset
    held_out: Dataset | None


class UnderContract:
    """What both sides make of a schema and a model, each of which can be given in two ways."""

    model: nn.Module | Model
    schema: Schema | Path | str | None

    @cached_property
    def contract(self) -> Schema | None:
        """The schema, read from its file if a path was given; None if there is none."""
        given = self.schema
        return given if given is None or isinstance(given, Schema) else Schema.load(given)

    @cached_property
    def module(self) -> nn.Module:
        """The module that is trained; a description is built for the inputs and classes of the schema."""
        return module_of(self.model, self.contract)


def examples_of(data: Dataset | TableFile | ImageSource | Path | str, schema: Schema | None) -> ClientExamples:
    """Return the examples of a client.

    Args:
        data: the examples; or the path of a table, written as the schema says, or of images, all of which are trained
            on; or a `CSV`, `Parquet`, `ImageFolder` or `ImageTable`, whose test part is held out.
        schema: of the federation.

    Raises:
        FileNotFoundError: there is no such file.
        UnfitTableError: the table does not fit the schema.
        InfeasibleError: a table has no schema, or the examples are of another shape.
    """
    if isinstance(data, Dataset):
        _check_shape(data, schema)
        return ClientExamples(data, None)
    if schema is None:
        raise InfeasibleError(
            "A table needs the schema of the federation, or each client guesses its inputs: Participant(schema=...). "
            "So do images."
        )
    try:
        if isinstance(data, ImageSource):
            return ClientExamples(*schema.parts(data))
        if schema.images is not None and not isinstance(data, TableFile):
            return ClientExamples(schema.pictures(schema.image_source(str(data))).whole(schema), None)
        if not isinstance(data, TableFile):
            return _enough(ClientExamples(schema.dataset(schema.read(data)), None), schema)
        if data.label != schema.target.name:
            raise InfeasibleError(
                f"The label of the table is {data.label!r}, and the target of the schema {schema.target.name!r}. Name "
                "that; the other settings of columns are those of the schema."
            )
        train, test = schema.parts(schema.as_site(data))
        return _enough(ClientExamples(train, test), schema)
    except (UnfitTableError, InfeasibleError):
        raise
    except ValueError as error:
        raise UnfitTableError((Finding("file", "", str(error)),), schema) from error


def _enough(examples: ClientExamples, schema: Schema) -> ClientExamples:
    """Return the examples of a client; raise `UnfitTableError` if its table has fewer rows than the schema asks for."""
    rows = len(examples.train) + (0 if examples.held_out is None else len(examples.held_out))
    if few := tuple(schema.few(rows)):
        raise UnfitTableError(few, schema)
    return examples


def _check_shape(data: Dataset, schema: Schema | None) -> None:
    """Raise `InfeasibleError` if examples cannot be those of a schema."""
    if schema is None:
        return
    wanted, found = (schema.shape, len(schema.labels)), (data.shape, data.classes)
    if wanted != found:
        raise InfeasibleError(
            f"The schema gives examples of shape {wanted[0]} with {wanted[1]} classes, and data has shape {found[0]} "
            f"with {found[1]}. Give the table itself: Participant(data=CSV(...), schema=...)."
        )
    if (read := data.reading) is not None and schema.images is not None and read.schema != schema.reading.schema:
        raise InfeasibleError(
            "The images of data were not read by this schema. Give the folder or the CSV of their paths: "
            "Participant(data=ImageFolder(...), schema=...)."
        )
    if (read := data.reading) is not None and (read.columns, read.labels, read.target) != (
        schema.reading.columns, schema.reading.labels, schema.reading.target,
    ):  # fmt: skip
        raise InfeasibleError(
            "The table of data was read by itself: its columns, scaling or classes are not those of the schema. "
            "Give the table: Participant(data=CSV(...), schema=...)."
        )


def module_of(model: nn.Module | Model, schema: Schema | None) -> nn.Module:
    """Return the module of a model; a description is built for the inputs and classes of a schema.

    Raises:
        InfeasibleError: it is a description, and there is no schema.
    """
    if isinstance(model, nn.Module):
        return model
    if schema is None:
        raise InfeasibleError(
            f"{type(model).__name__} describes a network, and a schema says for which inputs. Give schema, or a module."
        )
    inputs = inputs_of(schema)
    with borrowed(0, "model"):  # the same at all; clients replace the values
        return model.build(inputs.shape, inputs.outputs)


def inputs_of(schema: Schema) -> ModelInputs:
    """Return what a model takes and gives for a schema."""
    classes = len(schema.labels)
    return ModelInputs(shape=schema.shape, dtype="float32", outputs=classes or 1, classes=classes, schema=schema.digest)


def check_outputs(module: nn.Module, schema: Schema | None, buffers: BufferPolicy) -> None:
    """Raise `InfeasibleError` if a model does not take the inputs of a schema, or gives other outputs."""
    if schema is None:
        return
    wanted = inputs_of(schema)
    what = f"the {wanted.shape[0]} inputs" if schema.images is None else f"images of shape {wanted.shape}, as those"
    flat = FlatModule(module, buffers)
    before = module.training
    try:
        with torch.no_grad():
            module.eval()
            found = tuple(flat.outputs(torch.zeros(TRIED, *wanted.shape, dtype=flat.dtype)).shape)
    except RuntimeError as error:
        raise InfeasibleError(
            f"The model does not take {what} of the schema: {str(error).splitlines()[0]}. Give one that does, or a "
            "description such as MLP((32,))."
        ) from error
    finally:
        module.train(before)
    if found != (TRIED, wanted.outputs) and (schema.labels or found != (TRIED,)):
        what = f"{wanted.outputs} classes" if schema.labels else "a number as its target"
        raise InfeasibleError(
            f"The model gives outputs of shape {found[1:]}, and the schema has {what}. Give one with "
            f"{plural(wanted.outputs, 'output')}, or a description such as MLP((32,))."
        )


# --- refusals


def refusal(error: UnfitTableError) -> str:
    """Return what may leave a client of what does not fit: codes, numbers of columns, and rounded numbers of rows."""
    places = {each.name: k for k, each in enumerate(error.schema.fields)}
    known = [one for one in error.found if one.code in CODES]
    found = [f"{one.code} {places.get(one.name, len(places))} {rounded(one.rows)}" for one in known]
    return ", ".join(found[:MOST])


def in_words(codes: str, schema: Schema) -> str:
    """Return a refusal in words, with names of columns that the schema has; empty if it is none."""
    return ", ".join(_in_words(codes, schema))


def _in_words(codes: str, schema: Schema) -> Iterator[str]:
    for part in codes.split(", ")[:MOST]:
        code, *numbers = part.split(" ")
        if code not in CODES or len(numbers) != 2 or not all(re.fullmatch("[0-9]{1,9}", each) for each in numbers):
            return
        place, rows = map(int, numbers)
        of = "the file" if place >= len(schema.fields) else f"column {schema.fields[place].name!r}"
        of, unit = (of, "rows") if schema.images is None else ("the images", "images")
        count = f", about {rounded(rows)} {unit}" if rows >= ROUNDED else ""
        yield f"{of} ({code}{count})"
