"""The six operations of the published regimes, batched: one independent draw an image, applied on the data's device.

Every operation takes float images (n, C, H, W) in [0, 1] and the images' `Draws`, and returns images in [0, 1].
Strengths default to those of the published CIFAR-10 runs (arXiv 2606.04280, Figure 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from viewspan import checks
from viewspan.images.draws import Draws


class Operation(Protocol):
    """One step of a view pipeline."""

    def __call__(self, x: Tensor, draws: Draws, name: str) -> Tensor:
        """Images (n, C, H, W) in [0, 1] to images in [0, 1]; `name` keys the draws."""
        ...


def _column(values: np.ndarray, x: Tensor) -> Tensor:
    """One number an image, shaped to broadcast over (n, C, H, W), on the images' device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(x.device, x.dtype).reshape(-1, 1, 1, 1)


def _spread(u: np.ndarray, low: float, high: float) -> np.ndarray:
    return low + (high - low) * u


def _gray(x: Tensor) -> Tensor:
    """Luma (ITU-R 601) of colour images, a one-channel image itself."""
    if x.shape[1] == 1:
        return x
    return (0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]).clamp_(max=1)


def _needs_colour(x: Tensor, what: str) -> bool:
    """Whether the images have colour; other channel counts than 1 and 3 are refused."""
    if x.shape[1] not in (1, 3):
        raise ValueError(
            f"{what} is defined for 1 or 3 channels, got {x.shape[1]}; leave it out for such images"
        )
    return x.shape[1] == 3


def adjust_hue(x: Tensor, turns: Tensor | float) -> Tensor:
    """Turn the hue of images (n, 3, H, W) by a share of the colour circle; gray stays gray, one channel unchanged.

    Args:
        x: images in [0, 1], any floating type.
        turns: shift in turns (1 = once round), a number or one an image.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
        >>> [round(255 * v) for v in adjust_hue(red, 0.25).flatten().tolist()]
        [128, 255, 0]
    """
    if not _needs_colour(x, "hue"):
        return x
    import kornia

    shift = torch.as_tensor(turns, dtype=torch.float32, device=x.device).reshape(-1, 1, 1) * (2 * math.pi)
    hue, saturation, value = kornia.color.rgb_to_hsv(x.float()).unbind(1)
    turned = kornia.color.hsv_to_rgb(torch.stack(((hue + shift) % (2 * math.pi), saturation, value), 1))
    return turned.to(x.dtype)


