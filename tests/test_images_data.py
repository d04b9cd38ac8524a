"""Image sets from folders and arrays: what is read, what is refused, and what it is called."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from viewspan import checks, images

RNG = np.random.default_rng(0)


def picture(path: Path, *, value: int | None = None, size: int = 8, colour: bool = True) -> None:
    """One image file, random or of one value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size, size, 3) if colour else (size, size)
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8) if value is None else np.full(shape, value, np.uint8)
    kind = "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else None
    Image.fromarray(pixels).save(path, kind)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Class folders 1, 2, 10 with every nuisance of a real one."""
    for c in ("1", "2", "10"):
        for i in range(4):
            picture(tmp_path / "train" / c / f"{i}.png")
    picture(tmp_path / "train/.ipynb_checkpoints/x.png")
    (tmp_path / "train/empty").mkdir()
    picture(tmp_path / "train/1/sub/y.png")
    for name in ("Thumbs.db", ".DS_Store", "notes.txt"):
        (tmp_path / "train/2" / name).write_text("x")
    picture(tmp_path / "train/2/z.JPEG")
    for c in ("1", "10"):
        picture(tmp_path / "test" / c / "0.png")
    return tmp_path


def test_classes_are_numbered_alike_in_every_split(tree: Path) -> None:
    with pytest.warns(checks.ViewspanWarning, match="no image in empty"):
        train = images.load(tree / "train")
    test = images.load(tree, split="test", classes=train.classes)
    assert train.classes == test.classes == ("1", "2", "10")
    assert len(train) == 14
    assert train.ignored == 4
    assert [train.classes[i] for i in train.labels] == ["1"] * 5 + ["2"] * 5 + ["10"] * 4
    assert [test.classes[i] for i in test.labels] == ["1", "10"]
    assert "1/sub/y.png" in train.names
    assert train.images.dtype == torch.uint8


def test_a_class_the_training_set_lacks_is_refused(tree: Path) -> None:
    with pytest.raises(ValueError, match="not among the given ones: 10"):
        images.load(tree / "test", classes=("1", "2"))


def test_splits_are_not_taken_for_classes(tree: Path) -> None:
    with pytest.raises(ValueError, match="holds the splits test, train"):
        images.load(tree)
    with pytest.raises(ValueError, match="split must name a folder"):
        images.load(tree, split="val")


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for i in (10, 9, 1):
        picture(tmp_path / f"ä{i}.png")
    held = images.load(tmp_path)
    assert held.names == ["ä1.png", "ä9.png", "ä10.png"]
    assert held.labels is None
    assert held.classes == ()
    with pytest.raises(ValueError, match="holds no labels"):
        images.load(tmp_path, classes=("a",))


def test_images_beside_class_folders_leave_no_labels_and_say_so(tmp_path: Path) -> None:
    picture(tmp_path / "a/0.png")
    picture(tmp_path / "loose.png")
    with pytest.warns(checks.ViewspanWarning, match="1 images lie beside class folders"):
        assert images.load(tmp_path).labels is None


def test_no_image_names_folder_and_extensions(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=rf"no image in {tmp_path}.*\.jpeg.*\.png"):
        images.load(tmp_path)
    with pytest.raises(ValueError, match="must be a folder that exists"):
        images.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="must be a folder, an"):
        images.load(tmp_path / "notes.txt")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    picture(tmp_path / "a/0.png")
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a/gone.png").symlink_to(tmp_path / "nowhere.png")
    held = images.load(tmp_path, skip_bad=True)
    assert held.names == ["a/0.png", "b/0.png"]
    assert [name for name, _ in held.skipped] == ["a/gone.png", "b/gone.png"]


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_stop_everything_or_are_left_out_by_name(tmp_path: Path, workers: int) -> None:
    for i in range(6):
        picture(tmp_path / f"good{i}.png", size=64)
    picture(tmp_path / "whole.jpg", size=64)
    for source, name in (("whole.jpg", "a.jpg"), ("good0.png", "b.png")):
        data = (tmp_path / source).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
    (tmp_path / "whole.jpg").unlink()
    (tmp_path / "c.png").write_bytes(b"")
    (tmp_path / "d.png").write_text("hello")
    with pytest.raises(ValueError, match=r"4 of 10 files .*a\.jpg.*b\.png.*c\.png \(empty file\).*d\.png"):
        images.load(tmp_path, workers=workers)
    held = images.load(tmp_path, workers=workers, skip_bad=True)
    assert held.names == [f"good{i}.png" for i in range(6)]
    assert [name for name, _ in held.skipped] == ["a.jpg", "b.png", "c.png", "d.png"]
    assert "4 skipped (a.jpg: " in held.summary()
    for i in range(6):
        (tmp_path / f"good{i}.png").write_bytes(b"")
    with pytest.raises(ValueError, match="no readable image"):
        images.load(tmp_path, skip_bad=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    picture(tmp_path / "a/0.png")
    picture(tmp_path / "b/0.png")
    (tmp_path / "b").chmod(0)
    try:
        with pytest.raises(ValueError, match=r"b \(Permission denied\)"):
            images.load(tmp_path)
    finally:
        (tmp_path / "b").chmod(0o755)


def test_gray_among_colours_and_several_sizes(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", value=9, size=8, colour=False)
    picture(tmp_path / "b.png", value=77, size=12)
    held = images.load(tmp_path)
    assert isinstance(held.images, list)
    assert held.size is None
    assert [tuple(image.shape) for image in held.images] == [(3, 8, 8), (3, 12, 12)]
    assert held[0].unique().tolist() == [9]
    one = held.resized(4)
    assert one.size == (4, 4)
    assert one.images[1].unique().tolist() == [77]
    assert repr(one).endswith(": 2 images, 3×4×4; no labels)")
    assert "mixed sizes" in held.summary()


def test_copies_are_found_by_content(tmp_path: Path) -> None:
    for i in range(8):
        picture(tmp_path / f"{i}.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "3.png").read_bytes())
    Image.open(tmp_path / "3.png").save(tmp_path / "c.bmp")
    held = images.load(tmp_path)
    assert held.duplicates == [["3.png", "b.png", "c.bmp"]]
    assert held.subset([3, 8]).duplicates == [["3.png", "b.png"]]
    assert held.subset([3, 4]).duplicates == []
    assert "2 exact copies (3.png = b.png = c.bmp" in held.summary()


def test_a_set_too_dark_to_be_meant_is_pointed_out(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 4095, np.uint16)).save(tmp_path / "a.png")
    with pytest.warns(checks.ViewspanWarning, match="no pixel is above 16"):
        images.load(tmp_path)


# --- arrays -------------------------------------------------------------------------------------------------------

BYTES = RNG.integers(0, 256, (5, 3, 6, 7), dtype=np.uint8)


@pytest.mark.parametrize(
    "given",
    [
        BYTES,
        BYTES.transpose(0, 2, 3, 1),
        BYTES / np.float32(255),
        BYTES.astype(np.float64),
        BYTES.astype(np.int64),
    ],
    ids=["chw", "hwc", "unit", "float255", "int64"],
)
def test_npz_layouts_and_scales(tmp_path: Path, given: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", x=given, y=np.array([3, 10, 3, 9, 10]))
    held = images.load(tmp_path / "a.npz")
    assert torch.equal(held.images, torch.from_numpy(BYTES))
    assert held.classes == ("3", "9", "10")
    assert held.labels.tolist() == [0, 2, 0, 1, 2]
    assert held.names == ["0", "1", "2", "3", "4"]


def test_npz_16_bit_and_gray(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([[[0, 256], [32768, 65535]]], np.uint16))
    held = images.load(str(tmp_path / "a.npz"))
    assert held.images.tolist() == [[[[0, 1], [128, 255]]]]
    assert held.labels is None


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.linspace(-1, 1, 2 * 108, dtype=np.float32).reshape(2, 3, 6, 6), "got -1..1"),
        (np.full((2, 3, 6, 6), 16.0), "largest value above 127.5"),
        (np.full((2, 3, 6, 6), 100, np.uint16), "its range cannot be told"),
        (np.full((2, 3, 6, 6), 1, np.int64), "its range cannot be told"),
        (np.zeros((2, 3, 6, 4), np.uint8), "channels' axis cannot be told"),
        (np.zeros((2, 6, 6, 5), np.uint8), r"look like \(n, H, W, C\)"),
        (np.zeros((2, 6), np.uint8), "must have shape"),
        (np.zeros((0, 3, 6, 6), np.uint8), "must have shape"),
    ],
)
def test_npz_that_could_be_two_things_is_refused(tmp_path: Path, x: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "a.npz", x=x)
    with pytest.raises(ValueError, match=message):
        images.load(tmp_path / "a.npz")


def test_npz_errors_name_what_is_wrong(tmp_path: Path) -> None:
    broken = BYTES.astype(np.float32)
    broken[3, 0, 0, 0] = np.nan
    for arrays, message in (
        ({"x": broken}, "image 3 holds NaN"),
        ({"x": BYTES, "y": np.zeros(4, int)}, "4 labels and 5 images"),
        ({"x": BYTES, "y": np.zeros((5, 10))}, "one integer or string an image"),
        ({"x": BYTES, "images": BYTES}, "got both"),
        ({"z": BYTES}, "called images or x, got z"),
        ({"x": np.array([BYTES[0], BYTES[1, :1]], dtype=object)}, "without pickled objects"),
    ):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(ValueError, match=message):
            images.load(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"no")
    with pytest.raises(ValueError, match="must be a readable"):
        images.load(tmp_path / "a.npz")


class Pairs:
    """A Dataset as torch defines it: a length and items, nothing to iterate."""

    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> object:
        return self.items[i]


def test_datasets_sequences_and_objects() -> None:
    many = torch.rand(4, 7, 5, 5)
    assert images.load([(image, label) for image, label in zip(many, "abba")]).labels.tolist() == [0, 1, 1, 0]
    assert images.load(Pairs(list(many))).images.shape == (4, 7, 5, 5)
    pil = images.load(Pairs([(Image.new("RGB", (6, 4), (1, 2, 3)), 5), (Image.new("L", (6, 4), 9), 5)]))
    assert pil.images[:, :, 0, 0].tolist() == [[1, 2, 3], [9, 9, 9]]
    assert pil.classes == ("5",)
    held = images.load(many)
    assert images.load(held) is held
    assert torch.equal(held.images, (many * 255).round().to(torch.uint8))


@pytest.mark.parametrize(
    ("source", "error"),
    [([], ValueError), ([np.zeros((6, 6, 3), np.uint8)], ValueError), ([np.zeros((6, 6), np.uint8)], ValueError),
     (["a", "b"], ValueError), (7, TypeError), (torch.zeros(2, 6, 6, 3), ValueError),
     ([np.full((1, 2, 2), np.nan)], ValueError), ([(np.zeros((1, 2, 2)), 1), np.zeros((1, 2, 2))], ValueError),
     ([np.zeros((1, 2, 2), np.uint8), np.zeros((1, 2, 2))], TypeError),
     ([np.zeros((2, 2, 2), np.uint8), np.zeros((3, 2, 2), np.uint8)], ValueError)],
)  # fmt: skip
def test_other_objects_are_refused(source: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        images.load(source)


def test_half_precision_tensors_are_read() -> None:
    given = [torch.full((1, 2, 2), 0.5, dtype=torch.bfloat16)]
    assert images.load(given).images.tolist() == [[[[128, 128], [128, 128]]]]


class Leaves:
    """A Dataset that ends the program at its second item."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> object:
        return BYTES[i] if i == 0 else sys.exit(0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Leaves(), r"item 1 cannot be had: ended the program \(exit code 0\)"),
        (Pairs([np.zeros((9, 9, 5), np.uint8)]), r"looks like \(H, W, C\)"),
        (Pairs([{"image": BYTES[0]}]), r"item 0 must be an image .* or an image and its label, got dict"),
        (Pairs([(BYTES[0], np.eye(2))]), "got tuple"),
        (Pairs([torch.zeros(3, 4, 4, device="meta")]), "item 0 must be an image .* got Tensor"),
        ("", "data must be named"),
    ],
)
def test_data_that_cannot_be_had_says_why(source: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        images.load(source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys; sys.exit(0)", r"cannot import {0} \(ended the program \(exit code 0\)"),
        ("def f(:", r"cannot import {0} \(SyntaxError: invalid syntax \({0}.py, line 1\)"),
        ("x = {{}}['a']", r"cannot import {0} \(KeyError: 'a' \({0}.py, line 1\)"),
        ("def f():\n    raise OSError('disk')", r"data '{0}:f' failed: OSError: disk \({0}.py, line 2\)"),
    ],
)
def test_a_module_that_fails_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    name = f"failing_images_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text.format())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message.format(name)):
        images.load(f"{name}:f")


def test_a_named_object_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_images_here.py").write_text(
        "import numpy as np\npictures = [np.full((9, 4, 4), i, np.uint8) for i in range(3)]\n"
        "def make():\n    return pictures[:2]\n"
        "class Made(list):\n    def __init__(self):\n        super().__init__(make())\n"
        "class Needs(list):\n    def __init__(self, n):\n        pass\n"
    )
    monkeypatch.chdir(tmp_path)
    held = images.load("own_images_here:pictures")
    assert held.images.shape == (3, 9, 4, 4)
    assert held.source == "own_images_here:pictures"
    assert len(images.load("own_images_here:make")) == 2
    assert len(images.load("own_images_here:Made")) == 2
    with pytest.raises(ValueError, match=r"own_images_here:Needs' failed: TypeError: .* missing 1 required"):
        images.load("own_images_here:Needs")
    with pytest.raises(ValueError, match="has no nothing"):
        images.load("own_images_here:nothing")
    with pytest.raises(ValueError, match="cannot import"):
        images.load("no_such_module_here:x")
    with pytest.raises(ValueError, match="split applies to folders"):
        images.load(held, split="test")


