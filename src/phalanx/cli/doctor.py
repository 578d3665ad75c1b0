"""`phalanx doctor`: a check of all that a run or a federation needs, with remedies.

It changes nothing, but for compiled code if that is requested.  Certificates, keys, the roster and examples are checked
if a folder is named; that needs the extra `flower`.
"""

import datetime
import http.client
import os
import platform
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from inspect import Parameter, isabstract, signature
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console

from phalanx.cli.consoles import escape
from phalanx.cli.deployment_folder import at, files_in
from phalanx.cli.diagnosis import Diagnosis, Level
from phalanx.cli.options import PORT, data_dir
from phalanx.cli.parser import Options
from phalanx.installation import installation
from phalanx.wording import plural, shown, visible

COLOURS: dict[Level, str] = {"ok": "green", "warning": "yellow", "wrong": "red"}
PACKAGES = ("torch", "numpy", "flwr", "cryptography")
DATA = ("mnist", "MNIST", "fashion_mnist", "FashionMNIST", "cifar-10-batches-bin", "shakespeare", "ag_news",
        "wikitext-2", "wikitext2", "rt-polaritydata", "mr", "sst")  # fmt: skip
PORTS = 2**16
HOST = "127.0.0.1"  # of the SuperLink, in `docs/deployment.md`
ROWS, COLUMNS = 23, 5_000  # of the updates with which rules are compiled
TIMEOUT = 5.0  # seconds in which a port must say that it is healthy
SHARED = 256e6  # bytes of shared memory that should be free; a container often has 64 MB
DRIVER = Path("/dev/nvidiactl")  # is there if the machine has a GPU and its driver
AHEAD = 300.0  # seconds by which a file may be newer than the clock, as on another machine's disk


def doctor_command(options: Options, console: Console) -> int:
    """Check the requirements; return the exit status."""
    if wrong := [port for port in options.ports if not 0 < port < PORTS]:
        raise ValueError(f"--ports must be from 1 to {PORTS - 1}, got {shown(str(wrong[0]))}.")
    if options.compile:
        begun, rules = time.perf_counter(), compile_rules()
        compile_training()
        spent = time.perf_counter() - begun
        console.print(f"Compiled {plural(rules, 'rule')}, and local training, in {spent:.1f} s.")
    if options.tables and options.schema is None:
        raise ValueError("A table is checked against a schema. Name that as well: --schema FILE.")
    return doctor(
        console,
        folder=options.folder,
        data_dir=data_dir(options.data_dir),
        ports=options.ports,
        schema=options.schema,
        tables=options.tables,
        notation=options,
    )


def compile_rules() -> int:
    """Call each rule once, so that Numba compiles what it needs and stores that on the disk; return their number.

    What is stored already is only loaded.  Each is called in both precisions, without weights and with such as take 16,
    32 and 64 bits, and asked for its influence; `Chain` is made of the others.
    """
    import torch  # noqa: PLC0415  (slow to import, and needed here only)

    import phalanx.aggregators as rules  # noqa: PLC0415
    from phalanx.clustering import bipartition  # noqa: PLC0415
    from phalanx.numerics import linalg  # noqa: PLC0415

    sizes, called = torch.arange(1.0, ROWS + 1), 0
    for dtype in (torch.float32, torch.float64):
        rows = torch.rand(ROWS, COLUMNS, dtype=dtype)
        for kind in map(partial(getattr, rules), rules.__all__):
            if isinstance(kind, type) and issubclass(kind, rules.Aggregator) and not isabstract(kind):
                given = signature(kind).parameters.values()
                needed = [parameter.name for parameter in given if parameter.default is Parameter.empty]
                if needed in ([], ["f"]):
                    rule = kind(**dict.fromkeys(needed, 2))
                    for weights in (None, sizes, 1000 * sizes, sizes.double() / 7):
                        rule(rows, weights)
                        rule.influence(rows, weights)
                    called += dtype == torch.float32
        linalg.product(torch.rand(3, ROWS, dtype=dtype), rows)
        linalg.scaled(rows, sizes)
        linalg.shortened(torch.rand(linalg.SHARES, COLUMNS, dtype=dtype), 1.0)
        for linkage in ("single", "average"):
            bipartition(torch.eye(ROWS, dtype=dtype), linkage)
    return called


def compile_training() -> None:
    """Train and evaluate a tiny network by all loops, so that Numba compiles and stores what they need."""
    import torch  # noqa: PLC0415  (slow to import, and needed here only)
    from torch import nn  # noqa: PLC0415

    from phalanx.data import Dataset  # noqa: PLC0415
    from phalanx.training import FlatModule, LocalSGD  # noqa: PLC0415
    from phalanx.training.compiled.trainer import CompiledNetwork  # noqa: PLC0415
    from phalanx.training.local import LocalTask  # noqa: PLC0415
    from phalanx.training.task import CLASSIFICATION  # noqa: PLC0415

    network = nn.Sequential(nn.Conv2d(1, 1, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2))
    loop = LocalSGD(steps=1, batch_size=4)
    recipes = (loop, replace(loop, engine="compiled"), replace(loop, engine="compiled", precision="bfloat16"))
    for dtype in (torch.float32, torch.float64):
        model = FlatModule(network.to(dtype))
        few = Dataset(torch.zeros(4, 1, 8, 8, dtype=dtype), torch.zeros(4, dtype=torch.int64), 2)
        with suppress(ValueError):  # torch's BLAS may not be called, or bfloat16 is not there
            CompiledNetwork(model)(few.x)
            for recipe in recipes:
                start = model.read()
                recipe.trainer(model, CLASSIFICATION, 0).train(LocalTask(0, 0, 0, start, torch.empty_like(start)), few)


