"""compare.py: what it prints and writes is so, and what is wrong is found."""

import csv
import math
from pathlib import Path

import pytest
import torch
from conftest import ROOT, assert_one_line, train

import compare
import engine.attention_paths
from engine.attention_error import reference
from engine.attention_in_model import InModel
from engine.attention_paths import Shape, hard_cases, random_inputs
from engine.errors import UserError
from model import CausalSelfAttention

SMALL = ("--shapes", "2,3,8,4", "1,2,70,4", "--rounds=1", "--steps=4", "--threads=1", "--device=cpu")


@pytest.fixture
def trained(tiny_config):
    train(tiny_config, "--run=tiny", "--max_steps=10")


def run_compare(*options):
    """Its records, by (table, case, path, measure)."""
    compare.main([*SMALL, *options])
    with open("out/compare/compare.csv", newline="", encoding="utf-8") as file:
        return {tuple(row[:4]): row[4] for row in csv.reader(file)}


def by_autograd(inputs):
    """Output and gradients in float64, by other means than the reference."""
    q, k, v = (x.double().requires_grad_() for x in inputs[:3])
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) * q.size(-1) ** -0.5
    later = torch.arange(k.size(2)) > torch.arange(q.size(2))[:, None]
    exponentials = torch.where(later, 0.0, (scores - scores.detach().amax(-1, keepdim=True)).exp())
    y = torch.einsum("bhts,bhsd->bhtd", exponentials / exponentials.sum(-1, keepdim=True), v)
    return [y, *torch.autograd.grad(y, (q, k, v), inputs.upstream.double())]


