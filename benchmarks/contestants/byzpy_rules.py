"""ByzPy's rules, called directly and on its pool of worker processes."""

import asyncio
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from byzpy.engine.graph.ops import make_single_operator_graph
from byzpy.engine.graph.pool import ActorPool, ActorPoolConfig
from byzpy.engine.graph.scheduler import NodeScheduler

from phalanx.conformance import byzpy_rules as library
from phalanx.conformance.byzpy_rules import PACKAGES, array
from phalanx.conformance.rule_form import Parameters, RuleForm

__all__ = ["PACKAGES", "array", "forms"]


def forms(
    rule: str, parameters: Parameters, matrix: np.ndarray, weights: np.ndarray | None, threads: int
) -> dict[str, RuleForm]:
    """Return the forms of a rule by name; none if ByzPy lacks it or weights are given: its rules take no weights."""
    found = {} if weights is not None else library.forms(rule, parameters, matrix)
    if found and threads > 1:
        rows = list(torch.from_numpy(matrix))
        found[f"pool of {threads}"] = RuleForm(_pooled(library.MAKERS[rule](parameters), rows, threads))
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
