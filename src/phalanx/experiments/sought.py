"""What the search for the worst attack has tried on a defence."""

from collections.abc import Callable
from dataclasses import dataclass, field

from phalanx.attacks import Attack
from phalanx.experiments.grid import Labels, Planned
from phalanx.runs.plan import Run


@dataclass
class Candidate:
    """An attack that the search has tried on a defence, and the accuracy that it left, for each seed."""

    attack: Attack
    named: bool
    accuracies: list[float] = field(default_factory=list)


@dataclass
class Sought:
    """A defence, and what the search has tried on it.

    Args:
        labels: of the defence: the names of its values, by axis.
        plan: returns its run under an attack, for a seed.
        tried: the candidates, by the name of the attack.
        error: why the last run that failed did so; "" if none did.
    """

    labels: Labels
    plan: Callable[[Attack, int], Run]
    tried: dict[str, Candidate] = field(default_factory=dict)
    error: str = ""

    def worst(self, *, named: bool) -> list[Attack]:
        """Return the attacks, named ones or others, that have the most seeds, the worst first."""
        of_sort = [one for one in self.tried.values() if one.named == named and one.accuracies]
        most = max((len(one.accuracies) for one in of_sort), default=0)
        ranked = sorted((sum(one.accuracies) / most, k) for k, one in enumerate(of_sort) if len(one.accuracies) == most)
        return [of_sort[k].attack for _, k in ranked]

    def planned(self, attack: Attack, seed: int, sort: str) -> Planned:
        """Return a run of the defence under an attack."""
        return Planned({**self.labels, "attack": sort}, self.plan(attack, seed))
