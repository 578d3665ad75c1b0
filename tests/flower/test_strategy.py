"""Our rules in an app of the shape of Flower's quickstart: one line of it is another."""

import logging
import re

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

from flower.test_codec import bad_arrays
from phalanx import Guard
from phalanx.aggregators import SMEA, Krum, Mean, Median, TrimmedMean
from phalanx.core import ClientReport, InfeasibleError, StalledError
from phalanx.engine import LoopSettings, LostRounds
from phalanx.engine.hosted import HostedRounds
from phalanx.flower import InProcessGrid, PhalanxStrategy
from phalanx.weighting import Ignore, Truncate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)


def trained(state, client):
    """What a client makes of a model: adds its number and one."""
    return {k: v + (client + 1) if v.is_floating_point() else v + 5 for k, v in state.items()}


def quickstart_client(client, change=lambda reply: None, examples=10):
    app = ClientApp()

    @app.train()
    def train(message, context):
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        record = ArrayRecord(trained(model.state_dict(), client))
        metrics = MetricRecord({"train_loss": 0.5 + client, "num-examples": examples})
        reply = Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)
        return change(reply) or reply

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"eval_acc": 0.1 * client, "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def quickstart(strategy, clients, rounds=1, timeout=60.0):
    """The server of the quickstart; returns what it started from and what it got."""
    app, kept = ServerApp(), {}

    @app.main()
    def main(grid, context):
        start = Net().state_dict()
        kept["start"] = {k: v.clone() for k, v in start.items()}
        kept["result"] = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(start),
            num_rounds=rounds,
            timeout=timeout,
            train_config=ConfigRecord({"lr": 0.1}),
        )

    with InProcessGrid({10 + i: client for i, client in enumerate(clients)}) as grid:
        app(grid, grid.context({}))
    return kept["start"], kept["result"]


def moved(start, result):
    """By how much each floating-point entry has moved; one number, as all move alike."""
    end = result.arrays.to_torch_state_dict()
    assert end.keys() == start.keys()
    shifts = torch.cat([(end[k] - start[k]).flatten() for k in start if start[k].is_floating_point()])
    assert torch.allclose(shifts, shifts[0].expand_as(shifts), atol=1e-5)
    return float(shifts[0])


HONEST = [quickstart_client(i) for i in range(4)]


@pytest.mark.parametrize(("rule", "expected"), [(Mean(), 2.5), (Median(), 2.5), (TrimmedMean(0.25), 2.5)], ids=str)
def test_an_honest_round(rule, expected):
    strategy = PhalanxStrategy(rule)
    start, result = quickstart(strategy, HONEST)
    assert moved(start, result) == pytest.approx(expected, abs=1e-5)
    assert strategy.verdicts[1].keys() == {10, 11, 12, 13}
    assert strategy.invalid == {1: {}}
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(2.0)
    assert result.evaluate_metrics_clientapp[1]["eval_acc"] == pytest.approx(0.15)


def test_whole_numbers_stay_the_servers():
    start, result = quickstart(PhalanxStrategy(), HONEST)
    assert int(result.arrays.to_torch_state_dict()["norm.num_batches_tracked"]) == int(
        start["norm.num_batches_tracked"]
    )


def test_several_rounds():
    start, result = quickstart(PhalanxStrategy(Median()), HONEST, rounds=3)
    assert moved(start, result) == pytest.approx(7.5, abs=1e-4)


def test_sizes_weigh_unless_they_are_truncated_or_ignored():
    clients = [quickstart_client(i, examples=10**6 if i == 3 else 10) for i in range(4)]
    assert moved(*quickstart(PhalanxStrategy(), clients)) == pytest.approx(4.0, abs=1e-3)
    assert moved(*quickstart(PhalanxStrategy(preprocess=Ignore()), clients)) == pytest.approx(2.5, abs=1e-5)
    bounded = PhalanxStrategy(Median(), Truncate(0.25, 0.4))
    assert moved(*quickstart(bounded, clients)) == pytest.approx(2.0, abs=1.0)
    assert max(v.weight for v in bounded.verdicts[1].values()) <= 0.4


