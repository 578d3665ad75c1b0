"""`phalanx choose`: at most three compositions, with promise, price and command."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from shlex import join
from typing import Any

from rich.console import Console

from phalanx.cli.consoles import say
from phalanx.cli.parser import Options
from phalanx.cli.weights_files import read_sizes
from phalanx.core import InfeasibleError
from phalanx.experiments.choosing.choice import ChosenCompositions, Offer, Wanted, choose
from phalanx.experiments.choosing.measured import MeasuredComposition
from phalanx.experiments.grid import name_of
from phalanx.experiments.statistics import Estimate
from phalanx.runs.plan import Run
from phalanx.training.sgd import LocalSGD
from phalanx.wording import plural

HOLDING = {
    "alike": "Clients hold like data",
    "unlike": "Clients hold different shares of the classes",
    "groups": "There may be groups that learn different things; measured were two",
}


def choose_command(options: Options, console: Console) -> int:
    """Print what there is to choose; return the exit status, 1 if nothing promises as much.

    Raises:
        ValueError: an option is missing or out of its range, or the file of sizes is invalid.
        OSError: the file cannot be read.
    """
    found = choose(_wanted(options))
    if options.json:
        console.print_json(json.dumps(_form(found), allow_nan=False))
    else:
        say(console, *_lines(found))
    return 0 if found.offers else 1


def _wanted(options: Options) -> Wanted:
    sizes, clients = None, options.clients
    if options.sizes is not None:
        reported = read_sizes(options.sizes).sizes
        sizes = dict(enumerate(reported))
        if clients not in (None, len(sizes)):
            raise InfeasibleError(f"--clients is {clients}, and {options.sizes} has {len(sizes)}. Leave --clients out.")
        clients = len(sizes)
    if clients is None:
        raise InfeasibleError("Give --clients, or --sizes with a file of the sizes that they report.")
    how = options.byzantine, options.participation, sizes, options.groups, options.asynchronous, options.alike
    return Wanted(clients, *how)


def _lines(found: ChosenCompositions) -> Iterator[str]:
    """Yield the answer, a paragraph each."""
    wanted = found.wanted
    held = "the sizes of the file" if wanted.sizes is not None else "any sizes"
    yield (
        f"{plural(wanted.clients, 'client')}, of which {wanted.byzantine} may lie, with {held}; "
        + ("served as they come" if wanted.asynchronous else f"{wanted.setting.asked} in a round")
        + f". {HOLDING[wanted.where]}."
    )
    if not found.offers:
        yield _nothing(found)
    for number, offer in enumerate(found.offers, 1):
        yield ""
        yield f"{number}. {offer.composition.name}: {offer.composition.words}. Chosen for {'; '.join(offer.why)}."
        yield f"   Promise: {' '.join(offer.promise.text)}"
        yield f"   Measured on digits: {_measured(offer.measured, found)}"
        yield f"   Try it: {command(offer, found)}"
        yield f"   In Python: {name_of(offer.algorithm)}"
    yield ""
    yield from _compared(found)
    yield from _refused(found)


def _nothing(found: ChosenCompositions) -> str:
    """Return why nothing is offered, and what to do."""
    f = found.wanted.byzantine
    if any(one.promises for one in found.refused):
        return f"What promises to tolerate {f} was not measured, or lost more than half of its accuracy under attack."
    if found.most:
        return f"Nothing promises to tolerate {f}. The most is {found.most}: give --byzantine {found.most}."
    return f"Nothing promises to tolerate {f}, or even one: train alone, or find more clients."


def _measured(row: MeasuredComposition, found: ChosenCompositions) -> str:
    """Return accuracy without attack and at worst, and what the first costs against the mean."""
    words = f"{_accuracy(row.clean)} without attack"
    if found.mean is not None:
        price = 100 * (found.mean.without_attack - row.without_attack)
        words += f" ({abs(price):.1f} points {'less' if price >= 0 else 'more'} than the mean)"
    return f"{words}, {_accuracy(row.worst)} under the worst attack that a search found, {row.attack}."


def _compared(found: ChosenCompositions) -> Iterator[str]:
    """Yield where it was measured, and how the mean and training alone compare."""
    clients, wanted = found.tier.base.clients, found.wanted
    any_of = found.offers[0].measured if found.offers else found.mean
    if any_of is None:
        return
    yield (
        f"Measured with {clients} clients, {found.f} of them attackers. {found.tier.title}. "
        f"Mean and 95 % interval of {plural(len(any_of.worst), 'seed')}. Your data will differ: compare there."
    )
    if found.f * wanted.clients < wanted.byzantine * clients:
        yield (
            f"{found.f} of {clients} is less than {wanted.byzantine} of {wanted.clients}: under attack, expect less."
        )
    if wanted.participation < 1:
        yield "There, all clients took part in each round."
    if found.mean is not None:
        yield (
            f"The mean by reported sizes, which promises nothing, on digits: {_accuracy(found.mean.clean)} without "
            f"attack, {_accuracy(found.mean.worst)} at worst."
        )
    if found.alone is not None:
        yield f"Each client alone, on digits: {_accuracy(found.alone.clean)}, whatever others do."
        if found.offers and found.offers[0].measured.under_attack < found.alone.without_attack:
            yield "So under attack, training alone was better there than anything that is offered."
    if wanted.sizes is not None:
        yield "What a cap on the weight of one site costs: phalanx weights FILE --frontier"


def _refused(found: ChosenCompositions) -> Iterator[str]:
    """Yield what was not chosen, and why; equal reasons once."""
    if found.others:
        yield ""
        yield "They could be chosen, and are on digits the best in none of these: " + "; ".join(
            f"{one.composition.name} ({_accuracy(one.measured.clean)}, at worst {_accuracy(one.measured.worst)})"
            for one in found.others
        )
    reasons = defaultdict[str, list[str]](list)
    for one in found.refused:
        reasons[one.because].append(one.composition.name)
    if reasons:
        yield ""
        yield "Not offered:"
    for because, names in reasons.items():
        yield f"- {', '.join(names)}: {because}"


def command(offer: Offer, found: ChosenCompositions) -> str:
    """Return the command that tries an offer, in a federation like the one where it was measured."""
    wanted = found.wanted
    held = found.tier.heterogeneity[wanted.where]
    plan = Run(algorithm=offer.algorithm, clients=wanted.clients, training=LocalSGD(lr=offer.measured.rate), **held)
    words = ["phalanx", "run", *_options("", plan.settings)]
    if wanted.participation < 1:
        words += ["--participation", f"{wanted.participation:g}"]
    words += ["--attack", "SignFlip", "--byzantine", str(wanted.byzantine)]
    if not offer.algorithm.traits.synchronous:
        words += ["--latency", "Lognormal", "--until.seconds", "20"]
    else:
        words += ["--until.steps", "20"]
    return join(words)


def _options(prefix: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that give settings in their canonical form."""
    for name, value in settings.items():
        field = f"{prefix}{name}"
        if isinstance(value, Mapping) and "class_path" in value:
            yield from (f"--{field}", value["class_path"].rpartition(".")[2])
            yield from _options(f"{field}.", value.get("init_args", {}))
        elif isinstance(value, Mapping):
            yield from _options(f"{field}.", value)
        else:
            yield from (f"--{field}", str(value))