def test_everything_is_printed_and_written(trained, capsys):
    numbers = run_compare("--backends", "manual", "fused", "math", "flash", "efficient", "cudnn")
    said = capsys.readouterr().out
    for title in ("1. The same function", "2. What each costs", "3. In a model: the weights of out/tiny", "Why, and where in the code"):
        assert title in said
    assert "DIFFERENT" not in said and "NOT" not in said
    assert "efficient: unavailable: PyTorch has it for GPUs only" in said
    assert numbers["same function", "a single token", "cudnn", "unavailable"] == "PyTorch has it for GPUs only"

    inputs = random_inputs(Shape(2, 3, 8, 8, 4), torch.device("cpu"), torch.float32)
    for path in ("manual", "fused", "math", "flash"):
        computed = engine.attention_paths.outcome(path, inputs)
        for name, tensor, true in zip(("output", "grad_q", "grad_k", "grad_v"), computed, by_autograd(inputs), strict=True):
            absolute = (tensor.double() - true).abs().max().item()
            told = [float(numbers["same function", "(2, 3, 8, 4)", path, f"{name} {kind}"]) for kind in ("absolute", "relative", "used")]
            assert told[0] == pytest.approx(absolute, abs=1e-14)
            assert told[1] == pytest.approx(absolute / true.abs().max().item(), abs=1e-14)
            assert 0 < told[2] < 0.2
        assert numbers["same function", "(2, 3, 8, 4)", path, "within"] == "True"

    flops = 12 * 4 * 2 * (70 * 71 // 2)  # 12 D for each pair, two heads
    seconds = float(numbers["cost", "(1, 2, 70, 4)", "fused", "training seconds"])
    assert float(numbers["cost", "(1, 2, 70, 4)", "fused", "training flops"]) == pytest.approx(flops / seconds)
    manual = float(numbers["cost", "(1, 2, 70, 4)", "manual", "training seconds"])
    assert float(numbers["cost", "(1, 2, 70, 4)", "fused", "training x manual"]) == pytest.approx(manual / seconds)
    assert numbers["cost", "(1, 2, 64, 4)", "manual", "score matrix bytes"] == str(2 * 64 * 64 * 4)  # the last shape at smaller T
    assert int(numbers["cost", "(1, 2, 64, 4)", "manual", "forward extra bytes"]) > 2 * 2 * 64 * 64 * 4

    assert numbers["in a model", "difference", "fused", "identical greedy texts"] == "14"  # one for each token of the vocabulary
    assert float(numbers["in a model", "difference", "fused", "logits"]) < 1e-4
    losses = [[float(numbers["in a model", f"step {i}", path, "training loss"]) for i in range(1, 5)] for path in ("manual", "fused")]
    assert losses[0] == pytest.approx(losses[1], abs=0.05) and losses[0][0] > losses[0][-1]
    with open("out/compare/compare.png", "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_without_a_run_config_names_is_trained(capsys, monkeypatch):
    shape = {"n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 16, "batch_size": 4}
    monkeypatch.setattr(compare, "read_config", lambda path, read=compare.read_config: compare.replace(read(path), **shape))
    numbers = run_compare("--backends", "manual", "fused", "--dtype=bfloat16")
    said = capsys.readouterr()
    assert "3. In a model: config/names.py, as there is no run" in said.out
    assert "there is no finished run under out" in said.err
    assert float(numbers["same function", "(2, 3, 8, 4)", "fused", "output relative"]) > 1e-4  # in bfloat16
    assert numbers["in a model", "difference", "fused", "identical greedy texts"] == "20"


def masked_after_the_softmax(q, k, v, mask, dropout):
    mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril(k.size(2) - q.size(2)) if mask is None else mask
    weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) * mask
    return weights @ v, weights


def without_scale(q, k, v, mask, dropout, right=engine.attention_paths.manual_attention):
    return right(q * math.sqrt(q.size(-1)), k, v, mask, dropout)


def heads_by_reshape(q, k, v, mask, dropout, right=engine.attention_paths.manual_attention):
    def mixed(x):
        B, H, T, D = x.shape
        return x.transpose(1, 2).reshape(B, H, T, D)

    return right(mixed(q), mixed(k), mixed(v), mask, dropout)


@pytest.mark.parametrize("wrong", [masked_after_the_softmax, without_scale, heads_by_reshape])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_path_is_found(monkeypatch, capsys, wrong, dtype):
    monkeypatch.setattr(engine.attention_paths, "manual_attention", wrong)
    study = compare.prepare(compare.CompareSettings(shapes=["2,3,8,4"], backends=["manual", "fused"], dtype=dtype, device="cpu"))
    records = {(r.case, r.path): r.value for r in compare.same_function(study) if r.measure == "within"}
    assert records["(2, 3, 8, 4)", "manual"] is False and records["(2, 3, 8, 4)", "fused"] is True
    rows = [line for line in capsys.readouterr().out.splitlines() if "(2, 3, 8, 4)" in line]
    assert "DIFFERENT" in rows[0] and "DIFFERENT" not in rows[1]


def test_dropout_left_on_in_eval_is_found(monkeypatch):
    right = CausalSelfAttention.eval
    monkeypatch.setattr(CausalSelfAttention, "eval", lambda module: right(module).train())
    study = compare.prepare(compare.CompareSettings(shapes=["1,1,2,2"], backends=["manual", "fused"], device="cpu"))
    records = {(r.case, r.path): r.value for r in compare.same_function(study) if r.measure == "within"}
    assert not any(records["dropout 0.5, in eval mode", path] for path in ("manual", "fused"))


def test_an_empty_row_that_is_not_as_documented_is_found():
    case = next(case for case in hard_cases(torch.device("cpu"), torch.float32, 0.5) if case.empty_row is not None)
    computed, truths = engine.attention_paths.outcome("manual", case.inputs), reference(case.inputs)
    assert compare.judge(case, "manual", computed, truths)[1][-1].value is True
    row, records = compare.judge(case, "math", computed, truths)
    assert records[-1].value is False and "does NOT get 0" in row[-1]


def test_paths_that_differ_in_a_model_are_told_apart():
    numbers = [torch.tensor([[0.25, -1.0]])]
    manual = InModel(2.0, numbers[0], numbers, [[1, 2], [3]], [1.0, 2.0], [0.1, 0.3])
    other = InModel(2.5, numbers[0] + 0.5, [numbers[0] * 2], [[1, 2], [4]], [1.0, 2.5], [0.05, 0.15])
    rows, records = compare.compare_models(manual, other)
    told = {record.measure: record.value for record in records if record.case == "difference"}
    assert told == {"logits": 0.5, "gradients": 1.0, "identical greedy texts": 1, "training losses": 0.5}
    assert ["loss on a validation batch", "2.000000", "2.500000", "5.0e-01"] in rows
    assert ["largest gradient", "1.0000", "2.0000", "up to 1.0e+00"] in rows
    assert ["ms a training step (median)", "200.00", "100.00", "fused 2.00 times as fast"] in rows
    assert rows[-1][-1] == "5.0e-01 at step 2"


def test_every_reason_points_to_its_line():
    lines = (ROOT / "model.py").read_text(encoding="utf-8").splitlines()
    told = [line for line in compare.explanation().splitlines() if line.startswith("model.py:")]
    assert len(told) == len(compare.REASONS)
    for line, (reason, code) in zip(told, compare.REASONS, strict=True):
        number = int(line.split()[0].removeprefix("model.py:"))
        assert sum(code in text for text in lines) == 1 and code in lines[number - 1]
        assert reason.startswith(line.split(maxsplit=1)[1].strip()[:40])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--shapes=1,2,3"], ["--shapes=1,2,3", "1,12,1024,64 would do"]),
        (["--shapes", "1,2,3,4", "1,2,x,4"], ["--shapes=1,2,x,4"]),
        (["--shapes=1,2,0,4"], ["--shapes=1,2,0,4"]),
        (["--shapes=1,2,-8,4"], ["--shapes=1,2,-8,4"]),
        (["--shapes=1,2,99999999,4"], ["from 1 to 65,536"]),
        (["--shapes=60000,60000,60000,60000"], ["GiB"]),
        (["--shapes="], ["--shapes="]),
        (["--backends=flesh"], ["--backends=flesh", "did you mean flash?"]),
        (["--dtype=float16", "--device=cpu"], ["dtype=float16", "bfloat16"]),
        (["--dtype=int8"], ["int8"]),
        (["--device=tpu"], ["tpu"]),
        (["--dropout=1"], ["dropout=1.0", "below 1"]),
        (["--steps=0"], ["steps=0"]),
        (["--run=nothing"], ["--run=nothing"]),
        (["--csv=no/such/folder.csv"], ["--csv=no/such/folder.csv", "no folder"]),
        (["--csv=numbers.txt"], ["--csv=numbers.txt: only a .csv file", "compare.csv would do"]),
        (["--backends", "cudnn", "efficient"], ["none of --backends", "cudnn: PyTorch has it for GPUs only"]),
        (["--backends=math", "flash"], ["flash: an option begins with --"]),
        (["--steps=x"], ["--steps=x is no whole number"]),
        (["--threads=1.5"], ["--threads=1.5 must be None or INT"]),
        (["--heads=3"], ["there is no option --heads"]),
    ],
)
def test_mistakes(options, parts):
    with pytest.raises(UserError) as refused:
        compare.main(options)
    for part in parts:
        assert part in str(refused.value)


