"""What `phalanx doctor` finds in the folder of a coordinator or of a client."""

import datetime
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.cli.diagnosis import Diagnosis, Level
from phalanx.installation import installation
from phalanx.reading import contents
from phalanx.runs.card import promised
from phalanx.runs.files import HISTORY
from phalanx.runs.steps import read_step
from phalanx.runs.summary import promise_in
from phalanx.wording import plural

SOON = 30  # days before its end from which on a certificate is warned of
SPACE = 2e9  # bytes that should be free where results go
DEEP = 2  # levels of folders that are looked through
LARGEST = 100_000  # bytes of a file that could be a key or a certificate
LARGEST_EXAMPLES = 4_000_000_000  # bytes of the arrays of a file
MEMORY = {"params", "delta", "memory", "previous"}  # what `phalanx.flower.client` keeps between tasks


def at(folder: Path) -> Iterator[Diagnosis]:
    """Yield findings on certificates, private keys, the roster, examples, and room on the disk."""
    if not folder.is_dir():
        yield Diagnosis("wrong", "folder", f"there is no folder {folder}.", "Name another one: --folder.")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        what = f"nothing can be written to {folder}."
        yield Diagnosis("wrong", "folder", what, "Is its disk mounted to be read only? Name another one: --folder.")
    space = shutil.disk_usage(folder).free
    level: Level = "ok" if space >= SPACE else "warning"
    remedy = "" if level == "ok" else "Make room: checkpoints and models of a run go there."
    yield Diagnosis(level, "disk", f"{space / 1e9:.1f} GB are free at {folder}", remedy)
    try:
        import cryptography  # noqa: F401, PLC0415  (an optional dependency)
    except ModuleNotFoundError:
        yield Diagnosis("warning", "keys", "are not looked at.", f"That needs Flower: {installation('flower')}.")
        return
    yield from dict.fromkeys(_held(folder))  # what cannot be looked at is met more than once


def _held(folder: Path) -> Iterator[Diagnosis]:
    """Yield findings on certificates, private keys, the roster and examples."""
    keys, papers, unseen = 0, 0, list[Diagnosis]()
    for path in files_in(folder, unseen=unseen):
        try:
            start = _start(path)
        except OSError as error:
            unseen.append(_hidden(path, error))
            continue
        if b"PRIVATE KEY-----" in start.partition(b"\n")[0] or path.suffix == ".secret":
            keys += 1
            yield _private(path)
        elif start.startswith(b"-----BEGIN CERTIFICATE-----"):
            papers += 1
            yield from _certificate(path)
    if not keys:
        yield Diagnosis("warning", "keys", f"there is no private key in {folder}.", "A client's: `phalanx flower key`.")
    if not papers:
        what = f"there is no certificate in {folder}."
        yield Diagnosis("warning", "certificates", what, "A coordinator's: `phalanx flower certificates`.")
    yield from _roster(folder / "roster.yaml")
    for path in files_in(folder, largest=math.inf, unseen=unseen):
        if path.suffix == ".npz":
            yield from examples_in(path)
        elif path.name == HISTORY:
            yield from _promised(path)
    yield from unseen


def _promised(path: Path) -> Iterator[Diagnosis]:
    """Yield what a run promises, with its audit so far and what it warned of, by its history."""
    try:
        with path.open("rb") as file:
            promise, remarks = promise_in(read_step(line) for line in file if line.endswith(b"\n"))
    except (OSError, ValueError):
        return  # `phalanx flower up` and `Record.load` say what is wrong with it
    if promise is not None:
        level: Level = "ok" if promise.f and not promise.broken else "warning"
        yield Diagnosis(level, str(path.parent), " ".join(promised(promise, remarks)))


def _hidden(path: Path, error: OSError) -> Diagnosis:
    """Return the finding on a file or folder that cannot be read."""
    what = f"cannot be looked at: {error.strerror or error}."
    return Diagnosis("wrong", str(path), what, f"Run this as whoever owns it, or: chmod -R u+rX {path}.")


