"""A way to run a rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class RuleForm:
    """One way to run a rule.

    Args:
        call: runs it on what `prepare` returns.
        prepare: makes the argument of each call, such as a copy for a rule that works in place.
    """

    call: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None


Forms = dict[str, RuleForm]  # by name
