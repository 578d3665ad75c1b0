"""Adapters of low rank on a small transformer, under attack, and the memory of a run by its number of clients.

The base, in bfloat16, has learnt to predict characters of Wikipedia (WikiText-2). 10 roles of Shakespeare's plays, each
a client, then train adapters of rank 4 for the plays; 3 of them attack.

python benchmarks/adapters.py [--seeds 0 1] [--jobs 2]  perplexity by rule and attack; needs PHALANX_DATA
python benchmarks/adapters.py memory TRAINED CLIENTS [ATTACKERS]
                                                       peak memory of a round; TRAINED: all, adapters or products (of
                                                       adapters, at the server); with attackers by MultiKrum
"""

import math
import os
import resource
import sys
from pathlib import Path

import numpy as np
import torch
from as_study import carry_out, markdown

from phalanx import Run, Study, Until, simulate
from phalanx.aggregators import Mean, Median, MultiKrum
from phalanx.algorithms import FedAvg, LowRankProducts
from phalanx.attacks import ALIE, Rescale
from phalanx.data import Dataset, InMemory, Natural, Shakespeare
from phalanx.data.shakespeare import CLASSES, NUMBERS
from phalanx.experiments import Estimate
from phalanx.experiments.results import Results
from phalanx.models import CausalTransformer, GivenModule, LoRA, Model
from phalanx.training import LocalOptimizer, NextToken
from phalanx.training.evaluation import Evaluation
from phalanx.weighting import Ignore

LENGTH, ADAPTED = 32, ("query", "value", "widen")
CLIENTS, ATTACKERS, ROUNDS = 10, 3, 8
MEAN, MEDIAN, KRUM = Mean(), Median(), MultiKrum(ATTACKERS)
ATTACKS = {"none": None, "Rescale(-10)": Rescale(-10.0), "ALIE": ALIE()}


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


def study() -> Study:
    """Return the study of adapters by attack, rule, and what is combined; its base is trained first."""
    model = LoRA(base(), ADAPTED, rank=4, base="bfloat16")
    run = Run(
        data=Shakespeare(CLIENTS, LENGTH, 300, 300), clients=CLIENTS, partition=Natural(), model=model,
        task=NextToken(), training=LocalOptimizer("Adam", 0.005, steps=5, batch_size=8), attack=ALIE(),
        byzantine=ATTACKERS, evaluation=Evaluation(every=ROUNDS), until=Until(ROUNDS),
    )  # fmt: skip
    of = {"preprocess": Ignore()}
    products = LowRankProducts.of(model, (LENGTH,), CLASSES, **of)
    ways = {"A and B": {"algorithm": FedAvg(**of)}, "B A": {"algorithm": products}}
    exclude = [{"attack": "none", "rule": KRUM.title}, {"attack": "ALIE", "rule": MEAN.title}]
    rules = {rule.title: {"algorithm.aggregate": rule} for rule in (MEAN, MEDIAN, KRUM)}
    return Study(run, {"attack": ATTACKS, "rule": rules, "combined": ways}, seeds=5, exclude=exclude, name="adapters")


def table(results: Results) -> str:
    """Return perplexities by rule and attack: means over seeds, with intervals of 95 %."""
    found = dict[tuple[str, str], dict[str, list[float]]]()
    for (attack, rule, way), rows in results.cells():
        found.setdefault((attack, rule), {})[way] = [row.value("perplexity") or math.nan for row in rows]
    lines = list[list[str]]()
    for names, ways in found.items():
        apart, products = ways.values()
        differences = [b - a for a, b in zip(apart, products, strict=True)]
        lines.append([*names, *(Estimate.of(values).text(1.0, 2) for values in (apart, products, differences))])
    return markdown(("attack", "rule", "A and B", "B A", "paired difference"), lines)


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


STUDIES = {"adapters": study}

if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        carry_out(__doc__, STUDIES, table, "adapters")
