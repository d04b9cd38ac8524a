"""Scenes: what is drawn is what is named, latents and pictures determine one another, symmetries are refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from viewspan import processes, sphere
from viewspan.images import scenes
from viewspan.images.scenes import BoxScene, SphereScene


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SPHERES = {
    "hue, x, y": lambda: SphereScene(["hue", "x", "y"]),
    "a disc": lambda: SphereScene(["x", "y", "size"], shapes=["disc"]),
    "everything": lambda: SphereScene(["x", "y", "size", "rotation", "hue", "brightness", "background"]),
    "saturation of a turning square": lambda: SphereScene(["rotation", "saturation"], shapes=["square"]),
    "64 pixels": lambda: SphereScene(["x", "y", "rotation"], shapes=["triangle"], size=64),
    "two objects": lambda: SphereScene(["x", "y2", "rotation2", "hue", "hue2"], shapes=["disc", "bar"]),
    "two alike": lambda: SphereScene(["x", "y", "x2", "y2"], shapes=["disc", "disc"], fixed={"hue2": 0.0}),
    "own ranges": lambda: SphereScene({"hue": (0.2, 0.5), "size": (0.1, 0.3)}, fixed={"background": 0.9}),
}
BOXES = {
    "torus": lambda: BoxScene(["hue", "rotation"], shapes=["wedge"]),
    "torus of a bar": lambda: BoxScene(["hue", "rotation"], shapes=["bar"]),
    "box": lambda: BoxScene(["x", "y", "size"], shapes=["square"]),
    "both": lambda: BoxScene(["rotation", "x", "brightness"], shapes=["triangle"]),
    "two objects": lambda: BoxScene(["x", "y2", "rotation2", "hue"], shapes=["disc", "wedge"]),
}
SCENES = {**SPHERES, **{f"box: {name}": make for name, make in BOXES.items()}}
every_scene = pytest.mark.parametrize("make", SCENES.values(), ids=SCENES.keys())
every_shape = pytest.mark.parametrize("shape", scenes.PERIODS)


def latents(g: scenes.Scene, n: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    if isinstance(g, SphereScene):
        return sphere.uniform(n, g.dim, generator=seeded(seed), dtype=dtype)
    return g.uniform(n, generator=seeded(seed)).to(dtype)


def whole_period(g: scenes.Scene, name: str) -> bool:
    """Whether a latent goes around a circle."""
    own = name.removesuffix("2")
    period = 1.0 if own == "hue" else scenes.PERIODS[g.shapes[-1 if name.endswith("2") else 0]]
    low, high = g.ranges[name]
    return own in ("hue", "rotation") and high - low == pytest.approx(period)


def apart(g: scenes.Scene, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distances between latents, around the circle for an angle that goes over its whole period, (n, m)."""
    gap = (a[:, None] - b[None]).abs()
    for i, name in enumerate(g.factors):
        if whole_period(g, name):
            gap[..., i] = torch.minimum(gap[..., i], 1 - gap[..., i])
    return gap.norm(dim=-1)


@pytest.mark.parametrize("name", [name for name, make in SCENES.items() if make().dim <= 3])
def test_near_pictures_have_near_latents(name):
    g = SCENES[name]()
    z = latents(g, 1000)
    pictures = g(z)
    asked, kept = slice(0, 200), slice(200, None)
    nearest = torch.cdist(pictures[asked], pictures[kept]).argmin(1)
    distances = apart(g, z[asked], z[kept])
    found = distances.gather(1, nearest[:, None])[:, 0]
    assert float(found.median()) < 0.2 * float(distances.median())
    assert float(found.max()) < 0.6 * float(distances.median())


def likest_others(g: scenes.Scene, *, far: float = 0.3, n: int = 16) -> float:
    """The smallest distance of two pictures found by a search over latents at least `far` apart."""
    rng = seeded(2)
    z = latents(g, n, dtype=torch.float32)
    tried = latents(g, 200, seed=3, dtype=torch.float32)
    pictures = g(z)
    gaps = torch.cdist(pictures, g(tried)).masked_fill(apart(g, z, tried) < far, math.inf)
    best, at = gaps.min(1)
    other = tried[at]
    for step in torch.logspace(-0.5, -3, 40):
        noise = torch.randn(n, 12, g.dim, generator=rng)
        around = other[:, None] + step * noise
        around = around / around.norm(dim=-1, keepdim=True) if isinstance(g, SphereScene) else around % 1
        gap = (g(around.flatten(0, 1)).reshape(n, 12, -1) - pictures[:, None]).norm(dim=-1)
        near = torch.stack([apart(g, z[i : i + 1], around[i])[0] for i in range(n)]) < far
        found, at = gap.masked_fill(near, math.inf).min(1)
        better = found < best
        best = torch.where(better, found, best)
        other = torch.where(better[:, None], around[torch.arange(n), at], other)
    return float(best.min())


