"""Values worked out by hand or by another implementation, not by this code."""

import math

import pytest
import torch

from model import (
    GPT,
    GPTConfig,
    fused_attention,
    manual_attention,
    merge_heads,
    next_token,
    next_token_probabilities,
    split_heads,
)

BOTH = pytest.mark.parametrize("attention", ["manual", "fused"])


def attend(attention, q, k, v, mask=None):
    return manual_attention(q, k, v, mask)[0] if attention == "manual" else fused_attention(q, k, v, mask)


@BOTH
def test_scaling_and_mask(attention):
    # Second row of a 3-token sequence, d_k = 4: q.k = [2, 0, 1] before scaling; it sees the first two.
    q = torch.tensor([[0.0, 0, 0, 0], [2, 0, 1, 0], [0, 0, 0, 0]])[None, None]
    k = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]])[None, None]
    v = torch.tensor([[1.0], [3.0], [9.0]]).expand(3, 4)[None, None]  # SDPA wants the head width for v too
    y = attend(attention, q, k, v)
    assert y[0, 0, 1, 0].item() == pytest.approx(1.537883, abs=1e-6)
    if attention == "manual":
        weights = manual_attention(q, k, v)[1][0, 0, 1]
        assert weights.tolist() == pytest.approx([0.731059, 0.268941, 0], abs=1e-6)
        unmasked = torch.tensor([2.0, 0, 1]).div(2).softmax(-1)
        assert unmasked[:2].sum().item() == pytest.approx(0.692804, abs=1e-6)  # what masking after the softmax would leave
        assert weights.sum().item() == pytest.approx(1)


@BOTH
@pytest.mark.parametrize("with_h", [False, True])
def test_john_seen_from_o(attention, with_h):
    q_o = torch.tensor([1.0, 2, -1])
    k = torch.tensor([[0.3, 0.7, -0.4], [0.2, 0.2, -0.2], [0.6, 1.2, -0.6]])
    v = torch.tensor([[-0.5, 0.8, 0.1], [0.2, 0.3, -0.7], [0.9, -0.2, 0.4]])
    q = torch.stack([torch.zeros(3), torch.zeros(3), q_o])
    if with_h:
        k_h = torch.tensor([1.0, 1.0, 0.1])
        assert (q_o @ k_h).item() == pytest.approx(2.9)
        q, k, v = (torch.cat([a, b[None]]) for a, b in ((q, q_o), (k, k_h), (v, torch.full((3,), 100.0))))
    q, k, v = q[None, None], k[None, None], v[None, None]
    y = attend(attention, q, k, v)
    assert y[0, 0, 2].tolist() == pytest.approx([0.4505, 0.1211, 0.1872], abs=5e-5)
    if attention == "manual":
        weights = manual_attention(q, k, v)[1][0, 0, 2]
        assert weights[:3].tolist() == pytest.approx([0.2598, 0.1226, 0.6176], abs=5e-5)


def test_heads_are_not_a_reshape():
    x = torch.tensor([[[0, 1, 2, 3], [4, 5, 6, 7]]])
    heads = split_heads(x, 2)
    assert heads.tolist() == [[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]]
    assert torch.equal(merge_heads(heads), x)
    assert not torch.equal(heads, x.reshape(1, 2, 2, 2))


def test_width_3_with_2_heads_is_refused():
    with pytest.raises(ValueError, match=r"n_embd=3 .* n_head=2.*n_embd=2 would fit"):
        GPTConfig(n_embd=3, n_head=2)


def test_variance_of_scores():
    generator = torch.Generator().manual_seed(0)
    for d_k in (4, 64):
        q, k = torch.randn(2, 200_000, d_k, generator=generator)
        assert (q * k).sum(-1).var().item() == pytest.approx(d_k, rel=0.03)
        # beside a key of zeros, whose score is 0, the logarithm of the ratio of the weights is the scaled score
        keys = torch.stack([k, torch.zeros_like(k)], dim=1)[:, None]  # (N, 1, 2, d_k)
        weights = manual_attention(q[:, None, None].double(), keys.double(), keys.double())[1][:, 0, 0]  # (N, 2)
        assert (weights[:, 0] / weights[:, 1]).log().var().item() == pytest.approx(1, rel=0.03)


def test_manual_attention_divides_scores_by_sqrt_d():
    # one query, two keys: the ratio of the weights is exp of the difference of the scaled scores
    q = torch.full((1, 1, 1, 16), 1.0)
    k = torch.stack([torch.full((16,), 0.5), torch.zeros(16)])[None, None]
    weights = manual_attention(q, k, k)[1].flatten()
    assert (weights[0] / weights[1]).log().item() == pytest.approx(8 / 4)


def test_two_state_chain():
    table = torch.tensor([[0.0, math.log(3)], [math.log(4), 0.0]])
    tokens, probability, steps = [0], 1.0, []
    for draw in (0.5, 0.5):
        logits = table[tokens[-1]][None]
        steps.append(next_token_probabilities(logits)[0].tolist())
        tokens.append(next_token(logits, torch.tensor([draw])).item())
        probability *= steps[-1][tokens[-1]]
    assert tokens == [0, 1, 0]
    assert steps[0] == pytest.approx([0.25, 0.75])
    assert steps[1] == pytest.approx([0.8, 0.2])
    assert probability == pytest.approx(0.6)


def test_top_k_keeps_ties():
    kept = next_token_probabilities(torch.tensor([[2.0, 1, 1, 0]]), top_k=2)[0] > 0
    assert kept.tolist() == [True, True, True, False]


@pytest.mark.parametrize("options", [{"top_k": 0}, {"temperature": -1}, {"temperature": math.nan}, {"temperature": math.inf}])
def test_meaningless_sampling_is_refused(options):
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        next_token(torch.zeros(1, 3), torch.zeros(1), **options)


@BOTH
def test_gpt2_of_transformers(tmp_path, attention):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_positions=32, vocab_size=61, n_layer=3, n_head=4, n_embd=32, initializer_range=0.3)
    ).eval()
    theirs.save_pretrained(tmp_path)
    ours = GPT.from_pretrained(str(tmp_path)).eval()
    ours.config.attention = attention
    idx = torch.randint(61, (3, 20))
    with torch.no_grad():
        expected = theirs(idx).logits
        logits, loss = ours(idx, targets=idx)
    assert expected.std() > 0.3  # not all the same
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(expected.flatten(0, 1), idx.flatten()).item(), abs=1e-5)
    greedy = theirs.generate(idx[:, :5], max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert torch.equal(ours.generate(idx[:, :5], 20, temperature=0), greedy)
