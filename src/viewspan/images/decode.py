"""One image file, decoded completely or refused: never a half-gray picture, never a clipped 16-bit one.

What becomes of each kind, as uint8 (C, H, W) with C = 1 or 3:

- 8-bit gray and colour: unchanged. CMYK, YCbCr, LAB, HSV and palettes: converted to RGB. 1-bit: 0 and 255.
- 16- and 32-bit integers: the full range of the stored type maps to 0..255, for signed types from its lowest value;
  never stretched image by image. 32-bit images that fill less than 1/256 of it are refused: their scale is unknown.
- Floating point: [0, 1] or [0, 255], decided by `scale_floats`; anything else is refused.
- Transparency: composited on black, so that colours hidden under it never show.
- EXIF orientation is applied. Of an animation or a multi-page file the first frame is taken.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

EXTENSIONS = (
    ".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
_DECODER_ERRORS = (
    SyntaxError,
    ValueError,
    EOFError,
    TypeError,
    KeyError,
    IndexError,
    struct.error,
    zlib.error,
)
_lock = threading.Lock()
_wishes: list[bool] = []  # what the caller had set, once for every decoding thread


class BadImage(ValueError):
    """A file that is not a whole, readable image; the message is the reason, without the name."""


def decode(path: str | Path) -> np.ndarray:
    """The image in a file as a uint8 array (C, H, W), C = 1 or 3.

    Raises:
        BadImage: if the file is empty, truncated, unreadable or no image; the message says why.
    """
    from PIL import Image

    try:
        if Path(path).stat().st_size == 0:
            raise BadImage("empty file")
        with _whole_files_only(), Image.open(path) as image:
            image.load()
            return from_pil(image)
    except BadImage:
        raise
    except Image.UnidentifiedImageError:
        raise BadImage("not an image") from None
    except OSError as error:
        raise BadImage(error.strerror or str(error) or type(error).__name__) from None
    except (*_DECODER_ERRORS, Image.DecompressionBombError) as error:
        raise BadImage(f"{type(error).__name__}: {error}") from None


@contextlib.contextmanager
def _whole_files_only() -> Iterator[None]:
    """A caller's wish for half-decoded pictures is set aside while any thread decodes, then put back."""
    from PIL import ImageFile

    with _lock:
        if not _wishes:
            _wishes.append(ImageFile.LOAD_TRUNCATED_IMAGES)
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        else:
            _wishes.append(_wishes[0])
    try:
        yield
    finally:
        with _lock:
            wish = _wishes.pop()
            if not _wishes:
                ImageFile.LOAD_TRUNCATED_IMAGES = wish


def from_pil(image: Image.Image) -> np.ndarray:
    """A PIL image of any mode as a uint8 array (C, H, W), C = 1 or 3; the rules are the module's."""
    from PIL import Image, ImageOps

    stored = _stored_integer(image)
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or (image.mode == "L" and stored == (8, True)):
        return scale_integers(_wide(image, stored), *stored)
    if image.mode == "F":
        return scale_floats(np.asarray(image)[None], "pixels")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        gray = image.mode in ("L", "LA", "La", "1")
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("RGB")
        image = image.getchannel(0) if gray else image
    elif image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels = np.asarray(image)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _stored_integer(image: Image.Image) -> tuple[int, bool]:
    """Bits and signedness of a gray image as stored; Pillow's mode alone does not tell."""
    tags: Any = getattr(image, "tag_v2", None)
    if tags is None:
        return 16, False
    bits, sample_format = (np.ravel(tags.get(tag, default))[0] for tag, default in ((258, 16), (339, 1)))
    return int(bits), int(sample_format) == 2


def _wide(image: Image.Image, stored: tuple[int, bool]) -> np.ndarray:
    """The stored integers (1, H, W); signed bytes, which Pillow reads as unsigned, get their sign back."""
    values = np.asarray(image)[None]
    return values.view(np.int8) if stored == (8, True) else values


def scale_integers(values: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    """Integers stored with so many bits, mapped from the type's full range to 0..255 (uint8)."""
    lowest = -(2 ** (bits - 1)) if signed else 0
    wide = values.astype(np.int64)
    if bits == 32 and not signed:
        wide = wide & 0xFFFFFFFF
    if wide.size and (wide.min() < lowest or wide.max() > lowest + 2**bits - 1):
        raise BadImage(f"values {wide.min()}..{wide.max()} lie outside {bits}-bit range")
    if bits == 32 and wide.size and wide.max() - wide.min() < 2**24:
        raise BadImage(
            f"32-bit values {wide.min()}..{wide.max()} fill less than 1/256 of their range, so it cannot be told; "
            "store 8 or 16 bits"
        )
    return np.rint((wide - lowest) * (255.0 / (2**bits - 1))).astype(np.uint8)


def scale_floats(values: np.ndarray, name: str) -> np.ndarray:
    """Numbers on the scale [0, 1] or [0, 255] to uint8; the scale is read off the largest value, or refused.

    Largest value ≤ 1: the scale is [0, 1]. Above 127.5 and ≤ 255: it is [0, 255]. Otherwise ambiguous.

    Raises:
        ValueError: if a value is not finite or negative, or if the scale cannot be told.
    """
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return np.rint(values * 255.0).astype(np.uint8)
    if low >= 0 and 127.5 < high <= 255:
        return np.rint(values).astype(np.uint8)
    raise ValueError(
        f"{name} must lie in [0, 1], or in [0, 255] with a largest value above 127.5, got {low:g}..{high:g}; "
        "rescale them or store them as uint8"
    )
