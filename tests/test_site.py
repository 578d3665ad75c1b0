"""The site: it builds without a warning, and the figures of its picture are the library's."""

import itertools
import re
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import numpy as np
import pytest
import torch

from phalanx.aggregators import GeometricMedian, Krum, Mean, Median
from phalanx.errors import InfeasibleError
from phalanx.weighting import attacker_share
from phalanx.weighting.truncation import truncation_bound

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "assets" / "attackers.js"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed")
@pytest.mark.browser
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path, browser):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    pages = {page.relative_to(tmp_path / "site").as_posix() for page in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "attacks/index.html", "api/aggregators/index.html", "rules/Krum/index.html"} <= pages
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text, page
        assert "fonts.googleapis" not in text, page
    listed = (tmp_path / "site" / "llms.txt").read_text()
    assert "- [Attacks](attacks/): The attacks of Byzantine clients: " in listed
    assert listed.count("\n- [") >= len(list((ROOT / "docs").glob("*.md")))
    entries = re.findall(r"^- \[(.+?)\]\((.*?)\): ", listed, re.MULTILINE)
    assert all((tmp_path / "site" / place / "index.html").is_file() for _, place in entries), entries
    assert ("Four hospitals, from kit to ONNX", "tutorials/federation/") in entries
    home = (tmp_path / "site" / "index.html").read_text()
    assert not re.findall(r">[\w/-]+\.md</a>", home), "pages have titles"
    assert "MultiKrum" in (tmp_path / "site" / "api" / "aggregators" / "index.html").read_text()
    assert [*broken_links(tmp_path / "site")] == []
    with serving(tmp_path / "site") as home:
        for path in ("", "attacks/", "api/aggregators/"):
            for width, scheme in itertools.product((1280, 390), ("light", "dark")):
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                asked, errors = [], []
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
                page.goto(home + path)
                page.wait_for_timeout(300)
                assert [url for url in asked if not url.startswith((home, "data:", "blob:"))] == []
                assert errors == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                page.close()


def broken_links(site):
    """Links between pages, and into the repository, that lead nowhere."""
    texts = {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    anchors = {page: {*re.findall(r'\b(?:id|name)="([^"]*)"', text)} for page, text in texts.items()}
    for page, text in texts.items():
        for link in {*re.findall(r'(?:href|src)="([^"]*)"', text)}:
            place, _, anchor = unquote(unescape(link)).partition("#")
            if inside := re.match(r"https://github\.com/phalanx-fl/phalanx/(?:blob|tree)/main/(.*)", place):
                target = ROOT / inside[1]
            elif re.match(r"\w+:", place):
                continue
            else:
                target = (page.parent / place).resolve() if place else page
                target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (anchor and target in anchors and anchor not in anchors[target]):
                yield page.relative_to(site).as_posix(), link


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "index.html").write_text('<a id="x" href="#x"></a><a href="#y"></a><a href="none/"></a>')
    assert {link for _, link in broken_links(tmp_path)} == {"#y", "none/"}


