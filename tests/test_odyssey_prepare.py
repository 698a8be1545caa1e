import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from conftest import assert_one_line, small_prose

from config.settings import OdysseySettings
from data.odyssey import prepare as odyssey
from engine.errors import UserError

HEADER = (
    "The Project Gutenberg eBook of The Odyssey\n\nTitle: The Odyssey\n\n*** START OF THE PROJECT GUTENBERG EBOOK THE ODYSSEY ***\n\n\n"
)
FOOTER = "\n\n            *** END OF THE PROJECT GUTENBERG EBOOK THE ODYSSEY ***\n\nSection 1. General Terms of Use\n"
NARRATIVE = "The Odyssey\n\nContents\n\n BOOK I.\n FOOTNOTES:\n\n" + small_prose(1, 60)
NOTES = "\nFOOTNOTES:\n\n[1] Gr. Ἄειδε, Muse.\n\n[2] Or so.\n"
FILE = "\ufeff" + HEADER + NARRATIVE + NOTES + FOOTER


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pg1727.txt"
    path.write_bytes(FILE.replace("\n", "\r\n").encode("utf-8"))
    return path


def prepare(**options):
    return odyssey.prepare(OdysseySettings(**{"tokenizer": "bpe", "vocab_size": 300, **options}))


def whole(data):
    return "".join(data.tokenizer.decode(ids[1:].tolist()) for ids in data.tokens.values())


def test_header_licence_and_footnotes_are_cut_off(file):
    assert whole(prepare(source=str(file))) == NARRATIVE
    with_notes = whole(prepare(source=str(file), footnotes=True))
    assert with_notes == NARRATIVE + NOTES
    assert "Gutenberg" not in with_notes and "\ufeff" not in with_notes and "\r" not in with_notes


def test_where_the_book_is_looked_for(file, monkeypatch, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(HEADER + "Another text altogether, and a longer one than it was. " * 9 + FOOTER)
    monkeypatch.setattr(odyssey, "BOOK", other)
    assert prepare().meta["source"] == "other.txt"
    monkeypatch.setenv("ODYSSEY_TXT", str(file))
    assert prepare().meta["source"] == "pg1727.txt"
    assert prepare(source=str(other)).meta["source"] == "other.txt"
    monkeypatch.setenv("ODYSSEY_TXT", "gone.txt")
    with pytest.raises(UserError, match="ODYSSEY_TXT=gone.txt: No such file"):
        prepare()
    with pytest.raises(UserError, match="--source=lost.txt: No such file"):
        prepare(source="lost.txt")
    monkeypatch.delenv("ODYSSEY_TXT")
    monkeypatch.setattr(odyssey, "BOOK", tmp_path)
    with pytest.raises(UserError, match=r"^\.: Is a directory; Project Gutenberg"):
        prepare()


@pytest.mark.parametrize(("text", "what"), [(NARRATIVE, "begins"), (HEADER + NARRATIVE, "ends"), ("<html>Not found</html>", "begins")])
def test_a_file_that_is_not_the_book(tmp_path, text, what):
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(UserError, match=f"x.txt is not Project Gutenberg's Odyssey.*{what}"):
        prepare(source="x.txt")


@pytest.fixture
def server(monkeypatch):
    """A stand-in for Project Gutenberg: answers[path] is (status, body, length it claims)."""
    answers, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            status, body, length = answers.get(self.path, (404, b"", 0))
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(odyssey, "ADDRESSES", tuple(f"http://127.0.0.1:{server.server_port}/{name}" for name in "ab"))
    monkeypatch.setattr(odyssey, "PAUSES", (0, 0.01))
    yield answers, asked
    server.shutdown()
    server.server_close()


def test_the_download_is_kept(server, capsys):
    answers, asked = server
    content = FILE.encode("utf-8")
    answers["/b"] = (200, content, len(content))
    assert whole(prepare()) == NARRATIVE
    assert asked == ["/a", "/b"]
    assert "odyssey: downloading" in capsys.readouterr().out
    assert odyssey.BOOK.read_bytes() == content
    prepare(vocab_size=280)
    assert asked == ["/a", "/b"]


def test_a_download_that_is_not_whole_is_not_kept(server):
    answers, asked = server
    content = FILE.encode("utf-8")
    answers["/a"] = (200, content[:-500], len(content))
    answers["/b"] = (200, b"<html>robot?</html>", 19)
    with pytest.raises(UserError, match=r"/b is not Project Gutenberg's Odyssey.*get http.*/a some other way.*no-book-here.txt"):
        prepare()
    assert asked == ["/a", "/b"] * 2
    del answers["/b"]
    with pytest.raises(UserError, match=r"cannot be downloaded \(http.*/b: Not Found\)"):
        prepare()
    assert not odyssey.BOOK.exists()


def test_no_network(monkeypatch):
    monkeypatch.setattr(odyssey, "ADDRESSES", ("http://127.0.0.1:9/book",))
    monkeypatch.setattr(odyssey, "PAUSES", (0,))
    with pytest.raises(UserError, match=r"cannot be downloaded .*refused\); get http://127.0.0.1:9/book"):
        prepare()


def test_as_a_program(program, file):
    done = program("data/odyssey/prepare.py", "--help")
    assert done.returncode == 0
    assert all(option in done.stdout for option in ("--source", "--tokenizer", "--footnotes", "ODYSSEY_TXT"))
    done = program("data/odyssey/prepare.py", f"--source={file}", "--prepared_dir=elsewhere")
    assert done.returncode == 0 and "written to elsewhere" in done.stdout
    assert_one_line(program("data/odyssey/prepare.py", "--source=nowhere.txt"), "nowhere.txt", "No such file")


def test_the_real_book(book):
    data = prepare(source=str(book), tokenizer="char")
    text = whole(data)
    assert data.meta["bytes"] == {"train": 569_926, "val": 31_416, "test": 31_583}
    assert text.startswith("[Illustration]\n\n\n\n\nThe Odyssey\n\nby Homer")
    assert text.endswith("between the two contending parties.\n")
    assert data.tokenizer.vocab_size == 2 + 81
    assert all(split["unknown"] == 0 for split in data.meta["splits"].values())
    assert "Ἀ" not in text and "Gutenberg" not in text
    assert whole(prepare(source=str(book), footnotes=True)).startswith(text)
    words = prepare(source=str(book), tokenizer="word", vocab_size=50_000, min_count=1)
    part = {p: d.tokenizer.decode(d.tokens["train"].tolist()) for p, d in (("char", data), ("word", words))}
    assert part["word"] == part["char"]  # every word of the training part is known
    assert words.meta["splits"]["train"]["unknown"] == 0 < words.meta["splits"]["test"]["unknown"]
    assert whole(prepare(source=str(book), vocab_size=1024)) == text
