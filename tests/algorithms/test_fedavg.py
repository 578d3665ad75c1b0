import pytest
import torch

from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.weighting import Ignore, Truncate
from toys import close, updates


def test_weighs_by_declared_sizes_by_hand():
    algorithm = FedAvg()
    state, ready = algorithm.init(torch.tensor([1.0, 1.0]), {0: 1, 1: 3})
    assert set(ready) == {0, 1}
    state, ready = algorithm.step(state, updates([[4.0, 0.0], [0.0, 8.0]]))
    assert close(state.model, [1 + 4 / 4, 1 + 3 * 8 / 4])
    assert state.version == 1
    assert [v.weight for v in state.verdicts.values()] == [0.25, 0.75]
    assert all(v.accepted for v in state.verdicts.values())


def test_ignore_server_rate_and_rule():
    state, _ = FedAvg(preprocess=Ignore()).init(torch.zeros(1), {0: 1, 1: 10**9})
    state, _ = FedAvg(preprocess=Ignore(), server_lr=0.5).step(state, updates([[2.0], [4.0]]))
    assert close(state.model, [1.5])
    robust = FedAvg(aggregate=Median())
    state, _ = robust.init(torch.zeros(1), {0: 1, 1: 1, 2: 1})
    state, _ = robust.step(state, updates([[1.0], [2.0], [1e9]]))
    assert close(state.model, [2.0])


def test_clients_that_did_not_report_have_no_weight_in_the_round():
    algorithm = FedAvg()
    state, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 1, 2: 2})
    state, ready = algorithm.step(state, updates([[3.0], [6.0]], clients=[0, 2]))
    assert close(state.model, [5.0])
    assert set(ready) == {0, 1, 2}
    assert state.verdicts.keys() == {0, 2}


@pytest.mark.filterwarnings("ignore:Truncate:UserWarning")
def test_who_joins_later_counts_from_the_next_round_and_truncation_is_found_anew():
    algorithm = FedAvg(preprocess=Truncate.as_published(0.25, 0.4))
    state, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 1, 2: 1})
    state = algorithm.join(state, 3, 10**9)
    assert state.weights == {0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0}  # no one of four may hold more than 2 of 5
    state, ready = algorithm.step(state, updates([[0.0], [0.0], [0.0], [5.0]]))
    assert close(state.model, [2.0])
    assert set(ready) == {0, 1, 2, 3}


def test_a_server_rate_of_zero_is_refused():
    with pytest.raises(ValueError, match="server_lr must be positive"):
        FedAvg(server_lr=0.0)
