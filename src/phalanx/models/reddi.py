"""The recurrent network of Reddi et al., *Adaptive Federated Optimization* (ICLR 2021), for next characters."""

from dataclasses import dataclass

import torch
from torch import nn
from typing_extensions import override

from phalanx.fields import PositiveInt
from phalanx.models.model import Model
from phalanx.models.recurrent import NextSign, check_text


@dataclass(frozen=True)
class CharLSTM(Model):
    """The network for Shakespeare: 820,522 parameters with 90 classes.

    Embedding of the characters in 8 dimensions, two LSTM layers of 256 units, and one layer to the logits at every
    position. It goes back to McMahan et al. 2017 and is the network of Portnoy, Tirosh and Hendler, *Towards Federated
    Learning with Byzantine-Robust Client Weighting* (arXiv:2004.04986).

    It starts as in the code of Reddi et al., not as torch's layers do: embeddings uniform in +-0.05, recurrent weights
    orthogonal, the other weights normal with variance 2 / inputs in the LSTM (He) and 2 / (inputs + outputs) in the
    last layer (Glorot; they cut both off at two standard deviations), biases 0 except those of the forget gates, 1.
    With the default sizes it then learns visibly faster.  Torch's LSTM has a second bias, which would double the step
    of the first; it is fixed at 0 and is not a parameter of the model.

    Args:
        embedding: size of the vector for each character.
        hidden: number of units in each LSTM layer.
        layers: number of LSTM layers.

    Raises:
        ValueError: if one of them is below 1.
    """

    embedding: PositiveInt = 8
    hidden: PositiveInt = 256
    layers: PositiveInt = 2

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """See `Model.build`; shape is (t,), of inputs in 0 .. classes - 1, and the logits are (B, classes, t)."""
        check_text(self, shape, classes, "characters", "Shakespeare")
        module = NextSign(classes, self.embedding, self.hidden, self.layers)
        nn.init.uniform_(module.embed.weight, -0.05, 0.05)
        for name, parameter in module.recur.named_parameters():
            _start(name, parameter)
        nn.init.xavier_normal_(module.score.weight)
        nn.init.zeros_(module.score.bias)
        return module


@torch.no_grad()
def _start(name: str, parameter: nn.Parameter) -> None:
    """Set the initial value of a parameter of an LSTM, whose four gates are input, forget, cell and output."""
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
