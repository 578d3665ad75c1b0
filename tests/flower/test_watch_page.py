"""`phalanx flower watch --page`: a page that says what the live view says, is kept up to date, and runs nothing."""

import html
import io
import re
from contextlib import ExitStack, closing

import msgspec
import pytest
from rich.console import Console

from phalanx.cli.main import main
from phalanx.core import ClientReport, Verdict
from phalanx.engine.suspicion import Conduct
from phalanx.flower import live
from phalanx.flower.status import ClientStatus, RunStatus
from phalanx.flower.watch_page import AGAIN, WatchPage
from phalanx.runs.record import as_lines
from phalanx.runs.schema import PromiseRecord, StepRecord, to_json
from phalanx.training.evaluation import Metrics

HOSTILE = 'Ulm <script>alert(1)</script> & "co" \u202e\'<img src=x onerror=alert(2)>'
OUTLYING = "its update is 32 times as long as those of others"
STATUS = RunStatus(
    phase="running",
    step=3,
    version=3,
    seconds=9.0,
    promise=PromiseRecord(f=1, clients=4, text=("Tolerates any 1 of 4 clients.", "Accuracy is not promised.")),
    notice="outage: 2 of 4 clients are silent; nobody is charged",
    clients={
        0: ClientStatus(name=HOSTILE, standing="here", slow="its answers take 41 s, 4.1 times the 10 s of others"),
        1: ClientStatus(name="Basel", standing="suspended", why="3 strikes", since="2026-11-27T06:30:00Z",
                        until="2026-11-27T07:00:00Z"),
        2: ClientStatus(name="Universitätsklinikum Graz, Abteilung für Kardiologie", standing="missing"),
        3: ClientStatus(name="Lyon", standing="here"),
    },
)  # fmt: skip
HISTORY = [
    StepRecord(
        step=step,
        version=step,
        seconds=4.5 * step,
        metrics=Metrics(accuracy=0.6 + step / 100),
        verdicts={0: Verdict(True, 1.0, 0.5), 1: Verdict(False, 0.0, -0.1, "far away"), 3: Verdict(True, 1.0, 0.5)},
        lost={2: "no answer within 60 s"},
        conduct={3: Conduct(outlying=OUTLYING, updates=step, evidence=518.0, since=3 if step == 3 else None)},
        reports={0: ClientReport(59, 0.5, 0.9 if step < 3 else 0.4)},
    )
    for step in range(1, 4)
]


@pytest.fixture
def kept():
    """Keeps the page of a run."""
    with ExitStack() as stack:
        yield lambda folder, path: stack.enter_context(closing(WatchPage(folder, path)))


