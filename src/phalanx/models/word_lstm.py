"""The recurrent network for next words of Cox et al. 2024 and Sattler et al. 2019."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from torch import nn
from typing_extensions import override

from phalanx.fields import PositiveInt
from phalanx.models.model import Model
from phalanx.models.recurrent import NextSign, check_text


@dataclass(frozen=True)
class WordLSTM(Model):
    """A network for next words: 9,337,406 parameters with the 23,654 classes of WikiText-2.

    Embedding of the words in 100 dimensions, two LSTM layers of 256 units, one layer to the logits at every position.
    The sizes are from the code of Cox, Malan, Chen and Decouchant, *Asynchronous Byzantine Federated Learning*
    (arXiv:2406.01438), whose paper gives none.  Sattler, Mueller and Samek, *Clustered Federated Learning*
    (arXiv:1910.01991), train "a two-layer LSTM network" on AG-News and give none either.

    Nine of ten parameters belong to the vocabulary: each of its words costs embedding + hidden + 1.

    Args:
        embedding: size of the vector for each word.
        hidden: number of units in each LSTM layer.
        layers: number of LSTM layers.
        dropout: probability that training drops a unit between two LSTM layers, and before the logits.

    Raises:
        ValueError: if a size is below 1, or the probability is outside [0, 1).
    """

    embedding: PositiveInt = 100
    hidden: PositiveInt = 256
    layers: PositiveInt = 2
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """See `Model.build`; shape is (t,), of inputs in 0 .. classes - 1, and the logits are (B, classes, t)."""
        check_text(self, shape, classes, "words", "WikiText2")
        return NextSign(classes, self.embedding, self.hidden, self.layers, self.dropout)
