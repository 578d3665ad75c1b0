"""Rules in a job of NVFlare: the same bits as in a simulation, and nothing that a client sends ends the job."""

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.job_config.fed_job_config import FedJobConfig

from phalanx.aggregators import Krum, Mean, Median, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.core import InfeasibleError, StalledError, Updates
from phalanx.engine import LoopSettings
from phalanx.engine.guard import Guard
from phalanx.engine.lost import LostRounds
from phalanx.nvflare import PhalanxAggregator
from phalanx.weighting import AsReported, Ignore, Truncate

SIZES = (30, 10, 20, 40, 25)
RNG = np.random.default_rng(0)
CHANGES = [{"w": RNG.normal(size=(2, 3)).astype(np.float32), "b": RNG.normal(size=4).astype(np.float32)} for _ in SIZES]


def result(client, params, size=10, metrics=None, kind=ParamsType.DIFF):
    return FLModel(
        params_type=kind, params=params, metrics=metrics, meta={"client_name": client, "NUM_STEPS_CURRENT_ROUND": size}
    )


def combined(aggregator, results):
    aggregator.reset_stats()
    for one in results:
        aggregator.accept_model(one)
    return aggregator.aggregate_model()


def vector(params):
    return torch.from_numpy(np.concatenate([params[name].ravel() for name in ("w", "b")]))


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.45), Krum(f=1)], ids=repr)
@pytest.mark.parametrize("weighting", [AsReported(), Ignore(), Truncate(0.25, 0.45, "subset")], ids=repr)
def test_the_bits_are_those_of_the_simulation_in_any_order_of_arrival(rule, weighting):
    algorithm = FedAvg(rule, weighting)
    start = torch.zeros(10)
    state, _ = algorithm.init(start, dict(enumerate(SIZES)))
    deltas = torch.stack([vector(c) for c in CHANGES])
    after, _ = algorithm.step(state, Updates(tuple(range(5)), (0,) * 5, (start,) * 5, deltas, torch.zeros(5)))
    sent = [result(f"site-{k + 1}", c, n) for k, (c, n) in enumerate(zip(CHANGES, SIZES, strict=True))]
    for order in (sent, sent[::-1], [sent[2], sent[4], sent[0], sent[3], sent[1]]):
        found = combined(PhalanxAggregator(rule, weighting), order)
        assert found.params_type == ParamsType.DIFF
        assert torch.equal(vector(found.params), after.model)
        assert {name: one.shape for name, one in found.params.items()} == {"w": (2, 3), "b": (4,)}


NASTY = {
    "a whole model": (lambda c: result("d", c, kind=ParamsType.FULL), "holds a whole model"),
    "not a number": (lambda c: result("d", {**c, "b": c["b"] * math.nan}), "NaN"),
    "infinite": (lambda c: result("d", {**c, "b": c["b"] + math.inf}), "finite"),
    "another shape": (lambda c: result("d", {**c, "b": c["b"][:2]}), "b is float32 of shape (2,)"),
    "broadcast": (lambda c: result("d", {**c, "b": c["b"][:1]}), "b is float32 of shape (1,)"),
    "an array less": (lambda c: result("d", {"w": c["w"]}), "arrays are w, expected"),
    "an array more": (lambda c: result("d", {**c, "x": c["b"]}), "arrays are b, w, x, expected"),
    "whole numbers": (lambda c: result("d", {**c, "b": c["b"].astype(np.int64)}), "b is int64"),
    "texts": (lambda c: result("d", {**c, "b": np.array(["a"] * 4)}), "b is no array of numbers"),
    "objects": (lambda c: result("d", {**c, "b": np.array([None] * 4)}), "b is no array of numbers"),
    "a list": (lambda c: result("d", {**c, "b": [0.0] * 4}), "b is no array of numbers"),
    "a negative size": (lambda c: result("d", c, -3), "examples"),
    "a size of text": (lambda c: result("d", c, "many"), "examples"),
    "no size": (lambda c: result("d", c, None), "examples"),
    "too many examples": (lambda c: result("d", c, 10**12), "examples"),
    "a number without end": (lambda c: result("d", c, 10**5000), "more than 21 digits"),
    "too long": (lambda c: result("d", {n: one * 1e20 for n, one in c.items()}), "norm"),
    "a name that is none": (lambda c: result("d", {**c, "\x1b[2J": c["b"]}), "expected"),
}


@pytest.mark.parametrize("what", NASTY)
def test_a_malformed_result_is_invalid_and_the_round_goes_on(what, caplog):
    made, why = NASTY[what]
    honest = [result(name, change) for name, change in zip("abc", CHANGES, strict=False)]
    for order in ([*honest, made(CHANGES[3])], [made(CHANGES[3]), *honest]):
        aggregator = PhalanxAggregator(Median(), Ignore())
        found = combined(aggregator, order)
        assert torch.equal(vector(found.params), torch.stack([vector(c) for c in CHANGES[:3]]).median(0).values)
        ((client, said),) = aggregator.rounds.invalid[1].items()
        assert aggregator.names[client] == "d"
        assert why in said
        assert "\x1b" not in said
        assert f"round 1, client d invalid: {said}" in caplog.text


