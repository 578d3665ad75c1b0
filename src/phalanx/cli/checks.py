"""Checks of options before a command does anything."""

import os
from pathlib import Path

import torch

from phalanx.core import InfeasibleError
from phalanx.wording import shown


def check_device(device: str) -> None:
    """Raise `InfeasibleError` if there is no such device."""
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
