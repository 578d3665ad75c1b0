"""What every test of real clients is given."""

import pytest

from phalanx.flower.logs import log


@pytest.fixture(autouse=True)
def log_as_it_was():
    """A server's app makes the log its own, for the whole process."""
    handlers, level, propagate = [*log.handlers], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = handlers, level, propagate
