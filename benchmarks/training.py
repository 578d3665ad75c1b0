"""Local training of many clients compared with centralised PyTorch on the same number of samples.

python benchmarks/training.py [--keep-freed-memory] [--threads 1] [--repeats 5]
python benchmarks/training.py --layers          # GFLOP/s of each layer in the compiled loop, forward and backward
python benchmarks/training.py --evaluation      # ms for 1,000 images: all at once, in parts, and compiled
python benchmarks/training.py --texts           # loop and compiled, of networks that begin with an embedding
python benchmarks/training.py --accuracy        # of compiled training in both precisions, on Fashion-MNIST

Both train one epoch with minibatches of one size, that of the paper for its networks.  "central" is the textbook loop:
a module, torch.optim.SGD, one index per minibatch, all samples in one data set.  "clients" is `LocalSGD` on clients of
600 samples, each of which starts from the same model and hands in its change; "compiled" is the same with
`engine="compiled"`, "bfloat16" and "compiled bfloat16" are both in that precision.  They take turns; ratios are of
neighbours in time, in processor time.  Shares are those of the arithmetic, as torch counts it, of torch's products of
matrices of 2,048 x 2,048 on the same threads.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.mkldnn import to_mkldnn

from phalanx import Run, Study, Until
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.attacks import ALIE
from phalanx.data import Dataset, Dirichlet, FashionMNIST
from phalanx.experiments.results import Results
from phalanx.models import (
    MLP,
    CoxCNN,
    GivenModule,
    Model,
    SattlerCNN,
    SattlerVGG,
    XuLyuCifarCNN,
    XuLyuMnistCNN,
)
from phalanx.numerics.allocation import keep_freed_memory
from phalanx.numerics.blas_kernels import gemm
from phalanx.training import Evaluation, evaluation
from phalanx.training.compiled import chain_kernels as kernels
from phalanx.training.compiled.chain import NetworkChain
from phalanx.training.compiled.trainer import CompiledNetwork, Room
from phalanx.training.local import LocalTask, LocalTraining
from phalanx.training.sgd import LocalSGD
from phalanx.training.task import CLASSIFICATION
from phalanx.training.vector import FlatModule

CLASSES, PER_CLIENT = 10, 600
GREY, COLOURED = (1, 28, 28), (3, 32, 32)
NETWORKS: tuple[tuple[Model, tuple[int, ...], int, int], ...] = (  # shape of images, batch size, examples
    (MLP((64,)), GREY, 100, 60_000),
    (MLP((64,)), GREY, 16, 60_000),
    (SattlerCNN(), GREY, 100, 6_000),
    (SattlerVGG(), COLOURED, 100, 1_200),
    (CoxCNN(), GREY, 50, 6_000),
    (XuLyuMnistCNN(), GREY, 16, 3_000),
    (XuLyuCifarCNN(), COLOURED, 16, 3_000),
)

WORDS, SENTENCE = 20_000, 20  # words of a vocabulary, and of an example
TEXTS = {
    "embedding, flatten": GivenModule(
        nn.Sequential(nn.Embedding(WORDS, 32), nn.Flatten(), nn.Linear(640, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    ),
    "mean of embeddings": GivenModule(nn.Sequential(nn.EmbeddingBag(WORDS, 100), nn.Linear(100, CLASSES))),
}

GREY_GROUPS = GivenModule(
    nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, CLASSES)),
    )
)


def central(model: Model, data: Dataset, batch: int) -> float:
    module = model.build(tuple(data.tensor.shape[1:]), CLASSES)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    begun = time.process_time()
    for indices in torch.randperm(len(data)).split(batch):
        optimizer.zero_grad()
        F.cross_entropy(module(data.tensor[indices]), data.y[indices]).backward()
        optimizer.step()
    return len(data) / (time.process_time() - begun)


def clients(model: Model, data: Dataset, recipe: LocalTraining) -> float:
    bound = FlatModule(model.build(tuple(data.tensor.shape[1:]), CLASSES))
    trainer = recipe.trainer(bound, CLASSIFICATION, seed=0)
    start, parts = bound.read(), torch.arange(len(data)).split(PER_CLIENT)
    out = torch.empty_like(start)
    begun = time.process_time()
    for client, part in enumerate(parts):
        trainer.train(LocalTask(client, 0, 0, start, out), data.of(part))
    return len(data) / (time.process_time() - begun)


def arithmetic(model: Model, data: Dataset) -> float:
    """Return the operations of a training example."""
    module, some = model.build(tuple(data.tensor.shape[1:]), CLASSES), 10
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(module(data.tensor[:some]), data.y[:some]).backward()
    return counter.get_total_flops() / some


def peak() -> float:
    """Return the operations per second of processor time in products of large matrices."""
    a, seen = torch.rand(2048, 2048), list[float]()
    for _ in range(5):
        begun = time.process_time()
        a @ a
        seen.append(2 * 2048**3 / (time.process_time() - begun))
    return max(seen) * torch.get_num_threads()


def least(call: Callable[[], object], calls: int = 15) -> float:
    """Return the least seconds of some calls, after one that does not count."""
    call()
    seen = list[float]()
    for _ in range(calls):
        begun = time.perf_counter()
        call()
        seen.append(time.perf_counter() - begun)
    return min(seen)


@torch.inference_mode()
def formats(part: nn.Module, row: NDArray[np.int64], m: int, products: int) -> str:
    """Return GFLOP/s of torch's convolution alone, forward: of images channels last, and in oneDNN's blocked format."""
    height, width = row[kernels.LINES] - 2 * part.padding[0], row[kernels.LINE] - 2 * part.padding[0]
    images = torch.rand(m, row[kernels.INPUTS], height, width)
    last, blocked = images.contiguous(memory_format=torch.channels_last), images.to_mkldnn()
    by_onednn = to_mkldnn(deepcopy(part).eval())
    speeds = [products / least(call) / 1e9 for call in (lambda: part(last), lambda: by_onednn(blocked))]
    return f" (torch forward {speeds[0]:.0f}, blocked {speeds[1]:.0f})"


def layers(model: Model, shape: tuple[int, ...], m: int, *, half: bool) -> None:
    """Print GFLOP/s of each layer of a network in the compiled loop, with all that follows the layer."""
    bound = FlatModule(model.build(shape, CLASSES))
    chain, shown = NetworkChain(bound), list[str]()
    room = Room(chain, shape, m, np.dtype(np.float32), half=half)
    values, gradient, noise = bound.values.numpy(), bound.gradient.numpy(), np.ones(m * 10_000, np.float32)
    address, rng, size = gemm(np.dtype(np.float32)), np.random.default_rng(0), np.int64(m)
    room._offsets[::2], room._offsets[1::2] = room._taps[::2], room._taps[1::2] * m
    for number, row in enumerate(room._table):
        for held in (room._outputs, room._backward):
            held[:] = rng.random(len(held))
        at, to = kernels._begin(row, np.int64(number), size), kernels._end(room._table, np.int64(number), size)
        products = 2 * m * int(row[kernels.INPUTS] * row[kernels.OUTPUTS])
        at_end, all_but = (at, to, size, noise, kernels.ZERO), (row, number > 0, values, gradient)
        if row[kernels.TALL]:
            products *= int(row[kernels.TALL] * row[kernels.BROAD] * row[kernels.ROWS] * row[kernels.COLUMNS])
            last = (room._which, room._scratch)
            there = partial(kernels._convolve, row, values, room._offsets, room._outputs, *at_end, *last, room._halves)
            of = (room._offsets, room._begun, room._outputs, room._backward)
            back = partial(kernels._convolve_back, *all_but, *of, *at_end, *last, 0.0, room._halves)
        else:
            there = partial(kernels._apply, address, row, values, room._outputs, *at_end)
            back = partial(kernels._apply_back, address, *all_but, room._outputs, room._backward, at, to, size, 0.0)
        forward, backward = products / least(there), (2 if number else 1) * products / least(back)
        by_torch = formats(chain.stages[number].part, row, m, products) if row[kernels.TALL] and not half else ""
        shown.append(f"{forward / 1e9:.0f}, {backward / 1e9:.0f}{by_torch}")
    name = f"{type(model).__name__}{' in bfloat16' if half else ''}"
    print(f"{name}, batches of {m}: {'; '.join(shown)}; load {os.getloadavg()[0]:.1f}", flush=True)


AXIS = "training.precision"
ACCURACY = Study(
    Run(
        data=FashionMNIST(limit=6000), partition=Dirichlet(1.0), clients=20, model=SattlerCNN(), attack=ALIE(),
        byzantine=6, training=LocalSGD(batch_size=50, lr=0.05, engine="compiled"), until=Until(20),
        evaluation=Evaluation(every=20),
    ),
    {
        "threat": {
            "no attack": {"attack": None},
            "median, 6 of 20 attack by ALIE": {"algorithm": FedAvg(Median())},
        },
        AXIS: ("bfloat16", "float32"),
    },
    seeds=5,
    name="accuracy",
)  # fmt: skip


def accuracy(results: Results) -> None:
    """Print the accuracies of `SattlerCNN` in both precisions, and the difference with its 95 % interval of pairs."""
    for name in results.axes["threat"]:
        at = {"threat": name}
        of = {way: results.estimate(results.where({**at, AXIS: way})) for way in ("float32", "bfloat16")}
        shown = ", ".join(f"{precision} {found.text(100.0, 2)}" for precision, found in of.items())
        (test,) = results.tests(AXIS, at=at)
        print(f"{name}: {shown}, difference in points {test.difference.text(100.0, 2)}", flush=True)


def evaluations(model: Model, shape: tuple[int, ...], repeats: int) -> None:
    """Print the milliseconds of an evaluation, medians of turns, and how many times as fast it is as all at once."""
    bound = FlatModule(model.build(shape, CLASSES))
    vector, network = bound.read(), CompiledNetwork(bound)
    data = Dataset(torch.rand(evaluation.BATCH, *shape), torch.randint(0, CLASSES, (evaluation.BATCH,)), CLASSES)
    part = evaluation.PART
    ways = {"at once": (evaluation.BATCH, None), "in parts": (part, None), "compiled": (part, network)}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way, (evaluation.PART, by) in ways.items():
            begun = time.process_time()
            evaluation.evaluate_each(bound, [vector], data, network=by)
            found[way] += [1e3 * (time.process_time() - begun)] if turn else []
    evaluation.PART = part
    shown = [f"{way} {statistics.median(seen):.0f}" for way, seen in found.items()]
    for way in ("in parts", "compiled"):
        ratio = statistics.median(a / b for a, b in zip(found["at once"], found[way], strict=True))
        shown.append(f"{way} {ratio:.2f} times as fast")
    print(f"{type(model).__name__}: {', '.join(shown)}; load {os.getloadavg()[0]:.1f}", flush=True)


def epochs(options: argparse.Namespace) -> None:
    most = peak()
    print(
        f"torch {torch.__version__}, {options.threads} threads, freed memory kept: {options.keep_freed_memory}, ",
        end="",
    )
    print(f"products of matrices {most / 1e9:.0f} GFLOP/s, load {os.getloadavg()[0]:.1f}; samples per second, medians")
    for model, shape, batch, n in NETWORKS:
        data = Dataset(torch.rand(n, *shape), torch.randint(0, CLASSES, (n,)), CLASSES)
        plain = LocalSGD(batch_size=batch, lr=0.01)
        ways: dict[str, LocalTraining] = {"clients": plain, "compiled": replace(plain, engine="compiled")}
        if not isinstance(model, MLP):
            ways["bfloat16"] = replace(plain, precision="bfloat16")
            if kernels.BFLOAT16:
                ways["compiled bfloat16"] = replace(plain, engine="compiled", precision="bfloat16")
        found = dict[str, list[float]]()
        for _ in range(options.repeats):
            found.setdefault("central", []).append(central(model, data, batch))
            for name, recipe in ways.items():
                found.setdefault(name, []).append(clients(model, data, recipe))
        shown = [f"central {statistics.median(found['central']):,.0f}"]
        for name in ways:
            ratio = statistics.median(ours / theirs for theirs, ours in zip(found["central"], found[name], strict=True))
            share = statistics.median(found[name]) * arithmetic(model, data) / most
            shown.append(f"{name} {statistics.median(found[name]):,.0f} ({ratio:.2f}, {100 * share:.0f} % of products)")
        print(f"{type(model).__name__}, batches of {batch}: {', '.join(shown)}", flush=True)


def texts(options: argparse.Namespace) -> None:
    data = Dataset(torch.randint(WORDS, (1_200, SENTENCE)), torch.randint(CLASSES, (1_200,)), CLASSES)
    print(f"torch {torch.__version__}, {options.threads} threads, load {os.getloadavg()[0]:.1f}; examples per second")
    for (name, model), batch in product(TEXTS.items(), (16, 100)):
        plain = LocalSGD(batch_size=batch, lr=0.01)
        for way, recipe in {"a step": plain, "with momentum": replace(plain, momentum=0.9)}.items():
            ways = {"loop": recipe, "compiled": replace(recipe, engine="compiled")}
            for one in ways.values():
                clients(model, data.of(torch.arange(PER_CLIENT)), one)  # what comes once
            found = [[clients(model, data, one) for one in ways.values()] for _ in range(options.repeats)]
            loop, compiled = (statistics.median(seen) for seen in zip(*found, strict=True))
            ratio = statistics.median(ours / theirs for theirs, ours in found)
            print(f"{name}, batches of {batch}, {way}: loop {loop:,.0f}, compiled {compiled:,.0f} ({ratio:.2f} times)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-freed-memory", action="store_true")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--evaluation", action="store_true")
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.keep_freed_memory:
        keep_freed_memory()
    if options.accuracy:
        accuracy(ACCURACY.run("build/training", data_dir=os.environ.get("PHALANX_DATA")))
    elif options.texts:
        texts(options)
    elif options.layers:
        for model, shape, batch, _ in NETWORKS:
            for half in (False, True)[: 0 if isinstance(model, MLP) else 1 + kernels.BFLOAT16]:
                layers(model, shape, batch, half=half)
    elif options.evaluation:
        for model, shape, *_ in NETWORKS[2:]:
            evaluations(model, shape, options.repeats)
    else:
        epochs(options)


if __name__ == "__main__":
    main()
