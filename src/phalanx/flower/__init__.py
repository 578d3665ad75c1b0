"""Real clients: the same algorithms over Flower, with clients that need not be trusted.

Flower carries the messages over TLS to processes on other machines; `docs/deployment.md` shows how to set that up.
This package checks every message: its sender by signature, and its content to the byte.
"""

from phalanx.installation import installation

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"Real clients need Flower: {installation('flower')}.") from error

from phalanx.flower.client import Participant, client_app, personalize
from phalanx.flower.codec import Malformed
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
    "Malformed",
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
