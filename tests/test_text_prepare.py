import json
import os

import pytest
from conftest import assert_one_line, small_prose

from config.settings import TextSettings
from data.text import prepare as text
from engine.errors import UserError


def prepare(source, **options):
    return text.prepare(TextSettings(source=None if source is None else str(source), **options))


def whole(data):
    """The text of all parts, with | for the boundary."""
    boundary = data.tokenizer.decode([data.tokenizer.boundary_id])
    return "".join(data.tokenizer.decode(ids[1:].tolist()) for ids in data.tokens.values()).replace(boundary, "|")


def test_a_file(prose_file, prose, capsys):
    data = prepare(prose_file)
    assert whole(data) == prose
    assert data.meta["source"] == str(prose_file) and data.meta["documents"] == 1
    assert f"{data.meta['bytes']['train']:,} / " in capsys.readouterr().out


@pytest.mark.parametrize("ends", ["\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_crlf_and_bom_change_nothing(tmp_path, prose_file, prose, ends, bom, tokenizer):
    other = tmp_path / "other.txt"
    other.write_bytes(bom + prose.replace("\n", ends).encode("utf-8"))
    a, b = prepare(prose_file, tokenizer=tokenizer), prepare(other, tokenizer=tokenizer)
    assert a.folder != b.folder
    for part in ("train", "val", "test"):
        assert a.tokens[part].tolist() == b.tokens[part].tolist()
    assert (a.folder / "tokenizer.json").read_bytes() == (b.folder / "tokenizer.json").read_bytes()


def test_a_folder_of_texts(tmp_path):
    folder = tmp_path / "notes"
    (folder / "deeper").mkdir(parents=True)
    texts = [small_prose(seed, 3) for seed in range(3)]
    for name, content in zip(("a.txt", "deeper/b.md", "z.txt"), texts, strict=True):
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "empty.txt").write_text("")
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    data = prepare(folder)
    assert data.meta["documents"] == 3
    assert whole(data).replace("|", "") == "".join(texts)
    assert "|" in whole(data)


def test_json_lines(tmp_path):
    stories = [small_prose(seed, 2) for seed in range(30)]
    path = tmp_path / "stories.jsonl"
    path.write_text("".join(json.dumps({"id": i, "story": story}) + "\n" for i, story in enumerate(stories)) + "\n")
    data = prepare(path, field="story")
    assert data.meta["documents"] == 30
    assert whole(data).replace("|", "") == "".join(stories)
    with pytest.raises(UserError, match=r"stories.jsonl:1: no field 'text'.*--field.*id, story"):
        prepare(path)
    with pytest.raises(UserError, match=r"stories.jsonl:1: id is of type int"):
        prepare(path, field="id")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "text has 0 bytes of text, too few"),
        (b"\xef\xbb\xbf", "text has 0 bytes of text"),
        (b"abc", "3 bytes of text, too few"),
        (b"abc\0def" * 100, "binary.*line 1"),
        (("abc\n" * 90).encode("utf-16"), "UTF-8|UTF-16"),
        (b"one\ntwo\nthr\xe9e\n" * 20, "not UTF-8: byte 0xe9 in line 3"),
        (b"cut short: " * 20 + "é".encode()[:1], "not UTF-8: byte 0xc3 in line 1"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, content, message):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "text")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "x.jsonl:2: not JSON"),
        ("[1]", "x.jsonl:2: not an object"),
        (r'{"text": "\ud800"}', "x.jsonl:2: .*lone surrogate"),
        ("[" * 100_000, "x.jsonl:2: not JSON"),
        ('{"texts": "a"}', "x.jsonl:2: no field 'text'.*there are: texts"),
    ],
)
def test_json_lines_that_cannot_be_used(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "x.jsonl")


def test_sources_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match="--source is missing.*--source=mybook.txt"):
        prepare(None)
    with pytest.raises(UserError, match="--source=nowhere.txt: No such file"):
        prepare("nowhere.txt")
    (tmp_path / "records.json").write_text('{"text": "a"}')
    with pytest.raises(UserError, match=r"records.json: JSON lines \(.jsonl"):
        prepare(tmp_path / "records.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is no regular file"):
        prepare(tmp_path / "pipe")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match=r"holds no .txt or .md file"):
        prepare(tmp_path / "nothing")


def test_as_a_program(program, prose_file):
    done = program("data/text/prepare.py", "--help")
    assert done.returncode == 0
    assert all(option in done.stdout for option in ("--source", "--tokenizer", "--vocab_size", "--min_count", "--field", "mybook.txt"))
    assert not any(option in done.stdout for option in ("--year", "--footnotes"))
    done = program("data/text/prepare.py", f"--source={prose_file}", "--tokenizer=word", "--prepared_dir=elsewhere")
    assert done.returncode == 0 and "written to elsewhere" in done.stdout
    assert_one_line(program("data/text/prepare.py", "--source=a.txt", "--tokenizer=letters"), "tokenizer", "char")
    assert_one_line(program("data/text/prepare.py", f"--source={prose_file}", "--tokenizer=bpe", "--vocab_size=9"), "vocab_size=9", "257")


def test_a_folder_below_that_cannot_be_read(tmp_path):
    (tmp_path / "notes/secret").mkdir(parents=True)
    (tmp_path / "notes/a.txt").write_text("text " * 300)
    (tmp_path / "notes/secret").chmod(0)
    if not os.access(tmp_path / "notes/secret", os.R_OK):
        with pytest.raises(UserError, match="--source=.*notes: .*notes/secret: Permission denied"):
            prepare(tmp_path / "notes")


def test_a_field_means_nothing_for_plain_text(prose_file):
    with pytest.raises(UserError, match="--field=story is for JSON lines"):
        prepare(prose_file, field="story")


def test_the_same_bytes_in_other_files_are_other_data(tmp_path):
    a, b, c = (letter * 3000 for letter in "abc")
    for folder, texts in (("one", (a + b, c)), ("two", (a, b + c))):
        (tmp_path / folder).mkdir()
        for i, content in enumerate(texts):
            (tmp_path / folder / f"{i}.txt").write_text(content)
    assert whole(prepare(tmp_path / "one")) == a + b + "|" + c
    assert whole(prepare(tmp_path / "two")) == a + "|" + b + c


def test_a_prepared_dir_that_cannot_be_written(tmp_path, prose_file):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write prepared data to .*file.*--prepared_dir"):
        prepare(prose_file, prepared_dir=str(tmp_path / "file"))