def _accuracy(values: Sequence[float]) -> str:
    """Return the mean and its interval, in percent; values of seeds, of which there is at least one."""
    return f"{Estimate.of(values).text(100).partition(' (')[0]} %"


def _form(found: ChosenCompositions) -> dict[str, Any]:
    """Return the choice as JSON has it."""
    return {
        "clients": found.wanted.clients,
        "byzantine": found.wanted.byzantine,
        "most_byzantine": found.most,
        "measured_with": {"clients": found.tier.base.clients, "byzantine": found.f, "title": found.tier.title},
        "offers": [
            {
                "composition": one.composition.name,
                "why": list(one.why),
                "python": name_of(one.algorithm),
                "command": command(one, found),
                "tolerates": one.promise.f,
                "promise": list(one.promise.text),
                **_numbers(one.measured),
            }
            for one in found.offers
        ],
        "others": [{"composition": one.composition.name, **_numbers(one.measured)} for one in found.others],
        "mean": None if found.mean is None else _numbers(found.mean),
        "alone": None if found.alone is None else _numbers(found.alone),
        "refused": {one.composition.name: one.because for one in found.refused},
    }


def _numbers(row: MeasuredComposition) -> dict[str, Any]:
    return {"clean": row.without_attack, "worst": row.under_attack, "attack": row.attack, "lr": row.rate}
