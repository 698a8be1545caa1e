import io
import os
from pathlib import Path

import pytest

from engine.errors import UserError
from engine.files import output_file, read_text, replacing, sha256, sha256_of_file, shown, write_text


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "f.txt"
    write_text(path, "one é\n")
    assert path.read_bytes() == "one é\n".encode()
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("half")
        1 / 0  # noqa: B018
    assert path.read_text(encoding="utf-8") == "one é\n"
    assert os.listdir(tmp_path) == ["f.txt"]


def test_shown_paths(tmp_path):
    assert shown(tmp_path / "a" / "b") == os.path.join("a", "b")
    assert shown(tmp_path.parent / "x") == str(tmp_path.parent / "x")


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_text_is_read_whole_whatever_its_line_ends(ends, bom):
    text = "naïve 日本 🙂\n\nlast" * 9
    data = (bom + text.replace("\n", ends)).encode("utf-8")
    for size in (1, 3, 2**20):  # pieces may end inside a character or a \r\n
        assert "".join(read_text(Slowly(data, size), "x")) == text


class Slowly(io.BytesIO):
    """A file that gives a few bytes at a time."""

    def __init__(self, data, size):
        super().__init__(data)
        self.most = size

    def read(self, size=-1):
        return super().read(min(size, self.most))


def test_what_is_no_text_is_refused_with_its_line():
    for data, message in (
        (b"a\nb\n\xffc", "x is not UTF-8: byte 0xff in line 3"),
        (b"a\nb\0", "x is binary .* in line 2"),
        (b"a\nb \xe2\x82", "x is not UTF-8: byte 0xe2 in line 2"),
    ):
        for size in (1, 2, 2**20):
            with pytest.raises(UserError, match=message):
                list(read_text(Slowly(data, size), "x"))


def test_the_checksum_of_a_file_is_that_of_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 3_000_000 + b"y")
    assert sha256_of_file(tmp_path / "a") == sha256(b"x" * 3_000_000 + b"y")


def test_output_file(tmp_path, monkeypatch):
    """What an option may name: a file of the right kind, in a folder that is there; nothing else is ever replaced."""
    monkeypatch.chdir(tmp_path)
    otherwise = Path("new") / "folder" / "plot.png"
    assert output_file("plot", None, otherwise) == otherwise and otherwise.parent.is_dir()
    assert output_file("plot", "mine.png", otherwise) == Path("mine.png")
    Path("old.png").write_text("")
    assert output_file("plot", "old.png", otherwise) == Path("old.png")
    Path("folder.png").mkdir()
    for name, complaint in (
        ("none/mine.png", "no folder none"),
        ("folder.png", "only a .png file"),
        ("settings.json", "only a .png file can be written; plot.png would do"),
        ("/dev/null", "only a .png file"),
    ):
        with pytest.raises(UserError, match=f"--plot={name}.*{complaint}"):
            output_file("plot", name, otherwise)
    with pytest.raises(UserError, match=r"cannot write to old.png/x: .*choose another place with --plot"):
        output_file("plot", None, Path("old.png/x/plot.png"))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UserError, match="cannot write to .*choose another place"):
        output_file("plot", "mine.png", otherwise)
