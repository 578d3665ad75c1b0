"""The log of the coordinator: lines for people, or one JSON object per line for programs."""

import json
import logging
from datetime import UTC, datetime
from typing import Literal

Form = Literal["text", "json"]
log = logging.getLogger("phalanx.flower")


class AsJSON(logging.Formatter):
    """One JSON object per record: `time` in UTC, `level`, `logger`, `message`, and `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def speak(form: Form) -> None:
    """Has the log of this package come out, and not that of each request, which Flower would send over the wire."""
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
        log.propagate = False
    for handler in log.handlers:
        handler.setFormatter(AsJSON() if form == "json" else text)
