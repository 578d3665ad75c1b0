"""A hospital.  Its table stays in a local file, which is named on the command line of its SuperNode."""

from pathlib import Path

from flwr.app import Context

from hospitals import plan
from phalanx.flower import Participant, client_app


def participant(context: Context) -> Participant:
    site = {name: Path(str(path)) for name, path in context.node_config.items() if name in ("key", "table", "schema")}
    return Participant(
        plan.algorithm,
        plan.network,
        plan.training,
        site["table"],
        key=site["key"],
        schema=site["schema"],
        signed=bool(context.node_config.get("signed")),
        statistics=bool(context.run_config.get("statistics")),
    )


app = client_app(participant)
