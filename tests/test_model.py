"""model.py: invariants of attention, the model and its generation."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import (
    GPT,
    CausalSelfAttention,
    GPTConfig,
    KVCache,
    causal_mask,
    document_mask,
    drop,
    fused_attention,
    gelu,
    manual_attention,
    next_token,
    next_token_probabilities,
    rotate,
    uniform_draws,
)

GPT2 = GPTConfig(block_size=12, vocab_size=17, n_layer=2, n_head=2, n_embd=16)
MODERN = replace(GPT2, bias=False, norm="rmsnorm", position="rotary", activation="relu2", qk_norm=True, tied_head=False, pad_vocab_to=8)
ATTENTION = pytest.mark.parametrize("attention", ["manual", "fused"])
SHAPE = pytest.mark.parametrize("config", [GPT2, MODERN], ids=["gpt2", "modern"])


def make(config, scale=10.0, **changes):
    """A model whose predictions differ from uniform: GPT-2's small initial weights, scaled up."""
    torch.manual_seed(1)
    model = GPT(replace(config, **changes)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(scale)
    return model


def ids(*shape):
    return torch.randint(17, shape, generator=torch.Generator().manual_seed(5))


# attention


@ATTENTION
@SHAPE
def test_the_future_changes_no_earlier_logit(config, attention):
    model = make(config, attention=attention)
    idx = ids(2, 12)
    before, _ = model(idx, idx)
    for t in range(1, 12):
        changed = idx.clone()
        changed[:, t] = (changed[:, t] + 1) % 17
        after, _ = model(changed, idx)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (7, 7), (1, 9), (3, 9), (16, 16)])
@pytest.mark.parametrize("masked", [False, True])
def test_manual_and_fused_agree_with_their_gradients(dtype, tolerance, T, S, masked):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=generator, dtype=dtype, requires_grad=True) for n in (T, S, S))
    mask = causal_mask(T, S) & (torch.rand(2, 1, T, S, generator=generator) < 0.7) | torch.eye(T, S, dtype=torch.bool) if masked else None
    direction = torch.randn(2, 3, T, 8, generator=generator, dtype=dtype)
    results = []
    for y in (manual_attention(q, k, v, mask)[0], fused_attention(q, k, v, mask)):
        results.append((y, *torch.autograd.grad((y * direction).sum(), (q, k, v))))
    for manual, fused in zip(*results, strict=True):
        torch.testing.assert_close(manual, fused, atol=tolerance, rtol=tolerance)


def test_manual_attention_against_loops():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 4, generator=generator, dtype=torch.float64) for n in (3, 5, 5))
    y, weights = manual_attention(q, k, v)
    for i in range(3):
        seen = range(5 - 3 + i + 1)
        scores = [sum(q[0, 0, i, d] * k[0, 0, j, d] for d in range(4)) / 2 for j in seen]
        total = sum(math.exp(s) for s in scores)
        for j in seen:
            assert weights[0, 0, i, j].item() == pytest.approx(math.exp(scores[j]) / total)
        expected = sum(math.exp(scores[j]) / total * v[0, 0, j] for j in seen)
        torch.testing.assert_close(y[0, 0, i], expected)
        assert (weights[0, 0, i, len(seen) :] == 0).all()


@SHAPE
def test_paths_are_interchangeable_on_a_model(config):
    model = make(config).double()
    idx = ids(3, 12)
    results = []
    for attention in ("manual", "fused"):
        model.config.attention = attention
        logits, loss = model(idx, idx.roll(-1, 1))
        results.append((logits, loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for manual, fused in zip(*results, strict=True):
        torch.testing.assert_close(manual, fused, atol=1e-10, rtol=1e-10)


def test_weights_of_the_manual_path():
    config = replace(GPT2, attention="manual")
    attention = CausalSelfAttention(config).eval()
    x = torch.randn(3, 5, 16)
    y, weights = attention(x, return_weights=True)
    assert weights.shape == (3, 2, 5, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5))
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(y, attention(x))
    config.attention = "fused"
    with pytest.raises(ValueError, match="manual"):
        attention(x, return_weights=True)


@ATTENTION
def test_dropout_is_off_in_eval_and_on_in_training(attention):
    model = make(GPT2, attention=attention, dropout=0.0, attention_dropout=0.5)
    idx = ids(2, 12)
    assert torch.equal(model(idx, idx)[0], model(idx, idx)[0])
    model.train()
    assert not torch.equal(model(idx, idx)[0], model(idx, idx)[0])
    plain = make(GPT2, attention=attention, dropout=0.5, attention_dropout=0.0).train()
    assert not torch.equal(plain(idx, idx)[0], plain(idx, idx)[0])


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 100_003])
def test_drop(share, count):
    x = torch.full((count,), 3.0, requires_grad=True)
    y = drop(x, share)
    assert all(value == 0 or value == pytest.approx(3 / (1 - share), rel=1e-3) for value in set(y.tolist()))
    y.sum().backward()
    assert x.grad.equal((y / 3).detach())  # the same ones, in both directions
    if count > 1000:
        kept = y > 0
        assert kept.float().mean().item() == pytest.approx(1 - share, abs=0.006)  # four standard deviations
        for lag in (1, 2, 3, 4):  # neighbours share their 64 bits with it, and are independent all the same
            assert (kept[:-lag] & kept[lag:]).float().mean().item() == pytest.approx((1 - share) ** 2, abs=0.008)
        assert not drop(x, share).equal(y)


