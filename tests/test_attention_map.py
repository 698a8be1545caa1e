import itertools
import json
import math
import re

import pytest
import torch
from conftest import small_model

from engine.attention_map import MEANING, attention_weights, draw, page

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