def test_a_run_whose_data_are_gone_is_refused_at_once(trained, names_file, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "same_function", lambda study: pytest.fail("it began to measure"))
    names_file.write_text(names_file.read_text() + "newname\n")
    with pytest.raises(UserError, match="have changed"):
        compare.main([*SMALL, "--run=tiny"])
    names_file.unlink()
    with pytest.raises(UserError, match=r"out/tiny was trained on are gone .*another --run would do"):
        compare.main([*SMALL, "--run=tiny"])


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "settings.json"])
def test_a_damaged_run_is_refused_at_once_or_passed_over(trained, capsys, file):
    path = Path("out/tiny") / file
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=file):
        compare.prepare(compare.CompareSettings(run="tiny"))
    study = compare.prepare(compare.CompareSettings())
    assert study.trained is None and study.recipe.run == "names"
    assert f"out/tiny/{file}" in capsys.readouterr().err


def test_with_dropout_a_cpu_has_no_fused_kernel_and_that_is_said(trained, capsys):
    run_compare("--backends", "manual", "fused", "flash", "--dropout=0.2")
    said = capsys.readouterr().out
    assert "fused is math there" in said
    assert "flash, training: unavailable at (2, 3, 8, 4)" in said


def test_an_error_that_leaves_no_digit_is_said(capsys):
    """In bfloat16 the manual path stores scores of 10,000 as multiples of 64."""
    study = compare.prepare(compare.CompareSettings(shapes=["1,1,2,2"], backends=["manual", "fused"], dtype="bfloat16", device="cpu"))
    compare.same_function(study)
    rows = [line for line in capsys.readouterr().out.splitlines() if "scores of 10,000" in line]
    assert ["hardly a digit" in row for row in rows] == [True, False]


def test_mistakes_of_the_whole_program(program):
    assert_one_line(program("compare.py", "--shapes=3"), "compare.py: --shapes=3")


def test_a_shape_of_very_many_scores_is_checked_in_part():
    study = compare.prepare(compare.CompareSettings(shapes=["2,12,4096,64"], device="cpu"))
    assert compare.shape_case(study.shapes[0], study).name == "(1, 1, 4096, 64)"
    study = study._replace(shapes=[Shape(8, 6, 256, 256, 64)])
    assert compare.shape_case(study.shapes[0], study).name == "(8, 6, 256, 64)"


def test_what_is_asked_for_is_taken():
    options = {"shapes": ["2,3,8,4", "1,1,5,64"], "head_dim": 16, "csv": "mine.csv", "plot": "mine.png", "threads": 1, "device": "cpu"}
    study = compare.prepare(compare.CompareSettings(**options))
    assert study.shapes == [Shape(2, 3, 8, 8, 16), Shape(1, 1, 5, 5, 16)]
    assert (study.numbers, study.picture, study.place) == (Path("mine.csv"), Path("mine.png"), "cpu, 1 thread")
    assert not Path("out").exists()
