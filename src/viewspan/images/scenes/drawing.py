"""Pictures of one or two objects on a plain background, from named parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from viewspan import checks

PERIODS = {"disc": 0.0, "square": 1 / 4, "bar": 1 / 2, "triangle": 1 / 3, "wedge": 1.0}
"""The turn after which each shape looks the same; a disc always does."""

DESCRIPTIONS = {
    "x": "centre, to the right of the picture's, in widths of the picture",
    "y": "centre, below the picture's, in heights of the picture",
    "size": "distance of the outermost point from the centre, in widths of the picture",
    "rotation": "clockwise, in turns",
    "hue": "on the colour circle, in turns: 0 red, 1/3 green, 2/3 blue",
    "saturation": "from 0, gray, to 1",
    "brightness": "the largest of red, green and blue, from 0 to 1",
    "background": "gray level of what is behind, from 0 to 1",
}
OWN = tuple(name for name in DESCRIPTIONS if name != "background")  # what each object has
NAMES = (*OWN, *(f"{name}2" for name in OWN), "background")
"""Every parameter; the second object's end in 2 (x2, y2, …)."""

_RESTING = {
    "x": 0.0, "y": 0.0, "size": 0.18, "rotation": 0.0, "hue": 0.0, "saturation": 0.8, "brightness": 0.9,
    "background": 0.2,
}  # fmt: skip
_RESTING_PAIR = {
    "x": -0.25, "y": 0.0, "size": 0.14, "x2": 0.25, "y2": 0.0, "size2": 0.14, "rotation2": 0.0, "hue2": 0.5,
    "saturation2": 0.8, "brightness2": 0.9,
}  # fmt: skip
Values = Mapping[str, Tensor | float]


def render(values: Values, *, shapes: Sequence[str] = ("wedge",), size: int = 32) -> Tensor:
    """Pictures of one or two objects, the second in front; edges are anti-aliased over one pixel.

    Any value is drawn as it is: an object may leave the picture, cover another or vanish into the background.

    Args:
        values: numbers of shape (n,) or scalars by name, as `DESCRIPTIONS` has them; what is not named rests at the
            value that `resting` gives.
        shapes: of the first and perhaps a second object, out of disc, square, bar, triangle and wedge.
        size: side of the square pictures, pixels >= 8.

    Returns:
        RGB in [0, 1], shape (n, 3, size, size), n = 1 if all values are scalars; dtype and device of the values.

    Raises:
        ValueError: for an unknown name, shapes (n,) that disagree, or a value that is not finite or out of range.

    Example:
        >>> x = render({"x": torch.tensor([-0.2, 0.2]), "hue": 2 / 3}, shapes=["disc"], size=16)
        >>> x.shape, torch.allclose(x[0], x[1].flip(-1))
        (torch.Size([2, 3, 16, 16]), True)
    """
    check_shapes(shapes)
    checks.integer("size", size, low=8)
    filled = _filled(values, shapes)
    picture = filled["background"][:, None, None, None].expand(-1, 3, size, size)
    for shape, suffix in zip(shapes, ("", "2")):
        own = {name: filled[name + suffix] for name in OWN}
        seen = _coverage(shape, own["x"], own["y"], own["size"], own["rotation"], size)[:, None]
        colour = _rgb(own["hue"], own["saturation"], own["brightness"])
        picture = torch.lerp(picture, colour[:, :, None, None], seen)
    return picture


def resting(shapes: Sequence[str] = ("wedge",)) -> dict[str, float]:
    """The value of every parameter that is not given, for one object or two."""
    return _RESTING if len(shapes) == 1 else {**_RESTING, **_RESTING_PAIR}


def check_shapes(shapes: Sequence[str]) -> tuple[str, ...]:
    if isinstance(shapes, str) or not 1 <= len(shapes) <= 2:
        raise ValueError(f"shapes must be a sequence of one or two names, got {shapes!r}")
    return tuple(checks.choice("shapes", shape, PERIODS) for shape in shapes)


