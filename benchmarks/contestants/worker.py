"""A library in a separate process, which reads one order per line and writes one answer per line.

python -m contestants.worker ours|byzfl|byzpy|flwr|strategies THREADS GIGABYTES

Orders and answers are JSON, over the standard streams; what the library prints goes to standard error.
"""

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any

import numpy as np

from contestants.outcomes import outcomes
from contestants.workloads import Form, Parameters, Workload

QUICK = 500.0  # milliseconds
MODULES = {
    "ours": "ours",
    "byzfl": "byzfl_rules",
    "byzpy": "byzpy_rules",
    "flwr": "flwr_rules",
    "strategies": "flwr_strategies",
}


class Worker:
    """The library and its current workload."""

    def __init__(self, name: str, threads: int) -> None:
        self.library = importlib.import_module("contestants." + MODULES[name])
        self.threads = threads
        self.forms: dict[str, Form] = {}
        self.took: dict[str, float] = {}  # milliseconds of the last call of each form
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)

    def hello(self) -> dict[str, Any]:
        return {"python": sys.version.split()[0], **self.library.versions()}

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

    def conform(self, rule: str, parameters: Parameters, inputs: list[dict[str, Any]]) -> dict[str, list[Any]]:
        """Return the outcome of each form on each of some inputs; see `outcomes`."""
        return outcomes(self.library, rule, parameters, inputs)

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


def limit_memory(gigabytes: float) -> None:
    """Limit memory, so that the library fails and not the machine: some rules list all subsets."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)


def main() -> None:
    limit_memory(float(sys.argv[3]))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"answer": getattr(worker, order.pop("order"))(**order)}
        except Exception as error:  # whatever a library raises is a result
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
