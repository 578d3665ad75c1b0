"""The server's own training, for algorithms that compare updates with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from phalanx.core import Algorithm, AnyState, InfeasibleError, Vector

Train = Callable[[Vector, int], Vector]  # a model, its version -> the change that the server's own training makes


class Reference(NamedTuple):
    """The result of the server's own training of a version."""

    version: int
    change: Vector


@dataclass
class ServerReference:
    """The server's own training, repeated when a step needs it and the last result is too old.

    Args:
        train: trains a model.
        every: number of server versions for which one result is used.
        last: the last result.
    """

    train: Train
    every: int
    last: Reference | None = None

    def change(self, state: AnyState) -> Vector:
        """Return the change to the current model, or to that of a version which is not too old.

        Raises:
            InfeasibleError: it is not finite.
        """
        if self.last is None or state.version - self.last.version >= self.every:
            change = self.train(state.model, state.version)
            if not bool(change.isfinite().all()):
                raise InfeasibleError(
                    f"The server's own training of version {state.version} gave values that are not finite, so that "
                    "no update can be compared with it. Lower the learning rate."
                )
            self.last = Reference(state.version, change)
        return self.last.change


def server_reference(algorithm: Algorithm[Any], train: Train | None) -> ServerReference | None:
    """Return the server's own training, None if the algorithm does not need it.

    Raises:
        InfeasibleError: the algorithm needs it, and there is none.
    """
    every = algorithm.traits.reference_every
    if every is None:
        return None
    if train is None:
        raise InfeasibleError(
            f"{type(algorithm).__name__} needs the server's own training, and the server has no "
            "examples. Set `server_examples` of the run, to 100 say; or give `phalanx.run` a `reference`."
        )
    return ServerReference(train, every)
