"""The updates of a run, kept step by step: for `phalanx verify` and `phalanx replay`.

`updates/start.safetensors` holds the initial model and the sizes that clients report; `updates/00000001.safetensors`
holds what came in step 1: each update as its client sent it, the losses, what else the algorithm was given, and the
digest of the model that it made of it.  All of it is data; nothing of it is ever imported or called.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import safetensors.torch
import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from phalanx.core import ROUND_LOST, AnyState, InfeasibleError, Updates, Vector
from phalanx.engine.guard import Guard
from phalanx.engine.observer import Progress
from phalanx.promises import BrokenPromise
from phalanx.reading import from_json, opened
from phalanx.runs.files import inside, real_inside, replacing, settle
from phalanx.runs.models import Served, content, others
from phalanx.training.vector import rows_as_matrix
from phalanx.wording import plural, shown

UPDATES, START = "updates", "start"
BLOCK = 256  # entries that share a scale
LARGEST_STEP = 1 << 34  # bytes of the file of a step
LARGEST_HEADER = 100_000_000  # bytes of what such a file says about its tensors
LARGEST_NUMBER = 1 << 62  # of clients, versions, sizes and counts
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
Transfer = Literal["float32", "bfloat16", "int8"]
TRAVELLING: dict[Transfer, dict[str, torch.dtype]] = {  # the arrays of an update that is not sent as it is
    "float32": {},
    "bfloat16": {"values": torch.uint16},
    "int8": {"values": torch.int8, "scales": torch.float32},
}


class ArrayPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array in an answer: its name, and in hexadecimal the bytes before its entries."""

    name: str
    header: str


class SentAnswer(NamedTuple):
    """An answer as its client sent it.

    Args:
        parts: what its fingerprint is of, texts and arrays.
        arrays: the bytes of the entries of each array, by name; nothing where the update is exactly these.
    """

    parts: tuple[str | ArrayPart, ...]
    arrays: Mapping[str, bytes]


class KeptStep(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the file of a step says about it.

    Args:
        step: its number; 0: the initial model.
        clients: whose updates came, increasing; at the start, none.
        versions: of the model that each was sent.
        bases: number of what each was sent; 0: the global model before the step, k: the tensor `base.k`.
        joined: clients that were enrolled since the step before, with the sizes that they report.
        watched: number of clients that each aggregation is checked for, of which `bad` have sent something invalid.
        broken_promise: what became of an aggregation that broke the promise, as in `LoopSettings`.
        bad: enrolled clients whose answers were invalid.
        lost: why the round was lost; empty if it was not.
        result: SHA-256 of the global model after the step.
        others: of the models that clients are served instead; empty if there are none.
        transfer: in which form updates travelled.
        sent: by client, the parts of its answer; empty in a simulation.
    """

    step: int
    clients: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()
    bases: tuple[int, ...] = ()
    joined: dict[int, int] = {}
    watched: int = 0
    broken_promise: BrokenPromise = "hold"
    bad: int = 0
    lost: str = ""
    result: str = ""
    others: str = ""
    transfer: Transfer = "float32"
    sent: dict[int, tuple[str | ArrayPart, ...]] = {}


class KeptUpdates(NamedTuple):
    """A step as it was kept: what is said about it, and its tensors by name."""

    about: KeptStep
    tensors: Mapping[str, Tensor]

    @property
    def travelled(self) -> bool:
        """Whether updates are as they travelled, in another form than that of the model."""
        return self.about.transfer != "float32" and bool(self.about.sent)

    def update(self, client: int) -> Vector:
        """Return the update of a client as the algorithm got it; raise `ValueError` if it is not there."""
        if not self.travelled:
            return self._tensor(f"{client}")
        values = self._tensor(f"{client}.values").numpy()
        out = torch.empty(len(values))
        if self.about.transfer == "bfloat16":
            np.left_shift(values, 16, out=out.numpy().view(np.uint32), dtype=np.uint32)
        else:
            restore(values, self._tensor(f"{client}.scales").numpy(), out)
        return out

    def fingerprint_parts(self, client: int) -> Iterator[str | bytes]:
        """Yield the parts of a client's answer, with the SHA-256 of each array in its place; raise as `update` does."""
        for part in self.about.sent[client]:
            if isinstance(part, str):
                yield part
                continue
            plain = self.about.transfer == "float32"
            held = self._tensor(f"{client}" if plain else f"{client}.{part.name}")
            digest = hashlib.sha256(bytes.fromhex(part.header))
            digest.update(held.view(torch.uint8).numpy().data)
            yield digest.digest()

    def updates(self, model: Vector, size: int) -> Updates:
        """Return what the algorithm was given.

        Args:
            model: the global one before the step.
            size: number of entries of what each client was sent.

        Raises:
            ValueError: something of it is not there, or of another shape.
        """
        about, losses = self.about, self._tensor("losses")
        bases = [model if k == 0 else self._tensor(f"base.{k}") for k in about.bases]
        rows = [self.update(client) for client in about.clients]
        reference = self.tensors.get("reference")
        vectors = [*rows, *([] if reference is None else [reference])]
        if any(vector.shape != model.shape for vector in vectors) or any(len(base) != size for base in bases):
            raise ValueError(f"step {about.step} holds a vector of another length than the model's")
        if any(vector.dtype != model.dtype for vector in (*bases, *vectors)):
            raise ValueError(f"step {about.step} holds a vector of another type than the model's")
        return Updates(about.clients, about.versions, tuple(bases), rows_as_matrix(rows), losses, reference)

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(f"step {self.about.step} holds no {name}")
        return self.tensors[name]


def restore(values: Shaped[np.ndarray, "_"], scales: Shaped[np.ndarray, "_"], out: Vector) -> None:
    """Write a vector that travelled as multiples of the scale of each block."""
    np.multiply(values, np.repeat(scales, BLOCK)[: len(values)], out=out.numpy())


def file_of(step: int) -> str:
    """Return the name of the file of a step in the folder of its run."""
    return f"{UPDATES}/{f'{step:08d}' if step else START}.safetensors"


def forget_updates(folder: Path) -> None:
    """Remove the updates of an earlier run from a folder."""
    if not (folder / UPDATES).is_symlink():
        shutil.rmtree(folder / UPDATES, ignore_errors=True)


def kept_steps(folder: Path) -> list[int]:
    """Return the steps whose updates are in a folder, but for the start, in order."""
    names = (path.stem for path in (folder / UPDATES).glob("*.safetensors"))
    return sorted(int(name) for name in names if len(name) == len("00000000") and name.isdecimal())


def read_kept(folder: Path, step: int) -> KeptUpdates:
    """Return what was kept of a step, in a folder that may be somebody else's.

    Raises:
        ValueError: it is too large, damaged, of another step, or says what cannot be.
        FileNotFoundError: there is none.
    """
    path = inside(folder, file_of(step))
    with opened(path) as file:
        size, head = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if size > LARGEST_STEP or head > LARGEST_HEADER:
        raise ValueError(f"{path} is larger than the updates of any step, {LARGEST_STEP:,} bytes.")
    try:
        with safe_open(path, "pt") as held:
            about = from_json((held.metadata() or {}).get("phalanx", "").encode(), KeptStep)
            tensors = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118  (it is no mapping)
        kept = KeptUpdates(about, tensors)
        if why := next(_unfit(kept, step), ""):
            raise ValueError(why)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} holds no updates of step {step}: {error}") from error
    return kept


