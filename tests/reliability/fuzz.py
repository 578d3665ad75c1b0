"""Fuzz the readers of what comes from outside with Atheris, guided by coverage; or, with --plain, without it.

python tests/reliability/fuzz.py [--targets codec wire] [--executions 1000000] [--seed 1] [--plain]

Needs Atheris: pip install atheris.  Each target is a process of its own; without --executions, each is executed as
often as its own figure says (10^6 for messages and checkpoints, 10^4 for studies, 10^5 for the others).  Begins with
the stored corpus.
An input that takes more than 10 s or 2 GiB of memory is a mistake, too.  The first mistake ends a target, and its
input is kept in the current folder as `crash-...`.  With --keep, the shortest inputs that reached something new are
stored in the corpus.  --plain makes random changes of valid inputs and of the corpus, in one process; new is then
what is refused for a new reason.
"""

import argparse
import base64
import contextlib
import importlib.util
import os
import random
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
STORED = 6_000  # bytes of the corpus of one target


def stored(name: str) -> list[bytes]:
    """Return the inputs that are kept for a target: one on each line, in base64."""
    path = CORPUS / f"{name}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.is_file() else []


def child(name: str, arguments: list[str]) -> None:
    """Fuzz one target in this process, which ends with that."""
    import atheris
    import torch  # noqa: F401  (not to be instrumented)

    with atheris.instrument_imports(include=["phalanx.flower", "phalanx.runs", "phalanx.reading", "phalanx.data",
                                             "phalanx.simulation.traces", "phalanx.cli.weights_files",
                                             "phalanx.experiments"]):  # fmt: skip
        from reliability.targets import TARGETS, RefusedError

    check = TARGETS[name].check

    def once(data: bytes) -> None:
        with contextlib.suppress(RefusedError):
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


def keep(name: str, inputs: set[bytes]) -> None:
    """Store inputs, the shortest first, as far as there is room."""
    lines, room = list[str](), STORED
    for content in sorted(inputs - {b""}, key=lambda c: (len(c), c)):
        line = base64.b64encode(content).decode()
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def vocabulary(seeds: list[bytes]) -> list[str]:
    """Return words to insert: those of valid inputs, and values that are often handled badly."""
    own = {word.decode() for seed in seeds for word in re.findall(rb"[A-Za-z_]{3,20}", seed)}
    return [*sorted(own), *ODD]


def mutated(inputs: list[bytes], rng: random.Random) -> bytes:
    """Return one of the inputs, changed in one to four places."""
    data = bytearray(rng.choice(inputs))
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(5)
        if kind == 0:
            data[at : at + 1] = rng.randbytes(1)
        elif kind == 1:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 2:
            data[at:at] = rng.choice(ODD).encode()
        elif kind == 3:
            data[at:at] = rng.choice(inputs)[:20]
        else:
            data[at:] = rng.randbytes(rng.randint(1, 60))
    return bytes(data)


def plainly(name: str, seeds: list[bytes], options: argparse.Namespace, executions: int) -> bool:
    """Fuzz one target without Atheris in this process, print a line about it, and return whether nothing was found."""
    from reliability.targets import TARGETS, RefusedError

    rng, inputs = random.Random(f"{name} {options.seed}"), [*seeds, *stored(name)]
    refused, slowest, begun, kept = 0, 0.0, time.process_time(), dict[str, bytes]()
    for k in range(executions):
        data, before = mutated(inputs, rng), time.process_time()
        try:
            TARGETS[name].check(data)
        except RefusedError as refusal:
            refused += 1
            kept.setdefault(re.sub("[^a-z]+", " ", str(refusal.__cause__))[-80:], data)
        except Exception as error:
            print(f"{name}: after {k:,} executions, {data!r}: {error!r}", flush=True)
            return False
        slowest = max(slowest, time.process_time() - before)
    took = time.process_time() - begun
    print(f"{name}: {executions:,} executions, {refused:,} refused, {took:.0f} s, {slowest:.2f} s at most", flush=True)
    if options.keep:
        keep(name, {*stored(name), *kept.values()})
    return slowest < SLOWEST


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
            keep(name, {path.read_bytes() for path in folder.iterdir()})
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+")
    parser.add_argument("--executions", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if not options.plain and importlib.util.find_spec("atheris") is None:
        parser.error("This needs the package atheris. Install it: pip install atheris; or give --plain.")
    sys.path.insert(0, str(ROOT))
    from reliability.targets import TARGETS

    chosen = {name: TARGETS[name] for name in options.targets or TARGETS}
    fine = []
    for name, target in chosen.items():
        executions = options.executions or target.executions
        if options.plain:
            fine.append(plainly(name, target.seeds(), options, executions))
        else:
            fine.append(fuzzed(name, target.seeds(), options, executions))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
