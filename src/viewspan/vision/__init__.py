"""Contrastive training on images: encoders, the training loop, checkpoints, and the readouts that judge a run."""

from __future__ import annotations

from viewspan.vision.backbones import Encoder, mlp, resnet18, vit
from viewspan.vision.pairing import SameAnchor, TwoLevel, TwoViews
from viewspan.vision.run_folder import load_encoders
from viewspan.vision.signals import Interrupted
from viewspan.vision.simclr import TrainRun, train

__all__ = [
    "Encoder",
    "Interrupted",
    "SameAnchor",
    "TrainRun",
    "TwoLevel",
    "TwoViews",
    "load_encoders",
    "mlp",
    "resnet18",
    "train",
    "vit",
]
