"""One of our rules on a matrix of 4 GB in a fresh process: time, peak memory above the matrix, time of one reading.

python -m contestants.huge RULE ROWS COLUMNS THREADS REPEATS PARAMETERS
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from contestants import ours

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(peak: bool) -> int | None:
    """Return the current or peak memory of this process in bytes; None if the system does not report it."""
    if not STATUS.exists():
        return None
    field = "VmHWM:" if peak else "VmRSS:"
    return next(1024 * int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(field))


def milliseconds(call: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begun))
    return times


def main() -> None:
    rule, (rows, columns, threads, repeats) = sys.argv[1], map(int, sys.argv[2:6])
    parameters = json.loads(sys.argv[6])
    torch.set_num_threads(threads)
    small = torch.randn(rows, 1_000_000 // rows).numpy()
    if not (warm := ours.forms(rule, parameters, small, None, threads)):
        print(json.dumps(None))
        return
    warm["torch"].call(None)  # imports and compilers are neither timed nor weighed
    matrix = torch.empty(rows, columns)
    for row in matrix:
        row.normal_()
    form = ours.forms(rule, parameters, matrix.numpy(), None, threads)["torch"]
    matrix.sum()
    before = resident(peak=False)
    if before is not None:
        RESET.write_text("5")  # the peak starts again from here
    times = milliseconds(lambda: form.call(None), repeats)
    peak = resident(peak=True)
    reading = milliseconds(matrix.sum, repeats)
    above = None if before is None or peak is None else peak - before
    print(json.dumps({"milliseconds": times, "reading": reading, "above": above, "matrix": matrix.nbytes}))


if __name__ == "__main__":
    main()
