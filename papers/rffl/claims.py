"""The claims on RFFL, tested seed by seed."""

from collections.abc import Callable, Sequence

from papers.rffl.fairness import grid
from papers.rffl.figure2 import WITHIN, quick
from papers.rffl.measured import Pair, Records, interval, pairs, signed, traces
from papers.rffl.setting import (
    BY_CLASS,
    FEW,
    FLIP,
    OURS,
    RAMP,
    RIDE,
    SMALLER_MNIST,
    SPLITS,
    STANDALONE,
    UNIFORM,
    Enemy,
    Federation,
    cells,
)
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Rendering
from phalanx.experiments.trace import Trace
from phalanx.fairness import detection
from phalanx.runs.plan import Run

TITLE = "What RFFL should do, and whether it does: fairness, gains and removals, MNIST, 10 participants"
CLAIM = (
    "RFFL is fair; excludes free riders within 5 rounds; and honest participants gain over their standalone models. "
    "(That label flippers are excluded, too, is a claim of ours.)"
)
MINUTES = {"quick": 1.3, "paper": 41.0}
FAIR_ENOUGH = 95.0  # percent
METHODS = ("RFFL", OURS)
FEDERATIONS = grid({"MNIST": (10,)}, SPLITS)
ATTACKED = tuple(f for f in FEDERATIONS if f.split in (UNIFORM, RAMP))
FLIPPERS = (
    "Nine tenths of a label flipper's examples are honest, and its updates point where those of the honest do: no "
    "threshold on the cosine of whole updates tells it apart. Tables 5, 6 and 14 show that the flips do not succeed "
    "all the same: a participant keeps what its own training made of its own 1s."
)
CLASSES_NOTE = (
    f'"{BY_CLASS}" is ours: RFFL(agreement=ByClass.of(...), probation=10) compares what each sent since the start with '
    "what the others did, class by class in the output layer, and counts who disagrees as below the threshold. Shown "
    "is when attackers were below it for the first time; they are excluded ten rounds later. The smallest participant "
    "of the ramp holds so few examples that it is below at times; it comes back from its probation in most runs."
)
UNIFORM_NOTE = (
    "Where data are dealt uniformly all could do the same alone, and fairness correlates noise with noise: it is shown "
    "with its interval, and no claim is made on it."
)


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return runs of RFFL, and variants; RFFL, plain and by class, with free riders and flippers, on two splits."""
    attacked = [cells(ATTACKED, ("RFFL",), scale, seed, Enemy(attack, FEW)) for attack in (RIDE, FLIP)]
    attacked += [
        cells(ATTACKED, (BY_CLASS,), scale, seed, enemy) for enemy in (None, Enemy(RIDE, FEW), Enemy(FLIP, FEW))
    ]
    plain = cells(FEDERATIONS, (*METHODS, STANDALONE), scale, seed)
    return plain | {cell: run for some in attacked for cell, run in some.items()}


def render(records: Records, context: Context) -> Rendering:
    """Return a line for each claim, split and method, with a verdict."""
    rows = [
        row
        for method in METHODS
        for f in FEDERATIONS
        for row in _without_attackers(method, f, pairs(records, f, method))
    ]
    rows += [row for f in ATTACKED for row in _without_attackers(BY_CLASS, f, pairs(records, f, BY_CLASS))]
    rows += [
        _found(f, method, attack, seen)
        for method in ("RFFL", BY_CLASS)
        for attack in (RIDE, FLIP)
        for f in ATTACKED
        if (seen := [t for t in traces(records, f, method, Enemy(attack, FEW)) if not t.failed])
    ]
    columns = ("what should hold", "method", "split", "measured, for each seed", "holds")
    table = Table("Claims", columns, rows, (UNIFORM_NOTE, FLIPPERS, CLASSES_NOTE))
    notes = [SMALLER_MNIST] if context.scale == "quick" else []
    return Rendering((table,), (), notes, _claims(records))


def _claims(records: Records) -> list[Claim]:
    """Return the paper's claims on its own form of RFFL."""
    out = []
    for f in FEDERATIONS:
        both = pairs(records, f, "RFFL")
        fair = [100 * (pair.fairness.coefficient or 0.0) for pair in both]
        alone = [pair.best_over_best for pair in both]
        out += [
            Claim(f"{f.split}: the mean gain over standalone models", [pair.gain for pair in both]),
            Claim(f"{f.split}: the best model over the best standalone one", alone),
            Claim(f"{f.split}: nobody is excluded", [not detection(pair.run).honest for pair in both], None),
        ]
        if f.split != UNIFORM:
            out.append(Claim(f"{f.split}: fairness", fair, FAIR_ENOUGH, "%"))
    for f in ATTACKED:
        seen = [t for t in traces(records, f, "RFFL", Enemy(RIDE, FEW)) if not t.failed]
        found = [quick(t) for t in seen]
        out.append(Claim(f"{f.split}: free riders are excluded within {WITHIN} rounds, and no other", found, None))
    return out


