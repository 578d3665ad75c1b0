"""Checks of options before a command writes anything."""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from phalanx.errors import InfeasibleError
from phalanx.runs.seal import FILES, SEAL
from phalanx.wording import shown


def check_device(device: str) -> None:
    """Raise `InfeasibleError` if there is no such device."""
    import torch  # noqa: PLC0415  (who makes a key does without)

    found = torch.cuda.device_count()
    allowed = ["cpu", *(["cuda"] if found else []), *(f"cuda:{k}" for k in range(found))]
    if device not in allowed:
        none = "" if found else f"; torch {torch.__version__} finds no CUDA device here"
        raise InfeasibleError(f"--device must be {' or '.join(allowed)}, got {shown(device)}{none}.")


def check_folder(folder: Path) -> None:
    """Raise `InfeasibleError` if no such folder can be made, or nothing can be written there."""
    try:
        files = [path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()]
    except OSError as error:
        raise InfeasibleError(
            f"--folder {shown(str(folder), 300)}: {error.strerror}. Choose another folder."
        ) from error
    if files:
        raise InfeasibleError(f"--folder {folder}: {files[0]} is a file. Choose another folder, or move the file away.")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise InfeasibleError(
            f"--folder {shown(str(folder), 300)}: nothing can be written to {there}. Choose another folder."
        )


def check_out(out: Path, example: str, read: Iterable[PurePath] = ()) -> None:
    """Raise `InfeasibleError` if a file that is to be written would take the place of one that is needed.

    Args:
        out: the file.
        example: its name, for a message.
        read: files that are read, or that the run was trained on; as pure paths or patterns where nobody may look.
    """
    if out.is_dir():
        raise InfeasibleError(f"--out {out} is a folder. Name a file, such as {out}/{example}.")
    own = (os.path.abspath(out), str(out.resolve()))
    if out.exists() and any(
        file.exists() and out.samefile(file)
        if isinstance(file, Path)
        else any(fnmatchcase(one, str(file)) for one in own)
        for file in read
    ):
        raise InfeasibleError(f"--out {out} holds data that is read, and would be lost. Name another file.")
    place = Path(os.path.realpath(out))
    for folder in (*place.parents,)[:3]:
        name = place.relative_to(folder).as_posix()
        if (folder / "run.json").is_file() and (name == SEAL or FILES.fullmatch(name)):
            raise InfeasibleError(f"--out {out} is a file of the record of a run. Name another file.")
