"""What several seeds of one cell come to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def spread(values: Sequence[float | None]) -> dict[str, float | None] | None:
    """Mean, standard deviation (n − 1; null for one seed) and median; None if any value is undefined."""
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return {"mean": float(np.mean(known)), "sd": sd, "median": float(np.median(known))}
