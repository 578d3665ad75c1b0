"""Whether the baselines of a table have learned anything: without that, the table says nothing about the others."""

from collections.abc import Mapping, Sequence

from phalanx.aggregators import Mean
from phalanx.algorithms import FedAvg, Standalone
from phalanx.experiments.trace import Trace
from phalanx.runs.learning import CAUSE, at_chance
from phalanx.runs.plan import Run


def untrained(cells: Mapping[str, tuple[Run, Sequence[Trace]]]) -> list[str]:
    """Return a sentence for each baseline, without an attack, of which half of the models or more end at chance.

    Args:
        cells: a run and its traces, by cell. Baselines are `Standalone` and plain `FedAvg`.
    """
    out = []
    for cell, (plan, traces) in cells.items():
        for trace in traces if _baseline(plan) and plan.attack is None else ():
            final = trace.final()
            values = [*trace.received_accuracy.values()] or ([] if final is None else [final])
            stuck, of = (0, 0) if trace.failed else at_chance(values, plan)
            if of and 2 * stuck >= of:
                out.append(f"{cell} (seed {trace.seed}): {stuck} of {of} models are at chance at the end. {CAUSE}")
    return out


def _baseline(plan: Run) -> bool:
    algorithm = plan.algorithm
    return isinstance(algorithm, Standalone) or (type(algorithm) is FedAvg and isinstance(algorithm.aggregate, Mean))
