import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from phalanx.data import NO_LABEL, Dataset


def small(n=6, classes=3):
    return Dataset(torch.arange(2.0 * n).reshape(n, 2), torch.arange(n) % classes, classes)


# --- construction


def test_label_counts_and_subsets_by_hand():
    data = Dataset(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([2, 0, 2, 2]), 4)
    assert data.label_counts().tolist() == [1, 0, 3, 0]
    part = data.of(torch.tensor([3, 1]))
    assert (part.x.tolist(), part.y.tolist(), part.classes, len(part)) == ([[3.0], [1.0]], [2, 0], 4, 2)
    assert data.of(data.y == 2).x.flatten().tolist() == [0.0, 2.0, 3.0]


def test_no_examples_are_a_data_set():
    data = Dataset(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), 3)
    assert len(data) == 0
    assert data.label_counts().tolist() == [0, 0, 0]
    assert len(data.of(torch.zeros(0, dtype=torch.int64)).fingerprint()) == 64


@pytest.mark.parametrize(
    ("x", "y", "classes", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64), 2, "a row for each of the 2 labels"),
        (torch.zeros(()), torch.zeros(1, dtype=torch.int64), 2, "a row for each of the 1 labels"),
        (
            torch.zeros(2),
            torch.zeros(2),
            2,
            r"y is float32 of shape \(2,\), which are targets, and there are 2 classes",
        ),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32), 2, r"y is int32 of shape \(2,\): labels must be int64"),
        (torch.zeros(2), torch.zeros(2, 1, 1), 0, r"targets must be of shape \(n,\), or \(n, k\)"),
        (torch.zeros(2), torch.tensor([0.0, torch.nan]), 0, "Targets must be finite; 1 are NaN"),
        ({}, torch.zeros(2), 0, "x has no inputs"),
        ({"a": torch.zeros(2), "b": torch.zeros(3)}, torch.zeros(2), 0, r"x\['b'\] must have a row for each"),
        (torch.zeros(1), torch.tensor([[[NO_LABEL, 2]]]), 2, r"or -100 where a position has none, got 2\.\.2"),
        (torch.zeros(2), torch.tensor([0, 2]), 2, r"in 0\.\.1, got 0\.\.2"),
        (torch.zeros(2), torch.tensor([-1, 1]), 2, r"in 0\.\.1, got -1\.\.1"),
        (torch.zeros(2), torch.tensor([NO_LABEL, 1]), 2, r"in 0\.\.1, got -100\.\.1"),
        (torch.zeros(1), torch.tensor([[-1, 1]]), 2, r"in 0\.\.1, or -100 where a position has none, got -1\.\.1"),
        (torch.zeros(1), torch.tensor([[NO_LABEL, 2]]), 2, r"or -100 where a position has none, got 2\.\.2"),
        (torch.zeros(3), torch.tensor([[0], [NO_LABEL], [1]]), 2, "at least; 1 of 3 have none. Drop them"),
        (torch.zeros(3), torch.zeros(3, 0, dtype=torch.int64), 2, "at least; 3 of 3 have none"),
        (
            torch.zeros(0),
            torch.zeros(0, dtype=torch.int64),
            0,
            "classes must be at least 1 for labels that are integers",
        ),
        (torch.tensor([[0.0, 1.0], [torch.nan, 1.0]]), torch.tensor([0, 1]), 2, "1 of 2 examples hold NaN"),
        (torch.tensor([0.0, torch.inf]), torch.tensor([0, 1]), 2, "1 of 2 examples hold NaN"),
    ],
)
def test_refuses_what_is_no_data_set(x, y, classes, message):
    with pytest.raises(ValueError, match=message):
        Dataset(x, y, classes)


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (
            torch.zeros(1, dtype=torch.int64),
            r"owners must be int64 of shape \(2,\) on cpu, .* got torch.int64 of shape",
        ),
        (torch.zeros(2), r"owners must be int64 .* got torch.float32"),
        (torch.tensor([0, -1]), "owners must be numbered from 0, got -1"),
    ],
)
def test_refuses_owners_that_are_not_one_for_each_example(owners, message):
    with pytest.raises(ValueError, match=message):
        Dataset(torch.zeros(2), torch.tensor([0, 1]), 2, owners)