def _filled(values: Values, shapes: Sequence[str]) -> dict[str, Tensor]:
    """Every parameter of the scene as a floating tensor of shape (n,)."""
    defaults = resting(shapes)
    for name in values:
        if name not in defaults:
            raise ValueError(f"values must be named out of {', '.join(defaults)}, got {name!r}")
    given = [value for value in values.values() if isinstance(value, Tensor)]
    like = given[0] if given else torch.zeros(())
    dtype = functools.reduce(torch.promote_types, (v.dtype for v in given), torch.float32)
    filled = {}
    for name, rest in defaults.items():
        value = torch.as_tensor(values.get(name, rest), dtype=dtype, device=like.device)
        if value.ndim > 1:
            raise ValueError(f"{name} must be a number or of shape (n,), got shape {tuple(value.shape)}")
        low, high = limits(name)
        if not bool(((value >= low) & (value <= high) & value.isfinite()).all()):
            raise ValueError(f"{name} must be finite and in [{low:g}, {high:g}]")
        filled[name] = value
    lengths = {len(value) for value in filled.values() if value.ndim}
    if len(lengths) > 1:
        raise ValueError(f"values must share one length n, got {sorted(lengths)}")
    n = lengths.pop() if lengths else 1
    return {name: value.expand(n) for name, value in filled.items()}


def limits(name: str) -> tuple[float, float]:
    own = name.removesuffix("2")
    if own in ("x", "y", "rotation", "hue"):
        return -math.inf, math.inf
    return 0.0, 1.0


def _coverage(shape: str, x: Tensor, y: Tensor, size: Tensor, rotation: Tensor, pixels: int) -> Tensor:
    """Share of each pixel that the object covers, up to rounding at corners; shape (n, pixels, pixels)."""
    grid = (torch.arange(pixels, dtype=x.dtype, device=x.device) + 0.5) / pixels - 0.5
    across, down = grid - x[:, None], grid - y[:, None]
    if shape == "disc":
        outside = (across[:, None, :].square() + down[:, :, None].square()).sqrt() - size[:, None, None]
    else:
        normals, offsets = _sides(shape)
        cos, sin = (2 * math.pi * rotation).cos()[:, None], (2 * math.pi * rotation).sin()[:, None]
        sides = [
            ((cos * a - sin * b) * across)[:, None, :] + ((sin * a + cos * b) * down - offset * size[:, None])[:, :, None]
            for (a, b), offset in zip(normals, offsets)
        ]  # fmt: skip
        outside = functools.reduce(torch.maximum, sides)
    return (0.5 - pixels * outside).clamp(0, 1)


@functools.cache
def _sides(shape: str) -> tuple[list[list[float]], list[float]]:
    """A convex shape around its centroid, its outermost point at distance 1: outer normals and offsets of its sides."""
    at = {
        "square": (1 / 8, 3 / 8, 5 / 8, 7 / 8),
        "bar": (0.06, 0.44, 0.56, 0.94),
        "triangle": (0.0, 1 / 3, 2 / 3),
        "wedge": (0.0, 0.4, 0.6),
    }[shape]  # where its corners lie on a circle, in turns
    turns = 2 * math.pi * torch.tensor(at, dtype=torch.float64)
    corners = torch.stack([turns.cos(), turns.sin()], dim=1)
    following = corners.roll(-1, 0)
    twice_area = corners[:, 0] * following[:, 1] - corners[:, 1] * following[:, 0]
    centroid = ((corners + following) * twice_area[:, None]).sum(0) / (3 * twice_area.sum())
    corners = corners - centroid
    corners = corners / corners.norm(dim=1).max()
    along = corners.roll(-1, 0) - corners
    normals = torch.stack([along[:, 1], -along[:, 0]], dim=1)
    normals = normals / normals.norm(dim=1, keepdim=True)
    return normals.tolist(), (normals * corners).sum(1).tolist()


def _rgb(hue: Tensor, saturation: Tensor, brightness: Tensor) -> Tensor:
    """HSV to RGB, shape (n, 3)."""
    sector = (torch.tensor([5.0, 3.0, 1.0], dtype=hue.dtype, device=hue.device) + 6 * hue[:, None]) % 6
    away = torch.minimum(sector, 4 - sector).clamp(0, 1)
    return brightness[:, None] * (1 - saturation[:, None] * away)