def test_both_forms_of_gelu():
    x = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    expected = torch.nn.functional.gelu(x, approximate="tanh")
    assert gelu(x).equal(expected)
    torch.testing.assert_close(torch.compile(gelu, backend="eager")(x), expected, atol=1e-14, rtol=0)


def test_drop_nothing():
    x = torch.ones(5)
    assert drop(x, 0.0).equal(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_drop_keeps_the_type(dtype):
    y = drop(torch.ones(1000, dtype=dtype), 0.2)
    assert y.dtype == dtype
    assert y.unique().tolist() == [0.0, torch.tensor(2**16 / (2**16 - 13107)).to(dtype).item()]


@ATTENTION
def test_a_bfloat16_model_trains_with_dropout(attention):
    model = make(GPT2, attention=attention, dropout=0.2).bfloat16().train()
    loss = model(ids(2, 12), ids(2, 12))[1]
    loss.backward()
    assert loss.isfinite()
    for name, p in model.named_parameters():
        assert p.grad.dtype == torch.bfloat16 and p.grad.isfinite().all() and p.grad.any(), name


def test_embeddings_may_have_a_dropout_of_their_own():
    torch.manual_seed(0)
    for rate in (None, 0.0, 0.25):
        model = make(GPT2, dropout=0.5, embedding_dropout=rate).train()
        kept = (model.transformer.drop(torch.ones(100, 100)) != 0).double().mean().item()
        assert kept == pytest.approx(1 - (0.5 if rate is None else rate), abs=0.03)


@ATTENTION
def test_attention_dropout_keeps_the_mean(attention):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 6, 4).unbind(0)
    attend = (lambda: manual_attention(q, k, v, dropout=0.5)[0]) if attention == "manual" else lambda: fused_attention(q, k, v, dropout=0.5)
    mean = torch.stack([attend() for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, manual_attention(q, k, v)[0], atol=0.12, rtol=0)


def test_huge_scores_stay_finite():
    q = torch.full((1, 1, 4, 4), 100.0)
    for y in (manual_attention(q, q, q)[0], fused_attention(q, q, q)):
        assert torch.isfinite(y).all()


def test_rotary_scores_depend_on_the_distance_only():
    config = replace(MODERN, block_size=64)
    model = GPT(config)
    q, k = torch.randn(2, 1, 1, 1, 8).unbind(0)

    def score(i, j):
        a = rotate(q, model.rotary_cos[i : i + 1], model.rotary_sin[i : i + 1])
        b = rotate(k, model.rotary_cos[j : j + 1], model.rotary_sin[j : j + 1])
        return (a * b).sum().item()

    assert score(5, 3) == pytest.approx(score(42, 40), abs=1e-5)
    assert score(5, 3) != pytest.approx(score(5, 1), abs=1e-3)
    assert score(0, 0) == pytest.approx((q * k).sum().item(), abs=1e-6)


# packed rows


def test_document_mask():
    mask = document_mask(torch.tensor([[0, 1, 0, 1, 2, 0]]))[0, 0]
    expected = [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]]
    assert mask.int().tolist() == expected


