"""How much of the latent geometry an embedding recovers. Every number is held out, or says that it is not.

A value that is not defined is None, with the reason beside it: never a silent 0, 1 or NaN.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize, stats
from torch import Tensor

from viewspan import checks

Floats = npt.NDArray[np.float64]
Rows = Tensor | npt.NDArray[Any]  # numbers of any real dtype

_CONSTANT = 1e-10  # a column whose spread is below this share of its size, or below rounding, does not vary


@dataclass(frozen=True)
class R2:
    """Held-out coefficient of determination of the least-squares map from h to z.

    Attributes:
        value: mean over the coordinates of z that vary; 1 is best, 0 is no better than the mean, None if undefined.
        per_coordinate: one value for each coordinate of z, None where it is not scored.
        pooled: 1 − Σ residual² / Σ total² over all scored coordinates (Algorithm 15 of arXiv 2606.04280).
        undefined: reason for each coordinate (or for the whole) that is not scored.
        n_fit, n_scored: rows the map was fitted on, and other rows it was scored on.
    """

    value: float | None
    per_coordinate: tuple[float | None, ...]
    pooled: float | None
    undefined: dict[str, str]
    n_fit: int
    n_scored: int


@dataclass(frozen=True)
class MeanCorrelation:
    """Mean correlation coefficient: best one-to-one matching of the coordinates of z and h.

    Attributes:
        value: mean |correlation| over matched coordinates of z that vary, 0 to 1; None if undefined.
        assignment: for each coordinate of z the matched coordinate of h, or None.
        per_coordinate: |correlation| of each matched pair, None where undefined.
        reference, reference_sd: what a perfect map scores after a random rotation of the sphere: below 1, since
            this measure sees axes and the loss does not.
        undefined: reason for each coordinate that is not scored.
    """

    value: float | None
    assignment: tuple[int | None, ...]
    per_coordinate: tuple[float | None, ...]
    reference: float
    reference_sd: float
    undefined: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """What `score` measures; see `R2` and `MeanCorrelation` for the parts.

    Attributes:
        r2, mcc, ape: the three headline numbers; ape on its definition's scale [0, 2], 0 best.
        n: rows given.
        undefined: reason for every number that is None.
    """

    r2: float | None
    mcc: float | None
    ape: float
    r2_parts: R2
    mcc_parts: MeanCorrelation
    n: int
    undefined: dict[str, str]


def r2(z: Rows, h: Rows, *, n_fit: int | None = None, generator: torch.Generator | None = None) -> R2:
    """Least squares with intercept from h to z, fitted on some rows and scored on the others.

    A rank-deficient h is handled by the minimum-norm solution. A coordinate of z that does not vary is not scored.

    Args:
        z: latents, shape (n, d).
        h: embedding, shape (n, k).
        n_fit: the leading rows to fit on (default n // 2); the rest are scored. Rows are taken to be exchangeable.
        generator: if given, rows are shuffled first: use it for rows that come in an order.

    Returns:
        `R2`.

    Raises:
        ValueError: for shapes that disagree, rows that are not finite, or too few rows (fitting needs at least
            k + 2, scoring at least 2).

    Example:
        >>> rng = torch.Generator().manual_seed(0)
        >>> z = torch.randn(200, 3, generator=rng)
        >>> round(r2(z, z @ torch.randn(3, 3, generator=rng)).value, 6)
        1.0
    """
    a, b = _paired(z, h)
    constant, still = _constant(a, z), _constant(b, h)
    (a, size), (b, _) = _shrunk(a), _shrunk(b)
    n, k = b.shape
    n_fit = checks.integer("n_fit", n // 2 if n_fit is None else n_fit, low=1, high=n)
    if n_fit < k + 2 or n - n_fit < 2:
        raise ValueError(
            f"z must have enough rows to fit and score apart: {n} rows give {n_fit} to fit (at least {k + 2} for "
            f"an embedding of {k} dimensions) and {n - n_fit} to score (at least 2)"
        )
    if generator is not None:
        checks.generator(generator)
        order = torch.randperm(n, generator=generator, device=generator.device).cpu().numpy()
        a, b = a[order], b[order]
    design = np.hstack([np.ones((n, 1)), (b - b[:n_fit].mean(0)) / _scale(b[:n_fit], still)])
    weights = np.linalg.lstsq(design[:n_fit], a[:n_fit], rcond=1e-8)[0]
    scored = a[n_fit:]
    residual = ((scored - design[n_fit:] @ weights) ** 2).sum(0)
    total = ((scored - scored.mean(0)) ** 2).sum(0)
    constant = constant | _constant(scored, z)
    values = [
        None if c else float(1 - s / t) for c, s, t in zip(constant, residual, np.where(constant, 1, total))
    ]
    undefined = {f"coordinate {i}": "constant, not scored" for i in np.flatnonzero(constant)}
    kept = [v for v in values if v is not None]
    if not kept:
        undefined["r2"] = "no coordinate of z varies"
    share = (size / size[~constant].max()) ** 2 if kept else size
    pooled = (
        float(1 - (share * residual)[~constant].sum() / (share * total)[~constant].sum()) if kept else None
    )
    value = float(np.mean(kept)) if kept else None
    return R2(value, tuple(values), pooled, undefined, n_fit, n - n_fit)


def mean_correlation_coefficient(
    z: Rows, h: Rows, *, method: Literal["pearson", "spearman"] = "pearson"
) -> MeanCorrelation:
    """Mean absolute correlation of the coordinates of z with those of h under the best one-to-one matching.

    A coordinate of h that is constant correlates 0 with everything, with a warning that names it; a coordinate of z
    that is constant is not scored; coordinates of z left over when h has fewer count 0.

    Args:
        z: latents, shape (n, d).
        h: embedding, shape (n, k); with k > d the best d coordinates are used.
        method: ``pearson``, or ``spearman`` for rank correlation.

    Returns:
        `MeanCorrelation`, with the value a perfect map scores after a random rotation beside it.

    Raises:
        ValueError: for shapes that disagree, rows that are not finite, or n < d + k: by chance alone few rows
            give high correlations.
    """
    checks.choice("method", method, ("pearson", "spearman"))
    a, b = _paired(z, h)
    n, d, k = len(a), a.shape[1], b.shape[1]
    if n < max(d + k, 3):
        raise ValueError(
            f"z must have at least {max(d + k, 3)} rows for {d} latents and {k} embedding dimensions, got {n}"
        )
    still_z, still_h = _constant(a, z), _constant(b, h)
    (a, _), (b, _) = _shrunk(a), _shrunk(b)
    for j in np.flatnonzero(still_h):
        warnings.warn(
            f"embedding dimension {j} is constant: its correlation counts as 0", checks.ViewspanWarning, 2
        )
    if method == "spearman":
        a, b = stats.rankdata(a, axis=0), stats.rankdata(b, axis=0)
    correlation = np.abs(_standard(a, still_z).T @ _standard(b, still_h)) / n
    correlation = np.minimum(correlation, 1.0)
    rows, columns = optimize.linear_sum_assignment(correlation, maximize=True)
    match: dict[int, int] = dict(zip(rows.tolist(), columns.tolist()))
    values = tuple(
        None if still_z[i] else float(correlation[i, match[i]]) if i in match else 0.0 for i in range(d)
    )
    undefined = {f"coordinate {i}": "constant, not scored" for i in np.flatnonzero(still_z)}
    kept = [v for v in values if v is not None]
    if not kept:
        undefined["mcc"] = "no coordinate of z varies"
    mean, sd = mcc_reference(d)
    matched = tuple(None if still_z[i] else match.get(i) for i in range(d))
    return MeanCorrelation(float(np.mean(kept)) if kept else None, matched, values, mean, sd, undefined)


@functools.cache
def mcc_reference(dim: int) -> tuple[float, float]:
    """Mean and standard deviation of the mean correlation coefficient of a perfect map after a random rotation.

    For uniform z and h = Qz the correlation matrix is Q itself, so this is the best matching of |Q| over Haar Q,
    by Monte Carlo with a fixed seed: 2000 draws, 50 above 32 dimensions, where they hardly differ.
    """
    checks.integer("dim", dim, low=1)
    if dim == 1:
        return 1.0, 0.0
    q = np.abs(stats.ortho_group.rvs(dim, size=2000 if dim <= 32 else 50, random_state=0))
    best = [m[optimize.linear_sum_assignment(m, maximize=True)].mean() for m in q]
    return float(np.mean(best)), float(np.std(best))


def angle_preservation_error(z: Rows, h: Rows, *, block: int = 2048) -> float:
    """Mean over i ≠ j of |⟨z_i, z_j⟩ − ⟨h_i, h_j⟩|, in [0, 2]; 0 for an isometry.

    The tables of arXiv 2606.04280 hold half of this. Computed in blocks: memory O(block²).

    Args:
        z: latents, unit rows, shape (n, d), n >= 2.
        h: embedding, unit rows, shape (n, k).
        block: rows to a block.

    Raises:
        ValueError: for rows that are not of length 1 or not finite.

    Example:
        >>> z = torch.eye(3)
        >>> angle_preservation_error(z, -z)
        0.0
    """
    checks.integer("block", block, low=1)
    a, b = unit_rows("z", z), unit_rows("h", h)
    n = _same_length(a, b)
    total = 0.0
    for i in range(0, n, block):
        for j in range(i, n, block):
            gap = np.abs(a[i : i + block] @ a[j : j + block].T - b[i : i + block] @ b[j : j + block].T)
            if i == j:
                np.fill_diagonal(gap, 0)
            total += gap.sum() * (1 if i == j else 2)
    return float(total / (n * (n - 1)))


def score(z: Rows, h: Rows) -> Score:
    """R² (held out), mean correlation coefficient and angle preservation error in one call.

    Args:
        z: latents, unit rows, shape (n, d); rows exchangeable.
        h: embedding, unit rows, shape (n, k).

    Returns:
        `Score`.

    Example:
        >>> from viewspan import sphere
        >>> z = sphere.uniform(1000, 3, generator=torch.Generator().manual_seed(0))
        >>> s = score(z, -z)
        >>> round(s.r2, 3), round(s.mcc, 3), s.ape
        (1.0, 1.0, 0.0)
    """
    fit, match = r2(z, h), mean_correlation_coefficient(z, h)
    return Score(
        fit.value,
        match.value,
        angle_preservation_error(z, h),
        fit,
        match,
        fit.n_fit + fit.n_scored,
        {**fit.undefined, **match.undefined},
    )


def unit_rows(name: str, x: Rows) -> Floats:
    """Rows of length 1, up to the rounding of the precision they were given in, in double precision."""
    rows = _double(name, x).to(_half(x) or torch.float64)
    return np.asarray(checks.unit_rows(name, rows).double().numpy(), dtype=np.float64)


def _paired(z: Rows, h: Rows) -> tuple[Floats, Floats]:
    a, b = _double("z", z).numpy(), _double("h", h).numpy()
    _same_length(a, b)
    return a, b


def _same_length(a: Floats, b: Floats) -> int:
    if len(a) != len(b):
        raise ValueError(f"z and h must have the same number of rows, got {a.shape} and {b.shape}")
    return len(a)


def _double(name: str, x: Rows) -> Tensor:
    """Checked rows in double precision on the CPU, detached."""
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return checks.rows(name, x if x.is_complex() else x.double(), min_rows=2)
    try:
        values = np.asarray(x)
        missing = values.dtype == object and any(v is None for v in values.flat)
        if values.dtype.kind not in "biufO" or missing:
            raise TypeError
        values = np.array(values, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        kind = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"{name} must be a tensor or an array of real numbers, got {kind}") from None
    return checks.rows(name, torch.from_numpy(values), min_rows=2)


def _precision(x: Rows) -> float:
    """Rounding of the numbers as they were given."""
    if isinstance(x, Tensor):
        return torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
    dtype = np.asarray(x).dtype
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


def _half(x: Rows) -> torch.dtype | None:
    """The half precision x is in, if it is."""
    if isinstance(x, Tensor):
        return x.dtype if x.dtype in (torch.float16, torch.bfloat16) else None
    return torch.float16 if getattr(x, "dtype", None) == np.float16 else None


def _constant(x: Floats, given: Rows) -> npt.NDArray[np.bool_]:
    return np.ptp(x / 2, axis=0) <= max(_CONSTANT, 4 * _precision(given)) / 2 * np.abs(x).max(0)


def _shrunk(x: Floats) -> tuple[Floats, Floats]:
    """Columns divided by their largest size, so that no square overflows or vanishes, and those sizes."""
    size = np.abs(x).max(0)
    size = np.where(size > 0, size, 1.0)
    return x / size, size


def _scale(x: Floats, still: npt.NDArray[np.bool_]) -> Floats:
    sd = x.std(0)
    return np.where(still | (sd == 0), 1.0, sd)


def _standard(x: Floats, still: npt.NDArray[np.bool_]) -> Floats:
    centred = x - x.mean(0)
    return np.where(still, 0.0, centred / np.where(still, 1.0, np.maximum(x.std(0), np.finfo(float).tiny)))
