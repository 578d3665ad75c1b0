"""A network with what its table needs around it, as an ONNX graph: from raw columns to classes or numbers.

    columns -> gaps filled, scaled in float64, texts as 0 and 1 -> the network -> softmax and class, or own unit

Each column is an input, (rows, 1): of texts strings, of others doubles.  A missing number is NaN, or a word for it that
is a number, such as -9; a missing text an empty string, or a word for it.  A row that `Schema.check` would refuse is
refused by the runtime: an `OneHotEncoder` of `ai.onnx.ml` with zeros=0 has no result for it.  (`OneHot` after a
`LabelEncoder` would take an unknown text for the last one, silently.)
"""

import math
from collections.abc import Sequence
from itertools import count, zip_longest
from typing import Any

import numpy as np

from phalanx.data import Schema
from phalanx.data.findings import is_number
from phalanx.data.table_columns import Field
from phalanx.data.tables import InputColumn, spelled
from phalanx.runs.predicting import PREDICTION, Meaning

PROBABILITIES = "probabilities"
ML, ML_VERSION = "ai.onnx.ml", 3


def with_table(network: bytes, schema: Schema, outputs: Meaning, run: str) -> bytes:
    """Return the ONNX model of a network, from scaled inputs to scores, with its table around it.

    Args:
        network: the model; it has one input and one output.
        schema: of the table.
        outputs: what the scores mean.
        run: identity of the run, for the metadata.

    Returns:
        A model with an input for each column, by its name, and the outputs "prediction", (rows,), and, of classes,
        "probabilities", (rows, classes). An output whose name is that of a column ends in "_".
    """
    import onnx  # noqa: PLC0415  (optional)

    model = onnx.compose.add_prefix(onnx.load_from_string(network), _unlike(schema, "network/"))
    whole, before, after = model.graph, _Nodes(_unlike(schema, "before/")), _Nodes(_unlike(schema, "after/"))
    before.add("Identity", _examples(before, schema), to=whole.input[0].name)
    results = _results(after, whole.output[0].name, schema, outputs)
    nodes = [*before.nodes, *whole.node, *after.nodes]
    for part, content in ((whole.node, nodes), (whole.input, before.inputs), (whole.output, results)):
        del part[:]
        part.extend(content)
    whole.initializer.extend([*before.constants, *after.constants])
    model.opset_import.append(onnx.helper.make_opsetid(ML, ML_VERSION))
    _describe(model, schema, run)
    onnx.checker.check_model(model)
    written: bytes = model.SerializeToString()
    return written


def with_images(network: bytes, schema: Schema, run: str) -> bytes:
    """Return the ONNX model of a network of scaled images, with their schema in its metadata."""
    import onnx  # noqa: PLC0415  (optional)

    model = onnx.load_from_string(network)
    _describe(model, schema, run)
    written: bytes = model.SerializeToString()
    return written


def _describe(model: Any, schema: Schema, run: str) -> None:
    """Write into the metadata of a model by which schema examples are read."""
    import onnx  # noqa: PLC0415  (optional)

    about = {"phalanx.schema": schema.json.decode(), "phalanx.schema.digest": schema.digest, "phalanx.run": run}
    onnx.helper.set_model_props(model, about)


def _unlike(schema: Schema, prefix: str) -> str:
    """Return a prefix with which no column begins."""
    while any(each.name.startswith(prefix) for each in schema.fields):
        prefix = f"_{prefix}"
    return prefix


