"""A class of the library or of a user: made, and checked by the properties of its kind."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from phalanx.aggregators import Aggregator, Median, NearestNeighborMixing, PreAggregator
from phalanx.algorithms import FedAvg
from phalanx.attacks import Attack, SignFlip
from phalanx.contracts import algorithms, attacks, models, partitions, rules, tasks, weightings
from phalanx.contracts.breach import Breach, Examined, Make, Property, examined
from phalanx.core import Algorithm
from phalanx.data import Partition
from phalanx.errors import InfeasibleError
from phalanx.fields import bare, declared
from phalanx.models import MLP, Model
from phalanx.training import Task
from phalanx.weighting import Ignore, Preprocess

ATTACKERS = ("f",)  # fields that hold the number of attackers
SHARES = ("share", "beta")  # and those that hold their share
RULES = (Aggregator, PreAggregator)


class Kind(NamedTuple):
    """What a class can be.

    Args:
        words: such as "a rule".
        properties: what all of its kind must have, by name.
        stand_in: a value of this kind, for fields that need one and are not given.
    """

    words: str
    properties: Mapping[str, Property]
    stand_in: Any


KINDS: dict[type, Kind] = {
    Aggregator: Kind("a rule", rules.PROPERTIES, Median()),
    PreAggregator: Kind("a pre-aggregator", rules.PROPERTIES, NearestNeighborMixing(1)),
    Attack: Kind("an attack", attacks.PROPERTIES, SignFlip()),
    Algorithm: Kind("an algorithm", algorithms.PROPERTIES, FedAvg(preprocess=Ignore())),
    Preprocess: Kind("a weighting", weightings.PROPERTIES, Ignore()),
    Partition: Kind("a partition", partitions.PROPERTIES, None),
    Model: Kind("a model", models.PROPERTIES, MLP((8,))),
    Task: Kind("a task", tasks.PROPERTIES, None),
}


def kind_of(subject: Any) -> Kind:
    """Return what a class is.

    Raises:
        InfeasibleError: it is of none of these kinds, or abstract.
    """
    if not isinstance(subject, type) or inspect.isabstract(subject):
        raise InfeasibleError(f"Only a class that defines all that it must can be checked, got {subject!r}.")
    for base, kind in KINDS.items():
        if issubclass(subject, base):
            return kind
    listed = ", ".join(base.__name__ for base in KINDS)
    raise InfeasibleError(f"{subject.__name__} has no contract. Name a subclass of one of these: {listed}.")


def made_for(subject: Any, settings: Mapping[str, Any], m: int, f: int, *, follows: bool = True) -> Any:
    """Return a value of a class, for m clients of which f are Byzantine.

    Fields named `f`, `share` and `beta` follow, unless they are given: those of a rule that are numbers, and all that
    have no default. A field that must hold a rule, an attack or another of these kinds holds a simple one.

    Args:
        subject: the class.
        settings: values of its fields.
        m: number of clients.
        f: number of Byzantine ones.
        follows: whether numbers that have a default follow as well.

    Raises:
        InfeasibleError: it needs other values as well.
    """
    every = dataclasses.fields(subject) if dataclasses.is_dataclass(subject) else ()
    fields = [field for field in every if field.init]
    own = sorted(inspect.signature(subject).parameters.keys() - {field.name for field in fields})
    if initial := [name for name in own if getattr(subject, "__dataclass_fields__", {}).get(name)]:
        raise InfeasibleError(
            f"{subject.__name__} takes {', '.join(initial)} as `InitVar`, which it does not keep: two that differ in "
            "it would be equal. Make it a field."
        )
    if own:
        raise InfeasibleError(
            f"{subject.__name__} has an `__init__` of its own, with {', '.join(own)}. Make it a frozen dataclass, "
            "which has a field for each."
        )
    needed = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
    values = {name: kind.stand_in for name in needed for base, kind in KINDS.items() if base in _types(subject, name)}
    counted = dict.fromkeys(ATTACKERS, f) | dict.fromkeys(SHARES, f / m)
    numbers = {field.name for field in fields if isinstance(field.default, int | float)}
    ours = counted.keys() & (needed | (numbers if follows and issubclass(subject, RULES) else set()))
    values |= {name: counted[name] for name in ours}
    values |= settings
    if lacking := sorted(needed - values.keys()):
        raise InfeasibleError(f"{subject.__name__} needs values for {', '.join(lacking)}. Give them.")
    return subject(**values)


def _types(subject: type, name: str) -> list[Any]:
    """Return the types that a field can have, without ranges and arguments."""
    return [typing.get_origin(bare(kind)) or bare(kind) for kind in declared(subject).get(name, ())]


def breaches(subject: type, without: Collection[str] = (), **settings: Any) -> list[Breach]:
    """Return the properties that a class lacks, each with a counterexample; an empty list if all hold.

    Args:
        subject: a rule, a pre-aggregator, an attack, an algorithm, a weighting, a partition, a model or a task.
        without: properties of a rule that its docstring excepts: "translation", "scaling", "order".
        settings: its fields. `f`, `share` and `beta` of a rule follow from its rows if they are not given.

    Raises:
        InfeasibleError: it is none of these, or needs fields that are not given.

    Examples:
        >>> from dataclasses import dataclass
        >>> from phalanx.aggregators import Mean, Median
        >>> from phalanx.contracts import breaches
        >>> breaches(Median)
        []
        >>> @dataclass(frozen=True)
        ... class First(Mean):
        ...     def aggregate(self, points):
        ...         return points.matrix[0].clone()
        >>> [breach.property for breach in breaches(First)]
        ['order', 'weights', 'shares']
    """
    return examine(subject, lambda m, f: settings, without).broken


def examine(
    subject: type, settings: Callable[[int, int], Mapping[str, Any]], without: Collection[str] = ()
) -> Examined:
    """Return which properties a class lacks, which it has, and which could not be tried.

    Args:
        subject: as for `breaches`.
        settings: its fields, for a number of clients and that of the Byzantine among them.
        without: as for `breaches`.

    Raises:
        InfeasibleError: as for `breaches`.
    """
    properties = kind_of(subject).properties
    if unknown := sorted({*without} - {*rules.EXCEPTIONS}):
        raise InfeasibleError(f"Only {', '.join(rules.EXCEPTIONS)} can be left out, got {unknown[0]}.")

    def make(m: int, f: int) -> Any:
        return made_for(subject, settings(m, f), m, f)

    def as_given(m: int, f: int) -> Any:
        return made_for(subject, settings(m, f), m, f, follows=False)

    make(8, 1)  # what cannot be made breaks no property
    chosen, remark = _remembered(make), ""
    if issubclass(subject, RULES) and as_given(8, 0) != make(8, 0) and not rules.tolerates_some(chosen):
        chosen = _remembered(as_given)  # of f = 0 alone nothing would be seen
        remark = f"It tolerates no attackers by its `tolerates`, and was tried as {as_given(8, 0)!r}."
    kept = {name: holds for name, holds in properties.items() if name not in without}
    return examined(kept, chosen)._replace(remark=remark)


def _remembered(make: Make) -> Make:
    """Return the same, which makes each once."""
    made = dict[tuple[int, int], Any]()

    def remembered(m: int, f: int) -> Any:
        if (m, f) not in made:
            made[m, f] = make(m, f)
        return made[m, f]

    return remembered
