"""Agreement of participants on every class: a test that finds label flips of one class.

Ours.  Reputation (Xu and Lyu 2020, see `phalanx.algorithms.rffl`) is the cosine of a whole update, and nine tenths of
the update of a participant with ones labelled as sevens are honest.  The attack is visible in the row of the output
layer for the ones.  A row of one update is mostly noise; that of the sum of all updates since the start is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor
from torch.nn.functional import cosine_similarity

from phalanx.core import InfeasibleError, Matrix
from phalanx.fields import CheckedFields, NonNegativeInt, PositiveInt
from phalanx.models import Model


class Agreement(NamedTuple):
    """The agreement of a participant with the others on the class on which they agree least."""

    cosine: float
    disputed: int  # the class


@dataclass(frozen=True)
class ByClass(CheckedFields):
    """A comparison of each participant's summed updates with those of the others, class by class, in the output layer.

    Participants must hold examples of every class, or lack the same ones: a participant without examples of a class
    trains its model to avoid it, and disagrees with those that have some.  Attackers must be fewer than the honest.

    Args:
        start: entries of a model's vector before the weights of the output layer.
        classes: its outputs; each has a row of weights, and after all rows a bias.
        features: its inputs.
        least: the smallest cosine that is no disagreement, in (-1, 1).
        patience: rounds before the first test.
    """

    start: NonNegativeInt
    classes: Annotated[int, Meta(ge=2)]
    features: PositiveInt
    least: Annotated[float, Meta(gt=-1, lt=1)] = 0.4
    patience: NonNegativeInt = 3

    @classmethod
    def of(
        cls, model: Model, shape: tuple[int, ...], classes: int, *, least: float = 0.4, patience: int = 3
    ) -> "ByClass":
        """Return the test for the output layer of a model.

        Args:
            model: the model that is trained.
            shape: of one example.
            classes: number of classes.
            least: see above.
            patience: see above.

        Raises:
            ValueError: the model is not made for such examples, or does not end with a row and a bias for each class.
        """
        with torch.device("meta"):  # shapes only: nothing is drawn
            module = model.build(shape, classes)
        shapes = [tuple(p.shape) for p in module.parameters() if p.requires_grad]
        if len(shapes) < 2 or len(shapes[-2]) != 2 or shapes[-2][0] != classes or shapes[-1] != (classes,):
            raise ValueError(
                f"{model} does not end with weights (classes, features) and a bias for each class: its last "
                f"parameters have the shapes {shapes[-2:]}. ByClass needs a fully connected output layer."
            )
        features = shapes[-2][1]
        start = sum(torch.Size(s).numel() for s in shapes[:-2])
        return cls(start, classes, features, least, patience)

    @property
    def stop(self) -> int:
        """The end of the output layer in a model's vector."""
        return self.start + self.classes * (self.features + 1)

    def check(self, d: int) -> None:
        """Raise `InfeasibleError` if a model has no such layer.

        Args:
            d: entries of the model's vector.

        Raises:
            InfeasibleError: it is too short.
        """
        if self.stop > d:
            raise InfeasibleError(
                f"The output layer would end at entry {self.stop:,}, and the model has {d:,}. "
                "Take ByClass.of(model, shape, classes) of the model that is trained."
            )

    def rows(self, deltas: Matrix) -> Float[Tensor, "m classes entries"]:
        """Return the changes of each class's weights and bias, (m, classes, features + 1), float64."""
        layer = deltas[:, self.start : self.stop].double()
        weights, biases = layer[:, : -self.classes], layer[:, -self.classes :]
        return torch.cat([weights.reshape(-1, self.classes, self.features), biases[:, :, None]], dim=2)

    def agreements(self, sums: Mapping[int, Float[Tensor, "classes entries"]]) -> dict[int, Agreement]:
        """Return for each participant its smallest cosine with the sum of the others over the classes.

        A zero row has no direction, and counts as agreement.

        Args:
            sums: the sum of each participant's updates so far, as `rows`.
        """
        if len(sums) < 2:
            return {i: Agreement(1.0, 0) for i in sums}
        own = torch.stack(list(sums.values()))
        others = own.sum(0) - own
        informative = own.any(2) & others.any(2)
        cosines = torch.where(informative, cosine_similarity(own, others, dim=2), 1.0)
        least, which = cosines.min(dim=1)
        return {i: Agreement(float(c), int(k)) for i, c, k in zip(sums, least, which, strict=True)}
