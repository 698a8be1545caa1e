"""Batches of examples."""

import numpy as np
import pytest
import torch

from data.examples import POOL, ExampleLoader, classed, documents_of, lengths_of, masked, pairs, pictures, warped
from engine.errors import UserError

V = 9  # ids 1 to 8 are letters, 0 the boundary


def tokens_of(count, seed=0, lowest=1, highest=7):
    """$...$...$ of this many documents."""
    chance = np.random.default_rng(seed)
    documents = [chance.integers(1, V, size=chance.integers(lowest, highest + 1)).tolist() for _ in range(count)]
    return np.array([0, *(i for document in documents for i in (*document, 0))]), documents


def loader_of(count=70, batch_size=8, part=(0, 1), seed=3, **options):
    return ExampleLoader(*pairs(tokens_of(2 * count)[0], 0, vocab_size=V, **options), batch_size, seed, part)


def rows_of(batch):
    """The examples of a batch without their padding, as text."""
    return [str([[i for i in row.tolist() if i >= 0] for row in example]) for example in zip(*batch.inputs, strict=True)]


def same(a, b):
    return all(x.equal(y) for x, y in zip(a.inputs, b.inputs, strict=True)) and a[1:] == b[1:]


def test_documents_and_their_ends():
    assert documents_of(np.array([0, 3, 4, 0, 5, 0, 0]), 0).tolist() == [[3, 4, 0], [5, 0, -1], [0, -1, -1]]
    assert lengths_of(documents_of(np.array([0, 3, 4, 0, 5, 0], dtype=np.uint16), 0)).tolist() == [3, 2]
    tokens, documents = tokens_of(50)
    found = documents_of(tokens, 0)
    assert [[i for i in row if i >= 0] for row in found.tolist()] == [[*document, 0] for document in documents]


def test_every_example_comes_once_an_epoch_in_another_order():
    loader, epochs = loader_of(), []
    for epoch in range(2):
        rows = []
        for _ in range(len(loader.batches)):
            batch = next(loader)
            assert loader.epoch == epoch and batch.n_targets == batch.n_all == int((batch.inputs[2] >= 0).sum())
            rows += rows_of(batch)
        assert len(rows) == 70 and sorted(rows) == sorted(row for batch in loader.once() for row in rows_of(batch))
        epochs.append(rows)
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
    again = loader_of()
    assert [row for _ in range(9) for row in rows_of(next(again))] == epochs[0]
    other = loader_of(seed=4)
    assert [row for _ in range(9) for row in rows_of(next(other))] != epochs[0]


def test_what_stands_side_by_side_is_of_about_one_length():
    loader = ExampleLoader(*pairs(tokens_of(4000)[0], 0), 32)
    real = padded = 0
    for _ in range(len(loader.batches)):
        for tensor in next(loader).inputs:
            real, padded = real + int((tensor >= 0).sum()), padded + int((tensor < 0).sum())
    assert len(loader.batches) > POOL and padded < 0.2 * real  # by chance it would be 0.6


def pictures_of(count):
    return np.random.default_rng(0).integers(0, 256, size=(count, 3, 5, 4), dtype=np.uint8)


