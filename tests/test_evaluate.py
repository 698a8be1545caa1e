import copy
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from conftest import CPU, NAMES, TOKENIZER, assert_one_line, small_model, small_prose, train

import evaluate
from data.batches import RowLoader, StreamLoader
from data.tokenizers import decode_documents, encode_documents
from engine import checkpoint
from engine.errors import UserError
from engine.evaluation import document_ends, score, standard_error, token_losses

TINY_TEXT = """
dataset = "text"
block_size = 32
n_layer = 1
n_head = 2
n_embd = 16
batch_size = 8
max_steps = 20
eval_interval = 10
warmup_steps = 5
num_samples = 1
max_new_tokens = 8
dtype = "float32"
"""


@pytest.fixture
def text_config(tmp_path, prose_file):
    path = tmp_path / "tiny_text.py"
    path.write_text(TINY_TEXT + f"source = {str(prose_file)!r}\nprepared_dir = {str(tmp_path / 'prepared')!r}\n")
    return path


def measured(out="out/tiny", **options):
    folder = checkpoint.find_run(out)
    return evaluate.measure(evaluate.EvaluationSettings(**options), folder, checkpoint.read_settings(folder))


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


# a run's own splits


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_split_of_rows_is_what_training_said_of_it(tiny_config, tmp_path, capsys, split):
    train(tiny_config, "--dtype=float32", "--ema=0.9")
    summary = summary_of(tmp_path / "out/tiny")
    found = measured(split=split)
    assert found.loss == pytest.approx(summary["loss"][split], abs=1e-6)
    count = json.loads((tmp_path / "out/tiny/settings.json").read_text())["data"]["documents"][split]
    assert (found.documents, found.pieces, found.unit) == (count, count, "documents")
    assert found.amount.tokens == found.amount.bytes + count and found.amount.unknown == 0
    capsys.readouterr()
    evaluate.main([f"--split={split}", "--batch_size=3"])
    out = capsys.readouterr().out
    assert f"out/tiny on its {split} split" in out
    loss, error = re.search(rf"loss +(\S+) ± (\S+) nats per token \(standard error over {count} documents\)", out).groups()
    assert (float(loss), float(error)) == pytest.approx((found.loss, found.standard_error), abs=1e-4)
    shown = {line[2:22].strip(): line[22:] for line in out.splitlines()[1:]}
    assert float(shown["bits per character"]) == pytest.approx(summary["bits_per_character"][split], abs=1e-4)
    assert float(shown["perplexity"]) == pytest.approx(summary["perplexity"][split], abs=2e-3)
    assert shown["tokens"] == f"{found.amount.tokens:,}" and shown["documents"] == str(count)