def record_of(array):
    def change(reply):
        reply.content["arrays"]["layer.bias"] = array

    return change


def metric(value):
    def change(reply):
        reply.content["metrics"]["num-examples"] = value

    return change


def missing(name):
    def change(reply):
        del reply.content[name]

    return change


BAD = {
    "NaN": (record_of(Array(np.full(2, np.nan, np.float32))), "2 NaN of"),
    "1e30": (record_of(Array(np.full(2, 1e30, np.float32))), "norm"),
    "another shape": (record_of(Array(np.zeros(1, np.float32))), r"claims to be float32 \(1,\)"),
    "another dtype": (record_of(Array(np.zeros(2))), "claims to be float64"),
    "no array": (lambda reply: reply.content["arrays"].pop("layer.bias") and None, "arrays are"),
    "no record": (missing("arrays"), "holds 0 ArrayRecords and 1"),
    "no metrics": (missing("metrics"), "holds 1 ArrayRecords and 0"),
    "one record more": (lambda r: r.content.update(more=MetricRecord({"x": 1})), "and 2 MetricRecords"),
    "negative examples": (metric(-10), "reports -10 examples"),
    "no examples": (metric(0), "reports 0 examples"),
    "half an example": (metric(0.5), "reports 0.5 examples"),
    "NaN examples": (metric(float("nan")), "reports nan examples"),
    "10^18 examples": (metric(10**18), "reports 1,000,000,000,000,000,000 examples"),
} | {
    f"array: {name}": (record_of(array), f"array 'layer.bias' .*{why}") for name, (array, why) in bad_arrays(2).items()
}


@pytest.mark.parametrize(("change", "why"), BAD.values(), ids=BAD)
def test_a_malformed_reply_is_refused_and_the_round_goes_on(change, why):
    strategy = PhalanxStrategy(Mean(), Ignore())
    start, result = quickstart(strategy, [*HONEST[:3], quickstart_client(3, change)])
    assert moved(start, result) == pytest.approx(2.0, abs=1e-5)
    ((node, reason),) = strategy.invalid[1].items()
    assert node == 13
    assert re.search(why, reason), reason
    assert strategy.verdicts[1].keys() == {10, 11, 12}


def fails(reply):
    raise RuntimeError("out of memory")


@pytest.mark.slow
def test_who_fails_and_who_does_not_answer_are_told_of_by_their_nodes(caplog):
    """Flower reports a failure as the SuperLink's, whichever node it was."""

    def silent(message, context):
        return None

    strategy = PhalanxStrategy(Mean(), Ignore())
    apps = [HONEST[0], HONEST[1], quickstart_client(2, fails), quickstart_client(3, fails), silent]
    start, result = quickstart(strategy, apps, timeout=3.0)
    assert moved(start, result) == pytest.approx(1.5, abs=1e-5)
    failed, missing = "its app failed", "it did not answer before the round ended"
    assert strategy.lost == {1: {12: failed, 13: failed, 14: missing}}
    assert strategy.invalid == {1: {}}
    assert all(f"round 1, node {node} lost: {why}" in caplog.text for node, why in strategy.lost[1].items())


def test_a_round_without_a_fit_reply_changes_nothing():
    bad = quickstart_client(0, metric(-1))
    strategy = PhalanxStrategy()
    _, result = quickstart(strategy, [bad, quickstart_client(1, metric(-1))], rounds=2)
    assert len(result.arrays) == 0
    assert strategy.verdicts == {1: {}, 2: {}}


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Krum(5), r"^Krum\(f=5, .* needs at least 2f \+ 3 = 13 rows, got 4\. .* by fraction_train, min_train"),
        (SMEA(2), r"^SMEA\(f=2\) needs at least 2f \+ 1 = 5 rows, got 4\."),
    ],
    ids=str,
)
def test_a_rule_that_cannot_serve_so_few_nodes_is_refused_before_the_first_round(rule, why):
    asked = []
    clients = [quickstart_client(i, change=asked.append) for i in range(4)]
    with pytest.raises(InfeasibleError, match=why):
        quickstart(PhalanxStrategy(rule), clients)
    assert asked == []


