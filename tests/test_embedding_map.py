import json
import math
import re

import numpy as np
import pytest
import torch
from conftest import small_model

from engine.embedding_map import axis_names, draw, embedding_table, groups, in_three, page, silhouette, silhouette_test, verdict
from zoo.ladder import LadderConfig
from zoo.models import make

ALPHABET = ["$", *"abcdefghijklmnopqrstuvwxyz"]


def some_table(V, C, seed=0):
    return torch.randn(V, C, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind, name", [("mlp", "embedding"), ("attention", "embedding"), ("transformer", "tokens")])
def test_the_table_of_the_ladders_models(kind, name):
    model = make(LadderConfig(kind=kind))
    table = embedding_table(model)
    assert torch.equal(table, getattr(model, name).weight) and table.shape == (27, 3) and not table.requires_grad


def test_the_table_of_a_gpt_and_of_models_without():
    model = small_model()
    assert torch.equal(embedding_table(model), model.transformer.wte.weight) and not embedding_table(model).requires_grad
    for kind, name in (("uniform", "Uniform"), ("bigram", "Bigram")):
        with pytest.raises(ValueError, match=f"{name} has no embeddings"):
            embedding_table(make(LadderConfig(kind=kind)))


def test_principal_components_as_numpy_finds_them():
    table = some_table(27, 16) * torch.linspace(3, 0.1, 16)
    points, shares = in_three(table)
    centred = table.double().numpy() - table.double().numpy().mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    for k in range(3):
        axis = vectors[:, -1 - k]
        axis = axis * np.sign(axis[np.abs(axis).argmax()])
        np.testing.assert_allclose(points[:, k].numpy(), centred @ axis, atol=1e-8)
        assert shares[k] == pytest.approx(values[-1 - k] / values.sum())
    assert axis_names(shares)[0] == f"component 1 ({shares[0]:.0%} of variance)"


@pytest.mark.parametrize("C", [1, 2, 3])
def test_few_numbers_are_shown_as_they_are(C):
    table = some_table(5, C)
    points, shares = in_three(table)
    assert shares is None and points.shape == (5, 3) and axis_names(shares) == ["embedding 0", "embedding 1", "embedding 2"]
    assert torch.equal(points[:, :C], table.double()) and (points[:, C:] == 0).all()


def test_tables_with_less_than_three_directions():
    points, shares = in_three(some_table(2, 8))
    assert points.shape == (2, 3) and len(shares) == 3 and shares[0] == pytest.approx(1) and points.isfinite().all()
    points, shares = in_three(torch.ones(6, 8))
    assert (points == 0).all() and shares == [0, 0, 0]


def test_groups():
    expected = {"$": "boundary", "a": "vowel", "É": "vowel", "ü": "vowel", "y": "consonant", "Z": "consonant", "ñ": "consonant"}
    expected |= dict.fromkeys([" ", "\n", "'", "7", "λ", "\N{REPLACEMENT CHARACTER}"], "other")
    assert groups(list(expected), 0) == list(expected.values())
    assert groups(["a", "<|endoftext|>", "b"], 1) == ["vowel", "boundary", "consonant"]
    assert groups(["a", "$", "b", " the"], 1) == ["other", "boundary", "other", "other"]


def by_hand(points, labels):
    total = 0.0
    for i, point in enumerate(points):
        means = {}
        for label in set(labels):
            far = [math.dist(point, other) for j, other in enumerate(points) if labels[j] == label and j != i]
            means[label] = sum(far) / len(far) if far else None
        a, b = means.pop(labels[i]), min(means.values())
        total += 0 if a is None else (b - a) / max(a, b)
    return total / len(points)


@pytest.mark.parametrize("labels", [[0, 1] * 5, [0] * 9 + [1], [0, 1, 2, 3, 3, 3, 2, 1, 0, 7], [1] * 5 + [0] * 5])
def test_silhouette_as_computed_by_hand(labels):
    points = some_table(10, 6)
    assert silhouette(points, torch.tensor(labels)) == pytest.approx(by_hand(points.double().tolist(), labels), abs=1e-9)


def test_silhouette_of_special_cases():
    assert silhouette(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])) == 0
    assert silhouette(torch.tensor([[0.0], [0.0], [1.0], [1.0]]), torch.tensor([5, 5, 3, 3])) == 1
    with pytest.raises(ValueError, match="at least two groups; there are 1"):
        silhouette(torch.zeros(4, 2), torch.ones(4).long())