@pytest.mark.slow
def test_zensical_builds_the_same_pages_without_a_warning(tmp_path):
    subprocess.run([sys.executable, str(ROOT / "docs" / "assets" / "hook.py"), str(tmp_path)], cwd=ROOT, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "-f", str(tmp_path / "zensical.yml")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "griffe:" not in done.stdout + done.stderr
    pages = [page.relative_to(tmp_path / "docs").with_suffix("") for page in (tmp_path / "docs").rglob("*.md")]
    assert len(pages) > 130
    for page in pages:
        folder = page.parent if page.name == "README" else page
        assert (tmp_path / "zensical" / folder / "index.html").is_file(), page
    assert "&gt;&gt;&gt;" in (tmp_path / "zensical" / "api" / "fairness" / "index.html").read_text()
    assert [*broken_links(tmp_path / "zensical")] == []
    assert (tmp_path / "zensical" / "llms.txt").read_text() == (tmp_path / "docs" / "llms.txt").read_text()


@contextmanager
def serving(folder):
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def browser_page(browser):
    page = browser.new_page()
    page.set_content('<!doctype html><div id="attackers-picture"></div>')
    page.add_script_tag(content=SCRIPT.read_text())
    yield page
    page.close()


def cases():
    draw = np.random.default_rng(5)
    for k in range(60):
        m = int(draw.integers(5, 21))
        points = draw.normal(size=(m, 2)).round(int(draw.integers(1, 4)))  # rounding makes equal entries
        weights = draw.integers(1, 200, m) if k % 2 else np.full(m, 7)
        yield points.tolist(), weights.tolist(), int(draw.integers(0, (m - 3) // 2 + 1))


@pytest.mark.browser
@pytest.mark.parametrize(("points", "weights", "f"), list(cases()))
def test_rules_of_the_picture_are_those_of_the_library(browser_page, points, weights, f):
    rows, own = torch.tensor(points, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    found = browser_page.evaluate(
        "([p, w, f]) => [Rules.mean(p, w), Rules.median(p, w), Rules.krum(p, w, f), Rules.geometricMedian(p, w)]",
        [points, weights, f],
    )
    expected = [Mean()(rows, own), Median()(rows, own), Krum(f)(rows, own), GeometricMedian(1e-9)(rows, own)]
    for ours, theirs, tolerance in zip(found, expected, (1e-9, 1e-9, 1e-9, 1e-5), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=tolerance)
    bound = Median().influence(rows, own, f=f)
    reach = browser_page.evaluate("([p, w, f]) => Rules.influenceOfMedian(p, w, f)", [points, weights, f])
    assert reach == pytest.approx(bound.value) if bound.kind != "unbounded" else np.isinf(reach)


@pytest.mark.browser
def test_truncation_of_the_picture_is_that_of_the_library(browser_page):
    draw = np.random.default_rng(6)
    for _ in range(40):
        sizes = draw.integers(1, 10_000, int(draw.integers(4, 21))).tolist()
        t = int(draw.integers(1, max(2, len(sizes) // 3)))
        found = browser_page.evaluate("([s, t]) => Rules.truncationBound(s, t, 0.45)", [sizes, t])
        try:
            expected = truncation_bound(dict(enumerate(sizes)), t / len(sizes), 0.45)
        except InfeasibleError:
            expected = None
        assert found == expected
        share = browser_page.evaluate("([s, t]) => Rules.share(s, t)", [sizes, t])
        assert share == pytest.approx(attacker_share(dict(enumerate(sizes)), t, len(sizes)))


@pytest.mark.browser
def test_the_picture_follows_the_reader(browser_page):
    before = browser_page.evaluate("window.attackersPicture.found.mean")
    slider = browser_page.locator('input[data-key="size"]')
    slider.fill("100")
    grown = browser_page.evaluate("window.attackersPicture")
    assert grown["found"]["mean"] != before
    assert grown["radius"] is None or not np.isfinite(grown["radius"])  # four hold most of the weight
    browser_page.locator('input[data-key="truncate"]').check()
    safe = browser_page.evaluate("window.attackersPicture")
    assert safe["bound"] is not None
    assert "45 % of the weight" in browser_page.locator(".attackers-said").inner_text()
    handle = browser_page.locator('[data-client="0"]')
    handle.focus()
    handle.press("ArrowRight")
    assert browser_page.evaluate("window.attackersPicture.points[0]") != safe["points"][0]


@pytest.mark.browser
def test_the_page_says_what_the_picture_shows(browser):
    page = browser.new_page()
    page.set_content('<!doctype html><div id="attackers-picture"></div>')
    page.add_script_tag(content=SCRIPT.read_text())
    told = " ".join((ROOT / "docs" / "attacks.md").read_text().split())

    def shows(bad, size, truncated, edge, *said):
        page.locator('input[data-key="bad"]').fill(str(bad))
        page.locator('input[data-key="size"]').fill(str(size))
        page.locator('input[data-key="truncate"]').set_checked(truncated)
        for key, times in edge:
            for _ in range(times):
                page.locator('[data-client="0"]').press(key)
        cells = page.locator(".attackers-table tbody td:last-child").all_inner_texts()
        share = re.search(r"hold (\d+ %)", page.locator(".attackers-said").inner_text())[1]
        assert all(text in told for text in said)
        return dict(zip(("mean", "median", "krum", "geometric"), cells, strict=True)) | {"share": share}

    asis = shows(
        4, 1, False, (), "1.64 from the cross; the other rules are at most 0.46 from it", "attackers hold 26 %"
    )
    assert (asis["mean"], asis["share"], max(asis["median"], asis["krum"], asis["geometric"])) == (
        "1.64",
        "26 %",
        "0.46",
    )
    lied = shows(4, 100, False, (), "They hold 97 % of the weight", "back from 6.58 to 1.11")
    assert (lied["median"], lied["share"]) == ("6.58", "97 %")
    cut = shows(4, 100, True, ())
    assert (cut["median"], cut["share"]) == ("1.11", "45 %")
    nine = shows(9, 1, False, (), "They hold 49 % of the weight: the median is 1.33 away, the mean 3.06", "no bound")
    assert (nine["median"], nine["mean"], nine["share"]) == ("1.33", "3.06", "49 %")
    assert "no bound" in page.locator(".attackers-said").inner_text()
    edge = shows(4, 1, False, (("ArrowRight", 17), ("ArrowUp", 15)), "The median stays 0.46 away")
    assert edge["median"] == "0.46"
    near = shows(4, 1, False, (("ArrowRight", 2), ("ArrowUp", 2)), "Krum goes from 0.18 to 0.59")
    assert (edge["krum"], near["krum"]) == ("0.18", "0.59")
    page.close()


def broken(text):
    """Yield what Python-Markdown takes for no part of a list: it wants four columns below an item, and 1, 2, 3."""
    fenced, number, before, inside, below = "", 0, "", False, False
    for line in text.splitlines():
        mark = re.match(r"( *)(```|~~~)", line)
        if not mark and fenced:
            continue
        indent = len(line) - len(line.lstrip())
        item = re.match(r"(?:([-*+])|(\d+)\.) ", line)
        if item:
            if before.strip() and (below or not inside) and not before.startswith("<!--"):
                yield line  # no empty line before it
            if item[2]:
                if int(item[2]) != number + 1:
                    yield line
                number = int(item[2])
            inside, below = True, False
        elif line.strip() and not before.strip():
            below = inside and indent > 0  # a paragraph of the item
            if inside and 0 < indent < 4:
                yield line
            if not indent:
                inside, number = False, 0
        if mark:
            fenced = "" if fenced else mark[2]
        before = line


def test_lists_are_as_the_site_reads_them():
    assert [*broken("1. Do\n\n   this\n\n2. and")] == ["   this"]
    assert [*broken("1. Do\n\n    this\n2. and\n\nthat\n\n3. so")] == ["2. and", "3. so"]
    found = {page.relative_to(ROOT).as_posix(): [*broken(page.read_text())] for page in (ROOT / "docs").rglob("*.md")}
    assert {page: lines for page, lines in found.items() if lines} == {}
