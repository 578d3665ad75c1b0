"""Images of a Hugging Face data set."""

import io
import json
import sys

import datasets
import numpy as np
from PIL import Image

from phalanx.data import Dataset

draw = np.random.default_rng(0)


def image(mode="RGB", width=8):
    bands = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}[mode]
    made = Image.fromarray(draw.integers(0, 255, (8, width, *bands)).astype(np.uint8), mode=None)
    return made if mode != "CMYK" else image("RGB").convert("CMYK")


def wide(dtype):
    return Image.fromarray(draw.integers(0, 30_000, (8, 8)).astype(dtype))


def encoded(bytes_kept):
    file = io.BytesIO()
    image().save(file, "PNG")
    return {"bytes": file.getvalue()[:bytes_kept], "path": None}


labels = [k % 2 for k in range(8)]
images = {
    "gray": lambda: [image("L") for _ in labels],
    "sixteen": lambda: [wide(np.uint16) for _ in labels],
    "palette": lambda: [image().convert("P") for _ in labels],
    "cmyk": lambda: [*(image("RGBA") for _ in labels[1:]), image("CMYK")],
    "thirtytwo": lambda: [wide(np.int32) for _ in labels],
    "sizes": lambda: [*(image() for _ in labels[1:]), image(width=9)],
    "mixed": lambda: [*(image() for _ in labels[1:]), image("L")],
    "truncated": lambda: [encoded(80 if k == 3 else None) for k in range(8)],
    "unlabelled": lambda: [image("L") for _ in labels],
}[sys.argv[1]]()
if sys.argv[1] == "unlabelled":
    labels[2] = None
features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
data = Dataset.from_huggingface(datasets.Dataset.from_dict({"image": images, "label": labels}, features=features))
print(json.dumps({"shape": list(data.shape), "largest": float(data.x.max())}))
