"""zoo/ladder.py against plain loops, closed forms and torch's own layers."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from conftest import NAMES, TOKENIZER

from data.tokenizers import encode_documents
from engine.generation import generate
from engine.sampling import Choice
from model import manual_attention
from zoo.ladder import KINDS, Bigram, LadderConfig, Uniform
from zoo.models import make

V, SIZE = 27, 12
TOKENS = torch.as_tensor(encode_documents(NAMES, TOKENIZER)).long()
SMALL_V = TOKENIZER.vocab_size
LEARNED = pytest.mark.parametrize("kind", ["mlp", "attention", "transformer"])
EVERY = pytest.mark.parametrize("kind", KINDS)
CLOSE = {"atol": 1e-5, "rtol": 0}
QUANTILE = 246.7  # of chi-squared with 182 degrees of freedom: one chance in a thousand to be above (Wilson and Hilferty 1931)


def ladder(kind, **changes):
    """A model with weights large enough that everything it reads shows; counted ones have counted random ids."""
    shape = {"block_size": SIZE, "vocab_size": V, "n_embd": 8, "n_hidden": 16, "n_head": 2, "n_layer": 2, "order": 3, **changes}
    torch.manual_seed(0)
    model = make(LadderConfig(kind, **shape))
    if model.counts:
        model.count(torch.cat([ids(30, 9), torch.zeros(30, 1, dtype=torch.int64)], 1).flatten())
    return model


def ids(rows=6, length=SIZE, vocab_size=V, seed=1):
    return torch.randint(1, vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def every_logit(model, idx, positions=None):
    with torch.no_grad():
        return model.logits(idx, torch.arange(idx.size(1)).expand_as(idx) if positions is None else positions)


def packed(*lengths):
    """The places of documents of these lengths, one after the other in one row: (1, T)."""
    return torch.cat([torch.arange(length) for length in lengths])[None]


def counted(names, k):
    """The bigram's chances by plain counting, as lists."""
    tokens = TOKENS if names is None else torch.as_tensor(encode_documents(names, TOKENIZER))
    pairs = Counter(pairwise(tokens.tolist()))
    table = []
    for a in range(SMALL_V):
        total = sum(pairs[a, b] for b in range(SMALL_V)) + k * SMALL_V
        table.append([(pairs[a, b] + k) / total if total else 1 / SMALL_V for b in range(SMALL_V)])
    return torch.tensor(table, dtype=torch.float64)


def counted_bigram(k, names=None):
    model = Bigram(LadderConfig("bigram", block_size=len(TOKENS), vocab_size=SMALL_V, smoothing=k))
    model.count(TOKENS if names is None else torch.as_tensor(encode_documents(names, TOKENIZER)).long())
    return model


# the counted ones


def test_uniforms_loss_is_that_of_chance():
    model = Uniform(LadderConfig("uniform", block_size=SIZE))
    model.count(TOKENS)
    for positions in (None, packed(3, 5, 4).expand(6, -1)):
        logits, loss = model(ids(), ids(seed=2), positions)
        assert loss.item() == pytest.approx(math.log(27), abs=1e-6)  # the mean of 72 in float32
        torch.testing.assert_close(
            -logits.double().log_softmax(-1), torch.full_like(logits, math.log(27), dtype=torch.float64), atol=1e-7, rtol=0
        )
    assert model.num_parameters() == 0


