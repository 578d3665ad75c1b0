"""The common parts of the recurrent networks for next characters and next words."""

from torch import Tensor, nn
from typing_extensions import override

from phalanx.models.model import Model, check_task


class NextSign(nn.Module):
    """The scores of the next sign at each position of a text: embedding, LSTM layers, one layer to the logits.

    Args:
        classes: number of different signs.
        embedding: size of the vector for each sign.
        hidden: number of units in each LSTM layer.
        layers: number of LSTM layers.
        dropout: probability that training drops a unit between two LSTM layers, and before the logits.
    """

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, embedding)
        self.recur = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.drop = nn.Dropout(dropout)
        self.score = nn.Linear(hidden, classes)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes, t) of signs (B, t)."""
        states, _ = self.recur(self.embed(x))
        scores: Tensor = self.score(self.drop(states))
        return scores.transpose(1, 2)


def check_text(model: Model, shape: tuple[int, ...], classes: int, signs: str, example: str) -> None:
    """Raise `ValueError` unless the examples are texts.

    Args:
        model: the model, named in the message.
        shape: shape of one example.
        classes: number of classes.
        signs: what a text consists of, for the message: "words".
        example: a suitable data set, for the message.

    Raises:
        ValueError: if the shape is not (t,), or there are fewer than two classes.
    """
    check_task(model, shape, classes)
    if len(shape) != 1:
        raise ValueError(
            f"{model} takes sequences of {signs} of shape (t,), got shape {shape}. "
            f"Choose another data set, such as {example}, or MLP (anything)."
        )