@every_scene
def test_latents_that_differ_show_different_pictures(make):
    assert likest_others(make()) > 0.15


@pytest.mark.parametrize(
    "make",
    [
        lambda: SphereScene({"x": (-0.2, 0.2), "y": (-0.2, 0.2), "rotation": (0, 0.5)}, shapes=["square"]),
        lambda: BoxScene({"x": (-0.2, 0.2), "rotation": (0, 1.0)}, shapes=["bar"]),
        lambda: SphereScene({"rotation": (0, 0.7), "x": (-0.2, 0.2)}, shapes=["disc"]),
        lambda: SphereScene({"hue": (0, 0.7), "x": (-0.2, 0.2)}, fixed={"saturation": 0.0}),
        lambda: SphereScene({"x": (-0.2, 0.2), "hue": (0, 0.7), "x2": (-0.2, 0.2), "hue2": (0, 0.7)},
                            shapes=["disc", "disc"]),
    ],
    ids=["quarter turns", "half turns", "a disc turns", "hue of gray", "two that change places"],
)  # fmt: skip
def test_the_search_finds_the_pairs_that_are_refused(make, monkeypatch):
    with pytest.raises(ValueError, match=r"turns wide|cannot be seen|stay apart"):
        make()
    monkeypatch.setattr(scenes.symmetries, "refuse_ambiguous", lambda *_, **__: None)
    monkeypatch.setattr(f"{__name__}.whole_period", lambda g, name: False)
    assert likest_others(make()) < 0.1


@every_scene
@pytest.mark.parametrize("step", [1e-2, 1e-3])
def test_small_moves_of_every_latent_show(make, step):
    g = make()
    z = latents(g, 300)
    z = z * 0.9
    for i in range(g.dim):
        moved = z.clone()
        moved[:, i] += step
        change = (
            (g.render(unchecked_values(g, moved)) - g.render(unchecked_values(g, z))).flatten(1).norm(dim=1)
        )
        assert float(change.min()) > 0.2 * step, g.factors[i]


def unchecked_values(g: scenes.Scene, latents: torch.Tensor) -> dict[str, torch.Tensor]:
    """The map from latents to parameters, without the check that they lie on a sphere."""
    shares = (latents + 1) / 2 if isinstance(g, SphereScene) else latents
    return {name: low + (high - low) * shares[:, i] for i, (name, (low, high)) in enumerate(g.ranges.items())}


@every_scene
def test_a_scene_is_a_process(make):
    before = torch.get_rng_state()
    g, again = make(), make()
    z = latents(g, 20)
    whole = g(z)
    assert isinstance(g, processes.Process)
    assert isinstance(g, nn.Module)
    assert not list(g.parameters())
    assert whole.shape == (20, g.out_dim)
    assert torch.equal(whole, again(z))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(whole, g.images(z).flatten(1))
    for i in (0, 7, 19):
        torch.testing.assert_close(whole[i : i + 1], g(z[i : i + 1]), atol=1e-12, rtol=0)
    assert g(z[:0]).shape == (0, g.out_dim)
    torch.testing.assert_close(g(z.float()).double(), whole, atol=2e-4, rtol=0)
    assert g(z.float()).dtype == torch.float32
    assert float(whole.min()) >= 0
    assert float(whole.max()) <= 1


@every_scene
def test_latents_are_the_named_parameters(make):
    g = make()
    z = latents(g, 50)
    values = g.values(z)
    assert tuple(values) == g.factors
    for i, (name, (low, high)) in enumerate(g.ranges.items()):
        share = (z[:, i] + 1) / 2 if isinstance(g, SphereScene) else z[:, i]
        torch.testing.assert_close(values[name], low + (high - low) * share)
    own = {name: values[name] for name in g.factors}
    drawn = scenes.render({**g.fixed, **own}, shapes=g.shapes, size=g.size)
    torch.testing.assert_close(drawn.flatten(1), g(z))


