"""Arrays made small enough to travel inside a page: points as 16-bit integers, images as PNG."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 1000


def aligned(z: NDArray[Any], h: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    """Anchors and recovered points in three dimensions, turned onto one another, and how that was done.

    On S² the recovered points are rotated or reflected (orthogonal Procrustes), which changes no distance. In any
    other dimension the first three latent coordinates are shown beside their least-squares readout from h.
    """
    z, h = np.asarray(z, np.float64)[:MOST_POINTS], np.asarray(h, np.float64)[:MOST_POINTS]
    if (
        z.ndim != 2
        or h.ndim != 2
        or len(z) != len(h)
        or len(z) < 4
        or not np.isfinite(z).all()
        or not np.isfinite(h).all()
    ):
        raise ValueError(f"z and h must be finite and have rows in common, got {z.shape} and {h.shape}")
    if z.shape[1] == h.shape[1] == 3:
        from scipy.linalg import orthogonal_procrustes

        turn, _ = orthogonal_procrustes(h, z)
        return z, h @ turn, "recovered points turned onto the latents by the best rotation or reflection"
    shown = np.zeros((len(z), 3))
    shown[:, : min(3, z.shape[1])] = z[:, :3]
    design = np.column_stack([h, np.ones(len(h))])
    readout = design @ np.linalg.lstsq(design, shown, rcond=None)[0]
    return (
        shown,
        readout,
        f"first three of {z.shape[1]} coordinates, and their linear readout from the embedding",
    )


def packed(points: NDArray[Any]) -> str:
    """Coordinates in [−1.5, 1.5] as little-endian 16-bit integers in base64."""
    return base64.b64encode(
        np.clip(np.round(points * 20_000), -30_000, 30_000).astype("<i2").tobytes()
    ).decode()


def png_uri(image: NDArray[Any]) -> str:
    """An 8-bit image, (H, W), (H, W, 1 or 3) or (1 or 3, H, W), as a `data:` address."""
    image = np.asarray(image)
    if image.ndim == 3 and image.shape[0] in (1, 3) and image.shape[2] not in (1, 3):
        image = np.moveaxis(image, 0, 2)
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3) or image.size == 0:
        raise ValueError(f"image must have shape (H, W), (H, W, 3) or (3, H, W), got {image.shape}")
    if image.dtype != np.uint8:
        scale = 1.0 if image.dtype.kind in "iu" else 255.0
        image = np.clip(np.nan_to_num(image.astype(np.float64)) * scale, 0, 255).round().astype(np.uint8)
    height, width = image.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(image))
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if image.ndim == 2 else 2, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"IDAT", zlib.compress(rows, 9))
        + _chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
