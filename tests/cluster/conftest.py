"""A Ray cluster of two workers on this machine."""

import os
import sys
import warnings
from pathlib import Path

import pytest
import torch

TOYS = Path(__file__).parents[1] / "experiments" / "reproduce"  # where toy_papers are


@pytest.fixture(scope="session")
def two_workers():
    """A cluster that begins and ends with the tests."""
    import ray

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as workers do: with more, the last bits can be others
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray itself is warned of
        path = {"env_vars": {"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(TOYS)])}}
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=path)
    yield "auto"
    ray.shutdown()
    torch.set_num_threads(before)
