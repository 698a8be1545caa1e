"""The encoder-decoder against torch's own, plain loops and enumeration."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from test_zoo_block import layer_weights

from zoo.seq2seq import Seq2Seq, Seq2SeqConfig, decoder_mask

PATHS = pytest.mark.parametrize("path", ["fused", "manual"])
POSITIONS = pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary"])
PLACES = pytest.mark.parametrize("norm_place", ["post", "pre"])
CLOSE = {"atol": 1e-10, "rtol": 0}
SOURCES, TARGETS = 7, 6  # vocabularies


def model_of(seed=0, **changes):
    """In float64, with every parameter away from where it begins."""
    options = {"block_size": 12, "n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": TARGETS, "source_vocab_size": SOURCES}
    model = Seq2Seq(Seq2SeqConfig(**options | changes)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=p.dtype) + (p.dim() == 1))
    return model.eval()


def batch(B=4, S=6, T=5):
    """Sources, the beginnings and the targets, with padding behind some."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(SOURCES, (B, S), generator=generator)
    target_in, targets = (torch.randint(TARGETS, (B, T), generator=generator) for _ in range(2))
    source[1, 4:] = target_in[2, 3:] = targets[2, 3:] = -1
    return source, target_in, targets


def moved(rows, left, right):
    """The rows with padding before and behind."""
    return F.pad(rows, (left, right), value=-1)


@PATHS
@PLACES
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_it_is_torchs_transformer(path, norm_place, activation):
    model, (source, target_in, _) = model_of(attention=path, norm_place=norm_place, activation=activation), batch()
    function = F.relu if activation == "relu" else lambda x: F.gelu(x, approximate="tanh")
    pre = norm_place == "pre"
    theirs = torch.nn.Transformer(8, 2, 2, 2, 32, 0.0, function, batch_first=True, norm_first=pre).double().eval()
    weights = {}
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, block in enumerate(stack.h):
            weights |= layer_weights(block, f"{name}.layers.{i}.")
        if pre:
            weights |= {f"{name}.norm.{part}": getattr(stack.ln_f, part) for part in ("weight", "bias")}
        else:  # torch adds a norm that the paper does not have
            getattr(theirs, name).norm = None
    theirs.load_state_dict(weights)
    with torch.no_grad():
        embedded = [
            table.weight[ids.clamp(min=0)] * math.sqrt(8) + stack.sinusoids[torch.arange(ids.size(1))]
            for table, ids, stack in ((model.source_wte, source, model.encoder), (model.wte, target_in, model.decoder))
        ]
        hidden = theirs(
            *embedded,
            tgt_mask=torch.ones(5, 5).triu(1).bool(),
            src_key_padding_mask=source < 0,
            memory_key_padding_mask=source < 0,
            tgt_key_padding_mask=target_in < 0,
        )
        found = model(source, target_in)[0]
    torch.testing.assert_close(found[target_in >= 0], (hidden @ model.wte.weight.T)[target_in >= 0], **CLOSE)


@PATHS
@POSITIONS
@PLACES
@pytest.mark.parametrize(("left", "right"), [(0, 3), (2, 0), (1, 2)])
def test_padding_changes_nothing(path, position, norm_place, left, right):
    model, (source, target_in, targets) = model_of(attention=path, position=position, norm_place=norm_place), batch()
    logits, loss = model(source, target_in, targets)
    wide, same_loss = model(moved(source, left, right), moved(target_in, right, left), moved(targets, right, left))
    torch.testing.assert_close(same_loss, loss, **CLOSE)
    torch.testing.assert_close(wide[:, right : right + 5][target_in >= 0], logits[target_in >= 0], **CLOSE)
    same_loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@PATHS
@POSITIONS
def test_no_later_target_is_seen_and_all_of_the_source_is(path, position):
    model, (source, target_in, _) = model_of(attention=path, position=position), batch()
    with torch.no_grad():
        before = model(source, target_in)[0]
        for t in range(1, 5):
            later = target_in.clone()
            later[0, t] = (later[0, t] + 1) % TARGETS
            changed = (model(source, later)[0] - before)[0].abs().amax(-1)
            assert (changed[:t] < 1e-12).all() and (changed[t:] > 1e-6).all()
        for s in range(6):
            other = source.clone()
            other[0, s] = (other[0, s] + 1) % SOURCES
            changed = (model(other, target_in)[0] - before)[0].abs().amax(-1)
            assert (changed > 1e-6).all()  # also by what stands last, through both ways of the encoder
    assert decoder_mask(torch.tensor([[-1, 3, 4]]))[0, 0].tolist() == [[True, False, False], [False, True, False], [False, True, True]]


