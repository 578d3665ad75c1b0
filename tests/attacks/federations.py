"""What attackers see, for the tests of attacks."""

from collections.abc import Sequence

import torch

from phalanx.attacks import Attack, Knowledge, Update
from phalanx.attacks.attack import respond
from phalanx.rng import generator


def rng(seed: int = 0) -> torch.Generator:
    return generator(seed, "attack")


def update(delta: Sequence[float], client: int = 0, base: Sequence[float] | None = None, **fields: object) -> Update:
    row = torch.tensor(delta)
    return Update(client, 0, torch.zeros_like(row) if base is None else torch.tensor(base), row, **fields)


def seen(
    honest: Sequence[Sequence[float]] | torch.Tensor, own: Sequence[Sequence[float]] = ((0.0, 0.0),), **fields: object
) -> Knowledge:
    """Honest clients 0, 1, ..., and behind them attackers, that would send `own` if they were honest."""
    rows = honest if isinstance(honest, torch.Tensor) else torch.tensor(honest)
    h = len(rows)
    colluders = tuple(update(delta, h + k) for k, delta in enumerate(own))
    return Knowledge(rows, frozenset(u.client for u in colluders), tuple(range(h)), colluders, **fields)


def cloud(h: int = 12, d: int = 20, b: int = 4, seed: int = 3, **fields: object) -> Knowledge:
    """Honest updates around (1, ..., 1), and b attackers that would send the like."""
    rows = 1 + 0.3 * torch.randn(h + b, d, generator=torch.Generator().manual_seed(seed))
    return seen(rows[:h], rows[h:].tolist(), **fields)


def sent(attack: Attack, knowledge: Knowledge, seed: int = 0) -> torch.Tensor:
    """What each attacker sends; (b, d)."""
    return torch.stack(
        [respond(attack, u, knowledge, generator(seed, "attack", u.client)).delta for u in knowledge.colluders]
    )


def aggregate(attack: Attack, knowledge: Knowledge) -> torch.Tensor:
    """The plain mean of honest and forged updates."""
    return torch.cat((knowledge.honest, sent(attack, knowledge))).mean(0)
