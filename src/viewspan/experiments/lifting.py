"""Room for a fold to open: extra output coordinates of an encoder that fade while it trains.

A map that folds the sphere onto a half of it is a local minimum of contrastive losses: to unfold inside the sphere the
two sheets would have to pass through each other. With more coordinates they go around; with those gone the sheets lie
apart. No latents are needed, and the encoder that is left is the plain one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from viewspan import checks, encoders


class Lifted(nn.Module):
    """An MLP with further output coordinates, scaled by a factor that falls from 1 to 0 over the first steps.

    Args:
        f: the encoder; it shares its weights and is left plain.
        extra: number of further coordinates >= 1.
        steps: training passes after which they are gone, >= 1.
        generator: draws their weights.

    Shapes: (n, f.in_dim) to unit vectors (n, f.out_dim + extra), or (n, f.out_dim) once they are gone and in eval mode.
    """

    def __init__(self, f: encoders.MLP, *, extra: int, steps: int, generator: torch.Generator) -> None:
        super().__init__()
        self.f = f
        self.total = checks.integer("steps", steps, low=1)
        self.passes = 0
        width = f.layers[-1].in_features
        self.further = encoders.linear(width, checks.integer("extra", extra, low=1), generator)  # type: ignore[arg-type]

    @property
    def scale(self) -> float:
        """The factor on the further coordinates, 1 at first, 0 once they are gone."""
        return max(0.0, 1 - self.passes / self.total)

    def forward(self, x: Tensor) -> Tensor:
        """Unit vectors; a pass in training mode brings the further coordinates one step closer to 0."""
        if not self.training or self.scale == 0:
            return self.f(x)
        features = self.f.layers[:-1](x)
        y = torch.cat([self.f.layers[-1](features), self.scale * self.further(features)], dim=1)
        self.passes += 1
        return functional.normalize(y.float(), dim=-1)