def _blend(x: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    """`factor` of x and the rest of `other`, held in [0, 1]."""
    return (other + factor * (x - other)).clamp_(0, 1)


@dataclass(frozen=True)
class Jitter:
    """Colour jitter: brightness, contrast, saturation and hue by random factors, in a random order for each image.

    Args:
        brightness, contrast, saturation: factors are uniform in [max(0, 1 − s), 1 + s]; ≥ 0.
        hue: shift uniform in [−s, s] turns; in [0, 0.5].
        p: probability that an image is jittered at all.
    """

    brightness: float = 0.8
    contrast: float = 0.8
    saturation: float = 0.8
    hue: float = 0.2
    p: float = 0.8

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            checks.number(name, getattr(self, name), low=0)
        checks.number("hue", self.hue, low=0, high=0.5)
        checks.number("p", self.p, low=0, high=1)

    def __call__(self, x: Tensor, draws: Draws, name: str) -> Tensor:
        u = draws.uniform(name, 9)
        chosen = u[:, 0] < self.p
        order = np.argsort(u[:, 5:9], axis=1)
        out = x.clone()
        for place in range(4):
            for kind, strength in enumerate((self.brightness, self.contrast, self.saturation, self.hue)):
                rows = np.flatnonzero(chosen & (order[:, place] == kind))
                if strength == 0 or not rows.size:
                    continue
                at = torch.from_numpy(rows).to(x.device)
                out[at] = self._one(kind, out[at], u[rows, 1 + kind], strength)
        return out

    @staticmethod
    def _one(kind: int, x: Tensor, u: np.ndarray, strength: float) -> Tensor:
        if kind == 3:
            return adjust_hue(x, _column(_spread(u, -strength, strength), x))
        factor = _column(_spread(u, max(0.0, 1 - strength), 1 + strength), x)
        if kind == 0:
            return _blend(x, 0.0, factor)
        if kind == 1:
            level = _gray(x) if x.shape[1] == 3 else x.mean(1, keepdim=True)
            return _blend(x, level.mean((2, 3), keepdim=True), factor)
        return _blend(x, _gray(x), factor) if _needs_colour(x, "saturation") else x


@dataclass(frozen=True)
class Crop:
    """Random resized crop: a box of random area and shape, resampled to a fixed size (bilinear).

    Boxes follow torchvision's law but are not rounded to whole pixels, so the views of an image vary in four directions
    at any size. When views are smaller than the images, k × k samples a pixel are averaged, k = ⌈image / view⌉.

    Args:
        area: range of the box's share of the image's area, in (0, 1].
        ratio: range of width / height, drawn on a log scale, > 0.
        size: height and width of the view in pixels; None keeps the images' own.
    """

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    size: int | None = None

    def __post_init__(self) -> None:
        _range("area", self.area, high=1)
        _range("ratio", self.ratio)
        if self.size is not None:
            checks.integer("size", self.size, low=1)

    def boxes(self, draws: Draws, name: str, height: int, width: int) -> np.ndarray:
        """Top, left, height and width of each image's box in pixels, fractions of them too, (n, 4)."""
        u = draws.uniform(name, 22)
        h, w, found = _rectangles(u[:, :20], self.area, self.ratio, height, width, whole=False)
        h[~found], w[~found] = _largest(height, width, self.ratio)
        at = np.where(found[:, None], u[:, 20:], 0.5)
        return np.stack((at[:, 0] * (height - h), at[:, 1] * (width - w), h, w), axis=1)

    def __call__(self, x: Tensor, draws: Draws, name: str) -> Tensor:
        height, width = x.shape[2:]
        out = (height, width) if self.size is None else (self.size, self.size)
        return resample(x, self.boxes(draws, name, height, width), out)


def resample(x: Tensor, boxes: np.ndarray, size: tuple[int, int]) -> Tensor:
    """The boxes (top, left, height, width) of images, each resampled to one size, from the pixels it touches."""
    fine = max(1, math.ceil(x.shape[2] / size[0]), math.ceil(x.shape[3] / size[1]))
    box = torch.from_numpy(boxes).to(x.device, x.dtype)

    def positions(start: Tensor, length: Tensor, count: int, extent: int) -> Tensor:
        steps = (torch.arange(count, device=x.device, dtype=x.dtype) + 0.5) / count
        at = start[:, None] + torch.minimum((steps * length[:, None]).clamp(min=0.5), length[:, None] - 0.5)
        return at * (2 / extent) - 1

    ys = positions(box[:, 0], box[:, 2], size[0] * fine, x.shape[2])
    xs = positions(box[:, 1], box[:, 3], size[1] * fine, x.shape[3])
    n, h, w = len(x), ys.shape[1], xs.shape[1]
    grid = torch.stack((xs[:, None, :].expand(n, h, w), ys[:, :, None].expand(n, h, w)), dim=3)
    out = torch.nn.functional.grid_sample(
        x, grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    return _between(torch.nn.functional.avg_pool2d(out, fine) if fine > 1 else out, x)


def _between(means: Tensor, x: Tensor) -> Tensor:
    """Weighted means of pixels, held between the least and the greatest of their image in spite of rounding."""
    flat = x.flatten(1)
    low, high = flat.amin(1).reshape(-1, 1, 1, 1), flat.amax(1).reshape(-1, 1, 1, 1)
    return torch.minimum(torch.maximum(means, low), high)


def _range(name: str, values: tuple[float, float], *, high: float = math.inf) -> None:
    """Two ordered positive numbers."""
    if not isinstance(values, tuple | list) or len(values) != 2:
        raise ValueError(f"{name} must be two numbers, got {values!r}")
    low = checks.number(name, values[0], low=0, high=high, open_low=True)
    checks.number(name, values[1], low=low, high=high)


def _rectangles(
    u: np.ndarray,
    area: tuple[float, float],
    ratio: tuple[float, float],
    height: int,
    width: int,
    *,
    whole: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Height and width of the first of ten random rectangles that fits, and whether one did (torchvision's rule)."""
    share = _spread(u[:, 0::2], *area) * height * width
    shape = np.exp(_spread(u[:, 1::2], math.log(ratio[0]), math.log(ratio[1])))
    w, h = np.sqrt(share * shape), np.sqrt(share / shape)
    if whole:
        w, h = np.rint(w), np.rint(h)
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.argmax(axis=1)
    rows = np.arange(len(u))
    return h[rows, first], w[rows, first], fits.any(axis=1)


def _largest(height: int, width: int, ratio: tuple[float, float]) -> tuple[float, float]:
    """The largest central box whose shape the range of ratios allows."""
    if width / height < ratio[0]:
        return width / ratio[0], width
    if width / height > ratio[1]:
        return height, height * ratio[1]
    return height, width


@dataclass(frozen=True)
class Flip:
    """Mirror left and right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        checks.number("p", self.p, low=0, high=1)

    def __call__(self, x: Tensor, draws: Draws, name: str) -> Tensor:
        chosen = torch.from_numpy(draws.uniform(name, 1)[:, 0] < self.p).to(x.device)
        return torch.where(chosen.reshape(-1, 1, 1, 1), x.flip(3), x)


@dataclass(frozen=True)
class Grayscale:
    """Replace the colours by their luma with probability `p`; one-channel images stay as they are."""

    p: float = 0.2

    def __post_init__(self) -> None:
        checks.number("p", self.p, low=0, high=1)

    def __call__(self, x: Tensor, draws: Draws, name: str) -> Tensor:
        if not _needs_colour(x, "grayscale"):
            return x
        chosen = torch.from_numpy(draws.uniform(name, 1)[:, 0] < self.p).to(x.device)
        return torch.where(chosen.reshape(-1, 1, 1, 1), _gray(x), x)


@dataclass(frozen=True)
class Blur:
    """Gaussian blur of random width.

    Args:
        kernel: odd number of pixels the kernel spans.
        sigma: range of the standard deviation in pixels, > 0.
        p: probability that an image is blurred.
    """

    kernel: int = 3
    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 1.0

    def __post_init__(self) -> None:
        if checks.integer("kernel", self.kernel, low=1) % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")
        _range("sigma", self.sigma)
        checks.number("p", self.p, low=0, high=1)

    def __call__(self, x: Tensor, draws: Draws, name: str) -> Tensor:
        import kornia

        if min(x.shape[2:]) <= self.kernel // 2:
            raise ValueError(
                f"kernel must be less than twice the sides {tuple(x.shape[2:])}, got {self.kernel}"
            )
        u = draws.uniform(name, 2)
        sigma = torch.from_numpy(_spread(u[:, 1], *self.sigma)).to(x.device, x.dtype)
        out = _between(kornia.filters.gaussian_blur2d(x, self.kernel, torch.stack((sigma, sigma), 1)), x)
        if self.p == 1:
            return out
        return torch.where(torch.from_numpy(u[:, 0] < self.p).to(x.device).reshape(-1, 1, 1, 1), out, x)


@dataclass(frozen=True)
class Erase:
    """Random erasing (cutout): one rectangle of random place, area and shape is set to a value.

    Args:
        area: range of the rectangle's share of the image's area, in (0, 1].
        ratio: range of width / height, drawn on a log scale, > 0.
        value: what the pixels become, in [0, 1].
        p: probability that an image loses a rectangle.
    """

    area: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        _range("area", self.area, high=1)
        _range("ratio", self.ratio)
        checks.number("value", self.value, low=0, high=1)
        checks.number("p", self.p, low=0, high=1)

    def __call__(self, x: Tensor, draws: Draws, name: str) -> Tensor:
        height, width = x.shape[2:]
        u = draws.uniform(name, 23)
        h, w, found = _rectangles(u[:, :20], self.area, self.ratio, height, width, whole=True)
        top, left = np.floor(u[:, 20] * (height - h + 1)), np.floor(u[:, 21] * (width - w + 1))
        erased = found & (u[:, 22] < self.p)
        rows = np.arange(height)[None]
        columns = np.arange(width)[None]
        down = (rows >= top[:, None]) & (rows < (top + h)[:, None]) & erased[:, None]
        across = (columns >= left[:, None]) & (columns < (left + w)[:, None])
        mask = torch.from_numpy(down[:, None, :, None] & across[:, None, None, :]).to(x.device)
        return x.masked_fill(mask, self.value)


@dataclass(frozen=True)
class Shift:
    """Move the image by a few whole pixels in each direction; the border pixels are repeated.

    Args:
        pixels: largest shift, ≥ 0; every shift in −pixels..pixels is equally likely, in each direction.
    """

    pixels: int = 1

    def __post_init__(self) -> None:
        checks.integer("pixels", self.pixels, low=0)

    def __call__(self, x: Tensor, draws: Draws, name: str) -> Tensor:
        height, width = x.shape[2:]
        moves = np.floor(draws.uniform(name, 2) * (2 * self.pixels + 1)).astype(np.int64) - self.pixels
        rows = np.clip(np.arange(height)[None] + moves[:, :1], 0, height - 1)
        columns = np.clip(np.arange(width)[None] + moves[:, 1:], 0, width - 1)
        at = torch.arange(len(x), device=x.device)[:, None, None]
        down = torch.from_numpy(rows).to(x.device)[:, :, None]
        across = torch.from_numpy(columns).to(x.device)[:, None, :]
        return x.permute(0, 2, 3, 1)[at, down, across].permute(0, 3, 1, 2).contiguous()
