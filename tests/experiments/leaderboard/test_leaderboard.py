"""The leaderboard: all defences are there, the search finds planted weaknesses, records survive, the page is theirs."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from phalanx import aggregators, algorithms
from phalanx.aggregators import Aggregator
from phalanx.attacks import ALIE, MinMax, Rescale, Scheduled, SignFlip, Together
from phalanx.cli.main import main
from phalanx.core import Algorithm, InfeasibleError
from phalanx.experiments.carrying_out import Means, carried_out, stored
from phalanx.experiments.grid import applied
from phalanx.experiments.leaderboard import DEFENCES, TIERS, Tier
from phalanx.experiments.leaderboard.board import Board, page, short, table
from phalanx.experiments.leaderboard.defences import LISTED, Defence, plain
from phalanx.experiments.leaderboard.ranking import expected, ranked
from phalanx.experiments.line_store import LineStore
from phalanx.experiments.trace import Trace
from phalanx.experiments.worst import WorstOf
from phalanx.runs.lock import exclusive
from phalanx.runs.provenance import NUMERICS, Provenance
from phalanx.weighting import Ignore

ROOT = Path(__file__).parents[3]
DIGITS = TIERS["digits"]
NO_DEFENCES = {  # wrappers that add something else, their bases, and optimizers of the server like FedAdam
    *("Permuted", "Rotated", "LowRankProducts", "Private", "Rewarded", "FedAvgM", "FedAdagrad", "FedYogi"),
}
MADE = Provenance(phalanx="0.1.0", numerics=NUMERICS, commit="c" * 40)
BY_NAME = {one.name: one for one in DEFENCES}
SMALL = replace(
    DIGITS,
    attackers=(4,),
    heterogeneity={"IID": {}},
    search=WorstOf(
        {"flip": SignFlip(), "little": ALIE()}, (1.0, -3.0), (2,), (10.0,), budget=2, seeds=(2000, 2001), refined=1
    ),
    seeds=(0, 1),
)


def parts(value):
    """The names of the classes in a value, wrapped ones included."""
    found = {type(value).__name__}
    for inner in vars(value).values() if hasattr(value, "__dict__") else ():
        if isinstance(inner, Aggregator | Algorithm) or type(inner).__module__.startswith("phalanx.aggregators"):
            found |= parts(inner)
        elif isinstance(inner, tuple):
            found |= {name for one in inner for name in parts(one)}
    return found


def plan(defence, setting=0, where="IID", f=4, attack=None, seed=0):
    derived = DIGITS.derived(defence, defence.settings[setting])
    fields = {**DIGITS.heterogeneity[where], "byzantine": f, "attack": attack or SignFlip(), "defence": derived}
    return applied(replace(DIGITS.base, seed=seed), fields)


@pytest.mark.exports
def test_every_rule_and_algorithm_is_a_defence_with_equally_many_settings():
    there = {name for one in DEFENCES for name in parts(plan(one, f=one.most or 4).algorithm)}
    rules = {name for name in aggregators.__all__ if issubclass(getattr(aggregators, name), Aggregator)}
    known = {
        name
        for name in algorithms.__all__
        if isinstance(kind := getattr(algorithms, name), type) and issubclass(kind, Algorithm)
    }
    line = "write a line in LISTED of phalanx/experiments/leaderboard/defences.py"
    assert rules - {"Aggregator", "Chain", "Selection"} <= there, line
    assert known - {"Algorithm"} - NO_DEFENCES <= there, f"{line}, or name a wrapper that is no defence in NO_DEFENCES"
    assert {len(one.settings) for one in DEFENCES} == {4}
    assert len(BY_NAME) == len(DEFENCES)


def test_a_rule_that_needs_no_more_than_the_attackers_is_a_defence_by_itself(monkeypatch):
    @dataclass(frozen=True)
    class Added(aggregators.Aggregator):
        f: int
        power: float = 2.0

        def aggregate(self, points):
            return points.vectors[0]

    assert "Added" not in BY_NAME
    monkeypatch.setattr(aggregators, "Added", Added, raising=False)
    monkeypatch.setattr(aggregators, "__all__", [*aggregators.__all__, "Added"])
    (added,) = {one.name: one for one in plain(LISTED) if one.name not in BY_NAME}.values()
    assert plan(added, f=6).algorithm.aggregate == Added(6)


def test_an_algorithm_that_needs_no_more_is_one_as_well(monkeypatch):
    @dataclass(frozen=True)
    class Added(algorithms.FedAvg):
        f: int = 1

    monkeypatch.setattr(algorithms, "Added", Added, raising=False)
    monkeypatch.setattr(algorithms, "__all__", [*algorithms.__all__, "Added"])
    (added,) = {one.name: one for one in plain(LISTED) if one.name not in BY_NAME}.values()
    assert plan(added, f=6).algorithm == Added(preprocess=Ignore(), f=6)


def test_a_defence_knows_the_number_of_attackers_and_an_honest_client():
    assert plan(BY_NAME["Krum"], f=6).algorithm.aggregate == aggregators.Krum(6)
    assert plan(BY_NAME["TrimmedMean"], f=8).algorithm.aggregate == aggregators.TrimmedMean(0.4)
    for seed in range(4):
        trusting = plan(BY_NAME["MoNNA, trusting an honest client"], seed=seed)
        assert trusting.algorithm.aggregate.reference not in trusting.attackers()
    alone = plan(BY_NAME["Krum"], where="groups", f=0)
    assert alone.algorithm.aggregate == aggregators.Krum(4)
    assert alone.attack is None
    with pytest.raises(ValueError, match="too slow"):
        plan(BY_NAME["SMEA"], f=4)


def test_asynchronous_defences_get_a_clock_and_ifca_whole_iterations():
    runs = {one.name: plan(one, f=one.most or 4) for one in DEFENCES}
    clocked = {name for name, run in runs.items() if run.until.seconds is not None}
    assert clocked == {name for name, run in runs.items() if not run.algorithm.traits.synchronous}
    assert {"Quorum(AsyncFilter)", "Quorum(FedAvg(Median))"} <= clocked
    assert {name: run.until.steps for name, run in runs.items() if run.until.steps not in (None, DIGITS.rounds)} == {
        "IFCA(4, Median)": 4 * DIGITS.rounds,
        "ServerAlone": 10 * DIGITS.rounds,
    }


# The search


def traced(one, accuracy, error="", excluded=0):
    """A record of a run with an accuracy, as a store of lines keeps it."""
    made = Trace.of_failure(one, error, 1.0)
    curves = {"accuracy": (accuracy,), "honest_excluded": (excluded,)}
    return replace(made, curves=curves, provenance=MADE, **({} if error else {"status": "finished", "error": None}))


class Planted:
    """Records by a rule of the test, in place of runs."""

    def __init__(self, accuracy, failing=()):
        self.accuracy, self.failing, self.seen = accuracy, failing, []

    def __call__(self, planned):
        self.seen += (plans := [one.plan for one in planned])
        return {
            one.identity: traced(one, None, "it failed")
            if one.attack in self.failing
            else traced(one, self.accuracy(one), excluded=2)
            for one in plans
        }


def weak(one):
    """Accuracy: a learning rate of 1 is best, the tripled and turned ALIE is worst, and seed 2000 makes a flip bad."""
    if one.attack is None:
        return 0.9 if one.training.lr == 1.0 else 0.8
    if one.attack == Together(ALIE(), Rescale(-3.0)):
        return 0.2
    if one.attack == ALIE():
        return 0.5
    return 0.7 + 0.001 * one.seed if one.attack == SignFlip() and one.seed < 2000 else 0.8


def test_the_search_finds_the_planted_weakness_and_measures_it_on_fresh_seeds():
    carried = Planted(weak)
    one = ranked(SMALL, BY_NAME["Median"], carried)
    cell = one.cells["IID", 4]
    assert one.setting.rate == 1.0
    assert cell.named.attack == ALIE()
    assert cell.found.attack == Together(ALIE(), Rescale(-3.0))
    assert cell.worst is cell.found
    assert cell.beaten
    assert cell.worst.accuracy.mean == pytest.approx(0.2)
    assert one.cells["IID", 0].worst.accuracy.mean == pytest.approx(0.9)
    assert [plan.seed for plan in carried.seen if plan.attack == cell.found.attack] == [2000, 2001, 0, 1]
    assert len({plan.identity for plan in carried.seen}) <= expected(SMALL, one.defence)
    tuning = [plan for plan in carried.seen if plan.seed == DIGITS.tuning_seed]
    assert {type(plan.data).__name__ for plan in tuning} == {"HeldOut"}
    assert {type(plan.data).__name__ for plan in carried.seen if plan not in tuning} == {"Digits"}


def test_an_attack_with_which_runs_fail_is_no_candidate_and_a_refusal_is_shown():
    one = ranked(SMALL, BY_NAME["Median"], Planted(weak, (Together(ALIE(), Rescale(-3.0)),)))
    assert one.cells["IID", 4].worst.attack == ALIE()
    refused = ranked(replace(SMALL, attackers=(4, 6)), BY_NAME["Bulyan"], Planted(weak)).cells["IID", 6]
    assert "4f + 3" in refused.refused
    assert refused.worst is None
    failed = ranked(SMALL, BY_NAME["Median"], Planted(lambda one: None if one.byzantine else 0.9))
    assert failed.cells["IID", 4].worst is None
    assert failed.cells["IID", 4].error


def test_lies_about_sizes_and_timing_are_tried_where_they_can_matter():
    def tried(name):
        carried = Planted(weak)
        ranked(SMALL, BY_NAME[name], carried)
        return {short(plan.attack) for plan in carried.seen}

    assert not {"ALIE, size × 10", "ALIE + HoldBack"} & tried("Median")
    assert "ALIE, size × 10" in tried("FedAvg, reported sizes")
    assert {"ALIE + HoldBack", "ALIE + Linger", "ALIE + Flood"} <= tried("FedAsync")


def test_attacks_have_short_names():
    assert short(None) == "none"
    assert short(Together(MinMax(), Rescale(-0.3))) == "MinMax × -0.3"
    assert short(Scheduled(Together(MinMax(), SignFlip()), every=2)) == "(MinMax + SignFlip) every 2 versions"


# The records


FIRST, SECOND = plan(BY_NAME["Mean"]), plan(BY_NAME["Median"])


def keep(store, one, accuracy, error="", made=MADE):
    store.keep(replace(traced(one, accuracy, error, excluded=1), provenance=made), 0.25)


def test_records_survive_a_kill_and_damage_is_refused(tmp_path):
    path = tmp_path / "digits.jsonl"
    store = LineStore(path)
    keep(store, FIRST, 0.5)
    keep(store, SECOND, None, "it failed")
    whole = path.read_text()
    path.write_text(whole + '["cccc", 5, 0.')
    again = LineStore(path)
    assert path.read_text() == whole
    (good, _), (bad, _) = again.find(FIRST), again.find(SECOND)
    assert (good.identity, good.final(), good.honest_excluded, good.wall_seconds) == (FIRST.identity, 0.5, 1, 0.25)
    assert (bad.failed, bad.error, bad.final(), bad.provenance) == (True, "it failed", None, MADE)
    assert again.seconds() == 0.5
    third = plan(BY_NAME["Krum"])
    keep(again, third, 0.1, made=replace(MADE, commit="d" * 40))
    assert LineStore(path).find(third)[0].provenance.commit == "d" * 40
    path.write_text(whole.replace("0.25,0]", "0.25]"))
    with pytest.raises(ValueError, match=r"line 2, is no record"):
        LineStore(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, [1]),
        (0, "short"),
        (2, "0.9"),
        (2, [0.9]),
        (3, "=cmd"),
        (3, -1),
        (4, "x"),
        (4, -1.0),
        (5, -1),
        (5, True),
        (6, {}),
    ],
)
def test_a_line_with_something_else_in_the_place_of_a_figure_is_refused(place, value, tmp_path):
    path = tmp_path / "digits.jsonl"
    keep(LineStore(path), FIRST, None, "it failed")
    origin, line = path.read_text().splitlines()
    fields = json.loads(line)
    fields[place] = value
    path.write_text(f"{origin}\n{json.dumps(fields)}\n")
    with pytest.raises(ValueError, match=r"line 2, is no record"):
        LineStore(path)
    for text in ("NaN", "1e999"):
        path.write_text(f"{origin}\n{line.replace('null', text)}\n")
        with pytest.raises(ValueError, match=r"line 2, is no record"):
            LineStore(path)


def test_a_second_leaderboard_in_a_folder_is_refused(tmp_path, monkeypatch, capsys):
    """Two would count the lines of one file, by whose numbers records name the machine that made them."""
    monkeypatch.chdir(tmp_path)
    for options in (["--folder", "records"], ["--defence", "Median"]):
        with exclusive(tmp_path / ("records" if "--folder" in options else "leaderboard")):
            assert main(["leaderboard", *options]) == 2
        assert "Another process writes in" in capsys.readouterr().err
        with exclusive(tmp_path / "records"):
            assert main(["leaderboard", "--no_training", "--folder", "records"]) == 2
        assert "holds no records" in capsys.readouterr().err


def test_a_failed_run_can_be_carried_out_again(tmp_path):
    path = tmp_path / "digits.jsonl"
    keep(LineStore(path), FIRST, None, "no space left on the disk")
    again = LineStore(path, failed=False)
    assert again.find(FIRST) == (None, "")
    keep(again, FIRST, 0.5)
    assert LineStore(path).find(FIRST)[0].final() == 0.5
    keep(LineStore(path), FIRST, None, "it has failed since")
    assert LineStore(path, failed=False).find(FIRST) == (None, ""), "the last line counts"


@dataclass(frozen=True)
class Broken(aggregators.Selection):
    """Raises a long error."""

    def choose(self, points):
        raise InfeasibleError("so it goes " * 100)


@pytest.mark.slow
def test_the_error_of_a_rule_that_always_raises_is_short_and_shown(tmp_path):
    broken = Defence("broken", "own", lambda *_: algorithms.FedAvg(aggregate=Broken()))
    store = LineStore(tmp_path / "digits.jsonl")
    store.keep(carried_out(plan(broken), None, Means(None), lambda _: None).trace)
    one, _ = store.find(plan(broken))
    assert one.final() is None
    assert "so it goes" in one.error
    assert len(one.error) <= 200
    found = ranked(SMALL, broken, lambda planned: {each.plan.identity: one for each in planned})
    assert found.error == f"no setting gave a result in the tuning runs: {one.error}"


def test_scores_of_another_numerics_version_are_shown_and_not_used(tmp_path):
    path = tmp_path / "digits.jsonl"
    keep(LineStore(path), FIRST, 0.5, made=replace(MADE, numerics=0))
    assert LineStore(path).find(FIRST) == (None, f"its results are of numerics version 0, this is {NUMERICS}")
    assert LineStore(path, any_numerics=True).find(FIRST)[0].final() == 0.5


# The page


@pytest.fixture
def board(tmp_path):
    store = LineStore(tmp_path / "digits.jsonl")
    keep(store, FIRST, 0.5)
    names = ("Median", "Bulyan", "FedAsync")
    every = [ranked(replace(SMALL, attackers=(4, 6)), BY_NAME[name], Planted(weak)) for name in names]
    waiting = ranked(SMALL, BY_NAME["Krum"], partial(stored, store=store))
    return Board(replace(SMALL, attackers=(4, 6)), [*every, waiting], store)


def test_the_page_ranks_by_the_worst_case_and_hides_nothing(board):
    text = page([board])
    assert "| 1 (1 to 2) | Bulyan | rule | 90.0 ± 0.0 | 20.0 ± 0.0 | no result | 2.0 |" in text
    assert "| 2 (1 to 2) | Median | rule | 90.0 ± 0.0 | 20.0 ± 0.0 | 20.0 ± 0.0 | 2.0 |" in text
    assert "| 1 | FedAsync | algorithm |" in text
    assert f"**20.0 ± 0.0** ALIE × -3 `{board.ranked[0].cells['IID', 4].worst.key[:8]}`" in text
    assert "for 3 of 3 defences (100 %)" in text
    assert "leaves 30.0 ± 0.0 points less accuracy" in text
    assert "- Bulyan, 30 %: Bulyan(f=6, neighbours='n-f-2') needs at least 4f + 3 = 27 rows, got 20." in text
    assert "**Not computed yet**: Krum." in text
    assert "Not computed yet: `phalanx leaderboard --tier fashion-mnist`." in text
    rows = table(board).splitlines()
    assert len(rows) == 1 + 3 * 3
    assert rows[2].startswith("Median,rule,lr 1,IID,4,,ALIE,0.5000,")


def test_ranks_are_those_that_the_seeds_do_not_exclude_and_equal_defences_are_one_row(tmp_path, monkeypatch):
    """By hand: Median and CAF are alike, Krum is 20 points below on each seed, MeaMed above on one and below on one."""
    ends = {
        "Median": (0.7, 0.71),
        "CAF": (0.7, 0.71),
        "Krum": (0.5, 0.51),
        "MeaMed": (0.55, 0.77),
        "FLTrust": (0.9, 0.9),
    }

    def board_of(names):
        every = [
            ranked(SMALL, BY_NAME[name], Planted(lambda one, name=name: ends[name][one.seed % 2])) for name in names
        ]
        return Board(SMALL, every, LineStore(tmp_path / "digits.jsonl"))

    board = board_of(ends)
    (plain_, rows), (trusting, alone) = board.sorts
    assert (plain_.trusts, trusting.trusts) == (False, True)
    assert [one.name for one in rows] == ["CAF = Median", "MeaMed", "Krum"]
    assert board.places(rows) == ["1 (1 to 2)", "2 (1 to 3)", "3 (2 to 3)"]
    assert [one.name for one in alone] == ["FLTrust"]
    assert board.places(alone) == ["1"]
    monkeypatch.setattr(Board, "_by_seed", lambda self, one: [] if one.defence.name == "MeaMed" else [0.5, 0.6])
    assert board.places(rows) == ["1 (1 to 3)", "2 (1 to 3)", "3 (1 to 3)"], "what is not compared excludes nothing"
    monkeypatch.undo()
    apart = board_of(["Median", "Krum"])
    assert [apart.places(rows) for _, rows in apart.sorts] == [["1", "2"]]
    assert "| 1 (1 to 2) | CAF = Median | rule |" in page([board])


def test_baselines_stand_first_with_the_better_of_both_in_each_kind_of_heterogeneity(tmp_path):
    """By hand: 70 and 40 % alone, 60 and 60 % at the server: the better of both has 65 %."""
    ends = {
        "Standalone": (0.7, 0.4),
        "ServerAlone": (0.6, 0.6),
        "Median": (0.64, 0.64),
        "Krum": (0.5, 0.5),
        "FLTrust": (0.9, 0.9),
    }
    tier = replace(SMALL, heterogeneity={name: DIGITS.heterogeneity[name] for name in ("IID", "groups")})

    def planted(name):
        return Planted(lambda one: ends[name][one.groups is not None])

    every = [ranked(tier, BY_NAME[name], planted(name)) for name in ends]
    board = Board(tier, every, LineStore(tmp_path / "digits.jsonl"))
    assert [[one.name for one in rows] for _, rows in board.sorts] == [
        ["ServerAlone", "Standalone"], ["Median", "Krum"], ["FLTrust"],
    ]  # fmt: skip
    assert board.better(4).mean == pytest.approx(0.65)
    alone = Board(tier, every[:1], board.store)
    assert alone.better(4) is None
    assert "better of both" not in page([alone])
    text = page([board])
    assert (
        "Of 3 rows with 20 % attackers 2 exceed ServerAlone (60.0 %), 2 exceed Standalone (55.0 %), 1 exceed the "
        "better of both in each kind of heterogeneity (65.0 %), by their means."
    ) in text
    assert "| the better of both, in each kind of heterogeneity |  | 65.0 ± 0.0 | 65.0 ± 0.0 |" in text
    first = text.partition("**Accuracy**")[0].splitlines()
    assert [line for line in first if "64.0" in line] == ["| Synchronous | Median | 64.0 ± 0.0 | 64.0 ± 0.0 |"]
    assert "| Baselines | ServerAlone | 60.0 ± 0.0 | 60.0 ± 0.0 |" in first


def test_every_defence_that_is_given_clean_examples_or_a_client_is_known_to_trust():
    for one in DEFENCES:
        made = plan(one, f=one.most or 4).algorithm
        assert one.trusts == (made.traits.needs_reference or "MoNNA" in parts(made))


def test_the_page_says_where_the_search_did_not_beat_the_named_attacks(board):
    def deaf(one):  # to the length of updates, as a rule of signs; found attacks that are no factor do less
        factor = isinstance(one.attack, Together) and isinstance(one.attack.second, Rescale)
        inner = one.attack.first if factor else one.attack
        return 0.1 if inner == ALIE() else 0.9

    every = [*board.ranked, ranked(board.tier, BY_NAME["SignMajority"], Planted(deaf))]
    text = page([replace(board, ranked=every)])
    assert "for 3 of 4 defences (75 %) in the mean over their cells" in text
    assert "In 2 of 7 cells the attack that it chose leaves the accuracy of the named one on each seed. In 2 of" in text
    assert "more than half of the cells of 1 defence (SignMajority); of the 3 others, it found a worse attack" in text
    assert "for 3 (100 %)" in text
    assert "10 %, in 2 cells, 2 of them of the defences below." in text
    assert "| SignMajority | 0.0 ± 0.0 | 2 of 2 |" in text
    assert "Not beaten" not in page([board])


def test_a_page_elsewhere_leaves_the_cells_of_the_records_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.cli.leaderboard.DEFENCES", DEFENCES[:2])
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "digits.jsonl").write_text("")
    keep(LineStore(folder / "digits.jsonl"), FIRST, 0.5)
    command = ["leaderboard", "--no_training", "--folder", str(folder), "--page", str(tmp_path / "other" / "page.md")]
    assert main(command) == 0
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["digits.csv", "page.md"]
    assert [path.name for path in folder.iterdir()] == ["digits.jsonl"]


@pytest.mark.slow
def test_the_committed_page_is_that_of_the_records(tmp_path):
    folder = ROOT / "results" / "leaderboard"
    for path in folder.glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    command = ["leaderboard", "--no_training", "--folder", str(tmp_path), "--page", str(tmp_path / "page.md")]
    subprocess.run([sys.executable, "-m", "phalanx", *command], check=True)  # sooner: without checks of types
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / "leaderboard.md").read_text()
    for path in folder.glob("*.csv"):
        assert (tmp_path / path.name).read_text() == path.read_text()


def test_all_committed_records_are_from_clean_commits():
    for path in (ROOT / "results" / "leaderboard").glob("*.jsonl"):
        origins = [form for line in path.read_text().splitlines() if isinstance(form := json.loads(line), dict)]
        assert origins
        assert all(form["clean"] and form["commit"] for form in origins)


# The command

OWN = """
from dataclasses import dataclass
from phalanx.aggregators import Choice, Selection

