"""Rounds of FedAvg: ours, pfl's, ByzFL's and Flower's, each in an environment of its own.

python benchmarks/peers.py FOLDER pfl byzfl flwr-simulation
python benchmarks/rounds.py all --folder FOLDER [--batch 100] [--repeats 3]      # in turns, as ratios to ours
python benchmarks/rounds.py plain --batch 16                                     # one of them, in this environment

100 clients hold 600 examples of 784 numbers each, and train a perceptron of 50,890 parameters for one epoch by gradient
descent, without evaluation.  Each library is given what is fast there on two cores: ours two processes, by the
loop, and compiled; pfl two processes by torchrun, its tensors as they lie; ByzFL, which has one process,
a loader of whole minibatches and one thread; Flower two workers on Ray.  The figures are the median seconds of a round
on the clock, for which nothing else should run, and its mean CPU time in all processes, both without the first round.
"""

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from torch import nn

MARK = "PHALANX_BENCHMARK"  # environment variable that identifies the processes of a measurement
CLIENTS, EXAMPLES, INPUTS, CLASSES, ROUNDS, LR = 100, 600, 784, 10, 5, 0.05


def examples(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(client)
    return torch.rand(EXAMPLES, INPUTS, generator=rng), torch.randint(CLASSES, (EXAMPLES,), generator=rng)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def train(module: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int) -> None:
    """Train for one epoch in plain PyTorch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for indices in torch.randperm(len(y)).split(batch):
        optimizer.zero_grad()
        F.cross_entropy(module(x[indices]), y[indices]).backward()
        optimizer.step()


def cpu_seconds(mark: str) -> float:
    """Return the CPU time of all running processes of a measurement, this one included."""
    ticks, wanted = 0, f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) == os.getpid() or wanted in (folder / "environ").read_bytes().split(b"\0"):
                ticks += sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


class Watch:
    """The clock and the CPU time at the end of each round; both begin before the first one."""

    def __init__(self) -> None:
        self.seen = [self._now()]

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), cpu_seconds(os.environ.get(MARK, ""))

    def __call__(self, *_: object) -> None:
        self.seen.append(self._now())

    def say(self, first: int = 1) -> None:
        """Print both for a round, without those before `first`."""
        later = self.seen[first:]
        wall = statistics.median(b[0] - a[0] for a, b in pairwise(later))
        print(f"SECONDS {wall} {(later[-1][1] - later[0][1]) / (len(later) - 1)}", flush=True)


def plain(batch: int) -> None:
    """Time epochs over the examples of all clients, one after the other, on one core."""
    torch.set_num_threads(1)
    held, module, seen = [examples(client) for client in range(CLIENTS)], perceptron(), Watch()
    x, y = (torch.cat(parts) for parts in zip(*held, strict=True))
    for _ in range(ROUNDS):
        train(module, x, y, batch)
        seen()
    seen.say()


def ours(batch: int, engine: str = "loop") -> None:
    from phalanx import LocalSGD, Run, Until, simulate  # noqa: PLC0415
    from phalanx.data import Dataset, InMemory, Uniform  # noqa: PLC0415
    from phalanx.models import MLP  # noqa: PLC0415
    from phalanx.numerics.allocation import keep_freed_memory  # noqa: PLC0415
    from phalanx.simulation.parallel import ProcessExecutors  # noqa: PLC0415
    from phalanx.training import Evaluation  # noqa: PLC0415

    torch.set_num_threads(1)
    keep_freed_memory()  # as `phalanx run` does
    x, y = (torch.cat(parts) for parts in zip(*map(examples, range(CLIENTS)), strict=True))
    run = Run(
        data=InMemory(Dataset(x, y, CLASSES), Dataset(x[:100], y[:100], CLASSES)), clients=CLIENTS,
        partition=Uniform(), model=MLP((64,)), training=LocalSGD(batch_size=batch, lr=LR, engine=engine),
        until=Until(ROUNDS), evaluation=Evaluation(every=1000),
    )  # fmt: skip
    seen = Watch()
    with ProcessExecutors(2, after=0.0) as processors:
        simulate(run, executors=processors, observers=[seen])
        seen.say(2)  # an observer is also called before the first round


class WithLoss(nn.Module):
    """The perceptron as pfl takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = perceptron()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.chain(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {}


def pfl(batch: int) -> None:
    from pfl.aggregate.simulate import SimulatedBackend  # noqa: PLC0415
    from pfl.algorithm.base import NNAlgorithmParams  # noqa: PLC0415
    from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: PLC0415
    from pfl.callback.base import TrainingProcessCallback  # noqa: PLC0415
    from pfl.data.federated_dataset import FederatedDataset  # noqa: PLC0415
    from pfl.data.pytorch import PyTorchTensorDataset  # noqa: PLC0415
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: PLC0415
    from pfl.model.pytorch import PyTorchModel  # noqa: PLC0415

    torch.set_num_threads(1)
    held, seen, turn = [examples(client) for client in range(CLIENTS)], Watch(), iter(range(10**9))

    class Each(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            from pfl.metrics import Metrics  # noqa: PLC0415

            seen()
            return False, Metrics()

    data = FederatedDataset(lambda user: PyTorchTensorDataset(held[user]), lambda: next(turn) % CLIENTS)
    module = WithLoss()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS, 10**6, CLIENTS, None), SimulatedBackend(data, data), model,
        NNTrainHyperParams(local_batch_size=batch, local_num_epochs=1, local_learning_rate=LR),
        NNEvalHyperParams(local_batch_size=None), [Each()], send_metrics_to_platform=False,
    )  # fmt: skip
    if os.environ.get("RANK", "0") == "0":
        seen.say()


def byzfl(batch: int) -> None:
    from byzfl import Client, Server  # noqa: PLC0415
    from byzfl.fed_framework import models  # noqa: PLC0415
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset  # noqa: PLC0415

    torch.set_num_threads(1)
    models.perceptron = perceptron
    common = {
        "model_name": "perceptron", "device": "cpu", "learning_rate": LR, "weight_decay": 0.0, "milestones": [],
        "learning_rate_decay": 1.0, "optimizer_name": "SGD", "optimizer_params": {},
    }  # fmt: skip

    def loader(client: int) -> DataLoader[Any]:
        data = TensorDataset(*examples(client))
        return DataLoader(data, sampler=BatchSampler(RandomSampler(data), batch, drop_last=False), batch_size=None)

    settings = {"loss_name": "CrossEntropyLoss", "LabelFlipping": False, "nb_labels": CLASSES, "momentum": 0.0}
    clients = [
        Client(common | settings | {"training_dataloader": loader(client), "store_per_client_metrics": False})
        for client in range(CLIENTS)
    ]
    rule = {"aggregator_info": {"name": "Average", "parameters": {}}, "pre_agg_list": []}
    server, seen = Server(common | rule | {"test_loader": loader(CLIENTS)}), Watch()
    for _ in range(ROUNDS):  # as the loop of byzfl.benchmark.train
        state = server.get_dict_parameters()
        for client in clients:
            client.set_model_state(state)
            client.compute_model_update(-(-EXAMPLES // batch))
        server.update_model_with_weights([client.get_flat_parameters() for client in clients])
        seen()
    seen.say()


def flower(batch: int) -> None:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: PLC0415
    from flwr.clientapp import ClientApp  # noqa: PLC0415
    from flwr.serverapp import Grid, ServerApp  # noqa: PLC0415
    from flwr.serverapp.strategy import FedAvg  # noqa: PLC0415
    from flwr.simulation import run_simulation  # noqa: PLC0415

    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  (Ray's name; by default its workers give way to all others)
    server, client, held, seen = ServerApp(), ClientApp(), dict[int, Any](), Watch()

    @client.train()
    def learn(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        number = int(context.node_config["partition-id"])
        if number not in held:
            held[number] = examples(number)
        module = perceptron()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(module, *held[number], batch)
        content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": EXAMPLES})}
        return Message(RecordDict(content), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        start = ArrayRecord(perceptron().state_dict())
        strategy.start(grid, start, num_rounds=ROUNDS, evaluate_fn=seen)

    options = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"address": "local", "num_cpus": 2, "include_dashboard": False},
    }
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=options)
    seen.say(2)  # the first call is before the first round


WAYS: dict[str, tuple[Callable[[int], None], str, tuple[str, ...]]] = {  # what is timed, whose environment, launcher
    "ours": (ours, "", ()),
    "ours-compiled": (lambda batch: ours(batch, "compiled"), "", ()),
    "plain": (plain, "", ()),
    "pfl": (pfl, "pfl", ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")),
    "byzfl": (byzfl, "byzfl", ()),
    "flower": (flower, "flwr-simulation", ()),
}


def every(batch: int, folder: Path, repeats: int) -> None:
    """Let all take turns, and print medians, and the ratios to ours of the same turn, with the least and the most."""
    found = dict[str, list[tuple[float, float]]]()
    for _ in range(repeats):
        for name, (_, peer, launcher) in WAYS.items():
            python = str(folder / peer / "bin" / "python") if peer else sys.executable
            command = [python, *launcher, __file__, name, "--batch", str(batch)]
            marked = os.environ | {MARK: secrets.token_hex(8)}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=marked)
            if lines := [line for line in done.stdout.splitlines() if line.startswith("SECONDS")]:
                wall, cpu = map(float, lines[0].split()[1:])
                found.setdefault(name, []).append((wall, cpu))
                print(f"{name}: {wall:.3f} s, {cpu:.3f} s of CPU time; load {os.getloadavg()[0]:.1f}", flush=True)
            else:
                print(f"{name} failed: {done.stderr[-2000:]}", file=sys.stderr)
    for name, measured in found.items():
        for number, what in enumerate(("s", "s of CPU time")):
            ratios = [a[number] / b[number] for a, b in zip(measured, found["ours-compiled"], strict=False)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"batches of {batch}: {name} {statistics.median(m[number] for m in measured):.3f} {what}, {spread}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["all", *WAYS])
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="of the environments of peers")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.what == "all":
        every(options.batch, options.folder, options.repeats)
    else:
        WAYS[options.what][0](options.batch)
