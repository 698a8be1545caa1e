import itertools
import json
import math
import re

import pytest
import torch
from conftest import small_model
from test_zoo_encoder import model_of as encoder_of
from test_zoo_seq2seq import model_of as seq2seq_of

from engine.attention_map import MEANING, attention_weights, draw, encoder_weights, page, seq2seq_weights

IDS = [0, 3, 5, 5, 1, 7]


def by_hand(model, x, rotary):
    """The weights of one layer, from its input x (T, C), number by number in float64."""
    config, attention = model.config, model.transformer.h[0].attn.double()
    T, C, H = len(x), config.n_embd, config.n_head
    D = C // H
    joined = attention.c_attn(x.double())  # (T, 3C)
    weights = torch.zeros(H, T, T, dtype=torch.float64)
    for h in range(H):
        q, k = (turned(joined[:, part * C + h * D : part * C + (h + 1) * D], rotary) for part in (0, 1))
        for i in range(T):
            powers = [math.exp(float(q[i] @ k[j]) / math.sqrt(D)) for j in range(i + 1)]
            for j, power in enumerate(powers):
                weights[h, i, j] = power / sum(powers)
    return weights


def turned(x, rotary):
    """x (T, D), or each pair (j, j + D/2) of it as a complex number, turned by position * 10000^(-2j/D)."""
    if not rotary:
        return x
    T, D = x.shape
    z = torch.complex(x[:, : D // 2], x[:, D // 2 :])
    angle = torch.arange(T).double()[:, None] * 10000.0 ** (-2 * torch.arange(D // 2).double() / D)
    z = z * torch.polar(torch.ones_like(angle), -angle).conj().resolve_conj()
    return torch.cat((z.real, z.imag), dim=1)


@pytest.mark.parametrize("position", ["learned", "rotary"])
@torch.no_grad()
def test_weights_as_computed_by_hand(position):
    model = small_model(position=position, dropout=0.5)
    model.transformer.h[0].attn.c_attn.weight.mul_(20)  # of a new model all weights are nearly alike
    weights = attention_weights(model, IDS)[0]
    assert weights.std() > 0.2
    x = model.transformer.wte(torch.tensor(IDS))
    if position == "learned":
        x = x + model.transformer.wpe(torch.arange(len(IDS)))
    expected = by_hand(model, model.transformer.h[0].ln_1(x), position == "rotary")
    torch.testing.assert_close(weights.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", [{}, {"position": "rotary", "norm": "rmsnorm", "qk_norm": True}])
def test_rows_sum_to_one_and_nothing_later_is_seen(options):
    weights = attention_weights(small_model(n_layer=3, dropout=0.5, **options), IDS)
    assert weights.shape == (3, 2, 6, 6) and weights.dtype == torch.float32 and not weights.requires_grad
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 6))
    assert (weights.triu(1) == 0).all() and (weights.tril() >= 0).all()
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("attention", ["fused", "manual"])
def test_the_model_is_as_it_was(training, attention):
    model = small_model(n_layer=2, attention=attention, dropout=0.5).train(training)
    attention_weights(model, IDS)
    for wrong in ([0] * 13, []):
        with pytest.raises(ValueError, match="block_size=12 is the longest context"):
            attention_weights(model, wrong)
        assert model.config.attention == attention and all(module.training == training for module in model.modules())
        assert not any(block.attn._forward_hooks for block in model.transformer.h)


def test_a_map_for_each_layer_and_head():
    weights = attention_weights(small_model(n_layer=3), IDS)
    tokens = ["$", "a", "$b$", r"\n", "␣", "_^"]  # to matplotlib, $b$ would be a formula, and _^ a broken one between two $
    figure = draw(weights[[0, 2]], tokens, [0, 2], [0, 1], "$ _^ $ of a text")
    figure.draw_without_rendering()  # lays it out
    *maps, bar = figure.axes
    assert [axes.get_title() for axes in maps] == [f"layer {i}, head {j}" for i in (0, 2) for j in (0, 1)]
    assert bar.get_ylim() == (0, 1)
    for axes, head in zip(maps, weights[[0, 2]].flatten(0, 1), strict=True):
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            assert [text.get_text() for text in labels] == tokens and not any(text.get_parse_math() for text in labels)
        written = {text.get_position()[::-1]: text.get_text() for text in axes.texts}
        assert written == {(i, j): f"{head[i, j]:.2f}" for i in range(6) for j in range(i + 1)}
        image = axes.images[0].get_array()
        assert (image.mask == torch.ones(6, 6).triu(1).bool().numpy()).all() and float(image[4, 2]) == float(head[4, 2])
    assert maps[0].get_ylabel() == "this token looks" and maps[2].get_xlabel() == "at this one"
    assert figure.get_supxlabel() == MEANING and figure.get_suptitle() == "$ _^ $ of a text"


@pytest.mark.parametrize("count, texts", [(1, 1), (12, 78), (13, 0), (300, 0)])
def test_no_label_covers_another_or_is_cut_off(count, texts):
    weights = torch.ones(1, 2, count, count).tril() / torch.arange(1, count + 1)[:, None]
    figure = draw(weights, ["wandering"] * count, [0], [0, 1], "a " * 500)
    figure.draw_without_rendering()  # lays it out
    whole = figure.bbox
    for axes in figure.axes[:2]:
        assert len(axes.texts) == texts
        boxes = [text.get_window_extent() for text in axes.get_yticklabels()]
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
        assert all(box.x0 >= whole.x0 and box.y0 >= whole.y0 for box in boxes + [t.get_window_extent() for t in axes.get_xticklabels()])
    title = figure._suptitle.get_window_extent()
    assert title.x0 >= 0 and title.x1 <= whole.x1 and title.y1 <= whole.y1


def test_a_page_holds_its_data_and_no_token_breaks_out():
    weights = attention_weights(small_model(n_layer=2), IDS)
    tokens = ["</script><b>", "<!--", "{{data}}", "é", '"', "\\"]
    html = page(weights, tokens, [0, 1], [0, 1], "<i>title</i>")
    assert "<b>" not in html and "<!--" not in html and "<i>" not in html and html.count("</script>") == 2
    assert not re.search(r"https?:|//[a-z]|src=|href=|@import|url\(", html)
    assert "A weight shows how much of a token's value was mixed in, not why, nor what it did to the prediction." in html
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert data["tokens"] == tokens and data["title"] == "<i>title</i>" and data["layers"] == data["heads"] == [0, 1]
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rows = data["weights"][layer][head]
        assert [len(row) for row in rows] == [1, 2, 3, 4, 5, 6]
        assert rows[5] == pytest.approx([1e5 * float(w) for w in weights[layer, head, 5]], abs=0.51)


SOURCE, TARGET_IN = [1, 3, 2, 5, 4, 0], [0, 4, 2, 5]


def of_a_head(attention, h, looking, seen, causal):
    """The weights (T, S) of one head without positions, number by number, from what looks (T, C) and what is seen (S, C)."""
    C = looking.size(1)
    D = C // attention.config.n_head
    rows = [slice(part * C + h * D, part * C + (h + 1) * D) for part in (0, 1)]
    q, k = (x @ attention.c_attn.weight[r].T + attention.c_attn.bias[r] for x, r in zip((looking, seen), rows, strict=True))
    weights = torch.zeros(len(q), len(k), dtype=torch.float64)
    for i in range(len(q)):
        powers = [math.exp(float(q[i] @ k[j]) / math.sqrt(D)) for j in range(i + 1 if causal else len(k))]
        weights[i, : len(powers)] = torch.tensor(powers) / sum(powers)
    return weights


@torch.no_grad()
def test_weights_of_an_encoder_decoder_as_computed_by_hand():
    model = seq2seq_of(dropout=0.5, attention_dropout=0.5).train()  # Post-Norm, sinusoidal: what a block reads has positions in it
    found = seq2seq_weights(model, SOURCE, TARGET_IN)
    assert {part: weights.shape for part, weights in found.items()} == {
        "cross": (2, 2, 4, 6),
        "encoder": (2, 2, 6, 6),
        "decoder": (2, 2, 4, 4),
    }
    for weights in found.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert model.training and model.config.attention == "fused" and (found["decoder"].triu(1) == 0).all()
    assert (found["encoder"] > 0).all() and (found["cross"] > 0).all()

    model.eval()
    source, target_in = torch.tensor([SOURCE]), torch.tensor([TARGET_IN])
    letters = math.sqrt(8) * model.source_wte(source) + model.encoder.sinusoids[:6]
    sounds = math.sqrt(8) * model.wte(target_in) + model.decoder.sinusoids[:4]
    memory = model.encoder(math.sqrt(8) * model.source_wte(source), torch.arange(6))
    first = model.decoder.h[0]
    after = first.ln_1(sounds + first.attn(sounds, mask=torch.ones(4, 4).tril().bool()))
    for h in range(2):
        for part, attention, looking, seen in (
            ("encoder", model.encoder.h[0].attn, letters, letters),
            ("decoder", first.attn, sounds, sounds),
            ("cross", first.cross, after, memory),
        ):
            expected = of_a_head(attention, h, looking[0], seen[0], part == "decoder")
            assert expected.std() > 0.05  # not nearly alike
            torch.testing.assert_close(found[part][0, h].double(), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_weights_of_an_encoder_as_computed_by_hand():
    model = encoder_of(norm_place="post")
    weights = encoder_weights(model, [1, 3, 0])
    assert weights.shape == (2, 2, 4, 4) and (weights > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 4))
    x = torch.cat((model.cls[0], model.wte(torch.tensor([1, 3, 0])))) + model.encoder.wpe.weight[:4]
    for h in range(2):
        torch.testing.assert_close(weights[0, h].double(), of_a_head(model.encoder.h[0].attn, h, x, x, False), atol=1e-5, rtol=0)


def test_a_rectangular_map_is_drawn_whole():
    weights = torch.randn(2, 2, 7, 11, generator=torch.Generator().manual_seed(0)).softmax(-1)
    sounds, letters = ["T", "EH", "M", "AH", "L", "Z", "$"], [*"telemachus", "$"]
    figure = draw(weights, sounds, [0, 1], [0, 1], "a word", letters)
    figure.draw_without_rendering()  # lays it out
    for axes, head in zip(figure.axes[:4], weights.flatten(0, 1), strict=True):
        assert [text.get_text() for text in axes.get_yticklabels()] == sounds
        assert [text.get_text() for text in axes.get_xticklabels()] == letters
        assert [text.get_text() for text in axes.texts] == [f"{weight:.2f}" for weight in head.flatten().tolist()]
        image = axes.images[0].get_array()
        assert not image.mask.any() and (image.data == head.numpy()).all()
    upper, lower = (figure.axes[i].get_position() for i in (0, 2))
    assert upper.y0 - lower.y1 < 0.6 * upper.height  # no room is kept for a square


def test_a_page_of_a_map_that_is_not_causal_stores_whole_rows():
    weights = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    html = page(weights, ["T", "EH", "$"], [0], [0], "a word", [*"ted", "$"])
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert data["tokens"] == ["T", "EH", "$"] and data["keys"] == ["t", "e", "d", "$"]
    assert torch.tensor(data["weights"]) / 1e5 == pytest.approx(weights, abs=1e-5)