def files_in(
    folder: Path | None, deep: int = DEEP, largest: float = LARGEST, unseen: list[Diagnosis] | None = None
) -> Iterator[Path]:
    """Yield the files of a folder, and of folders in it, that are not too large; `unseen` gets unreadable folders."""
    if folder is None:
        return
    try:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and deep and not path.is_symlink():
                yield from files_in(path, deep - 1, largest, unseen)
            elif path.is_file() and path.stat().st_size <= largest:
                yield path
    except OSError as error:
        if unseen is not None:
            unseen.append(_hidden(folder, error))


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _private(path: Path) -> Diagnosis:
    """Return the finding whether only its owner can read a private key."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        what = f"can be read or changed by others (mode {mode:o})."
        return Diagnosis("wrong", str(path), what, f"If nobody has done so: chmod 600 {path}. Else make a new one.")
    return Diagnosis("ok", str(path), "a private key, which only its owner can read")


RENEWAL = "The coordinator renews it: `phalanx flower certificates --renew`."
SUCCESSION = (
    "The coordinator makes the next, and gives it to each client: `phalanx flower certificates --next_authority`."
)


def _certificate(path: Path) -> Iterator[Diagnosis]:
    """Yield findings on the validity of a certificate, and on its key and authority in the same folder."""
    from cryptography import x509  # noqa: PLC0415

    again = RENEWAL if path.name == "server.crt" else SUCCESSION
    try:
        certificate = x509.load_pem_x509_certificates(contents(path, LARGEST))[-1]  # of several authorities, the newest
    except (ValueError, OSError) as error:
        yield Diagnosis("wrong", str(path), f"cannot be read as a certificate: {error}.", again)
        return
    now = datetime.datetime.now(datetime.UTC)
    end = certificate.not_valid_after_utc
    left = (end - now).total_seconds() / 86400
    if certificate.not_valid_before_utc > now:
        what = (
            f"is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on, and it is {now:%Y-%m-%d %H:%M}."
        )
        yield Diagnosis("wrong", str(path), what, "Set the clock.")
    elif left < 0:
        yield Diagnosis("wrong", str(path), f"expired on {end:%Y-%m-%d}.", again)
    elif left < SOON:
        yield Diagnosis("warning", str(path), f"expires on {end:%Y-%m-%d}, in {left:.0f} days.", again)
    else:
        yield Diagnosis("ok", str(path), f"a certificate, valid to {end:%Y-%m-%d}")
    if path.name == "server.crt":
        yield from _beside(path, certificate, again)


def _beside(path: Path, certificate: Any, again: str) -> Iterator[Diagnosis]:
    """Yield findings on a server's key, and on its authority in the same folder."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    key, authority = path.with_suffix(".key"), path.with_name("ca.crt")
    if not key.is_file():
        yield Diagnosis("wrong", str(path), f"has no key in its folder, {key.name} is missing.", again)
    else:
        try:
            fits = load_pem_private_key(contents(key, LARGEST), None).public_key() == certificate.public_key()
        except (ValueError, TypeError) as error:
            yield Diagnosis("wrong", str(key), f"cannot be read: {error}.", again)
        except OSError as error:
            yield _hidden(key, error)
        else:
            if not fits:
                yield Diagnosis("wrong", str(key), f"is not the key of {path.name}.", again)
    if authority.is_file():
        try:
            known = x509.load_pem_x509_certificates(contents(authority, LARGEST))
            certificate.verify_directly_issued_by(next((a for a in known if a.subject == certificate.issuer), known[0]))
        except (ValueError, TypeError, InvalidSignature):
            yield Diagnosis("wrong", str(path), f"is not signed by {authority.name} in its folder.", again)
        except OSError as error:
            yield _hidden(authority, error)


