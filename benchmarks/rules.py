"""Phalanx's rules compared with those of ByzFL, ByzPy and Flower: same matrices, machine and threads, in alternation.

python benchmarks/peers.py FOLDER                       once: makes the environments of the others
python benchmarks/rules.py --peers FOLDER [--threads 2] [--large] [--check] [--output rules.json]
python benchmarks/rules.py --huge                       ours alone on 4 GB: time, memory, and what one reading takes

Every library runs in a process and an environment of its own.  They take turns, one timed call each, as often as
--repeats says, after a pause in which the threads of the one before go to sleep and, for quick rules, one call that is
not timed; the table shows medians in milliseconds.  Of a library with several ways to run a rule (torch or NumPy, with
or without a pool of processes, functions or messages) the fastest counts; a way that takes more than three times the
library's fastest at the first call is not tried again.  First calls, imports and copies that protect the matrix from
rules that overwrite it are not timed.  "-": the library has no such rule.

Numbers are of use only on a machine that does nothing else; the load before the start is written down with them.
"""

import argparse
import csv
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from contestants.conventions import CONVENTIONS, RANDOM_ROWS
from contestants.workloads import HUGE, LARGE, STANDARD, Workload
from peers import RULES, interpreter

from phalanx.conformance.process import LibraryError, LibraryProcess, environment

OURS = "ours"
HERE = Path(__file__).parent
PAUSE = 0.3  # seconds between turns, in which the threads of the one before stop to wait for work
TOLERANCE = 1e-4  # relative difference that float32 can explain
SLOWER_FORM = 3.0  # a form that takes so many times the library's fastest one is not tried again


class Contestant(LibraryProcess):
    """A library in a process of its own environment."""

    def __init__(self, name: str, python: Path, threads: int, limit: float, memory: float) -> None:
        super().__init__(
            (str(python), "-m", "contestants.worker", name, str(threads), str(memory)),
            environment(threads) | {"PYTHONPATH": str(HERE.parent / "src")},
            limit,
            HERE,
        )
        self.name = name


@dataclass
class Measurement:
    """The times of one form of a library's rule."""

    workload: str
    rule: str
    rows: int
    columns: int
    contestant: str
    form: str
    milliseconds: list[float] = field(default_factory=list)
    failure: str = ""  # what the table shows instead of a time

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds) if self.milliseconds and not self.failure else math.inf


@dataclass
class Difference:
    """The distance of a form's result from ours, in units of our largest entry."""

    workload: str
    rule: str
    contestant: str
    form: str
    relative: float
    convention: str

    @property
    def explained(self) -> bool:
        return self.relative <= TOLERANCE or bool(self.convention)


def measure(work: Workload, contestants: Sequence[Contestant], repeats: int) -> list[Measurement]:
    """Time a workload: each form once to warm up, then all forms in alternation, with another one first each time."""
    entered = [entry for contestant in contestants for entry in _warmed_up(work, contestant)]
    racing = [(contestant, measurement) for contestant, measurement in entered if not measurement.failure]
    for turn in range(repeats):
        first = turn % max(1, len(racing))
        for contestant, measurement in racing[first:] + racing[:first]:
            if not measurement.failure and sum(measurement.milliseconds) < 1e3 * contestant.limit:
                _time(work, contestant, measurement)
    return [measurement for _, measurement in entered]


def _warmed_up(work: Workload, contestant: Contestant) -> list[tuple[Contestant, Measurement]]:
    """Return the forms of a contestant to time, or the reason why there is none."""
    tried = [_once(work, contestant, form) for form in _forms(work, contestant)]
    fastest = min(m.median for m in tried)
    kept = [m for m in tried if m.median <= SLOWER_FORM * fastest] if fastest < math.inf else tried[:1]
    for measurement in kept:
        measurement.milliseconds = []
    return [(contestant, measurement) for measurement in kept]


def _forms(work: Workload, contestant: Contestant) -> list[str]:
    """Return the names of a contestant's forms; one empty name if it has none, one starting with "!" if it failed."""
    try:
        return contestant.ask("prepare", **asdict(work)) or [""]
    except LibraryError as failed:
        return [f"!{failed}"]


def _once(work: Workload, contestant: Contestant, form: str) -> Measurement:
    missing = "not there" if contestant.name == OURS else "-"
    failure = missing if not form else form[1:] if form.startswith("!") else ""
    measurement = Measurement(work.name, work.rule, work.rows, work.columns, contestant.name, form, failure=failure)
    if not failure:
        _time(work, contestant, measurement)
    return measurement


def _time(work: Workload, contestant: Contestant, measurement: Measurement) -> None:
    try:
        _ready(work, contestant)
        time.sleep(PAUSE)
        measurement.milliseconds.append(contestant.ask("run", form=measurement.form))
    except LibraryError as failed:
        measurement.failure = str(failed)


