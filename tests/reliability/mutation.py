"""Change the code in one place at a time, and see whether the tests fail.

pip install cosmic-ray==8.7.0
nice -n 19 python tests/reliability/mutation.py [--sample 300] [--seed 1] [--most 300] [--jobs 1]

The mutants are those of Cosmic Ray's operators in `MODULES`, but for `left_out` and `operators`.  They are drawn by a
seed: each N/n-th in the order of the files, from a random place on, so that each module has its share; then they are
shuffled, so that the first ones are a sample, too.  Each is tried in a fork of one process that has imported what it
does not change, on a copy of `src`: with the tests of its module (`focused`), without those marked slow.  What these
let pass is tried with all tests of its room (`room`) at the end.  A test that fails kills a mutant, and so do too many
seconds of a processor.  Results are added to build/mutation/results.jsonl, and given again, the command goes on.
"""

import argparse
import difflib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

try:
    from cosmic_ray import plugins
except ImportError as error:
    raise SystemExit("This needs the package cosmic-ray. Install it: pip install cosmic-ray==8.7.0.") from error

import pytest
import torch
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from parso.tree import NodeOrLeaf

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build/mutation"
RESULTS = WORK / "results.jsonl"
UNCHANGED = ("hypothesis", "matplotlib.pyplot", "numba", "phalanx.attacks", "phalanx.simulation")
SECONDS = {"focused": 60, "room": 900}  # of a processor; three times as much for checkpoints
BYTES = 16 * 2**30  # of addresses
ROOMS = ("algorithms", "engine", "weighting", "clustering")
FILES = ("flower/codec.py", "flower/identity.py", "runs/checkpoint.py")
MODULES = [*(f"{room}/{path.name}" for room in ROOMS for path in sorted(ROOT.glob(f"src/phalanx/{room}/*.py"))), *FILES]
FOCUSED = {  # tests of modules whose name is not that of a file of tests
    "arrivals": "algorithms/test_fedasync.py algorithms/test_quorum.py algorithms/test_catalyst.py",
    "clustered_fl": "algorithms/test_clustered_fl.py algorithms/test_clustered_absence.py",
    "fedbuff": "algorithms/test_fedbuff.py engine/test_lost_rounds.py",
    "feddyn": "algorithms/test_corrected_training.py",
    "fednova": "algorithms/test_corrected_training.py",
    "hidden": "algorithms/test_wrappers.py",
    "kernels": "clustering/test_agglomerative.py clustering/test_bipartition.py",
    "ledger": "engine/test_engine.py",
    "loop": "engine/test_engine.py engine/test_enrolment.py engine/test_lost_rounds.py",
    "memory": "clustering/test_peeling.py algorithms/test_clustered_absence.py",
    "momentum": "algorithms/test_basgd.py algorithms/test_async_momentum.py",
    "participation": "engine/test_engine.py",
    "preprocess": "weighting/test_preprocess.py weighting/test_subset.py",
    "profiles": "clustering/test_peeling.py",
    "reputation": "algorithms/test_rffl.py algorithms/test_async_rffl.py",
    "running": "algorithms/test_running.py",
    "rffl": "algorithms/test_rffl.py algorithms/test_agreement.py",
    "reference": "engine/test_engine.py reliability/test_stateful.py",
    "rounds": "algorithms/test_fedavg.py",
    "sampling": "weighting/test_subset.py",
    "scaffold": "algorithms/test_corrected_training.py",
    "several": "algorithms/test_flhc.py algorithms/test_ifca.py algorithms/test_stocfl.py",
    "spanning_tree": "clustering/test_density.py clustering/test_bipartition.py",
    "staleness": "algorithms/test_fedasync.py algorithms/test_fedbuff.py",
    "truncation": "weighting/test_truncation.py weighting/test_subset.py",
    "worker_momentum": "algorithms/test_corrected_training.py",
}
GENERAL = ("test_ranges.py", "runs/test_defaults.py", "runs/test_identities.py")  # of all rooms
ALSO = {"algorithms": ("engine/test_lost_rounds.py",), "engine": ("simulation",)}  # tests elsewhere of a room


class Mutant(NamedTuple):
    module: str
    operator: str
    occurrence: int
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator} {self.occurrence}"

    @property
    def code(self) -> tuple[str, str]:
        """What stands there, and what the mutant makes of it."""
        source = (ROOT / "src/phalanx" / self.module).read_text()
        return source, mutate_code(source, plugins.get_operator(self.operator)(), self.occurrence)

    @property
    def compiles(self) -> bool:
        """Say whether it is Python: of `f(**options)`, `**` is replaced, too."""
        try:
            compile(self.code[1], self.module, "exec")
        except SyntaxError:
            return False
        return True

    @property
    def change(self) -> list[str]:
        lines = difflib.unified_diff(*(text.splitlines() for text in self.code), n=0, lineterm="")
        return [line for line in lines if not line.startswith(("---", "+++", "@@"))]

    @property
    def focused(self) -> list[str]:
        room, stem = Path(self.module).parent.name, Path(self.module).stem
        named = FOCUSED.get(stem) or f"{room}/test_{stem}*.py"
        return [str(path) for name in named.split() for path in sorted(ROOT.glob(f"tests/{name}"))] or self.room

    @property
    def room(self) -> list[str]:
        if (room := Path(self.module).parent.name) in ROOMS:
            return [str(ROOT / "tests" / name) for name in (*GENERAL, room, *ALSO.get(room, ()))]
        return [*(str(ROOT / "tests" / name) for name in GENERAL), *self.focused]