def test_several_inputs_and_targets_by_hand():
    x = {"words": torch.tensor([[1, 2], [3, 4], [5, 6]]), "mask": torch.tensor([1.0, 0.0, 1.0])}
    data = Dataset(x, torch.tensor([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    part = data.of(torch.tensor([2, 0]))
    assert (part.x["words"].tolist(), part.x["mask"].tolist()) == ([[5, 6], [1, 2]], [1.0, 1.0])
    assert part.y.tolist() == [[4.0, 5.0], [0.5, 1.0]]
    assert data.of(torch.tensor([False, True, False])).x["words"].tolist() == [[3, 4]]
    assert (data.shape, data.label_counts().tolist(), len(data)) == ((2,), [], 3)
    assert data.to("cpu").fingerprint() == data.fingerprint() != Dataset(x["words"], data.y).fingerprint()
    renamed = Dataset({"words": x["words"], "weight": x["mask"]}, data.y)
    assert renamed.fingerprint() != data.fingerprint()
    assert "words of shape (2,), torch.int64, mask of shape (), torch.float32, 2 targets each" in repr(data)
    with pytest.raises(ValueError, match="these have several: words, mask"):
        _ = data.tensor
    with pytest.raises(ValueError, match="these have targets"):
        _ = data.labels


def test_numpys_float64_becomes_float32_for_a_model_in_float32():
    data = Dataset(torch.ones(2, 3, dtype=torch.float64), torch.tensor([0, 1]), 2)
    assert data.for_model(torch.float64) is data
    with pytest.warns(UserWarning, match="float64 are converted to float32"):
        assert data.for_model(torch.float32).x.dtype == torch.float32


def test_rows_of_another_layout_keep_it():
    x = torch.arange(12.0).reshape(3, 4).T
    data = Dataset(x, torch.zeros(4))
    indices = torch.tensor([3, 1])
    assert data.of(indices).x.stride() == x[indices].stride()
    assert data.of(indices).x.tolist() == x[indices].tolist()


def test_sequences_of_labels_by_hand():
    y = torch.tensor([[2, 0, NO_LABEL], [NO_LABEL, 2, 2], [1, NO_LABEL, NO_LABEL]])
    data = Dataset(torch.zeros(3, 3, dtype=torch.int64), y, 4)
    assert len(data) == 3
    assert data.labels.tolist() == [2, 0, 2, 2, 1]
    assert data.label_counts().tolist() == [1, 1, 3, 0]
    part = data.of(torch.tensor([2, 0]))
    assert part.y.tolist() == [[1, NO_LABEL, NO_LABEL], [2, 0, NO_LABEL]]
    assert data.of(torch.tensor([True, False, False])).label_counts().tolist() == [1, 0, 1, 0]
    assert repr(data) == "Dataset(3 examples of shape (3,), torch.int64, 4 classes, up to 3 labels each)"
    assert len(data.of(torch.zeros(0, dtype=torch.int64)).labels) == 0


def test_one_label_each_are_all_the_labels():
    data = small()
    assert data.labels is data.y


def test_owners_go_with_their_examples():
    data = Dataset(torch.zeros(4), torch.tensor([0, 1, 0, 1]), 2, torch.tensor([7, 7, 0, 3]))
    assert data.of(torch.tensor([3, 0])).owners.tolist() == [3, 7]
    assert data.to("cpu").owners.tolist() == [7, 7, 0, 3]
    assert small().of(torch.tensor([0])).owners is None


def test_finite_values_whose_sum_overflows_are_accepted():
    assert len(Dataset(torch.full((4, 1), 3e38), torch.zeros(4, dtype=torch.int64), 1)) == 4


def test_repr_is_short():
    assert repr(small()) == "Dataset(6 examples of shape (2,), torch.float32, 3 classes)"


# --- fingerprint


def test_fingerprint_tells_apart_all_that_differs():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6) % 3
    different = [
        Dataset(x, y, 3),
        Dataset(x, y, 4),
        Dataset(x, y.flip(0), 3),
        Dataset(x + 1, y, 3),
        Dataset(x.double(), y, 3),
        Dataset(x.reshape(6, 2, 1), y, 3),
        Dataset(x[:5], y[:5], 3),
        Dataset(x.to(torch.bfloat16), y, 3),
        Dataset(x, y[:, None], 3),
        Dataset(x, torch.stack([y, y], 1), 3),
        Dataset(x, torch.stack([y, torch.full_like(y, NO_LABEL)], 1), 3),
        Dataset(x, y, 3, torch.zeros_like(y)),
        Dataset(x, y, 3, torch.arange(6)),
    ]
    assert len({data.fingerprint() for data in different}) == len(different)


def test_fingerprint_is_that_of_earlier_versions():
    data = Dataset(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 2, 1]), 4)
    assert data.fingerprint() == "6f20c1fb34e2f4702f911123064e59900dd1a0ea4d19567e394aeea02a3d4bbe"


