"""Room for matrices: what `torch.empty` would give, aligned, whatever the size and the type."""

import copy
import pickle

import pytest
import torch

from phalanx.numerics.allocation import LARGE, LINE, room

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("entries", [0, 1, LARGE // 8 - 1, LARGE // 8, LARGE // 8 + 3, LARGE])
def test_it_is_an_ordinary_tensor(dtype, entries):
    made = room((3, entries), dtype)
    assert (made.shape, made.dtype, made.device.type) == ((3, entries), dtype, "cpu")
    assert made.is_contiguous()
    if made.numel():
        assert made.data_ptr() % LINE == 0
    made.copy_(torch.arange(3 * entries).reshape(3, entries) % 97)
    wanted = (torch.arange(3 * entries).reshape(3, entries) % 97).to(dtype)
    assert torch.equal(made, wanted)
    assert torch.equal(copy.deepcopy(made), wanted)


def test_it_outlives_what_made_it_and_can_be_kept():
    rows = room((64, LARGE // 64)).fill_(3.0).unbind()
    assert float(rows[-1].sum()) == 3 * LARGE // 64
    assert torch.equal(pickle.loads(pickle.dumps(rows[5])), rows[5])


def test_elsewhere_than_on_the_cpu_torch_has_the_room():
    assert room((2, LARGE), device="meta").device.type == "meta"
