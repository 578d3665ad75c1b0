"""Adapters of low rank on a small transformer, under attack, and the memory of a run by its number of clients.

The base, in bfloat16, has learnt to predict characters of Wikipedia (WikiText-2). 10 roles of Shakespeare's plays, each
a client, then train adapters of rank 4 for the plays; 3 of them attack.

python benchmarks/adapters.py [--seeds 0 1] [--steps 5]  perplexity by rule and attack; needs PHALANX_DATA
python benchmarks/adapters.py memory TRAINED CLIENTS [ATTACKERS]
                                                       peak memory of a round; TRAINED: all, adapters or products (of
                                                       adapters, at the server); with attackers by MultiKrum
"""

import argparse
import os
import resource
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Aggregator, Mean, Median, MultiKrum
from phalanx.algorithms import FedAvg, LowRankProducts
from phalanx.attacks import ALIE, Attack, Rescale
from phalanx.data import Dataset, InMemory, Natural, Shakespeare
from phalanx.data.shakespeare import CLASSES, NUMBERS
from phalanx.experiments.statistics import Estimate
from phalanx.models import CausalTransformer, GivenModule, LoRA, Model
from phalanx.training import LocalOptimizer, NextToken
from phalanx.training.evaluation import Evaluation
from phalanx.weighting import Ignore

LENGTH, ADAPTED = 32, ("query", "value", "widen")
CLIENTS, ATTACKERS, ROUNDS = 10, 3, 8
MEAN, MEDIAN, KRUM = Mean(), Median(), MultiKrum(ATTACKERS)
CASES: dict[str, tuple[Attack | None, tuple[Aggregator, ...]]] = {
    "none": (None, (MEAN, MEDIAN)),
    "Rescale(-10)": (Rescale(-10.0), (MEAN, MEDIAN, KRUM)),
    "ALIE": (ALIE(), (MEDIAN, KRUM)),
}


def wikipedia(part: str, count: int) -> Dataset:
    """Return pieces of articles, as characters in the numbers of `Shakespeare`."""
    text = (Path(os.environ["PHALANX_DATA"]) / "wikitext-2" / f"wiki.{part}.tokens").read_bytes()
    pieces = torch.from_numpy(NUMBERS[np.frombuffer(text[: count * (LENGTH + 1)], np.uint8)]).view(count, LENGTH + 1)
    return Dataset(pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous(), CLASSES)


def base() -> Model:
    """Return a transformer that was trained on Wikipedia."""
    run = Run(
        data=InMemory(wikipedia("train", 20_000), wikipedia("test", 300)),
        clients=1,
        model=CausalTransformer(width=64),
        task=NextToken(),
        training=LocalOptimizer("Adam", 0.003),
        until=Until(1),
    )
    record = simulate(run)
    print(f"base: perplexity {record.summary.final.perplexity:.2f} on Wikipedia", flush=True)
    return GivenModule(record.model())


@cache
def plays() -> InMemory:
    """Return the texts of the roles."""
    return InMemory(*Shakespeare(CLIENTS, LENGTH, 300, 300).load(Path(os.environ["PHALANX_DATA"])))


def adapted(model: LoRA, rule: Aggregator, attack: Attack | None, steps: int, seed: int, *, products: bool) -> float:
    """Return the perplexity on the plays after training of adapters."""
    options = {"aggregate": rule, "preprocess": Ignore()}
    run = Run(
        algorithm=LowRankProducts.of(model, (LENGTH,), CLASSES, **options) if products else FedAvg(**options),
        data=plays(),
        clients=CLIENTS,
        partition=Natural(),
        model=model,
        task=NextToken(),
        training=LocalOptimizer("Adam", 0.005, steps=steps, batch_size=8),
        attack=attack,
        byzantine=ATTACKERS if attack else 0,
        evaluation=Evaluation(every=ROUNDS),
        until=Until(ROUNDS),
        seed=seed,
    )
    return simulate(run).summary.final.perplexity or float("nan")


def perplexities() -> None:
    """Print the perplexity by rule and attack: means over seeds, with intervals of 95 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=5, help="minibatches of a client in a round")
    parser.add_argument("--attacks", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    model = LoRA(base(), ADAPTED, rank=4, base="bfloat16")
    print("| attack | rule | A and B | B A | paired difference |\n| --- | --- | --- | --- | --- |")
    for name in options.attacks:
        attack, rules = CASES[name]
        for rule in rules:
            found = [
                [adapted(model, rule, attack, options.steps, seed, products=products) for seed in options.seeds]
                for products in (False, True)
            ]
            differences = [b - a for a, b in zip(*found, strict=True)]
            cells = [Estimate.of(values).text(1.0, 2) for values in (*found, differences)]
            print(f"| {name} | {rule.title} | {' | '.join(cells)} |", flush=True)


def memory(trained: str, clients: int, attackers: int = 0) -> None:
    """Print the growth of peak memory by a run of one round."""
    whole = CausalTransformer(width=512, layers=6, heads=8)
    lora = LoRA(whole, ADAPTED, rank=4, base="bfloat16")
    rule = {"aggregate": MultiKrum(attackers) if attackers else MEAN, "preprocess": Ignore()}
    texts = torch.randint(CLASSES, (4 * clients, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    data = Dataset(texts[:, :-1].contiguous(), texts[:, 1:].contiguous(), CLASSES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = Run(
        algorithm=LowRankProducts.of(lora, (LENGTH,), CLASSES, **rule) if trained == "products" else FedAvg(**rule),
        data=InMemory(data, data.of(torch.arange(10))),
        model=whole if trained == "all" else lora,
        clients=clients,
        task=NextToken(),
        attack=Rescale(-10.0) if attackers else None,
        byzantine=attackers,
        until=Until(1),
    )
    dimension = simulate(run).summary.dimension
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    sent = f"{4 * dimension / 1024:,.0f} KiB sent by each"
    print(f"{trained}, {clients} clients, {attackers} attackers, {sent}: {grown:,.0f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        perplexities()