class _Nodes:
    """Nodes of a graph in their order, with their constants and inputs.

    Args:
        prefix: of all names.
    """

    def __init__(self, prefix: str) -> None:
        import onnx  # noqa: PLC0415  (optional)

        self._onnx, self._prefix, self._numbers = onnx, prefix, count()
        self.nodes, self.constants, self.inputs = list[Any](), list[Any](), list[Any]()

    def add(self, kind: str, *parts: str, to: str = "", name: str = "", **attributes: Any) -> str:
        """Append a node; return the name of its output."""
        out = to or f"{self._prefix}{next(self._numbers)}"
        domain = ML if kind == "OneHotEncoder" else ""
        made = self._onnx.helper.make_node(kind, parts, [out], name=name or out, domain=domain, **attributes)
        self.nodes.append(made)
        return out

    def constant(self, values: Any, dtype: type) -> str:
        """Return the name of a constant."""
        name = f"{self._prefix}{next(self._numbers)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.array(values, dtype=dtype), name))
        return name

    def cast(self, part: str, kind: str) -> str:
        """Return the name of a tensor in another type."""
        out = f"{self._prefix}{next(self._numbers)}"
        dtype = getattr(self._onnx.TensorProto, kind)
        self.nodes.append(self._onnx.helper.make_node("Cast", [part], [out], name=out, to=dtype))
        return out

    def value(self, name: str, kind: str, shape: Sequence[str | int]) -> Any:
        """Return the description of an input or output."""
        return self._onnx.helper.make_tensor_value_info(name, getattr(self._onnx.TensorProto, kind), shape)

    def refuse(self, wrong: str, columns: int, why: str) -> str:
        """Return ones, (rows, columns), float32; the runtime ends with the name `why` where `wrong` is true."""
        checked = self.add("OneHotEncoder", self.cast(wrong, "INT64"), name=why, cats_int64s=[0], zeros=0)
        return self.add("Reshape", checked, self.constant([-1, columns], np.int64))


def _examples(nodes: _Nodes, schema: Schema) -> str:
    """Return the inputs of the network, (rows, inputs), made of inputs of the graph."""
    columns = schema.reading.columns
    numbers = [each for each in schema.inputs_of if each.type != "string"]
    blocks, places = list[str](), dict[tuple[str, str | None, bool], int]()
    for each in schema.inputs_of:
        nodes.inputs.append(nodes.value(each.name, "STRING" if each.type == "string" else "DOUBLE", ["rows", 1]))
    if numbers:
        filled = [c for c in columns if c.value is None and not c.gap]
        scaled, empty = _numbers(
            nodes, numbers, filled, [() if each.pattern else schema.missing_in(each) for each in numbers]
        )
        blocks += [scaled, empty]
        places |= {(each.name, None, False): j for j, each in enumerate(numbers)}
        places |= {(each.name, None, True): len(numbers) + j for j, each in enumerate(numbers)}
    width = 2 * len(numbers)
    for each in schema.inputs_of:
        if each.type == "string":
            blocks.append(_texts(nodes, each, schema.missing_in(each)))
            places |= {(each.name, str(text), False): width + j for j, text in enumerate(each.categories)}
            places[each.name, None, True] = width + len(each.categories)
            width += len(each.categories) + 1
    order = [places[str(column.name), column.value, column.gap] for column in columns]
    return nodes.add("Gather", nodes.add("Concat", *blocks, axis=1), nodes.constant(order, np.int64), axis=1)


def _numbers(
    nodes: _Nodes, numbers: Sequence[Field], columns: Sequence[InputColumn], missing: Sequence[Sequence[str]]
) -> tuple[str, str]:
    """Return the scaled numbers, and where they are missing, each (rows, columns), float32."""
    raw = nodes.add("Concat", *(each.name for each in numbers), axis=1) if len(numbers) > 1 else numbers[0].name
    narrow = nodes.cast(raw, "FLOAT")
    empty, infinite = nodes.add("IsNaN", narrow), nodes.add("IsInf", narrow)
    words = [[float(word) for word in of if is_number(word)] for of in missing]
    for word in zip_longest(*words, fillvalue=math.nan):  # by column; nothing equals NaN
        empty = nodes.add("Or", empty, nodes.add("Equal", raw, nodes.constant(word, np.float64)))
    needed = nodes.constant([each.use.impute is None for each in numbers], np.bool_)
    low = nodes.constant([_bound(each, each.constraints.minimum, -math.inf) for each in numbers], np.float64)
    high = nodes.constant([_bound(each, each.constraints.maximum, math.inf) for each in numbers], np.float64)
    whole = nodes.constant([each.type in ("integer", "boolean") for each in numbers], np.bool_)
    part = nodes.add("Not", nodes.add("Equal", nodes.add("Floor", raw), raw))
    outside = nodes.add("Or", nodes.add("Less", raw, low), nodes.add("Greater", raw, high))
    misfit = nodes.add("Or", nodes.add("Or", infinite, outside), nodes.add("And", part, whole))
    known = nodes.add("And", misfit, nodes.add("Not", empty))
    wrong = nodes.add("Or", known, nodes.add("And", empty, needed))
    ones = nodes.refuse(wrong, len(numbers), "a number is missing, or does not fit the schema")
    fill = nodes.constant([column.fill or 0.0 for column in columns], np.float64)
    mean = nodes.constant([column.mean for column in columns], np.float64)
    deviation = nodes.constant([column.deviation for column in columns], np.float64)
    filled = nodes.add("Where", empty, fill, raw)
    scaled = nodes.cast(nodes.add("Div", nodes.add("Sub", filled, mean), deviation), "FLOAT")
    return nodes.add("Mul", scaled, ones), nodes.cast(empty, "FLOAT")