@given(st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_fingerprint_depends_on_values_and_not_on_memory(n, seed):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    y = torch.arange(n) % 2
    view = torch.stack([x, x + 1], dim=2)[..., 0]  # the same values, strided
    expected = Dataset(x, y, 2).fingerprint()
    assert Dataset(view, y.clone(), 2).fingerprint() == expected
    assert Dataset(x, y, 2).of(torch.arange(n)).fingerprint() == expected
    assert Dataset(x, y, 2).to("cpu").fingerprint() == expected


def test_to_an_other_device():
    meta = Dataset(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 1).to("cpu")
    assert meta.x.device == torch.device("cpu")


# --- from torch


def test_from_torch_keeps_tensors():
    x, y = torch.randn(5, 2, 3, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 0])
    data = Dataset.from_torch(TensorDataset(x, y))
    assert torch.equal(data.x, x)
    assert torch.equal(data.y, y)
    assert data.classes == 4
    assert Dataset.from_torch(TensorDataset(x, y), classes=7).classes == 7


def test_from_torch_takes_uint8_for_pixels():
    pixels = torch.tensor([[[0, 51], [255, 102]]], dtype=torch.uint8)
    expected = torch.tensor([[[0.0, 0.2], [1.0, 0.4]]])
    for item in (pixels, pixels.numpy()):
        data = Dataset.from_torch([(item, 0)])
        assert data.x.dtype == torch.float32
        torch.testing.assert_close(data.x[0], expected)


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("RGB", (255, 51, 0), [1.0, 0.2, 0.0]),
        ("L", 51, [0.2]),
        ("1", 1, [1.0]),
        ("P", 0, [0.0, 0.0, 0.0]),
        ("I;16", 65535, [1.0]),
        ("F", 0.25, [0.25]),
        ("RGBA", (0, 0, 255, 51), [0.0, 0.0, 1.0, 0.2]),
    ],
)
def test_pil_images_become_channels_first(mode, color, expected):
    data = Dataset.from_torch([(Image.new(mode, (4, 2), color), np.int64(1))])  # PIL's sizes are width, height
    assert data.x.shape == (1, len(expected), 2, 4)
    torch.testing.assert_close(data.x[0, :, 0, 0], torch.tensor(expected))


@pytest.mark.parametrize(
    ("item", "dtype"),
    [
        ([1.5, 2.5], torch.float32),
        (np.array([1.5, 2.5]), torch.float32),
        (np.array([1, 2], dtype=np.int16), torch.int64),
        ([1, 2], torch.int64),
        ((True, False), torch.float32),
    ],
)
def test_types_of_plain_numbers(item, dtype):
    data = Dataset.from_torch([(item, 0), (item, torch.tensor(2))])
    assert data.x.shape == (2, 2)
    assert data.x.dtype == dtype
    assert data.y.tolist() == [0, 2]


