import itertools
import shutil

import pytest
import torch
from conftest import ROOT, TOKENIZER, assert_one_line, train

import visualize
from engine import checkpoint, embedding_map
from engine.attention_map import MEANING, attention_weights, page
from engine.errors import UserError
from zoo.ladder import LadderConfig
from zoo.models import make

CHROMIUM = shutil.which("chromium")
SMALL = ("--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=24", "--batch_size=4", "--max_steps=5", "--eval_interval=5")


def test_the_attention_of_a_name(tiny_config, tmp_path, capsys):
    train(tiny_config, "--max_steps=5")
    capsys.readouterr()
    visualize.main(["attention", "--text=Bana"])
    assert capsys.readouterr().out.splitlines() == ["the picture is out/tiny/attention.png", "the page is out/tiny/attention.html", MEANING]
    assert (tmp_path / "out/tiny/attention.png").read_bytes().startswith(b"\x89PNG")
    model, tokenizer = checkpoint.load_run(tmp_path / "out/tiny", torch.device("cpu"))
    weights = attention_weights(model, [0, *tokenizer.encode("bana")])
    written = (tmp_path / "out/tiny/attention.html").read_text(encoding="utf-8")
    assert written == page(weights, ["$", "b", "a", "n", "a"], [0], [0, 1], "tiny: Bana")
    visualize.main(["attention", "--text=bana", "--layer=0", "--head=1", "--run=tiny", "--picture=a.png", "--page=b.html"])
    assert (tmp_path / "a.png").exists()
    one = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert one == page(weights[:, 1:], ["$", "b", "a", "n", "a"], [0], [1], "tiny: bana")


@pytest.mark.parametrize("tokenizer, tokens", [("word", '"␣old","␣king","␣to"'), ("bpe", None)])
def test_the_attention_of_words(prose_file, tmp_path, tokenizer, tokens):
    size = ["--vocab_size=290"] if tokenizer == "bpe" else []
    train(ROOT / "config/text.py", f"--source={prose_file}", f"--tokenizer={tokenizer}", "--run=prose", *size, *SMALL)
    visualize.main(["attention", "--text= old king to"])
    html = (tmp_path / "out/prose/attention.html").read_text(encoding="utf-8")
    assert (tmp_path / "out/prose/attention.png").exists()
    assert tokens is None or tokens.replace("␣", r"\u2423") in html


def test_the_embeddings_of_a_run(tiny_config, tmp_path, capsys):
    train(tiny_config, "--max_steps=5")
    capsys.readouterr()
    visualize.main(["embeddings"])
    picture, written, said = capsys.readouterr().out.splitlines()
    assert (picture, written) == ("the picture is out/tiny/embeddings.png", "the page is out/tiny/embeddings.html")
    assert said.startswith("vowels and consonants: silhouette ") and "of 1,000 shuffled labellings" in said
    assert (tmp_path / "out/tiny/embeddings.png").read_bytes().startswith(b"\x89PNG")
    assert said in (tmp_path / "out/tiny/embeddings.html").read_text(encoding="utf-8")
    visualize.main(["embeddings", "--run=tiny", "--picture=a.png", "--page=b.html"])
    assert (tmp_path / "a.png").exists() and (tmp_path / "b.html").exists()


def test_the_embeddings_of_words(prose_file, tmp_path, capsys):
    train(ROOT / "config/text.py", f"--source={prose_file}", "--tokenizer=word", "--run=prose", *SMALL)
    visualize.main(["embeddings"])
    assert "vowels and consonants: cannot be tested" in capsys.readouterr().out
    assert r"\u2423king" in (tmp_path / "out/prose/embeddings.html").read_text(encoding="utf-8")


