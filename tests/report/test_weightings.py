import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import report_records as records
from report_records import alter, alter_step

from phalanx import Run
from phalanx.aggregators import Krum, Median
from phalanx.algorithms import ByzantineCFL, FedAvg, FoolsGold
from phalanx.core import Setting
from phalanx.promises import promise
from phalanx.report import render
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.counterfactual import columns, rows, sentences
from phalanx.report.figures.weights import picture
from phalanx.report.weightings import Weightings, weightings
from phalanx.runs.record import Record
from phalanx.runs.schema import ClientRecord, StepRecord
from phalanx.weighting import AsReported, Ignore, Truncate
from summaries import summary

LIAR = {0: 1, 1: 2, 2: 3, 3: 1000}  # U* is 6 for alpha = 1/4 and alpha* = 1/2: 6 of 1 + 2 + 3 + 6
EVEN = dict.fromkeys(range(20), 50)
TWENTY = EVEN | {8: 10_000_000}


def of_class(path: str, **arguments: object) -> dict[str, Any]:
    return {"class_path": path, "init_args": arguments}


def record(
    sizes: Mapping[int, int | None],
    algorithm: object = FedAvg(),
    byzantine: Sequence[int] | None = (3,),
    **more: object,
) -> Record:
    """A run of those clients; `algorithm` as a value, or as a configuration says it."""
    config = algorithm if isinstance(algorithm, dict) else Run(algorithm=algorithm).config["algorithm"]
    truth = {c: None if byzantine is None else c in byzantine for c in sizes}
    clients = {c: ClientRecord(reported=n, size=5, byzantine=truth[c]) for c, n in sizes.items()}
    begun = StepRecord(step=0, version=0, seconds=0.0)
    return Record({"algorithm": config}, [begun], summary(clients=clients, **more))


def read(*arguments: Any, **more: Any) -> Weightings:
    w = weightings(ClientLedger(record(*arguments, **more)))
    assert w is not None
    return w


def table(w: Weightings) -> list[list[str]]:
    return [[row.name + "*" * row.used, *(cell.text for cell in row.cells)] for row in rows(w)]


def test_table_by_hand() -> None:
    w = read(LIAR, FedAvg(preprocess=Truncate(alpha=0.25, alpha_star=0.5)))
    assert columns(w) == (
        "U*", "Byzantine clients (1 of 4)", "Largest client", "Heaviest 10 % (1 of 4)", "Effective of 4 clients",
        "Changes hands against truncated",
    )  # fmt: skip
    assert table(w) == [
        ["reported", "–", "99.4 %", "99.4 %", "99.4 %", "1.0", "49.4 %"],  # 1000 / 1006; 1000 / 1006 - 6 / 12
        ["truncated*", "6", "50.0 %", "50.0 %", "50.0 %", "2.9", "0.0 %"],  # 12^2 / (1 + 4 + 9 + 36)
        ["uniform", "–", "25.0 %", "25.0 %", "25.0 %", "4.0", "25.0 %"],  # from (1, 2, 3, 6) / 12: 2 / 12 + 1 / 12
    ]


def test_byzantine_share_is_of_all_of_them_and_left_out_where_there_are_none() -> None:
    w = read({0: 10, 1: 20, 2: 30, 3: 40}, byzantine=(0, 3))
    assert [row.cells[1].text for row in rows(w)][::2] == ["50.0 %", "50.0 %"]
    assert "Byzantine clients (2 of 4)" in columns(w)
    for nobody in ((), None):
        assert not any("Byzantine" in label for label in columns(read(LIAR, byzantine=nobody)))


def test_largest_client_in_one_sentence() -> None:
    told = sentences(read(TWENTY, byzantine=(8,)))
    # two of twenty may hold half: U + 50 <= 18 * 50
    assert told[1:] == (
        "Byzantine client 8 reported 10,000,000 examples, 99.991 % of all; truncated at 850 it would hold 47.2 %."
        " Of 20 clients, 1 reported more than that bound.",
    )
    assert (
        "; truncated at 850 it held 47.2 %."
        in sentences(read(TWENTY, FedAvg(preprocess=Truncate.as_published(0.1, 0.5))))[1]
    )
    for preprocess in (Truncate(), Truncate(scope="cohort")):
        each = sentences(read(TWENTY, FedAvg(preprocess=preprocess)))
        assert "in each step for the clients that took part in it. What follows is for all clients together." in each[0]
        assert "it would hold 47.2 %" in each[1]


