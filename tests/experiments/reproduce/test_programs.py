"""The tables of authors' settings: complete, and true of the runs."""

import pytest

from papers.programs import ASPECTS, Program
from phalanx.experiments.papers.experiment import SCALES, reproductions

PROGRAMS = {
    name: program.exhibit.render.__self__
    for name, reproduction in reproductions().items()
    if (program := reproduction.experiments.get("program"))
}
NO_PROGRAM = {"byzantine-cfl"}  # its authors have published none


def test_each_paper_with_a_program_has_a_table():
    assert PROGRAMS.keys() == reproductions().keys() - NO_PROGRAM
    assert all(isinstance(program, Program) for program in PROGRAMS.values())


@pytest.mark.parametrize("paper", PROGRAMS)
def test_a_table_has_a_row_for_each_aspect(paper):
    assert set(ASPECTS) <= {one.what for one in PROGRAMS[paper].settings}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("paper", PROGRAMS)
def test_a_row_says_why_if_and_only_if_the_runs_differ_from_the_program(paper, scale):
    runs = PROGRAMS[paper].runs(scale, 0)
    for one in PROGRAMS[paper].settings:
        values = one.values(runs)
        assert values, f"no run has {one.field}"
        assert any(value not in one.same for value in values) == bool(one.reason(scale)), (one.what, values)


def test_rffl_trains_on_padded_and_standardised_images_at_the_papers_size():
    runs = PROGRAMS["rffl"].runs("paper", 0)
    values = {one.what: one.values(runs) for one in PROGRAMS["rffl"].settings}
    assert (values["scaling"], values["padding"]) == ([True], [2])
