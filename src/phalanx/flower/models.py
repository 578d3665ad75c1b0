"""The models of a federation as files and modules: the initial one, and those that clients can be served in the end.

A server writes `model.pt`, the global model, and if clients are served others, `models/` with `offers.json`, which
names the models of each client.  The operator of the server distributes them.  A client with several models chooses by
its own examples.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import nn

from phalanx.algorithms.hidden import hiding
from phalanx.core import Algorithm, AnyState, InfeasibleError, Vector
from phalanx.data import Dataset
from phalanx.training.evaluation import least_loss
from phalanx.training.vector import BufferPolicy, FlatModule

MODEL = "model.pt"  # the global model, as the state_dict of its module
MODELS = "models"  # the folder of those that clients are served instead
OFFERS = "offers.json"  # in it: for each client the files, the most general model first


def save(folder: Path, model: FlatModule, algorithm: Algorithm, state: AnyState, clients: Iterable[int]) -> None:
    """Write the final models of a run.

    Args:
        folder: of the run.
        model: the module of the models; its values are overwritten.
        algorithm: of the run.
        state: its last.
        clients: that took part.
    """
    offers = {i: algorithm.candidate_models(state, i) for i in sorted(clients)}
    if algorithm.download_size(model.size) != model.size:  # of downloads that begin with the global model
        offers = {i: {0: state.model} for i in offers}
    files = dict[int, dict[int, str]]()
    if any(served is not state.model for models in offers.values() for served in models.values()):
        files = {i: {k: _name(offers, i, k) for k in models} for i, models in offers.items()}
        written = {files[i][k]: served for i, models in offers.items() for k, served in models.items()}
        (folder / MODELS).mkdir(exist_ok=True)
        for name, served in written.items():
            _write(folder / MODELS / name, model, served)
        text = json.dumps({str(i): {str(k): name for k, name in of.items()} for i, of in files.items()}, indent=1)
        partial = folder / MODELS / f"{OFFERS}.partial"
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(folder / MODELS / OFFERS)
    _write(folder / MODEL, model, state.model)


def _name(offers: Mapping[int, Mapping[int, Vector]], client: int, number: int) -> str:
    """Return the file name of a model: one for all clients with the same model of this number, or one for each."""
    mine = offers[client][number]
    shared = all(models[number] is mine for models in offers.values() if number in models)
    return f"{number}.pt" if shared else f"{number}-client-{client}.pt"


def _write(path: Path, model: FlatModule, vector: Vector) -> None:
    model.load(vector)
    partial = path.with_suffix(".partial")
    torch.save(model.module.state_dict(), partial)
    partial.replace(path)


def forget(folder: Path) -> None:
    """Remove the models that another run left in the folder."""
    (folder / MODEL).unlink(missing_ok=True)
    shutil.rmtree(folder / MODELS, ignore_errors=True)


def offered(folder: Path, client: int) -> dict[int, Path]:
    """Return the files of the models that a client can be served after a run, by number, the most general first.

    Args:
        folder: of the run.
        client: its number in the roster.

    Raises:
        FileNotFoundError: the run has left no models: it is not over, or it failed.
        KeyError: the client did not take part.
    """
    if not (folder / MODEL).is_file():
        raise FileNotFoundError(f"There are no models in {folder}: the run is not over, or it failed.")
    if not (folder / MODELS / OFFERS).is_file():
        return {0: folder / MODEL}
    offers = json.loads((folder / MODELS / OFFERS).read_text(encoding="utf-8"))
    if str(client) not in offers:
        raise KeyError(f"Client {client} did not take part. Who did: {', '.join(offers)}.")
    return {int(number): folder / MODELS / name for number, name in offers[str(client)].items()}


def choose(
    files: Mapping[int, Path],
    module: nn.Module,
    data: Dataset,
    algorithm: Algorithm | None = None,
    buffers: BufferPolicy = "refuse",
) -> int:
    """Load the model with the least loss on a client's examples; at a tie the most specific.

    Args:
        files: of `offered`.
        module: gets the values of that model.
        data: the client's, none of which it has trained on.
        algorithm: that of the client; needed where it hides models from the server.
        buffers: as of the `Participant`.

    Returns:
        The number of the model.
    """
    model, models = FlatModule(module, buffers), dict[int, Vector]()
    how = None if algorithm is None else hiding(algorithm)
    for number, file in files.items():
        model.module.load_state_dict(torch.load(file, weights_only=True))
        models[number] = model.read() if how is None else how.revealed(model.read())
    number = least_loss(model, models, data)
    model.load(models[number])
    return number


def hide(module: nn.Module, algorithm: Algorithm, buffers: BufferPolicy = "refuse") -> None:
    """Transform the values of a model as `Permuted` or `Rotated` do, for a server that must not see it in the clear.

    Args:
        module: the initial model; overwritten.
        algorithm: that of the clients.
        buffers: as of the `Participant`.

    Raises:
        InfeasibleError: the algorithm hides nothing.
    """
    how = hiding(algorithm)
    if how is None:
        raise InfeasibleError(f"{algorithm} hides nothing. Take the algorithm of the clients, Permuted or Rotated.")
    model = FlatModule(module, buffers)
    model.load(how.hidden(model.read()))