@ATTENTION
@SHAPE
def test_a_document_reads_the_same_packed_and_alone(config, attention):
    model = make(config, attention=attention)
    parts = [ids(1, n) for n in (5, 3, 4)]
    packed = torch.cat(parts, 1)
    positions = torch.cat([torch.arange(part.size(1)) for part in parts])[None]
    logits, _ = model(packed, packed, positions)
    alone = torch.cat([model(part, part)[0] for part in parts], 1)
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)
    changed = packed.clone()
    changed[:, :5] = (changed[:, :5] + 1) % 17
    assert torch.equal(model(changed, packed, positions)[0][:, 5:], logits[:, 5:])


# the model


@SHAPE
def test_forward_with_and_without_targets(config):
    model = make(config)
    idx, targets = ids(2, 7), ids(2, 7)
    logits, loss = model(idx, targets)
    assert logits.shape == (2, 7, 17)
    last, none = model(idx)
    assert last.shape == (2, 1, 17)
    assert none is None
    torch.testing.assert_close(last[:, 0], logits[:, -1])
    targets[0, 2:] = -1
    _, loss = model(idx, targets)
    logp = logits.log_softmax(-1)
    expected = -sum(logp[b, t, targets[b, t]] for b in range(2) for t in range(7) if targets[b, t] != -1) / 9
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("idx", "targets", "message"),
    [
        (torch.zeros(1, 13, dtype=torch.long), None, "13 tokens.*block_size=12"),
        (torch.tensor([[3, 17]]), None, "id 17 .*0 to 16"),
        (torch.tensor([[-2, 1]]), None, "id -2 .*0 to 16"),
        (torch.tensor([[1, 2]]), torch.tensor([[1, 17]]), "target id 17 .*-1 to 16"),
        (torch.tensor([[1, 2]]), torch.tensor([[-2, 1]]), "target id -2"),
        (torch.zeros(1, 0, dtype=torch.long), None, "0 tokens"),
    ],
)
@SHAPE
def test_ids_and_lengths_that_do_not_fit(config, idx, targets, message):
    with pytest.raises(ValueError, match=message):
        make(config)(idx, targets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_layer": 0}, "n_layer=0"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1"),
        ({"embedding_dropout": 1.5}, "embedding_dropout=1.5"),
        ({"norm": "batchnorm"}, "norm='batchnorm'.*rmsnorm"),
        ({"n_embd": 18, "n_head": 6, "position": "rotary"}, "n_embd=18.*n_embd=12 would fit"),
    ],
)
def test_shapes_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**options)


def test_default_is_gpt2_small():
    with torch.device("meta"):
        model = GPT(GPTConfig())
    assert model.num_parameters() == 124_439_808  # as published, and as transformers counts
    assert model.num_parameters(embeddings=False) == 124_439_808 - (50257 + 1024) * 768


def test_initial_weights():
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=64, vocab_size=500, n_layer=8, n_head=4, n_embd=128))
    block = model.transformer.h[3]
    assert model.transformer.wte.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mlp.c_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert block.attn.c_attn.bias.abs().max() == 0
    assert (block.ln_1.weight == 1).all()
    assert model.lm_head.weight is model.transformer.wte.weight


def test_initial_weights_by_fan_in():
    torch.manual_seed(0)
    model = GPT(replace(MODERN, n_embd=128, vocab_size=500, init="fan_in"))
    for block in model.transformer.h:
        assert (block.attn.c_proj.weight == 0).all() and (block.mlp.c_proj.weight == 0).all()
        assert block.attn.c_attn.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
        assert block.mlp.c_fc.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert model.lm_head.weight is not model.transformer.wte.weight
    for table in (model.lm_head.weight, model.transformer.wte.weight):
        assert table.std().item() == pytest.approx(0.02, rel=0.05)


def test_initial_loss_is_that_of_a_uniform_guess():
    torch.manual_seed(0)
    idx = ids(8, 12)
    assert GPT(GPT2)(idx, ids(8, 12).roll(1, 1))[1].item() == pytest.approx(math.log(17), abs=0.05)


def test_flops_per_token():
    # by hand: a layer multiplies 12 C^2 weights, the head V C; scores and their sum 2 * 2 * T * C forward, three times with backward
    C, L, V, T = 16, 2, 17, 12
    assert GPT(GPT2).flops_per_token() == 6 * (L * 12 * C * C + V * C) + 3 * L * 2 * 2 * T * C
    assert GPT(GPT2).flops_per_token(6) == 6 * (L * 12 * C * C + V * C) + 3 * L * 2 * 2 * 6 * C


