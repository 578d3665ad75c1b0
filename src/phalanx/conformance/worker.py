"""A library in a process of its own, which reads one order per line and writes one answer per line.

python -m phalanx.conformance.worker MODULE THREADS GIGABYTES

Orders and answers are JSON, over the standard streams; what the library prints goes to standard error.  `MODULE` is an
import path or a file.
"""

import json
import os
import sys
import traceback
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.conformance.outcomes import outcomes
from phalanx.conformance.rule_form import Parameters


class Worker:
    """Carries out orders with a library.

    Args:
        module: of the library, as an import path or a file.
        threads: on which it may compute.
    """

    def __init__(self, module: str, threads: int) -> None:
        self.module, self.threads = module, threads

    @cached_property
    def library(self) -> ModuleType:
        """The module, imported at the first order, so that an error is an answer."""
        found = _of_file(Path(self.module)) if self.module.endswith(".py") else import_module(self.module)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(self.threads)
        return found

    def hello(self) -> dict[str, str]:
        """Return the versions of Python and of the library's packages."""
        return {"python": sys.version.split()[0], **{name: version(name) for name in self.library.PACKAGES}}

    def conform(self, rule: str, parameters: Parameters, inputs: list[dict[str, Any]]) -> dict[str, list[Any]]:
        """Return the outcome of each form on each of some inputs; see `outcomes`."""
        return outcomes(self.library, rule, parameters, inputs)


def _of_file(file: Path) -> ModuleType:
    sys.path.append(str(file.parent))
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def limit_memory(gigabytes: float) -> None:
    """Limit memory, so that the library fails and not the machine: some rules list all subsets."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)


def serve(worker: Worker) -> None:
    """Answer until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"answer": getattr(worker, order.pop("order"))(**order)}
        except Exception as error:  # whatever a library raises is a result
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    limit_memory(float(sys.argv[3]))
    serve(Worker(sys.argv[1], int(sys.argv[2])))