@every_shape
def test_each_shape_has_its_period_and_no_shorter_one(shape):
    period = scenes.PERIODS[shape]
    turns = torch.linspace(0, 1, 17, dtype=torch.float64)
    at_rest = scenes.render({"rotation": turns}, shapes=[shape])
    if period == 0:
        torch.testing.assert_close(at_rest, at_rest[:1].expand_as(at_rest))
        return
    again = scenes.render({"rotation": turns + period}, shapes=[shape])
    torch.testing.assert_close(again, at_rest, atol=1e-9, rtol=0)
    for share in (1 / 2, 1 / 3, 2 / 3):
        other = scenes.render({"rotation": turns + share * period}, shapes=[shape])
        assert float((other - at_rest).flatten(1).norm(dim=1).min()) > 0.5


@every_shape
def test_position_and_size_are_what_they_say(shape):
    x, y, size = (torch.tensor(v, dtype=torch.float64) for v in ([-0.1, 0.17], [0.2, -0.05], [0.2, 0.15]))
    drawn = scenes.render(
        {"x": x, "y": y, "size": size, "rotation": 0.1, "background": 0.0}, shapes=[shape], size=64
    )
    seen = drawn[:, 0] / drawn[:, 0].flatten(1).amax(1)[:, None, None]
    grid = (torch.arange(64, dtype=torch.float64) + 0.5) / 64 - 0.5
    mass = seen.sum((1, 2))
    torch.testing.assert_close((seen.sum(1) @ grid) / mass, x, atol=2e-3, rtol=0)
    torch.testing.assert_close((seen.sum(2) @ grid) / mass, y, atol=2e-3, rtol=0)
    reach = (
        (grid[None, None] - x[:, None, None]) ** 2 + (grid[None, :, None] - y[:, None, None]) ** 2
    ).sqrt()
    assert bool(((reach * (seen > 0.5)).amax((1, 2)) <= size + 1 / 64).all())
    assert bool(((reach * (seen > 0.02)).amax((1, 2)) >= size - 2 / 64).all())
    # area grows with the square of the size
    assert float(mass[0] / mass[1]) == pytest.approx((0.2 / 0.15) ** 2, rel=0.03)
    if shape == "disc":
        torch.testing.assert_close(mass / 64**2, math.pi * size**2, rtol=5e-3, atol=0)


def test_a_square_at_rest_covers_each_pixel_by_the_share_it_says():
    half = 0.15 / math.sqrt(2)
    drawn = scenes.render(
        {"size": 0.15, "x": 0.013, "saturation": 0.0, "brightness": 1.0, "background": 0.0},
        shapes=["square"],
        size=16,
    )[0, 0]
    edges = torch.arange(17) / 16 - 0.5

    def share(centre: float) -> torch.Tensor:
        low, high = edges[:-1].clamp_min(centre - half), edges[1:].clamp_max(centre + half)
        return (high - low).clamp_min(0) * 16

    exact = share(0.0)[:, None] * share(0.013)[None, :]
    inner = torch.minimum(share(0.0)[:, None], share(0.013)[None, :]) == exact  # corners are rounded
    torch.testing.assert_close(drawn[inner], exact[inner], atol=1e-5, rtol=0)
    assert float((drawn - exact).abs().max()) < 0.25


