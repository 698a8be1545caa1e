import os

import pytest

from engine import files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "f.txt"
    files.write_text(path, "one é\n")
    assert path.read_bytes() == "one é\n".encode()
    with pytest.raises(ZeroDivisionError), files.replacing(path) as temporary:
        temporary.write_text("half")
        1 / 0  # noqa: B018
    assert path.read_text(encoding="utf-8") == "one é\n"
    assert os.listdir(tmp_path) == ["f.txt"]


def test_shown_paths(tmp_path):
    assert files.shown(tmp_path / "a" / "b") == os.path.join("a", "b")
    assert files.shown(tmp_path.parent / "x") == str(tmp_path.parent / "x")