def test_a_round_of_too_few_replies_changes_nothing_and_verdicts_say_why(caplog):
    strategy = PhalanxStrategy(Krum(1))
    quickstart(strategy, [*HONEST[:4], quickstart_client(4, change=lambda reply: 1 / 0)])
    assert {verdict.accepted for verdict in strategy.verdicts[1].values()} == {False}
    assert {verdict.weight for verdict in strategy.verdicts[1].values()} == {0.0}
    assert all(v.reason.startswith("round lost: Krum") for v in strategy.verdicts[1].values())
    assert len(strategy.verdicts[1]) == len(HONEST[:4])
    assert "round 1 changes nothing, it is lost: Krum" in caplog.text


def test_what_is_promised_is_said_before_the_first_round(caplog):
    strategy = PhalanxStrategy()
    quickstart(strategy, HONEST)
    assert strategy.promise.f == 0
    assert strategy.promise.sentence in [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    caplog.clear()
    strategy = PhalanxStrategy(Median(), Ignore(), tolerate=1)
    with caplog.at_level("INFO", "phalanx.flower"):
        quickstart(strategy, HONEST)
    assert strategy.promise.f == 1
    assert strategy.promise.sentence == "Tolerates any 1 of 4 clients."
    assert strategy.promise.sentence in [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert strategy.shares == {1: 0.25}


def test_what_cannot_be_tolerated_is_refused_before_the_first_round():
    asked = []
    clients = [quickstart_client(i, change=asked.append) for i in range(4)]
    with pytest.raises(InfeasibleError, match="2 attackers of 4 clients"):
        quickstart(PhalanxStrategy(Median(), Ignore(), tolerate=2), clients)
    with pytest.raises(InfeasibleError, match="a client that reports enough examples can hold too much"):
        quickstart(PhalanxStrategy(Median(), tolerate=1), clients)
    assert asked == []


def test_a_round_whose_answers_could_be_of_attackers_alone_is_lost():
    """Two of four fail: of the two that are left, one attacker is half."""
    fails = [quickstart_client(i, change=lambda reply: 1 / 0) for i in (2, 3)]
    strategy = PhalanxStrategy(Median(), Ignore(), tolerate=1)
    quickstart(strategy, [*HONEST[:2], *fails])
    assert all("the promise for 1 would be broken" in verdict.reason for verdict in strategy.verdicts[1].values())
    assert strategy.shares == {}
    strategy = PhalanxStrategy(Median(), Ignore())
    start, result = quickstart(strategy, [*HONEST[:2], *fails])
    assert moved(start, result) == pytest.approx(1.5, abs=1e-5), "without a promise it is not"


def test_the_promise_follows_the_clients_that_there_are_and_never_tolerates_fewer(caplog):
    rounds = HostedRounds(Median(), Ignore(), LoopSettings(tolerate=1), log=logging.getLogger("hosted"))
    for number, (sent, known, clients) in enumerate([(4, 4, 4), (4, 4, 4), (5, 5, 5), (2, 2, 5), (4, 4, 4)], 1):
        was = rounds.promise
        rounds.begin(number, sent, known)
        assert (rounds.promise.f, rounds.promise.clients) == (1, clients)
        assert number != 2 or rounds.promise is was, "nothing has changed"
    assert "the promise for 1 stays: 1 attacker of 2 clients" in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        {"loop": LoopSettings(tolerate=1, broken_promise="remark")},
        {"tolerate": 1, "broken_promise": "remark"},
        {"loop": LoopSettings(tolerate=1), "broken_promise": "unweighted"},
    ],
)
def test_such_a_round_is_aggregated_and_counted_if_the_settings_say_so(given, caplog):
    fails = [quickstart_client(i, change=lambda reply: 1 / 0) for i in (2, 3)]
    strategy = PhalanxStrategy(Median(), Ignore(), **given)
    start, result = quickstart(strategy, [*HONEST[:2], *fails], rounds=2)
    assert moved(start, result) == pytest.approx(3.0, abs=1e-5)
    assert strategy.broken == {1: 1, 2: 1}
    assert strategy.shares == {1: 0.5, 2: 0.5}
    assert "and counted." in strategy.promise.sentence
    assert "the promise for 1 would be broken. It is aggregated" in caplog.text