def test_which_character_follows_which(names_file, tmp_path, capsys, monkeypatch):
    visualize.main(["bigram", f"--source={names_file}"])
    assert capsys.readouterr().out.splitlines()[-1] == "the picture is out/bigram.png"
    assert (tmp_path / "out/bigram.png").read_bytes().startswith(b"\x89PNG")
    many = tmp_path / "many.txt"
    many.write_text("\n".join(chr(0x4E00 + i) for i in range(200)), encoding="utf-8")
    with pytest.raises(UserError, match="201 characters are too many for a picture; up to 150 would fit"):
        visualize.main(["bigram", f"--source={many}", "--picture=many.png"])
    assert not (tmp_path / "many.png").exists()


def test_models_of_the_ladder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(checkpoint, "find_run", lambda run, out_dir: tmp_path)
    models = {kind: make(LadderConfig(kind=kind, vocab_size=TOKENIZER.vocab_size)) for kind in ("mlp", "bigram")}
    for kind, arguments in (("mlp", ["embeddings"]), ("bigram", ["bigram", "--run=counts"])):
        monkeypatch.setattr(checkpoint, "load_run", lambda folder, device, kind=kind: (models[kind], TOKENIZER))
        visualize.main(arguments)
    assert (tmp_path / "embeddings.html").exists() and (tmp_path / "out/bigram.png").exists()
    with pytest.raises(UserError, match="Bigram has no embeddings; a run of another model would do"):
        visualize.main(["embeddings"])


def test_mistakes(tiny_config, tmp_path):
    with pytest.raises(UserError, match="no finished run under out"):
        visualize.main(["attention", "--text=ba"])
    train(tiny_config, "--max_steps=5")
    before = sorted((tmp_path / "out/tiny").iterdir())
    for arguments, message in (
        ([], "the kind of picture comes first, .*there are: attention, embeddings, bigram, confusion, patches"),
        (["--text=ba"], "the kind of picture comes first"),
        (["atention"], "no picture 'atention'; did you mean attention"),
        (["attention"], "no text to read; --text=john would do"),
        (["attention", "--text="], "--text=: there are no tokens"),
        (["attention", "--text=b9"], "--text=b9: unknown character '9'"),
        (["attention", "--text=b$"], r"--text=b\$: .*marks where a text ends"),
        (["attention", "--text=" + 16 * "b"], "16 tokens do not fit: block_size=16 has room for 15; the run is out/tiny"),
        (["attention", "--text=ba", "--part=cross"], "--part=cross: out/tiny has no parts, as an encoder-decoder has; leave it out"),
        (["attention", "--text=ba", "--layer=1"], "--layer=1: out/tiny has 1; 0 to 0 would fit"),
        (["attention", "--text=ba", "--head=2"], "--head=2: out/tiny has 2; 0 to 1 would fit"),
        (["attention", "--text=ba", "--head=-1"], "head=-1 must be at least 0"),
        (["attention", "--text=ba", "--picture=no/a.png"], "--picture=no/a.png: there is no folder no"),
        (["attention", "--text=ba", "--page=out"], "--page=out: only a .html file can be written"),
        (["attention", "--text=ba", "--page=out/tiny/settings.json"], "only a .html file"),
        (["attention", "--text=ba", "--run=tyni"], "--run=tyni: no run of that name"),
        (["attention", "--txt=ba"], "no option --txt; did you mean --text"),
        (["attention", "--text=ba", "--device=gpu"], "gpu"),
        (["embedings"], "did you mean embeddings"),
        (["embeddings", "--run=tyni"], "--run=tyni: no run of that name"),
        (["embeddings", "--picture=a.jpg"], "--picture=a.jpg: only a .png file"),
        (["embeddings", "--page=no/a.html"], "there is no folder no"),
        (["embeddings", "--pag=a.html"], "no option --pag; did you mean --page"),
        (["bigram", "--run=tiny"], "--run=tiny: a bigram model has a table to show; this run is of GPT"),
        (["bigram", "--run=tiny", "--source=a.txt"], "only one of them fits"),
        (["bigram", "--source=a.txt"], "--source=a.txt: No such file"),
        (["bigram", "--picture=a.jpg"], "only a .png file"),
    ):
        with pytest.raises(UserError, match=message):
            visualize.main(arguments)
    assert sorted((tmp_path / "out/tiny").iterdir()) == before
    visualize.main(["attention", "--text=" + 15 * "b"])  # the longest that fits