def _roster(path: Path) -> Iterator[Diagnosis]:
    """Yield the finding on the roster, if there is one."""
    from phalanx.flower.identity import Roster, coordinator_key  # noqa: PLC0415

    try:
        if not path.is_file():
            return
        roster = Roster.load(path)
    except ValueError as error:
        yield Diagnosis("wrong", "roster", f"{str(error).rstrip('.')}.", "Repair it, or restore it.")
        return
    except OSError as error:
        yield _hidden(path, error)
        return
    if not roster.coordinator:
        again = "Make it with `phalanx flower coordinator`, and give it to the clients."
        yield Diagnosis("warning", "roster", "names no key of the coordinator, so that no client answers it.", again)
    else:
        try:
            coordinator_key(None, path, roster.coordinator)
        except ValueError as error:
            yield Diagnosis("warning", "roster", str(error).rpartition(". ")[0] + ".", str(error).rpartition(". ")[2])
    out = len(roster.members) - len(roster.active)
    revoked = f"{out} {'is' if out == 1 else 'are'} revoked"
    if roster.active:
        yield Diagnosis("ok", "roster", f"{plural(len(roster.active), 'client')} may take part, {revoked}")
    else:
        yield Diagnosis("warning", "roster", f"nobody may take part, {revoked}.", "`phalanx flower enrol` adds one.")


# A client's examples


def examples_in(path: Path) -> Iterator[Diagnosis]:
    """Yield findings on a file of examples as in `examples/flower`: `x`, and as many labels `y`.

    Files of a client's local state have the same suffix, and are skipped.
    """
    again = "Write it again: numpy.savez(path, x=x, y=y)."
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            if file.files and set(file.files) <= MEMORY:
                return
            if (size := sum(member.file_size for member in file.zip.infolist())) > LARGEST_EXAMPLES:
                raise ValueError(f"it holds {size:,} bytes, and at most {LARGEST_EXAMPLES:,} are read")
            held = {name: file[name] for name in ("x", "y") if name in file.files}
            names = ", ".join(file.files)
    except PermissionError as error:
        yield _hidden(path, error)
        return
    except Exception as error:  # a damaged file makes NumPy raise anything
        why = str(error).partition("\n")[0] or type(error).__name__
        yield Diagnosis("wrong", str(path), f"cannot be read: {why}.", again)
        return
    if not names:
        yield Diagnosis("wrong", str(path), "holds nothing.", again)
        return
    if missing := [name for name in ("x", "y") if name not in held]:
        what = f"holds no {' and no '.join(missing)}, but {names}."
        remedy = "Write it again, unless your app reads these: numpy.savez(path, x=x, y=y)."
        yield Diagnosis("warning", str(path), what, remedy)
        return
    x, y = held["x"], held["y"]
    if problems := [*_problems(x, y)]:
        yield Diagnosis("wrong", str(path), f"{'; '.join(problems)}.", "Repair the examples, and write it again.")
    else:
        yield Diagnosis("ok", str(path), f"{plural(len(x), 'example')}, {x.dtype} {x.shape[1:]}, labels {y.dtype}")


def _problems(x: NDArray[Any], y: NDArray[Any]) -> Iterator[str]:
    """Yield the problems with examples that prevent training."""
    if x.ndim < 2 or y.ndim < 1:
        yield f"x has shape {x.shape} and y {y.shape}, expected one row and one label or more per example"
        return
    if len(x) != len(y):
        yield f"x has {plural(len(x), 'row')}, and y {plural(len(y), 'label')}"
    if not len(x):
        yield "there is no example"
    if x.dtype.kind not in "fiub":
        yield f"x is {x.dtype}, expected numbers"
    if x.dtype.kind == "f" and (bad := int((~np.isfinite(x)).sum())):
        yield f"x holds {bad} NaN or infinite of {x.size} values"
    if y.dtype.kind not in "iu":
        yield f"labels are {y.dtype}, expected whole numbers"
    elif y.size and y.min() < 0:
        yield f"the smallest label is {y.min()}, expected 0 or above"