def test_settings_that_no_hosted_round_has_are_refused(monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # which would refuse the second sooner
    for given, why in ({"loop": LoopSettings(until=3)}, "until is not for"), ({"loop": Guard()}, "guard=Guard"):
        with pytest.raises((TypeError, ValueError), match=why):
            PhalanxStrategy(Median(), Ignore(), **given)


def test_an_invalid_answer_is_one_of_an_attacker():
    """One of four sends what cannot be read, so that no attacker is left among the three."""
    strategy = PhalanxStrategy(Median(), Ignore(), tolerate=1)
    bad = quickstart_client(3, change=missing("arrays"))
    start, result = quickstart(strategy, [*HONEST[:3], bad])
    assert strategy.invalid[1].keys() == {13}
    assert moved(start, result) == pytest.approx(2.0, abs=1e-5)


def test_too_many_lost_rounds_in_a_row_end_the_run():
    """The second of five rounds has a result, so that the count starts again."""
    calls = []

    class Moody(Mean):
        def explained(self, *rows, **options):
            calls.append(1)
            if len(calls) != 2:
                raise InfeasibleError("no result.")
            return super().explained(*rows, **options)

    strategy = PhalanxStrategy(Moody(), lost_rounds=LostRounds(most=3))
    with pytest.raises(StalledError, match="3 rounds in a row were lost, the last one because no result"):
        quickstart(strategy, HONEST, rounds=9)
    assert len(calls) == 5
    with pytest.raises(ValueError, match='then must be "skip", got "wait"'):
        PhalanxStrategy(lost_rounds=LostRounds("wait"))
    with pytest.warns(UserWarning, match="lets attackers have 0.5 of the weight"):
        PhalanxStrategy(Median(), Truncate(0.1, 0.5))


def test_sizes_that_cannot_be_truncated_change_nothing_until_enough_nodes_have_answered(caplog):
    """One of so few has more than a fifth of the weight, whatever the bound."""
    strategy = PhalanxStrategy(TrimmedMean(0.2), Truncate(0.1, 0.2))
    _, result = quickstart(strategy, HONEST, rounds=2)
    assert len(result.arrays) == 0
    assert strategy.invalid == {1: {}, 2: {}}
    assert "round lost: 1 attacker of 4 clients" in next(iter(strategy.verdicts[2].values())).reason
    assert all(f"round {r} changes nothing" in caplog.text for r in (1, 2))
    start, result = quickstart(strategy, [quickstart_client(i) for i in range(5)])
    assert moved(start, result) == pytest.approx(3.0, abs=1e-5)


class FromNobody(InProcessGrid):
    """Beside those who were asked, a node answers that was not."""

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        for reply in replies:
            if reply.metadata.src_node_id == 14:
                reply.metadata.__dict__["_src_node_id"] = 99
        return replies


@pytest.mark.parametrize(
    ("change", "grid", "why"),
    [
        (record_of(Array(np.full(2, np.nan, np.float32))), InProcessGrid, {14: "2 NaN of"}),
        (lambda reply: None, FromNobody, {99: "unrequested"}),
    ],
    ids=["NaN", "unrequested"],
)
def test_the_size_of_who_is_refused_shapes_nobodys_weight(change, grid, why):
    clients = [quickstart_client(i, examples=10 * 2**i) for i in range(4)]
    liar = quickstart_client(4, change, examples=10**9)

    def weights(apps, grid):
        strategy = PhalanxStrategy(Median(), Truncate(0.25, 0.4))
        with grid({10 + i: app for i, app in enumerate(apps)}) as made:
            strategy.start(grid=made, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=1)
        return {node: verdict.weight for node, verdict in strategy.verdicts[1].items()}, strategy.invalid[1]

    alone, _ = weights(clients, InProcessGrid)
    beside, refused = weights([*clients, liar], grid)
    assert beside == alone
    assert refused.keys() == why.keys()
    assert all(reason in refused[node] for node, reason in why.items())


def test_a_size_counts_from_the_first_fit_update_of_its_node_on():
    """What came with a refused update, or to no question, is not kept; what came with a fit one cannot be changed."""
    rounds = iter([(np.nan, 10**9), (4.0, 30), (4.0, 10**6)])

    def change(reply):
        entry, size = next(rounds)
        reply.content["arrays"]["layer.bias"] = Array(np.full(2, entry, np.float32))
        reply.content["metrics"]["num-examples"] = size

    strategy = PhalanxStrategy()
    quickstart(strategy, [quickstart_client(0), quickstart_client(1, change)], rounds=3)
    assert [{i: v.weight for i, v in strategy.verdicts[r].items()} for r in (1, 2, 3)] == [
        {10: 1.0},
        {10: 0.25, 11: 0.75},
        {10: 0.25, 11: 0.75},
    ]


def test_a_limit_on_norms_is_a_defence():
    far = quickstart_client(3, record_of(Array(np.full(2, 50.0, np.float32))))
    strategy = PhalanxStrategy(Mean(), Ignore(), guard=Guard(max_norm=30.0))
    start, result = quickstart(strategy, [*HONEST[:3], far])
    assert moved(start, result) == pytest.approx(2.0, abs=1e-5)


def test_a_node_that_answers_twice_counts_once():
    strategy = PhalanxStrategy(Mean(), Ignore())

    class Twice(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            return replies + [r for r in replies if r.metadata.src_node_id == 13] * 3

    with Twice({10 + i: client for i, client in enumerate(HONEST)}) as grid:
        start = Net().state_dict()
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=1)
    assert moved(start, result) == pytest.approx(2.5, abs=1e-5)
    assert "duplicate" in strategy.invalid[1][13]


def measuring(client, **metrics):
    """A client of the quickstart that answers "evaluate" messages with these metrics."""
    app = ClientApp()
    app.train()(quickstart_client(client))

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def test_reports_of_clients_are_kept_and_those_that_cannot_be_are_none(caplog):
    clients = [
        measuring(0, **{"num-examples": 7, "eval_loss": 0.5, "eval_acc": 0.75}),
        measuring(1, **{"num-examples": 3, "eval_loss": 1.5}),
        measuring(2, **{"num-examples": 3, "eval_acc": 7.5}),
        measuring(3, **{"num-examples": -1, "eval_acc": 0.5}),
        measuring(4, **{"eval_acc": 0.5}),
    ]
    strategy = PhalanxStrategy(Median())
    quickstart(strategy, clients, rounds=2)
    expected = {10: ClientReport(7, 0.5, 0.75), 11: ClientReport(3, 1.5)}
    assert strategy.reports == {1: expected, 2: expected}
    assert "the report of node 12 is invalid: eval_acc is 7.5, which cannot be" in caplog.text
    assert "the report of node 13 is invalid: num-examples is -1" in caplog.text
    named = PhalanxStrategy(Median(), loss_key="mse", accuracy_key="r2")
    quickstart(named, [measuring(i, **{"num-examples": 2, "mse": 0.25, "eval_acc": 1.0}) for i in range(3)])
    assert set(named.reports[1].values()) == {ClientReport(2, 0.25)}


def test_a_liar_is_named_under_a_rule_that_filters_nobody(caplog):
    def lies(reply):
        record = reply.content["arrays"]
        state = {k: -100 * v if v.is_floating_point() else v for k, v in record.to_torch_state_dict().items()}
        reply.content["arrays"] = ArrayRecord(state)

    clients = [*(quickstart_client(0) for _ in range(4)), quickstart_client(0, lies)]
    strategy = PhalanxStrategy(TrimmedMean(0.2))
    quickstart(strategy, clients, rounds=4)
    (node,) = {
        node for found in strategy.conduct.values() for node, one in found.items() if "as long as" in one.outlying
    }
    assert node == 14
    assert all(verdict.accepted for verdict in strategy.verdicts[4].values())
    assert "node 14 is suspicious: its update is" in caplog.text