def _unfit(kept: KeptUpdates, step: int) -> Iterator[str]:
    """Yield what about the updates of a step cannot be, whoever wrote it; after the first, nothing more is sure."""
    about = kept.about
    if about.step != step:
        yield f"it is the file of step {about.step}"
    numbers = (*about.clients, *about.versions, *about.bases, *about.joined, *about.joined.values())
    if any(not 0 <= number < LARGEST_NUMBER for number in (*numbers, about.watched, about.bad)):
        yield "a number is negative or too large"
    if 0 in about.joined.values():
        yield "a client reports no examples"
    if not (about.clients if step else about.joined):
        yield "it names no clients"
    if [*about.clients] != sorted({*about.clients}):
        yield "its clients do not increase"
    if not len(about.clients) == len(about.versions) == len(about.bases):
        yield "clients, versions and bases are of different number"
    yield from _unfit_tensors(kept, _kinds(kept) if step else {"model": FLOATS})


def _unfit_tensors(kept: KeptUpdates, kinds: Mapping[str, tuple[torch.dtype, ...]]) -> Iterator[str]:
    about, tensors = kept.about, kept.tensors
    for name in sorted((kinds.keys() ^ tensors.keys()) - {"reference"}):
        yield f"it {'lacks' if name in kinds else 'has no place for'} {shown(name)}"
    for name, vector in tensors.items():
        if vector.ndim != 1 or vector.dtype not in kinds.get(name, FLOATS):
            yield f"{shown(name)} is no vector of the type that belongs there"
    if about.step and len(tensors["losses"]) != len(about.clients):
        yield "losses and clients are of different number"
    for client in about.clients if kept.travelled and about.transfer == "int8" else ():
        values, scales = len(tensors[f"{client}.values"]), len(tensors[f"{client}.scales"])
        if scales != -(-values // BLOCK):
            yield f"client {client} has {plural(scales, 'scale')} of {plural(values, 'value')}"


def _kinds(kept: KeptUpdates) -> dict[str, tuple[torch.dtype, ...]]:
    """Return the types that each tensor of a step can have, by its name."""
    about = kept.about
    kinds: dict[str, tuple[torch.dtype, ...]] = {"losses": FLOATS}
    kinds |= {f"base.{number}": FLOATS for number in about.bases if number}
    for client in about.clients:
        if not kept.travelled:
            kinds[f"{client}"] = FLOATS
            continue
        parts = [part.name for part in about.sent.get(client, ()) if isinstance(part, ArrayPart)]
        known = TRAVELLING[about.transfer]
        kinds |= {f"{client}.{name}": (known.get(name, torch.float32),) for name in (*known, *parts)}
    return kinds


class UpdateKeeper:
    """An observer that keeps the updates of each step in the folder of a run.

    Args:
        folder: of the run.
        served: returns the models of a state for its enrolled clients.
        reported: returns the sizes that clients report, unchecked.
        guard: of the run, which decides which of these are used.
        sent: by client, its last answer; empty in a simulation.
        transfer: in which form updates travel.
        broken_promise: that of the settings.
    """

    def __init__(
        self,
        folder: Path,
        served: Callable[[AnyState, frozenset[int]], Served],
        reported: Callable[[], Mapping[int, object]],
        guard: Guard,
        *,
        sent: Mapping[int, SentAnswer] | None = None,
        transfer: Transfer = "float32",
        broken_promise: BrokenPromise = "hold",
    ) -> None:
        self._folder, self._served, self._guard = folder, served, guard
        self._reported, self._transfer = reported, transfer
        self._sent = {} if sent is None else sent  # which is filled later
        self._before: Progress | None = None
        self._broken_promise = broken_promise
        self.digest = ""  # SHA-256 of the last file

    def __call__(self, progress: Progress, /) -> None:
        """Keep the updates of a step.

        Raises:
            InfeasibleError: the run goes on, and the steps so far were not kept.
            OSError: they cannot be written; a run that is to keep them does not go on without.
        """
        before, self._before = self._before, progress._replace(updates=None)
        if before is None:
            self._begin(progress)
        elif progress.updates is not None:
            self._keep(before, progress, progress.updates)
        else:
            self._before = self._before._replace(enrolled=before.enrolled)  # who joined is kept with the next step

    def _begin(self, progress: Progress) -> None:
        if progress.step:
            if [*range(1, progress.step + 1)] != [step for step in kept_steps(self._folder) if step <= progress.step]:
                raise InfeasibleError(
                    f"The updates of the first {plural(progress.step, 'step')} were not kept. Go on without keeping "
                    "updates, or start over."
                )
            for step in kept_steps(self._folder):
                if step > progress.step:
                    (self._folder / file_of(step)).unlink()
            return
        about = KeptStep(0, joined=self._sizes(progress.enrolled), result=content(progress.state.model).hex())
        self._write(about, {"model": progress.state.model})

    def _sizes(self, clients: frozenset[int]) -> dict[int, int]:
        sizes, _ = self._guard.enroll(self._reported())
        return {client: size for client, size in sizes.items() if client in clients}

    def _keep(self, before: Progress, progress: Progress, updates: Updates) -> None:
        tensors, bases, places = dict[str, Tensor](), list[int](), {before.state.model.data_ptr(): 0}
        for base in updates.bases:
            if (place := base.data_ptr()) not in places:
                same = base.shape == before.state.model.shape and torch.equal(base, before.state.model)
                places[place] = 0 if same else len(places)
                if not same:
                    tensors[f"base.{places[place]}"] = base
            bases.append(places[place])
        sent = {client: self._sent[client] for client in updates.clients if client in self._sent}
        for client, row in zip(updates.clients, updates.deltas, strict=True):
            arrays = sent[client].arrays if client in sent else {}
            if not arrays:
                tensors[f"{client}"] = row
            for name, data in arrays.items():
                kind = TRAVELLING[self._transfer].get(name, torch.float32)
                tensors[f"{client}.{name}"] = torch.frombuffer(bytearray(data), dtype=kind)
        tensors["losses"] = updates.losses
        if updates.reference is not None:
            tensors["reference"] = updates.reference
        served, reasons = self._served(progress.state, progress.enrolled), progress.state.verdicts.values()
        lost = {one.reason for one in reasons} if progress.state.version == before.state.version else set[str]()
        about = KeptStep(
            progress.step,
            updates.clients,
            updates.versions,
            (*bases,),
            joined=self._sizes(progress.enrolled - before.enrolled),
            watched=progress.watched,
            broken_promise=self._broken_promise,
            bad=len(progress.invalid.keys() & progress.enrolled),
            lost=next((why.removeprefix(ROUND_LOST) for why in lost if why.startswith(ROUND_LOST)), ""),
            result=content(served.model).hex(),
            others=others(served),
            transfer=self._transfer,
            sent={client: one.parts for client, one in sent.items()},
        )
        self._write(about, tensors)

    def _write(self, about: KeptStep, tensors: Mapping[str, Tensor]) -> None:
        (self._folder / UPDATES).mkdir(exist_ok=True)  # its name is synced with the next checkpoint
        owned = {
            name: held.detach().cpu().clone(memory_format=torch.contiguous_format) for name, held in tensors.items()
        }
        text = safetensors.torch.save(owned, {"phalanx": msgspec.json.encode(about).decode()})
        self.digest = hashlib.sha256(text).hexdigest()
        with replacing(real_inside(self._folder, file_of(about.step))) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        settle(self._folder / UPDATES)
