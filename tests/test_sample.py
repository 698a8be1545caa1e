import os

import pytest
from conftest import train

import sample
from engine.errors import UserError


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
    for arguments, message in (
        (["--run=tyni"], "--run=tyni: .*there are: tiny"),
        (["--prompt=日本"], "'日'.*known ones are abdeiklmnorst"),
        (["--prompt=ba$k"], r"'ba\$k': \$ marks where a text ends"),
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


def test_weights_of_another_model(tiny_config, tmp_path):
    train(tiny_config, "--max_steps=5")
    train(tiny_config, "--max_steps=5", "--run=wide", "--n_embd=32")
    (tmp_path / "out/tiny/model.safetensors").write_bytes((tmp_path / "out/wide/model.safetensors").read_bytes())
    with pytest.raises(UserError, match="damaged or of another model"):
        sample.main(["--run=tiny"])
