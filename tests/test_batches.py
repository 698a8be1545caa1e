from collections import Counter

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from config.command_line import read_config
from data.batches import Ahead, RowLoader, StreamLoader, pack
from data.names.prepare import prepare
from engine.errors import UserError

documents = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=40)


def flat(documents):
    return np.array([0] + [token for d in documents for token in [*d, 0]])


def documents_of(batch):
    """What a batch holds, read back from idx, targets and positions; checks that inputs and targets belong together."""
    found = []
    for idx, targets, positions in zip(*(t.tolist() for t in batch[:3]), strict=True):
        current = None
        for token, target, position in zip(idx, targets, positions, strict=True):
            if target == -1:
                continue
            if position == 0:
                assert token == 0
                current = []
            else:
                assert token == current[-1]
                assert position == len(current)
            current.append(target)
            if target == 0:
                found.append(tuple(current[:-1]))
    return found


def epoch(loader):
    batches = [next(loader)]
    while loader.batch < len(loader.batches):
        batches.append(next(loader))
    return batches


@settings(deadline=None)
@given(documents, st.integers(8, 20), st.integers(1, 6))
def test_every_document_whole_and_exactly_once_an_epoch(documents, block_size, batch_size):
    loader = RowLoader(flat(documents), 0, block_size, batch_size, seed=3)
    for _ in range(2):
        batches = epoch(loader)
        assert Counter(d for b in batches for d in documents_of(b)) == Counter(map(tuple, documents))
        assert all(b.idx.shape[0] <= batch_size and b.idx.shape[1] == block_size for b in batches)
        assert all(b.n_targets == (b.targets != -1).sum() for b in batches)
        sizes = [len(b.idx) for b in batches]
        assert max(sizes) - min(sizes) <= 1  # no small left-over batch
    once = list(RowLoader(flat(documents), 0, block_size, batch_size).once())
    assert Counter(d for b in once for d in documents_of(b)) == Counter(map(tuple, documents))


@given(st.lists(st.integers(1, 10), max_size=60))
def test_pack_fits(lengths):
    rows = pack(np.array(lengths, dtype=int), np.arange(len(lengths)), 10)
    assert sorted(d for row in rows for d in row) == list(range(len(lengths)))
    sums = [sum(lengths[d] for d in row) for row in rows]
    assert all(0 < s <= 10 for s in sums)
    assert sum(s <= 5 for s in sums) <= 1  # two half-empty rows would have been one


def test_inputs_and_targets_of_one_name():
    batch = next(RowLoader(flat([[1, 4, 1]]), 0, 6, 4))
    assert batch.idx.tolist() == [[0, 1, 4, 1, 0, 0]]
    assert batch.targets.tolist() == [[1, 4, 1, 0, -1, -1]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 0, 0]]
    assert batch.n_targets == 4


def test_names_fill_their_batches():
    config = read_config(ROOT / "config/names.py")
    loader = RowLoader(prepare(config).tokens["train"], 0, config.block_size, config.batch_size, config.seed)
    for _ in range(2):
        for batch in epoch(loader):
            assert batch.n_targets >= 0.9 * batch.idx.numel()


def test_epochs_differ_and_seeds_decide():
    docs = [[i % 9 + 1, i % 7 + 1, i % 5 + 1] for i in range(50)]
    first, again, other = (RowLoader(flat(docs), 0, 8, 4, seed) for seed in (1, 1, 2))
    a, b, c = epoch(first), epoch(again), epoch(other)
    assert all(torch.equal(x.idx, y.idx) for x, y in zip(a, b, strict=True))
    assert not all(torch.equal(x.idx, y.idx) for x, y in zip(a, c, strict=False))
    assert not all(torch.equal(x.idx, y.idx) for x, y in zip(a, epoch(first), strict=False))