def doctor(
    console: Console,
    *,
    folder: Path | None = None,
    data_dir: Path | None = None,
    ports: Sequence[int] = (PORT,),
    schema: Path | None = None,
    tables: Sequence[str] = (),
    notation: Options | None = None,
) -> int:
    """Check everything and print the findings; return 1 if something is wrong, else 0."""
    found = [
        *versions(),
        *kept(),
        *gpu(),
        *shared_memory(),
        *data(data_dir),
        *clock(folder),
        *([] if folder is None else at(folder)),
        *([] if schema is None else site(schema, tables, notation)),
        *free(ports, folder),
    ]
    for level, subject, what, remedy in found:
        advice = f" {escape(remedy)}" if remedy else ""
        console.print(f"[{COLOURS[level]}]{level:<7}[/]  {escape(subject)}: {escape(what)}{advice}", soft_wrap=True)
    wrong = sum(finding.level == "wrong" for finding in found)
    warned = sum(finding.level == "warning" for finding in found)
    console.print(f"{wrong} wrong, {warned} to look at, {len(found) - wrong - warned} fine.")
    return 1 if wrong else 0


# Software


def versions() -> Iterator[Diagnosis]:
    """Yield findings on the versions of Python and of required packages."""
    here = platform.python_version()
    fine = Version(here) >= Version("3.11")
    yield Diagnosis("ok" if fine else "wrong", "python", here, "" if fine else "Install Python 3.11 or newer.")
    wanted = {r.name: r for r in map(Requirement, requires("phalanx-fl") or ())}
    for name in PACKAGES:
        try:
            has = version(name)
        except PackageNotFoundError:
            why = f"for real clients: {installation('flower')}."
            level: Level = "ok" if name in ("flwr", "cryptography") else "wrong"
            yield Diagnosis(
                level, name, "not installed,", f"needed {why}" if level == "ok" else "Install Phalanx again."
            )
            continue
        specifier = wanted[name].specifier if name in wanted else None
        if specifier is None or specifier.contains(has, prereleases=True):
            yield Diagnosis("ok", name, has)
        else:
            yield Diagnosis("wrong", name, f"{has}, expected {specifier}.", f"pip install '{name}{specifier}'.")


def kept() -> Iterator[Diagnosis]:
    """Yield the finding on the folder that keeps compiled loops."""
    from phalanx.numerics.compilation import NOT_KEPT, REMEDY, kept_in  # noqa: PLC0415  (slow to import)
    from phalanx.numerics.kernels import inner_products  # noqa: PLC0415

    folder = kept_in(inner_products)
    if folder is None:
        yield Diagnosis("warning", "compiled loops", NOT_KEPT, REMEDY)
    else:
        yield Diagnosis("ok", "compiled loops", f"kept in {folder}")


# The machine


def gpu() -> Iterator[Diagnosis]:
    """Yield the finding on GPUs: those that PyTorch finds, or that it finds none where the machine has one."""
    import torch  # noqa: PLC0415  (slow to import)

    if count := torch.cuda.device_count():
        yield Diagnosis("ok", "gpu", ", ".join(torch.cuda.get_device_name(k) for k in range(count)))
    elif DRIVER.exists():
        what = f"this machine has one, and PyTorch {torch.__version__} cannot use it."
        remedy = "Does `nvidia-smi` find it? If not, restart its driver; if so, install a PyTorch with CUDA."
        yield Diagnosis("wrong", "gpu", what, remedy)
    else:
        yield Diagnosis("ok", "gpu", "none; models train on the CPU")


def shared_memory() -> Iterator[Diagnosis]:
    """Yield the finding on the memory that processes can share, through which `--jobs` passes examples and models."""
    from phalanx.simulation.parallel import SHARED_MEMORY  # noqa: PLC0415  (slow to import)

    if not SHARED_MEMORY.is_dir():
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    level: Level = "ok" if free >= SHARED else "warning"
    remedy = "" if level == "ok" else "Enlarge it for runs with --jobs (docker run --shm-size)."
    yield Diagnosis(level, "shared memory", f"{free / 1e6:,.0f} MB are free at {SHARED_MEMORY}", remedy)


# Data


