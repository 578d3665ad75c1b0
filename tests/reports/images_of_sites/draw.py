"""Images of two sites, dark cats and bright dogs; and tables that name them."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

draw, kind = np.random.default_rng(0), [*sys.argv[1:], ""][0]
for site in ("bern", "oslo"):
    rows = ["image,label"]
    for label, low in (("cat", 0), ("dog", 128)):
        place = Path("sites", site, label)
        place.mkdir(parents=True)
        for i in range(10):
            width = 9 if kind == "sizes" and (site, label, i) == ("oslo", "dog", 3) else 8
            Image.fromarray(draw.integers(low, low + 128, (8, width, 3)).astype(np.uint8)).save(place / f"{i}.png")
            rows.append(f"{site}/{label}/{i}.png,{label}")
    if kind == "outside":
        rows.append("../../secret.png,cat")
    Path("sites", f"{site}.csv").write_text("\n".join(rows) + "\n")
if kind == "truncated":
    file = Path("sites/oslo/cat/7.png")
    file.write_bytes(file.read_bytes()[:60])
