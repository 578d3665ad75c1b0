"""The cases as a plugin of pytest, a test for each case and rule.

    pytest -p phalanx.conformance.plugin --library byzfl

Rules that the library lacks are skipped.
"""

from collections.abc import Iterator

import pytest

from phalanx.conformance.cases import CASES, Case
from phalanx.conformance.libraries import LIBRARIES, find
from phalanx.conformance.process import LibraryProcess
from phalanx.conformance.suite import cell, judged, running, versions
from phalanx.errors import InfeasibleError


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--library`."""
    help_ = f"Run Phalanx's cases on the rules of a library: {', '.join(LIBRARIES)}, or a file."
    parser.addoption("--library", help=help_)


def pytest_configure(config: pytest.Config) -> None:
    """Run the tests of this file, and no others, if a library is named."""
    if config.getoption("library"):
        config.args = [__file__]


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Iterator[LibraryProcess]:
    """Start the library that was named."""
    try:
        found = find(request.config.getoption("library"))
        with running(found) as process:
            versions(found, process)
            yield process
    except InfeasibleError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.parametrize(
    ("case", "rule"), [pytest.param(case, rule, id=f"{case.name}-{rule}") for case in CASES for rule in case.rules]
)
def test_a_rule_meets_the_criterion(case: Case, rule: str, library: LibraryProcess) -> None:
    """What a rule does with the inputs of a case meets the criterion in every form."""
    forms = judged(case, rule, library)
    if not forms:
        pytest.skip(f"there is no {rule}")
    if any(verdict.met is False for verdict in forms.values()):
        pytest.fail(f"{rule}: {cell(forms, 'no')}. {case.why} Expected: {case.criterion}", pytrace=False)
