"""Real clients: the same algorithms over Flower, with clients that need not be trusted.

Flower carries the messages over TLS to processes on other machines; `docs/deployment.md` shows how to set that up.
This package checks every message: its sender by signature, and its content to the byte.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from phalanx.installation import installation

if find_spec("flwr") is None:
    raise ModuleNotFoundError(f"Real clients need Flower: {installation('flower')}.", name="flwr")

if TYPE_CHECKING:
    from phalanx.flower.client import Participant, client_app, personalize
    from phalanx.flower.codec import MalformedError
    from phalanx.flower.flower_transport import FlowerTransport
    from phalanx.flower.from_run import coordinator_of, participant_of
    from phalanx.flower.identity import Member, Roster, load_key, new_key
    from phalanx.flower.in_process import InProcessGrid
    from phalanx.flower.served_models import choose, hide, offered
    from phalanx.flower.server import Coordinator, coordinate, server_app
    from phalanx.flower.strategy import PhalanxStrategy
    from phalanx.flower.suspension import Standing, Suspension
    from phalanx.flower.timeouts import Timeouts
    from phalanx.runs.updates import Transfer

__all__ = [
    "Coordinator",
    "FlowerTransport",
    "InProcessGrid",
    "MalformedError",
    "Member",
    "Participant",
    "PhalanxStrategy",
    "Roster",
    "Standing",
    "Suspension",
    "Timeouts",
    "Transfer",
    "choose",
    "client_app",
    "coordinate",
    "coordinator_of",
    "hide",
    "load_key",
    "new_key",
    "offered",
    "participant_of",
    "personalize",
    "server_app",
]

HOMES = {  # torch and Flower are imported with the first of these names, and not for a key
    "Coordinator": "phalanx.flower.server",
    "FlowerTransport": "phalanx.flower.flower_transport",
    "InProcessGrid": "phalanx.flower.in_process",
    "MalformedError": "phalanx.flower.codec",
    "Member": "phalanx.flower.identity",
    "Participant": "phalanx.flower.client",
    "PhalanxStrategy": "phalanx.flower.strategy",
    "Roster": "phalanx.flower.identity",
    "Standing": "phalanx.flower.suspension",
    "Suspension": "phalanx.flower.suspension",
    "Timeouts": "phalanx.flower.timeouts",
    "Transfer": "phalanx.runs.updates",
    "choose": "phalanx.flower.served_models",
    "client_app": "phalanx.flower.client",
    "coordinate": "phalanx.flower.server",
    "coordinator_of": "phalanx.flower.from_run",
    "hide": "phalanx.flower.served_models",
    "load_key": "phalanx.flower.identity",
    "new_key": "phalanx.flower.identity",
    "offered": "phalanx.flower.served_models",
    "participant_of": "phalanx.flower.from_run",
    "personalize": "phalanx.flower.client",
    "server_app": "phalanx.flower.server",
}


def __getattr__(name: str) -> Any:
    """Return a public name, and import it for that."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