@dataclass(frozen=True)
class Half(Selection):
    \"\"\"Half of the mean.

    Args:
        f: number of attackers.
    \"\"\"

    f: int = 0

    def choose(self, points):
        return Choice(points.share / 2)
"""
PLAIN = """
class Plain(Selection):
    def choose(self, points):
        return Choice(points.share)
"""
SMALLER = """
import sys
from dataclasses import replace
from phalanx.attacks import ALIE, SignFlip
from phalanx.cli.main import main
from phalanx.experiments.leaderboard import tiers
from phalanx.experiments.worst import WorstOf

search = WorstOf({"flip": SignFlip(), "little": ALIE()}, (1.0, -3.0), (2,), (10.0,), 0, (2000,), refined=1)
tiers.TIERS["digits"] = replace(
    tiers.DIGITS, attackers=(4,), heterogeneity={"IID": {}}, search=search, seeds=(0, 1), rounds=3
)
if __name__ == "__main__":
    sys.exit(main(["leaderboard", *sys.argv[1:]]))
"""


def begin(folder, *options):
    (folder / "smaller.py").write_text(SMALLER)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, "smaller.py", *options], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def done(folder, *options):
    process = begin(folder, *options)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return " ".join(output.split())


@pytest.mark.slow
def test_ones_own_rule_is_ranked_by_one_command_that_goes_on_after_a_kill(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    command = ("--defence", "mine.py:Half(f=f)", "--folder", "none")
    process, path = begin(tmp_path, *command), tmp_path / "leaderboard" / "digits.jsonl"
    end = time.monotonic() + 200
    while not path.is_file() or path.read_text().count("\n") < 5:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = path.read_text().splitlines()
    output = done(tmp_path, *command)
    assert "mine.Half(f=f): rank 1 of 1" in output
    lines = path.read_text().splitlines()
    assert lines[: len(before) - 1] == before[:-1]
    keys = [form[0] for line in lines if isinstance(form := json.loads(line), list)]
    assert len(keys) == len(set(keys))
    assert "| 1 | mine.Half(f=f) | own |" in (tmp_path / "leaderboard" / "digits.md").read_text()
    again = done(tmp_path, *command, "--page", "shown/mine.md")
    assert "1 of 1 defence done." in again
    assert "| 1 | mine.Half(f=f) | own |" in (tmp_path / "shown" / "mine.md").read_text()
    assert (tmp_path / "shown" / "digits.csv").is_file()
    assert path.read_text().splitlines() == lines


def test_mistakes_are_named_with_their_remedy(capsys):
    for options, words in (
        (["--tier", "none"], "There is no tier none. There are: digits, fashion-mnist."),
        (["--jobs", "0"], "--jobs must be at least 1, got 0."),
        (["--only", "Nobody"], "No defence has a name like 'Nobody'."),
        (["--retry", "--no_training"], "give one of them"),
        (["--alone", ""], "--alone needs all 8 digits from a cell of the page, got ''."),
        (["--alone", "8ee916"], "got '8ee916'."),
    ):
        assert main(["leaderboard", *options]) == 2
        assert words in capsys.readouterr().err


def test_mistakes_in_ones_own_defence_are_short_and_name_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine_22.py").write_text(OWN + "\n\nclass Abstract(Selection):\n    pass\n" + PLAIN)
    (tmp_path / "broken_22.py").write_text("def (:")
    (tmp_path / "json.py").write_text(OWN)
    (tmp_path / "exits_22.py").write_text("raise SystemExit(7)")
    for text, words in (
        ("none.py:Half", "there is no file none.py."),
        ("broken_22.py:Half", "broken_22.py cannot be imported: SyntaxError"),
        ("exits_22.py:Half", "exits_22.py cannot be imported: SystemExit: 7"),
        ("Krum(f=1, f=2)", "gives an option twice. Leave it in once."),
        ("json.py:Half", "Another module has the name json already. Rename json.py."),
        ("mine_22.py", "names no class of mine_22.py. It has Half, Abstract, Plain. Write mine_22.py:CLASS(OPTIONS)."),
        ("mine_22.py:Third(f=f)", "names no class of mine_22.py. It has Half"),
        ("mine_22.py:Half(g=f)", "Half has no option 'g'. It has: f."),
        ("mine_22.py:Half(f=many)", "must be an integer, got many."),
        ("mine_22.py:Half(f=f", "lacks a bracket"),
        ("mine_22.py:Abstract", "of your own that defines all that it must"),
        ("mine_22.py:Plain", "Make its class a frozen dataclass of plain values"),
        ("mine_22.py:dataclass", "is no rule and no algorithm."),
        ("Nobody(f=f)", "is no rule and no algorithm. Name one of the library"),
        ("TrimmedMean(beta=0.6)", "--defence TrimmedMean(beta=0.6): beta must lie in [0, 0.5)"),
        ("", "is no rule and no algorithm."),
    ):
        assert main(["leaderboard", "--estimate", "--defence", text]) == 2, text
        error = capsys.readouterr().err
        assert words in error
        assert len(error) < 500


def test_tiers_can_be_told_apart():
    assert all(isinstance(tier, Tier) for tier in TIERS.values())
    bases = {tier.study(BY_NAME["Mean"]).planned[0].plan.identity for tier in TIERS.values()}
    assert len(bases) == len(TIERS)
