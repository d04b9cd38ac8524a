"""Data whose right audit is known: pairs that hold exactly m factors, and rendered shapes.

``python -m viewspan.testing shapes DIR`` and ``… recordings FILE.csv`` write small examples to disk.
"""

from __future__ import annotations

import argparse
import colorsys
import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from viewspan import checks, pairs, sphere

Floats = npt.NDArray[np.float64]

SHAPE_FACTORS = ("x", "y", "scale", "hue", "rotation")
MEASURED_AS = {
    "x": "horizontal_centre",
    "y": "vertical_centre",
    "scale": "spread",
    "hue": "hue",
    "rotation": "orientation",
}
"""The measured image factor that shows each planted one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldPairs:
    """Views of points on a sphere, with exactly `n_held` coordinates held.

    Attributes:
        views: what is observed, shape (n, k, D).
        latents: what it comes from, unit vectors, shape (n, k, d); the first `n_held` coordinates are held.
        n_held: m.
        noise: standard deviation of the observation noise of each coordinate of `views`, shape (D,).
        support_dim: dimension of the set of views of one anchor (noise aside).
    """

    views: Floats
    latents: Floats
    n_held: int
    noise: Floats
    support_dim: int


def held_pairs(
    n: int,
    *,
    dim: int,
    n_held: int,
    kappa: float,
    n_views: int = 2,
    anchor_first: bool = True,
    convention: pairs.Convention = "ambient",
    process: Callable[[Tensor], Tensor] | None = None,
    noise: float = 0.0,
    anchors: Tensor | None = None,
    seed: int = 0,
) -> HeldPairs:
    """Views of uniform anchors on S^(dim−1) that hold the first `n_held` coordinates and move the others.

    Args:
        n: number of anchors, >= 1.
        dim: d >= 2.
        n_held: m in 0..d.
        kappa: concentration κ >= 0 of the moving coordinates.
        n_views: k >= 2.
        anchor_first: the anchor itself is the first view; otherwise all views are drawn from it.
        convention: of the pair law, ``ambient`` or ``subsphere``.
        process: g, a map of (N, d) tensors to (N, D); the identity if None.
        noise: standard deviation of independent noise on every view, as a share of the data's own in each
            coordinate.
        anchors: use these unit vectors, shape (n, d), instead of uniform ones.
        seed: of everything drawn here.

    Example:
        >>> data = held_pairs(5, dim=3, n_held=1, kappa=3.0)
        >>> data.views.shape, bool((data.views[:, 0, 0] == data.views[:, 1, 0]).all())
        ((5, 2, 3), True)
    """
    checks.integer("n", n, low=1)
    checks.integer("n_views", n_views, low=2)
    checks.number("noise", noise, low=0)
    generator = torch.Generator().manual_seed(seed)
    law = pairs.FixedLatents(dim=dim, kappa=kappa, n_fixed=n_held, convention=convention)
    z = (
        sphere.uniform(n, dim, generator=generator, dtype=torch.float64)
        if anchors is None
        else anchors.double()
    )
    if z.shape != (n, dim):
        raise ValueError(f"anchors must have shape ({n}, {dim}), got {tuple(z.shape)}")
    drawn = [law.sample(z, generator) for _ in range(n_views - anchor_first)]
    latents = torch.stack([z, *drawn] if anchor_first else drawn, dim=1)
    x = latents.reshape(-1, dim)
    with torch.no_grad():
        x = (x if process is None else process(x.float()).double()).reshape(n, n_views, -1)
    sd = noise * x.reshape(-1, x.shape[-1]).std(0)
    x = x + sd * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return HeldPairs(
        views=x.numpy(), latents=latents.numpy(), n_held=n_held, noise=sd.numpy(),
        support_dim=max(law.diversity.support_dim, 0),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes:
    """Rendered views of ellipses on black.

    Attributes:
        images: shape (n, k, 3, size, size), uint8.
        factors: value of each factor in each view, shape (n, k) each.
        moved: the factors that differ between the views of an anchor.
        expected: verdict on each factor by the name the image audit measures it under.
    """

    images: npt.NDArray[np.uint8]
    factors: dict[str, Floats]
    moved: frozenset[str]
    expected: dict[str, str]


def shapes(
    n: int,
    *,
    n_views: int = 8,
    moved: Collection[str] = SHAPE_FACTORS,
    size: int = 32,
    seed: int = 0,
) -> Shapes:
    """Ellipses with a position, scale, hue and rotation; the factors in `moved` are drawn anew for each view.

    Args:
        n: number of anchors, >= 1.
        n_views: views of each anchor, >= 1.
        moved: names out of x, y, scale, hue, rotation.
        size: side of the square images, pixels, >= 16.
        seed: of everything drawn here.

    Example:
        >>> data = shapes(4, n_views=2, moved=["hue"])
        >>> data.images.shape, data.expected["hue"], data.expected["orientation"]
        ((4, 2, 3, 32, 32), 'moved', 'never seen to move')
    """
    checks.integer("n", n, low=1)
    checks.integer("n_views", n_views, low=1)
    checks.integer("size", size, low=16)
    for name in moved:
        checks.choice("moved", name, SHAPE_FACTORS)
    rng = np.random.default_rng(seed)
    factors = {}
    for name in SHAPE_FACTORS:
        anchor, view = rng.random((n, 1)), rng.random((n, n_views))
        factors[name] = view if name in moved else np.repeat(anchor, n_views, axis=1)
    images = np.stack(
        [
            render(*(factors[name][i, j] for name in SHAPE_FACTORS), size=size)
            for i in range(n)
            for j in range(n_views)
        ]
    ).reshape(n, n_views, 3, size, size)
    expected = {MEASURED_AS[f]: "moved" if f in moved else "never seen to move" for f in SHAPE_FACTORS}
    return Shapes(images=images, factors=factors, moved=frozenset(moved), expected=expected)


def render(
    x: float, y: float, scale: float, hue: float, rotation: float, *, size: int = 32
) -> npt.NDArray[np.uint8]:
    """One soft ellipse on black, shape (3, size, size); all five factors in [0, 1]."""
    grid = (np.arange(size) + 0.5) / size
    dx = grid[None, :] - (0.35 + 0.3 * x)
    dy = grid[:, None] - (0.35 + 0.3 * y)
    angle = np.pi * rotation
    along, across = np.cos(angle) * dx + np.sin(angle) * dy, np.cos(angle) * dy - np.sin(angle) * dx
    width = 0.05 + 0.05 * scale
    mask = np.exp(-((along / width) ** 2 + (across / (width / 2)) ** 2) / 2)
    colour = np.array(colorsys.hsv_to_rgb(hue, 0.8, 1.0))
    return np.round(255 * colour[:, None, None] * mask).astype(np.uint8)


def recordings(
    n_sessions: int = 12,
    n_times: int = 200,
    *,
    held: Collection[int] = (0,),
    n_channels: int = 4,
    seed: int = 0,
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Channels over time in several sessions: the `held` ones are constant in a session, the others drift.

    Returns:
        Values of shape (n_sessions · n_times, n_channels) and the session of each row.
    """
    for channel in held:
        checks.integer("held", channel, low=0, high=n_channels - 1)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_sessions, 1, n_channels)).repeat(n_times, axis=1)
    for channel in range(n_channels):
        if channel in held:
            continue
        for t in range(1, n_times):
            x[:, t, channel] = 0.9 * x[:, t - 1, channel] + np.sqrt(1 - 0.81) * rng.standard_normal(
                n_sessions
            )
    return x.reshape(-1, n_channels), np.repeat(np.arange(n_sessions), n_times)


