"""What `phalanx verify` costs, next to what the coordinator did to make each model of the updates that came.

python tests/reliability/verification_cost.py

Ten clients, five steps, Flower's messages within one process.  Processor time in ms of the whole run: of the rule; of
the coordinator's thread, which packs tasks, reads answers, checks their signatures, aggregates and writes evidence and
record; and of `phalanx verify` on the folder that is left.  Each is the smallest of three runs.
"""

import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from flower.federations import KEYS, MINE, SMALL, at_nodes, coordinator, honest, named
from phalanx import LocalSGD, Until
from phalanx.aggregators import Krum, Mean, Median
from phalanx.aggregators.aggregator import Aggregator
from phalanx.algorithms import FedAvg
from phalanx.flower import InProcessGrid, coordinate
from phalanx.models import MLP
from phalanx.runs.verification import verify

CLIENTS, STEPS, TIMES = 10, 5, 3
WIDTHS = (4, 15_000, 150_000)  # of the hidden layer: 34, 120,002 and 1,200,002 parameters


def measured(rule: Aggregator, width: int, *, keep: bool) -> tuple[float, float, float, int]:
    """The times of rule, coordinator and verification in ms, and the bytes of kept updates."""
    plan = dataclasses.replace(
        SMALL, clients=CLIENTS, algorithm=FedAvg(rule), model=MLP((width,)), training=LocalSGD(batch_size=5),
        until=Until(STEPS),
    )  # fmt: skip
    spent = list[float]()
    step = FedAvg.step

    def timed(self: FedAvg, *args: Any) -> Any:
        begun = time.thread_time()
        try:
            return step(self, *args)
        finally:
            spent.append(time.thread_time() - begun)

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        apps = at_nodes(honest(plan, place, coordinator=MINE))
        options = {"folder": place / "run", "roster": named(CLIENTS), "key": KEYS[11], "keep_updates": keep}
        FedAvg.step = timed  # type: ignore[method-assign,assignment]
        try:
            begun = time.thread_time()
            with InProcessGrid(apps) as grid:
                coordinate(grid, coordinator(plan, **options))
            coordinated = time.thread_time() - begun
        finally:
            FedAvg.step = step  # type: ignore[method-assign]
        begun = time.process_time()
        found = verify(place / "run")
        verified = time.process_time() - begun
        assert found.status == 0, found
        kept = sum(path.stat().st_size for path in (place / "run").glob("updates/*"))
    return 1e3 * sum(spent), 1e3 * coordinated, 1e3 * verified, kept


def main() -> None:
    print("| parameters | updates kept | rule | of the rule | of the coordinator | of `verify` |")
    print("| --- | --- | --- | --- | --- | --- |")
    for keep in (False, True):
        for width in WIDTHS:
            for rule in (Mean(), Median(), Krum(2)):
                runs = [measured(rule, width, keep=keep) for _ in range(TIMES)]
                step, coordinated, verified, kept = (min(column) for column in zip(*runs, strict=True))
                held = f"yes, {kept / 1e6:,.0f} MB" if keep else "no"
                name = type(rule).__name__
                print(
                    f"| {8 * width + 2:,} | {held} | {name} | {step:.0f} | {coordinated:.0f} | {verified:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
