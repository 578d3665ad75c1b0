"""Fuzz the readers of what comes from outside with Atheris, guided by coverage.

python tests/reliability/fuzz.py [--targets codec wire] [--executions 1000000] [--seed 1]

Needs Atheris: pip install atheris.  Each target is a process of its own; without --executions, each is executed as
often as its own figure says (10^6 for messages and checkpoints, 10^5 for the others).  Begins with the stored corpus.
An input that takes more than 10 s or 2 GiB of memory is a mistake, too.  The first mistake ends a target, and its
input is kept in the current folder as `crash-...`.  With --keep, inputs that reach new lines are added to the corpus.
"""

import argparse
import base64
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "corpus"
SLOWEST, LARGEST = 10, 2048  # seconds and MiB of one input
LONGEST = 2048  # bytes of one input
ODD = (
    "NaN",
    "-1",
    "1e999",
    "9223372036854775808",
    "null",
    "[[",
    "{}",
    "\\x00",
    "\\xff",
    "\\xef\\xbb\\xbf",
    "'",
    "void",
    "object",
)
STORED = 18_000  # bytes of the corpus of one target


def stored(name: str) -> list[bytes]:
    """Return the inputs that are kept for a target: one on each line, in base64."""
    path = CORPUS / f"{name}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.is_file() else []


def child(name: str, arguments: list[str]) -> None:
    """Fuzz one target in this process, which ends with that."""
    import atheris
    import torch  # noqa: F401  (not to be instrumented)

    with atheris.instrument_imports(include=["phalanx.flower", "phalanx.runs", "phalanx.reading", "phalanx.data",
                                             "phalanx.simulation.traces", "phalanx.cli.weights_files"]):  # fmt: skip
        from reliability.targets import TARGETS, Refused

    check = TARGETS[name].check

    def once(data: bytes) -> None:
        with contextlib.suppress(Refused):
            check(data)

    atheris.Setup([sys.argv[0], *arguments], once)
    atheris.Fuzz()


def started(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run libFuzzer on one target in a new process."""
    command = [sys.executable, __file__, "--child", name, f"-timeout={SLOWEST}", f"-rss_limit_mb={LARGEST}",
               f"-max_len={LONGEST}", *arguments]  # fmt: skip
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)


def keep(name: str, folder: Path) -> None:
    """Store the smallest set of inputs that reaches the same lines, the shortest first, as far as there is room."""
    merged = folder.with_name("merged")
    merged.mkdir()
    started(name, "-merge=1", str(merged), str(folder))
    lines, room = list[str](), STORED
    for content in sorted((path.read_bytes() for path in merged.iterdir()), key=lambda c: (len(c), c)):
        lines.append(base64.b64encode(content).decode())
        room -= len(lines[-1]) + 1
        if room < 0:
            break
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines if line))


def vocabulary(seeds: list[bytes]) -> list[str]:
    """Return words to insert: those of valid inputs, and values that are often handled badly."""
    own = {word.decode() for seed in seeds for word in re.findall(rb"[A-Za-z_]{3,20}", seed)}
    return [*sorted(own), *ODD]


def fuzzed(name: str, seeds: list[bytes], options: argparse.Namespace, executions: int) -> bool:
    """Fuzz one target, print a line about it, and return whether nothing was found."""
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as made:
        folder = Path(made) / "inputs"
        folder.mkdir()
        for k, content in enumerate([*seeds, *stored(name)]):
            (folder / f"{k:05d}").write_bytes(content)
        words = folder.with_name("words")
        words.write_text("".join(f'"{word}"\n' for word in vocabulary(seeds)))
        begun = time.monotonic()
        limits = (f"-runs={executions}", f"-seed={options.seed}", f"-dict={words}", "-print_final_stats=1")
        done = started(name, *limits, str(folder))
        seconds = time.monotonic() - begun
        said = dict(re.findall(r"^stat::(\w+): +(\d+)$", done.stderr, re.MULTILINE))
        count, peak = int(said.get("number_of_executed_units", 0)), said.get("peak_rss_mb", "?")
        print(f"{name}: {count:,} executions, {seconds:.0f} s, {peak} MB at most", flush=True)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if not line.startswith("#")]
            print(f"exit {done.returncode}\n{done.stdout[-3000:]}", *said[-60:], sep="\n", flush=True)
        elif options.keep:
            keep(name, folder)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+")
    parser.add_argument("--executions", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from reliability.targets import TARGETS

    chosen = {name: TARGETS[name] for name in options.targets or TARGETS}
    fine = [
        fuzzed(name, target.seeds(), options, options.executions or target.executions)
        for name, target in chosen.items()
    ]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