def test_colours_are_those_of_the_standard_library():
    import colorsys

    hue, s, v = torch.rand(3, 200, generator=seeded())
    drawn = scenes.render(
        {"hue": hue, "saturation": s, "brightness": v, "size": 0.4}, shapes=["disc"], size=8
    )
    expected = torch.tensor([colorsys.hsv_to_rgb(*map(float, row)) for row in zip(hue, s, v)])
    torch.testing.assert_close(drawn[:, :, 4, 4], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(drawn[:, :, 0, 0], torch.full((200, 3), 0.2))


def test_the_second_object_lies_in_front_and_moves_alone():
    both = scenes.render({"x": 0.0, "x2": 0.0, "size2": 0.1, "hue2": 0.5}, shapes=["disc", "disc"])
    alone = scenes.render({"hue": 0.5}, shapes=["disc"])
    torch.testing.assert_close(both[:, :, 16, 16], alone[:, :, 16, 16])
    g = SphereScene(["y2", "hue2"], shapes=["wedge", "bar"])
    pictures = g.images(latents(g, 40))
    left, right = pictures[..., :16], pictures[..., 16:]
    assert float((left - left[:1]).abs().max()) == 0
    assert float((right - right[:1]).abs().max()) > 0.1


def test_scalars_draw_one_picture_and_what_is_not_named_rests():
    one = scenes.render({})
    assert one.shape == (1, 3, 32, 32)
    assert one.dtype == torch.float32
    torch.testing.assert_close(scenes.render(scenes.resting()), one)
    torch.testing.assert_close(scenes.render({"hue": 1.0, "rotation": -1.0}), one, atol=1e-5, rtol=0)
    double = scenes.render({"x": torch.zeros(2), "y": torch.zeros(2, dtype=torch.float64)})
    assert double.dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: SphereScene(["rotation", "x"], shapes=["disc"]), "rotation cannot be seen: a disc looks the same"),
        (lambda: SphereScene({"rotation": (0, 0.25), "x": (0, 0.1)}, shapes=["square"]), "less than 0.25 turns wide"),
        (lambda: BoxScene({"rotation": (0, 0.3)}, shapes=["square"]), "at most 0.25 turns wide, after which a square"),
        (lambda: SphereScene({"hue": (0, 1.0), "x": (0, 0.1)}), "range of hue must be less than 1 turns"),
        (lambda: SphereScene(["hue", "x"], fixed={"saturation": 0.0}), "hue cannot be seen: .*gray has no hue"),
        (lambda: SphereScene({"hue": (0, 0.5), "brightness": (0.3, 1)}, fixed={"saturation": 0.3}), "hue cannot be seen"),
        (lambda: SphereScene({"saturation": (0, 1), "brightness": (0.05, 1)}, fixed={"background": 0.0}), "brightness"),
        (lambda: SphereScene({"saturation": (0, 1), "x": (0, 0.1)}, fixed={"brightness": 0.05, "background": 0.9}),
         "saturation cannot be seen: brightness falls to 0.05"),
        (lambda: SphereScene({"brightness": (0, 1), "x": (0, 0.1)}, fixed={"saturation": 0.1}), "away from the background"),
        (lambda: SphereScene({"x": (-0.4, 0.4), "y": (0, 0.1)}), "x and size must keep the object inside"),
        (lambda: SphereScene({"size": (0.01, 0.1), "x": (0, 0.1)}), "size must be at least 1.5 pixels"),
        (lambda: SphereScene({"x": (-0.3, 0.3), "y": (0, 0.1)}, shapes=["disc", "bar"]), "must stay apart"),
        (lambda: SphereScene(["x", "x2"]), "'x2' needs a second object"),
        (lambda: SphereScene(["x", "x"]), "each parameter once"),
        (lambda: SphereScene(["x", "y"], fixed={"x": 0.1}), "none that is fixed, got 'x'"),
        (lambda: SphereScene(["x", "colour"]), "factors must be one of"),
        (lambda: SphereScene(["x", "y"], fixed={"colour": 1.0}), "fixed must be one of"),
        (lambda: SphereScene({"x": (0.1, 0.1), "y": (0, 0.1)}), "low < high"),
        (lambda: SphereScene({"x": (0, math.nan), "y": (0, 0.1)}), "low < high"),
        (lambda: SphereScene({"brightness": (0.5, 1.5), "y": (0, 0.1)}), r"brightness must lie in \[0, 1\]"),
        (lambda: SphereScene(["x", "y"], shapes=["star"]), "shapes must be one of"),
        (lambda: SphereScene(["x", "y"], shapes=["disc"] * 3), "one or two names"),
        (lambda: SphereScene(["x"]), "at least 2"),
        (lambda: BoxScene([]), "at least 1"),
        (lambda: SphereScene(["x", "y"], size=4), "size must be at least 8"),
        (lambda: SphereScene(["x", "y"])(torch.ones(1, 2)), "latents row 0 must have length 1|must have length 1"),
        (lambda: SphereScene(["x", "y"])(torch.eye(3)), r"latents must have shape \(n, 2\)"),
        (lambda: BoxScene(["x", "y"])(torch.tensor([[0.5, 0.5], [0.5, 1.5]])), "latents row 1 must lie in"),
        (lambda: scenes.render({"x2": 0.1}), "values must be named out of"),
        (lambda: scenes.render({"x": torch.zeros(2), "y": torch.zeros(3)}), "share one length"),
        (lambda: scenes.render({"x": torch.zeros(2, 2)}), "a number or of shape"),
        (lambda: scenes.render({"brightness": 1.5}), r"brightness must be finite and in \[0, 1\]"),
        (lambda: scenes.render({"x": math.nan}), "x must be finite"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_apart_or_drawn_is_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_a_single_name_is_not_a_list_of_letters():
    with pytest.raises(TypeError, match="sequence of names"):
        SphereScene("xy")