def test_subset_keeps_labels_and_names() -> None:
    held = images.load([(image, i % 2) for i, image in enumerate(BYTES)])
    part = held.subset(torch.tensor([4, 1]))
    assert part.names == ["4", "1"]
    assert part.labels.tolist() == [0, 1]
    assert torch.equal(part.images, held.images[[4, 1]])


def test_a_limit_chooses_before_decoding(tmp_path: Path) -> None:
    for c in ("a", "b"):
        for i in range(20):
            picture(tmp_path / c / f"{i}.png")
    held, whole = images.load(tmp_path, limit=12), images.load(tmp_path)
    at = [whole.names.index(name) for name in held.names]
    assert at == sorted(at)
    assert len(set(at)) == 12
    assert torch.equal(held.images, whole.images[at])
    assert held.labels.tolist() == whole.labels[at].tolist()
    assert images.load(whole, limit=12).names == held.names
    assert len(images.load(tmp_path, limit=99)) == 40
    left_out = next(name for name in whole.names if name not in held.names)
    (tmp_path / left_out).write_bytes(b"")
    assert images.load(tmp_path, limit=12).names == held.names
    with pytest.raises(ValueError, match="limit must be at least 1"):
        images.load(tmp_path, limit=0)


def test_cifar10_asks_for_a_known_split() -> None:
    with pytest.raises(ValueError, match="split must be one of test, train"):
        images.load("cifar10:/nowhere", split="val")
