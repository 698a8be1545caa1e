import io
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch
from conftest import ROOT, assert_one_line, train

import evaluate
import sample
from engine import checkpoint
from engine.errors import UserError


@pytest.fixture
def tiny(tiny_config, capsys):
    """A trained run; returns what sample.py prints for these options."""
    train(tiny_config)
    capsys.readouterr()

    def sampled(*options):
        sample.main([*options])
        return capsys.readouterr().out

    return sampled


@pytest.fixture
def prose_run(prose_file, capsys):
    """The same of a text in byte pairs."""
    train(ROOT / "config/text.py", f"--source={prose_file}", "--tokenizer=bpe", "--vocab_size=290", "--run=prose", *SMALL)
    capsys.readouterr()

    def sampled(*options):
        sample.main([*options])
        return capsys.readouterr().out

    return sampled


SMALL = ("--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=24", "--batch_size=4", "--max_steps=20", "--eval_interval=20")


def test_sample_marks_what_is_new(tiny_config, tmp_path, capsys):
    train(tiny_config)
    capsys.readouterr()
    sample.main(["--num_samples=40"])
    *lines, empty, last = capsys.readouterr().out.splitlines()
    seen = set((tmp_path / "out/tiny/seen.txt").read_text().split("\n")[:-1]) | {""}  # nothing is no new name
    texts = [line[2:] for line in lines]
    assert len(texts) == 40 and empty == ""
    assert all((line[0] == "*") == (line[2:] not in seen) for line in lines)
    new = len(set(texts) - seen)
    assert last.startswith(f"out/tiny: {new} of 40 drawn are new and distinct ({new / 40:.0%})")
    sample.main(["--num_samples=40", "--only_new"])
    lines = capsys.readouterr().out.splitlines()[:-2]
    assert len(set(lines)) == 40 and all(line[0] == "*" for line in lines)
    sample.main(["--num_samples=3", "--prompt=Ba", "--top_k=1"])
    only_choice = capsys.readouterr().out
    sample.main(["--num_samples=3", "--prompt=Ba", "--temperature=0"])
    greedy = capsys.readouterr().out
    assert greedy == only_choice
    lines = greedy.splitlines()[:-2]
    assert len(lines) == 3 and len({line[2:] for line in lines}) == 1 and lines[0][2:].startswith("ba")


def test_sample_takes_the_newest_run_and_its_defaults(tiny_config, tmp_path, capsys):
    train(tiny_config, "--max_steps=5", "--run=a")
    train(tiny_config, "--max_steps=5", "--run=b", "--num_samples=2")
    os.utime(tmp_path / "out/a/model.safetensors", (1, 1))
    capsys.readouterr()
    sample.main([])
    out = capsys.readouterr().out
    assert out.count("\n") == 2 + 2 and "out/b:" in out
    sample.main(["--run=a", "--seed=4"])
    assert "out/a:" in (by_name := capsys.readouterr().out)
    sample.main(["--run=out/a", "--seed=4"])
    assert capsys.readouterr().out == by_name


