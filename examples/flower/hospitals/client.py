"""A hospital.  Its examples stay in a local file, which is named on the command line of its SuperNode."""

from pathlib import Path

import numpy as np
import torch
from flwr.app import Context

from hospitals import plan
from phalanx.data import Dataset
from phalanx.flower import Participant, client_app


def participant(context: Context) -> Participant:
    config = context.node_config
    with np.load(str(config["data"]), allow_pickle=False) as file:
        data = Dataset(torch.from_numpy(file["x"]), torch.from_numpy(file["y"]), plan.DIAGNOSES)
    return Participant(plan.algorithm, plan.model(), plan.training, data, key=Path(str(config["key"])))


app = client_app(participant)