@PATHS
@POSITIONS
@PLACES
def test_cached_is_uncached(path, position, norm_place):
    model, (source, _, _) = model_of(attention=path, position=position, norm_place=norm_place), batch()
    for seed, options in enumerate(({}, {"temperature": 0.7, "top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 2.0})):
        found = model.generate(source, 11, seed=seed, **options)
        assert found.equal(model.generate(source, 11, seed=seed, use_cache=False, **options))


def test_a_row_depends_on_its_own_source_only():
    model, (source, _, _) = model_of(), batch()
    together = model.generate(source, 12, seed=5)
    alone = model.generate(source[:1], 12, seed=5)
    assert together[:1, : alone.size(1)].equal(alone) and (together[0, alone.size(1) :] == -1).all()
    wide = model.generate(moved(source, 3, 2), 12, seed=5)
    assert wide.equal(together)


def test_rows_stop_at_the_end_and_before_the_limit():
    model, (source, _, _) = model_of(), batch(B=40)
    found = model.generate(source, 12, seed=1, end=2)
    assert found.size(0) == 40 and found.size(1) <= 12
    stopped = 0
    for row in found.tolist():
        if 2 in row:
            end = row.index(2)
            stopped += end < 11
            assert all(i == -1 for i in row[end + 1 :])
        else:
            assert len(row) == 12 and -1 not in row
    assert stopped >= 5
    assert model.generate(source, 0, seed=1).shape == (40, 0)


def test_one_beam_is_greedy_and_zero_temperature():
    model, (source, _, _) = model_of(seed=3), batch(B=20)
    greedy = model.generate(source, 12, temperature=0)
    for penalty in (0.0, 1.0, -1.0):
        tokens, _ = model.beam_search(source, 1, 12, penalty)
        assert tokens[:, 0].equal(greedy)
    ids = torch.zeros(20, 1, dtype=torch.int64)
    for _ in range(12):  # the plain loop
        ids = torch.cat((ids, model(source, ids)[0][:, -1].argmax(-1, keepdim=True)), 1)
    for row, plain in zip(greedy.tolist(), ids[:, 1:].tolist(), strict=True):
        plain = plain[: plain.index(0) + 1] if 0 in plain else plain
        assert [i for i in row if i >= 0] == plain


@PATHS
@pytest.mark.parametrize("beams", [2, 5])
def test_scores_are_log_probabilities_recomputed(path, beams):
    model, (source, _, _) = model_of(attention=path), batch(B=6)
    tokens, logprobs = model.beam_search(source, beams, 8, length_penalty=0.0)
    assert (logprobs[:, :-1] >= logprobs[:, 1:]).all() and (logprobs <= 0).all()
    again = model.log_probabilities(source.repeat_interleave(beams, 0), tokens.flatten(0, 1)).view(6, beams)
    torch.testing.assert_close(again, logprobs, **CLOSE)
    for row in tokens.tolist():
        assert len({tuple(way) for way in row}) == beams  # all different


def test_with_beams_enough_the_best_of_all_is_found():
    model, source = model_of(seed=2, vocab_size=3), batch(B=5)[0]
    ways = []  # every target of up to three tokens that ends, or is as long as may be
    for length in range(1, 4):
        for way in itertools.product(range(3), repeat=length):
            if 0 not in way[:-1] and (way[-1] == 0 or length == 3):
                ways.append([*way, *[-1] * (3 - length)])
    every = torch.tensor(ways)
    for penalty in (0.0, 1.0, 2.0):
        tokens, logprobs = model.beam_search(source, 27, 3, penalty)
        for i in range(5):
            chances = model.log_probabilities(source[i : i + 1].expand(len(every), -1), every)
            scores = chances / (every >= 0).sum(1) ** penalty
            order = scores.argsort(descending=True)
            assert tokens[i, : len(every)].equal(every[order])
            torch.testing.assert_close(logprobs[i, : len(every)], chances[order], **CLOSE)
            assert (logprobs[i, len(every) :] == -math.inf).all()


def test_log_probabilities_are_those_of_the_loss():
    model, (source, _, targets) = model_of(), batch()
    target_in = torch.cat((torch.zeros(4, 1, dtype=torch.int64), targets[:, :-1]), 1)
    target_in[targets < 0] = -1
    loss = model(source, target_in, targets)[1]
    torch.testing.assert_close(-model.log_probabilities(source, targets).sum() / (targets >= 0).sum(), loss, **CLOSE)


def test_labels_are_smoothed_in_training_only():
    source, target_in, targets = batch()
    plain, smooth = model_of(), model_of(label_smoothing=0.2)
    assert smooth(source, target_in, targets)[1].equal(plain(source, target_in, targets)[1])
    logits, loss = smooth.train()(source, target_in, targets)
    chances, told = logits.log_softmax(-1)[targets >= 0], targets[targets >= 0]
    wanted = -(0.8 * chances.gather(1, told[:, None])[:, 0] + 0.2 * chances.mean(-1)).mean()
    torch.testing.assert_close(loss, wanted, **CLOSE)


@pytest.mark.parametrize("tied_head", [True, False])
def test_all_parameters_learn_and_at_first_it_knows_nothing(tied_head):
    torch.manual_seed(0)
    config = Seq2SeqConfig(n_layer=2, n_head=2, n_embd=32, vocab_size=TARGETS, source_vocab_size=SOURCES, tied_head=tied_head, init="gpt2")
    model, (source, target_in, targets) = Seq2Seq(config), batch(B=64)
    loss = model(source, target_in, targets)[1]
    if not tied_head:  # a tied one begins by repeating what it has just read
        assert loss.item() == pytest.approx(math.log(TARGETS), abs=0.1)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    assert model.num_parameters() == sum(p.numel() for p in model.parameters())


def test_it_learns_to_reverse():
    """To the end: every string that it has not seen."""
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(block_size=8, n_layer=1, n_head=4, n_embd=32, vocab_size=7, source_vocab_size=7, norm_place="pre"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chance = torch.Generator().manual_seed(0)

    def strings(count):
        source = torch.randint(1, 7, (count, 6), generator=chance)
        lengths = torch.randint(2, 6, (count, 1), generator=chance)
        place = torch.arange(6)
        reverse = source.gather(1, (lengths - 1 - place).clamp(min=0))
        target = torch.where(place < lengths, reverse, torch.where(place == lengths, 0, -1))
        return torch.where(place < lengths, source, torch.where(place == lengths, 0, -1)), target

    for step in range(400):
        source, target = strings(64)
        target_in = torch.where(target >= 0, torch.cat((torch.zeros(64, 1, dtype=torch.int64), target[:, :-1]), 1), -1)
        optimizer.param_groups[0]["lr"] = 1e-2 * min((step + 1) / 50, (400 - step) / 200, 1)
        model(source, target_in, target)[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    source, target = strings(200)
    found = F.pad(model.generate(source, 7, temperature=0), (0, 7), value=-1)[:, :6]
    assert (found == target).all(1).float().mean() >= 0.99


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"source_vocab_size": 0}, "source_vocab_size=0 must be at least 1"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0 must be at least 0 and below 1"),
        ({"n_embd": 9, "n_head": 3}, "n_embd=9 is odd"),
    ],
)
def test_shapes_that_cannot_work(changes, part):
    with pytest.raises(ValueError, match=part):
        Seq2SeqConfig(**changes)


def test_what_it_cannot_read():
    model, (source, target_in, targets) = model_of(), batch()
    for name, arguments in {
        "source id 7 is outside the vocabulary: 0 to 6": (source.where(source != source[0, 0], SOURCES), target_in),
        "target id 6 is outside": (source, torch.full_like(target_in, TARGETS)),
        "target id -2 is outside": (source, target_in, torch.full_like(targets, -2)),
        "nothing but padding": (torch.full_like(source, -1), target_in),
        "13 tokens do not fit: 12": (torch.zeros(4, 13, dtype=torch.int64), target_in),
    }.items():
        with pytest.raises(ValueError, match=name):
            model(*arguments)
    with pytest.raises(ValueError, match="beams=0 and"):
        model.beam_search(source, 0, 5)
    for end in (-1, 99):
        with pytest.raises(ValueError, match=f"end={end} is outside the vocabulary: 0 to"):
            model.beam_search(source, 2, 5, end=end)
    with pytest.raises(ValueError, match="temperature=-1"):
        model.generate(source, 5, temperature=-1)


@POSITIONS
@pytest.mark.parametrize("search", ["greedy", "uncached", "beams"])
def test_no_more_can_be_written_than_fits(position, search):
    model, source = model_of(position=position), batch()[0]
    write = {
        "greedy": lambda longest: model.generate(source, longest, temperature=0),
        "uncached": lambda longest: model.generate(source, longest, temperature=0, use_cache=False),
        "beams": lambda longest: model.beam_search(source, 2, longest),
    }[search]
    write(12)
    with pytest.raises(ValueError, match="max_new_tokens=13 do not fit: block_size=12"):
        write(13)
