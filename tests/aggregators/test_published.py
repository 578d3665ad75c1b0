"""What other libraries publish as the results of their rules, against ours; every difference has a name."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml

from phalanx import aggregators
from phalanx.aggregators import PreAggregator
from phalanx.core import InfeasibleError

VECTORS = yaml.safe_load((Path(__file__).parent / "published_vectors.yaml").read_text())["vectors"]


def ours(vector):
    rule = getattr(aggregators, vector["rule"])(**vector["parameters"])
    rows = torch.tensor(vector["input"], dtype=torch.float64)
    weights = None if vector.get("weights") is None else torch.tensor(vector["weights"], dtype=torch.float64)
    return rule.rows(rows, weights) if isinstance(rule, PreAggregator) else rule(rows, weights)


def name(vector):
    return f"{vector['rule']}-{vector['source'][:40]}".replace(" ", "_")


@pytest.mark.parametrize("vector", VECTORS, ids=name)
def test_ours_is_theirs_or_the_definition(vector):
    if "definition" in vector and vector["definition"] is None:
        assert vector["convention"], "the definition gives nothing here, or more than can be listed; the file says why"
        with suppress(InfeasibleError):
            assert torch.isfinite(ours(vector)).all()
        return
    allowed = [vector.get("definition", vector["output"]), *vector.get("also", [])]
    results, got = torch.tensor(allowed, dtype=torch.float64), ours(vector)
    among = any(torch.allclose(got, one, rtol=1e-5, atol=1e-5) for one in results)
    tie = len(allowed) > 1 and torch.allclose(got, results.mean(0))  # ours treats rows that tie alike
    assert among or tie, f"{got.tolist()} is none of {allowed}. {vector.get('convention', '')}"


def test_differences_have_names():
    for vector in VECTORS:
        if "definition" in vector:
            assert len(vector["convention"]) > 20, vector["source"]
