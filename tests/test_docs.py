"""Pages of rules, threats, weights and clustering: examples are run, every rule has a page, links lead somewhere."""

import doctest
import re
import shlex
from pathlib import Path

import jaxtyping
import pytest
import yaml

from phalanx import aggregators, attacks
from phalanx.aggregators import Aggregator, PreAggregator
from phalanx.attacks import Attack
from phalanx.cli.main import main
from tolerances import NOTHING, ROW, written

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "rules").glob("*.md"))
OVERVIEW, THREATS, WEIGHTING = DOCS / "rules.md", DOCS / "threat-model.md", DOCS / "weighting.md"
CLUSTERING, CLUSTERED, REPRODUCTION = (DOCS / f"{name}.md" for name in ("clustering", "clustered-fl", "reproduction"))
CATALYST = DOCS / "catalyst.md"
RFFL_PAGE, FAIRNESS = DOCS / "rffl.md", DOCS / "fairness.md"
RIVALS = DOCS / "asynchronous-rules.md"
ASYNCHRONY = DOCS / "asynchrony.md"
FAIR_RIVALS = DOCS / "fair-rivals.md"
CLUSTER_RIVALS, ROBUST_RIVALS = DOCS / "cluster-rivals.md", DOCS / "robust-rivals.md"
PRIVACY, OPTIMIZERS = DOCS / "privacy.md", DOCS / "optimizers.md"
TRAINING = DOCS / "training.md"
BYZANTINE_CFL = DOCS / "byzantine-cfl.md"
ATTACKERS, COMING_FROM = DOCS / "attackers.md", DOCS / "coming-from.md"
BUILDING_BLOCKS = {"Aggregator", "Chain", "PreAggregator", "Selection", "Steps"}
RULES = {
    name
    for name in aggregators.__all__
    if issubclass(getattr(aggregators, name), Aggregator | PreAggregator) and name not in BUILDING_BLOCKS
} | {"DensestMajority"}  # in `aggregators.flame`: that path is in the identity of every run of Catalyst
COMMANDS = re.findall(r"^phalanx (run .*)$", OVERVIEW.read_text(), re.MULTILINE)

each_page = pytest.mark.parametrize(
    "page",
    [
        OVERVIEW,
        ATTACKERS,
        COMING_FROM,
        WEIGHTING,
        CLUSTERING,
        CLUSTERED,
        BYZANTINE_CFL,
        CATALYST,
        RFFL_PAGE,
        FAIRNESS,
        RIVALS,
        CLUSTER_RIVALS,
        ROBUST_RIVALS,
        FAIR_RIVALS,
        ASYNCHRONY,
        PRIVACY,
        OPTIMIZERS,
        TRAINING,
        *PAGES,
    ],
    ids=lambda page: page.stem,
)


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


@each_page
@pytest.mark.usefixtures("_as_a_user_sees_it")
def test_what_a_page_shows_is_what_comes_out(page):
    examples = "\n".join(blocks(page, "python"))
    assert ">>> " in examples
    test = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    report: list[str] = []
    failed = doctest.DocTestRunner(verbose=False).run(test, out=report.append).failed
    assert not failed, "".join(report)


def test_every_rule_has_a_page_of_its_own():
    assert {page.stem for page in PAGES} == RULES
    for page in PAGES:
        text = page.read_text()
        assert text.startswith(f"# {page.stem}\n")
        for row in ("tolerates", "a weight is", "honest clients that differ", "cost", "options", "source"):
            assert f"\n| {row} | " in text, f"{page.name} does not say: {row}"
        assert "\n## What gets through\n" in text


def test_tolerances_are_those_of_which_promises_are_made():
    """In the table, and on the page of each rule of which nothing is promised."""
    assert OVERVIEW.read_text() == written(OVERVIEW.read_text())
    for name, tolerates, _ in ROW.findall(OVERVIEW.read_text().partition("\n| before a rule |")[0]):
        says = "| tolerates | nothing is promised; " in (DOCS / "rules" / f"{name}.md").read_text()
        assert says == (tolerates == NOTHING), name


def test_every_page_is_linked_from_the_overview():
    assert {f"rules/{page.name}" for page in PAGES} <= set(re.findall(r"\]\(([^)#]+)", OVERVIEW.read_text()))


LINKED = [
    OVERVIEW,
    ATTACKERS,
    COMING_FROM,
    THREATS,
    WEIGHTING,
    CLUSTERING,
    CLUSTERED,
    BYZANTINE_CFL,
    REPRODUCTION,
    CATALYST,
    RFFL_PAGE,
    FAIRNESS,
    RIVALS,
    CLUSTER_RIVALS,
    ROBUST_RIVALS,
    FAIR_RIVALS,
    ASYNCHRONY,
    PRIVACY,
    *PAGES,
]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


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
    return yaml.safe_load(capsys.readouterr().out)["algorithm"]["init_args"]["aggregate"]["class_path"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command, capsys):
    chosen = understood(shlex.split(command), capsys)
    assert chosen == "phalanx.aggregators." + re.search(r"--algorithm.aggregate (\w+)", command)[1]


def test_the_file_with_a_chain_is_understood(tmp_path, capsys):
    (text,) = blocks(OVERVIEW, "yaml")
    (tmp_path / "chain.yaml").write_text(text)
    assert understood(["run", "--config", str(tmp_path / "chain.yaml")], capsys) == "phalanx.aggregators.Chain"