KINDS = {
    "plain": lambda: pairs(tokens_of(140)[0], 0),
    "noise": lambda: pairs(tokens_of(140)[0], 0, noise=0.3, vocab_size=V),
    "masked": lambda: masked(tokens_of(70)[0], 0, V, 0.3, seed=1),
    "hidden": lambda: classed(tokens_of(70)[0], 0, np.ones((70, 2)), noise=0.3, vocab_size=V),
    "warp": lambda: pictures(pictures_of(70), np.arange(70) % 3, 3, warp=0.2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_where_it_was(kind):
    loader = ExampleLoader(*KINDS[kind](), 8, seed=3)
    for _ in range(13):  # in the middle of the second epoch
        next(loader)
    state = loader.state_dict()
    coming = [next(loader) for _ in range(12)]
    again = ExampleLoader(*KINDS[kind](), 8, seed=3)
    again.load_state_dict(state)
    assert all(same(batch, next(again)) for batch in coming)
    with pytest.raises(ValueError, match="an epoch has 9 batches, not 10"):
        again.load_state_dict({"epoch": 0, "batch": 10})


def test_each_batch_has_its_own_chance():
    """Of one document, again and again, other tokens are hidden."""
    loader = ExampleLoader(*masked(np.array([0, *[1, 2, 3, 4, 5, 6, 7, 8, 0] * 40]), 0, V, 0.3, seed=1), 4)
    hidden = {tuple(next(loader).inputs[1].flatten().tolist()) for _ in range(20)}  # two epochs
    assert len(hidden) == 20


def test_two_processes_share_a_batch():
    whole, halves = loader_of(noise=0.3), [loader_of(noise=0.3, part=(i, 2)) for i in range(2)]
    for _ in range(10):
        batch, parts = next(whole), [next(half) for half in halves]
        assert sorted(rows_of(batch)) == sorted(rows_of(parts[0]) + rows_of(parts[1]))
        assert sum(part.n_targets for part in parts) == batch.n_targets and {part.n_all for part in parts} == {batch.n_all}


def test_a_part_of_a_split_is_evenly_spread():
    found = [row for batch in loader_of().once(20) for row in rows_of(batch)]
    assert len(found) == 20 == len(set(found))
    assert len([row for batch in loader_of().once(1000) for row in rows_of(batch)]) == 70


def test_mistakes():
    with pytest.raises(UserError, match="there is no example"):
        ExampleLoader(*pairs(np.array([0]), 0), 8)
    with pytest.raises(UserError, match=r"batches of 1 examples \(batch_size=1\) are too small for 2 processes"):
        loader_of(batch_size=1, part=(0, 2))


# what examples are made of


def test_pairs():
    tokens = np.array([0, 5, 6, 7, 0, 3, 0, 4, 0, 1, 2, 0])  # 5 6 7 -> 3; 4 -> 1 2
    lengths, make = pairs(tokens, 0)
    source, target_in, targets = make(np.array([0, 1]), None).inputs
    assert source.tolist() == [[5, 6, 7, 0], [4, 0, -1, -1]]
    assert target_in.tolist() == [[0, 3, -1], [0, 1, 2]] and targets.tolist() == [[3, 0, -1], [1, 2, 0]]
    assert lengths[0] > lengths[1]  # the source's length comes first
    assert make(np.array([1]), None).inputs[0].tolist() == [[4, 0]]  # no wider than it must be


def test_noise_is_for_what_is_read_in_training():
    tokens = tokens_of(4000, lowest=4)[0]
    _, make = pairs(tokens, 0, noise=0.25, vocab_size=V)
    clean = make(np.arange(2000), None)
    noisy = make(np.arange(2000), np.random.default_rng(0))
    assert same(clean, pairs(tokens, 0)[1](np.arange(2000), None))
    source, target_in, targets = (after != before for after, before in zip(noisy.inputs, clean.inputs, strict=True))
    assert not source.any() and not targets.any() and not target_in[:, 0].any()
    real = (clean.inputs[1] >= 0)[:, 1:]
    assert not target_in[:, 1:][~real].any()
    assert target_in[:, 1:][real].float().mean().item() == pytest.approx(0.25 * (V - 1) / V, abs=0.02)


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_masked(share):
    tokens, _ = tokens_of(3000, lowest=5, highest=20)
    _, make = masked(tokens, 0, V, share, seed=1)
    idx, targets = make(np.arange(3000), np.random.default_rng(0)).inputs
    whole = torch.from_numpy(documents_of(tokens, 0))
    hidden = targets >= 0
    assert hidden.any(1).all() and (targets[hidden] == whole[hidden]).all()
    assert (idx[~hidden] == whole[~hidden]).all()  # padding, too
    assert hidden[whole >= 0].float().mean().item() == pytest.approx(share, abs=0.02 + 0.02 * (share < 0.2))
    what = idx[hidden]
    assert (what == V).float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert (what == targets[hidden]).float().mean().item() == pytest.approx(0.1 + 0.1 / V, abs=0.02)
    assert ((what >= 0) & (what <= V)).all()


def test_in_evaluation_a_document_always_has_the_same_hidden():
    tokens = tokens_of(40)[0]
    _, make = masked(tokens, 0, V, 0.3, seed=1)
    together, alone = make(np.arange(40), None), [make(np.array([i]), None) for i in range(40)]
    assert rows_of(together) == [row for batch in alone for row in rows_of(batch)]
    assert not same(make(np.arange(40), np.random.default_rng(0)), together)
    assert not same(masked(tokens, 0, V, 0.3, seed=2)[1](np.arange(40), None), together)


def test_classed():
    tokens, counts = np.array([0, 5, 6, 0, 7, 0]), np.array([[3, 1], [0, 2]])
    _, make = classed(tokens, 0, counts)
    idx, shares = make(np.array([1, 0]), None).inputs
    assert idx.tolist() == [[7, 0, -1], [5, 6, 0]] and shares.tolist() == [[0, 1], [0.75, 0.25]]
    assert make(np.array([1, 0]), None).n_targets == 2 and shares.dtype == torch.float32
    many, counts = tokens_of(1000, lowest=5)[0], np.ones((1000, 2))
    noisy = classed(many, 0, counts, noise=0.3, vocab_size=V)[1]
    clean, drawn = (noisy(np.arange(1000), chance).inputs[0] for chance in (None, np.random.default_rng(0)))
    changed = clean != drawn
    assert (drawn[changed] == V).all() and not changed[clean <= 0].any()
    assert changed[clean > 0].float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert not (noisy(np.arange(1000), None).inputs[0] == V).any()  # the documents themselves are as they were


def test_pictures():
    images = pictures_of(20)
    images[0, 0, 0, :2] = 0, 255
    _, make = pictures(images, np.arange(20) % 3, 3, warp=0.2)
    plain, shares = make(np.arange(20), None).inputs
    assert plain.shape == (20, 3, 5, 4) and plain[0, 0, 0, 0] == -1 and plain[0, 0, 0, 1] == 1
    torch.testing.assert_close(plain, torch.from_numpy(images / 127.5 - 1).float())
    assert shares.argmax(1).tolist() == [i % 3 for i in range(20)] and (shares.sum(1) == 1).all()
    moved, _ = make(np.arange(20), np.random.default_rng(0)).inputs
    assert moved.shape == plain.shape and ((moved - plain).abs().amax((1, 2, 3)) > 0.01).all() and moved.abs().max() <= 1
    twice, _ = make(np.array([3, 3]), np.random.default_rng(0)).inputs
    assert not twice[0].equal(twice[1])  # each in its own way


def test_warped():
    """In steps of whole pixels, a picture of 4 x 4, whose sides are 2 long: half a unit is a pixel."""
    pixels = np.random.default_rng(0).uniform(-1, 1, size=(1, 2, 4, 4)).astype(np.float32)
    by = np.zeros((1, 2, 3))
    np.testing.assert_allclose(warped(pixels, by), pixels, atol=1e-6)
    by[0, 0, 2] = 0.5  # from one pixel further to the right
    np.testing.assert_allclose(warped(pixels, by)[..., :3], pixels[..., 1:], atol=1e-6)
    np.testing.assert_allclose(warped(pixels, by)[..., 3], pixels[..., 3], atol=1e-6)  # the edge
    turn = np.array([[[-1, -1, 0], [1, -1, 0]]])  # (x, y) from (-y, x): a quarter
    np.testing.assert_allclose(warped(pixels, turn), np.rot90(pixels, k=1, axes=(2, 3)), atol=1e-6)