@SHAPE
def test_overfits_one_sentence(config):
    torch.manual_seed(0)
    model = GPT(config)
    idx = ids(1, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        _, loss = model(idx[:, :-1], idx[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.05
    assert torch.equal(model.generate(idx[:, :1], 11, temperature=0), idx)


def test_parameter_names_are_gpt2s():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=12, vocab_size=17, n_layer=2, n_head=2, n_embd=16))
    assert set(GPT(GPT2).state_dict()) == set(theirs.state_dict())


# generation


@ATTENTION
@SHAPE
@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.02}])
def test_cached_and_plain_generation_agree(config, attention, options):
    model = make(config, attention=attention)
    for prompt in (1, 5, 12, 15):  # 15: longer than the context
        idx = ids(3, prompt)
        cached = model.generate(idx, 25, seed=3, **options)
        assert cached.shape == (3, prompt + 25)
        assert torch.equal(cached, model.generate(idx, 25, seed=3, use_cache=False, **options))
        assert torch.equal(cached[:, :prompt], idx)


def test_plain_generation_is_the_obvious_loop():
    model = make(GPT2)
    idx = ids(2, 4)
    expected = idx
    draws = uniform_draws(7, range(2), 20)
    for i in range(20):
        logits, _ = model(expected[:, -12:])
        expected = torch.cat([expected, next_token(logits[:, -1], draws[:, i])[:, None]], 1)
    assert torch.equal(model.generate(idx, 20, seed=7), expected)


@SHAPE
def test_logits_with_a_cache_are_those_without(config):
    model = make(config).double()
    idx = ids(2, 12)
    caches = [KVCache.zeros(2, 12, model.config, model.lm_head.weight) for _ in model.transformer.h]
    pieces = [model._head(model._hidden(idx[:, a:b], None, caches, a)) for a, b in ((0, 4), (4, 5), (5, 12))]  # prefill, step, chunk
    torch.testing.assert_close(torch.cat(pieces, 1), model(idx, idx)[0], atol=1e-10, rtol=1e-10)


@ATTENTION
@SHAPE
def test_rows_of_different_lengths_share_a_cache(config, attention):
    model = make(config, attention=attention).double()
    idx = ids(3, 12)
    caches = [KVCache.zeros(3, 12, model.config, model.lm_head.weight) for _ in model.transformer.h]
    model.next_logits(idx[:, :7], caches)  # what a row has beyond its length is overwritten before it is seen
    for starts in ([2, 6, 7], [3, 6, 7], [4, 7, 8]):  # once more at the same place: nothing changes
        starts = torch.tensor(starts)
        logits = model.next_logits(idx[torch.arange(3), starts][:, None], caches, starts)
        expected = torch.cat([model(idx[i : i + 1, : start + 1])[0][:, 0] for i, start in enumerate(starts)])
        torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-6)  # rotary angles are float32


def test_without_a_seed_torch_decides():
    model = make(GPT2)
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(model.generate(ids(2, 3), 20))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_generation_runs_without_dropout_and_restores_the_mode():
    model = make(GPT2, dropout=0.5)  # and so attention_dropout
    expected = model.generate(ids(1, 3), 15, temperature=0)
    model.train()
    assert torch.equal(model.generate(ids(1, 3), 15, temperature=0), expected)
    assert model.training
    with pytest.raises(ValueError, match="id 99"):
        model.generate(torch.tensor([[99]]), 3)
    with pytest.raises(ValueError, match="temperature=-1"):
        model.generate(ids(1, 3), 3, temperature=-1)


def test_padding_ids_are_never_drawn():
    model = make(MODERN, scale=0.0)  # all logits equal: an id beyond the vocabulary would come up soon
    assert model.lm_head.weight.shape[0] == 24
    tokens = model.generate(ids(64, 1), 40, temperature=100.0)
    assert tokens.max() == 16


def test_no_new_tokens():
    assert torch.equal(make(GPT2).generate(ids(2, 3), 0), ids(2, 3))


# from logits to tokens

logit_rows = st.lists(st.floats(-30, 30).map(lambda x: round(x, 1)), min_size=1, max_size=9)


