"""What a client of a federation reads of its table."""

import json
import sys

import pandas as pd

from phalanx.data import Schema
from phalanx.flower.contract import examples_of

schema = Schema.load("schema.json")
data = examples_of(sys.argv[1], schema).train
sex = pd.read_csv(sys.argv[1])["sex"][0]
places = [k for k, column in enumerate(schema.reading.columns) if column.name == "sex" and data.x[0, k]]
assert [schema.reading.columns[k].value for k in places] == [sex]
print(json.dumps({"classes": data.classes, "labels": sorted({*data.y.tolist()}), "first": [2.0, float(data.shape[0])]}))