def test_clients_of_one_size_share_a_sentence() -> None:
    two = EVEN | {8: 10_000, 3: 10_000}
    # 2 U <= 18 * 50
    assert sentences(read(two, byzantine=(3,)))[1].startswith(
        "Clients 3, 8 reported 10,000 examples each, together 95.7 % of all; truncated at 450 they would hold 50.0 %."
    )
    many = dict.fromkeys(range(100), 50) | dict.fromkeys(range(10), 10_000)
    assert sentences(read(many, byzantine=range(10)))[1].startswith(
        "10 Byzantine clients reported 10,000 examples each"
    )


def test_nothing_to_truncate_says_why() -> None:
    assert sentences(read(EVEN))[1] == (
        "Nothing would be truncated: the largest 10 % of the clients (2 of 20) reported 10.0 % of all examples, which"
        " is no more than alpha_star = 0.5."
    )
    own = read(EVEN, FedAvg(preprocess=Truncate.as_published(0.3, 0.4)))
    assert sentences(own)[1].startswith(
        "Nothing was truncated: the largest 30 % of the clients (6 of 20) reported 30.0 %"
    )
    assert "alpha_star = 0.4." in sentences(own)[1]


def test_more_attackers_than_the_bound_is_for() -> None:
    """It is of weights alone, of a truncation that the run may not use: a median of equal weights tolerates nine."""
    w = read(EVEN, FedAvg(Median(), Ignore()), byzantine=(1, 2, 3))
    assert promise(FedAvg(Median(), Ignore()), Setting(20, EVEN)).f == 9
    assert sentences(w)[-1] == (
        "U* is made for alpha = 0.1: truncation by it limits what 2 of 20 clients hold, and not what the 3 Byzantine"
        " clients hold here."
    )
    assert not any("promise" in sentence or "tolerate" in sentence for sentence in sentences(w))
    assert len(sentences(read(EVEN, byzantine=(1, 2)))) == 2


def test_infeasible_in_the_words_of_the_library() -> None:
    w = read({0: 7})
    assert sentences(w)[1].startswith("Truncation is infeasible here: alpha = 0.1 of 1 client means 1 of them")
    assert table(w)[1] == ["truncated", "infeasible", "–", "–", "–", "–"]
    assert (
        "(infeasible for alpha = 0.1 and alpha_star = 0.5, which are the defaults of Truncate)"
        in picture(w, "k").caption
    )
    used = read({0: 7}, FedAvg(preprocess=Truncate(scope="cohort")))  # such a run begins, and fails
    assert [row.used for row in rows(used)] == [False, True, False]
    assert columns(used)[-1] == "Changes hands against reported"


@pytest.mark.parametrize(
    ("algorithm", "used", "words"),
    [
        (FedAvg(), "reported", "This run weighed clients by the sizes that they reported: AsReported()."),
        (
            FedAvg(preprocess=Ignore()),
            "uniform",
            "This run gave all clients the same weight, whatever they reported: Ignore().",
        ),
        (ByzantineCFL(), "uniform", "This run gave all clients the same weight, whatever they reported: Ignore()."),
        (ByzantineCFL(preprocess=AsReported()), "reported", "This run weighed clients by the sizes"),
        (
            FedAvg(preprocess=Truncate.as_published(0.2, 0.3)),
            "truncated",
            "Truncate(alpha=0.2, alpha_star=0.3, scope=population, ",
        ),
        (
            FoolsGold(),
            "",
            "FoolsGold has no preprocess, and does not weigh by sizes: what clients reported was not used.",
        ),
        (
            of_class("mine.Own", preprocess=of_class("mine.Root", power=0.5)),
            "",
            "This run weighed clients in none of the three ways below: Root(power=0.5).",
        ),
        (of_class("mine.FedAsync"), "", "as far as it says, reported sizes were not used."),
        (of_class("phalanx.algorithms.FedAvg"), "", "as far as it says, reported sizes were not used."),  # no such run
        (of_class("phalanx.algorithms.annotations"), "", "as far as it says, reported sizes were not used."),
    ],
)
def test_what_the_run_used_is_read_from_its_configuration(algorithm: object, used: str, words: str) -> None:
    w = read(TWENTY, algorithm)
    assert words in sentences(w)[0]
    assert [row.name for row in rows(w) if row.used] == ([used] if used else [])
    assert ("in use" in picture(w, "k").svg) == bool(used)
    assert columns(w)[-1] == f"Changes hands against {used or 'reported'}"


def test_truncation_is_by_the_parameters_of_the_run_and_else_by_the_defaults() -> None:
    own = read(TWENTY, FedAvg(preprocess=Truncate(0.2, 0.3)))
    assert own.truncate == Truncate(0.2, 0.3)
    assert "alpha = 0.2 and alpha_star = 0.3, the run's own" in picture(own, "k").caption
    other = read(TWENTY, of_class("mine.Own", preprocess=of_class("mine.Root", alpha=0.4)))
    assert other.truncate == Truncate()
    assert "alpha = 0.1 and alpha_star = 0.5, which are the defaults of Truncate" in picture(other, "k").caption


