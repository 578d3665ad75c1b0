"""The models that a federation of real clients ends with, and what hides them from its server."""

import dataclasses

import pytest
import safetensors.torch
import torch

import phalanx
from flower.federations import (
    KEYS,
    QUICK,
    SMALL,
    at_nodes,
    coordinator,
    examples,
    honest,
    roster_of,
    states_in_simulation,
)
from phalanx import LocalSGD
from phalanx.algorithms import RFFL, SCAFFOLD, ClusteredFL, FedAvg, Permuted, Quorum, Rotated
from phalanx.attacks import Misreporting
from phalanx.core import InfeasibleError
from phalanx.data import InMemory, PermutedLabels
from phalanx.engine import Guard
from phalanx.flower import (
    Coordinator,
    InProcessGrid,
    choose,
    client_app,
    coordinate,
    coordinator_of,
    hide,
    offered,
    participant_of,
)
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from phalanx.runs.record import Record
from phalanx.runs.seal import SealError
from phalanx.training.evaluation import evaluate
from phalanx.training.vector import FlatModule

SPLIT = ClusteredFL(split_rounds=(1,), min_gap=0.0)
OPPOSED = dataclasses.replace(
    SMALL,
    data=InMemory(examples(600, 0), examples(20, 1)),
    algorithm=SPLIT,
    groups=PermutedLabels(2),
    model=MLP((16,)),
    training=LocalSGD(epochs=2, batch_size=20, lr=0.5),
    until=phalanx.Until(4),
)


def carried_out(plan, folder):
    """The last state of a run with real clients, and its federation."""
    federation = Federation(plan)
    with InProcessGrid(at_nodes(honest(plan, folder / "clients", federation))) as grid:
        made = coordinator_of(plan, roster_of(plan.clients), federation, folder=folder / "run", timeouts=QUICK)
        return coordinate(grid, made), federation


def values(path, federation):
    model = FlatModule(federation.plan.model.build((5,), 2))
    model.module.load_state_dict(safetensors.torch.load_file(path))
    return model.read()


@pytest.mark.parametrize("algorithm", [FedAvg(), SCAFFOLD()], ids=str)
def test_one_model_for_all_is_one_file(algorithm, tmp_path):
    state, federation = carried_out(dataclasses.replace(SMALL, algorithm=algorithm, until=phalanx.Until(2)), tmp_path)
    path = tmp_path / "run" / "model.safetensors"
    assert offered(tmp_path / "run", 3) == {0: path}
    assert torch.equal(values(path, federation), state.model)
    assert not (tmp_path / "run" / "models").exists()


def test_a_model_that_was_changed_is_not_offered(tmp_path):
    carried_out(dataclasses.replace(SMALL, until=phalanx.Until(2)), tmp_path)
    path = tmp_path / "run" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(SealError, match=r"model\.safetensors was changed"):
        offered(tmp_path / "run", 3)


def test_every_cluster_leaves_its_model_and_a_client_chooses_on_its_path(tmp_path):
    state, federation = carried_out(OPPOSED, tmp_path)
    assert state.clusters == {1: (0, 1, 2), 2: (3, 4, 5)}
    folder = tmp_path / "run"
    assert sorted(path.name for path in (folder / "models").iterdir()) == ["1.safetensors", "2.safetensors"]
    for client, leaf in ((0, 1), (5, 2)):
        files = offered(folder, client)
        assert {number: path.name for number, path in files.items()} == {
            0: "model.safetensors",
            leaf: f"{leaf}.safetensors",
        }
        for number, path in files.items():
            assert torch.equal(values(path, federation), state.tree.nodes[number].model)
        module = OPPOSED.model.build((5,), 2)
        assert choose(files, module, federation.data[client]) == leaf
        assert torch.equal(FlatModule(module).read(), state.tree.nodes[leaf].model)
    assert torch.equal(values(folder / "model.safetensors", federation), state.model)


def test_a_client_can_choose_the_more_general_model(tmp_path):
    """On examples of the other cluster its own model is worse than that of both."""
    state, federation = carried_out(OPPOSED, tmp_path)
    files, module = offered(tmp_path / "run", 0), OPPOSED.model.build((5,), 2)
    general, own = (evaluate(FlatModule(module), state.tree.nodes[k].model, federation.data[5]).loss for k in (0, 1))
    assert general < own
    assert choose(files, module, federation.data[5]) == 0


def test_models_of_their_own_are_a_file_for_each_client(tmp_path):
    state, federation = carried_out(dataclasses.replace(SMALL, algorithm=RFFL(), until=phalanx.Until(2)), tmp_path)
    for client in range(6):
        ((number, path),) = offered(tmp_path / "run", client).items()
        assert (number, path.name) == (0, f"0-client-{client}.safetensors")
        assert torch.equal(values(path, federation), RFFL().candidate_models(state, client)[0]), "without a shift"


