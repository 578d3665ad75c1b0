"""Rounds whose messages another framework carries: the updates that it hands over are checked, combined and judged.

It decides whom a task is sent to, and how long is waited.  A malformed update is invalid, with the reason, and the
round goes on.
"""

import dataclasses
import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Real
from typing import Any, NamedTuple

from phalanx.aggregators import Aggregator, Mean
from phalanx.aggregators.aggregator import wrong_number
from phalanx.algorithms import FedAvg
from phalanx.algorithms.rounds import verdicts_of, weights_of
from phalanx.core import InfeasibleError, Setting, StalledError, Updates, Vector, Verdict, lost_verdicts
from phalanx.engine.connection import Reply
from phalanx.engine.guard import Sent
from phalanx.engine.settings import LoopSettings
from phalanx.engine.suspicion import Conduct, conduct, in_words
from phalanx.promises import Promise, PromiseError, promise, watched
from phalanx.promises.promise import TAKEN
from phalanx.promises.promise_watch import combine
from phalanx.promises.remarks import beyond_tolerance, void_by_one
from phalanx.weighting import AsReported, Preprocess, Truncate
from phalanx.wording import plural, visible

LARGEST = 1e300  # of a metric
OTHERS = ("until", "influence")  # settings of a loop that the framework has, or does not have


def hosted_settings(given: LoopSettings | None, options: dict[str, Any]) -> LoopSettings:
    """Return the settings of hosted rounds, of which each can be an option too; those are taken out of the options.

    Raises:
        TypeError: something else than settings is given.
    """
    if not isinstance(given, LoopSettings | None):
        raise TypeError(f"loop must be LoopSettings, got {given!r}. Give what it is by name, such as guard=Guard().")
    own = [field.name for field in dataclasses.fields(LoopSettings) if field.name not in OTHERS]
    named = {name: value for name in own if (value := options.pop(name, None)) is not None}
    return dataclasses.replace(given or LoopSettings(), **named)


class Submitted(NamedTuple):
    """What a client answers in a round.

    Args:
        delta: its update, (d,).
        size: the number of examples that it reports, unchecked.
    """

    delta: Vector
    size: object


class Combined(NamedTuple):
    """What a round gives.

    Args:
        delta: the change of the model, (d,); None if the round is lost.
        weights: of each client whose update was combined.
    """

    delta: Vector | None
    weights: Mapping[int, float]


