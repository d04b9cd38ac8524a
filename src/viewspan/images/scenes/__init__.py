"""Rendered scenes whose latents are known: one or two objects on a plain background, thousands a second on one core.

`render` draws pictures from named parameters. `SphereScene` and `BoxScene` are processes g: latents on a sphere (the
model of arXiv 2606.04280) or in a box to pixels, one latent for each named parameter. Both refuse a scene in which two
latents show the same picture: a disc has no rotation, a square only a quarter turn of it, gray no hue.
"""

from __future__ import annotations

from viewspan.images.scenes.domains import BoxScene, Scene, SphereScene
from viewspan.images.scenes.drawing import DESCRIPTIONS, NAMES, PERIODS, render, resting

__all__ = ["DESCRIPTIONS", "NAMES", "PERIODS", "BoxScene", "Scene", "SphereScene", "render", "resting"]