def test_classes_come_from_the_data_set_where_it_lists_them():
    class Listed(list):
        classes = ("cat", "dog", "emu")

    assert Dataset.from_torch(Listed([(torch.zeros(1), 0)])).classes == 3


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "empty"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], r"The first has \(2,\) .*, example 1 has \(3,\)"),
        ([(torch.zeros(2), 0), (torch.zeros(2, dtype=torch.int64), 0)], "one shape and type"),
        ([(torch.zeros(2), 0.5)], "Labels must be integers, example 0 has 0.5"),
        ([(torch.zeros(2), "cat")], "Labels must be integers, example 0 has 'cat'"),
        ([(torch.zeros(2), -1)], "Labels must be in"),
        ([torch.zeros(2)], "Example 0 must be a pair"),
        ([("text", 0)], "numbers or images"),
        ([([[1, 2], [3]], 0)], "Example 0 is not one array"),
    ],
)
def test_from_torch_says_what_is_wrong(items, message):
    with pytest.raises(ValueError, match=message):
        Dataset.from_torch(items)


def test_from_torch_refuses_streams():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(TypeError, match="map-style data set with a length, got Stream"):
        Dataset.from_torch(Stream())


# --- from Hugging Face


def test_from_huggingface_images():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    images = [Image.new("RGB", (3, 2), color) for color in ((255, 0, 51), (0, 255, 0))]
    data = Dataset.from_huggingface(datasets.Dataset.from_dict({"image": images, "label": [1, 0]}, features=features))
    assert data.x.shape == (2, 3, 2, 3)
    torch.testing.assert_close(data.x[0, :, 1, 2], torch.tensor([1.0, 0.0, 0.2]))
    assert data.y.tolist() == [1, 0]
    assert data.classes == 3  # the third class has no example


def test_from_huggingface_numbers():
    rows = datasets.Dataset.from_dict(
        {"lists": [[1.5, 2.0], [3.0, 4.0]], "ids": [[[1, 2]], [[3, 4]]], "one": [0.5, 1.0], "y": [0, 4]}
    )
    data = Dataset.from_huggingface(rows, "lists", "y")
    assert data.x.tolist() == [[1.5, 2.0], [3.0, 4.0]]
    assert data.x.dtype == torch.float32
    assert data.classes == 5
    ids = Dataset.from_huggingface(rows, "ids", "y", classes=9)
    assert (ids.x.tolist(), ids.x.dtype, ids.classes) == ([[[1, 2]], [[3, 4]]], torch.int64, 9)
    assert Dataset.from_huggingface(rows, "one", "y").x.tolist() == [0.5, 1.0]
    assert Dataset.from_huggingface(rows.with_format("torch"), "lists", "y").x.tolist() == data.x.tolist()


def test_from_huggingface_takes_uint8_arrays_for_pixels():
    features = datasets.Features({"x": datasets.Array2D((1, 2), "uint8"), "y": datasets.Value("int8")})
    data = Dataset.from_huggingface(
        datasets.Dataset.from_dict({"x": [[[0, 51]]], "y": [0]}, features=features), "x", "y"
    )
    assert data.x.dtype == torch.float32
    torch.testing.assert_close(data.x, torch.tensor([[[0.0, 0.2]]]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [[1.0]], "target": [0]}, r"no column 'label'; the columns are \['image', 'target'\]"),
        ({"pixels": [[1.0]], "target": [0]}, r"no column 'image' or 'label'; the columns are"),
        ({"image": [[1.0]], "label": ["cat"]}, "class_encode_column"),
        ({"image": [[1.0]], "label": [0.5]}, "Labels must be integers"),
        ({"image": [[1.0], [1.0, 2.0]], "label": [0, 1]}, "one shape"),
        ({"image": ["words"], "label": [0]}, "numbers or images"),
        ({"image": [], "label": []}, "empty"),
        ({"image": [[1.0]], "label": [-1]}, "Labels must be in"),
    ],
)
def test_from_huggingface_says_what_is_wrong(columns, message):
    with pytest.raises(ValueError, match=message):
        Dataset.from_huggingface(datasets.Dataset.from_dict(columns))


def test_from_huggingface_wants_one_split():
    one = datasets.Dataset.from_dict({"image": [[1.0]], "label": [0]})
    with pytest.raises(ValueError, match=r"got the splits \['train', 'dev'\]"):
        Dataset.from_huggingface(datasets.DatasetDict({"train": one, "dev": one}))


# --- imports


@pytest.mark.slow
def test_importing_the_package_imports_nothing_slow():
    slow = {"sklearn", "pooch", "datasets", "matplotlib", "PIL", "requests"}
    code = f"import phalanx.data, sys; print(sorted({slow} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
