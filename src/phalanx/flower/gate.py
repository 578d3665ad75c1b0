"""What a client says besides updates and declared metrics: one of a closed list of reasons, and nothing else.

The text of an exception can quote data, labels and paths.  It stays in the client's own log; what leaves is a reason of
`REASONS`.  The server keeps nothing else either, whatever other software a client runs.
"""

import logging
import re
from collections.abc import Callable
from typing import TypeVar

import torch

from phalanx.core import InfeasibleError
from phalanx.data import Schema
from phalanx.data.table_schema import UnfitTableError
from phalanx.flower import contract
from phalanx.flower.codec import MalformedError, OtherReleaseError
from phalanx.flower.signed_schema import UnsignedSchemaError
from phalanx.runs.files import is_full

Answer = TypeVar("Answer")
log = logging.getLogger("phalanx.flower.client")

ANOTHER_COORDINATOR = "the task is of another coordinator than the one whose key it was given"
ALTERED_TRAIL = "the audit trail that it was shown does not go on from what it was shown before"
OTHER_RELEASE = "it has another release of Phalanx than the coordinator"
NO_TASK = "the task does not fit what it expects"
UNSIGNED = "its schema is not the one that the coordinator has signed"
MISFIT = "its data do not fit the schema"
UNFIT = "its settings or its data do not fit this run"
NO_MEMORY = "it ran out of memory"
NO_GPU = "its GPU cannot be used"
DISK_FULL = "its disk is full"
NO_FILE = "it could not read or write a file"
NO_MODULE = "a package that it needs is not installed"
OTHER = "its own log says why"
LONGEST = 2000  # characters of a text from a client that are looked at
REASONS = (
    ANOTHER_COORDINATOR, ALTERED_TRAIL, OTHER_RELEASE, NO_TASK, UNSIGNED, MISFIT, UNFIT, NO_MEMORY, NO_GPU, DISK_FULL,
    NO_FILE, NO_MODULE, OTHER,
)  # fmt: skip
ACCELERATOR: type[Exception] | tuple[()] = getattr(torch, "AcceleratorError", ())  # of PyTorch 2.8 and later


class OtherCoordinatorError(MalformedError):
    """A task of another coordinator than the one that a client answers."""


class AlteredTrailError(MalformedError):
    """A head of the audit trail that does not go on from the one before."""


class NoGPUError(Exception):
    """A client is to train on a GPU, and PyTorch finds none."""


class WithheldError(Exception):
    """A client could not answer.  The message is one of `REASONS`; after `MISFIT` come codes and numbers of columns."""


def reason_of(error: BaseException) -> str:
    """Return the reason that stands for an exception: it depends on the kind of the exception, never on its text."""
    if is_full(error):
        return DISK_FULL
    kinds = (
        (OtherCoordinatorError, ANOTHER_COORDINATOR),
        (AlteredTrailError, ALTERED_TRAIL),
        (OtherReleaseError, OTHER_RELEASE),
        (MalformedError, NO_TASK),
        (UnfitTableError, MISFIT),
        (UnsignedSchemaError, UNSIGNED),
        (InfeasibleError, UNFIT),
        ((MemoryError, torch.OutOfMemoryError), NO_MEMORY),
        ((NoGPUError, ACCELERATOR), NO_GPU),
        (ImportError, NO_MODULE),
        (OSError, NO_FILE),
    )
    return next((reason for kind, reason in kinds if isinstance(error, kind)), OTHER)


def check_gpu(device: torch.device | str) -> None:
    """Raise `NoGPUError` if a device is a GPU that is not there, or not any more."""
    wanted = torch.device(device)
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise NoGPUError(f"PyTorch {torch.__version__} finds no {wanted}; `nvidia-smi` says whether the driver does.")


def gated(answer: Callable[[], Answer]) -> Answer:
    """Return an answer, and let no exception out but `WithheldError`; the client's own log gets the exception."""
    try:
        return answer()
    except Exception as error:
        reason = reason_of(error)
        if isinstance(error, UnfitTableError) and (found := contract.refusal(error)):
            reason = f"{reason}: {found}"
        log.exception("No answer, and the coordinator only learns: %s.", reason)
    raise WithheldError(reason)  # outside of the handler, so that the exception is not its context


def received(text: object, schema: Schema | None = None) -> str:
    """Return the reason in a text from a client; empty if it holds none.

    Args:
        text: the text.
        schema: of the federation, whose columns a refusal means.
    """
    reason = next((reason for reason in REASONS if reason in str(text)), "")
    found = re.search(rf"{MISFIT}: ([a-z0-9 ,]+)", str(text)[:LONGEST]) if reason == MISFIT and schema else None
    columns = contract.in_words(found[1], schema) if found and schema else ""
    return f"{reason}: {columns}" if columns else reason
