"""One file of every kind against pixel values worked out by hand."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from viewspan import images
from viewspan.images import decode

WIDE = np.array([[0, 256, 32768, 65535]], np.uint16)
TURNED = Image.Exif()
TURNED[0x112] = 6  # rotate by 90 degrees when shown


def saved(folder: Path, name: str, image: Image.Image, **options: object) -> np.ndarray:
    image.save(folder / name, **options)
    return decode.decode(folder / name)


def tiff(values: np.ndarray, *, bits: int, sample_format: int, width: int) -> bytes:
    """The smallest gray TIFF with a given sample format (1 unsigned, 2 signed)."""
    order, mark = ("<", b"II") if values.dtype.byteorder != ">" else (">", b"MM")
    data = values.tobytes()
    tags = [(256, 3, width), (257, 3, 1), (258, 3, bits), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1)]
    tags += [(278, 3, 1), (279, 4, len(data)), (339, 3, sample_format)]
    out = mark + struct.pack(order + "HI", 42, 8 + len(data)) + data + struct.pack(order + "H", len(tags))
    for tag, kind, value in tags:
        body = struct.pack(order + "HH", value, 0) if kind == 3 else struct.pack(order + "I", value)
        out += struct.pack(order + "HHI", tag, kind, 1) + body
    return out + struct.pack(order + "I", 0)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "big-endian.tif"])
def test_sixteen_bits_keep_their_scale(tmp_path: Path, name: str) -> None:
    values = WIDE.astype(">u2") if name.startswith("big") else WIDE
    assert saved(tmp_path, name, Image.fromarray(values)).tolist() == [[[0, 1, 128, 255]]]


def test_a_folder_of_sixteen_bit_ramps_is_gray_in_the_mean(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 16 * 256).round().astype(np.uint16).reshape(16, 256)
    for i in range(10):
        Image.fromarray(ramp).save(tmp_path / f"{i}.png")
    held = images.load(tmp_path)
    assert held.images.shape == (10, 1, 16, 256)
    assert float(held.images.float().mean()) / 255 == pytest.approx(0.5, abs=0.002)
    assert held.duplicates == [[f"{i}.png" for i in range(10)]]


@pytest.mark.parametrize(
    ("values", "bits", "sample_format", "right"),
    [
        (np.array([-32768, -1, 0, 32767], "<i2"), 16, 2, [0, 127, 128, 255]),
        (np.array([-32768, -1, 0, 32767], ">i2"), 16, 2, [0, 127, 128, 255]),
        (np.array([-128, -1, 0, 127], "i1"), 8, 2, [0, 127, 128, 255]),
        (np.array([0, 2**31, 2**32 - 1, 2**30], "<u4"), 32, 1, [0, 128, 255, 64]),
        (np.array([-(2**31), 0, 2**30, 2**31 - 1], "<i4"), 32, 2, [0, 128, 191, 255]),
        (np.array([0xFF, 0xF8, 0x00], "u1"), 12, 1, [255, 128]),
    ],
)
def test_stored_type_decides_the_range(
    tmp_path: Path, values: np.ndarray, bits: int, sample_format: int, right: list[int]
) -> None:
    (tmp_path / "a.tif").write_bytes(tiff(values, bits=bits, sample_format=sample_format, width=len(right)))
    assert decode.decode(tmp_path / "a.tif").tolist() == [[right]]


def test_a_pgm_is_scaled_by_its_own_maximum(tmp_path: Path) -> None:
    (tmp_path / "a.pgm").write_bytes(b"P5\n2 1\n4095\n" + np.array([0, 4095], ">u2").tobytes())
    assert decode.decode(tmp_path / "a.pgm").tolist() == [[[0, 255]]]


def test_wide_integers_of_unknown_scale_are_refused(tmp_path: Path) -> None:
    Image.fromarray(WIDE.astype(np.int32)).save(tmp_path / "a.tif")
    with pytest.raises(decode.BadImage, match="fill less than 1/256"):
        decode.decode(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ([0, 0.25, 0.5, 1], [0, 64, 128, 255]),
        ([0, 25, 128, 255], [0, 25, 128, 255]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_floats_on_either_scale(tmp_path: Path, values: list[float], right: list[int]) -> None:
    assert saved(tmp_path, "a.tif", Image.fromarray(np.array([values], np.float32))).tolist() == [[right]]


@pytest.mark.parametrize("values", [[0, 16], [-1, 1], [0, 300], [0, np.nan], [0, np.inf]])
def test_floats_of_unknown_scale_are_refused(tmp_path: Path, values: list[float]) -> None:
    Image.fromarray(np.array([values], np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(decode.BadImage):
        decode.decode(tmp_path / "a.tif")


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    assert saved(tmp_path, "a.png", Image.fromarray(np.array([[0, 1]], bool))).tolist() == [[[0, 255]]]


def test_transparent_pixels_are_black_whatever_they_hide(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 9, 255], [255, 0, 9, 0], [255, 0, 10, 128]]], np.uint8)
    assert saved(tmp_path, "a.png", Image.fromarray(colours))[:, 0].T.tolist() == [
        [255, 0, 9],
        [0, 0, 0],
        [128, 0, 5],
    ]
    gray = Image.fromarray(np.array([[[200, 255], [200, 0]]], np.uint8), "LA")
    assert saved(tmp_path, "b.png", gray).tolist() == [[[200, 0]]]
    keyed = saved(tmp_path, "c.png", Image.fromarray(np.array([[9, 100, 200]], np.uint8)), transparency=100)
    assert keyed.tolist() == [[[9, 0, 200]]]


def test_palettes_and_cmyk_become_rgb(tmp_path: Path) -> None:
    red = Image.new("RGB", (2, 1), (255, 0, 0))
    assert saved(tmp_path, "a.gif", red.quantize(4))[:, 0, 0].tolist() == [255, 0, 0]
    for name in ("a.tif", "a.jpg"):
        assert saved(tmp_path, name, Image.new("CMYK", (8, 8), (0, 255, 255, 0)))[:, 0, 0].tolist() == [
            255,
            0,
            0,
        ]


def test_orientation_is_applied_to_every_depth(tmp_path: Path) -> None:
    eight = Image.fromarray(np.array([[0, 40, 80], [120, 160, 200]], np.uint8))
    assert saved(tmp_path, "a.png", eight, exif=TURNED).tolist() == [[[120, 0], [160, 40], [200, 80]]]
    assert saved(tmp_path, "b.png", Image.fromarray(WIDE), exif=TURNED).tolist() == [[[0], [1], [128], [255]]]


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.tif", "a.webp"])
def test_first_frame_of_an_animation(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in [(255, 0, 0), (0, 255, 0)]]
    out = saved(tmp_path, name, frames[0], save_all=True, append_images=frames[1:])
    assert out.shape == (3, 8, 8)
    assert np.abs(out[:, 0, 0].astype(int) - [255, 0, 0]).max() <= 2


@pytest.mark.parametrize("kind", ["png", "jpeg", "progressive", "gif", "bmp", "webp", "tiff", "ppm"])
@pytest.mark.parametrize("tolerant", [False, True])
def test_a_cut_file_is_refused_even_where_a_caller_tolerates_it(
    tmp_path: Path, kind: str, tolerant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    options = {"progressive": True} if kind == "progressive" else {}
    Image.fromarray(pixels).save(buffer, "jpeg" if kind == "progressive" else kind, **options)
    (tmp_path / "a.png").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", tolerant)
    with pytest.raises(decode.BadImage):
        decode.decode(tmp_path / "a.png")
    assert tolerant == ImageFile.LOAD_TRUNCATED_IMAGES


def test_reasons_are_words(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.png").write_text("hello")
    for name, reason in {"a.png": "empty file", "b.png": "not an image", "c.png": "No such file"}.items():
        with pytest.raises(decode.BadImage, match=reason):
            decode.decode(tmp_path / name)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm"])
def test_whatever_the_bytes_there_is_an_image_or_a_reason(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(buffer, kind)
    outcomes = set()
    for _ in range(40):
        data = bytearray(buffer.getvalue())
        for _ in range(3):
            data[rng.integers(len(data))] = rng.integers(256)
        (tmp_path / "a.png").write_bytes(data)
        try:
            image = decode.decode(tmp_path / "a.png")
        except decode.BadImage as reason:
            outcomes.add(str(reason) != "")
        else:
            assert image.dtype == np.uint8
            assert image.shape[0] in (1, 3)
    assert False not in outcomes