def data(folder: Path | None) -> Iterator[Diagnosis]:
    """Yield findings on the folder of data sets, and on its contents."""
    if folder is None:
        yield Diagnosis("ok", "data", "no folder is named, data sets are downloaded when they are needed")
    elif not folder.is_dir():
        yield Diagnosis(
            "wrong", "data", f"there is no folder {folder}.", "Name another one, by --data_dir or PHALANX_DATA."
        )
    elif not os.access(folder, os.R_OK | os.X_OK):
        yield Diagnosis("wrong", "data", f"{folder} cannot be read.", f"chmod u+rx {folder}.")
    elif held := [name for name in DATA if (folder / name).is_dir()]:
        yield Diagnosis("ok", "data", f"{folder} holds {', '.join(held)}")
    else:
        what = f"{folder} holds none of the data sets that are known by name."
        yield Diagnosis("warning", "data", what, "docs/data.md lists their names.")


def site(path: Path, tables: Sequence[str], notation: Options | None = None) -> Iterator[Diagnosis]:
    """Yield findings on the schema of a federation, and on the tables of a site, which it says how to read.

    Args:
        path: of the schema.
        tables: paths of the tables.
        notation: how the tables are written, where that is not as the schema says; see `source_of`.
    """
    from phalanx.cli.schema import source_of  # noqa: PLC0415
    from phalanx.data import Schema  # noqa: PLC0415  (slow to import, and needed here only)
    from phalanx.data.table_check import examined, in_words, outcome  # noqa: PLC0415

    try:
        schema = Schema.load(path)
    except (ValueError, OSError) as error:
        yield Diagnosis("wrong", str(path), f"{str(error).rstrip('.')}.", "Ask the coordinator for the file.")
        return
    yield Diagnosis("ok", str(path), schema.digest)
    for table in tables:
        try:
            found = examined(schema, table, None if notation is None else source_of(schema, Path(table), notation))
        except (OSError, ModuleNotFoundError) as error:
            yield Diagnosis("wrong", table, f"{str(error).rstrip('.')}.")
            continue
        yield Diagnosis("ok" if found.fits else "wrong", table, outcome(found).rstrip("."))
        for one in found.findings:
            yield Diagnosis("wrong" if one.error else "warning", table, visible(in_words(found, one)))


# Time


def clock(folder: Path | None) -> Iterator[Diagnosis]:
    """Yield findings on the clock: whether the network sets it, and whether files are newer."""
    now = time.time()
    shown = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    newest = max([Path(__file__).stat().st_mtime, *(path.stat().st_mtime for path in files_in(folder))])
    if newest > now + AHEAD:
        what = f"it says {shown}, and there are files that are {newest - now:.0f} s newer."
        yield Diagnosis(
            "wrong", "clock", what, "Set it: certificates and signed messages are refused by a wrong clock."
        )
        return
    kept = _kept_by_network()
    if kept is False:
        yield Diagnosis("warning", "clock", f"{shown}, not kept by the network.", "timedatectl set-ntp true.")
    else:
        yield Diagnosis("ok", "clock", shown + (", kept by the network" if kept else ""))


def _kept_by_network() -> bool | None:
    """Return whether systemd says that the network sets the clock; None without systemd."""
    if shutil.which("timedatectl") is None:
        return None
    try:
        command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(said)


# Ports


def free(ports: Sequence[int], folder: Path | None) -> Iterator[Diagnosis]:
    """Yield findings on ports of the loopback address: free, or used by a SuperLink."""
    for port in ports:
        subject = f"port {port}"
        try:
            with socket.socket() as held:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((HOST, port))
        except (OSError, OverflowError) as error:
            if what := _superlink(port, folder):
                yield Diagnosis("ok", subject, what)
            else:
                what = f"cannot be taken: {getattr(error, 'strerror', None) or error}."
                remedy = "End what listens there (`ss -ltnp`), or choose another: --ports."
                yield Diagnosis("wrong", subject, what, remedy)
        else:
            yield Diagnosis("ok", subject, "free")


def _superlink(port: int, folder: Path | None) -> str:
    """Return the finding on a port where a SuperLink listens; empty if it is none, or is not healthy.

    Its certificate is looked at, if the folder has what it takes: others can pass for a SuperLink.
    """
    authority = (folder or Path()) / "certificates" / "ca.crt"
    known = os.access(authority, os.R_OK)
    if known and _healthy(port, lambda: ssl.create_default_context(cafile=str(authority))):
        return "a SuperLink listens there, with the certificate of this folder"
    if _healthy(port, _unchecked):
        other = f"not by {authority}" if known else "which was not checked: --folder names the one that has ca.crt"
        return f"a SuperLink listens there, with a certificate {other}"
    return "a SuperLink listens there, without TLS" if _healthy(port, lambda: None) else ""


def _unchecked() -> ssl.SSLContext:
    """Return a context for TLS with whoever answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _healthy(port: int, tls: Callable[[], ssl.SSLContext | None]) -> bool:
    """Return whether a port answers as a healthy SuperLink: at `/health`, with an empty body."""
    try:
        context = tls()
        at = f"http{'s' if context else ''}://{HOST}:{port}"
        with urllib.request.urlopen(f"{at}/health", timeout=TIMEOUT, context=context) as answer:
            return bool(answer.status == 200 and not answer.read(1))
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException):
        return False
