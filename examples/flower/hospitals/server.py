"""The coordinator.  It needs no data, but for the schema of the hospitals' tables."""

from pathlib import Path

from flwr.app import Context

from hospitals import plan
from phalanx import Guard, Until
from phalanx.flower import Coordinator, Suspension, Timeouts, server_app


def coordinator(context: Context) -> Coordinator:
    config = context.run_config
    return Coordinator(
        plan.algorithm,
        plan.network,
        roster=Path(str(config["roster"])),
        until=Until(int(config["rounds"])),
        folder=Path(str(config["folder"])),
        schema=Path(str(config["schema"])),
        statistics=bool(config.get("statistics")),  # tell the statistics of tables, and train nothing
        tolerate=plan.LIARS,
        guard=Guard(max_norm=100.0),
        timeouts=Timeouts(answer=120.0),
        suspension=Suspension(strikes=3, sentence=24 * 3600.0),
    )


app = server_app(coordinator)