@pytest.fixture
def run(tmp_path):
    """The folder of a run that goes on."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    (folder / "history.jsonl").write_bytes(as_lines(HISTORY))
    (folder / "status.json").write_bytes(to_json(STATUS))
    return folder


def text_of(path):
    """The text of a page, without its markup and its style."""
    page = re.sub(r"(?s)<style>.*?</style>", "", path.read_text())
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def words(text):
    """The words of a picture of the terminal; rules and the signs of cut lines are none."""
    return {word for word in text.split() if not set(word) <= {*"─·-"}}


def test_it_says_all_that_the_live_view_says_and_each_remedy_and_reason_in_full(kept, run, tmp_path):
    kept(run, tmp_path / "page.html")
    page = text_of(tmp_path / "page.html")
    console = Console(file=io.StringIO(), width=1000, height=60)
    console.print(live.view(live.status(run), live.lines(run), (1000, 60)))
    said = console.file.getvalue().lower().replace("`", "").replace("@", "")  # the page has more room for both
    assert words(said) <= {*page.lower().split()}
    assert "<code>phalanx export</code>" in (tmp_path / "page.html").read_text()
    assert re.search(r"used in step \d+, score ", page)
    for text in (
        *STATUS.promise.text, STATUS.notice, OUTLYING, "fallen: reports an accuracy of 40.0 % in step 3",
        "suspicious: 3",
        "suspended until 2026-11-27T07:00:00Z: 3 strikes", "slow: its answers take 41 s", "Basel: suspended.",
        "no answer within 60 s", "63.0 %",
        *(live.REMEDIES[trouble].replace("`", "") for trouble in ("suspicious", "fallen", "suspended", "missing")),
    ):  # fmt: skip
        assert text in page, text


def test_what_clients_write_is_text_and_nothing_is_run_or_loaded(kept, run, tmp_path):
    kept(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert {*re.findall(r"<(script|img|iframe|object|form|base)\b", page)} == set()
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert "http" not in re.sub(r"http-equiv", "", page)
    assert "\u202e" not in page
    assert HOSTILE.replace("\u202e", r"\u202e") in text_of(tmp_path / "page.html")


def test_by_command_it_is_kept_until_the_run_is_over_and_then_says_how(run, tmp_path, monkeypatch, capsys):
    page, seen = tmp_path / "pages" / "page.html", []

    def look(_):
        seen.append(page.read_text())
        over = {"phase": "over", "ending": "failed", "why": "RuntimeError: no <disk>"} if len(seen) == 3 else {}
        with (run / "history.jsonl").open("ab") as file:
            file.write(as_lines([msgspec.structs.replace(HISTORY[-1], step=3 + len(seen))]))
        (run / "status.json").write_bytes(to_json(msgspec.structs.replace(STATUS, **over)))

    monkeypatch.setattr(live.time, "sleep", look)
    assert main(["flower", "watch", str(run), "--page", str(page)]) == 1
    assert [f"<li>step {k}</li>" in text for k, text in zip((3, 4, 5), seen, strict=True)] == [True] * 3
    assert all(f'http-equiv="refresh" content="{AGAIN}"' in text for text in seen)
    assert "refresh" not in page.read_text()
    assert "The run failed: RuntimeError: no <disk>" in text_of(page)
    assert STATUS.notice not in text_of(page), "it held while the run went on"
    assert "The run failed: RuntimeError: no <disk>" in capsys.readouterr().out


def test_it_is_written_again_where_something_has_changed_and_as_a_sign_of_life(kept, run, tmp_path, monkeypatch):
    written, now = [], [100.0]
    monkeypatch.setattr("phalanx.flower.watch_page.put", lambda text, path: written.append(text))
    monkeypatch.setattr("phalanx.flower.watch_page.time.monotonic", lambda: now[0])
    page = kept(run, tmp_path / "page.html")
    for _ in range(5):
        assert not page.look()
    assert len(written) == 1
    now[0] += 10.0
    page.look()
    assert len(written) == 2
    (run / "history.jsonl").write_bytes(as_lines(HISTORY[:2]))
    page.look()
    assert "<li>step 2</li>" in written[2]


def test_before_there_is_a_folder_it_says_so_and_a_page_that_cannot_be_is_an_error(kept, tmp_path, capsys):
    kept(tmp_path / "none", tmp_path / "page.html")
    assert "no round yet" in text_of(tmp_path / "page.html")
    (tmp_path / "file").write_text("")
    assert main(["flower", "watch", str(tmp_path), "--page", str(tmp_path / "file" / "page.html")]) == 2
    assert str(tmp_path / "file") in "".join(capsys.readouterr().err.split())


def test_a_page_that_cannot_be_written_any_more_is_said_once(kept, run, tmp_path, monkeypatch, caplog):
    page = kept(run, tmp_path / "page.html")

    def full(text, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phalanx.flower.watch_page.put", full)
    (run / "history.jsonl").write_bytes(as_lines(HISTORY[:2]))
    assert [page.look(), page.look()] == [False, False]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{tmp_path / 'page.html'} cannot be written: ")


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_it_fits_loads_itself_again_and_runs_nothing(kept, browser, run, tmp_path, width, scheme):
    path = tmp_path / "page.html"
    keeper = kept(run, path)
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(path.as_uri())
    assert page.get_by_text(HOSTILE.split()[1]).first.is_visible(), "a name that would be a script is text"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cells = page.locator(".clients td:not(:empty), .clients tbody th, .plain li").evaluate_all(
        """all => all.map(e => [e.getBoundingClientRect().left, e.getBoundingClientRect().right,
                                parseFloat(getComputedStyle(e).fontSize)])"""
    )  # at once: the page is loaded again every few seconds
    assert len(cells) >= 24
    assert all(left >= 0 and right <= width and size >= 13 for left, right, size in cells)
    (run / "history.jsonl").write_bytes(as_lines([*HISTORY, msgspec.structs.replace(HISTORY[-1], step=4)]))
    keeper.look()
    page.get_by_text("step 4", exact=True).wait_for(timeout=4000.0 * AGAIN)
    assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}
    assert complaints == []
    page.close()