def test_sampling_mistakes(tiny_config, tmp_path):
    with pytest.raises(UserError, match="no finished run under out; make one with: python train.py"):
        sample.main([])
    train(tiny_config, "--max_steps=5")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bad.txt").write_text("ba\nb9\n")
    (tmp_path / "bad.jsonl").write_text('{"promt": "ba"}\n')
    for arguments, message in (
        (["--run=tyni"], "--run=tyni: .*there are: tiny"),
        (["--prompt=日本"], "'日'.*known ones are abdeiklmnorst"),
        (["--prompt=ba$k"], r"'ba\$k': \$ marks where a text ends"),
        (["--prompt=ba", "--prompt=é"], r"--prompt='é': unknown character 'é'"),
        (["--prompt_file=none.txt"], "--prompt_file=none.txt: No such file"),
        (["--prompt_file=empty.txt"], "--prompt_file=empty.txt is empty; one prompt a line would do"),
        (["--prompt_file=bad.txt"], "bad.txt:2: unknown character '9'"),
        (["--prompt_file=bad.jsonl"], 'bad.jsonl:1: no prompt; an object like {"prompt": "jo"}'),
        (["--max_new_tokens=0"], "max_new_tokens=0 must be at least 1"),
        (["--min_new_tokens=9", "--max_new_tokens=8"], "min_new_tokens=9 is more than max_new_tokens=8"),
        (["--repetition_penalty=0"], "repetition_penalty=0.0 must be above 0"),
        (["--presence_penalty=nan"], "presence_penalty=nan must be"),
        (["--stop="], "--stop= is empty"),
        (["--ban=ab"], "--ban='ab' is 2 tokens of out/tiny: a b; a single one can be banned"),
        (["--ban=日"], "--ban='日': unknown character '日'"),
        (["--ban="], "--ban='' is 0 tokens of out/tiny; a single one can be banned"),
        ([f"--ban={c}" for c in "$abdeiklmnorst"], "all 14 tokens are banned"),
        (["--beams=0"], "beams=0 must be at least 1"),
        (["--beams=2", "--only_new"], "--beams and --only_new do not go together"),
        (["--beams=2", "--frequency_penalty=1"], "--frequency_penalty means nothing for --beams; leave it out"),
        (["--beams=2", "--top_k=3"], "--top_k means nothing for --beams"),
        (["--trace", "--compile"], "--compile means nothing for --trace"),
        (["--stream", "--logprobs"], "--logprobs means nothing for --stream"),
        (["--length_penalty=0"], "--length_penalty is for --beams"),
        (["--min_new_tokens=17"], "min_new_tokens=17 is more than max_new_tokens=16"),
        (["--stream", "--trace"], "--trace and --stream do not go together"),
        (["--stream", "--format=jsonl"], "--format=jsonl is for whole texts, not for --stream"),
        (["--trace", "--prompt=a", "--prompt=b"], "--trace is for a single --prompt"),
        (["--interactive", "--prompt=a"], "--interactive asks for prompts"),
        (["--context=slide"], "--context=slide needs rotary positions"),
        (["--format=json"], "format"),
        (["--dtype=float16"], "dtype=float16 is for GPUs"),
        (["--temperature=-1"], "temperature=-1.0 must be at least 0"),
        (["--top_k=0"], "top_k=0 must be at least 1"),
        (["--top_p=2"], "top_p=2.0"),
        (["--device=cuda:77"], "cuda:77"),
        (["--promt=a"], "no option --promt; did you mean --prompt"),
    ):
        with pytest.raises(UserError, match=message):
            sample.main(arguments)


@pytest.mark.parametrize("name", ["model.safetensors", "settings.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign"])
def test_damaged_run_folders(tiny_config, tmp_path, name, damage):
    train(tiny_config, "--max_steps=5")
    path = tmp_path / "out/tiny" / name
    content = path.read_bytes()
    path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "foreign": b"[1, 2]"}[damage])
    with pytest.raises(UserError, match=name):
        sample.main([])


def test_a_list_or_vocabulary_of_another_run(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=5")
    seen, tokenizer = tmp_path / "out/tiny/seen.txt", tmp_path / "out/tiny/tokenizer.json"
    whole = seen.read_bytes()
    seen.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"seen.txt has \d+ texts, where the run was trained on 192"):
        sample.main([])
    seen.write_bytes(whole)
    tokenizer.write_text(tokenizer.read_text().replace('"a"', '"a", "0"'))
    with pytest.raises(UserError, match="tokenizer.json has 15 tokens, its model 14"):
        sample.main([])