def test_clusters_are_found():
    kinds = groups(ALPHABET, 0)
    table = some_table(27, 8) + 6 * torch.tensor([[float(kind == "vowel")] for kind in kinds])
    letters, labels = table[1:], torch.tensor([int(kind == "vowel") for kind in kinds[1:]])
    score, share = silhouette_test(letters, labels)
    assert score > 0.5 and share < 0.005 and (score, share) == silhouette_test(letters, labels)
    said = verdict(table, kinds)
    assert re.fullmatch(r"vowels and consonants: silhouette 0\.\d+; of 1,000 shuffled labellings 0 scored as much \(p = 0.001\): .*", said)
    assert said.endswith(": they lie together")


def test_chance_alone_gives_every_share_alike():
    labels = torch.tensor([1] * 5 + [0] * 21)
    shares = torch.tensor([silhouette_test(some_table(26, 8, seed), labels, 99)[1] for seed in range(200)])
    assert shares.mean() == pytest.approx(0.5, abs=0.08) and (shares < 0.1).float().mean() == pytest.approx(0.1, abs=0.07)


def test_verdicts():
    kinds = groups(ALPHABET, 0)
    table = torch.cat((torch.zeros(1, 8), some_table(26, 8, 3)))
    assert verdict(table, kinds).endswith("they lie together no more than by chance")
    assert "cannot be tested" in verdict(table, ["other"] * 27)
    assert "cannot be tested" in verdict(table[:3], ["vowel", "consonant", "consonant"])


@pytest.mark.parametrize("count, labels", [(3, 3), (200, 200), (300, 40)])
def test_a_picture_from_two_sides(count, labels):
    tokens = ["$", r"$\frac$", "_^", *(f"t{i}" for i in range(count))][:count]
    points, shares = in_three(some_table(count, 8))
    figure = draw(points, tokens, ["boundary", *["vowel", "other"] * count][:count], axis_names(shares), "$_^$")
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == tokens[:labels] and not any(text.get_parse_math() for text in axes.texts)
        assert axes.get_xlabel().startswith("component 1 (") and axes.get_zlabel().startswith("component 3 (")
        ranges = [high - low for low, high in (axes.get_xlim(), axes.get_ylim(), axes.get_zlim())]
        assert ranges == pytest.approx([ranges[0]] * 3)
    assert [text.get_text().split()[0] for text in figure.legends[0].get_texts()] == ["vowel", "boundary", "other"]


def test_a_page_holds_its_data_and_no_token_breaks_out():
    tokens, kinds = ["</script><b>", "<!--", "{{data}}"], ["other", "vowel", "boundary"]
    points, shares = in_three(some_table(3, 3))
    html = page(points, tokens, kinds, axis_names(shares), "<i>title</i>", "said")
    assert "<b>" not in html and "<!--" not in html and "<i>" not in html and html.count("</script>") == 2
    assert not re.search(r"https?:|//[a-z]|src=|href=|@import|url\(", html)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert (data["tokens"], data["groups"], data["title"], data["said"]) == (tokens, kinds, "<i>title</i>", "said")
    assert torch.tensor(data["points"]).numpy() == pytest.approx(points.numpy(), rel=1e-4)
    long = page(torch.zeros(5001, 3), ["t"] * 5001, ["other"] * 5001, axis_names(None), "many", "said.")
    assert "said. Shown: the first 5,000 of 5,001 tokens." in long and long.count('"t"') == 5000