def operators() -> list[str]:
    """Of Cosmic Ray: those without arguments, but for operations on bits, which floats do not have, and identity."""
    bits = ("RShift", "LShift", "BitOr", "BitAnd", "BitXor", "Is", "IsNot", "NoOp")
    names = [name for name in sorted(plugins.operator_names()) if not plugins.get_operator(name).arguments()]
    return [name for name in names if name.rpartition("_")[2].rpartition("/")[2] not in bits]


def left_out(node: NodeOrLeaf) -> bool:
    """Say whether a place is in the annotation of a type, or in the text of a message."""
    while (above := node.parent) is not None:
        if above.type == "fstring" or (above.type in ("annassign", "tfpdef") and above.children[1:2] == [node]):
            return True
        if above.type == "tfpdef" or (above.type == "funcdef" and above.annotation is node):
            return True
        node = above
    return False


def mutants(module: str) -> Iterator[Mutant]:
    nodes = list(ast_nodes(get_ast((ROOT / "src/phalanx" / module).read_text())))
    for name in operators():
        operator = plugins.get_operator(name)()
        places = [(node, start) for node in nodes for start, _ in operator.mutation_positions(node)]
        for k, (node, (line, _)) in enumerate(places):
            if not left_out(node):
                yield Mutant(module, name, k, line)


def drawn(n: int, seed: int) -> tuple[int, list[Mutant]]:
    """The number of all mutants, and n of them in random order."""
    every = [mutant for module in MODULES for mutant in sorted(mutants(module), key=lambda it: (it.line, it))]
    rng = random.Random(seed)
    step = len(every) / n
    first = rng.uniform(0, step)
    sample = [mutant for k in range(n) if (mutant := every[int(first + k * step)]).compiles]
    rng.shuffle(sample)
    return len(every), sample


def warm(src: Path) -> None:
    """Import what no module of `MODULES` changes, with types checked as in the tests, for the forks to come."""
    sys.path[:0] = [str(src), str(ROOT / "tests")]
    os.environ |= {"CI": "true", "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(WORK / "numba"), "PYTHONPATH": str(src)}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.chdir(ROOT)
    import_module("typechecking").check("phalanx")
    for name in UNCHANGED:
        import_module(name)
    assert not [module for module in MODULES if f"phalanx.{module[:-3].replace('/', '.')}" in sys.modules]


def status(tests: list[str], seconds: int) -> str:
    """How pytest ends in a process of its own: "passed" if all tests pass."""
    if pid := os.fork():
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return {0: "passed", 1: "failed", -signal.SIGXCPU: "too long"}.get(ended, f"ended with {ended}")
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 10))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    options = ["-qx", "-m", "not slow", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    ended = 99
    try:
        ended = pytest.main([*options, *tests])
    finally:
        os._exit(ended)


def tried(mutant: Mutant, scope: str, src: Path) -> dict[str, object]:
    """Change the copy, run the tests, and put the copy right again, with its date, for the caches."""
    path = src / "phalanx" / mutant.module
    path.write_text(mutant.code[1])
    ended = status(getattr(mutant, scope), SECONDS[scope] * (3 if mutant.module.startswith("runs") else 1))
    shutil.copy2(ROOT / "src/phalanx" / mutant.module, path)
    return {"mutant": str(mutant), "tests": scope, "ended": ended, "change": mutant.change}


def work(sample: list[Mutant], scope: str, k: int) -> None:
    """Try mutants one after the other, on a copy of `src`."""
    src = WORK / f"src-{k}"
    shutil.copytree(ROOT / "src", src, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    warm(src)
    assert status([str(ROOT / "tests/clustering/test_agglomerative.py")], 900) == "passed"  # and compiles the kernels
    for mutant in sample:
        result = tried(mutant, scope, src)
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share of which k of n were seen."""
    middle, half = k / n + z * z / (2 * n), z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def results() -> dict[str, dict[str, str]]:
    """How the tests of each kind ended, the last time, by mutant."""
    known = dict[str, dict[str, str]]()
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else []:
        result = json.loads(line)
        known.setdefault(result["mutant"], {})[result["tests"]] = result["ended"]
    return known


def try_all(sample: list[Mutant], scope: str, jobs: int) -> None:
    """Try the mutants that no test has killed, and that were not tried with these tests, in so many processes."""
    ended = results()
    so_far = {mutant: ended.get(str(mutant), {}) for mutant in sample}
    left = [m for m, how in so_far.items() if scope not in how and {"passed"}.issuperset(how.values())]
    workers = []
    for k in range(jobs):
        if not (pid := os.fork()):
            work(left[k::jobs], scope, k)
            os._exit(0)
        workers.append(pid)
    for pid in workers:
        os.waitpid(pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, help="try the first ones of the sample only")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    WORK.mkdir(parents=True, exist_ok=True)
    count, sample = drawn(options.sample, options.seed)
    sample = sample[: options.most]
    print(f"{count:,} mutants in {len(MODULES)} modules, {len(sample)} drawn", flush=True)
    for scope in ("focused", "room"):
        try_all(sample, scope, options.jobs)
    ended = results()
    survivors = [mutant for mutant in sample if set(ended[str(mutant)].values()) == {"passed"}]
    for mutant in survivors:
        print(mutant, *mutant.change, sep="\n")
    killed = len(sample) - len(survivors)
    low, high = wilson(killed, len(sample))
    print(f"{killed} of {len(sample)} killed, {killed / len(sample):.1%} ({low:.1%} to {high:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
