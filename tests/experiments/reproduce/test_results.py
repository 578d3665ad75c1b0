"""The committed results: records, manifests, pages, and whether some cheap records come out again."""

import os
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.cli.reproduce import ReproduceOptions, reproduce
from phalanx.core import InfeasibleError
from phalanx.experiments.papers.experiment import SCALES, form_of, reproductions
from phalanx.experiments.papers.manifest import Manifest
from phalanx.experiments.papers.verify import conditions, differences, stored
from phalanx.experiments.store import PACKED, Store
from phalanx.experiments.trace import Trace
from phalanx.runs.engine_choice import named, with_engine
from phalanx.runs.provenance import NUMERICS, counts_as
from phalanx.runs.session import simulate

RESULTS = Path(__file__).parents[3] / "results"
PAPERS = sorted(reproductions())
DATA = Path(os.environ["PHALANX_DATA"]) if "PHALANX_DATA" in os.environ else None
NEED_DATA = {("client-weighting", "figure2-quick")}  # to be rendered
EACH = 5  # records of a paper that are computed again
ROUNDING = 1e-5  # a virtual machine does not say on which model of a processor it runs, nor which kernels it takes
OTHERS = ("compiled",)  # than the experiments' own
FORMS = {form_of(scale, engine): (scale, engine) for scale in SCALES for engine in (None, *OTHERS)}
TOLERANCE = 0.02  # of final accuracies, where versions or instructions are others


def pages():
    found = [(path.parent.name, path.stem) for path in sorted(RESULTS.glob("*/*.md"))]
    return [page for page in found if DATA or page not in NEED_DATA]


def compiled(plan):
    """The run by the other engine, if its training has one."""
    with suppress(ValueError):
        return [with_engine(plan, "compiled")]
    return []


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("paper", PAPERS)
def test_a_table_is_a_study_of_the_same_runs(paper, scale):
    seeds = (0, 3)
    for experiment in reproductions()[paper].experiments.values():
        runs = {(cell, s): run for s in seeds for cell, run in experiment.exhibit.runs(scale, s).items()}
        if not runs:
            with pytest.raises(InfeasibleError, match="nothing is trained for it"):
                experiment.study(scale, seeds)
            continue
        planned = experiment.study(scale, seeds).planned
        assert {(one.labels["cell"], one.plan.seed): one.plan.identity for one in planned} == {
            where: run.identity for where, run in runs.items()
        }, experiment.name


@pytest.mark.parametrize("paper", PAPERS)
def test_the_manifest_names_the_pages_that_are_there(paper):
    manifest, folder = Manifest(RESULTS / paper), RESULTS / paper
    named = {f"{name}-{f}" for name in reproductions()[paper].experiments for f in FORMS if manifest.page(name, f)}
    assert named == {path.stem for path in folder.glob("*.md")}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_record_can_be_read_and_is_of_a_known_numerics_version(paper):
    found = list(Store(RESULTS / paper).traces())
    assert found
    assert all(0 <= trace.provenance.numerics <= NUMERICS for trace in found)
    assert all(trace.provenance.clean and trace.provenance.commit for trace in found if trace.provenance.numerics)


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_record_is_of_a_run_that_an_experiment_has(paper):
    plans = [
        plan
        for experiment in reproductions()[paper].experiments.values()
        for scale in SCALES
        for seed in range(5)
        for plan in experiment.exhibit.runs(scale, seed).values()
    ]
    known = {each.identity for plan in plans for each in (plan, *compiled(plan))}
    assert {trace.identity for trace in Store(RESULTS / paper).traces()} <= known


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "page"), pages(), ids=lambda part: part)
def test_a_committed_page_is_what_its_records_give(tmp_path, paper, page):
    before, folder = RESULTS / paper, tmp_path / paper
    folder.mkdir()
    shutil.copy(before / "manifest.json", folder)
    (folder / PACKED).symlink_to(before / PACKED)
    form = max((form for form in FORMS if page.endswith(f"-{form}")), key=len)
    (scale, engine), name = FORMS[form], page.removesuffix(f"-{form}")
    options = ReproduceOptions(
        paper=paper, experiment=name, scale=scale, engine=engine, no_training=True, folder=tmp_path, data_dir=DATA
    )  # fmt: skip
    reproduce(options, Console(quiet=True))
    for path in (path for suffix in (".md", ".csv") if (path := before / f"{page}{suffix}").is_file()):
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert {path.name for path in before.glob(f"{page}*.svg")} == {path.name for path in folder.glob(f"{page}*.svg")}


def cheap():
    """Cheap records that are current, some of each paper; without data those that need none."""
    for paper, reproduction in reproductions().items():
        found = stored(list(reproduction.experiments.values()), Store(RESULTS / paper))
        known = [one for one in found if one.trace.provenance.clean]
        ours = [one for one in known if counts_as(one.trace.provenance.numerics, one.plan) == NUMERICS]
        usable = [one for one in ours if DATA or type(one.plan.data).__module__.startswith("papers.")]
        yield from sorted(usable, key=lambda one: one.trace.wall_seconds)[:EACH]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_cheap_records_come_out_again():
    drawn = list(cheap())
    assert len(drawn) >= EACH
    for one in drawn:
        with warnings.catch_warnings(action="ignore"):  # of what the paper's settings do not promise
            again = Trace.of(one.plan, simulate(named(one.plan), data_dir=DATA))
        same_processor = one.trace.provenance.processor == again.provenance.processor
        if same_processor and not conditions(one.trace, again):
            largest = max(differences(one.trace, again).values(), default=0.0)
            assert largest <= ROUNDING, one.name
        assert (again.status, again.steps) == (one.trace.status, one.trace.steps), one.name
        assert again.final() == pytest.approx(one.trace.final(), abs=TOLERANCE), one.name
