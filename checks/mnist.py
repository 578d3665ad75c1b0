"""MNIST from the folder that PHALANX_DATA names, in NumPy alone."""

import gzip
import os
import sys
from pathlib import Path

import numpy as np


def load(part, padding=0, standardize=False):
    """Return images (n, 1, side, side) in [0, 1], or standardised, and labels of the "train" or the "t10k" part."""
    images, labels = (_read(f"{part}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
    x = np.pad(images[:, None], ((0, 0), (0, 0), (padding, padding), (padding, padding))).astype(np.float32) / 255
    if standardize:
        mean, deviation = (x.mean(), x.std()) if part == "train" else _of_training(padding)
        x = (x - mean) / deviation
    return x, labels.astype(np.int64)


def _of_training(padding):
    x, _ = load("train", padding)
    return x.mean(), x.std()


def _read(name):
    """Return the array of an IDX file, compressed or not."""
    if "PHALANX_DATA" not in os.environ:
        sys.exit("Set PHALANX_DATA to the folder with mnist/train-images-idx3-ubyte.gz and its like.")
    folder = Path(os.environ["PHALANX_DATA"]) / "mnist"
    path = next(path for path in (folder / f"{name}.gz", folder / name) if path.is_file())
    raw = (gzip.open if path.suffix else open)(path, "rb").read()
    dims = raw[3]
    shape = np.frombuffer(raw, ">u4", dims, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)
