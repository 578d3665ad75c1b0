"""Training on a GPU: the same bits again, and several clients at a time.

python benchmarks/on_gpu.py bits      runs of nine algorithms: twice, stopped and gone on, and against the CPU
python benchmarks/on_gpu.py together  clients one by one, by torch.func all at once, and that as a CUDA graph
python benchmarks/on_gpu.py differ    gradients by torch.func against those of one client at a time; on a CPU
"""

import sys
import tempfile
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from phalanx import Progress, Record, Run, StopRunError, Until, simulate
from phalanx.algorithms import FLAME, RFFL, SCAFFOLD, ByzantineCFL, Catalyst, ClusteredFL, FedAsync, FedAvg, QFedAvg
from phalanx.models import MLP, CoxCNN, Model, XuLyuCifarCNN, XuLyuMnistCNN
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.session import reproducible
from phalanx.training.vector import FlatModule

ALGORITHMS = (
    FedAvg(), FedAsync(), ClusteredFL(), ByzantineCFL(), Catalyst(f=1), RFFL(), SCAFFOLD(), FLAME(), QFedAvg(),
)  # fmt: skip
NETWORKS = (
    (MLP((512,)), (1, 28, 28)), (XuLyuMnistCNN(), (1, 32, 32)), (CoxCNN(), (1, 28, 28)), (XuLyuCifarCNN(), (3, 32, 32)),
)  # fmt: skip
EXAMPLES = 640  # of each client
DEVICE = "cuda"


def bits() -> None:
    """Print for each algorithm whether its bits come again, and by how much its losses differ from the CPU's."""

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise StopRunError("half of it")

    for algorithm in ALGORITHMS:
        plan = Run(clients=6, algorithm=algorithm, model=MLP((64,)), until=Until(6))
        cpu, first, second = simulate(plan), simulate(plan, device=DEVICE), simulate(plan, device=DEVICE)
        with tempfile.TemporaryDirectory() as folder:
            simulate(plan, folder=folder, device=DEVICE, observers=[stop], checkpoint=Checkpoint(every_seconds=0.0))
            resumed = simulate(plan, folder=folder, device=DEVICE)
        far = max(abs(a - b) for a, b in zip(losses(cpu), losses(first), strict=True))
        again, after = losses(first) == losses(second), losses(first) == losses(resumed)
        print(f"{type(algorithm).__name__}: the same again {again}, after a stop {after}; the CPU's within {far:.1g}")


def losses(record: Record) -> list[float]:
    """Return the losses of all steps."""
    return [step.metrics.loss for step in record.history if step.metrics is not None]


def together() -> None:
    """Print what each way takes, the best of three."""
    for model, shape in NETWORKS:
        for clients, batch in ((10, 16), (10, 64), (50, 16), (50, 64)):
            draw = torch.Generator().manual_seed(0)
            x = torch.randn(clients, EXAMPLES, *shape, generator=draw).to(DEVICE)
            y = torch.randint(0, 10, (clients, EXAMPLES), generator=draw).to(DEVICE)
            with reproducible(torch.device(DEVICE)):
                loop = best(lambda x=x, y=y, batch=batch, model=model: one_by_one(model, x, y, batch))
                eager = best(at_once(model, x, y, batch, graph=False))
                graph = best(at_once(model, x, y, batch, graph=True))
            print(
                f"{type(model).__name__}, {clients} clients, batch {batch}: one by one {loop * 1e3:.0f} ms, at once "
                f"{eager * 1e3:.1f} ms ({loop / eager:.1f} times), as a graph {graph * 1e3:.1f} ms ({loop / graph:.1f})"
            )


def one_by_one(model: Model, x: Tensor, y: Tensor, batch: int, rate: float = 0.01) -> None:
    """Train a network for each client, from the same start."""
    flat, loss = FlatModule(model.build(x.shape[2:], 10), device=DEVICE), nn.CrossEntropyLoss()
    start, parameters = flat.read().clone(), [*flat.module.parameters()]
    for k in range(len(x)):
        flat.load(start)
        for i in range(0, EXAMPLES, batch):
            found = torch.autograd.grad(loss(flat.module(x[k, i : i + batch]), y[k, i : i + batch]), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, found, alpha=-rate)


def at_once(model: Model, x: Tensor, y: Tensor, batch: int, *, graph: bool, rate: float = 0.01) -> Callable[[], None]:
    """Return what trains the networks of all clients, one minibatch of each at a time."""
    module, loss = model.build(x.shape[2:], 10).to(DEVICE), nn.CrossEntropyLoss()
    start = {name: p.detach() for name, p in module.named_parameters()}
    own = {name: p.expand(len(x), *p.shape).clone() for name, p in start.items()}
    gradient = vmap(grad(lambda p, a, b: loss(functional_call(module, p, (a,)), b)), randomness="different")
    inputs, labels = x[:, :batch].clone(), y[:, :batch].clone()

    def step() -> None:
        torch._foreach_add_([*own.values()], [*gradient(own, inputs, labels).values()], alpha=-rate)

    take = step
    if graph:
        beside = torch.cuda.Stream()
        with torch.cuda.stream(beside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(beside)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        take = captured.replay

    def train() -> None:
        for name, p in start.items():
            own[name].copy_(p.expand_as(own[name]))
        for i in range(0, EXAMPLES, batch):
            inputs.copy_(x[:, i : i + batch])
            labels.copy_(y[:, i : i + batch])
            take()

    return train


def differ(clients: int = 10, batch: int = 16) -> None:
    """Print whether gradients of perceptrons have the same bits, and by how much of the largest entry they differ."""
    module, loss = MLP((512,)).build((1, 28, 28), 10), nn.CrossEntropyLoss()
    x, y = torch.randn(clients, batch, 1, 28, 28), torch.randint(0, 10, (clients, batch))
    gradient = vmap(grad(lambda p, a, b: loss(functional_call(module, p, (a,)), b)), in_dims=(None, 0, 0))
    found = [*gradient(dict(module.named_parameters()), x, y).values()]
    far = 0.0
    for k in range(clients):
        alone = torch.autograd.grad(loss(module(x[k]), y[k]), [*module.parameters()])
        both = [(a[k].detach(), b) for a, b in zip(found, alone, strict=True)]
        far = max(far, *(((a - b).abs().max() / b.abs().max()).item() for a, b in both))
    print(f"The same bits {far == 0}; within {far:.1g}")


def best(what: Callable[[], None]) -> float:
    """Return the least seconds of three, after one that is not counted."""
    seconds = []
    for _ in range(4):
        begun = time.perf_counter()
        what()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return min(seconds[1:])


if __name__ == "__main__":
    {"bits": bits, "together": together, "differ": differ}[sys.argv[1]]()
