"""zoo/block.py against torch's own layers, formulas and plain loops."""

import math

import pytest
import torch
import torch.nn.functional as F

from zoo.block import Block, CrossAttention, SelfAttention, ShapeConfig, Stack, check_ids, padding_mask, places, sinusoids

CLOSE = {"atol": 1e-10, "rtol": 0}
PATHS = pytest.mark.parametrize("path", ["fused", "manual"])
POSITIONS = pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
PLACES = pytest.mark.parametrize("norm_place", ["post", "pre"])


def shape(**changes):
    return ShapeConfig(**{"block_size": 9, "n_layer": 2, "n_head": 2, "n_embd": 8, **changes})


def random(module, seed=0):
    """In float64, with every parameter away from where it begins."""
    module = module.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=p.dtype) + (p.dim() == 1))
    return module.eval()


def normal(*size, seed=1):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def theirs(ours):
    """torch's own attention with the weights of ours."""
    layer = torch.nn.MultiheadAttention(ours.config.n_embd, ours.config.n_head, batch_first=True).double()
    layer.load_state_dict(
        {
            "in_proj_weight": ours.c_attn.weight,
            "in_proj_bias": ours.c_attn.bias,
            "out_proj.weight": ours.c_proj.weight,
            "out_proj.bias": ours.c_proj.bias,
        }
    )
    return layer.eval()


# attention


@PATHS
def test_self_attention_is_torchs_own_and_looks_both_ways(path):
    ours, x, idx = random(SelfAttention(shape(attention=path))), normal(3, 5, 8), torch.ones(3, 5, dtype=torch.int64)
    idx[1, 3:], idx[2, :2] = -1, -1
    with torch.no_grad():
        for mask, ignored in ((None, None), (padding_mask(idx), idx < 0)):
            wanted = theirs(ours)(x, x, x, key_padding_mask=ignored, need_weights=False)[0]
            torch.testing.assert_close(ours(x, None, mask), wanted, **CLOSE)
        later = x.clone()
        later[:, -1] += 1
        assert ((ours(later, None, None) - ours(x, None, None)).abs().amax(-1) > 1e-3).all()


@PATHS
def test_cross_attention_is_torchs_own(path):
    ours, x, memory = random(CrossAttention(shape(attention=path))), normal(3, 4, 8), normal(3, 6, 8, seed=2)
    idx = torch.ones(3, 6, dtype=torch.int64)
    idx[1, 4:], idx[2, :1] = -1, -1
    with torch.no_grad():
        wanted, weights = theirs(ours)(x, memory, memory, key_padding_mask=idx < 0, average_attn_weights=False)
        torch.testing.assert_close(ours(x, ours.keys_values(memory), padding_mask(idx)), wanted, **CLOSE)
        if path == "manual":
            y, found = ours(x, ours.keys_values(memory), padding_mask(idx), return_weights=True)
            torch.testing.assert_close(y, wanted, **CLOSE)
            torch.testing.assert_close(found, weights, **CLOSE)
            assert (found[1, :, :, 4:] == 0).all() and (found[2, :, :, 0] == 0).all()


@PATHS
def test_normalised_queries_and_keys_do_not_depend_on_their_length(path):
    """Else a score of cross-attention could blow up, qk_norm or not."""
    ours, x, memory = random(CrossAttention(shape(attention=path, qk_norm=True, bias=False))), normal(2, 4, 8), normal(2, 5, 8, seed=2)
    with torch.no_grad():
        before = ours(x, ours.keys_values(memory))
        ours.c_attn.weight[:16] *= 1000  # queries and keys
        torch.testing.assert_close(ours(x, ours.keys_values(memory)), before, atol=1e-5, rtol=0)
        ours.config.qk_norm = False
        assert (ours(x, ours.keys_values(memory)) - before).abs().max() > 0.1


# the block


@PATHS
@PLACES
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_the_block_is_torchs_own_layer(path, norm_place, activation, cross):
    config = shape(attention=path, norm_place=norm_place, activation=activation)
    block, x, memory = random(Block(config, cross)), normal(3, 5, 8), normal(3, 6, 8, seed=2)
    kind = torch.nn.TransformerDecoderLayer if cross else torch.nn.TransformerEncoderLayer
    function = F.relu if activation == "relu" else lambda x: F.gelu(x, approximate="tanh")
    layer = kind(8, 2, 32, dropout=0.0, activation=function, batch_first=True, norm_first=norm_place == "pre").double().eval()
    layer.load_state_dict(layer_weights(block))
    mask = torch.ones(5, 5).tril().bool()
    with torch.no_grad():
        wanted = layer(x, memory, tgt_mask=~mask) if cross else layer(x, ~mask)
        found = block(x, mask, memory=block.cross.keys_values(memory) if cross else None)
    torch.testing.assert_close(found, wanted, **CLOSE)


