"""Views of arrays, and copies of them."""

import json
import sys

import numpy as np

from phalanx.data import Dataset

draw = np.random.default_rng(0)
images, table, labels = (
    draw.integers(0, 255, (12, 4, 4, 3)).astype(np.uint8),
    draw.normal(size=(12, 3)),
    np.arange(12) % 2,
)
view, other = {
    "colours": (images[..., ::-1], labels),
    "rows": (table[::-1], labels),
    "labels": (table, labels[::-1]),
    "columns": (table[:, ::-2], labels),
}[sys.argv[1]]
ours, theirs = Dataset.from_numpy(view, other), Dataset.from_numpy(view.copy(), other.copy())
same = ours.fingerprint() == theirs.fingerprint()
print(json.dumps({"shape": list(ours.x.shape), "same": same}))