def test_as_a_program(program):
    assert_one_line(program("visualize.py", "atention"), "did you mean attention")
    for arguments, part in ((["--help"], "KINDs: attention"), (["attention", "--help"], "--layer"), (["bigram", "--help"], "--source")):
        done = program("visualize.py", *arguments)
        assert done.returncode == 0 and part in done.stdout and not done.stderr


@pytest.fixture
def browser():
    """Chromium, without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
    if not CHROMIUM:
        pytest.skip("there is no chromium to open a page with")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page of these weights: the tab, and what it complained of."""

    def open_page(weights, tokens, keys=None, **options):
        (tmp_path / "map.html").write_text(page(weights, tokens, [0, 3], [0, 1], "a title", keys), encoding="utf-8")
        tab, complaints = browser.new_page(**options), []
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: complaints.append(request.url) if not request.url.startswith("file:") else None)
        tab.goto((tmp_path / "map.html").as_uri())
        return tab, complaints

    return open_page


def some_weights(T):
    torch.manual_seed(1)
    return torch.randn(2, 2, T, T).masked_fill(~torch.ones(T, T).tril().bool(), float("-inf")).softmax(-1)


def place(tab, i, j):
    """Where the cell of row i and column j is, from the corner of the map."""
    left, top, cell = (float(tab.get_attribute("#map", f"data-{name}")) for name in ("left", "top", "cell"))
    return {"x": left + (j + 0.5) * cell, "y": top + (i + 0.5) * cell}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_tells_the_weight_of_a_cell(opened, scheme):
    tokens, weights = ["$", "</script><b>", "o", "\\n"], some_weights(4)
    tab, complaints = opened(weights, tokens, color_scheme=scheme)
    told = tab.locator("#told")
    hint = told.text_content()
    tab.hover("#map", position=place(tab, 3, 1))
    assert told.text_content().startswith(f'"\\n" looks at "</script><b>": {weights[0, 0, 3, 1]:.3f}')
    tab.select_option("#layer", "3")
    assert f": {weights[1, 0, 3, 1]:.3f}" in told.text_content()
    tab.select_option("#head", "1")
    assert f": {weights[1, 1, 3, 1]:.3f}" in told.text_content()
    tab.hover("#map", position=place(tab, 2, 0))
    assert told.text_content().startswith(f'"o" looks at "$": {weights[1, 1, 2, 0]:.3f}')
    tab.hover("#map", position=place(tab, 1, 2))
    assert told.text_content() == '"</script><b>" cannot see "o", which comes later.'
    tab.hover("#title")
    assert told.text_content() == hint and tab.title() == "a title"
    tab.focus("#map")
    for key in ("ArrowUp", "ArrowUp", "ArrowRight"):  # the first one begins in the last row
        tab.keyboard.press(key)
    assert told.text_content().startswith(f'"o" looks at "</script><b>": {weights[1, 1, 2, 1]:.3f}')
    assert complaints == []


