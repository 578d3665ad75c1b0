"""The causal transformer, and models of which only a part is trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from phalanx import Run, Until, simulate
from phalanx.data import Dataset, InMemory
from phalanx.models import MLP, CausalTransformer, GivenModule, PartlyTrained
from phalanx.rng import borrowed
from phalanx.runs.federation import Federation
from phalanx.training import FlatModule, LocalOptimizer, LocalSGD, NextToken

TOKENS, LENGTH = 8, 12


def built(**sizes):
    with borrowed(0, "model"):
        return CausalTransformer(16, 2, 2, **sizes).build((LENGTH,), TOKENS)


def texts(count, seed):
    rng = torch.Generator().manual_seed(seed)
    signs = torch.randint(1, 3, (count, LENGTH + 1), generator=rng).cumsum(1) % TOKENS
    return Dataset(signs[:, :-1].contiguous(), signs[:, 1:].contiguous(), TOKENS)


def test_is_torchs_encoder_with_a_causal_mask():
    module, x = built().eval(), texts(3, 0).x
    states = module.embed(x) + module.places.weight
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    for ours in module.layers:
        theirs = nn.TransformerEncoderLayer(16, 2, 64, 0.0, functional.gelu, batch_first=True, norm_first=True).eval()
        parts = (ours.query, ours.key, ours.value)
        theirs.self_attn.in_proj_weight.data = torch.cat([part.weight for part in parts])
        theirs.self_attn.in_proj_bias.data = torch.cat([part.bias for part in parts])
        for to, source in (
            (theirs.self_attn.out_proj, ours.mix), (theirs.linear1, ours.widen), (theirs.linear2, ours.narrow),
            (theirs.norm1, ours.before_attention), (theirs.norm2, ours.before_widening),
        ):  # fmt: skip
            to.load_state_dict(source.state_dict())
        states = theirs(states, mask)
    torch.testing.assert_close(module(x), module.norm(states) @ module.embed.weight.T, rtol=1e-4, atol=1e-5)


def test_a_token_changes_no_earlier_scores():
    module, x = built(), texts(1, 0).x
    other = x.clone()
    other[0, 7] = (other[0, 7] + 3) % TOKENS
    changed = (module(x) - module(other)).abs().amax(2)[0]
    assert not changed[:7].any()
    assert changed[7:].min() > 0


def test_tied_weights_are_one_part_of_the_vector_and_get_both_gradients():
    tied, untied = FlatModule(built()), FlatModule(built(tied=False))
    assert untied.size - tied.size == TOKENS * 16
    flat = FlatModule(built())
    assert flat.module.score.weight.data_ptr() == flat.module.embed.weight.data_ptr()
    flat.load(flat.read() + 1)
    assert torch.equal(flat.module.score.weight, flat.module.embed.weight)
    assert CausalTransformer().build((64,), 64).score.weight.numel() == 64 * 64
    assert sum(p.numel() for p in CausalTransformer().build((64,), 64).parameters()) == 108_288


def test_only_what_is_trained_is_sent_and_the_rest_stays():
    model = PartlyTrained(CausalTransformer(16, 2, 2), ("layers.1.*", "norm.*"))
    plan = Run(
        data=InMemory(texts(60, 0), texts(20, 1)), model=model, clients=3, task=NextToken(),
        training=LocalSGD(lr=0.5), until=Until(3),
    )  # fmt: skip
    federation = Federation(plan)
    before = {name: p.detach().clone() for name, p in federation.model.module.named_parameters()}
    assert len(federation.start) == sum(p.numel() for n, p in before.items() if n.startswith(("layers.1.", "norm.")))
    record = simulate(plan)
    for name, parameter in record.model().named_parameters():
        if name != "layers.1.key.bias":  # which has no gradient: it adds the same to all scores of a position
            assert torch.equal(parameter, before[name]) is not name.startswith(("layers.1.", "norm.")), name


def test_a_module_that_was_trained_before_is_the_base():
    base = built()
    model = PartlyTrained(GivenModule(base), ("norm.*",))
    flat = FlatModule(model.build((LENGTH,), TOKENS))
    assert flat.size == 32
    assert torch.equal(flat.module.embed.weight, base.embed.weight)
    assert model == PartlyTrained(GivenModule(base), ("norm.*",))


def test_bfloat16_computes_nearly_the_same():
    data = InMemory(texts(60, 0), texts(20, 1))
    losses = []
    for precision in ("float32", "bfloat16"):
        training = LocalOptimizer("Adam", 0.01, precision=precision)
        plan = Run(
            data=data, model=CausalTransformer(16, 1, 2), clients=3, task=NextToken(), training=training, until=Until(3)
        )
        losses.append(simulate(plan).summary.final.loss)
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] < 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CausalTransformer(width=10, heads=3), "multiple of heads"),
        (lambda: CausalTransformer(layers=0), "layers must be at least 1"),
        (lambda: CausalTransformer().build((1, 8, 8), 4), "takes sequences of tokens"),
        (
            lambda: PartlyTrained(MLP((4,)), ("head.*",)).build((3,), 2),
            r"No parameter .* head.\*.*1\.weight",
        ),
    ],
)
def test_settings_that_make_no_model(make, message):
    with pytest.raises(ValueError, match=message):
        make()
