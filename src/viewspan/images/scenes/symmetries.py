"""Scenes in which two latents would show one picture are refused, with the parameter and the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from viewspan.images.scenes import drawing

Span = tuple[float, float]

_SEEN = 0.1  # chroma, brightness, or distance from the background, below which what it carries is not seen
_SMALLEST = 1.5  # pixels from an object's centre to its outermost point
_ROUNDING = 1e-9


def refuse_ambiguous(
    fixed: Mapping[str, float],
    ranges: Mapping[str, Span],
    shapes: tuple[str, ...],
    *,
    pixels: int,
    closed: bool,
) -> None:
    """Raise where two latents would show one picture, or an object would not be seen whole.

    Args:
        fixed: the value of every parameter of the scene.
        ranges: the (low, high) of those that move.
        shapes: of the objects.
        pixels: side of the picture.
        closed: whether both ends of a range are latents, so that a whole period joins two of them.
    """
    spans = {name: (float(value), float(value)) for name, value in fixed.items()}
    for name, span in ranges.items():
        if name not in spans:
            raise ValueError(f"factors: {name!r} needs a second object, got shapes={shapes}")
        if (
            not isinstance(span, Sequence)
            or len(span) != 2
            or not (math.isfinite(span[0]) and math.isfinite(span[1]) and span[0] < span[1])
        ):
            raise ValueError(f"the range of {name} must be (low, high) with low < high, got {span}")
        spans[name] = (float(span[0]), float(span[1]))
    for name, (low, high) in spans.items():
        least, most = drawing.limits(name)
        if low < least or high > most:
            raise ValueError(f"{name} must lie in [{least:g}, {most:g}], got [{low:g}, {high:g}]")
    for shape, suffix in zip(shapes, ("", "2")):
        own = {name: spans[name + suffix] for name in drawing.OWN}
        _refuse_unseen(own, spans["background"], suffix, pixels)
        if "rotation" + suffix in ranges:
            if not drawing.PERIODS[shape]:
                raise ValueError(
                    f"rotation{suffix} cannot be seen: a {shape} looks the same at every rotation"
                )
            _refuse_whole_turn(
                "rotation" + suffix, own["rotation"], drawing.PERIODS[shape], f"a {shape}", closed
            )
        if "hue" + suffix in ranges:
            _refuse_faint("hue" + suffix, own["saturation"][0] * own["brightness"][0], "gray has no hue")
            _refuse_whole_turn("hue" + suffix, own["hue"], 1.0, "the colour circle", closed)
        if "saturation" + suffix in ranges:
            _refuse_faint("saturation" + suffix, own["brightness"][0], "black has no saturation")
    if len(shapes) == 2:
        _refuse_touching(spans)


def _refuse_whole_turn(name: str, span: Span, period: float, what: str, closed: bool) -> None:
    width = span[1] - span[0]
    if width > period + _ROUNDING or (closed and width >= period - _ROUNDING):
        rule = "less than" if closed else "at most"
        raise ValueError(
            f"the range of {name} must be {rule} {period:.4g} turns wide, after which {what} looks the same, "
            f"got {width:.4g}"
        )


def _refuse_faint(name: str, strength: float, why: str) -> None:
    if strength < _SEEN - _ROUNDING:
        where = "brightness" if name.startswith("saturation") else "saturation times brightness"
        raise ValueError(f"{name} cannot be seen: {where} falls to {strength:g}, below {_SEEN:g} ({why})")


def _refuse_unseen(own: Mapping[str, Span], background: Span, suffix: str, pixels: int) -> None:
    """An object must be large enough, inside the picture, and of another colour than the background."""
    if own["size"][0] * pixels < _SMALLEST - _ROUNDING:
        raise ValueError(
            f"size{suffix} must be at least {_SMALLEST:g} pixels, got {own['size'][0]:g} of a picture of {pixels}"
        )
    for name in ("x", "y"):
        reach = max(-own[name][0], own[name][1]) + own["size"][1]
        if reach > 0.5 + _ROUNDING:
            raise ValueError(
                f"{name}{suffix} and size{suffix} must keep the object inside the picture: it reaches {reach:g} from "
                "the centre, the border lies at 0.5"
            )
    light = own["brightness"]
    apart = max(light[0] - background[1], background[0] - light[1])
    if max(apart, own["saturation"][0] * light[0]) < _SEEN - _ROUNDING:
        raise ValueError(
            f"brightness{suffix} must stay {_SEEN:g} away from the background (or saturation{suffix} times it at or "
            f"above {_SEEN:g}): the object cannot be seen where they are equal"
        )


def _refuse_touching(spans: Mapping[str, Span]) -> None:
    """Objects that may meet can hide one another, and alike ones that may change places show no order."""
    gap = max(max(spans[f"{a}2"][0] - spans[a][1], spans[a][0] - spans[f"{a}2"][1]) for a in "xy")
    if gap < spans["size"][1] + spans["size2"][1] - _ROUNDING:
        raise ValueError(
            f"the objects must stay apart, so that neither hides the other: their centres come within {gap:g} in x "
            f"and y, their sizes are up to {spans['size'][1]:g} and {spans['size2'][1]:g}"
        )