def _bound(described: Field, given: float | None, none: float) -> float:
    """Return the bound of a column; true and false are 1 and 0."""
    if described.type == "boolean":
        return 0.0 if none < 0 else 1.0
    return none if given is None else given


def _texts(nodes: _Nodes, described: Field, missing: Sequence[str]) -> str:
    """Return 1 where a row has a text, else 0, and 1 where it is missing: (rows, texts + 1), float32."""
    categories = [str(each) for each in described.categories]
    known = {text: k for k, text in enumerate(categories)}
    for category, others in described.use.aliases.items():
        for other in others:
            spellings = [other] if isinstance(other, str) else [str(other), f"{other}.0"]
            known |= {text: known[category] for text in spellings if text not in known}
    if described.use.impute is not None:
        known |= {word: len(categories) for word in spelled(missing) if word not in known}
    why = f"column {described.name!r}: no known text"
    encoded = nodes.add("OneHotEncoder", described.name, name=why, cats_strings=[*known], zeros=0)
    flat = nodes.add("Reshape", encoded, nodes.constant([-1, len(known)], np.int64))
    joined = np.zeros((len(known), len(categories) + 1))
    joined[range(len(known)), [*known.values()]] = 1
    return nodes.add("MatMul", flat, nodes.constant(joined, np.float32))


def _results(nodes: _Nodes, scores: str, schema: Schema, outputs: Meaning) -> list[Any]:
    """Return the outputs of the graph, made of the scores of the network."""
    taken = {each.name for each in schema.fields}
    undefined = nodes.add("Or", nodes.add("IsNaN", scores), nodes.add("IsInf", scores))
    width = max(len(outputs.labels), 1)
    flat = nodes.add("Reshape", undefined, nodes.constant([-1, width], np.int64))
    scores = nodes.add("Mul", scores, nodes.refuse(flat, width, "an output of the model is NaN or infinite"))
    prediction, shares = (name + "_" * (name in taken) for name in (PREDICTION, PROBABILITIES))
    if not outputs.labels:
        flat = nodes.add("Reshape", nodes.cast(scores, "DOUBLE"), nodes.constant([-1], np.int64))
        grown = nodes.add("Mul", flat, nodes.constant(outputs.scale.deviation, np.float64))
        nodes.add("Add", grown, nodes.constant(outputs.scale.mean, np.float64), to=prediction)
        return [nodes.value(prediction, "DOUBLE", ["rows"])]
    texts = schema.target.type == "string"
    names = nodes.constant(outputs.labels, object if texts else np.int64)
    nodes.add("Gather", names, nodes.add("ArgMax", scores, axis=1, keepdims=0), to=prediction)
    nodes.add("Softmax", scores, axis=1, to=shares)
    return [
        nodes.value(prediction, "STRING" if texts else "INT64", ["rows"]),
        nodes.value(shares, "FLOAT", ["rows", len(outputs.labels)]),
    ]
