"""A small causal transformer for next tokens."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from torch import Tensor, nn
from typing_extensions import override

from phalanx.fields import PositiveInt
from phalanx.models.model import Model
from phalanx.models.recurrent import check_text


@dataclass(frozen=True)
class CausalTransformer(Model):
    """A decoder as in GPT-2, for the task `NextToken`: 108,288 parameters with 64 tokens and texts of 64.

    Learnt positions, layers of causal attention and a perceptron of four times the width, layer normalisation before
    each, and logits by the embedding of the tokens.  Radford et al., "Language Models are Unsupervised Multitask
    Learners", 2019.

    Args:
        width: size of the vector of each token, a multiple of `heads`.
        layers: number of layers.
        heads: number of heads of attention.
        tied: whether the logits are made by the embedding of the tokens; if not, by a layer of their own.

    Raises:
        ValueError: if a size is below 1, or `width` is not a multiple of `heads`.
    """

    width: PositiveInt = 64
    layers: PositiveInt = 2
    heads: PositiveInt = 4
    tied: bool = True

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}.")

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """See `Model.build`; shape is (t,), of inputs in 0 .. classes - 1, and the logits are (B, t, classes)."""
        check_text(self, shape, classes, "tokens", "Shakespeare")
        return Decoder(classes, shape[0], self)


class Decoder(nn.Module):
    """The network of `CausalTransformer`.

    Args:
        tokens: number of different tokens.
        length: largest length of a text.
        sizes: the other sizes.
    """

    def __init__(self, tokens: int, length: int, sizes: CausalTransformer) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(tokens, sizes.width), nn.Embedding(length, sizes.width)
        self.layers = nn.ModuleList(DecoderLayer(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.norm, self.score = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, tokens, bias=False)
        for embedding in (self.embed, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        if sizes.tied:
            self.score.weight = self.embed.weight

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, t, tokens) of tokens (B, t), in float32 or wider."""
        states = self.embed(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            states = layer(states)
        scores: Tensor = self.score(self.norm(states))
        return scores.float() if scores.dtype == torch.bfloat16 else scores


class DecoderLayer(nn.Module):
    """Causal attention and a perceptron, each added to its input.

    Args:
        width: size of the vector of each token.
        heads: number of heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_widening = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the states (B, t, width) after this layer."""
        seen = self.before_attention(x)
        queries, keys, values = (
            part(seen).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        found = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mix(found.transpose(1, 2).flatten(2))
        changed: Tensor = x + self.narrow(F.gelu(self.widen(self.before_widening(x))))
        return changed
