"""Examples with labels or targets, held in memory as tensors."""

import hashlib
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import override

from phalanx.data.findings import Finding, merged
from phalanx.data.tables import Classes, TableReading, read_frame
from phalanx.wording import plural

Inputs = Tensor | Mapping[str, Tensor]  # of a batch, or of all examples; several by name
BATCH = 1000  # items of a column of Hugging Face that are read at once
COLOURS = frozenset({"RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"})  # of images, which are never mixed
NO_LABEL = -100  # marks a position without a label in a sequence; torch's cross_entropy ignores it by default


def labels_in(y: Tensor) -> Tensor:
    """Return all labels, (m,): y itself if it is (n,), else the entries that are not `NO_LABEL`, row by row."""
    return y if y.ndim == 1 else y[y != NO_LABEL]


def each_input(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """Return the inputs with a function applied to each tensor."""
    return function(x) if isinstance(x, Tensor) else {name: function(part) for name, part in x.items()}


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Examples with labels or targets.  Do not change its tensors in place: clients share their storage.

    An example has one label; or several, such as the next character at each position of a text, or the class of each
    pixel of an image; or, for regression and for several labels at once, one or more targets.

    Args:
        x: (n, *shape), the inputs; finite if floating point. Or several such tensors by name: a model gets them as
            keyword arguments, such as `input_ids` and `attention_mask`.
        y: (n,) or (n, ...), int64, the labels, in 0 .. classes - 1; on the device of x. Of several labels, -100
            (`NO_LABEL`) marks positions without one; each example has at least one label. Or (n,) or (n, k), floating
            point and finite: targets.
        classes: number of classes, at least 1; some may have no example here. 0 for targets.
        owners: (n,), int64 from 0, the natural owner of each example (writer, speaker, ...) if it is known; used by
            the partition `Natural`.
        reading: how a table became x and y; None if they are of no table. Not part of the fingerprint.
        findings: what was suspicious when the examples were read; a run says it before it begins.

    Raises:
        ValueError: if an argument is not as described.
    """

    x: Inputs
    y: Tensor
    classes: int = 0
    owners: Tensor | None = None
    reading: TableReading | None = None
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        self._check_kind()
        if not self.inputs:
            raise ValueError("x has no inputs. Give a tensor, or at least one tensor by name.")
        for name, x in self.inputs.items():
            self._check_input(x, f"x[{name!r}]" if name else "x")
        if self.classes:
            self._check_labels()
        elif bad := int((~torch.isfinite(self.y)).sum()):
            raise ValueError(f"Targets must be finite; {bad} are NaN or infinite. Drop or repair them.")
        self._check_owners()

    def _check_kind(self) -> None:
        """Raise `ValueError` unless y are labels of classes, or targets."""
        got = f"y is {str(self.y.dtype).removeprefix('torch.')} of shape {tuple(self.y.shape)}"
        if self.y.is_floating_point():
            if self.classes:
                raise ValueError(
                    f"{got}, which are targets, and there are {self.classes} classes. Convert labels of classes by "
                    "y.long(); leave classes out for targets (regression, several labels at once)."
                )
            if self.y.ndim not in (1, 2):
                raise ValueError(f"{got}: targets must be of shape (n,), or (n, k) for k of each example.")
        elif self.y.dtype != torch.int64 or self.y.ndim < 1:
            raise ValueError(
                f"{got}: labels must be int64, of shape (n,) for one of each example. Convert them: torch.as_tensor(y)"
                ".long(). Targets must be floating point."
            )
        elif self.classes < 1:
            raise ValueError(
                f"classes must be at least 1 for labels that are integers, got {self.classes}. Give their number, or "
                "convert y to float if its entries are targets."
            )

    def _check_input(self, x: Tensor, name: str) -> None:
        """Raise `ValueError` unless there is a finite input for each example."""
        if x.ndim < 1 or len(x) != len(self.y):
            raise ValueError(
                f"{name} must have a row for each of the {len(self.y)} labels, got shape {tuple(x.shape)}."
            )
        if x.device != self.y.device:
            raise ValueError(f"{name} and y must be on one device, got {x.device} and {self.y.device}.")
        # A finite sum proves finite entries without a mask of the size of x; only otherwise check each entry.
        if x.is_floating_point() and not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
            rows = int((~torch.isfinite(x).flatten(1).all(1) if x.ndim > 1 else ~torch.isfinite(x)).sum())
            raise ValueError(
                f"{name} must be finite; {rows} of {len(self)} examples hold NaN or infinite values. "
                "Drop or repair them."
            )

    def _check_labels(self) -> None:
        """Raise `ValueError` for a label that is no class, or an example without a label."""
        labels, several = self.labels, self.y.ndim > 1
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            low, high = int(labels.min()), int(labels.max())
            also = f", or {NO_LABEL} where a position has none" if several else ""
            raise ValueError(
                f"Labels must be in 0..{self.classes - 1}{also}, got {low}..{high}. Number the classes from 0."
            )
        if several and (bare := int((self.y == NO_LABEL).flatten(1).all(1).sum())):
            raise ValueError(
                f"Every example must have a label at one position at least; {bare} of {len(self)} have none. Drop them."
            )

    def _check_owners(self) -> None:
        """Raise `ValueError` unless there is one owner for each example, numbered from 0."""
        if (owners := self.owners) is None:
            return
        if owners.shape != self.y.shape[:1] or owners.dtype != torch.int64 or owners.device != self.y.device:
            raise ValueError(
                f"owners must be int64 of shape ({len(self)},) on {self.y.device}, one for each example, "
                f"got {owners.dtype} of shape {tuple(owners.shape)} on {owners.device}."
            )
        if len(owners) and int(owners.min()) < 0:
            raise ValueError(f"owners must be numbered from 0, got {int(owners.min())}.")

    def __len__(self) -> int:
        return self.y.shape[0]

    @override
    def __repr__(self) -> str:
        kind = f"{self.classes} classes" if self.classes else f"{self.y[:1].numel()} targets each"
        if self.classes and self.y.ndim > 1:
            kind += f", up to {self.y[:1].numel()} labels each"
        inputs = (f"{name + ' ' if name else ''}of shape {tuple(x.shape[1:])}, {x.dtype}"
                  for name, x in self.inputs.items())  # fmt: skip
        return f"Dataset({len(self)} examples {', '.join(inputs)}, {kind})"

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """The tensors of inputs by name; a single one has the name ""."""
        return {"": self.x} if isinstance(self.x, Tensor) else self.x

    @property
    def tensor(self) -> Tensor:
        """The inputs, if they are one tensor.

        Raises:
            ValueError: if there are several by name.
        """
        if not isinstance(self.x, Tensor):
            raise ValueError(
                f"This needs examples with one tensor of inputs, and these have several: {', '.join(self.x)}."
            )
        return self.x

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example; of its first input, if there are several."""
        return tuple(next(iter(self.inputs.values())).shape[1:])

    @property
    def labels(self) -> Tensor:
        """All labels, (m,), int64; see `labels_in`.

        Raises:
            ValueError: if the examples have targets.
        """
        if not self.classes:
            raise ValueError("This needs examples with labels of classes, and these have targets.")
        return labels_in(self.y)

    def of(self, indices: Tensor | npt.ArrayLike) -> "Dataset":
        """Return the examples with these indices (integers, or a Boolean mask of length n), in this order."""
        if not isinstance(indices, Tensor):
            indices = torch.from_numpy(np.array(indices))
        if indices.dtype == torch.bool:
            indices = torch.nonzero(indices).flatten()
        owners = None if self.owners is None else _rows(indices, self.owners)
        part = object.__new__(Dataset)  # without checks: examples of a valid data set are valid
        x, y = self.rows(indices)
        fields = {"x": x, "y": y, "classes": self.classes, "owners": owners, "reading": self.reading}
        for name, value in fields.items():
            object.__setattr__(part, name, value)
        object.__setattr__(part, "findings", self.findings)
        return part

    def rows(self, indices: Tensor) -> tuple[Inputs, Tensor]:
        """Return the inputs and labels of the examples with these indices, int64."""
        return each_input(partial(_rows, indices), self.x), _rows(indices, self.y)

    def label_counts(self) -> Tensor:
        """Return the number of labels of each class, int64 of shape (classes,)."""
        return torch.bincount(self.labels, minlength=self.classes) if self.classes else self.y.new_zeros(0).long()

    def fingerprint(self) -> str:
        """Return the SHA-256 of the contents, in hexadecimal; the same on every device."""
        digest = hashlib.sha256(repr(self.classes).encode())
        if not isinstance(self.x, Tensor):
            digest.update(repr(sorted(self.x)).encode())
        parts = [x for _, x in sorted(self.inputs.items())]
        for tensor in (*parts, self.y) if self.owners is None else (*parts, self.y, self.owners):
            digest.update(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
            # Torch takes any strides of one element for contiguous, and then refuses to view it as bytes.
            held = tensor.detach().cpu().contiguous()
            held = held.clone(memory_format=torch.contiguous_format) if held.numel() == 1 else held
            digest.update(held.flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the same examples on `device`, without a copy if they are already there."""
        owners = None if self.owners is None else self.owners.to(device)
        return replace(self, x=each_input(lambda x: x.to(device), self.x), y=self.y.to(device), owners=owners)

    def for_model(self, dtype: torch.dtype) -> "Dataset":
        """Return the examples for a model of this dtype: inputs in float64, NumPy's default, become float32, said once.

        A model in float64 takes them as they are.
        """
        wide = [x for x in self.inputs.values() if x.dtype == torch.float64]
        if dtype == torch.float64 or not wide:
            return self
        warnings.warn("Inputs in float64 are converted to float32, the type of the model.", stacklevel=2)
        found = tuple(one for name, x in self.inputs.items() for one in merged(x.detach().cpu().numpy(), name))
        x = each_input(lambda x: x.float() if x.dtype == torch.float64 else x, self.x)
        return replace(self, x=x, findings=(*self.findings, *found))

    @classmethod
    def from_torch(
        cls, dataset: torch.utils.data.Dataset[Any] | Sequence[Any], classes: int | None = None
    ) -> "Dataset":
        """Read every example of a map-style torch data set of (input, label).

        Tensors keep type and layout, except that uint8 is assumed to be pixels and becomes float32 in [0, 1].  NumPy
        arrays and numbers become float32 or int64.  PIL images become float32 in [0, 1] of shape (channels, height,
        width).

        Args:
            dataset: has a length and returns (input, label) for each index, such as a list of pairs.
            classes: number of classes; by default, the length of the data set's attribute `classes`, or else the
                largest label + 1.

        Raises:
            ValueError: if the data set is empty, an item is not such a pair, or inputs differ in shape or type.
            TypeError: if the data set has no length.
        """
        try:
            n = len(dataset)  # type: ignore[arg-type]
        except TypeError as error:
            kind = type(dataset).__name__
            message = f"from_torch needs a map-style data set with a length, got {kind}. Collect it into a list first."
            raise TypeError(message) from error
        labels: list[int] = []

        def inputs() -> Iterator[object]:
            for i in range(n):
                item = dataset[i]
                if not isinstance(item, tuple | list) or len(item) != 2:
                    raise ValueError(f"Example {i} must be a pair (input, label), got {type(item).__name__}.")
                labels.append(_label(item[1], i))
                yield item[0]

        x = _stacked(inputs(), n)
        listed = getattr(dataset, "classes", None)
        if classes is None and isinstance(listed, tuple | list):
            classes = len(listed)
        return cls(x, torch.tensor(labels), max(*labels, 0) + 1 if classes is None else classes)

    @classmethod
    def from_numpy(
        cls, x: npt.ArrayLike, y: npt.ArrayLike, classes: int | None = None, owners: npt.ArrayLike | None = None
    ) -> "Dataset":
        """Copy arrays, or nested lists.

        Args:
            x: (n, *shape), the inputs. uint8 is assumed to be pixels and becomes float32 in [0, 1], other integers
                become int64, as models of texts take them, and floating-point numbers float32.
            y: (n,) or (n, ...), the labels, integers from 0; or (n,) or (n, k), targets, floating-point numbers, which
                become float32.
            classes: number of classes; by default the largest label + 1. Targets have none.
            owners: (n,), the natural owner of each example, an integer from 0, if it is known.

        Raises:
            ValueError: if an array does not hold such numbers.
        """
        _check_unmasked(x, y, owners)
        inputs, labels = _tensor(x, 0), np.asarray(y)
        found = tuple(merged(np.asarray(x))) if inputs.dtype == torch.float32 else ()
        holders = None if owners is None else torch.tensor(np.array(owners))
        if labels.dtype.kind == "f":
            return cls(inputs, torch.tensor(labels.astype(np.float32)), classes or 0, holders, findings=found)
        if labels.dtype.kind not in "iub":
            remedy = "Number the classes first: numpy.unique(y, return_inverse=True)[1]."
            raise ValueError(f"Labels must be numbers, got {labels.dtype} of shape {labels.shape}. {remedy}")
        known = int(labels.max(initial=0)) + 1 if classes is None else classes
        return cls(inputs, torch.tensor(labels.astype(np.int64)), known, holders, findings=found)

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        label: str,
        *,
        owner: str | None = None,
        drop: Sequence[str] = (),
        class_names: Classes | None = None,
        targets: bool = False,
    ) -> "Dataset":
        """Read a pandas `DataFrame`, a row for each example.

        Columns of numbers become one input each. Columns of text, or of a pandas category, become one input of 0 and 1
        for each of their values (one-hot), at most 100.  So read train and test part as one frame, and divide them with
        `of`: two frames may have different values.

        Args:
            frame: the table, without missing values.
            label: the column of the labels, integers or text; or of the targets, for a task such as `Regression`.
            owner: the column of the natural owner of each example, if there is one.
            drop: columns that are no inputs.
            class_names: the labels in the order of their numbers; or, by class, the labels that it joins; by default
                the different labels, sorted.
            targets: whether integers are targets; floating-point numbers always are.

        Raises:
            TypeError: if `frame` is no `DataFrame`.
            ValueError: if a column is missing, has missing values, or cannot become numbers.
        """
        read = read_frame(frame, label, owner=owner, drop=drop, class_names=class_names, targets=targets)
        findings = (*read.findings, *merged(read.x.numpy()))
        return cls(read.x.float(), read.y, len(read.reading.labels), read.owners, findings=findings)

    @classmethod
    def from_huggingface(
        cls, dataset: Any, inputs: str = "image", label: str = "label", classes: int | None = None
    ) -> "Dataset":
        """Read two columns of a Hugging Face data set.

        Images become float32 in [0, 1] of shape (channels, height, width).  Numbers, and lists or arrays of numbers
        that all have one shape, become float32 or int64; uint8 is assumed to be pixels and becomes float32 in [0, 1].

        Args:
            dataset: a `datasets.Dataset`: one split, not a dictionary of splits.
            inputs: the column of the inputs.
            label: the column of the labels, integers.
            classes: number of classes; by default, that of the column's ClassLabel feature, or else the largest label +
                1.

        Raises:
            ValueError: if there is no such column, it is not of numbers or images, inputs differ in shape, or there are
                none.
        """
        if isinstance(dataset, Mapping):
            raise ValueError(
                f"from_huggingface reads one split, got the splits {list(dataset)}. "
                f"Choose one: dataset[{next(iter(dataset))!r}]."
            )
        if missing := [column for column in (inputs, label) if column not in dataset.column_names]:
            raise ValueError(
                f"There is no column {' or '.join(map(repr, missing))}; the columns are {list(dataset.column_names)}."
            )
        y = np.asarray(dataset.with_format("numpy")[label][:])
        if y.dtype.kind == "f" and (gaps := np.isnan(y)).any():
            raise ValueError(
                f"Labels are missing in column {label!r}, in {int(gaps.sum())} of {plural(len(y), 'example')} (the "
                f"first: example {int(gaps.reshape(len(y), -1).any(1).argmax())}). Leave them out."
            )
        if len(y) and (y.ndim != 1 or y.dtype.kind not in "iub"):
            remedy = f"Number the classes first: dataset.class_encode_column({label!r})."
            raise ValueError(
                f"Labels must be integers, column {label!r} holds {y.dtype} of shape {y.shape[1:]}. {remedy}"
            )
        x = _stacked(_column(dataset, inputs), len(dataset))
        if classes is None:
            classes = getattr(dataset.features[label], "num_classes", None)
        return cls(x, torch.from_numpy(y.astype(np.int64)), max(int(y.max()), 0) + 1 if classes is None else classes)


def _check_unmasked(*arrays: object) -> None:
    """Raise `ValueError` if values of an array of NumPy are masked: they are missing."""
    for array in arrays:
        if isinstance(array, np.ma.MaskedArray) and (missing := int(np.ma.getmaskarray(array).sum())):
            raise ValueError(
                f"{plural(missing, 'value')} of an array are masked, so they are missing. Fill them, by "
                "array.filled(VALUE), or leave out their rows."
            )


def _rows(indices: Tensor, x: Tensor) -> Tensor:
    """Return the rows with these indices; `index_select` is faster, but does not keep another layout."""
    return x.index_select(0, indices) if x.is_contiguous() else x[indices]


def _column(dataset: Any, name: str) -> Iterator[object]:
    """Yield the items of a Hugging Face column: PIL images, or NumPy values of the column's own type."""
    feature = dataset.features[name]
    leaf = feature
    while not hasattr(leaf, "dtype") and hasattr(leaf, "feature"):
        leaf = leaf.feature
    if type(feature).__name__ == "Image":
        view = dataset.with_format(None)
    elif getattr(leaf, "dtype", None) == "uint8":  # NumPy's view would widen it, and pixels would look like counts
        view = dataset.with_format("numpy", dtype=np.uint8)
    else:
        view = dataset.with_format("numpy")
    only = view.select_columns([name])
    for first in range(0, len(only), BATCH):
        try:
            items = only[first : first + BATCH][name]
        except OSError:  # an image of the batch, which is looked for
            items = (_item(only, name, i) for i in range(first, min(first + BATCH, len(only))))
        yield from items


def _item(dataset: Any, name: str, i: int) -> object:
    """Return an item of a column; raise `ValueError` if it is an image that cannot be decoded."""
    try:
        return dataset[i][name]
    except OSError as error:
        raise ValueError(
            f"Example {i} cannot be decoded: {str(error).rstrip('.')}. Leave it out, or repair it."
        ) from error


def _label(label: object, i: int) -> int:
    try:
        return operator.index(label)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ValueError(f"Labels must be integers, example {i} has {label!r}. Number the classes from 0.") from error


def _stacked(inputs: Iterable[object], n: int) -> Tensor:
    """Return one tensor (n, *shape) of n inputs, written one by one, so that memory is needed only once."""
    x: Tensor | None = None
    known = ""  # colours of images
    for i, item in enumerate(inputs):
        value = _tensor(item, i)
        if x is None:
            x = torch.empty((n, *value.shape), dtype=value.dtype)
        if value.shape != x.shape[1:] or value.dtype != x.dtype:
            raise ValueError(
                f"All inputs must have one shape and type. The first has {tuple(x.shape[1:])} and {x.dtype}, "
                f"example {i} has {tuple(value.shape)} and {value.dtype}. Resize, pad or convert them first."
            )
        if (colours := getattr(item, "mode", "")) in COLOURS and colours != (known := known or colours):
            raise ValueError(f"All images must have the same colours, example {i} is {colours}, earlier ones {known}.")
        x[i] = value
    if x is None:
        raise ValueError("The data set is empty, so the shape of its examples is unknown. Give at least one example.")
    return x


def _tensor(item: object, i: int) -> Tensor:
    if isinstance(item, Tensor):
        value = item.detach().cpu()
        return value.to(torch.float32).div_(255) if value.dtype == torch.uint8 else value
    _check_unmasked(item)
    image = hasattr(item, "getbands")  # a PIL image, recognised without importing PIL
    try:
        array = _pixels(item) if image else np.asarray(item)
        if getattr(item, "mode", "") in ("I", "F") and not (array.min() >= 0 and array.max() <= 1):
            raise ValueError("its pixels have 32 bits, and are not in [0, 1]. Give them as an array of numbers")
    except ValueError as error:  # a ragged list
        raise ValueError(f"Example {i} is not one array of numbers: {error}.") from error
    array = array.copy() if min(array.strides, default=0) < 0 else array  # which torch refuses
    if array.dtype == np.uint8:
        return torch.tensor(array, dtype=torch.float32).div_(255)
    if array.dtype == np.uint16 and image:
        return torch.tensor(array.astype(np.float32)).div_(65535)
    if array.dtype.kind in "iu":
        return torch.tensor(array.astype(np.float32 if image else np.int64))
    if array.dtype.kind in "fb":
        return torch.tensor(array.astype(np.float32))
    raise ValueError(
        f"Inputs must be numbers or images, example {i} is {array.dtype} ({type(item).__name__}). "
        "Encode it as numbers first."
    )


def _pixels(image: Any) -> npt.NDArray[Any]:
    """Return a PIL image as (channels, height, width); palettes are resolved, bits become bytes."""
    plain = {"1": "L", "P": "RGB", "PA": "RGBA"}.get(image.mode)
    array = np.asarray(image.convert(plain) if plain else image)
    return array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
