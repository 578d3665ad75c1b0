"""Adapters of low rank on a small transformer, under attack, and the memory of a run by its number of clients.

The base learns one synthetic language first; the clients then adapt it to another.  Each token of a language is
followed by one of four others, so that the loss of a perfect model is log 4 = 1.386 nats, and that of a guess log 64.

python benchmarks/adapters.py                            losses of 20 clients, of which 6 attack
python benchmarks/adapters.py memory TRAINED CLIENTS     peak memory of a round; TRAINED: all or adapters
"""

import resource
import sys

import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Mean, Median
from phalanx.algorithms import FedAvg, LowRankProducts
from phalanx.attacks import Rescale
from phalanx.core import Algorithm
from phalanx.data import Dataset, InMemory
from phalanx.models import CausalTransformer, GivenModule, LoRA, Model
from phalanx.training import LocalOptimizer, NextToken
from phalanx.weighting import Ignore

TOKENS, LENGTH, ADAPTED = 64, 32, ("query", "value", "widen")


def texts(count: int, language: int, seed: int) -> Dataset:
    """Return texts of a language, which is a table of four next tokens for each token."""
    table = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(language)).argsort(1)[:, :4]
    rng = torch.Generator().manual_seed(seed)
    signs = torch.randint(TOKENS, (count, 1), generator=rng)
    for _ in range(LENGTH):
        following = table[signs[:, -1], torch.randint(4, (count,), generator=rng)]
        signs = torch.cat((signs, following[:, None]), 1)
    return Dataset(signs[:, :-1].contiguous(), signs[:, 1:].contiguous(), TOKENS)


def run(model: Model, algorithm: Algorithm, language: int, attackers: int, rounds: int) -> Run:
    """Return a run of 20 clients."""
    return Run(
        algorithm=algorithm,
        data=InMemory(texts(2000, language, 0), texts(200, language, 1)),
        model=model,
        task=NextToken(),
        training=LocalOptimizer("Adam", 0.005),
        attack=Rescale(-10.0) if attackers else None,
        byzantine=attackers,
        until=Until(rounds),
    )


def losses() -> None:
    """Print the losses of adapters by rule."""
    base = simulate(run(CausalTransformer(width=64), FedAvg(), 0, 0, 15))
    print(f"base, on its language: {base.summary.final.loss:.2f}", flush=True)
    model = LoRA(GivenModule(base.model()), ADAPTED, rank=4)
    for attackers in (0, 6):
        for rule in (Mean(), Median()):
            products = LowRankProducts.of(model, (LENGTH,), TOKENS, aggregate=rule, preprocess=Ignore())
            for name, algorithm in (("A and B", FedAvg(aggregate=rule, preprocess=Ignore())), ("B A", products)):
                record = simulate(run(model, algorithm, 1, attackers, 15))
                loss = record.summary.final.loss
                sent = record.summary.dimension
                print(f"{attackers} attackers, {rule.title:<6} of {name:<7}: {loss:.2f} ({sent:,} sent)", flush=True)


def memory(trained: str, clients: int) -> None:
    """Print the growth of peak memory by a run of one round."""
    whole = CausalTransformer(width=512, layers=6, heads=8)
    model = LoRA(whole, ADAPTED, rank=4) if trained == "adapters" else whole
    data = InMemory(texts(4 * clients, 0, 0), texts(10, 0, 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record = simulate(Run(data=data, model=model, clients=clients, task=NextToken(), until=Until(1)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{trained}, {clients} clients, {record.summary.dimension:,} parameters sent: {grown:,.0f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2], int(sys.argv[3]))
    else:
        losses()
