"""What is offered promises as much, was measured, and comes out of its command; what is not says why."""

import json
import re
import shlex
from itertools import product
from pathlib import Path

import pytest

from phalanx.cli import options
from phalanx.cli.choose import command
from phalanx.cli.main import main
from phalanx.experiments.choosing.choice import Wanted, choose
from phalanx.experiments.choosing.compositions import ALONE, COMPOSITIONS, MEAN
from phalanx.experiments.choosing.federations import HETEROGENEITY, TIERS
from phalanx.experiments.choosing.measured import evidence, measured, text_of
from phalanx.experiments.leaderboard.defences import Setup
from phalanx.experiments.line_store import LineStore
from phalanx.promises import promise
from phalanx.runs.plan import Run
from phalanx.training import LocalSGD

ROOT = Path(__file__).parents[2]
CASES = [
    Wanted(n, f, share, None, "unknown" if where == "groups" else None, asynchronous, alike=where == "alike")
    for n, f in ((3, 1), (4, 1), (5, 2), (8, 2), (20, 5), (23, 4))
    for where in HETEROGENEITY
    for share, asynchronous in ((1.0, False), (0.5, False), (1.0, True))
]


def plan_of(text):
    """The run that a command line names."""
    program, run, *words = shlex.split(text)
    assert (program, run) == ("phalanx", "run")
    draft = options.run().options(words).draft
    return draft.make(Run)


@pytest.mark.parametrize(
    "wanted", CASES, ids=lambda w: f"{w.clients}-{w.byzantine}-{w.where}-{w.participation:g}-{w.asynchronous}"
)
def test_each_composition_is_offered_or_says_why_not(wanted):
    found = choose(wanted)
    assert len(found.offers) <= 3
    possible = [*found.offers, *found.others]
    names = [one.composition.name for one in (*possible, *found.refused)]
    suitable = [
        one.name for one in COMPOSITIONS
        if one.asynchronous == wanted.asynchronous and one.name not in (MEAN, ALONE)
        and (wanted.groups or not one.groups)
    ]  # fmt: skip
    assert sorted(names) == sorted(suitable)
    assert all(one.because.endswith(".") for one in found.refused)
    for one in possible:
        kept = promise(one.algorithm, wanted.setting)
        assert max(kept.f, kept.likely or 0) >= wanted.byzantine
        assert one.promise == kept
        assert one.measured.under_attack >= one.measured.without_attack / 2
        assert one.measured.composition == one.composition.name
        assert one.measured.where == wanted.where
        assert (one.measured.clients, one.measured.f) == (found.tier.base.clients, found.f)
    if possible:
        assert found.most >= wanted.byzantine or any(one.promise.likely for one in possible)
        worst = max(one.measured.under_attack for one in possible)
        clean = max(one.measured.without_attack for one in possible)
        assert found.offers[0].measured.under_attack == worst
        (second,) = [one for one in found.offers if "the highest accuracy without attack" in one.why]
        assert second.measured.without_attack == clean
        (third,) = [one for one in found.offers if "the most attackers tolerated" in one.why]
        assert third.promise.f == max(one.promise.f for one in possible)


@pytest.mark.parametrize("wanted", [Wanted(8, 1), Wanted(20, 2, 0.5), Wanted(8, 2, groups="unknown"),
                                    Wanted(8, 2, asynchronous=True)], ids=str)  # fmt: skip
def test_the_command_of_an_offer_has_its_algorithm(wanted):
    found = choose(wanted)
    assert found.offers
    for one in (*found.offers, *found.others):
        plan = plan_of(command(one, found))
        assert plan.algorithm == one.algorithm
        assert (plan.clients, plan.byzantine, plan.participation) == (
            wanted.clients, wanted.byzantine, wanted.participation,
        )  # fmt: skip
        assert plan.training.lr == one.measured.rate
        measured_with = Run(clients=wanted.clients, **HETEROGENEITY[wanted.where])
        assert (plan.groups, plan.partition) == (measured_with.groups, measured_with.partition)


@pytest.mark.slow
def test_the_command_of_an_offer_runs(tmp_path, capsys):
    for wanted in (Wanted(8, 1), Wanted(8, 1, asynchronous=True)):
        found = choose(wanted)
        assert (
            main([*shlex.split(command(found.offers[0], found))[1:], "--folder", str(tmp_path / "run"), "--again"]) == 0
        )
    assert capsys.readouterr().out.count("Report: ") == 2


