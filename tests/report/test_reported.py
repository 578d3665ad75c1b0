"""What clients reported, in the terminal, its live line and the page: against numbers that are set by hand."""

import io

import pytest
import report_records as records
from rich.console import Console

from phalanx import Run, Until, simulate
from phalanx.algorithms import ByzantineCFL
from phalanx.attacks import SignFlip
from phalanx.cli import progress, terminal
from phalanx.core import ClientReport
from phalanx.report import render
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.page_tables import reports
from phalanx.runs.reports import reported, spread
from phalanx.runs.schema import Exclusion
from phalanx.training import Evaluation


def reporting(clients, attack=True):
    """A run of three steps in which client i reports an accuracy of (i + step) / 200, and the last one leaves."""
    record = records.make("Median", attacked=False, clients=clients, steps=3)
    last = clients - 1
    for step in (1, 2, 3):
        found = {
            i: ClientReport(10 + i, 2.0 - step / 10, (i + step) / 200) for i in range(clients) if i < last or step == 1
        }
        records.alter_step(record, step, reports=found)
    records.alter(record, last, byzantine=attack, excluded=Exclusion(step=1, reason="far"))
    return record


def printed(record):
    console = Console(file=io.StringIO(), width=80)
    console.print(terminal.reports([record]))
    return console.file.getvalue()


def test_the_reports_of_a_run_by_client():
    found = reported(reporting(6).history)
    assert [*found] == [*range(6)]
    assert (found[2].step, found[2].last, len(found[2].reports)) == (3, ClientReport(12, 1.7, 0.025), 3)
    assert found[2].values("accuracy") == [0.015, 0.02, 0.025]
    assert (found[5].step, len(found[5].reports)) == (1, 1)
    assert reported(records.make("Median", attacked=False, clients=6, steps=3).history) == {}


def test_lowest_median_and_highest_are_those_of_the_last_reports():
    last = {4: ClientReport(1, 1.0, 0.2), 7: ClientReport(1, 1.0, 0.9), 9: ClientReport(1, 1.0, 0.4)}
    assert spread(last).in_words == ("20.0 % (4)", "40.0 %", "90.0 % (7)")
    assert spread({1: ClientReport(1, 2.5), 2: ClientReport(1)}).in_words == ("2.5 (1)", "2.5", "2.5 (1)")
    assert spread({2: ClientReport(0)}).in_words == ("-", "-", "-")
    assert spread({}).in_words == ("-", "-", "-")


def test_the_table_of_the_terminal():
    text = printed(reporting(6))
    rows = [line.split()[-11:] for line in text.splitlines()]
    assert "Reported accuracy" in text
    assert ["honest", "5", "0", "1.5", "%", "(0)", "2.5", "%", "3.5", "%", "(4)"] in rows
    assert ["Byzantine", "1", "1", "3.0", "%", "(5)", "3.0", "%", "3.0", "%", "(5)"] in rows
    assert terminal.reports([records.make("Median", attacked=False, clients=6, steps=3)]) is None


@pytest.mark.parametrize("clients", [6, 100])
def test_the_table_of_the_page(clients):
    record = reporting(clients)
    found = reports(ClientLedger(record))
    assert found.metric == "accuracy"
    assert len(found.rows) == clients
    truth, cells, excluded = found.rows[2]
    assert (truth, excluded) == ("honest", None)
    assert [cell.text for cell in cells] == ["12", "1.5 %", "2.5 %", "1.5 %", "2.5 %", "1.7", "3", "3"]
    truth, cells, excluded = found.rows[clients - 1]
    assert (truth, excluded, cells[-1].text) == ("Byzantine", 1, "1")
    records.alter(record, 2, name="Lyon")
    page = render([record], "Reports")
    assert page.count("What clients reported") == 1
    assert page.count("2 <small>Lyon</small>") == 2, "in the table of reports, and in that of clients"
    assert "no algorithm uses it, and of an attacker it can be anything" in page
    assert "What clients reported" not in render([records.make("Median", attacked=False, clients=6, steps=3)], "None")


def test_a_task_without_accuracies_shows_losses():
    record = records.make("Median", attacked=False, clients=6, steps=1)
    records.alter_step(record, 1, reports={0: ClientReport(4, 2.5), 1: ClientReport(4)})
    found = reports(ClientLedger(record))
    assert [cell.text for cell in found.rows[0][1]] == ["4", "2.5", "2.5", "2.5", "2.5", "1", "1"]
    assert [cell.text for cell in found.rows[1][1][1:5]] == ["–"] * 4
    assert "Reported loss" in printed(record)
    assert "Lowest loss" in render([record], "Losses")


def test_a_liar_does_not_choose_the_metric():
    honest = {i: ClientReport(9, 1.0 + i) for i in range(3)}
    assert spread(honest | {7: ClientReport(9, 0.5, 1.0)}).in_words == ("0.5 (7)", "1.5", "3 (2)")
    assert spread(honest | {i: ClientReport(9) for i in range(4, 9)}).metric == "loss"
    assert spread({i: ClientReport(9, 1.0, 0.1) for i in range(3)} | {7: ClientReport(9, 0.5)}).metric == "accuracy"


@pytest.mark.parametrize("losses", [(1.7e308, 1.7e308, 1.0, 1.0), (-1.7e308, -1.7e308), (1.7e308, -1.7e308)])
def test_losses_at_the_limit_of_numbers_are_drawn(losses):
    record = records.make("Median", attacked=False, clients=6, steps=1)
    records.alter_step(record, 1, reports={i: ClientReport(4, loss) for i, loss in enumerate(losses)})
    page = render([record], "Losses")
    assert "Reported loss over steps" in page
    assert "e+30" in page


def test_the_live_line_has_the_median_of_clients_that_are_not_excluded():
    evaluation, seen = Evaluation(by_clients=True), []
    plan = Run(algorithm=ByzantineCFL(), attack=SignFlip(), byzantine=3, clients=10, validation=0.2, until=Until(3),
               evaluation=evaluation)  # fmt: skip
    with progress.progress_bar(Console(file=io.StringIO())) as bar:
        follow = progress.follow(bar, plan, "a run")
        record = simulate(plan, observers=[follow, lambda _: seen.append(bar.tasks[0].fields["note"])])
    excluded = {i for i, client in record.summary.clients.items() if client.excluded}
    assert len(excluded) == 3
    left = [{i: r for i, r in step.reports.items() if i not in excluded} for step in record.history]
    assert seen == ["", *(f"reported accuracy {spread(reports).in_words[1]}" for reports in left[1:])]