@pytest.mark.parametrize("k", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("names", [None, ["ada", "eve"]], ids=["all", "rows-never-seen"])
def test_the_bigram_is_its_counts(k, names):
    table, model = counted(names, k), counted_bigram(k, names)
    found = every_logit(model, torch.arange(SMALL_V)[None])[0].exp().double()
    torch.testing.assert_close(found, table, atol=1e-6, rtol=0)
    if names:
        never = TOKENIZER.encode("x")[0]
        torch.testing.assert_close(found[never], torch.full((SMALL_V,), 1 / SMALL_V, dtype=torch.float64), atol=1e-6, rtol=0)
    assert every_logit(model, torch.arange(SMALL_V)[None]).isfinite().all()


def test_the_bigrams_loss_on_its_own_data_is_their_entropy():
    pairs, firsts = Counter(pairwise(TOKENS.tolist())), Counter(TOKENS[:-1].tolist())
    entropy = -sum(count / (len(TOKENS) - 1) * math.log(count / firsts[a]) for (a, _), count in pairs.items())
    loss = counted_bigram(0.0)(TOKENS[None, :-1], TOKENS[None, 1:])[1].item()
    assert loss == pytest.approx(entropy, abs=1e-6)
    assert counted_bigram(1.0)(TOKENS[None, :-1], TOKENS[None, 1:])[1].item() > entropy + 0.1


def test_learned_by_gradient_descent_the_bigram_comes_to_the_counted_one():
    model = Bigram(LadderConfig("bigram", block_size=len(TOKENS), vocab_size=SMALL_V, smoothing=None))
    assert not model.counts and model.table.requires_grad and not counted_bigram(1.0).table.requires_grad
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = model(TOKENS[None, :-1], TOKENS[None, 1:])[1]
        loss.backward()
        return loss

    optimizer.step(closure)
    seen = TOKENS[:-1].unique()
    torch.testing.assert_close(model.table.detach().softmax(1)[seen].double(), counted(None, 0)[seen], atol=1e-3, rtol=0)


def test_generated_characters_follow_the_bigrams_table():
    model, rows, length = counted_bigram(1.0), 2_000, 10
    assert length <= model.config.block_size
    drawn = model.generate(torch.zeros(rows, 1, dtype=torch.int64), length, seed=1)
    frequencies = torch.bincount((drawn[:, :-1] * SMALL_V + drawn[:, 1:]).flatten(), minlength=SMALL_V**2).view(SMALL_V, SMALL_V).double()
    assert frequencies.sum() == 20_000
    expected = frequencies.sum(1, keepdim=True) * counted(None, 1.0)
    assert expected.min() > 5
    chi_squared = ((frequencies - expected) ** 2 / expected).sum().item()
    freedom = SMALL_V * (SMALL_V - 1)
    assert freedom == 182 and chi_squared < QUANTILE


# what the others see


@LEARNED
def test_they_never_see_the_future(kind):
    model, idx = ladder(kind), ids()
    logits = every_logit(model, idx)
    for t in range(1, SIZE):
        later = idx.clone()
        later[:, t:] = later[:, t:] % (V - 1) + 1  # other ids, all of them
        changed = every_logit(model, later)
        torch.testing.assert_close(changed[:, :t], logits[:, :t], atol=1e-6, rtol=0)
        assert (changed[:, t:] != logits[:, t:]).any(-1).all()


@LEARNED
def test_they_see_all_of_the_past(kind):
    model, idx = ladder(kind), ids()
    logits = every_logit(model, idx)
    for t in range(SIZE):
        earlier = idx.clone()
        earlier[:, t] = earlier[:, t] % (V - 1) + 1
        difference = (every_logit(model, earlier) - logits).abs().amax(-1)  # (B, T)
        assert (difference[:, t:] > 1e-5).all() and (difference[:, :t] < 1e-6).all()


@EVERY
def test_they_never_see_another_document(kind):
    model, lengths = ladder(kind), (4, 1, 5, 2)
    idx, positions = ids(rows=3), packed(*lengths).expand(3, -1)
    together = every_logit(model, idx, positions)
    alone = torch.cat([every_logit(model, document) for document in idx.split(lengths, 1)], 1)
    torch.testing.assert_close(together, alone, **CLOSE)
    if kind not in ("uniform", "bigram"):  # the test can fail: without positions it does
        assert (every_logit(model, idx) - alone).abs().max() > 1e-3


def test_rows_may_be_packed_in_different_ways():
    for kind in KINDS:
        model, idx, positions = ladder(kind), ids(rows=3), torch.cat([packed(12), packed(5, 7), packed(1, 2, 9)])
        together = every_logit(model, idx, positions)
        alone = torch.cat([every_logit(model, idx[i : i + 1], positions[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(together, alone, **CLOSE)


def test_weights_of_the_sequence_mlp_belong_to_places():
    model, idx = ladder("mlp"), ids(rows=3)
    C = model.config.n_embd
    for positions in (packed(SIZE), packed(4, 1, 7)):
        found = every_logit(model, idx, positions.expand_as(idx))
        for row in range(3):
            for t in range(SIZE):
                prefix = [0.0] * (SIZE * C)  # flat, zeros behind
                first = t - positions[0, t].item()
                for place, token in enumerate(idx[row, first : t + 1].tolist()):
                    prefix[place * C : (place + 1) * C] = model.embedding.weight[token].tolist()
                with torch.no_grad():
                    wanted = model.head(torch.tanh(model.hidden(torch.tensor(prefix))))
                torch.testing.assert_close(found[row, t], wanted, atol=1e-6, rtol=0)


# attention


@pytest.mark.parametrize("kind", ["attention", "transformer"])
@pytest.mark.parametrize("positions", [packed(SIZE), packed(4, 1, 7)], ids=["one", "packed"])
def test_both_paths_of_attention_give_the_same(kind, positions, monkeypatch):
    model, idx = ladder(kind), ids()
    fused = every_logit(model, idx, positions.expand_as(idx))
    model.config.attention = "manual"
    with monkeypatch.context() as patch:  # the other path is not the same one again
        patch.setattr("zoo.ladder.fused_attention", None)
        manual = every_logit(model, idx, positions.expand_as(idx))
    model.config.attention = "fused"
    monkeypatch.setattr("zoo.ladder.manual_attention", None)
    assert torch.equal(every_logit(model, idx, positions.expand_as(idx)), fused)
    torch.testing.assert_close(manual, fused, **CLOSE)


def test_the_attention_of_the_attention_mlp_is_manual_attention_of_its_queries_keys_and_values():
    model, idx = ladder("attention"), ids()
    C = model.config.n_embd
    with torch.no_grad():
        x = model.embedding(idx)
        q, k, v = (x @ weight.T for weight in model.qkv.weight.split(C))
        y, weights = manual_attention(q[:, None], k[:, None], v[:, None])
        wanted = model.head(model.hidden(y[:, 0]).relu())
    assert weights.std() > 0.01  # no mere average
    torch.testing.assert_close(every_logit(model, idx), wanted, **CLOSE)


def test_the_attention_mlp_knows_no_order_and_the_transformer_does():
    idx = ids()
    permuted = torch.cat([idx[:, torch.randperm(SIZE - 1, generator=torch.Generator().manual_seed(0))], idx[:, -1:]], 1)
    differences = {
        kind: every_logit(ladder(kind), permuted) - every_logit(ladder(kind), idx) for kind in ("attention", "transformer", "mlp")
    }
    assert differences["attention"][:, -1].abs().max() < 1e-5
    assert differences["attention"][:, 1:-1].abs().max() > 1e-2
    assert differences["transformer"][:, -1].abs().max() > 1e-2
    assert differences["mlp"][:, -1].abs().max() > 1e-2


@pytest.mark.parametrize("path", ["fused", "manual"])
def test_the_transformer_is_torchs_own(path):
    model, idx = ladder("transformer", n_layer=3, attention=path), ids()
    C, H = model.config.n_embd, model.config.n_head
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape))  # no norm is at its beginning
        x = model.tokens.weight[idx] + model.places.weight[:SIZE]
        for block in model.blocks:
            theirs = torch.nn.TransformerEncoderLayer(C, H, 4 * C, dropout=0.0, activation="relu", batch_first=True, norm_first=False)
            pairs = {
                "self_attn.in_proj_": block.attn.c_attn,
                "self_attn.out_proj.": block.attn.c_proj,
                "linear1.": block.mlp.c_fc,
                "linear2.": block.mlp.c_proj,
                "norm1.": block.ln_1,
                "norm2.": block.ln_2,
            }
            theirs.load_state_dict({name + part: getattr(ours, part) for name, ours in pairs.items() for part in ("weight", "bias")})
            x = theirs(x, src_mask=torch.ones(SIZE, SIZE).triu(1).bool())
        wanted = x @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(every_logit(model, idx), wanted, **CLOSE)


# cached and generated


@EVERY
def test_token_by_token_is_all_at_once(kind):
    model, idx = ladder(kind), ids()
    whole, caches = every_logit(model, idx), model.caches(len(idx), SIZE)
    with torch.no_grad():
        torch.testing.assert_close(model.next_logits(idx[:, :3], caches, 0), whole[:, 2], **CLOSE)
        for t in range(3, SIZE):
            torch.testing.assert_close(model.next_logits(idx[:, t : t + 1], caches, t), whole[:, t], **CLOSE)
            torch.testing.assert_close(model.next_logits(idx[:, : t + 1]), whole[:, t], **CLOSE)


@EVERY
def test_rows_of_different_lengths_each_go_on_where_they_are(kind):
    model, idx = ladder(kind), ids()
    whole, rows, starts = every_logit(model, idx), torch.arange(len(idx)), torch.tensor([0, 3, 1, 7, 7, 9])
    caches = model.caches(len(idx), SIZE)
    with torch.no_grad():
        model.next_logits(idx * (torch.arange(SIZE) < starts[:, None]), caches, 0)  # zeros stand behind each row's end
        for step in range(3):
            now = starts + step
            found = model.next_logits(idx[rows, now][:, None], caches, now)
            torch.testing.assert_close(found, whole[rows, now], **CLOSE)


@EVERY
def test_generated_tokens_are_the_same_without_caches(kind):
    model, prompts = ladder(kind), ids(4, 2)
    cached = model.generate(prompts, 2 * SIZE, seed=3)  # past a full context
    assert torch.equal(cached, model.generate(prompts, 2 * SIZE, seed=3, use_cache=False))
    assert torch.equal(cached[:, :2], prompts) and len(cached[:, 2:].unique()) > 5


@EVERY
@pytest.mark.parametrize("new", [4, 2 * SIZE], ids=["within", "past-a-full-context"])
def test_prompts_of_different_lengths_go_on_as_each_alone(kind, new):
    model = ladder(kind)
    prompts = [ids(1, length, seed=length)[0].tolist() for length in (1, 5, SIZE, 2, SIZE + 4, SIZE - 1)]

    def texts(prompts, first_row=0):
        rows = {}
        for token in generate(model, prompts, new, Choice(stop_tokens=(7,)), seed=2, first_row=first_row):
            rows.setdefault(token.row, []).append(token.id)
        return rows

    together = texts(prompts)
    for row, prompt in enumerate(prompts):
        assert texts([prompt], row) == {row: together[row]}


@EVERY
def test_greedy_text_is_that_of_a_plain_loop_past_a_full_context(kind):
    model, text = ladder(kind), ids(1, 3)[0].tolist()
    found = [token.id for token in generate(model, [text], 2 * SIZE, Choice(temperature=0.0))]
    for token in found:
        logits = model(torch.tensor([text[-SIZE:]]))[0][0, 0]
        assert logits[token] > logits.max() - 1e-5
        text = [*text, token]
    assert len(found) == 2 * SIZE


# the contract of GPT


@EVERY
def test_without_targets_the_last_positions_logits_and_no_loss(kind):
    model, idx = ladder(kind), ids()
    logits, loss = model(idx)
    assert logits.shape == (len(idx), 1, V) and loss is None
    torch.testing.assert_close(logits.detach()[:, 0], every_logit(model, idx)[:, -1], **CLOSE)


@EVERY
def test_with_targets_the_mean_cross_entropy_of_those_there_are(kind):
    model, idx, targets = ladder(kind), ids(), ids(seed=2)
    targets[:, ::3] = -1
    logits, loss = model(idx, targets)
    assert logits.shape == (*idx.shape, V)
    chances = logits.detach().double().log_softmax(-1)
    losses = [-chances[b, t, target].item() for b, row in enumerate(targets.tolist()) for t, target in enumerate(row) if target != -1]
    assert loss.item() == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    positions = packed(5, 7).expand_as(idx)
    torch.testing.assert_close(model(idx, targets, positions)[0].detach(), every_logit(model, idx, positions), **CLOSE)


@EVERY
def test_what_does_not_fit_is_named(kind):
    model = ladder(kind)
    for wrong in (-1, V):
        bad = ids()
        bad[2, 3] = wrong
        with pytest.raises(ValueError, match=f"token id {wrong} is outside the vocabulary: 0 to 26"):
            model(bad)
        with pytest.raises(ValueError, match=f"token id {wrong} is outside"):
            model.generate(bad, 1)
        with pytest.raises(ValueError, match=f"token id {wrong} is outside"):
            list(generate(model, bad.tolist(), 1))
        if wrong == V:
            with pytest.raises(ValueError, match="target id 27 is outside the vocabulary: -1 to 26"):
                model(ids(), bad)
    with pytest.raises(ValueError, match="target id -2 "):
        model(ids(), torch.full((6, SIZE), -2))
    with pytest.raises(ValueError, match="13 tokens do not fit: block_size=12"):
        model(ids(length=13))
    with pytest.raises(ValueError, match="0 tokens do not fit"):
        model(ids(length=0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: 0}, f"{name}=0 must be at least 1")
            for name in ("block_size", "vocab_size", "n_embd", "n_hidden", "n_head", "n_layer", "order")
        ),
        ({"n_layer": -3}, "n_layer=-3 must be at least 1"),
        ({"kind": "rnn"}, "kind='rnn' is not one of uniform, bigram, mlp"),
        ({"n_embd": 10, "n_head": 4}, "n_embd=10 does not divide by n_head=4; n_embd=8 would fit"),
        ({"n_embd": 3, "n_head": 4}, "n_embd=3 does not divide by n_head=4; n_embd=4 would fit"),
        ({"smoothing": -0.1}, "smoothing=-0.1 must be 0 or above"),
        ({"smoothing": math.nan}, "smoothing=nan must be"),
        ({"smoothing": math.inf}, "smoothing=inf must be"),
    ],
    ids=str,
)
def test_a_shape_that_cannot_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        LadderConfig(**{"kind": "transformer", **changes})


def test_a_model_keeps_a_copy_of_its_config():
    config = LadderConfig("transformer", n_embd=8)
    model = make(config)
    model.config.attention = "manual"
    assert config.attention == "fused" and all(block.attn.config is model.config for block in model.blocks)


def test_only_what_counts_can_count():
    for kind in ("mlp", "attention", "transformer"):
        assert not ladder(kind).counts and not hasattr(ladder(kind), "count")


@EVERY
def test_flops_are_six_for_each_weight_that_multiplies(kind):
    weights = {"mlp": (12 * 8 + 27) * 16, "attention": 8 * 24 + 8 * 16 + 16 * 27, "transformer": 2 * 12 * 8 * 8 + 8 * 27}
    assert ladder(kind).flops_per_token() == 6 * weights.get(kind, 0) + (kind not in weights)


@LEARNED
def test_every_parameter_learns(kind):
    model = ladder(kind)
    model(ids(), ids(seed=2))[1].backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
