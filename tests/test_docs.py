"""All pages: examples are run, links lead somewhere, sentences are short, every rule and algorithm has a page."""

import dataclasses
import doctest
import importlib
import itertools
import pkgutil
import re
import shlex
from pathlib import Path

import jaxtyping
import pytest
import torch
import yaml

from generated import COMMAND, counted
from methods import OPTIONS, kinds
from methods import written as written_options
from phalanx import aggregators, algorithms, attacks
from phalanx.aggregators import Aggregator, PreAggregator
from phalanx.attacks import Attack
from phalanx.cli.main import main
from phalanx.core import Algorithm
from sentences import CODE, sentences, words
from tolerances import NOTHING, ROW, written

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES, METHODS = sorted((DOCS / "rules").glob("*.md")), sorted((DOCS / "methods").glob("*.md"))
OVERVIEW = DOCS / "rules.md"
WRITTEN = [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]  # all that people read
# Those of scaling.md need a cluster: tests/cluster/test_commands.py
EXAMPLES = [
    page for page in WRITTEN if "```python\n>>> " in page.read_text() and page.name != "scaling.md"
]  # has tests/cluster
BUILDING_BLOCKS = {"Aggregator", "Chain", "PreAggregator", "Selection", "Steps"}
RULES = {
    name
    for name in aggregators.__all__
    if issubclass(getattr(aggregators, name), Aggregator | PreAggregator) and name not in BUILDING_BLOCKS
} | {"DensestMajority"}  # in `aggregators.flame`: that path is in the identity of every run of Catalyst
LONGEST, MEAN = 40, 20  # words of a sentence
COMMANDS = {  # without those of files that a reader makes
    " ".join(command.split()): None
    for page in WRITTEN
    for command in re.findall(r"^ *phalanx (run [^#\n]*)", page.read_text().replace("\\\n", " "), re.MULTILINE)
    if "own_" not in command
}


def named(page: Path) -> str:
    """Return the page's path in the repository without its ending."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture
def _as_a_user_sees_it():
    """Without the checks of shapes that only tests have."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.parametrize("page", EXAMPLES, ids=named)
@pytest.mark.usefixtures("_as_a_user_sees_it")
def test_what_a_page_shows_is_what_comes_out(page):
    examples = "\n".join(blocks(page, "python"))
    assert ">>> " in examples
    test = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    report: list[str] = []
    failed = doctest.DocTestRunner(verbose=False).run(test, out=report.append).failed
    assert not failed, "".join(report)


SOURCES = ROOT / "src"
SHOWN = [path for path in sorted(SOURCES.rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.relative_to(SOURCES).as_posix())
@pytest.mark.usefixtures("_as_a_user_sees_it")
def test_what_a_docstring_shows_is_what_comes_out(path):
    """On the pages of the API, with torch imported."""
    name = ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
    report: list[str] = []
    runner, tried = doctest.DocTestRunner(verbose=False), 0
    module = importlib.import_module(name)
    names = {"torch": torch, "__name__": "examples"}  # a class of an example is none of the library's
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names):
        tried += runner.run(test, out=report.append).attempted
    assert tried
    assert not report, "".join(report)


@pytest.mark.exports
def test_every_rule_has_a_page_of_its_own():
    assert {page.stem for page in PAGES} == RULES, f"a rule has a page docs/rules/NAME.md, exported by `{COMMAND}`"
    for page in PAGES:
        text = page.read_text()
        assert text.startswith(f"# {page.stem}\n")
        for row in ("tolerates", "a weight is", "honest clients that differ", "cost", "options", "source"):
            assert f"\n| {row} | " in text, f"{page.name} does not say: {row}"
        assert "\n## What gets through\n" in text


@pytest.mark.exports
def test_tolerances_are_those_of_which_promises_are_made():
    """In the table, and on the page of each rule of which nothing is promised."""
    assert OVERVIEW.read_text() == written(OVERVIEW.read_text()), COMMAND
    for name, tolerates, _ in ROW.findall(OVERVIEW.read_text().partition("\n| before a rule |")[0]):
        says = "| tolerates | nothing is promised; " in (DOCS / "rules" / f"{name}.md").read_text()
        assert says == (tolerates == NOTHING), name


