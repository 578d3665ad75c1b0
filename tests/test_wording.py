"""Numbers in sentences."""

import pytest

from phalanx.wording import plural


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (0, "client", "0 clients"),
        (1, "client", "1 client"),
        (2, "server update", "2 server updates"),
        (1, "other", "1 other"),
    ],
)
def test_one_and_many(count, noun, said):
    assert plural(count, noun) == said
