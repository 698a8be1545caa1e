"""The encoder against torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_zoo_block import layer_weights, random

from zoo.encoder import Encoder, EncoderConfig

PATHS = pytest.mark.parametrize("path", ["fused", "manual"])
PLACES = pytest.mark.parametrize("norm_place", ["post", "pre"])
POSITIONS = pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
CLOSE = {"atol": 1e-10, "rtol": 0}
V = 6


def model_of(**changes):
    options = {"block_size": 12, "n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": V}
    return random(Encoder(EncoderConfig(**options | changes)))


def ids(B=4, T=6):
    idx = torch.randint(V + 1, (B, T), generator=torch.Generator().manual_seed(1))  # id V is [MASK]
    idx[1, 4:] = -1
    return idx


@PATHS
@PLACES
@pytest.mark.filterwarnings("ignore")  # torch's own, of nested tensors
def test_it_is_torchs_encoder(path, norm_place):
    model, idx = model_of(attention=path, norm_place=norm_place), ids()
    pre = norm_place == "pre"
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 32, 0.0, lambda x: F.gelu(x, approximate="tanh"), batch_first=True, norm_first=pre
    ).double()
    theirs = torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(8).double() if pre else None).eval()
    weights = {}
    for i, block in enumerate(model.encoder.h):
        weights |= layer_weights(block, f"layers.{i}.")
    if pre:
        weights |= {f"norm.{part}": getattr(model.encoder.ln_f, part) for part in ("weight", "bias")}
    theirs.load_state_dict(weights)
    with torch.no_grad():
        x = torch.cat((model.cls.expand(4, 1, 8), model.wte.weight[idx.clamp(min=0)]), 1) + model.encoder.wpe.weight[:7]
        wanted = theirs(x, src_key_padding_mask=F.pad(idx < 0, (1, 0)))
        found = model.hidden(idx)
    real = F.pad(idx >= 0, (1, 0), value=True)
    torch.testing.assert_close(found[real], wanted[real], **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(model(idx)[0], found[:, 1:] @ model.wte.weight[:V].T, **CLOSE)


@PATHS
@POSITIONS
@PLACES
@pytest.mark.parametrize("n_classes", [0, 3])
def test_padding_changes_nothing(path, position, norm_place, n_classes):
    model, idx = model_of(attention=path, position=position, norm_place=norm_place, n_classes=n_classes), ids()
    targets = torch.where(idx >= 0, idx.clamp(max=V - 1), -1)
    shares = torch.rand(4, 3, dtype=torch.float64)
    for left, right in ((0, 3), (2, 0), (1, 1)):
        wide = F.pad(idx, (left, right), value=-1)
        if n_classes:
            (logits, loss), (same, same_loss) = model(idx, shares), model(wide, shares)
            torch.testing.assert_close(same, logits, **CLOSE)
        else:
            (logits, loss), (same, same_loss) = model(idx, targets), model(wide, F.pad(targets, (left, right), value=-1))
            torch.testing.assert_close(same[:, left : left + 6][idx >= 0], logits[idx >= 0], **CLOSE)
        torch.testing.assert_close(same_loss, loss, **CLOSE)
        same_loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@PATHS
@POSITIONS
def test_it_sees_both_sides(path, position):
    model, idx = model_of(attention=path, position=position), ids()
    with torch.no_grad():
        before = model.hidden(idx)
        for t in range(6):
            other = idx.clone()
            other[0, t] = (other[0, t] + 1) % V
            assert ((model.hidden(other) - before)[0].abs().amax(-1) > 1e-6).all()
            assert (model.hidden(other) - before)[1:].abs().max() < 1e-12  # and nothing of other rows


def test_losses_are_those_of_the_shares_and_of_what_is_hidden():
    model, idx = model_of(n_classes=3), ids()
    shares = torch.rand(4, 3, dtype=torch.float64)
    shares /= shares.sum(1, keepdim=True)
    logits, loss = model(idx, shares)
    torch.testing.assert_close(loss, -(shares * logits.log_softmax(1)).sum(1).mean(), **CLOSE)
    assert model(idx)[1] is None
    model, targets = model_of(), torch.full((4, 6), -1)
    targets[0, 2], targets[3, 5] = 4, 1
    logits, loss = model(idx, targets)
    chances = logits.log_softmax(-1)
    torch.testing.assert_close(loss, -(chances[0, 2, 4] + chances[3, 5, 1]) / 2, **CLOSE)


@pytest.mark.parametrize("n_classes", [0, 3])
def test_all_parameters_learn_from_a_loss_of_chance(n_classes):
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(n_layer=2, n_head=2, n_embd=32, vocab_size=V, n_classes=n_classes, init="gpt2"))
    loss = model(ids(), torch.eye(3)[[0, 1, 2, 0]] if n_classes else ids().clamp(max=V - 1))[1]
    assert loss.item() == pytest.approx(math.log(n_classes or V), abs=0.4)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_labels_are_smoothed_in_training_only():
    plain, smooth, shares = (
        model_of(n_classes=2),
        model_of(n_classes=2, label_smoothing=0.2),
        torch.eye(2, dtype=torch.float64)[[0, 1, 1, 0]],
    )
    assert smooth(ids(), shares)[1].equal(plain(ids(), shares)[1])
    torch.testing.assert_close(smooth.train()(ids(), shares)[1], plain(ids(), 0.8 * shares + 0.1)[1], **CLOSE)


def test_it_learns_which_of_two_letters_is_commoner():
    """To the end: strings that it has not seen, in which neither is as common as the other."""
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(block_size=9, n_layer=1, n_head=2, n_embd=16, vocab_size=4, n_classes=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chance = torch.Generator().manual_seed(0)

    def strings(count):
        idx = torch.randint(4, (4 * count, 9), generator=chance)
        more = (idx == 1).sum(1) - (idx == 2).sum(1)
        idx, more = idx[more != 0][:count], more[more != 0][:count]
        return idx, torch.eye(2)[(more > 0).long()]

    for step in range(200):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, (200 - step) / 100)
        idx, shares = strings(64)
        model(idx, shares)[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    idx, shares = strings(500)
    assert (model(idx)[0].argmax(1) == shares.argmax(1)).float().mean() >= 0.99


def test_what_it_cannot_read():
    model = model_of()
    assert model(torch.full((1, 12), V))[0].shape == (1, 12, V)
    for idx, part in (
        (torch.full((1, 4), V + 1), f"token id {V + 1} is outside the vocabulary"),
        (torch.zeros(1, 13, dtype=torch.int64), "14 tokens do not fit: 13"),
    ):
        with pytest.raises(ValueError, match=part):
            model(idx)
    with pytest.raises(ValueError, match=f"target id {V} is outside the vocabulary: 0 to {V - 1}"):  # nothing is [MASK]
        model(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[-1, V]]))
    with pytest.raises(ValueError, match="n_classes=-1 must be at least 1, or 0"):
        model_of(n_classes=-1)
