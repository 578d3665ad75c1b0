"""Run the examples of tests/aggregators/published_vectors.yaml with the libraries that they come from.

python benchmarks/vectors.py --peers FOLDER

FOLDER is what benchmarks/peers.py made.  Prints every example that a library does not reproduce.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from peers import PEERS, interpreter
from rules import Contestant, LibraryError

VECTORS = Path(__file__).parent.parent / "tests" / "aggregators" / "published_vectors.yaml"
TOLERANCE = {"torch": 1e-5}  # ByzFL turns tensors into float32
EXACT = 1e-8
CALLS = 30  # of a randomised rule: one of them must give the published result


def parameters(vector: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as the workloads expect them: a number of rows instead of a share."""
    given = dict(vector["parameters"])
    if vector["rule"] == "TrimmedMean":
        f = given.pop("beta") * len(vector["input"])
        given["f"] = round(f) if abs(f - round(f)) < EXACT else f
    return given


def failures(vector: Mapping[str, Any], contestant: Contestant) -> Iterator[str]:
    """Yield the results of a library that differ from the published ones, for randomised rules in every call."""
    allowed = [vector["output"], *vector.get("also", [])]
    for form, results in _results(vector, contestant, CALLS if vector.get("random") else 1).items():
        if not any(_same(result, output, TOLERANCE.get(form, EXACT)) for result in results for output in allowed):
            yield f"{vector['source']}, {vector['rule']}: {contestant.name} {form} gives {results[0]}"


def _results(vector: Mapping[str, Any], contestant: Contestant, calls: int) -> dict[str, list[Any]]:
    order = {"rule": vector["rule"], "parameters": parameters(vector), "matrix": vector["input"]}
    try:
        found = [contestant.ask("given", **order, weights=vector.get("weights")) for _ in range(calls)]
    except LibraryError as failed:
        return {str(failed): [None]}
    return {form: [results[form] for results in found] for form in found[0]} or {"without such a rule": [None]}


def _same(result: Sequence[Any] | None, output: Sequence[Any], tolerance: float) -> bool:
    if result is None or np.shape(result) != np.shape(output):
        return False
    return np.allclose(result, output, rtol=tolerance, atol=tolerance)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True)
    folder = parser.parse_args().peers.resolve()
    vectors = yaml.safe_load(VECTORS.read_text(encoding="utf-8"))["vectors"]
    wrong: list[str] = []
    for name in PEERS:
        contestant = Contestant(name, interpreter(folder, name), threads=1, limit=60.0, memory=10.0)
        try:
            wrong += [text for v in vectors if name in v["peers"] for text in failures(v, contestant)]
        finally:
            contestant.close()
    print("\n".join([*wrong, f"{len(vectors)} examples, {len(wrong)} not reproduced"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