def test_rules_that_are_no_mean_are_named() -> None:
    assert "These weights went to the rule Krum(f=2" in sentences(read(TWENTY, FedAvg(aggregate=Krum(f=2))))[1]
    assert not any("rule" in sentence for sentence in sentences(read(TWENTY)))


def test_who_did_not_enrol_does_not_count() -> None:
    run = record(LIAR | {4: 0, 5: 9_999})
    alter(run, 4, not_enrolled="reports 0 examples")
    alter_step(run, 0, not_enrolled={5: "reports 9,999 examples"})
    w = weightings(ClientLedger(run))
    assert w is not None
    assert w.sizes == LIAR
    assert w.byzantine == {3}
    alter(run, 3, not_enrolled="too large")
    assert weightings(ClientLedger(run)).byzantine == frozenset()  # type: ignore[union-attr]


@pytest.mark.parametrize("reported", [None, 0])
def test_no_weightings_where_a_size_is_not_known(reported: int | None) -> None:
    assert weightings(ClientLedger(record(LIAR | {1: reported}))) is None
    assert weightings(ClientLedger(record({}))) is None


def test_records_without_reported_sizes_or_algorithm_are_rendered() -> None:
    run = records.make(steps=2)
    assert "What the reported sizes weigh" in render([run], "t")
    unknown = replace(run, config={k: v for k, v in run.config.items() if k != "algorithm"})
    assert "The configuration of its algorithm has no preprocess" in render([unknown], "t")
    for client in run.summary.clients:
        alter(run, client, reported=None)
    assert "What the reported sizes weigh" not in render([run], "t")


class Texts(HTMLParser):
    """The texts of a picture, in order, and how often each element occurs."""

    def __init__(self, svg: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(svg)

    def handle_data(self, data: str) -> None:
        self.texts += [data.strip()] if data.strip() else []


def test_picture_shows_every_client_by_reported_size() -> None:
    drawn = picture(read({4: 5, 0: 5, 9: 700, 2: 30}, byzantine=(2,)), "k")
    texts = Texts(drawn.svg).texts
    assert texts[:5] == ["9", "2", "0", "4", "client, by reported size"]
    assert {"reported, in use", "truncated", "uniform", "Byzantine", "100 %"} <= set(texts)
    bold = re.findall(r"font-weight: 700[^>]*>([^<]*)<", drawn.svg)
    assert sorted(bold) == ["2", "Byzantine", "reported, in use"]
    assert "Wedges on top: Byzantine clients." in drawn.caption
    assert (
        'aria-label="Share of the weight of each of 4 clients, by reported size. Client 9, the largest: reported'
        in (drawn.svg)
    )
    nobody = picture(read(EVEN, byzantine=()), "k")
    assert "Byzantine" not in Texts(nobody.svg).texts
    assert "Byzantine" not in nobody.caption


def test_picture_shows_names_where_all_have_one_and_they_fit() -> None:
    sizes = {4: 5, 0: 5, 9: 700, 2: 30}
    names = {0: "Bern", 2: "Lyon $x_", 4: "Süd", 9: "Universitätsklinikum Nord-West"}
    drawn = picture(replace(read(sizes, byzantine=(2,)), names=names), "k")
    texts = Texts(drawn.svg).texts
    assert texts[:2] == ["Universitätsklinikum Nord-W…", "Lyon $x_"]
    assert texts[2:5] == ["Bern", "Süd", "client, by reported size"]
    assert "by reported size. Universitätsklinikum Nord-West, the largest: reported" in drawn.svg
    assert "Byzantine clients: Lyon $x_." in drawn.svg
    some = picture(replace(read(sizes), names={0: "Bern"}), "k")
    assert Texts(some.svg).texts[:4] == ["9", "2", "0", "4"]
    many = picture(replace(read(EVEN), names={c: f"hospital {c}" for c in EVEN}), "k")
    assert Texts(many.svg).texts[0] == "0"


@pytest.mark.parametrize("clients", [41, 1000])
def test_many_clients_stand_by_rank(clients: int) -> None:
    sizes = {c: 10 + c for c in range(clients)}
    drawn = picture(read(sizes, byzantine=range(clients // 10)), "k")
    texts = Texts(drawn.svg).texts
    assert "rank of the client by reported size" in texts
    assert len(texts) < 20
    assert "the shares and the ranks are on a logarithmic axis" in drawn.caption
    assert "Ticks on top: Byzantine clients." in drawn.caption
    assert len(drawn.svg) < 120_000
