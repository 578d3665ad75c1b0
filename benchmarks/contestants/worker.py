"""A library in a separate process, which reads one order per line and writes one answer per line.

python -m contestants.worker ours|byzfl|byzpy|flwr THREADS GIGABYTES
"""

import sys
import time
from typing import Any

import numpy as np

from contestants.workloads import Workload
from phalanx.conformance import worker
from phalanx.conformance.rule_form import Parameters, RuleForm

QUICK = 500.0  # milliseconds
MODULES = {"ours": "ours", "byzfl": "byzfl_rules", "byzpy": "byzpy_rules", "flwr": "flwr_rules"}


class Worker(worker.Worker):
    """The library and its current workload."""

    def __init__(self, name: str, threads: int) -> None:
        super().__init__("contestants." + MODULES[name], threads)
        self.forms: dict[str, RuleForm] = {}
        self.took: dict[str, float] = {}  # milliseconds of the last call of each form

    def prepare(self, **workload: Any) -> list[str]:
        """Make the matrix, and return the forms in which the library has the rule."""
        self.forms, self.took = {}, {}  # gives back the previous matrix
        work = Workload(**workload)
        self.forms = self.library.forms(work.rule, work.parameters, work.matrix(), work.weights(), self.threads)
        return list(self.forms)

    def given(self, rule: str, parameters: Parameters, matrix: list[Any], weights: list[Any] | None) -> dict[str, Any]:
        """Return each form's result for a given matrix, in float64 if the form preserves it."""
        w = None if weights is None else np.array(weights)
        found = self.library.forms(rule, parameters, np.array(matrix, dtype=np.float64), w, self.threads)
        return {name: self.library.array(form.call(form.prepare())).tolist() for name, form in found.items()}

    def run(self, form: str, path: str | None = None) -> float:
        """Run one form once and return the milliseconds; save the result if a path is given.

        A quick form is run once more before, untimed: its threads are awake then, and the matrix is where it can be.
        """
        chosen = self.forms[form]
        if self.took.get(form, QUICK) < QUICK:
            chosen.call(chosen.prepare())
        prepared = chosen.prepare()
        begun = time.perf_counter()
        result = chosen.call(prepared)
        elapsed = 1e3 * (time.perf_counter() - begun)
        self.took[form] = elapsed
        if path is not None:
            np.save(path, self.library.array(result))
        return elapsed


if __name__ == "__main__":
    worker.limit_memory(float(sys.argv[3]))
    worker.serve(Worker(sys.argv[1], int(sys.argv[2])))
