"""The properties of algorithms, as `Algorithm` states them."""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from phalanx.contracts.breach import TRIED, Found, Make, Property, UntriedError, drawing, same, value
from phalanx.core import Algorithm, Updates
from phalanx.rng import generator

M, D = 6, 1000  # clients, entries of a model


def _made(make: Make) -> Algorithm[Any]:
    algorithm: Algorithm[Any] = make(M, 1)
    return algorithm


def _start(algorithm: Algorithm[Any]) -> Any:
    return algorithm.init(torch.zeros(D), {i: 10 + i for i in range(M)})[0]


def _updates(algorithm: Algorithm[Any], state: Any, seed: int = 0) -> Updates:
    """Return an update of each client, the last far from the others."""
    deltas = 0.1 + 0.1 * torch.randn(M, D, generator=generator(seed, "updates"))
    deltas[-1] = -5.0
    return Updates(
        clients=tuple(range(M)),
        versions=(state.version,) * M,
        bases=tuple(algorithm.download(state, i) for i in range(M)),
        deltas=deltas,
        losses=torch.ones(M),
        reference=torch.full((D,), 0.1),
    )


def _purity(make: Make) -> Iterator[Found]:
    algorithm = _made(make)
    state = _start(algorithm)
    batch = _updates(algorithm, state)
    kept, deltas, drawn = copy.deepcopy(state), batch.deltas.clone(), drawing()
    once, again = algorithm.step(state, batch), algorithm.step(state, batch)
    if not same(state, kept):
        yield "`step` must not change the state that it is given: return a new one.", "A step on 6 updates changed it."
    if not torch.equal(batch.deltas, deltas):
        yield "`step` must not change the updates that it is given.", "A step on 6 updates changed them."
    if not same(once, again):
        yield "The same state and updates must give the same state and clients.", "Two equal steps differ."
    if not same(drawing(), drawn):
        yield "It must not draw from the global generator. Use `phalanx.rng`.", "The global generator has moved."
    yield TRIED


def _value(make: Make) -> Iterator[Found]:
    yield from value(make)
    try:
        state = _start(_made(make))
        state.version = 3
        yield "Its state must be immutable: a NamedTuple.", "`state.version = 3` was allowed."
    except AttributeError:
        yield TRIED


def _verdicts(make: Make) -> Iterator[Found]:
    algorithm = _made(make)
    state = _start(algorithm)
    after, ready = algorithm.step(state, _updates(algorithm, state))
    if after.verdicts.keys() != set(range(M)):
        yield "Every client whose update came must have a verdict.", f"Of clients 0..5 there are {[*after.verdicts]}."
    for client, verdict in after.verdicts.items():
        if not 0 <= verdict.weight <= 1:
            yield "A verdict's weight must lie in [0, 1].", f"Client {client} has {verdict.weight}."
        if not verdict.accepted and (verdict.weight or not verdict.reason):
            yield "An update that is not used must have weight 0 and a reason.", f"Client {client}: {verdict}."
    going_on = {client for client, verdict in after.verdicts.items() if not verdict.final}
    if not set(ready) <= going_on | (set(range(M)) - after.verdicts.keys()):
        yield "An excluded client must get no download.", f"Clients {sorted(set(ready) - going_on)} get one."
    if algorithm.traits.synchronous and set(ready) != going_on:
        yield "Every client that goes on must get a download after a round.", f"{sorted(going_on - set(ready))} do not."
    yield TRIED


def _versions(make: Make) -> Iterator[Found]:
    algorithm = _made(make)
    state = _start(algorithm)
    for turn in range(3):
        before = state
        state, _ = algorithm.step(state, _updates(algorithm, state, turn).of({turn}))
        if not before.version <= state.version <= before.version + 1:
            yield "A step must raise the version by 0 or 1.", f"From {before.version} to {state.version}."
        if state.version == before.version and not torch.equal(state.model, before.model):
            yield "A step that changes the model must raise the version.", f"At version {state.version}."
        yield TRIED


def _form(make: Make) -> Iterator[Found]:
    algorithm = _made(make)
    state = _start(algorithm)
    after, _ = algorithm.step(state, _updates(algorithm, state))
    if after.model.shape != (D,) or not bool(after.model.isfinite().all()):
        yield f"The model must stay a finite vector of {D} entries.", f"Its shape is {tuple(after.model.shape)}."
    for client in range(M):
        size = len(algorithm.download(after, client))
        if size != algorithm.traits.vectors * D:
            yield "`download` must have as many vectors as `traits` say.", f"Client {client} gets {size}."
    if not algorithm.traits.remembers and algorithm.upload(torch.ones(D), None)[1] is not None:
        yield "What a client keeps must be declared in `traits.keeps`.", "`upload` returns a memory."
    if not algorithm.traits.corrects and algorithm.correction(None, algorithm.download(after, 0), 1.0) is not None:
        yield "Corrections must be declared in `traits.corrects`.", "`correction` returns one."
    if missing := [name for name in algorithm.traits.observed if not hasattr(after, name)]:
        yield "The state must have the fields in `traits.observed`.", f"It lacks {missing}."
    yield TRIED


def _names(make: Make) -> Iterator[Found]:
    """Clients 0..5 renamed to 5..0 get the same model."""
    algorithm = _made(make)
    if not algorithm.traits.synchronous:
        raise UntriedError("the order in which updates come counts in an asynchronous algorithm")
    state = _start(algorithm)
    batch = _updates(algorithm, state)
    turned = Updates(batch.clients, batch.versions, batch.bases, batch.deltas.flip(0), batch.losses, batch.reference)
    straight, _ = algorithm.step(state, batch)
    other, _ = algorithm.step(algorithm.init(torch.zeros(D), {i: 10 + M - 1 - i for i in range(M)})[0], turned)
    if not torch.allclose(straight.model, other.model, atol=1e-5):
        yield "The names of clients must not change the model.", "Clients 0..5 were renamed to 5..0."
    yield TRIED


PROPERTIES: dict[str, Property] = {
    "value": _value,
    "purity": _purity,
    "form": _form,
    "verdicts": _verdicts,
    "versions": _versions,
    "names": _names,
}
