"""The properties of attacks, as `Attack` states them."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from phalanx.aggregators import Mean
from phalanx.attacks import Answer, Attack, Knowledge, Role, Update, timing
from phalanx.attacks.attack import HOOKS, part, respond
from phalanx.attacks.data import poison
from phalanx.attacks.size import reported_size
from phalanx.contracts.breach import TRIED, Found, Make, Property, drawing, same, value, written
from phalanx.core import InfeasibleError
from phalanx.data import Dataset
from phalanx.rng import generator

D = 20  # entries of an update


def _made(make: Make) -> Attack:
    attack: Attack = make(11, 3)
    return attack


def _rng() -> torch.Generator:
    return generator(0, "attack")


def _images() -> Dataset:
    draw = generator(5, "data")
    return Dataset(torch.rand(60, 1, 8, 8, generator=draw), torch.randint(0, 10, (60,), generator=draw), 10)


def _situation(h: int = 8, b: int = 3) -> tuple[tuple[Update, ...], Knowledge]:
    """Return the honest updates of b attackers, and what they know of those of h honest clients."""
    draw = generator(1, "updates")
    deltas = 0.1 * torch.randn(h + b, D, generator=draw) + 0.2
    base = torch.randn(D, generator=draw)
    own = tuple(Update(100 + k, 4, base, deltas[h + k], base - 0.1) for k in range(b))
    known = Knowledge(deltas[:h], frozenset(range(100, 100 + b)), tuple(range(h)), own, Mean())
    return own, known


def _part(attack: Attack, update: Update) -> Attack:
    return part(attack, Role(update.client, update.version, (100, 101, 102)))


def _forged(attack: Attack, update: Update, known: Knowledge) -> Tensor:
    return respond(_part(attack, update), update, known, _rng()).delta


def _update(make: Make) -> Iterator[Found]:
    attack = _made(make)
    own, known = _situation()
    for update in own:
        sent = _forged(attack, update, known)
        if sent.shape != update.delta.shape or sent.dtype != update.delta.dtype:
            expected = f"{tuple(update.delta.shape)} in {update.delta.dtype}"
            yield f"It must send a vector of {expected}.", f"It sent {tuple(sent.shape)} in {sent.dtype}."
        yield TRIED


def _repetition(make: Make) -> Iterator[Found]:
    attack = _made(make)
    own, known = _situation()
    _, again = _situation()
    drawn = drawing()
    for update in own:
        if not same(_forged(attack, update, known), _forged(attack, update, again)):
            yield "The same stream must give the same update. Draw from `rng` only.", written(update.delta)
    one, other = (poison(attack, _images(), _rng()) for _ in range(2))
    if not same(one.y, other.y) or not all(map(same, one.inputs.values(), other.inputs.values())):
        yield "The same stream must poison in the same way. Draw from `rng` only.", "60 images, twice."
    if not same(drawing(), drawn):
        yield "It must not draw from the global generator, but from `rng`.", "The global generator has moved."
    yield TRIED


def _arguments(make: Make) -> Iterator[Found]:
    attack = _made(make)
    own, known = _situation()
    fresh, before = _situation()
    for update, original in zip(own, fresh, strict=True):
        _forged(attack, update, known)
        if not same((update.delta, update.base), (original.delta, original.base)):
            yield "It must not change the update that it is given.", f"{written(original.delta)} changed."
    if not same(known.honest, before.honest):
        yield "It must not change what it knows of the others.", f"{written(before.honest)} changed."
    data = _images()
    poison(attack, data, _rng())
    if not same(data.y, _images().y) or not all(map(same, data.inputs.values(), _images().inputs.values())):
        yield "`poison` must not change the data that it is given.", "The given images or labels changed."
    yield TRIED


def _knowledge(make: Make) -> Iterator[Found]:
    attack = _made(make)
    own, _ = _situation()
    attacking = _part(attack, own[0])
    try:
        respond(attacking, own[0], None, _rng())
    except InfeasibleError:
        if not attacking.traits.omniscient:
            yield "It must not need `knowledge`, or declare it: `traits.omniscient`.", "It was given none."
    except Exception as error:
        what = "raise `InfeasibleError`" if attacking.traits.omniscient else "work, or declare `traits.omniscient`"
        yield f"Without `knowledge` it must {what}.", f"It raised {type(error).__name__}: {error}"
    for h in (0, 1, 2):
        few, known = _situation(h)
        sent = _forged(attack, few[0], known)
        if sent.shape != few[0].delta.shape:
            yield f"With {h} honest updates it must send a vector of {D} entries.", f"It sent {tuple(sent.shape)}."
        yield TRIED


def _data(make: Make) -> Iterator[Found]:
    attack = _made(make)
    data = poison(attack, _images(), _rng())
    if not isinstance(data, Dataset) or data.classes != 10 or not isinstance(data.x, Tensor):
        yield "`poison` must return a data set of the same classes and inputs.", "60 images of 10 classes."
    elif data.x.shape[1:] != (1, 8, 8):
        yield "`poison` must return a data set of the same classes and shape.", "60 images of 10 classes."
    yield TRIED


def _reports(make: Make) -> Iterator[Found]:
    attack = _made(make)
    for size in (1, 7, 1000):
        reported = reported_size(attack, size)
        if not isinstance(reported, int) or isinstance(reported, bool) or reported < 1:
            yield "`reported_size` must return an integer of at least 1.", f"Of {size} it made {reported!r}."
    for seconds in (0.5, 10.0):
        delay = timing.delay(attack, seconds, _rng())
        if not 0 < delay < math.inf:
            yield "`delay` must return a positive, finite number.", f"Of {seconds} seconds it made {delay!r}."
    if not 0 <= (seconds := timing.joins_after(attack)) < math.inf:
        yield "`joins_after` must return a positive, finite number.", f"It returned {seconds!r}."
    answer = Answer(4, torch.ones(D))
    for one in timing.answers(attack, answer, [Answer(k, torch.ones(D)) for k in range(timing.recalls(attack))]):
        if one.delta.shape != (D,) or not isinstance(one.version, int):
            yield "`answers` must return updates with versions.", f"It returned {one!r}."
    yield TRIED


ABOUT = ("check_trainer", "goal")  # methods that say something of the attack, and do nothing


def _attacks(make: Make) -> Iterator[Found]:
    attack = _made(make)
    kind: Any = type(attack)
    bases = {"forge": Attack} | {name: base for name, base in HOOKS.items() if name not in ABOUT}
    if all(getattr(kind, name, None) is getattr(base, name) for name, base in bases.items() if issubclass(kind, base)):
        yield "It attacks nothing. Override a method, such as `forge`.", f"{kind.__name__} overrides none."
    yield TRIED


PROPERTIES: dict[str, Property] = {
    "value": value,
    "attacks": _attacks,
    "update": _update,
    "repetition": _repetition,
    "arguments": _arguments,
    "knowledge": _knowledge,
    "data": _data,
    "reports": _reports,
}
