"""Scenes as processes g: latents on a sphere or in a box to pictures, one latent for each named parameter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from viewspan import checks
from viewspan.images.scenes import drawing, symmetries

_RANGES = {
    "x": (-0.22, 0.22), "y": (-0.22, 0.22), "size": (0.12, 0.24), "saturation": (0.4, 1.0), "brightness": (0.5, 1.0),
    "background": (0.0, 0.4),
}  # fmt: skip
_RANGES_PAIR = {
    "x": (-0.31, -0.21), "x2": (0.21, 0.31), "y": (-0.3, 0.3), "y2": (-0.3, 0.3), "size": (0.1, 0.18),
    "size2": (0.1, 0.18),
}  # fmt: skip
_ARC = 0.75  # of a period: how far an angle goes where its two ends must not meet


class Scene(nn.Module):
    """Latents to pictures, one latent for each named parameter; `SphereScene` and `BoxScene` say from which latents.

    Args:
        factors: the parameters that the latents move, in the order of the latents; with ranges (low, high) if a
            mapping, otherwise over ranges in which the objects stay apart and inside the picture.
        shapes: of the first and perhaps a second object.
        size: side of the square pictures, pixels >= 8.
        fixed: values of further parameters; the rest stay as `resting` has them.

    Attributes:
        dim: number of latents d.
        out_dim: numbers in a picture, 3·size².
        factors: names of the parameters that move, in order.
        ranges: their (low, high) by name.

    Raises:
        ValueError: for an unknown name, or where two latents would show one picture: the parameter and the reason
            are named.
    """

    _closed: bool  # whether both ends of a range are latents
    _fewest: int  # latents

    def __init__(
        self,
        factors: Sequence[str] | Mapping[str, tuple[float, float]],
        *,
        shapes: Sequence[str] = ("wedge",),
        size: int = 32,
        fixed: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(factors, str):
            raise TypeError(f"factors must be a sequence of names, got {factors!r}")
        self.shapes = drawing.check_shapes(shapes)
        self.size = checks.integer("size", size, low=8)
        self.factors = tuple(factors)
        self.fixed = {**drawing.resting(self.shapes), **(fixed or {})}
        for argument, names in (("factors", self.factors), ("fixed", fixed or {})):
            for name in names:
                checks.choice(argument, name, drawing.NAMES)
        for name in self.factors:
            if self.factors.count(name) > 1 or name in (fixed or {}):
                raise ValueError(
                    f"factors must name each parameter once and none that is fixed, got {name!r}"
                )
        given = factors if isinstance(factors, Mapping) else {name: self._range(name) for name in factors}
        self.ranges: dict[str, tuple[float, float]] = dict(given)
        symmetries.refuse_ambiguous(
            self.fixed, self.ranges, self.shapes, pixels=self.size, closed=self._closed
        )
        self.dim = checks.integer("the number of factors", len(self.ranges), low=self._fewest)
        self.out_dim = 3 * self.size**2

    def _range(self, name: str) -> tuple[float, float]:
        """The range of a parameter for which none is given."""
        own = name.removesuffix("2")
        if own in ("rotation", "hue"):
            shape = self.shapes[-1 if name.endswith("2") else 0]
            period = 1.0 if own == "hue" else drawing.PERIODS[shape] or 1.0
            return 0.0, period * (_ARC if self._closed else 1.0)
        pair = _RANGES_PAIR if len(self.shapes) == 2 else {}
        return pair.get(name) or _RANGES[own]

    @abstractmethod
    def _shares(self, latents: Tensor) -> Tensor:
        """Where in its range each parameter lies, in [0, 1]; shape (n, d)."""

    def values(self, latents: Tensor) -> dict[str, Tensor]:
        """The parameters that move, by name: (n, d) latents to numbers of shape (n,) each."""
        shares = self._shares(checks.rows("latents", latents, dim=self.dim, min_rows=0))
        low, high = torch.tensor([*self.ranges.values()], dtype=shares.dtype, device=shares.device).unbind(1)
        return dict(zip(self.factors, (low + shares * (high - low)).unbind(1)))

    def images(self, latents: Tensor) -> Tensor:
        """RGB in [0, 1], (n, d) to (n, 3, size, size)."""
        return self.render(self.values(latents))

    def render(self, values: drawing.Values) -> Tensor:
        """`render` with this scene's shapes, size and fixed values; any parameter may be given."""
        return drawing.render({**self.fixed, **values}, shapes=self.shapes, size=self.size)

    def forward(self, latents: Tensor) -> Tensor:
        """The pictures as rows, (n, d) to (n, 3·size²)."""
        return self.images(latents).flatten(1)


class SphereScene(Scene):
    """Latents on S^(d-1): coordinate z_i in [−1, 1] moves parameter i over its range.

    A smooth embedding of the sphere in pictures; a pair law that holds the leading coordinates holds the parameters
    named first. An angle goes over less than its period (three quarters unless said), since z_i = ±1 must differ.

    Args: as `Scene`.

    Example:
        >>> from viewspan import sphere
        >>> g = SphereScene(["hue", "x", "y"])
        >>> z = sphere.uniform(4, 3, generator=torch.Generator().manual_seed(0))
        >>> g(z).shape, g.images(z).shape, list(g.values(z))
        (torch.Size([4, 3072]), torch.Size([4, 3, 32, 32]), ['hue', 'x', 'y'])
    """

    _closed = True
    _fewest = 2

    def _shares(self, latents: Tensor) -> Tensor:
        return (checks.unit_rows("latents", latents) + 1) / 2 if len(latents) else latents


class BoxScene(Scene):
    """Latents in [0, 1)^d: latent i moves parameter i over its range; an angle over its whole period is a circle.

    So the latents are a box, a torus, or a product of both.

    Args: as `Scene`.

    Example:
        >>> g = BoxScene(["rotation", "size"], shapes=["bar"])
        >>> t = g.uniform(5, generator=torch.Generator().manual_seed(0))
        >>> g.images(t).shape, bool((g.values(t)["rotation"] < 1 / 2).all())
        (torch.Size([5, 3, 32, 32]), True)
    """

    _closed = False
    _fewest = 1

    def uniform(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n independent uniform latents on the generator's device, shape (n, d)."""
        checks.integer("n", n, low=0)
        return torch.rand(n, self.dim, generator=checks.generator(generator), device=generator.device)

    def _shares(self, latents: Tensor) -> Tensor:
        outside = ((latents < 0) | (latents > 1)).any(1)
        if bool(outside.any()):
            row = int(outside.nonzero()[0, 0])
            raise ValueError(f"latents row {row} must lie in [0, 1], got {latents[row].tolist()}")
        return latents
