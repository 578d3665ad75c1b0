import hashlib
import re
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_records as records
from msgspec.structs import replace as replace_struct
from report_records import alter, alter_step, with_summary

from phalanx.core import ClientReport
from phalanx.report import render, write
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.names import distinct
from phalanx.report.outcome import sentence
from phalanx.report.page import styles
from phalanx.report.words import describe, duration, ids, percent, portion
from phalanx.runs.provenance import Provenance
from phalanx.runs.record import Record
from phalanx.runs.schema import BestAccuracy, Exclusion, FilteredShares, FinalMetrics, StepRecord
from phalanx.training.evaluation import Metrics
from summaries import summary

ATTACK = '"><script>alert("x")</script><img src=x onerror=alert(1)>\' $a_b$ {{ 7*7 }} {% raw %} </pre></svg>'


class Page(HTMLParser):
    """Elements, ids and text of a page; void elements aside, every element must be closed by its own end tag."""

    VOID = frozenset({"meta", "link", "br", "img", "image", "path", "rect", "use", "circle"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.stack: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.text += " " if tag in ("td", "th", "li", "dt", "dd", "p", "h3") else ""
        self.ids += [value for name, value in attrs if name == "id"]
        self.attributes += attrs
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data):
        if not self.stack or self.stack[-1] not in ("style", "script"):
            self.text += data


@pytest.fixture(scope="module")
def six() -> str:
    return render(records.six(), "Digits under attack")


MAKE = (
    f"import sys; sys.path[:0] = {[str(folder) for folder in Path(records.__file__).parents[:2]]!r}; "
    "import report_records as records; from phalanx.report import render"
)


def python(code: str) -> str:
    """What the code prints in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()


def words(page: str) -> str:
    return " ".join(Page(page).text.split())


def test_page_says_in_words_what_happened(six: str) -> None:
    text = words(six)
    assert "ByzantineCFL, attacked: 96.0 % at the end; 6 of 6 Byzantine clients excluded, no honest one" in text
    assert "FedAvg, attacked: 18.9 % at the end; 0 of 6 Byzantine clients excluded, no honest one" in text
    assert "FedAvg, clean: 94.9 % at the end; every client is honest, none excluded" in text
    assert "1,437 training and 360 test examples" in text


def test_who_was_removed_when_why_and_what_it_cost() -> None:
    runs = [records.make(wrong=True), records.make(attacked=False)]
    text = words(render(runs, "t"))
    assert "cosine cluster of 4, benign cluster has 13" in text
    assert "Excluding 1 honest client (3) gave up 99 examples (9.1 % of all honest ones)." in text
    assert re.search(
        r"Final accuracy is \d\.\d points below that of the same run without the attack \(ByzantineCFL, clean", text
    )
    assert "Byzantine clients are 30.0 % of all clients and carried 2.0 % of all weight." in text
    assert "Byzantine SignFlip(scale=3)" in text
    assert "step 2: cosine cluster of 3, benign cluster has 17" in text
    assert "invalid, by the guard delta holds NaN 7 1 6 6" in text
    assert "and 3 more that differ in numbers" in text


def test_a_class_that_no_honest_client_holds_any_more_is_named() -> None:
    run = records.make(wrong=True)
    for client in run.summary.clients:
        alter(run, client, classes=(0, 5, 5) if client == 3 else (5, 0, 5))
    assert "No honest client is left that holds examples of class 1." in words(render([run], "t"))


def test_markup_is_closed_and_ids_are_unique(six: str) -> None:
    page = Page(six)
    assert len(page.ids) == len(set(page.ids))
    used = set(re.findall(r'(?:xlink:href|href)="#([^"]+)"|url\(#([^)]+)\)', six))
    assert {a or b for a, b in used} <= set(page.ids)
    assert "<?xml" not in six
    assert "<metadata" not in six
    assert "fe01" not in re.sub(r"base64,[^\"]*", "", six)  # every placeholder became a variable


def test_pictures_and_tables_are_accessible(six: str) -> None:
    pictures = re.findall(r'<svg class="w\d+" role="img" aria-label="([^"]+)"', six)
    assert (
        len(pictures) == 2 + 6 * 4 + 2
    )  # comparison; progress, weights, holdings and reported sizes each; alpha_cross twice
    assert all(len(label) > 20 for label in pictures)
    assert six.count("<figcaption>") == len(pictures)
    assert all('scope="' in tag for tag in re.findall(r"<th\b[^>]*>", six))


def test_page_loads_nothing(six: str) -> None:
    addresses = [value for name, value in Page(six).attributes if name in ("src", "href", "xlink:href")]
    assert all(value.startswith(("#", "data:")) for value in addresses)
    assert "@import" not in six
    assert "default-src 'none'" in six.replace("&#39;", "'")


@pytest.mark.slow
def test_same_records_same_page() -> None:
    runs = [records.make(), records.make_async(300)]
    assert render(runs, "t") == render(runs, "t")
    code = f"{MAKE}; import hashlib; print(hashlib.sha256(render([records.make()], 't').encode()).hexdigest())"
    assert python(code) == hashlib.sha256(render([records.make()], "t").encode()).hexdigest()


def test_untrusted_text_stays_text() -> None:
    run = records.make(steps=6)
    alter_step(run, 3, invalid={1: ATTACK})
    alter_step(run, 4, lost={2: ATTACK})
    alter(run, 5, excluded=Exclusion(step=3, reason=ATTACK))
    hostile = replace(run, config=run.config | {"seed": ATTACK, ATTACK: ATTACK})
    told = {"name": ATTACK, "status": "failed", "error": ATTACK, "provenance": Provenance(platform=ATTACK)}
    page = render([with_summary(hostile, **told), run], ATTACK)
    assert Page(page).tags.count("script") == 1
    assert "img" not in Page(page).tags
    assert not [name for name, _ in Page(page).attributes if name.startswith("on")]
    assert "49" not in re.findall(r"\$a_b\$ (\S+)", page)
    assert page.count("&lt;script&gt;") >= 6
    assert 'alert("x")</script>' in words(page)


def test_numbers_that_are_not_there() -> None:
    run = records.make(attacked=False, steps=8)
    for at, step in enumerate(run.history):
        unknown = {"state": {"alpha_cross": None, "threshold": None}} if "alpha_cross" in step.state else {}
        unknown |= {"metrics": Metrics()} if step.metrics and step.step > 2 else {}
        verdicts = {client: replace(verdict, score=None) for client, verdict in step.verdicts.items()}
        alter_step(run, at, verdicts=verdicts, **unknown)
    text = words(render([with_summary(run, final=FinalMetrics(), best=BestAccuracy(step=8))], "t"))
    assert "no accuracy was measured; every client is honest, none excluded" in text
    assert "A line that breaks off had no finite accuracy there." in text
    assert "That never happened in this run." in text
    assert "nan" not in text.lower().replace("holds nan", "")


BEGUN = StepRecord(step=0, version=0, seconds=0.0, metrics=Metrics(accuracy=0.1))


@pytest.mark.parametrize("history", [[], [BEGUN]])
def test_failed_run_shows_its_error_first(history: list) -> None:
    failed = summary(name="Krum", status="failed", error="StalledError: nobody is left.\nwaited for 3, 4")
    page = render([Record({"algorithm": {"class_path": "phalanx.Krum"}}, history, failed)], "t")
    text = words(page)
    assert "Krum: failed after 0 steps: StalledError: nobody is left." in text
    assert "This run failed." in text
    assert "waited for 3, 4" in text
    assert 'role="alert"' in page


def test_updates_that_were_not_used_are_told_where_there_are_any() -> None:
    run = records.make("FedAvg", steps=4)
    used = words(render([run], "t"))
    assert "Byzantine filtered" not in used
    assert "0 of 6 Byzantine clients excluded, no honest one" in used
    told = words(render([with_summary(run, filtered=FilteredShares(byzantine=1.0, honest=0.25))], "t"))
    unused = "100.0 % of the updates of Byzantine clients and 25.0 % of those of honest ones filtered or invalid"
    assert f"0 of 6 Byzantine clients excluded, no honest one; {unused}" in told
    assert f"Over the whole run, {unused}." in told
    assert "Byzantine filtered Honest filtered" in told
    assert "Byzantine filtered 100.0 % of their updates; 25.0 % of honest ones" in told
    told = words(render([with_summary(run, filtered=FilteredShares(byzantine=0.5, honest=0.0))], "t"))
    assert "50.0 % of the updates of Byzantine clients filtered or invalid, none of honest ones" in told
    clean = records.make("FedAvg", attacked=False, steps=4)
    told = words(render([with_summary(clean, filtered=FilteredShares(honest=0.25))], "t"))
    assert "Over the whole run, 25.0 % of the updates of honest clients filtered or invalid." in told
    assert "honest filtered 25.0 % of their updates" in told


def test_attack_success_has_a_column_where_it_was_measured(six: str) -> None:
    assert "Attack success" in words(six)
    assert "Attack success" not in words(render([records.make(attacked=False, steps=2)], "t"))


def test_clients_that_never_took_part_are_not_among_the_excluded() -> None:
    run = records.make(steps=6)
    alter(run, 3, not_enrolled="reports 0 examples, allowed are 1 to 9")
    text = words(render([run], "t"))
    assert "1 client (3) never took part: not enrolled." in text
    assert "never took part: reports 0 examples, allowed are 1 to 9" in text
    assert "6 of 6 Byzantine clients excluded, no honest one" in text


def test_stopped_run_says_so() -> None:
    run = records.make(steps=6)
    page = render([with_summary(run, status="stopped")], "t")
    text = words(page)
    assert re.search(r"ByzantineCFL, attacked: stopped after 6 steps, at \d\d\.\d %; 6 of 6 Byzantine clients", text)
    assert "This run was stopped before it was done." in text
    assert "failed" not in text
    nothing = with_summary(run, status="stopped", final=FinalMetrics())
    assert "stopped after 6 steps, no accuracy was measured; " in words(render([nothing], "t"))


def test_what_clients_report_is_said_where_nobody_else_measured_it() -> None:
    run = with_summary(records.make(steps=6), final=FinalMetrics())
    last = replace_struct(run.history[-1], reports={2: ClientReport(9, 0.1, 0.5), 5: ClientReport(9, 0.1, 0.75)})
    text = words(render([replace(run, history=[*run.history[:-1], last])], "t"))
    assert (
        "no accuracy was measured, but clients report accuracy 50.0 % (2) to 75.0 % (5), median 62.5 %; 6 of 6" in text
    )


# --- names


def named(name: str, identity: str = "", **config: object) -> Record:
    return Record(config, [], summary(name=name, identity=identity))


def names(*runs: Record) -> list[str]:
    return [run.name for run in distinct(runs)]


def test_runs_of_one_name_get_what_they_differ_in() -> None:
    rate = {"class_path": "a.Exponential", "init_args": {"start": 0.1}}
    runs = [named("A", clients=3, seed=-1), named("B", seed=-1), named("A", clients=5, seed=-1, training={"lr": rate})]
    assert names(*runs) == [
        "A, clients=3",
        "B",
        "A, clients=5, training.lr=Exponential, training.lr.start=0.1",
    ]
    assert names(runs[0], runs[1]) == ["A", "B"]
    assert [run.name for run in runs] == ["A", "B", "A"]


def test_runs_that_differ_in_much_or_nothing_get_their_identity() -> None:
    many = [named("A", "0123456789abc", a=1, b=1, c=1, d=1), named("A", "fedcba9876543", a=2, b=2, c=2, d=2)]
    assert names(*many) == ["A, 0123456789", "A, fedcba9876"]
    assert names(many[0], many[0]) == ["A, 0123456789 no. 1", "A, 0123456789 no. 2"]
    assert names(named("A", seed=1), named("A", seed=2), named("A", seed=1)) == [
        "A, seed=1 no. 1",
        "A, seed=2",
        "A, seed=1 no. 2",
    ]


def test_a_page_has_no_name_twice() -> None:
    twice = render([records.make(steps=2), records.make(steps=2, seed=1)], "t")
    assert "<b>ByzantineCFL, attacked, seed=0</b>" in twice
    assert "<b>ByzantineCFL, attacked, seed=1</b>" in twice


def test_nobody_excluded_nobody_known_to_be_byzantine() -> None:
    run = records.make("FedAvg", attacked=False, steps=4)
    for client in run.summary.clients:
        alter(run, client, byzantine=None)
    text = words(render([run], "t"))
    assert "94.9 % at the end" not in text
    assert "at the end; 0 clients excluded" in text
    assert "No client was excluded in this run." in text
    assert "unknown" in text


def test_asynchronous_run_is_binned() -> None:
    run = records.make_async(3000)
    page = render([run, records.make("FedAvg", attacked=False)], "t")
    assert "One column stands for 22 steps" in words(page)
    assert "The axis is logarithmic" in words(page)
    assert "versions late, at most 16" in words(page)
    assert len(page) < 400_000


def test_lines_without_a_step_of_their_own() -> None:
    run = records.make(steps=3)
    waits = StepRecord(step=2, version=2, seconds=99.0, lost={1: "left"})
    run.history.insert(3, waits)
    assert "lost left 1 1 2 2" in words(render([run], "t"))


def test_configuration_is_yaml() -> None:
    import html

    import yaml

    run = records.make()
    block = re.search(r'<pre class="yaml"[^>]*>(.*?)</pre>', render([run], "t"), flags=re.S)
    assert block
    assert yaml.safe_load(html.unescape(block[1])) == run.config


def test_colours_follow_algorithms_and_dashes_attacks() -> None:
    assert [(s.colour, s.dashed) for s in styles(records.six(steps=2))] == [
        (c, d) for c in range(3) for d in (False, True)
    ]
    twice = [records.make(steps=2), records.make(steps=2, seed=1)]
    assert [(s.colour, s.dashed) for s in styles(twice)] == [(0, True), (1, True)]


@pytest.mark.slow
def test_size_and_time() -> None:
    render([records.make(steps=2)], "warm")
    begun = time.process_time()
    assert len(render(records.six(), "t")) < 1_500_000
    assert time.process_time() - begun < 5
    assert len(render([records.make(clients=100, steps=200)], "t")) < 2_000_000


def test_write_is_whole_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "report.html"
    run = [records.make(steps=2)]
    assert write(run, path, "first") == path
    first = path.read_text(encoding="utf-8")
    assert first == render(run, "first")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(run, path, "second")
    assert path.read_text(encoding="utf-8") == first
    assert list(path.parent.iterdir()) == [path]


def test_no_records_no_report() -> None:
    with pytest.raises(ValueError, match="at least one"):
        render([], "t")


@pytest.mark.slow
def test_import_is_light() -> None:
    code = "import sys, phalanx.report; print([m for m in ('matplotlib', 'jinja2') if m in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.slow
def test_pyplot_is_never_imported() -> None:
    assert python(f"{MAKE}; render([records.make(steps=2)], 't'); print('matplotlib.pyplot' in sys.modules)") == "False"


def test_settings_of_matplotlib_stay() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    render([records.make(steps=2)], "t")
    assert dict(matplotlib.rcParams) == before


def test_words() -> None:
    assert [percent(v) for v in (0.95, 1, None, float("nan"))] == ["95.0 %", "100.0 %", "–", "–"]
    assert [portion(v) for v in (0, 1, 0.5, 0.99986, 0.99951, 0.0002, 1e-7, 1 - 1e-17, 1e-17, None)] == [
        "0.0 %", "100.0 %", "50.0 %", "99.99 %", "99.95 %", "0.02 %", "0.00001 %", "100.0 %", "0.0 %", "–",
    ]  # fmt: skip
    assert [duration(v) for v in (4.2, 119, 600, 86400, 200000, None)] == [
        "4.2 s",
        "119.0 s",
        "10.0 min",
        "24.0 h",
        "2.3 d",
        "–",
    ]
    assert ids((0, 1, 2, 4, 5, 9)) == "0–2, 4, 5, 9"
    assert describe({"class_path": "a.b.C", "init_args": {"x": 1, "rule": {"class_path": "D"}}}) == "C(x=1, rule=D())"
    assert sentence(ClientLedger(records.make(wrong=True))).endswith(
        "6 of 6 Byzantine clients excluded, and 1 honest one"
    )
