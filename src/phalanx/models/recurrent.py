"""What the recurrent networks for next characters and next words have in common."""

from torch import Tensor, nn

from phalanx.models.model import Model, check_task


class NextSign(nn.Module):
    """Scores of the next sign, at each position of a text: embedding, LSTM layers, one layer to the logits.

    Args:
        classes: how many signs there are.
        embedding: numbers that stand for a sign.
        hidden: units of each LSTM layer.
        layers: number of LSTM layers.
        dropout: probability with which training drops what one LSTM layer gives to the next, and the last one to the
            logits.
    """

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, embedding)
        self.recur = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.drop = nn.Dropout(dropout)
        self.score = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes, t) of signs (B, t)."""
        states, _ = self.recur(self.embed(x))
        scores: Tensor = self.score(self.drop(states))
        return scores.transpose(1, 2)


def check_sizes(model: Model, *names: str) -> None:
    """Refuses a network without units.

    Raises:
        ValueError: one of the named fields is below 1.
    """
    for name in names:
        if getattr(model, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(model, name)}.")


def check_text(model: Model, shape: tuple[int, ...], classes: int, signs: str, example: str) -> None:
    """Refuses examples that are not texts.

    Args:
        model: whose name and values the message gives.
        shape: of one example.
        classes: number of classes.
        signs: what a text is made of, for the message.
        example: a data set that would do.

    Raises:
        ValueError: the shape is not (t,), or there are fewer than two classes.
    """
    check_task(model, shape, classes)
    if len(shape) != 1:
        raise ValueError(
            f"{model} takes sequences of {signs} of shape (t,), got shape {shape}. "
            f"Choose another data set, such as {example}, or MLP (anything)."
        )
