"""Local training of many clients compared with centralised PyTorch on the same number of samples.

python benchmarks/training.py [--keep-freed-memory] [--threads 2] [--repeats 5]

Both train one epoch with minibatches of one size.  "central" is the textbook loop: a module, torch.optim.SGD, one index
per minibatch, all samples in one data set.  "clients" is `phalanx.training.Trainer` on clients of 600 samples, each of
which starts from the same model and hands in its change.  The two take turns; ratios are of neighbours in time.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F  # noqa: N812

from phalanx.data import Dataset
from phalanx.models import MLP, Model, SattlerCNN
from phalanx.numerics.memory import keep_freed_memory
from phalanx.training.local import LocalTask
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule

SHAPE, CLASSES, PER_CLIENT = (1, 28, 28), 10, 600


def central(model: Model, data: Dataset, batch: int) -> float:
    module = model.build(SHAPE, CLASSES)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    begun = time.perf_counter()
    for indices in torch.randperm(len(data)).split(batch):
        optimizer.zero_grad()
        F.cross_entropy(module(data.x[indices]), data.y[indices]).backward()
        optimizer.step()
    return len(data) / (time.perf_counter() - begun)


def clients(model: Model, data: Dataset, batch: int) -> float:
    trainer = Trainer(FlatModule(model.build(SHAPE, CLASSES)), LocalSGD(batch_size=batch, lr=0.01), seed=0)
    start, parts = trainer.model.read(), torch.arange(len(data)).split(PER_CLIENT)
    out = torch.empty_like(start)
    begun = time.perf_counter()
    for client, part in enumerate(parts):
        trainer.train(LocalTask(client, 0, 0, start, out), data.of(part))
    return len(data) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-freed-memory", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.keep_freed_memory:
        keep_freed_memory()
    print(f"torch {torch.__version__}, {options.threads} threads, freed memory kept: {options.keep_freed_memory}")
    print(f"{'model':<12} {'batch':>5} {'central':>12} {'clients':>12} {'ratio':>6}  (samples per second, medians)")
    for model, n in ((MLP((64,)), 60_000), (SattlerCNN(), 6_000)):
        data = Dataset(torch.rand(n, *SHAPE), torch.randint(0, CLASSES, (n,)), CLASSES)
        for batch in (100, 16):
            pairs = [(central(model, data, batch), clients(model, data, batch)) for _ in range(options.repeats)]
            middle = [statistics.median(side) for side in zip(*pairs, strict=True)]
            ratio = statistics.median(ours / theirs for theirs, ours in pairs)
            print(
                f"{type(model).__name__:<12} {batch:>5} {middle[0]:>12,.0f} {middle[1]:>12,.0f} {ratio:>6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
