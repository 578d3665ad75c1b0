"""What holds for every test: types and shapes are checked while it runs."""

import pytest
import torch

import typechecking

typechecking.check("phalanx")


@pytest.fixture
def one_thread():
    """One thread of torch, as in the processes of the commands."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
