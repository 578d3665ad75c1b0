"""The log of the coordinator: lines for people, or one JSON object per line for programs."""

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

Form = Literal["text", "json"]
log = logging.getLogger("phalanx")


ABOUT = ("event", "client", "node", "step")  # what a record may say of itself beside its message


def log_fields(
    event: str, *, client: int | None = None, node: int | None = None, step: int | None = None
) -> dict[str, Any]:
    """What a record says for programs, as `extra` of the standard logging.

    Args:
        event: in the words of the audit trail, where it has one.
        client: whom it concerns.
        node: Flower's number of it.
        step: of the run, the last that was done.
    """
    given = dict(zip(ABOUT, (event, client, node, step), strict=True))
    return {name: value for name, value in given.items() if value is not None}


class JSONFormatter(logging.Formatter):
    """One JSON object per record: `time` in UTC, `level`, `logger`, `message`; what `log_fields` says, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        told |= {name: getattr(record, name) for name in ABOUT if hasattr(record, name)}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def configure_logs(form: Form) -> None:
    """Has the log of this package come out, and not that of each request, which Flower would send over the wire."""
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
        log.propagate = False
    for handler in log.handlers:
        handler.setFormatter(JSONFormatter() if form == "json" else text)
