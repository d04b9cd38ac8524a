"""What every operation promises, alone and in any order: images in [0, 1] come back in [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from viewspan.images import operations, views
from viewspan.images.draws import Draws
from viewspan.images.pipeline import ViewPipeline

STRONG: dict[str, Any] = {
    "jitter": operations.Jitter(brightness=3.0, contrast=3.0, saturation=3.0, hue=0.5, p=1.0),
    "crop": operations.Crop(area=(0.01, 1.0), size=5),
    "flip": operations.Flip(p=1.0),
    "grayscale": operations.Grayscale(p=1.0),
    "blur": operations.Blur(kernel=5, sigma=(0.01, 30.0)),
    "erase": operations.Erase(value=1.0),
    "shift": operations.Shift(pixels=20),
}


def pictures(kind: str, n: int, channels: int, side: int, seed: int) -> torch.Tensor:
    """Float images in [0, 1]; those at the ends of the range are where rounding leaves it."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n, channels, side, side)
    if kind == "white":
        return torch.ones(shape)
    if kind == "edges":
        return torch.randint(0, 2, shape, generator=generator).float()
    if kind == "bytes":
        return torch.randint(0, 256, shape, generator=generator).float() / 255
    return torch.rand(shape, generator=generator)


def test_every_operation_is_tried() -> None:
    assert STRONG.keys() == views.OPERATIONS.keys()


@given(
    steps=st.permutations(sorted(views.OPERATIONS)),
    strong=st.sets(st.sampled_from(sorted(views.OPERATIONS))),
    kind=st.sampled_from(("white", "edges", "bytes", "uniform")),
    channels=st.sampled_from((1, 3)),
    side=st.integers(3, 17),
    seed=st.integers(0, 2**32),
)
@example(["blur"], set(), "white", 3, 8, 0)  # 1.000000238 before
@settings(max_examples=40)
def test_views_stay_in_range_in_any_order(
    steps: list[str], strong: set[str], kind: str, channels: int, side: int, seed: int
) -> None:
    made = tuple((name, STRONG[name] if name in strong else views.OPERATIONS[name]()) for name in steps)
    batch = pictures(kind, 64, channels, side, seed % 1000)
    found = ViewPipeline("own", made)(batch, seed=seed, epoch=0, indices=range(64), view=0)
    assert bool(torch.isfinite(found).all())
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


@pytest.mark.parametrize("name", views.OPERATIONS)
@pytest.mark.parametrize("kind", ["white", "edges", "bytes", "uniform"])
@pytest.mark.parametrize("channels", [1, 3])
def test_each_operation_stays_in_range(name: str, kind: str, channels: int) -> None:
    batch = pictures(kind, 512, channels, 8, 0)
    for operation in (views.OPERATIONS[name](), STRONG[name]):
        found = operation(batch, Draws.of(seed=0, epoch=0, view=0, indices=range(512)), name)
        assert float(found.min()) >= 0
        assert float(found.max()) <= 1


@pytest.mark.parametrize("regime", views.REGIMES)
def test_the_regimes_stay_in_range(regime: str) -> None:
    for kind in ("white", "edges"):
        for order in ("fixed", "random"):
            pipeline = views.regime(regime, order=order)
            found = pipeline(pictures(kind, 512, 3, 8, 0), seed=1, epoch=0, indices=range(512), view=0)
            assert (float(found.min()) >= 0, float(found.max()) <= 1) == (True, True)


def test_a_crop_or_a_blur_of_normalised_images_keeps_their_scale() -> None:
    batch = torch.from_numpy(np.random.default_rng(0).normal(0, 5, (8, 3, 8, 8)).astype(np.float32))
    draws = Draws.of(seed=0, epoch=0, view=0, indices=range(8))
    for operation in (operations.Crop(area=(0.9, 1.0)), operations.Blur()):
        found = operation(batch, draws, "one")
        assert float(found.min()) < -2
        assert float(found.max()) > 2
        assert bool((found.flatten(1).amax(1) <= batch.flatten(1).amax(1)).all())