def test_weights_that_are_no_numbers(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=5")
    path = tmp_path / "out/tiny/model.safetensors"
    weights = safetensors.torch.load_file(path)
    weights["transformer.ln_f.weight"][3] = math.nan
    safetensors.torch.save_file(weights, path)
    for program in (sample, evaluate):
        with pytest.raises(UserError, match="model.safetensors is damaged.*transformer.ln_f.weight has numbers that are not finite"):
            program.main([])


def test_settings_that_do_not_fit(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=5")
    path = tmp_path / "out/tiny/settings.json"
    whole = path.read_text()
    for was, now in (('"opening": [\n   0', '"opening": [\n   999'), ('"num_samples": 4', '"num_samples": "x"')):
        assert was in whole
        path.write_text(whole.replace(was, now))
        with pytest.raises(UserError, match="settings.json is damaged"):
            sample.main([])


def test_a_run_without_weights_yet(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=5")
    (tmp_path / "out/tiny/model.safetensors").unlink()
    with pytest.raises(UserError, match="--run=tiny: out/tiny has no model.safetensors"):
        sample.main(["--run=tiny"])


def test_weights_of_another_model(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=5")
    train(tiny_config, "--max_steps=5", "--run=wide", "--n_embd=32")
    (tmp_path / "out/tiny/model.safetensors").write_bytes((tmp_path / "out/wide/model.safetensors").read_bytes())
    with pytest.raises(UserError, match="damaged or of another model"):
        sample.main(["--run=tiny"])


def test_several_prompts_of_several_samples(tiny, tmp_path):
    lines = tiny("--prompt=Ba", "--prompt=kedi", "--prompt=", "--num_samples=3").splitlines()[:-2]
    assert [line[2:4] for line in lines[:3]] == ["ba"] * 3 and [line[2:6] for line in lines[3:6]] == ["kedi"] * 3
    assert len(lines) == 9
    (tmp_path / "prompts.txt").write_bytes(b"\xef\xbb\xbfBa\r\nkedi\r\n\r\n")  # a BOM, CRLF, an empty prompt
    assert tiny("--prompt_file=prompts.txt", "--num_samples=3").splitlines()[:-2] == lines
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "kedi", "id": 1}\n{"prompt": ""}\n')
    assert tiny("--prompt=Ba", "--prompt_file=prompts.jsonl", "--num_samples=3").splitlines()[:-2] == lines


def test_prompts_from_standard_input(tiny, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ba\nKe")))
    lines = tiny("--prompt_file=-", "--num_samples=1").splitlines()
    assert lines[0][2:4] == "ba" and lines[1][2:4] == "ke" and lines[2] == ""


def test_a_streamed_text_is_the_text(tiny, prose_run):
    whole = tiny("--run=tiny", "--num_samples=12").splitlines()
    streamed = tiny("--run=tiny", "--num_samples=12", "--stream").splitlines()
    assert [line.removesuffix("  *") for line in streamed[:-2]] == [line[2:] for line in whole[:-2]]
    assert [line.endswith("  *") for line in streamed[:-2]] == [line.startswith("*") for line in whole[:-2]]
    assert streamed[-2:] == whole[-2:]
    options = ["--num_samples=3", "--prompt=The", "--max_new_tokens=30", "--run=prose"]
    records = [json.loads(line) for line in prose_run(*options, "--format=jsonl").splitlines()]
    assert prose_run(*options, "--stream") == "\n\n---\n\n".join(r["prompt"] + r["text"] for r in records) + "\n"


def test_a_stream_comes_token_by_token(prose_run, monkeypatch):
    written = []

    class Terminal(io.StringIO):
        def flush(self):
            written.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Terminal())
    sample.main(["--num_samples=1", "--stream", "--max_new_tokens=20"])
    assert len(written) >= 20
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(written))


def test_json_lines(tiny):
    plain = tiny("--num_samples=9").splitlines()[:-2]
    records = [json.loads(line) for line in tiny("--num_samples=9", "--format=jsonl", "--logprobs").splitlines()]
    assert [("* " if record["new"] else "  ") + record["prompt"] + record["text"] for record in records] == plain
    model, tokenizer = checkpoint.load_run(checkpoint.find_run("tiny"), torch.device("cpu"))
    for record in records:
        assert list(record) == ["prompt", "text", "tokens", "logprob", "finish", "logprobs", "new"]
        tokens = [0, *record["tokens"]]
        logits, _ = model(torch.tensor([tokens[:-1]]), torch.tensor([tokens[1:]]))
        expected = logits[0].detach().log_softmax(-1)[range(len(tokens) - 1), tokens[1:]]
        assert record["logprobs"] == pytest.approx(expected.tolist(), abs=1e-5)
        assert record["logprob"] == pytest.approx(float(expected.sum()), abs=1e-5)
        ended = record["tokens"][-1] == 0
        assert record["finish"] == ("stop_token" if ended else "length")
        assert tokenizer.decode(record["tokens"][: -1 if ended else None]) == record["text"]
    assert "logprobs" not in json.loads(tiny("--num_samples=1", "--format=jsonl"))
    assert f"(log-probability {records[0]['logprob']:.4f})" in tiny("--num_samples=1", "--logprobs")


def test_stops_bans_and_lengths(tiny):
    free = [json.loads(line)["text"] for line in tiny("--num_samples=30", "--format=jsonl").splitlines()]
    cut = [json.loads(line) for line in tiny("--num_samples=30", "--format=jsonl", "--stop=an", "--stop=i").splitlines()]
    assert [r["text"] for r in cut] == [min((text.split(stop)[0] for stop in ("an", "i")), key=len) for text in free]
    assert {r["finish"] for r in cut} >= {"stop_token", "stop_string"}
    assert "a" in "".join(free)
    banned = "".join(json.loads(line)["text"] for line in tiny("--num_samples=30", "--format=jsonl", "--ban=a", "--ban=i").splitlines())
    assert banned and not set("ai") & set(banned)
    long = [
        json.loads(line) for line in tiny("--num_samples=9", "--format=jsonl", "--min_new_tokens=12", "--max_new_tokens=14").splitlines()
    ]
    assert all(12 <= len(r["tokens"]) <= 14 for r in long)


def test_only_new_as_json(tiny):
    records = [json.loads(line) for line in tiny("--num_samples=9", "--format=jsonl", "--only_new").splitlines()]
    assert len({r["text"] for r in records}) == 9 and all(r["new"] for r in records)


def test_beams(tiny):
    records = [json.loads(line) for line in tiny("--beams=4", "--format=jsonl", "--prompt=Ba", "--prompt=k").splitlines()]
    assert [r["prompt"] for r in records] == ["ba"] * 4 + ["k"] * 4
    for four in (records[:4], records[4:]):
        assert [r["score"] for r in four] == sorted((r["score"] for r in four), reverse=True)
        assert all(r["score"] == pytest.approx(r["logprob"] / len(r["tokens"])) for r in four)
    lines = tiny("--beams=4", "--prompt=ba").splitlines()
    assert lines[0][2:].startswith(f"ba{records[0]['text']}  (score {records[0]['score']:.4f}, log-probability ")
    assert "found are new" in lines[-1]
    cut = [json.loads(line) for line in tiny("--beams=4", "--format=jsonl", "--stop=i", "--length_penalty=0").splitlines()]
    assert not any("i" in r["text"] for r in cut) and all(r["score"] == pytest.approx(r["logprob"]) for r in cut)


def test_the_trace_is_of_the_first_sample(tiny):
    for options in ([], ["--top_k=3", "--temperature=0.5"], ["--prompt=ba", "--top_p=0.8"]):
        record = json.loads(tiny("--num_samples=1", "--format=jsonl", *options))
        lines = tiny("--trace", *options).splitlines()
        steps = [line.split() for line in lines[1 : lines.index("")]]
        assert "".join(step[2] for step in steps) == record["text"] + "$" * (record["finish"] == "stop_token")
        assert [step[1] for step in steps] == ["$" + record["prompt"] + record["text"][:i] for i in range(len(steps))]
        factors, product = lines[-2].split(", ")[0].split(" = ")
        assert math.prod(map(float, factors.split(" x "))) == pytest.approx(float(product), rel=0.02)
        assert record["logprob"] == pytest.approx(float(lines[-1].split()[-1].rstrip(")")), abs=1e-4)
        if "--top_k=3" in options:
            assert all(len(step) <= 4 + 2 * 4 for step in steps)  # ties may add to the three


def test_the_trace_shows_bytes_and_blanks(prose_run):
    out = prose_run("--trace", "--max_new_tokens=200", "--temperature=3", "--prompt=The old")
    assert "The␣old" in out and "\\n" in out and "\\x" in out
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(line.split("  ")[-1] for line in out.splitlines())


def test_ten_thousand_samples(tiny):
    lines = tiny("--num_samples=10000").splitlines()
    assert len(lines) == 10_002 and lines[:100] == tiny("--num_samples=100").splitlines()[:100]


def test_texts_come_however_many_are_asked_for(tiny):
    for how in ((), ("--stream",)):
        command = [sys.executable, ROOT / "sample.py", "--num_samples=1000000000000", *how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert len([process.stdout.readline() for _ in range(300)]) == 300
            process.stdout.close()
            assert process.wait(60) == 141 and process.stderr.read() == ""
        finally:
            process.kill()


def test_only_new_says_when_it_gives_up(tiny, capsys):
    sample.main(["--only_new", "--temperature=0"])
    assert "gave up after 1,000 texts of which none was new" in capsys.readouterr().err


def test_the_end_and_unknown_words_can_be_banned(tiny, prose_file, capsys):
    records = [json.loads(line) for line in tiny("--num_samples=5", "--format=jsonl", "--ban=$").splitlines()]
    assert all(record["finish"] == "length" for record in records)
    train(ROOT / "config/text.py", f"--source={prose_file}", "--tokenizer=word", "--min_count=40", "--run=words", *SMALL)
    capsys.readouterr()
    options = ["--run=words", "--num_samples=20", "--temperature=1.5"]
    assert "[UNK]" in tiny(*options)
    assert "[UNK]" not in tiny(*options, "--ban=[UNK]")


def test_a_prompt_longer_than_the_context(tiny, capsys):
    sample.main(["--prompt=" + "ba" * 20, "--num_samples=2"])
    out, err = capsys.readouterr()
    assert all(line[2:].startswith("ba" * 20) for line in out.splitlines()[:2])
    assert err == "note: of a prompt of 40 tokens the model sees the last 16\n"


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler")
def test_compiled_samples_are_the_same(tiny):
    torch._dynamo.reset()
    options = ["--num_samples=20", "--max_new_tokens=20", "--top_k=9", "--frequency_penalty=0.1"]
    assert tiny(*options, "--compile") == tiny(*options)


def test_without_a_compiler(tiny, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="--compile: there is no C\\+\\+ compiler; leave it out"):
        tiny("--compile")


def test_a_compiler_that_fails(tiny, monkeypatch):
    def fail(device_type):
        def step(*arguments):
            raise RuntimeError("no\nluck")

        return step

    monkeypatch.setattr("engine.generation.compiled_step", fail)
    with pytest.raises(UserError, match=r"compiling failed \(RuntimeError: no luck\); without --compile it would work"):
        tiny("--compile")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_precisions_and_paths(tiny, dtype):
    assert len(tiny(f"--dtype={dtype}", "--attention=manual", "--threads=1").splitlines()) == 6
    if dtype == "float32":
        assert tiny("--attention=manual") == tiny("--attention=fused")


def test_interactive(tiny, program):
    done = program("sample.py", "--interactive", "--seed=5", input="Ba\nb9\n\nBa\n")
    assert done.returncode == 0 and done.stderr == ""
    answers = [answer.strip() for answer in done.stdout.split("> ")][1:]
    first, mistake, _, again, end = answers
    assert first.startswith("ba") and again.startswith("ba")
    assert mistake.startswith("unknown character '9'") and "Traceback" not in mistake
    assert end == ""
    record = json.loads(program("sample.py", "--prompt=ba", "--num_samples=1", "--seed=5", "--format=jsonl").stdout)
    assert first == "ba" + record["text"]


def test_ctrl_c_stops_an_interactive_text_only(prose_run):
    command = [sys.executable, ROOT / "sample.py", "--interactive", "--max_new_tokens=10000000", "--temperature=1.5"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.stdin.write("The old\n")
        process.stdin.flush()
        assert process.stdout.read(200).startswith("> The old")  # it writes, and does not end by itself soon
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        out, err = process.communicate("", timeout=60)  # Ctrl-D
        assert process.returncode == 0 and err == ""
        assert out.endswith("> \n")
    finally:
        process.kill()


def test_a_closed_pipe_and_mistakes_of_the_whole_program(tiny, program):
    assert_one_line(program("sample.py", "--prompt_file=nothing.txt"), "--prompt_file=nothing.txt", "one prompt a line would do")
    done = program("sample.py", "--help")
    assert done.returncode == 0
    for option in (
        "--prompt ",
        "--prompt_file",
        "--stop ",
        "--ban ",
        "--beams",
        "--stream",
        "--format",
        "--trace",
        "--interactive",
        "--logprobs",
    ):
        assert option in done.stdout