def _without_attackers(method: str, f: Federation, both: Sequence[Pair]) -> list[list[str]]:
    """Return rows on fairness, gains, and exclusions of honest participants; none if there are no records."""
    if not both:
        return []
    fair = [pair.fairness for pair in both]
    values = [100 * (c.coefficient or 0.0) for c in fair]
    what = "fairness" if f.split == UNIFORM else f"fairness above {FAIR_ENOUGH:g} %"
    gone = [len(detection(pair.run).honest) for pair in both]
    text = f"{_each(values, '.1f')}; common interval {interval(fair) or '-'}"
    return [
        [what, method, f.split, text, "-" if f.split == UNIFORM else _held(values, lambda v: v > FAIR_ENOUGH)],
        _line("the best participant gains", method, f, [pair.gain_of_best for pair in both], lambda v: v >= 0),
        _line("the best beats the best alone", method, f, [pair.best_over_best for pair in both], lambda v: v >= 0),
        ["mean gain, points", method, f.split, signed(pair.gain for pair in both), "-"],
        ["nobody is excluded", method, f.split, _each(gone, "d"), _held(gone, lambda v: v == 0)],
    ]


def _line(what: str, method: str, f: Federation, values: Sequence[float], holds: Callable[[float], bool]) -> list[str]:
    return [what, method, f.split, _each(values, "+.1f"), _held(values, holds)]


def _found(f: Federation, method: str, attack: str, found: Sequence[Trace]) -> list[str]:
    """Return the row on attackers below the threshold, and on excluded honest participants."""
    seen = [(_below(trace), len(detection(trace).honest)) for trace in found]
    text = "; ".join(
        ", ".join("never" if step is None else f"round {step}" for step in below.values())
        + (f", {honest} honest excluded" if honest else "")
        for below, honest in seen
    )
    held = sum(all(s is not None and s <= WITHIN for s in below.values()) and not honest for below, honest in seen)
    what = f"{attack}: below the threshold within {WITHIN} rounds, nobody honest excluded"
    return [what, method, f.split, text, _said(held, len(seen))]


def _below(trace: Trace) -> dict[int, int | None]:
    """Return the round in which each attacker was excluded, or put on the probation after which it was."""
    out = dict(detection(trace).after)
    for step, probation in zip(trace.state.get("step", ()), trace.state.get("probation", ()), strict=True):
        for i in probation:
            if (gone := out.get(int(i))) is not None:
                out[int(i)] = min(gone, step)
    return out


def _each(values: Sequence[float], form: str) -> str:
    return ", ".join(format(value, form) for value in values)


def _held(values: Sequence[float], holds: Callable[[float], bool]) -> str:
    return _said(sum(map(holds, values)), len(values))


def _said(held: int, of: int) -> str:
    if held == of:
        return "yes"
    return f"in {held} of {of} seeds" if held else "no"
