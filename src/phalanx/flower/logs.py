"""The log of the coordinator: lines of text, or one JSON object per line."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from typing_extensions import override

from phalanx.wording import visible

Form = Literal["text", "json"]
log = logging.getLogger("phalanx")

FIELDS = ("event", "client", "node", "step")  # optional fields of a record in JSON


def log_fields(
    event: str, *, client: int | None = None, node: int | None = None, step: int | None = None
) -> dict[str, Any]:
    """Return the structured fields of a log record, for `extra` of the standard logging.

    Args:
        event: the name of the event, the same as in the audit trail where it is recorded there.
        client: the client concerned.
        node: Flower's number of its node.
        step: the last completed step of the run.
    """
    given = dict(zip(FIELDS, (event, client, node, step), strict=True))
    return {name: value for name, value in given.items() if value is not None}


class TextFormatter(logging.Formatter):
    """One line per record, in which nothing moves a cursor or begins another line; an exception follows on its own."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))


class JSONFormatter(logging.Formatter):
    """One JSON object per record: `time` in UTC, `level`, `logger`, `message`, those of `log_fields`, `exception`."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        fields |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_logs(form: Form) -> None:
    """Write this package's log to standard error, in text or JSON.

    It does not reach the root logger: Flower sends what arrives there over the network, one request per line.
    """
    text = TextFormatter("%(asctime)s %(levelname)s %(message)s")
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
        log.propagate = False
    for handler in log.handlers:
        handler.setFormatter(JSONFormatter() if form == "json" else text)


class WarningLog:
    """Python's warnings as lines of the log, without the line of source that Python prints with them.

    `tell` is given each of them as well, also those of before it was set.
    """

    def __init__(self) -> None:
        self._tell: Callable[[str], None] | None = None
        self._early = list[str]()

    def tell(self, to: Callable[[str], None]) -> None:
        """Set what is called with each warning."""
        self._tell = to
        for text in self._early:
            to(text)

    def __call__(self, text: str) -> None:
        """Take a warning."""
        log.warning("%s", text, extra=log_fields("warning"))
        if self._tell is None:
            self._early.append(text)
        else:
            self._tell(text)


@contextmanager
def logged_warnings() -> Iterator[WarningLog]:
    """Send the warnings of this process to the log, until the context ends; who records warnings still gets them."""
    taken = WarningLog()
    with warnings.catch_warnings():
        before, written = warnings.showwarning, warnings.formatwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            taken(str(message))
            before(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        warnings.formatwarning = lambda *_: ""  # what Python itself would print
        try:
            yield taken
        finally:
            warnings.formatwarning = written
