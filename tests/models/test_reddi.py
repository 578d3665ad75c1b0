"""The recurrent network: its size, its start, and that it lives in one vector like any other."""

import copy
import pickle

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from commandline import chosen
from phalanx.models import CharLSTM, Model
from phalanx.rng import borrowed, generator
from phalanx.training.vector import FlatModule

SMALL = CharLSTM(embedding=3, hidden=5, layers=2)


def built(model=SMALL, t=6, classes=7):
    with borrowed(0, "test", "build"):
        return model.build((t,), classes)


def texts(n=4, t=6, classes=7):
    return torch.randint(classes, (n, t), generator=generator(0, "test", "texts"))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (CharLSTM(), 820_522),  # 90*8 + 4*256*(8+256+1) + 4*256*(256+256+1) + 256*90+90
        (CharLSTM(hidden=128, layers=1), 82_474),  # 720 + 4*128*(8+128+1) + 128*90+90
        (CharLSTM(hidden=64, layers=1), 25_258),
    ],
    ids=repr,
)
def test_has_as_many_parameters_as_in_keras(model, count):
    module = FlatModule(built(model, 80, 90))
    assert module.size == module.trainable == count
    assert list(module.module.buffers()) == []
    assert module.module.training


def test_maps_texts_to_logits_at_every_position():
    logits = built()(texts())
    assert logits.shape == (4, 7, 6)
    assert logits.isfinite().all()
    assert (logits < 0).any()
    assert (logits > 0).any()


def test_a_score_depends_on_what_came_before_it_and_on_nothing_else():
    module, x = built(), texts()
    changed = x.clone()
    changed[:, 3] = (x[:, 3] + 1) % 7
    differs = (module(changed) - module(x)).abs().amax((0, 1)) > 0
    assert differs.tolist() == [False, False, False, True, True, True]


def test_is_what_the_equations_say():
    """One text of two characters, with the gates written out."""
    module = built(CharLSTM(embedding=3, hidden=5, layers=1))
    w, u, b = module.recur.weight_ih_l0, module.recur.weight_hh_l0, module.recur.bias_ih_l0
    h, c, logits = torch.zeros(5), torch.zeros(5), []
    for character in (4, 2):
        i, f, g, o = (w @ module.embed.weight[character] + u @ h + b).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        logits.append(module.score.weight @ h + module.score.bias)
    torch.testing.assert_close(module(torch.tensor([[4, 2]]))[0], torch.stack(logits, 1))


def test_starts_as_in_the_code_of_the_paper():
    module = built(CharLSTM(), 80, 90)
    gates = {name: value.chunk(4) for name, value in module.recur.named_parameters()}
    for layer, inputs in ((0, 8), (1, 256)):
        assert torch.stack(gates[f"weight_ih_l{layer}"]).std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.03)
        recurrent = torch.cat(gates[f"weight_hh_l{layer}"])
        torch.testing.assert_close(recurrent.T @ recurrent, torch.eye(256), atol=1e-5, rtol=0)
        assert [set(gate.tolist()) for gate in gates[f"bias_ih_l{layer}"]] == [{0.0}, {1.0}, {0.0}, {0.0}]
        assert [set(gate.tolist()) for gate in gates[f"bias_hh_l{layer}"]] == [{0.0}] * 4
    assert 0.049 < module.embed.weight.abs().max() <= 0.05
    assert module.score.weight.std().item() == pytest.approx((2 / (256 + 90)) ** 0.5, rel=0.03)
    assert not module.score.bias.any()


def test_a_borrowed_stream_decides_the_start():
    for a, b in zip(built().parameters(), built().parameters(), strict=True):
        assert torch.equal(a, b)


# --- in one vector


def test_one_vector_holds_all_that_is_trained():
    """The views compute what the module computes, forward and backward, at every value that is loaded."""
    plain, flat = built(), FlatModule(built())
    x, y = texts(), texts() % 7
    for shift in (0.0, 0.3):
        vector = torch.cat([p.detach().flatten() for p in plain.parameters() if p.requires_grad]) + shift
        flat.load(vector)
        vector_to_parameters(vector, [p for p in plain.parameters() if p.requires_grad])
        assert torch.equal(flat.module(x), plain(x))
        flat.gradient.zero_()
        cross_entropy(flat.module(x), y).backward()
        trained = [p for p in plain.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(cross_entropy(plain(x), y), trained)
        torch.testing.assert_close(flat.gradient, torch.cat([g.flatten() for g in gradients]))
        assert all(gradient.any() for gradient in gradients)
        assert torch.equal(flat.read(), vector)


def test_the_second_bias_stays_zero():
    flat = FlatModule(built())
    flat.load(torch.ones(flat.size))
    assert all(not p.any() for name, p in flat.module.named_parameters() if "bias_hh" in name)
    assert all((p == 1).all() for name, p in flat.module.named_parameters() if "bias_hh" not in name)


def test_evaluation_does_not_get_in_the_way_of_training():
    flat, x = FlatModule(built()), texts()
    with torch.inference_mode():
        flat.module.eval()(x)
    flat.module.train()
    cross_entropy(flat.module(x), x).backward()
    assert flat.gradient.any()


# --- as a value


def test_is_a_value_that_can_be_chosen_on_a_command_line():
    for same in (copy.deepcopy(SMALL), pickle.loads(pickle.dumps(SMALL)), eval(repr(SMALL), {"CharLSTM": CharLSTM})):
        assert same == SMALL
        assert hash(same) == hash(SMALL)
    assert chosen("model", Model, ["--model=CharLSTM", "--model.hidden=5", "--model.embedding=3"]) == SMALL


@pytest.mark.parametrize("field", ["embedding", "hidden", "layers"])
def test_refuses_sizes_below_one(field):
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        CharLSTM(**{field: 0})


@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [
        ((1, 28, 28), 10, r"CharLSTM\(.*\) takes sequences of characters of shape \(t,\), got shape \(1, 28, 28\)"),
        ((), 10, "takes examples with at least one feature"),
        ((80,), 0, "needs at least 1 output"),
    ],
)
def test_refuses_other_examples(shape, classes, message):
    with pytest.raises(ValueError, match=message):
        SMALL.build(shape, classes)