def test_a_second_result_of_a_client_is_invalid_and_so_are_results_of_nobody():
    aggregator = PhalanxAggregator(Median(), Ignore())
    honest = [result(name, change) for name, change in zip("abc", CHANGES, strict=False)]
    found = combined(aggregator, [*honest, result("c", CHANGES[3])])
    assert torch.equal(vector(found.params), torch.stack([vector(c) for c in CHANGES[:3]]).median(0).values)
    assert "duplicate" in aggregator.rounds.invalid[1][2]
    nobody = [FLModel(params_type=ParamsType.DIFF, params=c, meta={"NUM_STEPS_CURRENT_ROUND": 1}) for c in CHANGES]
    aggregator = PhalanxAggregator(Median(), Ignore())
    combined(aggregator, nobody)
    assert len(aggregator.rounds.verdicts[1]) == 1, "those without a name are one client, at most"


def test_a_lost_round_changes_nothing_and_too_many_end_the_job():
    aggregator = PhalanxAggregator(Krum(f=1), Ignore(), lost_rounds=LostRounds(most=2))
    sent = [result("a", CHANGES[0]), result("b", CHANGES[1])]
    assert not vector(combined(aggregator, sent).params).any()
    assert "Krum" in next(iter(aggregator.rounds.verdicts[1].values())).reason
    with pytest.raises(StalledError, match="2 rounds in a row"):
        combined(aggregator, sent)


def test_a_round_in_which_one_size_makes_the_rule_void_is_lost_unless_that_is_let_pass():
    sizes = (10, 10, 10, 10**8)
    sent = [result(name, c, n) for name, c, n in zip("abcd", CHANGES, sizes, strict=False)]
    aggregator = PhalanxAggregator(Median())
    assert not vector(combined(aggregator, sent).params).any()
    reasons = {verdict.reason for verdict in aggregator.rounds.verdicts[1].values()}
    assert len(reasons) == 1
    assert "1 of 4 clients can hold" in min(reasons)
    assert 'set preprocess to AsReported(beyond_tolerance="remark")' in min(reasons)
    by_name = PhalanxAggregator(Median(), AsReported(beyond_tolerance="remark"))
    assert torch.equal(vector(combined(by_name, sent).params), vector(CHANGES[3])), "one client decides"
    for rule, weighting in ((Median(), Ignore()), (Mean(), AsReported())):  # nothing is void
        assert vector(combined(PhalanxAggregator(rule, weighting), sent).params).any()


def test_counts_of_batches_do_not_change():
    sent = [result(n, {**c, "batches": np.array(7, dtype=np.int64)}) for n, c in zip("abcd", CHANGES, strict=False)]
    found = combined(PhalanxAggregator(Median(), Ignore()), sent).params["batches"]
    assert (found.dtype, found.shape, int(found)) == (np.int64, (), 0)


def test_metrics_are_means_of_those_who_have_a_number():
    numbers = [{"accuracy": 0.5}, {"accuracy": 0.7, "loss": 1.0}, {"accuracy": math.nan, "note": "x"}, {}]
    sent = [result(n, c, metrics=m) for n, c, m in zip("abcd", CHANGES, numbers, strict=False)]
    found = combined(PhalanxAggregator(Median(), Ignore()), sent).metrics
    assert found == pytest.approx({"accuracy": 0.6, "loss": 1.0})
    assert combined(PhalanxAggregator(Median(), Ignore()), [result("a", CHANGES[0])]).metrics is None


def test_what_it_promises_is_said_and_what_it_cannot_is_refused():
    assert PhalanxAggregator(Median(), Ignore(), clients=4, tolerate=1).rounds.promise.f == 1
    with pytest.raises(InfeasibleError):
        PhalanxAggregator(Median(), Ignore(), clients=4, tolerate=2)
    with pytest.raises(InfeasibleError, match="Krum"):
        PhalanxAggregator(Krum(f=1), Ignore(), clients=3)
    with pytest.raises(TypeError, match="no option tolerat"):
        PhalanxAggregator(Median(), Ignore(), clients=4, tolerates=1)
    with pytest.raises(InfeasibleError, match="tolerate needs clients"):
        PhalanxAggregator(Median(), Ignore(), tolerate=2)


@pytest.mark.parametrize("strange", [{"w": CHANGES[0]["w"], "z": CHANGES[0]["b"]}, {}, {"w": np.zeros((1, 1))}])
def test_a_few_results_do_not_say_what_a_model_is(strange):
    aggregator = PhalanxAggregator(Median(), Ignore(), clients=7, tolerate=3)
    for sent in ([result("a", strange)], [result(name, strange) for name in "abc"], []):
        assert combined(aggregator, sent).params == {}, "three of seven may be attackers"
        assert "it is not known what a model is" in str([*aggregator.rounds.verdicts.values()][-1]) or not sent
    honest = [result(name, change) for name, change in zip("defgh", CHANGES, strict=True)]
    assert combined(aggregator, honest).params.keys() == {"w", "b"}
    assert combined(aggregator, [result("a", strange), *honest]).params.keys() == {"w", "b"}


