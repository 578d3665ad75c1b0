"""ByzPy's rules, called directly and on its pool of worker processes, with the sizes of chunks of its benchmarks."""

import asyncio
import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from byzpy.aggregators.coordinate_wise import CoordinateWiseMedian, CoordinateWiseTrimmedMean, MeanOfMedians
from byzpy.aggregators.geometric_wise import SMEA, GeometricMedian, Krum, MinimumDiameterAveraging, MoNNA, MultiKrum
from byzpy.aggregators.norm_wise import CAF, CenteredClipping
from byzpy.engine.graph.ops import make_single_operator_graph
from byzpy.engine.graph.pool import ActorPool, ActorPoolConfig
from byzpy.engine.graph.scheduler import NodeScheduler
from byzpy.pre_aggregators import ARC, Bucketing, Clipping, NearestNeighborMixing

from contestants.workloads import Form, Parameters

PACKAGES = ("byzpy", "torch", "numpy")
MAKERS: dict[str, Callable[[Parameters], Any]] = {
    "Median": lambda p: CoordinateWiseMedian(chunk_size=8192),
    "TrimmedMean": lambda p: CoordinateWiseTrimmedMean(f=p["f"], chunk_size=8192),
    "Krum": lambda p: Krum(f=p["f"], chunk_size=20),
    "MultiKrum": lambda p: MultiKrum(f=p["f"], q=p["m"], chunk_size=20),
    "GeometricMedian": lambda p: GeometricMedian(chunk_size=8),
    "CenteredClipping": lambda p: CenteredClipping(c_tau=p["radius"], M=p["iterations"], chunk_size=32),
    "MeaMed": lambda p: MeanOfMedians(f=p["f"], chunk_size=8192),
    "MDA": lambda p: MinimumDiameterAveraging(f=p["f"], chunk_size=256),
    "MoNNA": lambda p: MoNNA(f=p["f"], reference_index=p["reference"], chunk_size=32),
    "CAF": lambda p: CAF(f=p["f"], chunk_size=32),
    "SMEA": lambda p: SMEA(f=p["f"], chunk_size=256),
    "Clip": lambda p: Clipping(threshold=p["radius"]),
    "AdaptiveClip": lambda p: ARC(f=p["f"], chunk_size=256),
    "NearestNeighborMixing": lambda p: NearestNeighborMixing(f=p["f"], feature_chunk_size=2048),
    "Bucketing": lambda p: Bucketing(bucket_size=p["s"], perm=p.get("permutation")),
}


def versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}


def forms(
    rule: str, parameters: Parameters, matrix: np.ndarray, weights: np.ndarray | None, threads: int
) -> dict[str, Form]:
    """Return the forms of a rule by name; none if ByzPy lacks it or weights are given: its rules take no weights."""
    if rule not in MAKERS or weights is not None:
        return {}
    rows = list(torch.from_numpy(matrix))
    direct = MAKERS[rule](parameters)
    call = direct.pre_aggregate if hasattr(direct, "pre_aggregate") else direct.aggregate
    found = {"direct": Form(lambda _: call(rows))}
    if threads > 1:
        found[f"pool of {threads}"] = Form(_pooled(MAKERS[rule](parameters), rows, threads))
    return found


def _pooled(operator: Any, rows: list[torch.Tensor], workers: int) -> Callable[[Any], Any]:
    loop, pool = _pool(workers)
    graph = make_single_operator_graph(node_name="rule", operator=operator, input_keys=(operator.input_key,))
    scheduler = NodeScheduler(graph, pool=pool)
    return lambda _: loop.run_until_complete(scheduler.run({operator.input_key: rows}))["rule"]


@cache
def _pool(workers: int) -> tuple[asyncio.AbstractEventLoop, ActorPool]:
    """Return a pool of processes with one thread each, started once: their start is not timed."""
    ours = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    os.environ.update(dict.fromkeys(ours, "1"))
    loop, pool = asyncio.new_event_loop(), ActorPool([ActorPoolConfig(backend="process", count=workers)])
    loop.run_until_complete(pool.start())
    os.environ.update({name: value for name, value in ours.items() if value is not None})
    return loop, pool


def array(result: Any) -> np.ndarray:
    return np.stack([np.asarray(row) for row in result]) if isinstance(result, list) else np.asarray(result)