@pytest.mark.exports
def test_every_page_is_linked_from_the_overview():
    linked = set(re.findall(r"\]\(([^)#]+)", OVERVIEW.read_text()))
    assert {f"rules/{page.name}" for page in PAGES} <= linked, COMMAND
    text = (DOCS / "README.md").read_text()
    assert text == counted(text), COMMAND


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_every_link_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", CODE.sub("", page.read_text())):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_names_and_paths_exist(page):
    text = "" if page.name == "CHANGELOG.md" else page.read_text()
    for name in re.findall(r"`(phalanx(?:\.\w+)+)", text):
        pkgutil.resolve_name(name)
    paths = re.findall(r"\b((?:src|tests|benchmarks|examples|papers|checks)/[\w/]+\.(?:py|yaml))\b", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_sentences_are_short(page):
    found = [] if page.name == "CHANGELOG.md" else sentences(page.read_text())
    assert [sentence for sentence in found if words(sentence) > LONGEST] == []
    assert not found or sum(map(words, found)) / len(found) <= MEAN


def test_sentences_are_found_as_people_read_them():
    text = """# A title. No sentence
One link, [two words](x.md), and `a piece of code`
over two lines. Is Cao et al. 2021 one sentence? 3.5 is no end.

- An item
  of a list.
- Another: (it has brackets.)

| a table. | With sentences. |

    a formula. Of no words

```
a command. Or two
```
"""
    assert [words(sentence) for sentence in sentences(text)] == [9, 7, 4, 5, 4]


@pytest.mark.exports
def test_every_algorithm_has_a_page():
    """Of its own in docs/methods/, or one that the overview names."""
    exported = [getattr(algorithms, name) for name in algorithms.__all__]
    concrete = {kind.__name__ for kind in exported if issubclass(kind, Algorithm)} - {"Algorithm"}
    own = [kind.__name__ for page in METHODS for kind in kinds(page.read_text())]
    overview = (DOCS / "methods.md").read_text()
    elsewhere = overview.partition("## With a page elsewhere\n")[2].partition("\n## ")[0]
    assert len(own) == len({*own})
    there = {*own, *re.findall(r"`([A-Z]\w+)`", elsewhere)}
    assert there == concrete, f"an algorithm has a page docs/methods/NAME.md, exported by `{COMMAND}`"
    for page in METHODS:
        text = page.read_text()
        assert f"](methods/{page.name})" in overview, COMMAND
        for row in ("steps", "the server needs", "tolerates", "gets through", "source"):
            assert f"\n| {row} | " in text, f"{page.name} does not say: {row}"


@pytest.mark.exports
@pytest.mark.parametrize("page", METHODS, ids=named)
def test_options_of_methods_are_those_of_the_code(page):
    text = page.read_text()
    assert text == written_options(text), COMMAND
    assert bool(OPTIONS.search(text)) == any(dataclasses.fields(kind) for kind in kinds(text))


def test_attacks_that_are_named_exist():
    known = {name for name in attacks.__all__ if issubclass(getattr(attacks, name), Attack)} - {"Attack", "Colluding"}
    for page in PAGES:
        section = page.read_text().split("## What gets through")[1].split("## ")[0]
        named = set(re.findall(r"`([A-Z]\w+)`", section)) - {"InfeasibleError"}
        assert named <= known, f"{page.name}: {sorted(named - known)}"
        assert named, f"{page.name} names no attack"


def understood(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--print_config"])
    assert not stop.value.code
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    arguments = shlex.split(command)
    chosen = understood(arguments, capsys)
    for name, value in itertools.pairwise(arguments):
        if name in ("--algorithm", "--attack", "--partition") and value != "null":
            assert chosen[name[2:]]["class_path"].endswith(value)


def test_the_file_with_a_chain_is_understood(tmp_path, capsys):
    (text,) = blocks(OVERVIEW, "yaml")
    (tmp_path / "chain.yaml").write_text(text)
    chosen = understood(["run", "--config", str(tmp_path / "chain.yaml")], capsys)
    assert chosen["algorithm"]["init_args"]["aggregate"]["class_path"] == "phalanx.aggregators.Chain"


def test_ceilings_are_those_of_the_code():
    rows = re.findall(
        r"^\| .* \| ([\d,]+) \| `([\w.]+)\.(\w+)` \|$", (DOCS / "threat-model.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 10
    for said, module, name in rows:
        assert getattr(importlib.import_module(module), name) == int(said.replace(",", "")), f"{module}.{name}"