@pytest.mark.parametrize("tokenizer", ["char", "bpe", "word"])
def test_the_splits_of_a_text_are_what_training_said_of_them(text_config, tmp_path, capsys, tokenizer):
    train(text_config, f"--tokenizer={tokenizer}", "--vocab_size=300")
    summary = summary_of(tmp_path / "out/tiny_text")
    for split, loss in summary["loss"].items():
        found = measured("tiny_text", split=split)
        assert found.loss == pytest.approx(loss, abs=1e-6)
        assert found.unit == "windows" and found.documents == 1 and found.pieces == -(-found.amount.tokens // 32)
        assert found.amount.unknown / found.amount.tokens == summary["unknown"][split]
        if found.amount.unknown == 0:
            assert found.amount.bits_per_byte(found.loss) == pytest.approx(summary["bits_per_byte"][split], abs=1e-6)
    capsys.readouterr()
    evaluate.main([])
    out = capsys.readouterr().out
    assert "on its test split" in out and f"standard error over {found.pieces} windows" in out and "bits per byte" in out


def test_prepared_data_do_without_their_source_and_a_source_without_them(tiny_config, tmp_path, names_file):
    train(tiny_config, "--max_steps=5")
    expected, names = measured(), names_file.read_bytes()
    names_file.unlink()
    assert measured() == expected
    next((tmp_path / "prepared").glob("*/test.bin")).write_bytes(b"damaged")
    with pytest.raises(UserError, match="the data that out/tiny was trained on are gone.*--source=.*names.txt: No such file.*--text=FILE"):
        measured()
    names_file.write_bytes(names)
    assert measured() == expected
    shutil.rmtree(tmp_path / "prepared")
    assert measured() == expected
    shutil.rmtree(tmp_path / "prepared")
    names_file.write_bytes(names + b"newcomer\n")
    with pytest.raises(UserError, match="names.txt has changed since out/tiny was trained on it"):
        measured()


def test_runs_of_other_versions(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=5")
    expected = measured()
    path = tmp_path / "out/tiny/settings.json"
    description = json.loads(path.read_text())
    del description["settings"]["ema"], description["settings"]["min_p"]
    description["settings"]["of_a_later_version"] = 1
    path.write_text(json.dumps(description))
    assert measured() == expected
    description["data"]["splits"]["test"]["sha256"] = "0" * 64
    path.write_text(json.dumps(description))
    with pytest.raises(UserError, match="prepared by another version"):
        measured()


# a text


def test_a_list_of_names_is_measured_like_the_split_it_is(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=5")
    split = measured()
    tokens = np.fromfile(next((tmp_path / "prepared").glob("*/test.bin")), np.uint16)
    names = decode_documents(tokens, evaluate.tokenizers.load(tmp_path / "out/tiny/tokenizer.json"))
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(f" {name.upper()} " for name in names).encode())
    assert measured(text="list.txt") == split
    (tmp_path / "list.txt").write_text("bad\n")
    found = measured(text="list.txt")
    assert found.standard_error is None and found.documents == found.pieces == 1 and found.amount[:2] == (4, 3)


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_a_text_is_measured_like_the_split_it_is(text_config, tmp_path, prose, tokenizer):
    train(text_config, f"--tokenizer={tokenizer}", "--vocab_size=300", "--max_steps=5")
    n_bytes = json.loads((tmp_path / "out/tiny_text/settings.json").read_text())["data"]["bytes"]["test"]
    text = prose.encode()[-n_bytes:]
    for form in (text, b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n")):
        (tmp_path / "last.txt").write_bytes(form)
        for stride in (None, 1, 32):
            assert measured("tiny_text", text="last.txt", stride=stride) == measured("tiny_text", stride=stride)


def test_a_text_shorter_than_a_window_and_one_of_unknown_characters(text_config, tmp_path, capsys):
    train(text_config, "--max_steps=5")
    (tmp_path / "short.txt").write_text("the old king")
    found = measured("tiny_text", text="short.txt")
    model = checkpoint.load_model(tmp_path / "out/tiny_text", CPU)
    tokenizer = evaluate.tokenizers.load(tmp_path / "out/tiny_text/tokenizer.json")
    ids = torch.tensor([[tokenizer.boundary_id, *tokenizer.encode("the old king")]])
    assert found.loss == pytest.approx(model(ids[:, :-1], ids[:, 1:])[1].item(), abs=1e-6)
    assert found.amount == (12, 12, 0) and (found.pieces, found.standard_error) == (1, None)
    (tmp_path / "strange.txt").write_text("the 日本 king", encoding="utf-8")
    capsys.readouterr()
    evaluate.main(["--text=strange.txt"])
    out = capsys.readouterr().out
    assert "± - nats per token (standard error over 1 document)" in out
    assert "undefined: the text of unknown tokens is not told" in out and "2 (18.18%)" in out


# the numbers themselves


@pytest.mark.parametrize("stride", [1, 3, 6, 12])
@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_each_token_is_predicted_from_its_own_window(stride, position):
    block_size, model = 12, small_model(position=position, dropout=0.5)
    tokens = np.random.default_rng(0).integers(0, TOKENIZER.vocab_size, 61)
    losses, targets = token_losses(model, StreamLoader(tokens, block_size, 4).once(stride=stride), CPU)
    assert model.training and targets.tolist() == tokens[1:].tolist() and losses.dtype == np.float64
    reference = copy.deepcopy(model).double().eval()
    last = len(tokens) - 1 - block_size
    starts = [*range(0, last, stride), last]
    for place in range(1, len(tokens)):
        start = next(start for start in starts if place <= start + block_size)  # the first window that has it
        logits, _ = reference(torch.from_numpy(tokens[None, start:place]))
        expected = -torch.log_softmax(logits[0, -1], dim=-1)[tokens[place]].item()
        assert losses[place - 1] == pytest.approx(expected, abs=1e-5)


def test_documents_of_rows_are_predicted_each_by_itself():
    model = small_model().eval()
    found = score(model, RowLoader(encode_documents(NAMES, TOKENIZER), 0, 12, 2).once(), TOKENIZER, 12, CPU)
    sums, lengths = [], []
    for name in NAMES:
        ids = torch.tensor([TOKENIZER.encode(f"${name}$")])
        sums.append(copy.deepcopy(model).double()(ids[:, :-1], ids[:, 1:])[1].item() * (len(name) + 1))
        lengths.append(len(name) + 1)
    assert found.loss == pytest.approx(sum(sums) / sum(lengths), abs=1e-5)
    assert found.standard_error == pytest.approx(plain_standard_error(sums, lengths), abs=1e-5)
    assert (found.pieces, found.unit, found.documents, found.amount.tokens) == (7, "documents", 7, sum(lengths))


def plain_standard_error(sums, lengths):
    D, loss = len(sums), sum(sums) / sum(lengths)
    squares = sum((s - loss * n) ** 2 for s, n in zip(sums, lengths, strict=True))
    return math.sqrt(D / (D - 1) * squares) / sum(lengths)


def test_what_follows_the_last_boundary_is_a_document_too():
    assert document_ends(np.array([1, 2, 0, 0, 3]), 0).tolist() == [3, 4, 5]
    assert document_ends(np.array([1, 2, 0]), 0).tolist() == [3]
    assert document_ends(np.array([1, 2, 3]), 0).tolist() == [3]


def test_a_stream_of_documents_is_compared_by_document():
    tokens = np.array([0, 1, 2, 3, 0, 4, 5, 0, 1, 1, 2, 3, 4, 5, 6, 7])
    model = small_model()
    losses, _ = token_losses(model, StreamLoader(tokens, 4, 2).once(), CPU)
    found = score(model, StreamLoader(tokens, 4, 2).once(), TOKENIZER, 4, CPU)
    pieces = np.split(losses, [4, 7])
    assert (found.pieces, found.unit) == (3, "documents")
    assert found.standard_error == pytest.approx(plain_standard_error([p.sum() for p in pieces], [len(p) for p in pieces]))
    one = score(model, StreamLoader(tokens[8:], 4, 2).once(), TOKENIZER, 4, CPU)
    assert (one.pieces, one.unit, one.documents) == (2, "windows", 1)
    losses, _ = token_losses(model, StreamLoader(tokens[8:], 4, 2).once(), CPU)
    assert one.standard_error == pytest.approx(plain_standard_error([losses[:4].sum(), losses[4:].sum()], [4, 3]))


def test_the_standard_error_is_the_spread_of_new_draws():
    rng = np.random.default_rng(0)

    def draw(n_documents=200):
        """Losses that hang together within documents of different lengths, the long ones harder."""
        lengths = rng.integers(1, 30, n_documents)
        means = 2 + 0.02 * lengths + rng.normal(0, 0.5, n_documents)
        return np.repeat(means, lengths) + rng.normal(0, 1, lengths.sum()), np.cumsum(lengths)

    draws = [draw() for _ in range(1000)]
    spread = np.std([losses.mean() for losses, _ in draws])
    told = np.array([standard_error(*each) for each in draws])
    assert np.median(told) == pytest.approx(spread, rel=0.08)  # the spread of 1,000 draws is known to 2 %
    as_if_independent = np.median([losses.std() / math.sqrt(len(losses)) for losses, _ in draws])
    assert as_if_independent < 0.7 * spread
    losses, ends = draws[0]
    documents = np.split(losses, ends[:-1])
    chosen = (rng.integers(len(documents), size=len(documents)) for _ in range(1000))
    bootstrap = np.std([np.concatenate([documents[i] for i in choice]).mean() for choice in chosen])
    assert told[0] == pytest.approx(bootstrap, rel=0.1)


# mistakes


def test_mistakes_with_a_list(tiny_config, tmp_path):
    with pytest.raises(UserError, match="no finished run under out"):
        evaluate.main([])
    train(tiny_config, "--max_steps=5")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "long.txt").write_text("bad\n\n" + "ba" * 8 + "\n")
    (tmp_path / "strange.txt").write_text("bad\nb日d\n", encoding="utf-8")
    (tmp_path / "dollar.txt").write_text("bad$bad\n")
    (tmp_path / "latin.txt").write_bytes(b"bad\nb\xe9d\n")
    for arguments, message in (
        (["--run=tyni"], "--run=tyni: .*there are: tiny"),
        (["--split=tets"], "split"),
        (["--split=val", "--text=long.txt"], "--split=val and --text=long.txt"),
        (["--stride=4"], "--stride=4 is for long texts, and out/tiny was trained on a list"),
        (["--text=none.txt"], "--text=none.txt: No such file"),
        (["--text=out"], "--text=out: Is a directory"),
        (["--text=empty.txt"], "--text=empty.txt holds no text"),
        (["--text=long.txt"], "long.txt:3: 'babababababababa' has 16 characters; this model reads up to 15"),
        (["--text=strange.txt"], "strange.txt:2: unknown character '日'"),
        (["--text=dollar.txt"], r"dollar.txt:1: 'bad\$bad': \$ marks where a document ends"),
        (["--text=latin.txt"], "latin.txt is not UTF-8: byte 0xe9 in line 2"),
        (["--batch_size=0"], "batch_size=0 must be at least 1"),
        (["--dtype=float16", "--device=cpu"], "float16 is for GPUs"),
        (["--device=cuda:77"], "cuda:77"),
        (["--splt=val"], "no option --splt; did you mean --split"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate.main(arguments)
    tokenizer = tmp_path / "out/tiny/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"a"', '"a", "0"'))
    with pytest.raises(UserError, match="tokenizer.json has 15 tokens, its model 14"):
        evaluate.main([])


def test_mistakes_with_a_text(text_config, tmp_path, prose_file, program):
    train(text_config, "--max_steps=5")
    (tmp_path / "empty.txt").write_text("")
    for arguments, message in (
        (["--stride=0"], "stride=0 must be at least 1"),
        (["--stride=33"], "stride=33 must be at least 1 and at most block_size=32"),
        (["--text=empty.txt"], "--text=empty.txt holds no text"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate.main(arguments)
    shutil.rmtree(tmp_path / "prepared")
    prose_file.write_text(small_prose(seed=2, paragraphs=60), encoding="utf-8")
    assert_one_line(program("evaluate.py"), "evaluate.py: ", "prose.txt has changed since out/tiny_text was trained on it")
