"""The origin of a run's numbers: sources, versions, machine.

Two runs with one identity give the same bits where the conditions are the same and the library computes the same.  The
conditions are measured; whether the library computes the same is declared, by a number that developers raise.
"""

import dataclasses
import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from phalanx.version import VERSION

EVERY_PART = None
CHANGES: tuple[frozenset[str] | None, ...] = (
    EVERY_PART,  # version 1: records of version 0 do not say what computed them
    frozenset({"FLAME.compare=models", "Catalyst.compare=models"}),  # 2: nearly parallel models go by their distances
    frozenset({"PerCluster", "FLHC"}),  # 3: a part can hold several groups; no cluster is too small for its rule
    frozenset({"Catalyst Truncate.scope=cohort"}),  # 4: a late answer never counts more than once
)
"""The parts of runs that gave other bits from each numerics version on: names as `parts` returns them, of which a text
with several is about runs that have all of them.

Add a line, in the same commit, with any change after which some run gives other bits.  A new default or a new class
needs none, as runs with it have another identity.  A faster kernel that adds in another order needs one, with all
classes that use it.  A record that none of the later changes is about stays current.  Others are not mixed with new
ones, and a finished run of theirs is repeated.  `phalanx reproduce --verify` and the slow tests compute stored records
again, and find a change that was made without a line.
"""
NUMERICS = len(CHANGES)  # the numerics version

PACKAGE = Path(__file__).parents[1]
PAPERS = Path("../../papers")  # of a checkout, from the package: some of their runs use classes of their own
NO_NUMBERS = ("cli", "report", "experiments", "wording.py")  # parts of the package on which no number of a run depends
REDIRECTIONS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # a hook of another checkout sets them


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The software and hardware that computed a run; None where an older record does not say.

    Args:
        phalanx: version of the library.
        numerics: its numerics version; see `NUMERICS`. 0 in records from before there was one.
        sources: SHA-256 of all files, of the library and of the papers in its checkout, that a number can depend on.
        commit: the commit of the checkout that the library was imported from; None if it was none, but a wheel.
        clean: whether the code of that checkout was as committed.
        processor: its model.
        instructions: the instruction set that torch uses, such as "AVX2".
        device: "cpu", or the name of the GPU.
        threads: of torch.
        torch: version.
        numpy: version.
        numba: version.
        python: version.
        platform: operating system and machine.
        flower: version of Flower, of a run on a deployment.
        engine: what computes the updates of simulated clients: "loop" or "compiled" of `LocalSGD`, or the
            class of another training.
    """

    phalanx: str | None = None
    numerics: int = 0
    sources: str | None = None
    commit: str | None = None
    clean: bool | None = None
    processor: str | None = None
    instructions: str | None = None
    device: str | None = None
    threads: int | None = None
    torch: str | None = None
    numpy: str | None = None
    numba: str | None = None
    python: str | None = None
    platform: str | None = None
    flower: str | None = None
    engine: str | None = None

    @property
    def form(self) -> dict[str, Any]:
        """Return it as JSON holds it, without what is not known."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def read(cls, form: Any) -> "Provenance":
        """Return what `form` has returned.

        Raises:
            ValueError: it is something else.
        """
        if not isinstance(form, Mapping):
            raise ValueError(f"its provenance must be a mapping, got {type(form).__name__}")
        kinds: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(cls)}
        wrong = [name for name, value in form.items() if name not in kinds or not _is_a(value, kinds[name])]
        if wrong:
            raise ValueError(f"its provenance is unknown or of a wrong type in {', '.join(map(str, wrong))}")
        return cls(**form)

    def outdated(self, run: Any) -> str:
        """Return why this library may give other numbers for a run; empty if it gives the same."""
        if counts_as(self.numerics, run) == NUMERICS:
            return ""
        return f"its results are of numerics version {self.numerics}, this is {NUMERICS}"


def counts_as(version: int, run: Any) -> int:
    """Return the newest numerics version with which a run gives the bits of an older one.

    Args:
        version: that computed its record.
        run: what was computed.
    """
    while 0 <= version < NUMERICS:  # a record of somebody else may say anything
        changed = CHANGES[version]
        if changed is EVERY_PART or any(parts(run).issuperset(names.split()) for names in changed):
            break
        version += 1
    return version


def parts(value: Any) -> frozenset[str]:
    """Return what a run consists of: "FLAME" and all its bases for an instance, "FLAME.compare=models" for a text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        kinds = [kind.__name__ for kind in type(value).__mro__[:-1]]
        texts = [f"{kinds[0]}.{name}={one}" for name, one in held.items() if isinstance(one, str)]
        return frozenset(kinds).union(texts, *map(parts, held.values()))
    if isinstance(value, Mapping):
        return frozenset().union(*map(parts, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return frozenset().union(*map(parts, value))
    return frozenset()


def _is_a(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and (kind == bool | None or not isinstance(value, bool))


def provenance(device: torch.device | str, flower: str | None = None, engine: str | None = None) -> Provenance:
    """Return what a run computed in this process, on that device, comes from.

    Args:
        device: where it computes.
        flower: version of Flower, of a run on a deployment.
        engine: `LocalTraining.computed_by` of simulated clients.
    """
    commit, clean = checkout()
    return Provenance(
        phalanx=VERSION,
        sources=sources(),
        commit=commit,
        clean=clean,
        processor=processor(),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        flower=flower,
        engine=engine,
        **conditions(torch.device(device)),
    )


def conditions(device: torch.device) -> dict[str, Any]:
    """Return what floating-point bits depend on, apart from the run itself."""
    return {
        "numerics": NUMERICS,
        "torch": str(torch.__version__),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
    }


@cache
def sources(package: Path = PACKAGE) -> str:
    """Return the SHA-256 of the Python files of the library, without those of `NO_NUMBERS`, and of the papers."""
    digest = hashlib.sha256()
    for folder in (package, package / PAPERS):
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder)
            if name.parts[0] not in NO_NUMBERS:
                digest.update(f"{name.as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@cache
def checkout(package: Path = PACKAGE) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout that holds the package, and whether its code is as committed.

    Both are None if git is missing, or does not track the package.
    """
    commit = _git(package, "rev-parse", "HEAD") if _git(package, "ls-files", "__init__.py") else None
    changed = _git(package, "status", "--porcelain", "--", ".", str(PAPERS)) if commit else None
    return commit, None if changed is None else not changed


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git for a folder; None if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in REDIRECTIONS}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def commit_date(commit: str) -> str | None:
    """Return the day of a commit of this checkout, by its full hash, such as "2026-11-28"; None if git has none."""
    command = "show", "-s", "--no-show-signature", "--format=%cs", f"{commit}^{{commit}}"
    return _git(PACKAGE, *command) if re.fullmatch("[0-9a-f]{40,64}", commit) else None


NUMBERS = {"family": "cpu family", "model": "model"}  # of a processor, as Linux has them


@cache
def processor() -> str | None:
    """Return the model of the processor, with its numbers, as one name can be that of several; None if not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    name = said.get("model name") or platform.processor()
    numbers = (f"{what} {said[field]}" for what, field in NUMBERS.items() if field in said)
    return ", ".join((name, *numbers)) if name else None
