"""Audit real pairs and views: which factors never move, and how far is the diversity condition?

`audit` is the front door; `intraclass_correlation`, `held_directions` and `intrinsic_dimension` are its statistics.
"""

from __future__ import annotations

from viewspan.auditing.dimension import Dimension, Support, intrinsic_dimension
from viewspan.auditing.faults import RULES
from viewspan.auditing.held import HeldDirection, HeldDirections, held_directions
from viewspan.auditing.icc import Stability, agreement, intraclass_correlation, stability
from viewspan.auditing.image_views import Sampling
from viewspan.auditing.run import audit, lint
from viewspan.auditing.verdict import Audit, Factor, Fault, Gate, Operation

__all__ = [
    "RULES",
    "Audit", "Dimension", "Factor", "Fault", "Gate", "HeldDirection", "HeldDirections", "Operation", "Sampling",
    "Stability", "Support", "agreement", "audit", "held_directions", "intraclass_correlation",
    "intrinsic_dimension", "lint", "stability",
]  # fmt: skip