def write_shapes(folder: Path, n: int = 200, *, seed: int = 0) -> None:
    """A folder of n PNG files, one shape each."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    data = shapes(n, n_views=1, seed=seed)
    for i, image in enumerate(data.images[:, 0]):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"shape_{i:04d}.png")


def write_recordings(file: Path, n_sessions: int = 12, *, seed: int = 0) -> None:
    """A CSV with a session column and four channels; `ch0` is held in a session."""
    values, session = recordings(n_sessions, seed=seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    header = ",".join(["session", *(f"ch{j}" for j in range(values.shape[1]))])
    rows = (",".join([f"s{s:02d}", *(f"{v:.6g}" for v in row)]) for s, row in zip(session, values))
    file.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def write_visits(file: Path, n_patients: int = 60, *, seed: int = 0) -> None:
    """A CSV of paired scans: side and lesion size are held between a patient's two scans, brightness moves."""
    rng = np.random.default_rng(seed)
    lines = ["patient,side_a,side_b,lesion_mm_a,lesion_mm_b,brightness_a,brightness_b"]
    for patient in range(n_patients):
        side, size = ("left", "right")[rng.integers(2)], rng.uniform(3, 30)
        for _ in range(2):
            a, b = rng.normal(100, 15, 2)
            lines.append(f"p{patient:03d},{side},{side},{size:.2f},{size:.2f},{a:.2f},{b:.2f}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Write example data: shapes DIR, recordings FILE.csv or visits FILE.csv."""
    parser = argparse.ArgumentParser(prog="python -m viewspan.testing", description=main.__doc__)
    parser.add_argument("kind", choices=("shapes", "recordings", "visits"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--n", type=int, help="number of shapes [200], sessions [12] or patients [60]")
    parser.add_argument("--seed", type=int, default=0)
    given: Any = parser.parse_args(arguments)
    write: Any = {"shapes": write_shapes, "recordings": write_recordings, "visits": write_visits}[given.kind]
    write(given.path, *([] if given.n is None else [given.n]), seed=given.seed)


if __name__ == "__main__":
    main()