def _ready(work: Workload, contestant: Contestant) -> None:
    """Give the workload again to a contestant that was stopped."""
    if contestant.process is None:
        contestant.ask("prepare", **asdict(work))


def compare(work: Workload, contestants: Sequence[Contestant]) -> list[Difference]:
    """Compare the results of all forms with ours; return nothing if ours is missing."""
    with tempfile.TemporaryDirectory() as folder:
        results = {
            (contestant.name, form): np.load(path)
            for contestant in contestants
            for form, path in _saved(work, contestant, Path(folder))
        }
    reference = next((result for (name, _), result in results.items() if name == OURS), None)
    if reference is None:
        return []
    return [
        Difference(
            work.name, work.rule, name, form, _distance(work, result, reference), CONVENTIONS.get((name, work.rule), "")
        )
        for (name, form), result in results.items()
        if name != OURS
    ]


def _saved(work: Workload, contestant: Contestant, folder: Path) -> Iterator[tuple[str, Path]]:
    for form in _forms(work, contestant):
        if not form or form.startswith("!"):
            continue
        path = folder / f"{contestant.name} {form}.npy"
        try:
            _ready(work, contestant)
            contestant.ask("run", form=form, path=str(path))
        except LibraryError:
            continue
        yield form, path


def _distance(work: Workload, result: np.ndarray, reference: np.ndarray) -> float:
    if work.rule in RANDOM_ROWS:
        result, reference = result.mean(0), reference.mean(0)
    if result.shape != reference.shape:
        return math.inf
    difference = np.abs(result.astype(np.float64) - reference)
    return float(difference.max() / np.abs(reference).max())


def fastest(measurements: Sequence[Measurement], contestant: str) -> Measurement | None:
    return min((m for m in measurements if m.contestant == contestant), key=lambda m: m.median, default=None)


def ratio(measurements: Sequence[Measurement]) -> float | None:
    """Return the fastest other time divided by ours; None if either is missing."""
    ours = min((m.median for m in measurements if m.contestant == OURS), default=math.inf)
    theirs = min((m.median for m in measurements if m.contestant != OURS), default=math.inf)
    return theirs / ours if ours < math.inf and theirs < math.inf else None


def line(work: Workload, measurements: Sequence[Measurement], names: Sequence[str]) -> str:
    cells = [f"{work.name:<28} {work.rows:>4} x {work.columns:<9}"]
    for name in names:
        best = fastest(measurements, name)
        shown = "-" if best is None else best.failure or f"{best.median:.2f}"
        form = "" if best is None or best.failure or name == OURS else best.form
        cells.append(f"{shown:>10}" if name == OURS else f"{shown:>10} {form:<9}")
    times = ratio(measurements)
    return "  ".join([*cells, f"{times:>7.2f}" if times is not None else f"{'':>7}"])


def heading(names: Sequence[str]) -> str:
    cells = [f"{'milliseconds':<28} {'rows':>4} x {'columns':<9}"]
    cells += [f"{name:>10}" if name == OURS else f"{name:>10} {'form':<9}" for name in names]
    return "  ".join([*cells, "fastest other / ours"])


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def race(options: argparse.Namespace, contestants: Sequence[Contestant]) -> list[Measurement]:
    names = [contestant.name for contestant in contestants]
    print(heading(names), flush=True)
    everything, ratios = [], []
    for work in workloads(options):
        measurements = measure(work, contestants, options.repeats)
        print(line(work, measurements, names), flush=True)
        everything += measurements
        ratios += [times] if (times := ratio(measurements)) is not None else []
    if ratios:
        print(f"geometric mean of fastest other / ours over {len(ratios)} workloads: {geometric_mean(ratios):.2f}")
    return everything


def check(options: argparse.Namespace, contestants: Sequence[Contestant]) -> list[Difference]:
    print(f"{'workload':<28} {'other':<8} {'form':<10} {'difference':>10}  (largest, in units of our largest entry)")
    differences = []
    for work in workloads(options):
        found = compare(work, contestants)
        if not found:
            print(f"{work.name:<28} nothing to compare")
        for d in found:
            why = "" if d.relative <= TOLERANCE else d.convention or "UNEXPLAINED"
            print(f"{d.workload:<28} {d.contestant:<8} {d.form:<10} {d.relative:>10.1e}  {why}", flush=True)
        differences += found
    return differences