def layer_weights(block, prefix=""):
    """The weights of a block under the names that torch's encoder and decoder layers have for them."""
    pairs = {"self_attn.in_proj_": block.attn.c_attn, "self_attn.out_proj.": block.attn.c_proj, "norm1.": block.ln_1}
    if hasattr(block, "cross"):
        pairs |= {"multihead_attn.in_proj_": block.cross.c_attn, "multihead_attn.out_proj.": block.cross.c_proj}
        pairs |= {"norm2.": block.ln_cross, "norm3.": block.ln_2}
    else:
        pairs |= {"norm2.": block.ln_2}
    pairs |= {"linear1.": block.mlp.c_fc, "linear2.": block.mlp.c_proj}
    return {prefix + name + part: getattr(ours, part) for name, ours in pairs.items() for part in ("weight", "bias")}


# positions


def test_sinusoids_are_the_papers():
    found = sinusoids(torch.arange(50), 6)
    for position in range(50):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            assert found[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert found[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_places_count_what_is_no_padding():
    idx = torch.tensor([[4, 0, 7, -1, -1], [-1, -1, 3, 0, 1], [5, 5, 5, 5, 5]])
    found = places(idx)
    assert found.tolist() == [[0, 1, 2, 2, 2], [0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    assert padding_mask(idx).shape == (3, 1, 1, 5) and padding_mask(idx)[:, 0, 0].tolist() == (idx >= 0).tolist()


@POSITIONS
def test_without_positions_the_order_would_not_matter(position):
    stack, x = random(Stack(shape(position=position))), normal(2, 6, 8)
    with torch.no_grad():
        permuted = stack(x.flip(1), torch.arange(6)).flip(1)
        assert (permuted - stack(x, torch.arange(6))).abs().max() > 1e-2
        same = stack(x.flip(1), torch.arange(6).flip(0)).flip(1)  # each keeps its own
        torch.testing.assert_close(same, stack(x, torch.arange(6)), **CLOSE)


@POSITIONS
def test_positions_may_be_given_for_each_row(position):
    stack, x = random(Stack(shape(position=position))), normal(2, 4, 8)
    positions = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 2]])
    with torch.no_grad():
        together = stack(x, positions)
        for row in range(2):
            torch.testing.assert_close(together[row : row + 1], stack(x[row : row + 1], positions[row]), **CLOSE)


def test_rotary_positions_are_relative():
    stack, x = random(Stack(shape(position="rotary"))), normal(2, 4, 8)
    with torch.no_grad():
        torch.testing.assert_close(stack(x, torch.arange(4) + 5), stack(x, torch.arange(4)), atol=1e-5, rtol=0)  # angles in float32
        assert (stack(x, torch.arange(4) * 2) - stack(x, torch.arange(4))).abs().max() > 1e-3


@PLACES
def test_a_last_norm_stands_behind_a_sum_that_has_none(norm_place):
    stack = Stack(shape(norm_place=norm_place)).double()
    x = stack(normal(3, 5, 8) * 10, torch.arange(5))
    torch.testing.assert_close(x.mean(-1), torch.zeros(3, 5, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.var(-1, unbiased=False), torch.ones(3, 5, dtype=torch.float64), atol=1e-3, rtol=0)
    norms = [name for name, _ in stack.named_parameters() if "ln_" in name and name.endswith("weight")]
    assert len(norms) == (4 if norm_place == "post" else 5)


# mistakes


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"n_embd": 10, "n_head": 4}, ["n_embd=10", "n_head=4", "n_embd=8"]),
        ({"n_embd": 10, "n_head": 2, "position": "rotary"}, ["n_embd=10", "n_head=2", "n_embd=8"]),
        ({"n_embd": 9, "n_head": 3}, ["n_embd=9", "n_embd=6"]),  # a sine and a cosine for each pair of channels
        ({"norm_place": "middle"}, ["norm_place='middle'", "post, pre"]),
        ({"position": "absolute"}, ["position='absolute'", "sinusoidal, learned, rotary"]),
        ({"n_layer": 0}, ["n_layer=0", "at least 1"]),
        ({"dropout": 1.0}, ["dropout=1.0", "below 1"]),
        ({"label_smoothing": 1.0}, ["label_smoothing=1.0", "below 1"]),
        ({"label_smoothing": -0.1}, ["label_smoothing=-0.1", "at least 0"]),
    ],
)
def test_a_shape_that_cannot_work_is_refused(changes, parts):
    with pytest.raises(ValueError) as error:
        shape(**changes)
    for part in parts:
        assert part in str(error.value)


@POSITIONS
def test_too_many_tokens_are_refused(position):
    stack = random(Stack(shape(position=position)))
    assert stack(normal(1, 9, 8), torch.arange(9)).shape == (1, 9, 8)
    with pytest.raises(ValueError, match="10 tokens do not fit: 9 "):
        stack(normal(1, 10, 8), torch.arange(10))


def test_ids_outside_the_vocabulary_are_refused():
    check_ids("source", torch.tensor([[-1, 0, 4]]), 5)
    check_ids("source", torch.empty(1, 0, dtype=torch.int64), 5)
    for wrong in (5, -2):
        with pytest.raises(ValueError, match=f"source id {wrong} .*0 to 4"):
            check_ids("source", torch.tensor([[0, wrong]]), 5)