@settings(max_examples=300, deadline=None)
@given(
    logit_rows,
    st.sampled_from([1e-300, 0.1, 1.0, 3.0]),
    st.none() | st.integers(1, 10),
    st.none() | st.floats(0.01, 1),
    st.none() | st.floats(0, 1),
)
def test_filters_against_an_obvious_reference(row, temperature, top_k, top_p, min_p):
    got = next_token_probabilities(torch.tensor([row], dtype=torch.float64), temperature, top_k, top_p, min_p)[0].tolist()
    scaled = [(x - max(row)) / temperature for x in row]
    if top_k is not None and top_k < len(row):
        kth = sorted(scaled)[-top_k]
        scaled = [x if x >= kth else -math.inf for x in scaled]
    p = [math.exp(x) for x in scaled]
    p = [x / sum(p) for x in p]
    if top_p is not None and top_p < 1:
        before, kept = 0.0, set()
        for i in sorted(range(len(p)), key=lambda i: -p[i]):
            if before < top_p - 1e-12:
                kept.add(i)
            elif abs(before - top_p) <= 1e-12:
                return  # rounding decides on the border
            before += p[i]
        p = [x if i in kept else 0.0 for i, x in enumerate(p)]
    if min_p is not None:
        if any(x and abs(x - min_p * max(p)) < 1e-12 for x in p if x != max(p)):
            return
        p = [x if x >= min_p * max(p) else 0.0 for x in p]
    assert got == pytest.approx([x / sum(p) for x in p], abs=1e-9)
    assert got[row.index(max(row))] > 0


def test_draws_fall_on_tokens_in_vocabulary_order():
    logits = torch.log(torch.tensor([0.1, 0.0, 0.6, 0.3, 0.0]))
    for draw, token in [(0.0, 0), (0.0999, 0), (0.1001, 2), (0.6999, 2), (0.7001, 3), (1 - 2**-53, 3)]:
        assert next_token(logits[None], torch.tensor([draw], dtype=torch.float64)).item() == token


def test_frequencies_follow_the_probabilities():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.0, -3.0])
    probabilities = next_token_probabilities(logits[None], temperature=1.3, top_k=4)[0]
    draws = uniform_draws(0, range(20_000), 1)[:, 0]
    counts = torch.bincount(next_token(logits.expand(20_000, -1), draws, 1.3, 4), minlength=6)
    kept = probabilities > 0
    assert counts[~kept].sum() == 0
    expected = probabilities[kept] * 20_000
    assert ((counts[kept] - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 3 degrees of freedom, p = 0.001


def test_temperature_zero_is_greedy_even_with_large_logits():
    logits = torch.tensor([[1e30, 3.0, -1e30], [0.0, 0.1, 0.0]])
    assert next_token(logits, torch.tensor([0.999, 0.999]), temperature=0).tolist() == [0, 1]


def test_draws_of_a_row_are_its_own():
    all_rows = uniform_draws(5, range(4), 6)
    assert torch.equal(uniform_draws(5, range(2, 4), 6), all_rows[2:])
    assert torch.equal(uniform_draws(5, range(4), 3), all_rows[:, :3])
    assert all_rows.unique().numel() == 24
    assert (all_rows >= 0).all() and (all_rows < 1).all()


@SHAPE
def test_bfloat16_autocast_stays_near_float32(config):
    model = make(config, scale=3.0)
    idx = ids(4, 12)
    _, expected = model(idx, idx.roll(-1, 1))
    with torch.autocast("cpu", torch.bfloat16):
        logits, loss = model(idx, idx.roll(-1, 1))
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert loss != expected
    assert loss.item() == pytest.approx(expected.item(), rel=0.02)


def test_models_of_one_config_switch_their_path_alone():
    config = replace(GPT2)
    one, other = GPT(config), GPT(config)
    one.config.attention = "manual"
    assert other.config.attention == config.attention == "fused"
    one.config.attention = "manul"
    with pytest.raises(ValueError, match="manul"):
        one(ids(1, 3))


def test_broken_weights_are_named():
    with pytest.raises(ValueError, match="nan"):
        next_token(torch.tensor([[0.0, math.nan]]), torch.tensor([0.5]))
    model = make(GPT2).train()
    with torch.no_grad():
        model.transformer.wte.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="nan"):
        model.generate(ids(1, 3), 2)
    assert model.training


def test_a_gpt2_that_computes_otherwise_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {"n_positions": 8, "vocab_size": 9, "n_layer": 1, "n_head": 2, "n_embd": 4}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, activation_function="relu")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="relu.*gelu_new"):
        GPT.from_pretrained(str(tmp_path))
