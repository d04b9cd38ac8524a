"""Audit pairs and views that were made beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from viewspan.auditing import dimension, held, icc
from viewspan.auditing.sources import Paired
from viewspan.auditing.verdict import Audit, Factor, decide

Floats = npt.NDArray[np.float64]
MAX_DATA = 5000  # anchors used for the data's dimension
_RANK = 1e-14  # share of the largest variance below which a direction does not vary
MAX_CLOUDS = 20  # anchors whose views' dimension is estimated


def audit_paired(
    data: Paired,
    *,
    source: str,
    noise: float | Sequence[float] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Audit:
    """Factors, support dimension and held directions of paired data."""
    factors = measure(data.factors, clusters=data.clusters, resamples=resamples, seed=seed)
    n, k = data.shape
    notes = list(data.notes)
    directions, coordinates = None, data.coordinates
    support = dimension.Support(
        views_dim=None, views_interval=None, data_dim=None, data_interval=None, deficit=None, copies=0,
        reason="no embedding or signal was given",
    )  # fmt: skip
    if data.views is not None:
        support = _support(data.views, table=data.kind == "table")
        directions, coordinates = _held(data, noise, notes)
    elif noise is not None:
        raise ValueError("noise needs an embedding or signal (arrays a and b, or views)")
    verdict, sentence = decide(factors, support, directions, content_held=False)
    return Audit(
        verdict=verdict, sentence=sentence, source=source, views=None, factors=factors, support=support,
        held=directions, coordinates=coordinates, n_anchors=n, n_views=k, duplicates=data.duplicates,
        skipped=data.skipped, notes=notes,
    )  # fmt: skip


def measure(
    values: dict[str, npt.NDArray[Any]], *, clusters: npt.NDArray[Any] | None, resamples: int, seed: int
) -> list[Factor]:
    """ICC(1) of numeric factors, agreement against chance of categorical ones."""
    out = []
    for name, x in values.items():
        if x.dtype.kind in "fiu":
            stability = icc.stability(x, clusters=clusters, resamples=resamples, seed=seed)
            out.append(Factor(name=name, kind="numeric", stability=stability))
        elif x.ndim == 2:
            stability = icc.agreement(x, clusters=clusters, resamples=resamples, seed=seed)
            out.append(Factor(name=name, kind="categorical", stability=stability))
        else:
            raise TypeError(
                f"factor {name} must be numbers or labels of shape (n, k), got {x.dtype} {x.shape}"
            )
    return out


def _support(views: Floats, *, table: bool) -> dimension.Support:
    n = len(views)
    views, _ = dimension.scaled(views, (0, 1) if table else None)
    if table:
        sd = views.std((0, 1))
        views = views / np.where(sd > 0, sd, 1.0)  # columns have units of their own
    chosen = np.linspace(0, n - 1, min(n, MAX_CLOUDS)).astype(int)
    clouds = [views[i] for i in chosen]
    rows = np.linspace(0, n - 1, min(n, MAX_DATA)).astype(int)
    return dimension.support(views[rows, 0], clouds, views[rows, 1] - views[rows, 0])


def _held(
    data: Paired, noise: float | Sequence[float] | None, notes: list[str]
) -> tuple[held.HeldDirections | None, tuple[str, ...]]:
    """Held directions, of the leading principal components where the embedding is too wide for the sample."""
    x, repeats, names = data.views, data.repeats, data.coordinates
    assert x is not None
    n, _, d = x.shape
    rank, components = _components(x.reshape(-1, d)) if d > n // 3 else (0, np.zeros((d, 0)))
    if rank >= n / 3:
        keep = n // 4
        if keep < 2 or n < 3:
            notes.append(
                f"held directions were not looked for: {n} anchors are too few for {rank} directions"
            )
            return None, names
        if noise is not None and np.ndim(noise):
            raise ValueError(f"noise must be one number where {d} coordinates are reduced to {keep}")
        basis = components[:, :keep]
        x = x @ basis
        repeats = None if repeats is None else repeats @ basis
        notes.append(f"held directions among the {keep} leading principal components of {d} coordinates")
        names = tuple(f"component {j}" for j in range(keep))
    return held.held_directions(x, noise=noise, repeats=repeats), names


def _components(x: Floats) -> tuple[int, Floats]:
    """How many directions vary, and the principal ones in columns, from the smaller of covariance and Gram matrix."""
    x, _ = dimension.scaled(x)
    x = x - x.mean(0)
    wide = x.shape[1] > x.shape[0]
    values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    keep = np.flatnonzero(values > _RANK * max(values.max(), np.finfo(float).tiny))[::-1]
    basis = vectors[:, keep]
    return len(keep), x.T @ basis / np.sqrt(values[keep]) if wide else basis
