import numpy as np
import pytest
import torch

from engine.class_pictures import attention_to_patches, confusion_of, draw_confusion, draw_patch_attention
from zoo.vit import ViT, ViTConfig


def texts(axes):
    return [(text.get_position(), text.get_text()) for text in axes.texts]


def test_the_counts():
    found = confusion_of(np.array([0, 0, 1, 2, 2, 2]), np.array([0, 2, 1, 2, 2, 0]), 4)
    assert found.tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 2, 0], [0, 0, 0, 0]]


def test_mistakes_have_colours_of_their_own():
    confusion = np.array([[999, 1], [0, 50]])
    figure = draw_confusion(confusion, ["cat", "$dog"], "pets")
    axes = figure.axes[0]
    assert texts(axes) == [((0, 0), "999"), ((1, 0), "1"), ((1, 1), "50")]
    right, wrong = axes.images
    assert right.get_array().mask.tolist() == [[False, True], [True, False]]
    assert wrong.get_array()[0, 1] == 0.001 == wrong.get_clim()[1]  # the strongest red, though it is one of a thousand
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "$dog"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("told", "truth")
    assert figure.get_suptitle() == "pets\n1,049 of 1,050 right"
    figure.canvas.draw()


@pytest.mark.parametrize("K", [1, 16, 130])
def test_confusions_of_any_size(K):
    figure = draw_confusion(np.eye(K, dtype=int), [f"class {i}" for i in range(K)], "all right")
    assert len(figure.axes[0].texts) == (K if K <= 15 else 0)
    assert len(figure.axes[0].get_xticks()) <= 60
    figure.canvas.draw()


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = ViT(ViTConfig(n_layer=2, n_head=2, n_embd=16, dropout=0.5))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def test_the_weights_are_those_by_which_values_are_mixed(model):
    images = torch.rand(3, 1, 8, 8) * 2 - 1
    weights = attention_to_patches(model, images)
    assert weights.shape == (3, 2, 2, 16) and weights.dtype == torch.float32
    assert (weights > 0).all() and (weights.sum(-1) < 1).all()  # the rest is what [CLS] looks at itself
    assert model.training and model.config.attention == "fused"  # as they were
    assert not any(module._forward_hooks for module in model.modules())
    # by hand, for the first layer
    model.eval()
    x = torch.cat((model.cls.expand(3, -1, -1), model.patches(images).flatten(2).transpose(1, 2)), 1) + model.encoder.wpe.weight
    block = model.encoder.h[0]
    q, k, _ = block.attn.c_attn(block.ln_1(x)).split(16, dim=2)
    scores = torch.einsum("nhd,nshd->nhs", q[:, 0].view(3, 2, 8), k.view(3, 17, 2, 8)) / 8**0.5
    torch.testing.assert_close(weights[:, 0], scores.softmax(-1)[..., 1:])
    torch.testing.assert_close(attention_to_patches(model, images[1:2])[0], weights[1])


@pytest.mark.parametrize("channels", [1, 3])
def test_the_picture_of_patches(channels):
    images = np.random.default_rng(0).integers(0, 256, (2, channels, 4, 4), dtype=np.uint8)
    weights = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.0]], [[0.2, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.1]]])
    figure = draw_patch_attention(images, weights, ["cat", "dog"], ["cat", "cat"], "pets")
    rows = [figure.axes[:4], figure.axes[4:8]]
    assert [axes.get_title() for axes in rows[0]] == ["told: cat", "mean: 0.40", "head 0: 0.40", "head 1: 0.70"]
    assert rows[1][0].get_title() == "told: dog, but it is cat"
    shown = rows[0][0].images[0].get_array()
    assert shown.shape == ((4, 4) if channels == 1 else (4, 4, 3))
    over = rows[0][2].images[1]
    np.testing.assert_allclose(over.get_array(), [[0.1, 0.2], [0.3, 0.4]], rtol=1e-6)  # row by row
    assert over.get_extent() == [-0.5, 3.5, 3.5, -0.5]
    assert [row[1].images[1].get_clim()[1] for row in rows] == pytest.approx([0.7, 0.2])
    figure.canvas.draw()
