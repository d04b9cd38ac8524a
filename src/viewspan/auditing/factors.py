"""A bank of image factors: what a person would name when two views differ.

Every factor maps float images (n, C, H, W) to (n,) numbers, or (n, 2) for a direction (hue, orientation). Geometry
is measured on luma pooled to at most 64 × 64. NaN marks an image in which the factor is undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

Floats = npt.NDArray[np.float64]
Factor = Callable[[Tensor], Tensor]

GEOMETRY_SIZE = 64
SUPPORT_SIZE = 16  # pixels a side for the support dimension: finer views cut in whole pixels are a rough set
_TRIM = 0.1  # share of pixels left out at each end of the luma scale, so that an erased patch does not decide
_NO_COLOUR = 1 / 255  # mean chroma below which an image has no hue
_FLAT = 1e-4  # standard deviation of luma below which an image has no geometry

DESCRIPTIONS = {
    "brightness": "mean luma without the darkest and lightest tenth of the pixels",
    "contrast": "standard deviation of luma",
    "saturation": "mean of (max - min)/max over the colour channels",
    "red_green": "mean of R - G",
    "yellow_blue": "mean of (R + G)/2 - B",
    "hue": "direction of the mean colour on the colour circle; undefined for gray images",
    "sharpness": "standard deviation of luma's Laplacian over that of luma",
    "horizontal_centre": "centre of mass, left to right, of luma's distance from its trimmed mean",
    "vertical_centre": "centre of mass, top to bottom",
    "spread": "root mean square distance of that mass from its centre",
    "left_right": "luma of the left half minus that of the right, in standard deviations of luma",
    "top_bottom": "luma of the top half minus that of the bottom, in standard deviations of luma",
    "orientation": "dominant direction of luma's gradients, by their structure tensor, modulo 180 degrees",
}
NAMES = tuple(DESCRIPTIONS)


def measure(x: Tensor, names: Sequence[str], own: Mapping[str, Factor] | None = None) -> dict[str, Floats]:
    """The named factors of a batch.

    Args:
        x: float images, shape (n, C, H, W), nominally in [0, 1]; C = 1 is gray, C >= 3 has R, G, B first.
        names: names out of the bank.
        own: further factors by name, each a map of such a batch to (n,) or (n, c) numbers.

    Returns:
        Shape (n,) or (n, c) each, float64.
    """
    out: dict[str, Tensor] = {}
    if names:
        found = {**_colour(x), **_light(x), **_geometry(x)}
        out = {name: found[name] for name in names}
    arrays = {name: value.double().cpu().numpy() for name, value in out.items()}
    for name, factor in (own or {}).items():
        arrays[name] = _own(name, factor, x)
    return arrays


def luma(x: Tensor) -> Tensor:
    """ITU-R 601 luma of (n, C, H, W) images, shape (n, H, W); the mean channel unless there are three colours."""
    if x.shape[1] < 3:
        return x[:, 0]
    return 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]


def pooled(x: Tensor, size: int) -> Tensor:
    """Images (n, C, H, W) averaged down to at most `size` pixels a side."""
    h, w = x.shape[-2:]
    if h <= size and w <= size:
        return x
    return functional.adaptive_avg_pool2d(x, (min(h, size), min(w, size)))


def _own(name: str, factor: Factor, x: Tensor) -> Floats:
    try:
        value = factor(x.clone())  # a factor that writes into its input must not change the next one's
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    except Exception as error:
        raise ValueError(f"factor {name} failed: {type(error).__name__}: {error}") from error
    if array.ndim not in (1, 2) or len(array) != len(x):
        raise ValueError(
            f"factor {name} must return ({len(x)},) or ({len(x)}, c) for {len(x)} images, got {array.shape}"
        )
    return array


def _colour(x: Tensor) -> dict[str, Tensor]:
    if x.shape[1] < 3:
        nothing = torch.full((len(x),), torch.nan)
        names = ("saturation", "red_green", "yellow_blue", "hue")
        return dict.fromkeys(names, nothing)
    rgb = x[:, :3]
    r, g, b = rgb.mean((2, 3)).unbind(1)
    high, low = rgb.amax(1), rgb.amin(1)
    chroma = torch.stack([r - (g + b) / 2, 3**0.5 / 2 * (g - b)], dim=1)
    length = torch.linalg.vector_norm(chroma, dim=1, keepdim=True)
    return {
        "saturation": ((high - low) / high.clamp_min(1e-6)).mean((1, 2)),
        "red_green": r - g,
        "yellow_blue": (r + g) / 2 - b,
        "hue": torch.where(length > _NO_COLOUR, chroma / length.clamp_min(1e-12), torch.nan),
    }


def _light(x: Tensor) -> dict[str, Tensor]:
    y = luma(x)
    sd = _sd(y)
    inner = y[:, 1:-1, 1:-1]
    if min(y.shape[1:]) < 3:
        sharpness = torch.full_like(sd, torch.nan)
    else:
        laplacian = 4 * inner - y[:, 2:, 1:-1] - y[:, :-2, 1:-1] - y[:, 1:-1, 2:] - y[:, 1:-1, :-2]
        sharpness = _unless_flat(_sd(laplacian) / sd.clamp_min(1e-12), sd)
    return {
        "brightness": _trimmed_mean(pooled(y[:, None], GEOMETRY_SIZE)[:, 0]),
        "contrast": sd,
        "sharpness": sharpness,
    }


def _geometry(x: Tensor) -> dict[str, Tensor]:
    y = pooled(luma(x)[:, None], GEOMETRY_SIZE)[:, 0]
    n, h, w = y.shape
    sd = _sd(y)
    mass = (y - _trimmed_mean(y)[:, None, None]).abs()
    total = mass.sum((1, 2)).clamp_min(1e-12)
    across = (torch.arange(w, dtype=y.dtype) + 0.5) / w - 0.5
    down = (torch.arange(h, dtype=y.dtype) + 0.5) / h - 0.5
    columns, rows = mass.sum(1) / total[:, None], mass.sum(2) / total[:, None]
    cx, cy = columns @ across, rows @ down
    variance = columns @ across.square() - cx.square() + rows @ down.square() - cy.square()
    out = {
        "horizontal_centre": cx,
        "vertical_centre": cy,
        "spread": variance.clamp_min(0).sqrt(),
        "left_right": (y[:, :, : w // 2].mean((1, 2)) - y[:, :, w - w // 2 :].mean((1, 2)))
        / sd.clamp_min(1e-12)
        if w > 1
        else torch.full((n,), torch.nan),
        "top_bottom": (y[:, : h // 2].mean((1, 2)) - y[:, h - h // 2 :].mean((1, 2))) / sd.clamp_min(1e-12)
        if h > 1
        else torch.full((n,), torch.nan),
        "orientation": _orientation(y),
    }
    return {name: _unless_flat(value, sd) for name, value in out.items()}


def _orientation(y: Tensor) -> Tensor:
    """(J_xx − J_yy, 2 J_xy)/trace of the structure tensor: twice the angle, its length the coherence."""
    if min(y.shape[1:]) < 3:
        return torch.full((len(y), 2), torch.nan)
    gx = (y[:, 1:-1, 2:] - y[:, 1:-1, :-2]) / 2
    gy = (y[:, 2:, 1:-1] - y[:, :-2, 1:-1]) / 2
    xx, yy, xy = gx.square().mean((1, 2)), gy.square().mean((1, 2)), (gx * gy).mean((1, 2))
    trace = (xx + yy).clamp_min(1e-12)
    return torch.stack([(xx - yy) / trace, 2 * xy / trace], dim=1)


def _sd(y: Tensor) -> Tensor:
    flat = y.flatten(1)
    return flat.std(1) if flat.shape[1] > 1 else torch.full((len(y),), torch.nan)


def _trimmed_mean(y: Tensor) -> Tensor:
    flat = y.flatten(1).sort(1).values
    cut = int(_TRIM * flat.shape[1])
    return flat[:, cut : flat.shape[1] - cut].mean(1)


def _unless_flat(value: Tensor, sd: Tensor) -> Tensor:
    flat = ~(sd > _FLAT)
    return torch.where(flat if value.ndim == 1 else flat[:, None], torch.nan, value)