@pytest.mark.parametrize("steps", [0, 1, 12, 13, 30])
def test_the_place_in_the_epoch_is_restored_exactly(steps):
    docs = [[i % 9 + 1, i % 7 + 1, i % 5 + 1] for i in range(50)]
    loader = RowLoader(flat(docs), 0, 8, 2, seed=4)
    for _ in range(steps):
        next(loader)
    resumed = RowLoader(flat(docs), 0, 8, 2, seed=4)
    resumed.load_state_dict(loader.state_dict())
    for _ in range(30):
        for x, y in zip(next(loader)[:3], next(resumed)[:3], strict=True):
            assert torch.equal(x, y)


def test_a_document_too_long_names_the_block_size_that_fits():
    with pytest.raises(UserError, match="block_size=3 is too small.*block_size=5 would fit"):
        RowLoader(flat([[1], [1, 2, 3, 4]]), 0, 3, 2)


def test_no_documents():
    with pytest.raises(UserError, match="no document"):
        RowLoader(np.array([0]), 0, 3, 2)


def test_a_split_smaller_than_a_batch_is_served():
    loader = RowLoader(flat([[1, 2], [3]]), 0, 4, 100)
    assert [len(next(loader).idx) for _ in range(5)] == [2] * 5
    assert loader.epoch == 4


def test_once_with_a_limit_is_a_spread_of_the_rows():
    docs = [[i % 9 + 1, i % 7 + 1, i % 5 + 1] for i in range(200)]
    loader = RowLoader(flat(docs), 0, 8, 4)
    batches = list(loader.once(limit=80))
    assert 60 <= sum(b.n_targets for b in batches) <= 80 and sum(len(b.idx) for b in batches) == 10
    assert sum(b.n_targets for b in loader.once(limit=10**9)) == sum(b.n_targets for b in loader.once())


# the stream


def test_targets_are_inputs_shifted_by_one():
    tokens = np.arange(100, 160)
    loader = StreamLoader(tokens, block_size=8, batch_size=5, seed=1)
    for _ in range(20):
        batch = next(loader)
        assert batch.idx.shape == batch.targets.shape == (5, 8) and batch.idx.dtype == torch.int64
        assert (batch.targets == batch.idx + 1).all() and (batch.idx.diff() == 1).all()
        assert batch.positions is None and batch.n_targets == 40


def test_every_window_is_equally_likely():
    loader = StreamLoader(np.arange(30), block_size=10, batch_size=100)
    starts = Counter(int(start) for _ in range(200) for start in next(loader).idx[:, 0])
    assert sorted(starts) == list(range(20))  # the last of them ends with the last token as target
    expected = 200 * 100 / 20
    chi2 = sum((count - expected) ** 2 / expected for count in starts.values())
    assert chi2 < 43.8  # 19 degrees of freedom: passed by chance in 999 of 1,000 seeds, and this one is fixed


@given(st.integers(1, 20), st.integers(2, 120), st.integers(1, 7))
def test_once_predicts_every_token_once_in_order_with_half_a_window_before_it(block_size, n, batch_size):
    if n <= block_size:
        return
    loader = StreamLoader(np.arange(n), block_size, batch_size)
    batches = list(loader.once())
    told = [int(t) for b in batches for t in b.targets.flatten() if t != -1]
    assert told == list(range(1, n))
    assert sum(b.n_targets for b in batches) == n - 1
    for b in batches:
        rows, columns = (b.targets != -1).nonzero(as_tuple=True)
        early = columns + 1 < block_size // 2
        assert (b.idx[rows[early], 0] == 0).all()  # only at the very beginning has a token less before it


