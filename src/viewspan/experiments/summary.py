"""What several seeds of one cell come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from viewspan import records


def spread(values: Sequence[float | None]) -> dict[str, float | None] | None:
    """Mean, standard deviation (n − 1; null for one seed) and median; None if any value is undefined."""
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return {"mean": float(np.mean(known)), "sd": sd, "median": float(np.median(known))}


def aggregate(runs: list[records.Record], by: tuple[str, ...]) -> list[dict[str, Any]]:
    """Runs that agree in the settings `by` become one cell with mean and spread over seeds."""
    groups: dict[tuple[Any, ...], list[records.Record]] = {}
    for record in runs:
        groups.setdefault(tuple(map(repr, (record.settings[key] for key in by))), []).append(record)
    return [cell(group, by) for group in groups.values()]


def cell(runs: list[records.Record], by: tuple[str, ...]) -> dict[str, Any]:
    """One line of a table: mean ± standard deviation (n − 1; null for one seed) of every measured number."""
    first = runs[0]
    line: dict[str, Any] = {key: first.settings[key] for key in by}
    line["seeds"] = len(runs)
    line["m"] = first.result["m"]
    for key in ("r2", "mcc", "ape", "loss_minus_log_m", "above_floor"):
        line[key] = spread([r.result[key] for r in runs])
    line["mcc_reference"] = first.result["mcc_reference"]
    line["predicted"] = first.result["predicted"]
    kinds = [r.result["diagnosis"] for r in runs]
    line["diagnosis"] = max(sorted(set(kinds)), key=kinds.count)
    line["diagnoses"] = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    line["r2_runs"] = [r.result["r2"] for r in runs]
    line["seconds"] = sum(r.seconds for r in runs)
    return line


def comparable(loss: float | None, m: int) -> float | None:
    """A loss at M negatives on the scale of M → ∞, to within O(1/M): loss − log M."""
    return None if loss is None else loss - math.log(m)
