"""Images that come as arrays: an `.npz` file, a tensor, a Dataset or any sequence of (C, H, W) arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from viewspan.images import decode, folders, named

if TYPE_CHECKING:
    import torch

Pixels = np.ndarray


def as_uint8(values: np.ndarray, name: str) -> np.ndarray:
    """Pixels of any number type as uint8.

    uint8 stays; bool becomes 0 and 255; floats follow `decode.scale_floats`. Wider integers: within 0..255 with a
    value above 127 they stay; with a value outside 0..255, 16-bit ones map from their full range; else refused.

    Raises:
        ValueError: if the scale cannot be told, or a value is not finite (the image is named by its number).
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            if values.ndim == 4:
                bad = int(np.flatnonzero(~np.isfinite(values).all(axis=(1, 2, 3)))[0])
                raise ValueError(f"{name}: image {bad} holds NaN or infinity")
            raise ValueError(f"{name} holds NaN or infinity")
        return decode.scale_floats(values, name)
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold numbers, got dtype {values.dtype}")
    low, high = int(values.min()), int(values.max())
    if low >= 0 and 127 < high <= 255:
        return values.astype(np.uint8)
    if values.dtype.itemsize == 2 and not (low >= 0 and high <= 255):
        return decode.scale_integers(values, 16, values.dtype.kind == "i")
    raise ValueError(
        f"{name} of dtype {values.dtype} holds {low}..{high}: its range cannot be told; store it as uint8, 0..255"
    )


def batch(values: Any, name: str = "images") -> np.ndarray:
    """An array (n, C, H, W), (n, H, W, C) or (n, H, W) as uint8 (n, C, H, W).

    The axis of length 1 to 4 is the channels'; if both could be, the array is refused. More channels: (n, C, H, W).
    """
    values = np.asarray(values)
    if values.dtype == object:
        raise TypeError(f"{name} must be one array of numbers, got an object array")
    if values.ndim == 3 and 0 not in values.shape:
        return np.ascontiguousarray(as_uint8(values[:, None], name))
    if values.ndim != 4 or 0 in values.shape:
        raise ValueError(f"{name} must have shape (n, C, H, W) or (n, H, W, C), got {values.shape}")
    first, last = values.shape[1] <= 4, values.shape[3] <= 4
    if first and last and values.shape[1] != values.shape[3]:
        raise ValueError(
            f"{name} of shape {values.shape}: the channels' axis cannot be told; give more than 4 pixels"
        )
    if not first and not last and values.shape[1] == values.shape[2] != values.shape[3]:
        raise ValueError(
            f"{name} of shape {values.shape} look like (n, H, W, C): with more than 4 channels give (n, C, H, W)"
        )
    if last and not first:
        values = values.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(as_uint8(values, name))


def labels(values: Any, n: int) -> tuple[list[str], tuple[str, ...]]:
    """Integer or string labels as (name of each image's class, class names in natural order).

    Raises:
        ValueError: if there is not one label an image.
    """
    values = np.asarray(values)
    values = values.reshape(-1) if values.ndim == 2 and 1 in values.shape else values
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        raise ValueError(
            f"labels must be one integer or string an image, got shape {values.shape} of dtype {values.dtype}"
        )
    if len(values) != n:
        raise ValueError(f"labels must be as many as images, got {len(values)} labels and {n} images")
    names = [str(v) for v in values.tolist()]
    return names, tuple(sorted(set(names), key=folders.natural))


def npz(path: Path) -> tuple[np.ndarray, Any | None]:
    """Images (under `images` or `x`) and labels (under `labels` or `y`, or None) of an `.npz` file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {key: file[key] for key in file.files if key in ("images", "x", "labels", "y")}
            keys = list(file.files)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be a readable .npz file without pickled objects ({error})") from error
    found = {}
    for kind, options in {"images": ("images", "x"), "labels": ("labels", "y")}.items():
        present = [key for key in options if key in held]
        if len(present) > 1:
            raise ValueError(f"{path} must hold one of {' and '.join(options)}, got both")
        found[kind] = held[present[0]] if present else None
    if found["images"] is None:
        raise ValueError(f"{path} must hold an array called images or x, got {', '.join(keys) or 'nothing'}")
    return batch(found["images"], f"{path}: images"), found["labels"]


def sequence(items: Any) -> tuple[list[np.ndarray], list[Any] | None]:
    """A Dataset or sequence of images, or of (image, label) pairs; an image is PIL or an array (C, H, W).

    Raises:
        ValueError: naming the item that is no image, or whose scale cannot be told.
    """
    images: list[np.ndarray] = []
    found: list[Any] = []
    pairs = 0
    for i, item in enumerate(_items(items)):
        image = item
        if isinstance(item, tuple | list) and len(item) == 2 and np.ndim(item[1]) == 0:
            image, label = item
            found.append(label.item() if hasattr(label, "item") else label)
            pairs += 1
        images.append(one(image, f"item {i}"))
    if not images:
        raise ValueError("data must hold at least one image, got an empty sequence")
    if pairs not in (0, len(images)):
        raise ValueError(
            f"data must give a label with every image or with none, got {pairs} of {len(images)}"
        )
    return _same_scale(images), found or None


def _items(items: Any) -> Iterator[Any]:
    """Items by position; a Dataset promises len() and [i], not iteration."""
    with named.blamed("data has no length"):
        n = len(items)
    for i in range(n):
        with named.blamed(f"data: item {i} cannot be had"):
            item = items[i]
        yield item


def one(image: Any, name: str) -> np.ndarray:
    """One PIL image or (C, H, W) array, not yet scaled unless PIL."""
    if hasattr(image, "mode") and hasattr(image, "convert"):
        return decode.from_pil(image)
    try:
        if hasattr(image, "detach"):
            image = image.detach().cpu()
            image = image.float() if image.is_floating_point() else image  # NumPy knows no bfloat16
        values = np.asarray(image)
    except (ValueError, TypeError, RuntimeError):
        values = np.asarray(None)
    if values.dtype == object:
        raise ValueError(
            f"{name} must be an image (C, H, W), or an image and its label, got {type(image).__name__}"
        )
    if values.ndim != 3 or 0 in values.shape or values.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} must be an image (C, H, W), got shape {values.shape} of dtype {values.dtype}"
        )
    bands_last = values.shape[0] == values.shape[1] != values.shape[2]
    if values.shape[0] > 4 and values.shape[1] > 4 and (values.shape[2] <= 4 or bands_last):
        raise ValueError(f"{name} must be (C, H, W), got shape {values.shape}, which looks like (H, W, C)")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return values


def _same_scale(images: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Scale all images by one rule, decided from their common range."""
    kinds = {image.dtype for image in images}
    if kinds == {np.dtype(np.uint8)}:
        return list(images)
    if len(kinds) > 1:
        raise TypeError(f"images must share one dtype, got {', '.join(sorted(map(str, kinds)))}")
    flat = as_uint8(np.concatenate([image.reshape(-1) for image in images]), "images")
    ends = np.cumsum([image.size for image in images])[:-1]
    return [part.reshape(image.shape) for part, image in zip(np.split(flat, ends), images)]


def to_numpy(values: torch.Tensor | np.ndarray) -> np.ndarray:
    """A tensor or array as an array on the CPU."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
