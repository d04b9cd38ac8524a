"""Contrastive training on images: encoders, the training loop, checkpoints, and the readouts that judge a run."""

from __future__ import annotations

from viewspan.vision.backbones import Encoder, convnet, mlp, resnet18, vit
from viewspan.vision.pairing import SameAnchor, TwoLevel, TwoViews
from viewspan.vision.probe import ProbeResult, ViewStatistics, probe, view_statistics
from viewspan.vision.run_folder import load_encoders
from viewspan.vision.signals import Interrupted
from viewspan.vision.simclr import TrainRun, train

__all__ = [
    "Encoder",
    "Interrupted",
    "ProbeResult",
    "SameAnchor",
    "TrainRun",
    "TwoLevel",
    "TwoViews",
    "ViewStatistics",
    "convnet",
    "load_encoders",
    "mlp",
    "probe",
    "resnet18",
    "train",
    "view_statistics",
    "vit",
]
