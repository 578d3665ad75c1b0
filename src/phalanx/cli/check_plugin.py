"""`phalanx check` as a plugin of pytest: a test for each property of each class that is named.

    pytest -p phalanx.cli.check_plugin --contract my_file.py:MyRule --contract "TrimmedMean(beta=share)"

Together with tests of one's own: `addopts = "-p phalanx.cli.check_plugin --contract my_file.py:MyRule"`.
"""

from functools import cache

import pytest

from phalanx.cli.check import contract
from phalanx.contracts.breach import Examined
from phalanx.errors import InfeasibleError


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--contract`."""
    help_ = "Check a class, the user's own above all, against the contract of its kind; can be given several times."
    parser.addoption("--contract", action="append", default=[], metavar="FILE:CLASS", help=help_)


def pytest_configure(config: pytest.Config) -> None:
    """Run the test of this file as well, if a class is named."""
    if config.getoption("--contract"):
        config.args.append(__file__)
        config.pluginmanager.register(Properties())


class Properties:
    """Makes a test for each property; no function of this file, which pytest would call twice."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make them."""
        if "kept" not in metafunc.fixturenames:
            return
        named = metafunc.config.getoption("--contract")
        try:
            cases = [(each, name) for each in named for name in _properties(_examined(each))]
        except InfeasibleError as error:
            raise pytest.UsageError(str(error)) from error
        metafunc.parametrize("kept", cases, ids=[f"{each}-{name}" for each, name in cases])


def test_the_contract(kept: tuple[str, str]) -> None:
    """A class has a property of its kind."""
    found, name = _examined(kept[0]), kept[1]
    if why := found.untried.get(name):
        pytest.skip(why)
    for breach in found.broken:
        if breach.property == name:
            pytest.fail(f"{breach.sentence} {breach.example}", pytrace=False)


@cache
def _examined(written: str) -> Examined:
    return contract(written)[1]


def _properties(found: Examined) -> list[str]:
    return [*(breach.property for breach in found.broken), *found.untried, *found.holding]
