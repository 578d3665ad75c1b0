"""The first two rounds of ten runs at the papers' size come out to the bit: a change of bits has no other witness.

If this fails, and the change is meant: add the parts whose bits change to `CHANGES` of `phalanx.runs.provenance`, and
write the losses anew with `python tests/experiments/reproduce/test_first_rounds.py`.  The images are noise of the data
sets' shapes, so no data set is needed.
"""

import json
import warnings
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from phalanx import Until, simulate
from phalanx.data import MNIST, Dataset, FashionMNIST
from phalanx.data.sources import Source
from phalanx.experiments.papers.experiment import reproductions
from phalanx.runs.engine_choice import named, with_engine
from phalanx.runs.provenance import conditions, parts, processor
from phalanx.training import Evaluation

STORED = Path(__file__).with_name("first_rounds.json")
ROUNDS, RUNS, EXAMPLES = 2, 10, 60_000


@dataclass(frozen=True)
class Noise(Source):
    """Images of noise, in each class around a mean of its own; `side` is that of an image."""

    side: int

    def load(self, data_dir=None):
        generator = torch.Generator().manual_seed(0)
        shape = (1, self.side, self.side)
        means = torch.rand((10, *shape), generator=generator)

        def part(n):
            y = torch.randint(10, (n,), generator=generator)
            return Dataset((means[y] + 0.3 * torch.randn((n, *shape), generator=generator)).clamp(0, 1), y, 10)

        return part(EXAMPLES), part(500)


@cache
def every():
    """The runs of the papers on small grey images, by name.

    Those of RFFL are compiled, as the records at its size are.
    """
    found = {}
    for paper, reproduction in reproductions().items():
        for name, experiment in reproduction.experiments.items():
            for cell, plan in experiment.exhibit.runs("paper", 0).items():
                if isinstance(plan.data, (MNIST, FashionMNIST)):
                    found[f"{paper} {name}: {cell}"] = with_engine(plan, "compiled") if paper == "rffl" else named(plan)
    return found


def runs():
    """The ten runs that are stored; to begin with, each has as many parts as can be that those before lack."""
    if STORED.exists():
        return {name: every()[name] for name in stored()[0]["losses"]}
    held, chosen = frozenset[str](), {}
    used = {name: parts(plan) for name, plan in every().items()}
    for _ in range(RUNS):
        name = max(used, key=lambda name: len(used[name] - held))
        held |= used[name]
        chosen[name] = every()[name]
    return chosen


def losses(plan):
    """The losses of the first rounds, as the bits of a float."""
    side = 28 + 2 * getattr(plan.data, "padding", 0)
    short = replace(plan, data=Noise(side), until=Until(ROUNDS), evaluation=Evaluation())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = simulate(short).history
    return [float(step.metrics.loss).hex() for step in history if step.metrics is not None]


def here():
    kept = {name: value for name, value in conditions(torch.device("cpu")).items() if name != "threads"}
    return kept | {"processor": processor()}


def stored():
    """The losses by run, one entry for each kind of machine that has computed them."""
    return json.loads(STORED.read_text()) if STORED.exists() else []


def is_here(entry):
    """Whether an entry was computed under the conditions of this machine; the first says less of its processor."""
    now = here()
    return entry["conditions"] == now | {"processor": entry["conditions"]["processor"]} and (
        now["processor"].startswith(entry["conditions"]["processor"])
    )


def test_ten_runs_have_all_five_papers():
    assert len(runs()) == RUNS
    assert len({name.partition(" ")[0] for name in runs()}) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", stored()[0]["losses"] if STORED.exists() else [])
def test_the_first_rounds_come_out_to_the_bit(name):
    found = losses(runs()[name])
    assert len(found) >= ROUNDS
    if own := [entry["losses"][name] for entry in stored() if is_here(entry)]:
        assert found == own[0]
    else:  # another processor or version: other last bits, which grow in two rounds
        expected = [float.fromhex(one) for one in stored()[0]["losses"][name]]
        assert [float.fromhex(one) for one in found] == pytest.approx(expected, rel=0.2)


if __name__ == "__main__":
    entry = {"conditions": here(), "losses": {name: losses(plan) for name, plan in runs().items()}}
    others = [one for one in stored() if one["losses"].keys() == entry["losses"].keys() and not is_here(one)]
    STORED.write_text(json.dumps([*others, entry], indent=1) + "\n")