def test_a_consortium_of_four_gets_an_honest_answer(capsys):
    assert main(["choose", "--clients", "4", "--byzantine", "1"]) == 0
    told = capsys.readouterr().out
    assert "Promise: Tolerates any 1 of 4 clients." in told
    assert "FedAvg(Krum): Krum(f=1, neighbours='n-f-2') needs at least 2f + 3 = 5 rows, got 4." in told
    assert "Each client alone, on digits: " in told
    assert "   Measured on digits: " in told
    assert not re.search(r"^(?!.*digits).*\d %.*$", told, re.MULTILINE), "next to each figure"
    assert main(["choose", "--clients", "4", "--byzantine", "2"]) == 1
    assert "Nothing promises to tolerate 2. The most is 1: give --byzantine 1." in capsys.readouterr().out
    assert main(["choose", "--clients", "2"]) == 1
    assert "Nothing promises to tolerate 1, or even one: train alone" in capsys.readouterr().out


@pytest.mark.parametrize(("clients", "byzantine"), [(4, 1), (8, 1), (20, 2), (100, 10)])
@pytest.mark.parametrize("asynchronous", [(), ("--asynchronous",)])
def test_the_whole_command_line_answers_in_each_tier(clients, byzantine, asynchronous, tmp_path, capsys):
    sizes = tmp_path / "sites.csv"
    sizes.write_text("client,size\n" + "".join(f"s{k},{40 + 10 * k}\n" for k in range(clients)))
    words = ["--clients", str(clients), "--byzantine", str(byzantine), "--participation", "1", "--sizes", str(sizes)]
    status = main(["choose", *words, "--groups", "unknown", *asynchronous])
    told = capsys.readouterr().out
    assert "There may be groups that learn different things" in told
    assert f"Measured with {clients} clients" in told
    offered = re.findall(r"^ +Try it: phalanx run .*$", told, re.MULTILINE)
    assert (status == 0, len(offered) <= 3) == (bool(offered), True)
    assert len(offered) == told.count("   Promise: ") == told.count("   Measured on digits: ")


def test_sizes_come_from_a_file_and_the_promise_holds_for_them(tmp_path, capsys):
    (tmp_path / "sites.csv").write_text(
        "client,size\n" + "".join(f"s{k},{size}\n" for k, size in enumerate([900, 40, 50, 60, 70, 80, 45, 55]))
    )
    assert main(["choose", "--sizes", str(tmp_path / "sites.csv"), "--json"]) == 0
    form = json.loads(capsys.readouterr().out)
    assert form["clients"] == 8
    assert all(one["tolerates"] >= 1 for one in form["offers"])
    assert form["mean"]["worst"] < form["mean"]["clean"]
    assert main(["choose", "--sizes", str(tmp_path / "sites.csv"), "--clients", "9"]) == 2
    assert "--clients is 9, and" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 1}, "clients must be at least 2, got 1"),
        ({"byzantine": 0}, "If nobody can lie, the mean by reported sizes loses nothing"),
        ({"byzantine": 8}, "below 8, got 8"),
        ({"participation": 0.0}, r"participation must lie in \(0, 1\], got 0"),
        ({"participation": 0.5, "asynchronous": True}, "Without rounds nobody is drawn"),
        ({"groups": "unknown", "alike": True}, "Leave out alike, or groups"),
        ({"sizes": {0: 3}}, "sizes must hold one for each of 8 clients, got 1"),
    ],
)
def test_what_is_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Wanted(**{"clients": 8, **options})


@pytest.mark.parametrize("one", COMPOSITIONS, ids=lambda one: one.name)
def test_what_is_said_to_have_no_rounds_has_none(one):
    setup = Setup(1, 8, 0, LocalSGD())
    algorithm = one.defence.make(setup, next(iter(one.defence.values), None))
    assert algorithm.traits.synchronous == (not one.asynchronous)


def test_each_measured_federation_has_all_that_can_be_measured():
    names = {one.name for one in COMPOSITIONS}
    for (clients, where, f), row in product({(one.clients, one.where, one.f) for one in evidence()}, (MEAN, ALONE)):
        found = {one.composition for one in evidence() if (one.clients, one.where, one.f) == (clients, where, f)}
        assert row in found
        assert found <= names
    for one in evidence():
        assert all(0 <= value <= 1 for value in (*one.clean, *one.worst))
        assert len(one.clean) == len(one.worst)
        split = one.where == "groups" and one.composition.startswith("PerCluster")  # an attack can bring one about
        assert one.under_attack <= one.without_attack + 0.05 or one.composition == ALONE or split


@pytest.mark.slow
def test_the_table_is_what_the_records_say():
    rows, origins = [], {}
    for tier in TIERS:
        store = LineStore(ROOT / "results" / "choices" / f"{tier.name}.jsonl", any_numerics=True)
        rows += measured(tier, store)
        assert all(one.clean for one in store.origins), "records come from a clean commit"
        origins |= dict.fromkeys(f"commit {o.commit}, {o.processor}" for o in store.origins)
    table = ROOT / "src/phalanx/experiments/choosing/evidence.json"
    assert table.read_text() == text_of(rows, list(origins))
