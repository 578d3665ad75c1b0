"""A hospital.  Its table stays in a local file, which is named on the command line of its SuperNode."""

from pathlib import Path

from flwr.app import Context

from hospitals import plan
from phalanx.data import Schema
from phalanx.flower import Participant, client_app


def participant(context: Context) -> Participant:
    site = {name: Path(str(path)) for name, path in context.node_config.items() if name in ("key", "table", "schema")}
    table = Schema.load(site["schema"]).source(str(site["table"]))  # a part is held out, to measure each model on
    return Participant(
        plan.algorithm,
        plan.network,
        plan.training,
        table,
        key=site["key"],
        schema=site["schema"],
        statistics=bool(context.run_config.get("statistics")),
    )


app = client_app(participant)
