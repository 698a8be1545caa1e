from collections import Counter

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from config.command_line import read_config
from data.batches import RowLoader, pack
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