@given(st.integers(1, 20), st.integers(2, 120), st.integers(1, 7), st.data())
def test_once_with_a_stride_predicts_every_token_once_with_that_much_less_than_a_window_before_it(block_size, n, batch_size, data):
    if n <= block_size:
        return
    stride = data.draw(st.integers(1, block_size))
    batches = list(StreamLoader(np.arange(n), block_size, batch_size).once(stride=stride))
    told = [int(t) for b in batches for t in b.targets.flatten() if t != -1]
    assert told == list(range(1, n)) and sum(b.n_targets for b in batches) == n - 1
    for b in batches:
        rows, columns = (b.targets != -1).nonzero(as_tuple=True)
        assert (b.idx[rows, columns] + 1 == b.targets[rows, columns]).all()
        early = columns < block_size - stride  # fewer than block_size - stride + 1 inputs
        assert (b.idx[rows[early], 0] == 0).all()  # only at the very beginning


def test_once_with_a_stride_that_repeats_or_leaves_out():
    loader = StreamLoader(np.arange(60), 10, 2)
    for stride in (-1, 0, 11):
        with pytest.raises(UserError, match=f"stride={stride} must be at least 1 and at most block_size=10"):
            next(loader.once(stride=stride))
    for default, half in zip(loader.once(), loader.once(stride=5), strict=True):
        assert default.idx.equal(half.idx) and default.targets.equal(half.targets)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_hidden_targets_leave_the_inputs_alone(batch_size):
    for batch in StreamLoader(np.arange(60), 10, batch_size).once():
        assert (batch.idx.diff() == 1).all()


def test_once_with_a_limit_is_a_spread_of_the_windows():
    loader = StreamLoader(np.arange(10_001), block_size=100, batch_size=4)
    batches = list(loader.once(limit=1000))
    told = [int(t) for b in batches for t in b.targets.flatten() if t != -1]
    assert len(set(told)) == len(told) and 1000 <= len(told) <= 1100
    assert min(told) == 1 and max(told) == 10_000
    assert max(np.diff(told)) < 700
    assert sum(b.n_targets for b in loader.once(limit=10**9)) == 10_000


def test_a_stream_goes_on_with_the_very_next_batch():
    loader = StreamLoader(np.arange(1000), 8, 4, seed=5)
    for _ in range(7):
        next(loader)
    again = StreamLoader(np.arange(1000), 8, 4, seed=5)
    again.load_state_dict(loader.state_dict())
    other = StreamLoader(np.arange(1000), 8, 4, seed=6)
    for _ in range(5):
        a = next(loader)
        assert torch.equal(a.idx, next(again).idx)
        assert not torch.equal(a.idx, next(other).idx)
    loader.load_state_dict({"batch": 125})
    assert loader.epoch == 4


def test_windows_never_leave_their_split():
    """Each split is an array of its own: the largest and smallest ids of a window are of that split."""
    tokens = {"train": np.arange(0, 900), "val": np.arange(900, 950)}
    for part, ids in tokens.items():
        loader = StreamLoader(ids, 20, 64)
        for _ in range(50):
            batch = next(loader)
            assert set(batch.targets.flatten().tolist()) | set(batch.idx.flatten().tolist()) <= set(ids.tolist()), part


def test_a_text_too_short_names_the_block_size_that_fits():
    with pytest.raises(UserError, match="block_size=256 is too large for a text of 40 tokens; block_size=39 would fit"):
        StreamLoader(np.arange(40), 256, 2)
    assert next(StreamLoader(np.arange(40), 39, 2)).idx[0].tolist() == list(range(39))


