"""The recurrent network of Reddi et al., *Adaptive Federated Optimization* (ICLR 2021), for next characters."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phalanx.models.model import Model, check_task


@dataclass(frozen=True)
class CharLSTM(Model):
    """The network for Shakespeare: 820,522 parameters with 90 classes.

    Embedding of the classes in 8 numbers, two LSTM layers of 256 units, and one layer to the logits at every position.
    It goes back to McMahan et al. 2017 and is that of Portnoy, Tirosh and Hendler, *Towards Federated Learning with
    Byzantine-Robust Client Weighting* (arXiv:2004.04986).

    It starts as in the code of Reddi et al., not as torch's layers do: embeddings uniform in +-0.05, recurrent weights
    orthogonal, the other weights normal with variance 2 / inputs in the LSTM (He) and 2 / (inputs + outputs) in the
    last layer (Glorot; they cut both off at two standard deviations), biases 0 except those of the forget gates, 1.
    With the default sizes it learns visibly faster so.  Torch's LSTM has a second bias, which would double the step of
    the first; it is fixed at 0 and is no parameter of the model.

    Args:
        embedding: numbers that stand for a character.
        hidden: units of each LSTM layer.
        layers: number of LSTM layers.

    Raises:
        ValueError: one of them is below 1.
    """

    embedding: int = 8
    hidden: int = 256
    layers: int = 2

    def __post_init__(self) -> None:
        for name in ("embedding", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """See `Model.build`; shape is (t,), of inputs in 0 .. classes - 1, and the logits are (B, classes, t)."""
        check_task(self, shape, classes)
        if len(shape) != 1:
            raise ValueError(
                f"{self} takes sequences of characters of shape (t,), got shape {shape}. "
                "Choose another data set, such as Shakespeare, or MLP (anything)."
            )
        return _NextCharacter(classes, self.embedding, self.hidden, self.layers)


class _NextCharacter(nn.Module):
    """Scores of the next character, at each position of a text."""

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, embedding)
        self.recur = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.score = nn.Linear(hidden, classes)
        nn.init.uniform_(self.embed.weight, -0.05, 0.05)
        for name, parameter in self.recur.named_parameters():
            _start(name, parameter)
        nn.init.xavier_normal_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes, t) of characters (B, t)."""
        states, _ = self.recur(self.embed(x))
        scores: Tensor = self.score(states)
        return scores.transpose(1, 2)


@torch.no_grad()
def _start(name: str, parameter: nn.Parameter) -> None:
    """The first value of a parameter of an LSTM, which holds four gates: input, forget, cell, output."""
    if name.startswith("weight_hh"):
        nn.init.orthogonal_(parameter)
    elif name.startswith("weight_ih"):
        nn.init.kaiming_normal_(parameter)  # variance 2 / inputs
    else:
        nn.init.zeros_(parameter)
    if name.startswith("bias_ih"):
        _, forget, _, _ = parameter.chunk(4)
        forget.fill_(1)
    elif name.startswith("bias_hh"):
        parameter.requires_grad_(False)