@pytest.mark.parametrize("kind", [np.longdouble, np.float16, np.float64, np.complex128])
def test_what_one_client_sends_is_not_what_the_model_becomes(kind):
    sent = [result(name, change) for name, change in zip("abcd", CHANGES, strict=False)]
    for name in ("A", "z"):
        odd = result(name, {n: one.astype(kind) for n, one in CHANGES[4].items()})
        found = combined(PhalanxAggregator(Median(), Ignore()), [odd, *sent]).params
        assert {one.dtype for one in found.values()} == {np.dtype(np.float32)}
        assert all(np.isfinite(one).all() for one in found.values())


def test_tensors_of_any_kind_end_nothing():
    sent = [result(name, change) for name, change in zip("abcd", CHANGES, strict=False)]
    kinds = [
        {n: torch.from_numpy(one).bfloat16() for n, one in CHANGES[4].items()},
        {n: torch.from_numpy(one).requires_grad_() for n, one in CHANGES[4].items()},
        {n: torch.from_numpy(one).to_sparse() for n, one in CHANGES[4].items()},
        {n: torch.from_numpy(one).to("meta") for n, one in CHANGES[4].items()},
    ]
    refused = [0, 0, 1, 1]
    for params, count in zip(kinds, refused, strict=True):
        aggregator = PhalanxAggregator(Median(), Ignore())
        combined(aggregator, [*sent, result("e", params)])
        assert len(aggregator.rounds.invalid[1]) == count


def test_metrics_that_are_too_large_end_nothing():
    for value in (1.7e308, -1.7e308, 10**400):
        numbers = [{"accuracy": value}, {"accuracy": value}, {"accuracy": 0.5}]
        sent = [result(n, c, 10**9, metrics=m) for n, c, m in zip("abc", CHANGES, numbers, strict=False)]
        assert combined(PhalanxAggregator(Median()), sent).metrics == {"accuracy": 0.5}


ALL = PhalanxAggregator(
    TrimmedMean(0.3),
    Truncate(0.1, 0.3),
    LoopSettings(guard=Guard(max_norm=5.0), broken_promise="remark"),
    lost_rounds=LostRounds(most=3),
    clients=9,
    tolerate=1,
    size_key="n",
)


@pytest.mark.parametrize("aggregator", [ALL, PhalanxAggregator(), PhalanxAggregator(Krum(f=2), Ignore())])
def test_a_jobs_file_makes_the_same_aggregator(aggregator, tmp_path):
    """NVFlare writes a component down by the attributes that have its parameters' names, and drops what it misses."""
    written = FedJobConfig("job", 1)._get_args(aggregator, str(tmp_path))
    again = built({"path": "phalanx.nvflare.PhalanxAggregator", "args": json.loads(json.dumps(written))})
    assert again.settings == aggregator.settings
    written["size_key"] = "another"
    with pytest.raises(InfeasibleError, match="has lost settings"):
        built({"path": "phalanx.nvflare.PhalanxAggregator", "args": written})


def built(component):
    module, _, name = component["path"].rpartition(".")
    args = {k: built(v) if isinstance(v, dict) and "path" in v else v for k, v in component["args"].items()}
    return getattr(importlib.import_module(module), name)(**args)


SITE = """
import numpy as np
import nvflare.client as flare
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

flare.init()
k = int(flare.get_site_name().rpartition("-")[2])
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    change = np.full(3, k if k < 4 else -1e6, np.float32)
    meta = {"NUM_STEPS_CURRENT_ROUND": 10 if k < 4 else 10**9}
    flare.send(FLModel(params_type=ParamsType.DIFF, params={n: change for n in model.params}, meta=meta))
"""
JOB = """
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe.sim_env import SimEnv

recipe = NumpyFedAvgRecipe(
    name="job", model=[0.0, 0.0, 0.0], min_clients=4, num_rounds=2, train_script="site.py",
)
recipe.execute(SimEnv(num_clients=4, workspace_root="there"))
"""
PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"


def changed():
    """The job with the lines that the page adds."""
    first, *arguments = re.findall(r"^\+(.*)$", PAGE.read_text(), re.MULTILINE)
    return f"{first}\n{JOB}".replace('"site.py",\n', "\n".join(['"site.py",', *arguments, ""]))


def test_at_most_three_lines_of_a_job_change():
    assert len({*changed().splitlines()} - {*JOB.splitlines()}) == 3


@pytest.mark.slow
def test_a_job_in_nvflares_simulator_is_not_moved_by_a_liar(tmp_path):
    (tmp_path / "site.py").write_text(SITE)
    (tmp_path / "job.py").write_text(changed())
    subprocess.run([sys.executable, "job.py"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    (saved,) = Path(tmp_path).rglob("server.npy")
    assert np.load(saved).tolist() == [3.0, 3.0, 3.0], "twice the median of 1, 2, 3 and -1e6, and not -5e5"