def test_models_of_an_earlier_run_are_not_taken_for_those_of_one_that_failed(tmp_path):
    carried_out(OPPOSED, tmp_path)
    folder = tmp_path / "run"

    class BrokenError(Exception):
        pass

    def breaks(progress):
        if progress.step == 1:
            raise BrokenError

    plan = dataclasses.replace(SMALL, algorithm=FedAvg())
    with InProcessGrid(at_nodes(honest(plan, tmp_path / "clients"))) as grid, pytest.raises(BrokenError):
        coordinate(grid, coordinator(plan, folder=folder, observers=[breaks]))
    assert not (folder / "models").exists()
    (path,) = offered(folder, 0).values()
    assert Record.load(folder).models.index.step == 1
    assert path == folder / "model.safetensors"


def test_a_run_that_goes_on_offers_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There are no models in .*: the run is not over"):
        offered(tmp_path, 0)


def test_who_did_not_take_part_is_offered_nothing(tmp_path):
    carried_out(OPPOSED, tmp_path)
    with pytest.raises(LookupError, match="Client 9 did not take part"):
        offered(tmp_path / "run", 9)


def test_what_cannot_be_written_fails_the_run_and_is_on_its_record(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("phalanx.runs.models.write_inside", full)
    with pytest.raises(OSError, match="No space left"):
        carried_out(dataclasses.replace(SMALL, until=phalanx.Until(1)), tmp_path)
    summary = Record.load(tmp_path / "run").summary
    assert (summary.status, "No space left" in summary.error) == ("failed", True)


# Hidden from the server


@pytest.mark.parametrize("kind", [Permuted, Rotated])
def test_a_server_that_sees_no_model_in_the_clear_trains_the_same(kind, tmp_path):
    plan = dataclasses.replace(OPPOSED, algorithm=kind(SPLIT, seed=7))
    state, federation = carried_out(plan, tmp_path)
    simulated = states_in_simulation(plan)[-1]
    assert torch.equal(state.model, simulated.model)
    assert state.clusters == simulated.clusters == {1: (0, 1, 2), 2: (3, 4, 5)}
    files, module = offered(tmp_path / "run", 4), OPPOSED.model.build((5,), 2)
    assert choose(files, module, federation.data[4], plan.algorithm) == 2
    clear = FlatModule(module).read()
    assert torch.equal(clear, plan.algorithm.revealed(state.tree.nodes[2].model))
    assert not torch.equal(clear, state.tree.nodes[2].model)


def test_a_server_is_not_given_the_seed():
    hidden = Permuted(SPLIT, seed=7)
    for algorithm in (hidden, Quorum(hidden, 2)):
        with pytest.raises(
            InfeasibleError, match=r"Permuted hides models .* Give it .*ClusteredFL\(.* Only clients run"
        ):
            coordinator(dataclasses.replace(SMALL, algorithm=algorithm))
    made = coordinator_of(dataclasses.replace(OPPOSED, algorithm=Quorum(hidden, 2)), roster_of(6))
    assert made.algorithm == Quorum(SPLIT, 2)
    assert isinstance(made, Coordinator)


def test_only_what_hides_can_hide():
    module = MLP((4,)).build((5,), 2)
    before = FlatModule(module).read()
    with pytest.raises(InfeasibleError, match="hides nothing"):
        hide(module, FedAvg())
    hide(module, Quorum(Permuted(FedAvg(), seed=1), 2))
    assert torch.equal(FlatModule(module).read(), Permuted(FedAvg(), seed=1).hidden(before))


@dataclasses.dataclass(frozen=True)
class Reports(Misreporting):
    """Reports a size, whatever it has."""

    size: int

    def reported_size(self, size):
        return self.size


@pytest.mark.parametrize("algorithm", [RFFL(), Quorum(RFFL(), k=3)], ids=["rounds", "arrivals"])
@pytest.mark.parametrize("size", [0, 5000])
def test_who_is_not_enrolled_is_offered_nothing_and_the_models_are_written(algorithm, size, tmp_path):
    plan = dataclasses.replace(SMALL, algorithm=algorithm, guard=Guard(max_size=1000), until=phalanx.Until(4))
    federation = Federation(plan)
    apps = honest(plan, tmp_path / "clients", federation)
    made = participant_of(plan, 2, KEYS[2], tmp_path / "clients" / "2", federation)
    apps[2] = client_app(dataclasses.replace(made, attack=Reports(size)))
    with InProcessGrid(at_nodes(apps)) as grid:
        made = coordinator_of(plan, roster_of(6), federation, folder=tmp_path / "run", timeouts=QUICK)
        state = coordinate(grid, made)
    assert state.version > 0
    record = Record.load(tmp_path / "run")
    assert record.summary.status == "finished"
    assert f"reports {size:,} examples" in record.summary.clients[2].not_enrolled
    assert record.models.index.clients.keys() == {0, 1, 3, 4, 5}
