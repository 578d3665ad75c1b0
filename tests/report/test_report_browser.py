from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import report_records as records

from phalanx.report import write

if TYPE_CHECKING:
    from playwright import sync_api

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Elements that reach past the window, other than inside a box that scrolls or hides its overflow.
TOO_WIDE = """() => [...document.body.querySelectorAll("*")].filter(e => {
    if (e.getBoundingClientRect().right <= document.documentElement.clientWidth + 1) return false;
    for (let p = e; p; p = p.parentElement) if (getComputedStyle(p).overflowX !== "visible") return false;
    return true;
}).map(e => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [*records.six(), records.make_async(1000)]
    return write(runs, tmp_path_factory.mktemp("report") / "report.html", "Digits under attack")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_in_a_browser(browser: "sync_api.Browser", report: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.wait_for_timeout(100)
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]
    assert complaints == []
    for kind, least in (("figure svg", 32), ("table", 17), ("pre.yaml", 7)):
        found = page.locator(kind).all()
        assert len(found) >= least
        assert all(one.is_visible() for one in found)
    sizes = page.evaluate("[...document.querySelectorAll('figure svg')].map(s => [s.clientWidth, s.clientHeight])")
    assert all(w > 200 and h > 80 for w, h in sizes)
    images = page.evaluate("[...document.querySelectorAll('svg image')].map(i => i.getBoundingClientRect().width)")
    assert len(images) >= 7
    assert all(images)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []
    assert page.get_by_text("cosine cluster of 3, benign cluster has 17").first.is_visible()
    page.close()


SECTIONS = (
    "Time to accuracy", "Ages of the updates", "Shares of the updates", "Tasks over time", "Verdicts on late updates",
    "Tree of clusters", "Norms of updates by cluster", "Cosines between updates",
    "Similarity across the two best parts", "Separation gaps", "Reputations", "Received and standalone accuracy",
)  # fmt: skip

# Pictures of which some text reaches past the edge, or covers another text.
CLASHES = """() => [...document.querySelectorAll("figure svg")].flatMap(svg => {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim());
    const boxes = texts.map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
    const out = boxes.filter(([, b]) => b.left < frame.left - 1 || b.right > frame.right + 1
        || b.top < frame.top - 1 || b.bottom > frame.bottom + 1).map(([t]) => ["outside", t]);
    boxes.forEach(([t, a], i) => boxes.slice(i + 1).forEach(([u, b]) => {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 3 && high > 5) out.push(["overlap", t, u]);
    }));
    return out.map(what => [svg.getAttribute("aria-label").slice(0, 40), ...what]);
})"""


@pytest.mark.parametrize("clients", [6, 100])
def test_sections_of_kinds_of_runs(browser: "sync_api.Browser", tmp_path: Path, clients: int) -> None:
    runs = [
        records.make_async(600, clients=clients),
        records.make_clusters(clients, 2 if clients == 6 else 12),
        records.make_reputations(clients),
        records.make_alone(clients),
    ]
    path = write(runs, tmp_path / "report.html", "Kinds of runs")
    for width, scheme in ((1280, "light"), (390, "dark")):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        for title in SECTIONS:
            assert page.get_by_role("heading", name=title, exact=True).first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(TOO_WIDE) == []
        if width == 1280:
            assert page.evaluate(CLASHES) == []
        page.close()


def test_colours_follow_the_scheme(browser: "sync_api.Browser", report: Path) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(report.as_uri())
        seen.add(page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill"))
        page.close()
    assert len(seen) == 2


def test_link_unfolds_and_header_sorts(browser: "sync_api.Browser", report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    assert not page.locator("#run-6").is_visible()
    page.get_by_role("link", name="ByzantineCFL, attacked").click()
    page.locator("#run-6").wait_for(state="visible")
    page.locator("table.compare").get_by_role("button", name="Final accuracy").click()
    order = page.locator("table.compare tbody th").all_inner_texts()
    assert order[0].strip() == "FedAvg, attacked"
    assert order[-1].strip() == "ByzantineCFL, attacked"
    page.close()


def test_page_reads_without_script_and_prints_unfolded(
    browser: "sync_api.Browser", report: Path, tmp_path: Path
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    page.locator("summary", has_text="ByzantineCFL, attacked").click()
    page.get_by_text("Who was excluded, when, why, and what it cost").nth(5).wait_for(state="visible")
    folded = page.pdf(path=str(tmp_path / "report.pdf"))
    assert folded.count(b"/Type /Page\n") + folded.count(b"/Type /Page ") > 10
    context.close()
