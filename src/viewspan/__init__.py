"""viewspan: does the way positive pairs are drawn let contrastive learning recover the latent geometry?

Five verbs: `predict` (closed forms, no training), `fit` (train an encoder on pairs), `score` (measure recovery),
`diagnose` (name the failure) and `audit` (a user's own data and views). Everything else is in the submodules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viewspan import (
        auditing,
        diagnosis,
        encoders,
        experiments,
        images,
        losses,
        metrics,
        pairs,
        processes,
        records,
        sphere,
        sweeps,
        testing,
        theory,
        training,
        vision,
    )
    from viewspan.auditing import audit
    from viewspan.diagnosis import diagnose
    from viewspan.metrics import score
    from viewspan.theory import predict
    from viewspan.training import fit

__version__ = "0.1.0"

_VERBS = {
    "fit": "training",
    "predict": "theory",
    "score": "metrics",
    "diagnose": "diagnosis",
    "audit": "auditing",
}
_MODULES = (
    "auditing", "diagnosis", "encoders", "experiments", "images", "losses", "metrics", "pairs", "processes",
    "records", "sphere", "sweeps", "testing", "theory", "training", "vision",
)  # fmt: skip
__all__ = [
    "audit", "auditing", "diagnose", "diagnosis", "encoders", "experiments", "fit", "images", "losses", "metrics",
    "pairs", "predict", "processes", "records", "score", "sphere", "sweeps", "testing", "theory", "training", "vision",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use, so that `viewspan --help` does not wait for torch."""
    if name in _VERBS:
        return getattr(importlib.import_module(f"viewspan.{_VERBS[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"viewspan.{name}")
    raise AttributeError(f"module 'viewspan' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