def huge(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time our rules on the huge matrix, each in a new process."""
    print(f"{'seconds':<24} {'rows x columns':>16} {'ours':>8} {'reading':>8} {'ratio':>6} {'memory above, MiB':>18}")
    found = []
    for work in selected(HUGE, options.only):
        sizes = [str(n) for n in (work.rows, work.columns, options.threads, min(3, options.repeats))]
        command = [sys.executable, "-m", "contestants.huge", work.rule, *sizes, json.dumps(work.parameters)]
        done = subprocess.run(
            command, cwd=HERE, env=environment(options.threads), capture_output=True, text=True, check=False
        )
        answer = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        print(_huge_line(work, answer, done.stderr), flush=True)
        found.append({"workload": work.name, "rule": work.rule, **(answer or {})})
    return found


def _huge_line(work: Workload, answer: Mapping[str, Any] | None, stderr: str) -> str:
    start = f"{work.name:<24} {work.rows:>4} x {work.columns:>9}"
    if answer is None:
        return f"{start} {(stderr.splitlines() or ['not there'])[-1]}"
    ours, reading = (statistics.median(answer[key]) / 1e3 for key in ("milliseconds", "reading"))
    above = "?" if answer["above"] is None else f"{answer['above'] / 2**20:.0f}"
    return f"{start} {ours:>8.2f} {reading:>8.2f} {ours / reading:>6.1f} {above:>18}"


def selected(works: Sequence[Workload], only: Sequence[str]) -> list[Workload]:
    return [work for work in works if not only or any(word.lower() in work.name.lower() for word in only)]


def workloads(options: argparse.Namespace) -> list[Workload]:
    return selected(STANDARD + LARGE if options.large else STANDARD, options.only)


def conditions(threads: int) -> dict[str, Any]:
    """Return the versions and the hardware that the numbers depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "threads": threads,
        "load before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for entry in information.read_text(encoding="utf-8").splitlines():
            if entry.startswith("model name"):
                return entry.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def open_contestants(options: argparse.Namespace) -> list[Contestant]:
    """Return our contestant and the peers with an environment."""
    pythons = {OURS: Path(sys.executable)}
    if options.peers is not None:
        pythons |= {name: interpreter(options.peers.resolve(), name) for name in RULES}
    missing = [name for name, python in pythons.items() if not python.exists()]
    if missing:
        print(f"without {', '.join(missing)}: no environment in {options.peers}, see benchmarks/peers.py")
    return [
        Contestant(name, python, options.threads, options.limit, options.memory)
        for name, python in pythons.items()
        if name not in missing
    ]


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write everything as JSON, or only the measurements as CSV."""
    if path.suffix != ".csv":
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["workload", "rule", "rows", "columns", "contestant", "form", "median_ms", "least_ms", "most_ms", "calls"]
        )
        for m in record["measurements"]:
            times = m["milliseconds"]
            numbers = [statistics.median(times), min(times), max(times)] if times else [m["failure"], "", ""]
            keys = ("workload", "rule", "rows", "columns", "contestant", "form")
            writer.writerow([*(m[key] for key in keys), *numbers, len(times)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder that benchmarks/peers.py made; ours alone if not given")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a library may take for one answer")
    parser.add_argument("--memory", type=float, default=10.0, help="GiB of addresses that a library may use")
    parser.add_argument("--only", nargs="+", default=[], help="parts of the names of the workloads to run")
    parser.add_argument("--large", action="store_true", help="also 50 x 1,000,000")
    parser.add_argument("--check", action="store_true", help="compare results instead of timing them")
    parser.add_argument("--huge", action="store_true", help="ours alone on 100 x 10,000,000 (needs some 6 GB)")
    parser.add_argument("--output", type=Path, help="file to write to: .json with all there is, or .csv")
    return parser.parse_args()


def main() -> int:
    options = parse()
    record: dict[str, Any] = {"conditions": conditions(options.threads), "measurements": []}
    print(", ".join(f"{key}: {value}" for key, value in record["conditions"].items()))
    if options.huge:
        record["huge"] = huge(options)
        differences = []
    else:
        differences = compete(options, record)
    if options.output is not None:
        write(options.output, record)
    return int(not all(d.explained for d in differences))


def compete(options: argparse.Namespace, record: dict[str, Any]) -> list[Difference]:
    """Time or compare all libraries, and add the results to the record."""
    contestants, differences = open_contestants(options), []
    try:
        record["versions"] = {contestant.name: contestant.ask("hello") for contestant in contestants}
        for name, versions in record["versions"].items():
            print(f"{name}: {', '.join(f'{package} {number}' for package, number in versions.items())}")
        if options.check:
            differences = check(options, contestants)
            record["differences"] = [asdict(d) for d in differences]
        else:
            record["measurements"] = [asdict(m) for m in race(options, contestants)]
    finally:
        for contestant in contestants:
            contestant.close()
    return differences


if __name__ == "__main__":
    sys.exit(main())
