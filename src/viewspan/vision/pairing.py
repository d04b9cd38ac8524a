"""Which views of an image meet in the loss: two views, two levels, or the published same-anchor pairs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from viewspan import checks
from viewspan.losses import LossParts

Draw = Callable[[int], Tensor]  # view number -> views of the batch, (n, C, h, w) in [0, 1]
Near = Callable[
    [Tensor, int, float, int], Tensor
]  # views, view number, strength, shift -> views a little moved


class Pairing(Protocol):
    """How the views of a batch of images are drawn and handed to the loss."""

    @property
    def pairs(self) -> int:
        """Positive pairs that one image gives."""

    @property
    def rows(self) -> int:
        """Encoder rows that one image costs."""

    @property
    def fewest(self) -> int:
        """Images that a step needs at least, for every anchor to meet a negative."""

    def views(self, draw: Draw, clean: Callable[[], Tensor], near: Near) -> Tensor:
        """Encoder rows of each image, (n, k, C, h, w).

        Args:
            draw: gives view j of the batch.
            clean: gives the images themselves at the size of the views.
            near: gives a small perturbation of view j: (views, j, strength, shift) -> views.
        """

    def loss(self, loss: nn.Module, rows: Tensor) -> LossParts:
        """The loss of embeddings (n, k, d)."""


@dataclass(frozen=True)
class TwoViews:
    """Two views of an image are a pair.

    Attributes:
        clean: leave the first of the two as it is, as the published code does.
    """

    clean: bool = False

    @property
    def pairs(self) -> int:
        return 1

    @property
    def rows(self) -> int:
        return 2

    @property
    def fewest(self) -> int:
        return 2

    def views(self, draw: Draw, clean: Callable[[], Tensor], near: Near) -> Tensor:
        return torch.stack([clean() if self.clean else draw(0), draw(1)], dim=1)

    def loss(self, loss: Any, rows: Tensor) -> LossParts:
        return loss.parts(rows[:, 0], rows[:, 1])


@dataclass(frozen=True)
class TwoLevel:
    """Base views of one image are the group; the positive is a small perturbation of the base view.

    This is the support-corrected loss for images (Theorem 4.6 of arXiv 2606.04280 asks for negatives from the
    anchor's own support): negatives are the positives of the other base views of the same image, whose law is not
    the positive's, so that a constant encoder is not optimal.

    Attributes:
        base_views: V base views of an image, >= 2; an image costs 2 V encoder rows.
        strength: of the perturbation's colour jitter as a share of the view pipeline's, in [0, 1].
        shift: largest shift of the perturbation, pixels, >= 0.
    """

    base_views: int = 8
    strength: float = 0.1
    shift: int = 1

    def __post_init__(self) -> None:
        checks.integer("base_views", self.base_views, low=2)
        checks.number("strength", self.strength, low=0, high=1)
        checks.integer("shift", self.shift, low=0)

    @property
    def pairs(self) -> int:
        return self.base_views

    @property
    def rows(self) -> int:
        return 2 * self.base_views

    @property
    def fewest(self) -> int:
        return 1

    def views(self, draw: Draw, clean: Callable[[], Tensor], near: Near) -> Tensor:
        base = [draw(j) for j in range(self.base_views)]
        moved = [near(b, self.base_views + j, self.strength, self.shift) for j, b in enumerate(base)]
        return torch.stack(base + moved, dim=1)

    def loss(self, loss: Any, rows: Tensor) -> LossParts:
        n, v = len(rows), self.base_views
        group = torch.arange(n, device=rows.device).repeat_interleave(v)
        return loss.parts(rows[:, :v].flatten(0, 1), rows[:, v:].flatten(0, 1), group=group)


@dataclass(frozen=True)
class SameAnchor:
    """Algorithm 14 as published: positive and negatives are all views of the anchor's image.

    Positive and negatives then have one law, so their scores are exchangeable, E L >= log(M + 1), and a constant
    encoder attains it: nothing can be learned. `TwoLevel` is the version that trains.

    Attributes:
        negatives: M, views of the image that serve as negatives; an image costs M + 2 encoder rows.
        clean: leave the anchor as it is.
    """

    negatives: int = 512
    clean: bool = False

    def __post_init__(self) -> None:
        checks.integer("negatives", self.negatives, low=1)
        warnings.warn(
            "same-anchor pairs draw positive and negatives by one law: the loss cannot fall below log(M + 1), "
            "which a constant encoder attains; use the corrected loss on two levels to learn from one image's views",
            checks.ViewspanWarning,
            stacklevel=3,
        )

    @property
    def pairs(self) -> int:
        return 1

    @property
    def rows(self) -> int:
        return self.negatives + 2

    @property
    def fewest(self) -> int:
        return 1

    def views(self, draw: Draw, clean: Callable[[], Tensor], near: Near) -> Tensor:
        anchor = clean() if self.clean else draw(0)
        return torch.stack([anchor, *(draw(j) for j in range(1, self.negatives + 2))], dim=1)

    def loss(self, loss: Any, rows: Tensor) -> LossParts:
        return loss.parts(rows[:, 0], rows[:, 1], rows[:, 2:])
