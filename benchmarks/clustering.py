"""Cost of a bi-partition, compared with SciPy's linkage: time on one core, and memory in addition to the similarities.

python benchmarks/clustering.py [--sizes 100 1000 10000] [--repeats 7] [--dtype float32] [--output clustering.json]

Each measurement is a separate process with one thread.  Ours starts from the (m, m) matrix, as in a run.  SciPy's
starts from the condensed distances 1 - alpha in float64: converting the similarities counts as part of its time and
memory; the time of the linkage alone is in a separate column.  Times are the best and the median of the repeats, after
a first call that compiles.  Memory is the peak of the process above its use with the matrix: 0 if freed memory was
enough.  The similarities are cosines of random vectors in 64 dimensions.  Equivalent methods must give equal results.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

CONTESTANTS = ("ours single", "SciPy single", "ours complete", "SciPy complete", "Algorithm 1 as printed")
PRINTED_UP_TO = 1000  # items up to which the paper's loop over all pairs is tried
MEASURE = """
import json, resource, sys, time
import numpy as np, torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from phalanx.clustering import bipartition, cross_similarity

inside = []

def peer(alpha, method):
    distances = squareform(1 - alpha.numpy().astype(np.float64), checks=False)
    begun = time.perf_counter()
    tree = linkage(distances, method)
    inside.append(time.perf_counter() - begun)
    labels = fcluster(tree, 2, "maxclust")
    return tuple(map(int, np.flatnonzero(labels == labels[0]))), tuple(map(int, np.flatnonzero(labels != labels[0])))

def printed(alpha, _):
    m = len(alpha)
    groups = [{i} for i in range(m)]
    for pair in np.argsort(-alpha.numpy(), axis=None):
        i, j = divmod(int(pair), m)
        if i == j:
            continue
        touched = [c for c in groups if i in c or j in c]
        groups = [c for c in groups if c not in touched] + [set().union(*touched)]
        if len(groups) == 2:
            return tuple(tuple(sorted(c)) for c in sorted(groups, key=min))

torch.set_num_threads(1)
what, m, repeats, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4])
function, method = {"ours": (bipartition, what.split()[1]), "SciPy": (peer, what.split()[1]),
                    "Algorithm": (printed, None)}[what.split()[0]]
unit = torch.randn(m, 64, generator=torch.Generator().manual_seed(0), dtype=dtype)
unit /= unit.norm(dim=1, keepdim=True)
alpha = torch.empty(m, m, dtype=dtype)
torch.mm(unit, unit.T, out=alpha)
for i in range(m):
    alpha[i + 1:, i] = alpha[i, i + 1:]
alpha.fill_diagonal_(1)
function(alpha[:20, :20].contiguous(), method)
inside.clear()
held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
times = []
for _ in range(repeats):
    begun = time.perf_counter()
    groups = function(alpha, method)
    times.append(time.perf_counter() - begun)
extra = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held
found = {"seconds": sorted(times), "inside": min(inside, default=None), "extra_kib": extra}
print(json.dumps(found | {"cross": cross_similarity(alpha, groups)}))
"""


def measured(what: str, m: int, repeats: int, dtype: str) -> dict[str, Any]:
    """Return sorted seconds, kibibytes, and alpha_cross of the result."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    command = [sys.executable, "-c", MEASURE, what, str(m), str(repeats), dtype]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def compare(m: int, repeats: int, dtype: str) -> dict[str, Any]:
    """Measure all contestants on one matrix; equivalent methods must give equal results."""
    names = [name for name in CONTESTANTS if m <= PRINTED_UP_TO or not name.startswith("Algorithm")]
    found = {name: measured(name, m, repeats, dtype) for name in names}
    exact = [found[name]["cross"] for name in names if "complete" not in name]
    complete = [found[name]["cross"] for name in names if "complete" in name]
    assert len(set(exact)) == len(set(complete)) == 1, f"m = {m}: {exact}, {complete}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, {options.dtype}")
    results = {}
    for m in options.sizes:
        results[m] = compare(m, options.repeats, options.dtype)
        matrix = m * m * (4 if options.dtype == "float32" else 8) / 2**20
        print(f"\nm = {m:,}, similarities {matrix:.1f} MiB")
        print(f"{'':24}{'best':>12}{'median':>12}{'more memory':>16}{'linkage alone':>17}")
        for name, found in results[m].items():
            times = found["seconds"]
            best, middle = (f"{1e3 * t:.3f} ms" for t in (times[0], times[len(times) // 2]))
            alone = f"{1e3 * found['inside']:>14.3f} ms" if found["inside"] else ""
            print(f"{name:24}{best:>12}{middle:>12}{found['extra_kib'] / 1024:>12.1f} MiB{alone}")
    if options.output:
        options.output.write_text(json.dumps({"load": load, "dtype": options.dtype, "results": results}, indent=1))


if __name__ == "__main__":
    main()