@pytest.mark.parametrize("sounds, letters", [(3, 9), (9, 3)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_tells_which_sound_looks_at_which_letter(opened, scheme, sounds, letters):
    torch.manual_seed(1)
    weights = torch.randn(2, 2, sounds, letters).softmax(-1)
    tokens, keys = [f"S{i}" for i in range(sounds)], [f"l{j}" for j in range(letters)]
    tab, complaints = opened(weights, tokens, keys, color_scheme=scheme)
    told = tab.locator("#told")
    for i, j in itertools.product((0, sounds - 1), (0, letters - 1)):
        tab.hover("#map", position=place(tab, i, j))
        assert told.text_content().startswith(f'"S{i}" looks at "l{j}": {weights[0, 0, i, j]:.3f}')
    tab.select_option("#layer", "3")
    assert f'"l{letters - 1}": {weights[1, 0, -1, -1]:.3f}' in told.text_content()
    tab.focus("#map")
    for key in ("ArrowRight", "ArrowDown", "ArrowUp"):  # the first two lead nowhere: the corner is the last cell
        tab.keyboard.press(key)
    assert told.text_content().startswith(f'"S{sounds - 2}" looks at "l{letters - 1}": {weights[1, 0, -2, -1]:.3f}')
    assert not tab.is_visible("#grey") and complaints == []


@pytest.mark.parametrize("T", [2, 100, 512])
def test_a_page_of_any_length(opened, T):
    weights = some_weights(T)
    tab, complaints = opened(weights, [f"t{i}" for i in range(T)], has_touch=True)
    assert float(tab.get_attribute("#map", "data-cell")) >= 6
    tab.tap("#map", position=place(tab, T - 1, T - 2))
    assert tab.text_content("#told").startswith(f'"t{T - 1}" looks at "t{T - 2}": {weights[0, 0, T - 1, T - 2]:.3f}')
    assert tab.is_visible("#grey") and complaints == []
    drawn = """([x, y]) => { const map = document.getElementById("map"), scale = map.width / map.clientWidth
        return [...map.getContext("2d").getImageData(x * scale, y * scale, 1, 1).data].join() }"""
    corners = {tab.evaluate(drawn, [place(tab, i, j)["x"] - 2, place(tab, i, j)["y"] - 2]) for i, j in ((0, 0), (0, T - 1))}
    assert len(corners) == 2  # the one weight of 1, and what cannot be seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_embeddings_turns_and_tells(browser, tmp_path, scheme):
    tokens, kinds = ["$", "a", "</script><b>", "z"], ["boundary", "vowel", "other", "consonant"]
    points = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]])
    html = embedding_map.page(points, tokens, kinds, embedding_map.axis_names(None), "a title", "said")
    (tmp_path / "space.html").write_text(html, encoding="utf-8")
    tab, complaints = browser.new_page(color_scheme=scheme), []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto((tmp_path / "space.html").as_uri())
    told, looks = tab.locator("#told"), [tab.evaluate("space.toDataURL()")]
    hint = told.text_content()

    def changed():
        looks.append(tab.evaluate("space.toDataURL()"))
        return looks[-1] != looks[-2]

    def hover(i):
        x, y, _ = tab.evaluate(f"place({i})")
        tab.hover("#space", position={"x": x, "y": y})

    hover(1)
    assert told.text_content() == '"a" (vowel): 0.000, 1.000, 0.000' and changed()
    hover(2)
    assert told.text_content() == '"</script><b>" (other): 0.000, 0.000, 1.000'
    tab.hover("#title")
    assert told.text_content() == hint and tab.title() == "a title" and tab.text_content("#said") == "said"
    assert tab.text_content("#legend") == "vowel (1)consonant (1)boundary (1)other (1)"
    looks.append(tab.evaluate("space.toDataURL()"))
    tab.hover("#space", position={"x": 20, "y": 20})
    tab.mouse.down()
    tab.mouse.move(200, 300)
    tab.mouse.up()
    assert changed()
    hover(3)  # where it is now
    assert told.text_content() == '"z" (consonant): -1.000, -1.000, -1.000'
    tab.focus("#space")
    for key in ("ArrowLeft", "ArrowUp", "+", "-"):
        looks.append(tab.evaluate("space.toDataURL()"))
        tab.keyboard.press(key)
        assert changed(), key
    tab.keyboard.press(".")
    assert told.text_content().startswith('"$" (boundary)')
    tab.mouse.wheel(0, -300)
    assert complaints == []
