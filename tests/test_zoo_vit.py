"""The Vision Transformer against that of `transformers`."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from test_zoo_block import random

from zoo.vit import ViT, ViTConfig

CLOSE = {"atol": 1e-10, "rtol": 0}
PATHS = pytest.mark.parametrize("path", ["fused", "manual"])


BEFORE_5 = {
    "vit.layers": "vit.encoder.layer",
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def model_of(**changes):
    options = {"n_layer": 2, "n_head": 2, "n_embd": 8, "image_size": 6, "patch_size": 2, "channels": 3, "n_classes": 5}
    return random(ViT(ViTConfig(**options | changes)))


def images(B=3, channels=3, size=6):
    return torch.randn(B, channels, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@PATHS
def test_it_is_that_of_transformers(path):
    transformers = pytest.importorskip("transformers")
    model = model_of(attention=path)
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-5,
        image_size=6,
        patch_size=2,
        num_channels=3,
        num_labels=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = transformers.ViTForImageClassification(config).double().eval()
    weights = {"vit.embeddings.cls_token": model.cls, "vit.embeddings.position_embeddings": model.encoder.wpe.weight[None]}
    pairs = {"vit.embeddings.patch_embeddings.projection.": model.patches, "vit.layernorm.": model.encoder.ln_f, "classifier.": model.head}
    weights |= {name + part: getattr(ours, part) for name, ours in pairs.items() for part in ("weight", "bias")}
    for i, block in enumerate(model.encoder.h):
        for part in ("weight", "bias"):
            query, key, value = getattr(block.attn.c_attn, part).chunk(3)
            weights |= {
                f"vit.layers.{i}.attention.q_proj.{part}": query,
                f"vit.layers.{i}.attention.k_proj.{part}": key,
                f"vit.layers.{i}.attention.v_proj.{part}": value,
                f"vit.layers.{i}.attention.o_proj.{part}": getattr(block.attn.c_proj, part),
                f"vit.layers.{i}.layernorm_before.{part}": getattr(block.ln_1, part),
                f"vit.layers.{i}.layernorm_after.{part}": getattr(block.ln_2, part),
                f"vit.layers.{i}.mlp.fc1.{part}": getattr(block.mlp.c_fc, part),
                f"vit.layers.{i}.mlp.fc2.{part}": getattr(block.mlp.c_proj, part),
            }
    if "vit.encoder.layer.0.attention.attention.query.weight" in theirs.state_dict():  # transformers 4 had other names
        weights = {re.sub("|".join(BEFORE_5), lambda found: BEFORE_5[found[0]], name): tensor for name, tensor in weights.items()}
    theirs.load_state_dict(weights)
    with torch.no_grad():
        torch.testing.assert_close(model(images())[0], theirs(pixel_values=images()).logits, **CLOSE)


def test_a_patch_is_one_linear_layer_of_its_pixels():
    model, pixels = model_of(), images()
    cut = F.unfold(pixels, 2, stride=2).transpose(1, 2)  # (B, patches, channels * 4), row by row
    wanted = cut @ model.patches.weight.flatten(1).T + model.patches.bias
    torch.testing.assert_close(model.patches(pixels).flatten(2).transpose(1, 2), wanted, **CLOSE)
    assert model.config.block_size == 9


@PATHS
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
def test_every_patch_counts_and_so_does_its_place(path, position):
    model, pixels = model_of(attention=path, position=position), images()
    with torch.no_grad():
        before = model(pixels)[0]
        for i in range(6):
            other = pixels.clone()
            other[0, :, i, 5 - i] += 1
            assert (model(other)[0] - before)[0].abs().max() > 1e-6 and (model(other)[0] - before)[1:].abs().max() < 1e-12
        assert (model(pixels.roll(2, 3))[0] - before).abs().max() > 1e-3


def test_all_parameters_learn_from_a_loss_of_chance():
    torch.manual_seed(0)
    model = ViT(ViTConfig(n_layer=2, n_head=2, n_embd=32, channels=3, image_size=6, n_classes=5, init="gpt2"))
    loss = model(images().float(), torch.eye(5)[[0, 3, 4]])[1]
    assert loss.item() == pytest.approx(math.log(5), abs=0.15)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_labels_are_smoothed_in_training_only():
    plain, smooth, shares = model_of(), model_of(label_smoothing=0.2), torch.eye(5, dtype=torch.float64)[[0, 1, 1]]
    assert smooth(images(), shares)[1].equal(plain(images(), shares)[1])
    torch.testing.assert_close(smooth.train()(images(), shares)[1], plain(images(), 0.8 * shares + 0.2 / 5)[1], **CLOSE)


def test_it_learns_which_quadrant_is_bright():
    """To the end: pictures that it has not seen."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(n_layer=2, n_head=2, n_embd=16, image_size=8, patch_size=2, n_classes=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chance = torch.Generator().manual_seed(0)

    def pictures(count):
        pixels, which = torch.randn(count, 1, 8, 8, generator=chance), torch.randint(4, (count,), generator=chance)
        for i in range(4):
            row, column = 4 * (i // 2), 4 * (i % 2)
            pixels[which == i, :, row : row + 4, column : column + 4] += 2
        return pixels, torch.eye(4)[which]

    for step in range(300):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, (300 - step) / 150)
        pixels, shares = pictures(64)
        model(pixels, shares)[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    pixels, shares = pictures(500)
    assert (model(pixels)[0].argmax(1) == shares.argmax(1)).float().mean() >= 0.99


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"patch_size": 4}, "patch_size=4 does not divide image_size=6; patch_size=3 would fit"),
        ({"patch_size": 7}, "patch_size=7 does not divide image_size=6; patch_size=6 would fit"),
        ({"n_classes": 0}, "n_classes=0 must be at least 1"),
        ({"channels": 0}, "channels=0 must be at least 1"),
    ],
)
def test_shapes_that_cannot_work(changes, part):
    with pytest.raises(ValueError, match=part):
        model_of(**changes)


def test_images_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 6, 6\) do not fit: \(3, 6, 6\) would"):
        model_of()(images(channels=1))
