import sys

import numpy as np
import pytest

from config.settings import ImagesSettings
from data import prepared
from data.images import prepare as images
from engine.errors import UserError

Image = pytest.importorskip("PIL.Image")


def prepare(path=None, **options):
    return images.prepare(ImagesSettings(source=None if path is None else str(path), **options))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(images, "PREPARED", tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def folder(tmp_path):
    """Five pictures of each of two classes, cat (shades below 100) and dog (from 150 on)."""
    for name, low in (("dog", 150), ("cat", 0)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(5):
            Image.new("L", (6, 4), low + i).save(tmp_path / "pets" / name / f"{i}.png")
    return tmp_path / "pets"


def test_the_digits(capsys):
    datasets = pytest.importorskip("sklearn.datasets")
    data = prepare()
    assert data.meta["documents"] == {"train": 1295, "val": 143, "test": 359}
    assert data.meta["classes"] == list("0123456789")
    assert data.meta["shape"] == {"n_classes": 10, "image_size": 8, "channels": 1}
    assert (data.meta["dataset"], data.meta["kind"], data.tokenizer, data.tokens) == ("images", "classes", None, {})
    digits = datasets.load_digits()
    for part, arrays in data.arrays.items():
        assert arrays["images"].shape == (data.meta["documents"][part], 1, 8, 8) and arrays["images"].dtype == np.uint8
        assert arrays["classes"].dtype == np.int64
        shares = np.bincount(arrays["classes"]) / len(arrays["classes"])
        assert abs(shares - np.bincount(digits.target) / 1797).max() < 0.01  # of each class as many
    found = sorted((c, *i.ravel()) for a in data.arrays.values() for i, c in zip(a["images"], a["classes"].tolist(), strict=True))
    assert [row[0] for row in found] == sorted(digits.target)
    assert sorted({v for row in found for v in row[1:]}) == [round(i * 255 / 16) for i in range(17)]
    assert data.folder.name == prepared.key(data.meta["source_sha256"], data.meta["options"])
    capsys.readouterr()
    assert prepare().meta == data.meta and "already in" in capsys.readouterr().out
    other = prepare(split_seed=1)
    assert other.folder != data.folder and not np.array_equal(other.arrays["test"]["images"], data.arrays["test"]["images"])


def test_a_folder_of_folders(folder):
    data = prepare(folder, image_size=3)
    assert data.meta["classes"] == ["cat", "dog"]
    assert data.meta["documents"] == {"train": 6, "val": 2, "test": 2}
    values = [set() for _ in range(2)]
    for arrays in data.arrays.values():
        assert arrays["images"].shape[1:] == (1, 3, 3)
        for image, number in zip(arrays["images"], arrays["classes"], strict=True):
            assert len(np.unique(image)) == 1
            values[number].add(int(image[0, 0, 0]))
    assert values == [{0, 1, 2, 3, 4}, {150, 151, 152, 153, 154}]  # each in one part, with its class
    colours = prepare(folder, image_size=3, channels=3)
    assert colours.arrays["train"]["images"].shape == (6, 3, 3, 3)


def test_the_hash_is_of_names_and_bytes(folder):
    first = prepare(folder).meta["source_sha256"]
    (folder / "cat/0.png").rename(folder / "cat/9.png")
    second = prepare(folder).meta["source_sha256"]
    Image.new("L", (6, 4), 77).save(folder / "cat/9.png")
    assert len({first, second, prepare(folder).meta["source_sha256"]}) == 3


def test_what_is_dropped(folder, capsys):
    (folder / "README").write_text("of pets")
    (folder / ".git").mkdir()
    (folder / "cat/.DS_Store").write_bytes(b"1")
    (folder / "cat/notes.txt").write_text("no picture")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)).save(folder / "dog/5.png")
    whole = (folder / "dog/5.png").read_bytes()
    (folder / "dog/5.png").write_bytes(whole[: len(whole) // 2])
    data = prepare(folder)
    assert data.meta["dropped"] == {"hidden": 2, "outside the folders of classes": 1, "no picture": 1, "damaged": 1}
    assert "dropped 2 hidden, 1 outside the folders of classes, 1 no picture, 1 damaged" in capsys.readouterr().out
    assert sum(data.meta["documents"].values()) == 10


def picture(path, channels=1, size=2):
    return images.read_picture(path, size, channels)


def test_how_a_picture_is_read(tmp_path):
    wide = np.zeros((2, 6), dtype=np.uint8)
    wide[:, 2:4] = 200
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (picture(tmp_path / "wide.png") == 200).all()  # the middle
    Image.fromarray(np.full((2, 2), 40_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert (picture(tmp_path / "deep.png") == 40_000 // 256).all()  # 16 bits
    Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (picture(tmp_path / "clear.png", 3) == 255).all()  # white shines through
    Image.new("RGB", (2, 2), (10, 20, 30)).save(tmp_path / "rgb.png")
    assert picture(tmp_path / "rgb.png", 3)[:, 0, 0].tolist() == [10, 20, 30]
    frames = [Image.new("L", (2, 2), shade) for shade in (50, 250)]
    frames[0].save(tmp_path / "moves.gif", save_all=True, append_images=frames[1:])
    assert (picture(tmp_path / "moves.gif") == 50).all()  # the first of them


def test_a_picture_of_many_pixels_is_read_without_a_warning(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    Image.new("L", (4, 4), 7).save(tmp_path / "large.png")
    assert (picture(tmp_path / "large.png") == 7).all()
    assert not recwarn.list


def test_an_empty_source_is_none():
    assert prepare("").meta["source"] == "scikit-learn's digits"


def test_mistakes_of_the_source(folder, tmp_path):
    for source, message in (
        (tmp_path / "none", "there is no such folder; a folder with"),
        (folder / "cat/0.png", "is a file; a folder with"),
        (folder / "cat", "has 0 folders; at least 2 would do"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(source)
    for i in range(3):
        (folder / f"dog/{i}.png").unlink()
    with pytest.raises(UserError, match="class dog has 2 pictures; at least 3 are needed"):
        prepare(folder)


@pytest.mark.parametrize("option, value", [("image_size", 16), ("channels", 3)])
def test_the_digits_have_one_shape(option, value):
    with pytest.raises(UserError, match=f"{option}={value}: scikit-learn's digits have {option}=.*--source=FOLDER"):
        prepare(**{option: value})


def test_missing_packages(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr(images.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"scikit-learn is not installed; pip install -e '.\[zoo\]' would do"):
        prepare()
    with pytest.raises(UserError, match=r"pillow.* is not installed; pip install -e '.\[zoo\]' would do"):
        prepare(folder)
