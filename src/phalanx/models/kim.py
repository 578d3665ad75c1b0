"""The convolutional network of Kim, *Convolutional Neural Networks for Sentence Classification* (EMNLP 2014)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor, nn
from typing_extensions import override

from phalanx.fields import PositiveInt
from phalanx.models.model import Model
from phalanx.models.recurrent import check_text


@dataclass(frozen=True)
class KimCNN(Model):
    """A network for the class of a sentence: 6,360,902 parameters with 20,000 words and 2 classes.

    Embedding of the words in 300 dimensions; for each width a convolution over that many neighbouring words, ReLU, and
    the maximum of each filter over the sentence; dropout; one layer to the logits.  It is Kim's network "CNN-rand",
    whose embeddings start at random, uniform in +-0.25, and are trained.  Pretrained embeddings, with which Kim's and
    most published figures are some points better, are not used.  Padding has the embedding 0, which training does not
    change, but an aggregate with attackers' updates can.  His limit on the norm of the last layer's weights is left
    out.

    Xu and Lyu, *Towards Building a Robust and Fair Federated Learning System* (arXiv:2011.10464), name Kim's network;
    their code has three convolutions of the same width, `KimCNN(filters=128, widths=(3, 3, 3))`: 6,346,754 parameters.

    Args:
        vocabulary: number of different words, special ones such as padding included; the same as the vocabulary of
            `MR` and `SST` by default.
        embedding: size of the vector for each word.
        filters: number of filters of each convolution.
        widths: width of each convolution, in words.
        dropout: probability that training drops a filter's value.

    Raises:
        ValueError: if a size is below 1, or the probability is outside [0, 1).
    """

    vocabulary: PositiveInt = 20_000
    embedding: PositiveInt = 300
    filters: PositiveInt = 100
    widths: Annotated[tuple[PositiveInt, ...], Meta(min_length=1)] = (3, 4, 5)
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.5

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """See `Model.build`; shape is (t,), of inputs in 0 .. vocabulary - 1, with t at least the largest width."""
        check_text(self, shape, classes, "words", "MR")
        if shape[0] < max(self.widths):
            raise ValueError(
                f"{self} needs sentences of at least {max(self.widths)} words, got sentences of {shape[0]}. "
                "Pad them (data.sequence), or lower widths."
            )
        return _SentenceClass(self, classes)


class _SentenceClass(nn.Module):
    """The module that `KimCNN` builds."""

    def __init__(self, sizes: KimCNN, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.embedding, padding_idx=0)
        self.filters = nn.ModuleList(nn.Conv1d(sizes.embedding, sizes.filters, width) for width in sizes.widths)
        self.drop = nn.Dropout(sizes.dropout)
        self.score = nn.Linear(len(sizes.widths) * sizes.filters, classes)
        nn.init.uniform_(self.embed.weight, -0.25, 0.25)
        with torch.no_grad():
            self.embed.weight[0] = 0

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes) of sentences (B, t).

        Raises:
            ValueError: if the number of a word is not below the vocabulary; on a GPU torch raises its own error.
        """
        try:
            words = self.embed(x).transpose(1, 2)
        except IndexError as error:
            raise ValueError(
                f"A word must be in 0..{self.embed.num_embeddings - 1}, got {int(x.min())} to {int(x.max())}. "
                "Set its vocabulary (model.vocabulary) to that of the data, at least."
            ) from error
        found = [torch.relu(filters(words)).amax(2) for filters in self.filters]
        scores: Tensor = self.score(self.drop(torch.cat(found, 1)))
        return scores
