"""The models of a federation of real clients: the initial one, and those that clients can be served in the end.

The folder of the server holds them as `phalanx.runs.models` says.  The operator of the server distributes them.  A
client with several models chooses by its own examples.
"""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import nn

from phalanx.algorithms.hidden import hiding
from phalanx.core import Algorithm, InfeasibleError, Vector
from phalanx.data import Dataset
from phalanx.runs.models import Models
from phalanx.runs.seal import check
from phalanx.training.evaluation import least_loss
from phalanx.training.local import LocalTraining
from phalanx.training.sgd import LocalSGD
from phalanx.training.vector import BufferPolicy, FlatModule


def offered(folder: Path, client: int) -> dict[int, Path]:
    """Return the files of the models that a client can be served after a run, by number, the most general first.

    Args:
        folder: of the run.
        client: its number in the roster.

    Raises:
        SealError: the folder was changed since the run ended.
        FileNotFoundError: the run has left no models: it is not over.
        NotInRecordError: the client did not take part, or the models of clients were left out.
    """
    check(folder)
    index = Models.load(folder).index
    index.file(client)
    return {number: folder / name for number, name in index.clients[client].items()}


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

    A model of which a part stays at the client is chosen by `personalize`.

    Returns:
        The number of the model.
    """
    model, models = FlatModule(module, buffers), dict[int, Vector]()
    how = None if algorithm is None else hiding(algorithm)
    for number, file in files.items():
        model.module.load_state_dict(safetensors.torch.load_file(file))
        models[number] = model.read() if how is None else how.revealed(model.read())
    number = least_loss(model, models, data)
    model.load(models[number])
    return number


def hide(
    module: nn.Module, algorithm: Algorithm, buffers: BufferPolicy = "refuse", training: LocalTraining | None = None
) -> None:
    """Transform the values of a model as `Permuted` or `Rotated` do, for a server that must not see it in the clear.

    Args:
        module: the initial model; overwritten.
        algorithm: that of the clients.
        buffers: as of the `Participant`.
        training: that of the clients, if a part of the model stays with them (`FedPer`).

    Raises:
        InfeasibleError: the algorithm hides nothing.
    """
    how = hiding(algorithm)
    if how is None:
        raise InfeasibleError(f"{algorithm} hides nothing. Take the algorithm of the clients, Permuted or Rotated.")
    model = FlatModule(module, buffers, personal=(training or LocalSGD()).personal)
    model.load(how.hidden(model.read()))