def test_a_memory_map_is_read_like_an_array(tmp_path):
    tokens = np.arange(500, dtype=np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    mapped = StreamLoader(np.memmap(tmp_path / "train.bin", np.uint16, mode="r"), 16, 4)
    loaded = StreamLoader(tokens, 16, 4)
    assert torch.equal(next(mapped).targets, next(loaded).targets)


def test_data_removed_while_they_are_read(tmp_path):
    np.arange(500, dtype=np.uint16).tofile(tmp_path / "train.bin")
    loader = StreamLoader(np.memmap(tmp_path / "train.bin", np.uint16, mode="r"), 16, 4)
    (tmp_path / "train.bin").unlink()
    assert (next(loader).idx.diff() == 1).all()


@settings(deadline=None)
@given(documents, st.integers(2, 3), st.booleans())
def test_the_parts_of_a_batch_are_the_batch(documents, n, one_shape):
    arguments = (flat(documents), 0, 9, 8, 3)
    alone = RowLoader(*arguments)
    if min(map(len, alone.batches)) < n:
        with pytest.raises(UserError, match=f"too small for {n} processes"):
            RowLoader(*arguments, part=(0, n))
        return
    parts = [RowLoader(*arguments, one_shape, part=(i, n)) for i in range(n)]
    for _ in range(3):
        expected = next(alone)
        found = [next(part) for part in parts]
        assert Counter(d for b in found for d in documents_of(b)) == Counter(documents_of(expected))
        assert all(b.n_targets > 0 and b.n_all == expected.n_targets == expected.n_all for b in found)
        assert sum(b.n_targets for b in found) == expected.n_targets
        assert not one_shape or sum(len(b.idx) for b in found) == 8


def test_the_parts_of_a_batch_of_windows_are_the_batch():
    tokens = np.arange(100)
    alone, parts = StreamLoader(tokens, 8, 5, 1), [StreamLoader(tokens, 8, 5, 1, part=(i, 2)) for i in range(2)]
    for _ in range(3):
        expected, (a, b) = next(alone), map(next, parts)
        assert torch.cat([a.idx, b.idx])[[0, 3, 1, 4, 2]].equal(expected.idx)
        assert (a.n_targets, b.n_targets, a.n_all, b.n_all) == (24, 16, 40, 40)
    with pytest.raises(UserError, match="batch_size=1 is too small for 2 processes; batch_size=2 would do"):
        StreamLoader(tokens, 8, 1, part=(1, 2))


def test_one_shape_fills_up_with_rows_that_count_nothing():
    batches = epoch(RowLoader(flat([[1, 2, 3]] * 5), 0, 4, 2, one_shape=True))
    assert [len(b.idx) for b in batches] == [2, 2, 2]
    assert [b.n_targets for b in batches] == [4, 8, 8]
    assert all(b.n_targets == (b.targets != -1).sum() for b in batches)


def test_made_ahead_is_the_same_and_its_place_is_that_of_the_batch_served(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # which needs a GPU
    make = lambda: RowLoader(flat([[i % 9 + 1] * (i % 5) for i in range(1, 30)]), 0, 8, 4)  # noqa: E731
    plain, ahead = make(), Ahead(make())
    for _ in range(20):
        a, b = next(plain), next(ahead)
        assert a.idx.equal(b.idx) and (plain.epoch, plain.state_dict()) == (ahead.epoch, ahead.state_dict())
    place, expected = ahead.state_dict(), next(plain)
    other = Ahead(make())
    other.load_state_dict(place)
    assert next(other).idx.equal(expected.idx) and other.state_dict() == plain.state_dict()
    assert [b.n_targets for b in ahead.once()] == [b.n_targets for b in plain.once()]


def test_noise():
    torch.manual_seed(1)
    batch = next(StreamLoader(np.zeros(20_000, dtype=int), 100, 100))
    noisy = batch.with_noise(0.2, 10)
    assert noisy.idx.ne(0).float().mean().item() == pytest.approx(0.2 * 0.9, abs=0.016)  # one in ten is drawn as what it was
    assert set(noisy.idx.unique().tolist()) == set(range(10))
    assert noisy.targets is batch.targets and batch.idx.eq(0).all() and noisy.n_targets == batch.n_targets
    assert batch.with_noise(0.0, 10) is batch
    rows = next(RowLoader(flat([[1, 2, 3]] * 50), 0, 8, 25)).with_noise(0.9, 5)
    assert rows.idx[rows.positions == 0].eq(0).all() and rows.idx[rows.positions > 0].eq(4).any()