class HostedRounds:
    """The rounds of a run, with the verdict on each update.

    Args:
        aggregator: the rule for the updates of a round.
        preprocess: makes weights of the reported sizes. The first that a client reports with a valid update is used.
        settings: `LoopSettings`, of which the framework that hosts the rounds has `until`, and measures no `influence`;
            lost rounds are always skipped.
        log: where it says what happens.
        called: what a client is called there.
        name: returns the name of a client, for what is said.

    Raises:
        ValueError: lost rounds would be waited for, or `until` or `influence` is given.
    """

    def __init__(
        self,
        aggregator: Aggregator | None = None,
        preprocess: Preprocess | None = None,
        settings: LoopSettings | None = None,
        *,
        log: logging.Logger,
        called: str = "client",
        name: Callable[[int], str] = str,
    ) -> None:
        self.aggregator, self.preprocess = aggregator or Mean(), preprocess or AsReported()
        self.settings = settings or LoopSettings()
        self.promise: Promise | None = None
        self._members: tuple[int, int] | None = None  # for whom it was computed: clients that there are, and of a round
        self.shares = dict[int, float]()  # by round: the most that as many clients held of the weight
        self.broken = dict[int, int]()  # by round: how many aggregations broke the promise and were done all the same
        self.verdicts = dict[int, dict[int, Verdict]]()  # by round and client, as the next three
        self.invalid = dict[int, dict[int, str]]()
        self.lost = dict[int, dict[int, str]]()
        self.conduct = dict[int, dict[int, Conduct]]()
        self._log, self._called, self._name = log, called, name
        self._sizes = dict[int, int]()  # of clients that have answered with a valid update
        self._previous: Vector | None = None
        self._lost_in_a_row = 0
        self._last_conduct = dict[int, Conduct]()
        if self.settings.lost_rounds.then != "skip":
            raise ValueError('then must be "skip", got "wait": rounds are counted by the framework that hosts them.')
        for option in OTHERS:
            if getattr(self.settings, option) != getattr(LoopSettings(), option):
                raise ValueError(f"{option} is not for rounds that a framework hosts. Leave it out.")
        if isinstance(self.preprocess, Truncate):
            for remark in beyond_tolerance(self.preprocess, self.aggregator):
                warnings.warn(remark, stacklevel=3)

    def begin(self, number: int, sent: int, known: int) -> None:
        """Compute and say what is promised for rounds of so many of the known clients, of which some may not answer.

        Args:
            number: of the round, from 1 on. As many attackers as at first are tolerated in later rounds, also of other
                clients: rounds that break that are lost.
            sent: clients of this round.
            known: clients that there are.

        Raises:
            TooFewRowsError: the first round would be lost even if all answer.
            TooManyRowsError: likewise.
            InfeasibleError: rounds cannot tolerate as many attackers as they must.
        """
        if number == 1 and (error := wrong_number(self.aggregator, sent)) is not None:
            raise error
        before, members = self.promise, (known, sent)
        if not sent or (before is not None and (not before.f or members == self._members)):
            return
        f, self._members = self.settings.tolerate if before is None else before.f, members
        setting = Setting(max(known, sent), drawn=sent if sent < known else None, lossy=True, joins=True)
        try:
            now = promise(FedAvg(self.aggregator, self.preprocess), setting, f=f, broken=self.settings.broken_promise)
        except InfeasibleError as error:
            if before is None and f is not None:
                raise
            stays = "promises nothing" if before is None else f"the promise for {f} stays"
            self._log.warning("%s: %s", stays, error)  # as long as no more clients have come
            return
        if before is not None and now.in_step > before.in_step:
            return
        self.promise = now
        (self._log.info if self.promise.f else self._log.warning)("%s", self.promise.sentence)

    def end(
        self,
        number: int,
        base: Vector,
        recipients: Collection[int],
        answers: Iterable[tuple[int, Submitted]],
        *,
        invalid: Mapping[int, str],
        lost: Mapping[int, str],
    ) -> Combined:
        """Check, combine and judge the answers of a round.

        Args:
            number: of the round, from 1 on.
            base: the model that was sent, (d,).
            recipients: the clients that it was sent to.
            answers: what came, by client; a client's second answer is invalid.
            invalid: the reasons of those who answered something else.
            lost: the reasons of those who did not answer, where they are known.

        Raises:
            StalledError: too many rounds in a row were lost.
        """
        taken, sizes, wrong = list[Reply](), dict[int, int](), dict(invalid)
        for client, answer in answers:
            sized, refused = self._sized(client, answer.size)
            if refused:
                wrong.setdefault(client, refused)
                continue
            sizes.setdefault(client, sized)
            taken.append(Reply(client, number, answer.delta, 0.0))
        checked = self.settings.guard.inspect(
            taken, {client: Sent(number, base) for client in recipients}, number, base
        )
        self.invalid[number] = wrong = {**wrong, **checked.invalid}
        silent = {*recipients} - sizes.keys() - wrong.keys() - lost.keys()
        self.lost[number] = {**lost, **dict.fromkeys(silent, "it did not answer before the round ended")}
        for what, found in (("invalid", wrong), ("lost", self.lost[number])):
            for client, why in sorted(found.items()):
                self._warn(what, number, client, f"{what}: {why}")
        updates = checked.updates
        if updates is None:
            return self.lose(number, (), "no reply is fit")
        self._sizes |= {client: sizes[client] for client in updates.clients}
        if why := self._void({i: self._sizes[i] for i in updates.clients}):
            return self.lose(number, updates.clients, why)
        try:
            enrolled = self.preprocess.enrolled(self._sizes)
            weights = weights_of(self.preprocess.among(enrolled, updates.clients), updates)
            # honest clients send nothing invalid, so those that did are among the attackers
            left = max(0, self.promise.in_step - len(wrong)) if self.promise else 0
            broken, treatment = list[PromiseError](), self.settings.broken_promise
            with watched(left, broken, treatment) as held:
                delta, choice = combine(
                    self.aggregator,
                    updates.deltas,
                    weights,
                    updates.clients,
                    "round",
                    turn=number - 1,
                    previous=self._previous,
                )
        except InfeasibleError as error:
            return self.lose(number, updates.clients, str(error))
        change, self._previous, self._lost_in_a_row = self._previous, delta, 0
        self.shares |= {number: max(held)} if held else {}
        self.broken |= {number: len(broken)} if broken else {}
        for one in broken:
            self._log.warning("round %d: %s It is %s.", number, one, TAKEN[treatment])
        remark = self.preprocess.remark(enrolled, updates.clients)
        self.verdicts[number] = verdicts_of(updates, weights, choice, remark)
        shares = {i: float(w) for i, w in zip(updates.clients, weights, strict=True)}
        self._judge(number, updates, delta, shares, change)
        return Combined(delta, shares)

    def _void(self, sizes: Mapping[int, int]) -> str:
        """Return why one of these sizes makes the rule void, if one does, as by `AsReported.beyond_tolerance`."""
        algorithm, setting = FedAvg(self.aggregator, self.preprocess), Setting(len(sizes), sizes)
        return void_by_one(algorithm, algorithm.pools(setting), setting)

    def _sized(self, client: int, reported: object) -> tuple[int, str]:
        """Return the size of a client, the first that came with a valid update, and why it is impossible if it is."""
        if client in self._sizes:
            return self._sizes[client], ""
        sizes, invalid = self.settings.guard.enroll({client: reported})
        return sizes.get(client, 0), invalid.get(client, "")

    def _judge(
        self, number: int, updates: Updates, delta: Vector, weights: Mapping[int, float], change: Vector | None
    ) -> None:
        """Keep how each update compares with the others, and log who becomes suspicious."""
        found = conduct(updates, delta, self._last_conduct, sizes=self._sizes, weights=weights, change=change)
        self.conduct[number] = found
        self._last_conduct |= found
        for client, one in found.items():
            if one.newly:
                self._warn("suspicious", number, client, f"is suspicious: {in_words(one)}")

    def lose(self, number: int, clients: Iterable[int], why: str) -> Combined:
        """Leave the model as it was.

        Raises:
            StalledError: that has happened too often in a row.
        """
        self._log.error("round %d changes nothing, it is lost: %s", number, why)
        self.verdicts[number] = lost_verdicts(clients, why)
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= self.settings.lost_rounds.most:
            raise StalledError(f"{plural(self._lost_in_a_row, 'round')} in a row were lost, the last one because {why}")
        return Combined(None, {})

    def _warn(self, event: str, number: int, client: int, what: str) -> None:
        fields = {"event": event, self._called: client, "step": number}
        self._log.warning("round %d, %s %s %s", number, self._called, visible(self._name(client)), what, extra=fields)


def mean_metrics(weighed: Iterable[tuple[Mapping[str, object], float]]) -> dict[str, float]:
    """Return the mean of each metric, over those who have a number for it, by their weights.

    A number beyond `LARGEST` is none; so is one that is no float, or not finite.

    Args:
        weighed: metrics, and the weight of who has measured them.
    """
    found = dict[str, list[tuple[float, float]]]()
    for metrics, weight in weighed:
        for name, value in metrics.items():
            if isinstance(value, Real) and weight > 0 and abs(number := _float(value)) <= LARGEST:
                found.setdefault(name, []).append((number, weight))
    out = dict[str, float]()
    for name, values in found.items():
        most = max(weight for _, weight in values)
        shares = [(value, weight / most) for value, weight in values]  # no product or sum of them overflows
        out[name] = math.fsum(value * share for value, share in shares) / math.fsum(share for _, share in shares)
    return out


def _float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
