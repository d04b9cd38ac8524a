"""How much of a factor the anchor decides: ICC(1), agreement of categories, reach, all with bootstrap intervals.

Everything is a function of sums over anchors, so that one matrix product gives every factor's resampled value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from viewspan import checks

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ICC_FORM = "ICC(1), one-way random effects, single view: (MSB - MSW) / (MSB + (k0 - 1) MSW)"
AGREEMENT_FORM = "(agreement within anchors - chance) / (1 - chance), chance from pairs of different anchors"
_ROUNDING = 1e-12  # share of the total variance below which a variance is rounding noise
_COLUMNS = 6  # sums kept per anchor: groups, k, k², Σx, Σ(Σx)²/k, Σ within squares; Σx per component


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stability:
    """How stable one factor is over the views of an anchor.

    Attributes:
        icc: 1 = never perturbed, 0 = the anchor says nothing, negative = views of one anchor differ more than
            views of different anchors (not clipped); None where undefined.
        interval: 95 % percentile bootstrap over anchors (or clusters), or None.
        reach: mean share of the population's range (1 % to 99 %) that one anchor's views span, in [0, 1].
        n_anchors: anchors with at least two usable views.
        undefined: values left out because the factor is undefined there (a gray view has no hue).
        reason: why something above is None, else "".
        form: which coefficient `icc` is.
    """

    icc: float | None
    interval: tuple[float, float] | None
    reach: float | None
    n_anchors: int
    undefined: int = 0
    reason: str = ""
    form: str = ICC_FORM


def intraclass_correlation(values: npt.ArrayLike) -> float:
    """ICC(1) of a factor over the views of an anchor, from a one-way analysis of variance.

    (MSB − MSW)/(MSB + (k − 1)·MSW), MSB between anchors, MSW within. A constant shift between views lowers it:
    it measures agreement, not consistency.

    Reference: Shrout and Fleiss, "Intraclass correlations", 1979, case 1.

    Args:
        values: shape (n, k), n >= 2 anchors, k >= 2 views; or (n, k, c) for a factor with c components (traces
            then replace variances).

    Returns:
        In [−1/(k − 1), 1]; NaN if the factor does not vary at all.

    Example:
        >>> round(intraclass_correlation([[1, 2], [3, 4], [5, 6], [7, 8]]), 6)
        0.927711
    """
    x = _cube(values)
    if not np.isfinite(x).all():
        raise ValueError(f"values row {int(np.argwhere(~np.isfinite(x))[0, 0])} is not finite")
    return float(_icc(_sums(x).sum(0)))


def stability(
    values: npt.ArrayLike,
    *,
    clusters: npt.ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Stability:
    """ICC(1) of one factor with a bootstrap interval and its reach.

    Args:
        values: shape (n, k) or (n, k, c), NaN where the factor is undefined for a view (left out and counted).
        clusters: one label an anchor, shape (n,); whole clusters are resampled (patients, sessions).
        resamples: bootstrap resamples; 0 leaves out interval and reach.
        seed: of the resampling.
    """
    x = _cube(values)
    bad = ~np.isfinite(x).all(axis=2)
    sums = _sums(x)
    usable = sums[:, 0] > 0
    n = int(usable.sum())
    undefined = int(bad.sum())
    if n < 2:
        reason = f"defined on two views of {n} anchors, at least 2 are needed"
        return Stability(icc=None, interval=None, reach=None, n_anchors=n, undefined=undefined, reason=reason)
    icc = float(_icc(sums.sum(0)))
    if not np.isfinite(icc):
        reason = "the factor does not vary in the data"
        return Stability(icc=None, interval=None, reach=None, n_anchors=n, undefined=undefined, reason=reason)
    if not resamples:
        return Stability(
            icc=icc, interval=None, reach=None, n_anchors=n, undefined=undefined, reason="not resampled"
        )
    by_cluster, reason = _by_cluster(sums[usable], None if clusters is None else np.asarray(clusters)[usable])
    interval = None
    if not reason:
        interval = percentile_interval(resampled(by_cluster, _icc, resamples=resamples, seed=seed))
        reason = "" if interval else "too few resamples vary for an interval"
    return Stability(
        icc=icc, interval=interval, reach=_reach(x), n_anchors=n, undefined=undefined, reason=reason
    )


def agreement(
    labels: npt.ArrayLike,
    *,
    clusters: npt.ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Stability:
    """Agreement of a categorical factor within anchors, against chance.

    1 = never changes, 0 = as often equal as views of different anchors. The counterpart of ICC(1). Chance is held
    fixed over the resamples.

    Args:
        labels: shape (n, k), any values that can be told apart.
        clusters: as for `stability`.
        resamples: as for `stability`.
        seed: as for `stability`.
    """
    raw = np.asarray(labels)
    if raw.ndim != 2 or raw.shape[1] < 2 or raw.shape[0] < 2:
        raise ValueError(f"labels must have shape (n >= 2, k >= 2), got {raw.shape}")
    n, k = raw.shape
    _, codes = np.unique(raw.astype(str), return_inverse=True)
    codes = codes.reshape(n, k)
    pairs = k * (k - 1) / 2
    ordered = np.sort(codes, axis=1)
    equal = np.zeros(n)
    for step in range(1, k):  # sorted: equal labels are neighbours, so equality at distance `step` is a run
        equal += (ordered[:, step:] == ordered[:, :-step]).sum(1)
    counts = np.bincount(codes.reshape(-1)).astype(float)
    everything = (counts * (counts - 1) / 2).sum()
    chance = (everything - equal.sum()) / (k * k * n * (n - 1) / 2)
    if len(counts) == 1:
        return Stability(
            icc=None, interval=None, reach=None, n_anchors=n, reason="the factor does not vary in the data",
            form=AGREEMENT_FORM,
        )  # fmt: skip
    if chance >= 1:
        return Stability(
            icc=None, interval=None, reach=None, n_anchors=n, reason="chance is 1", form=AGREEMENT_FORM
        )

    def kappa(sums: Floats) -> Floats:
        return (sums[..., 1] / (sums[..., 0] * pairs) - chance) / (1 - chance)

    sums = np.stack([np.ones(n), equal], axis=1)
    by_cluster, reason = _by_cluster(sums, None if clusters is None else np.asarray(clusters))
    interval = (
        None if reason else percentile_interval(resampled(by_cluster, kappa, resamples=resamples, seed=seed))
    )
    categories = np.array([len(np.unique(row)) for row in ordered]) if k > 2 else 2.0 - (equal > 0)
    reach = float(((categories - 1) / (len(counts) - 1)).mean())
    return Stability(
        icc=float(kappa(sums.sum(0))), interval=interval, reach=min(reach, 1.0), n_anchors=n, reason=reason,
        form=AGREEMENT_FORM,
    )  # fmt: skip


def resampled(
    sums: Floats, statistic: Callable[[Floats], Floats], *, resamples: int, seed: int, chunk: int = 100
) -> Floats:
    """A statistic of column sums over resampled rows, shape (resamples,): counts of each row times the rows."""
    rng = np.random.default_rng(seed)
    n = len(sums)
    out = []
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        draws = rng.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
        counts = np.bincount(draws.reshape(-1), minlength=size * n).reshape(size, n)
        out.append(statistic(counts @ sums))
    return np.concatenate(out)


def percentile_interval(values: Floats, level: float = 0.95) -> tuple[float, float] | None:
    """The central interval of resampled values; None if fewer than half are defined."""
    finite = values[np.isfinite(values)]
    if len(finite) < len(values) / 2:
        return None
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _cube(values: npt.ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim == 2:
        x = x[:, :, None]
    if x.ndim != 3 or x.shape[0] < 2 or x.shape[1] < 2:
        raise ValueError(
            f"values must hold at least 2 anchors and 2 views, shape (n, k) or (n, k, c), got {np.shape(values)}"
        )
    return x


def _sums(x: Floats) -> Floats:
    """Per anchor: 1, k, k², Σ‖x̄‖²·k, Σ within squares, total squares, Σx (c columns); zeros if k < 2."""
    good = np.asarray(np.isfinite(x).all(axis=2))
    if (
        good.any()
    ):  # centred and scaled: sums of squares stay exact for data far from 0, and neither over- nor underflow
        size = float(np.abs(x[good]).max())
        x = x / (size if size > 0 else 1.0)
        centre = x[good].mean(0)
        scale = float(np.sqrt(((x[good] - centre) ** 2).sum(1).mean()))
        x = (x - centre) / (scale if scale > 0 else 1.0)
    x = np.where(good[..., None], x, 0.0)
    k = good.sum(1).astype(float)
    use = k >= 2
    total = x.sum(1)
    mean = total / np.maximum(k, 1)[:, None]
    within = (((x - mean[:, None]) ** 2).sum(2) * good).sum(1)
    first = np.stack([np.ones_like(k), k, k * k, k * (mean**2).sum(1), within, (x**2).sum((1, 2))], axis=1)
    return np.asarray(np.concatenate([first, total], axis=1) * use[:, None])


def _icc(sums: Floats) -> Floats:
    """ICC(1) from summed rows of `_sums`, shape (..., 6 + c) -> (...); NaN where nothing varies."""
    groups, n, n2, between, within, squares = np.moveaxis(sums[..., :_COLUMNS], -1, 0)
    grand = (sums[..., _COLUMNS:] ** 2).sum(-1) / n
    with np.errstate(invalid="ignore", divide="ignore"):
        k0 = (n - n2 / n) / (groups - 1)
        msb = np.maximum(between - grand, 0) / (groups - 1)
        msw = within / (n - groups)
        msw = np.where(within <= _ROUNDING * np.maximum(n, squares), 0.0, msw)
        msb = np.where(between - grand <= _ROUNDING * np.maximum(n, squares), 0.0, msb)
        return np.asarray((msb - msw) / (msb + (k0 - 1) * msw))


def _by_cluster(sums: Floats, clusters: npt.NDArray[np.generic] | None) -> tuple[Floats, str]:
    """Sums over clusters, and a reason if there are too few to resample."""
    if clusters is not None:
        if len(clusters) != len(sums):
            raise ValueError(f"clusters must hold one label an anchor, got {len(clusters)} for {len(sums)}")
        _, codes = np.unique(clusters.astype(str), return_inverse=True)
        grouped = np.zeros((codes.max() + 1, sums.shape[1]))
        np.add.at(grouped, codes, sums)
        sums = grouped
    if len(sums) < 3:
        kind = "anchors" if clusters is None else "clusters"
        return sums, f"an interval needs at least 3 {kind}, there are {len(sums)}"
    return sums, ""


def _reach(x: Floats) -> float:
    """Mean over anchors of the range of their views over the population's 1 % to 99 % range (largest component)."""
    low, high = np.nanquantile(x, [0.01, 0.99], axis=(0, 1))
    width = np.asarray(high - low)
    if not np.any(width > 0):
        return 0.0
    defined = np.isfinite(x).all(axis=2).sum(1) >= 2
    clipped = np.clip(x[defined], low, high)
    spans = (np.nanmax(clipped, axis=1) - np.nanmin(clipped, axis=1)).mean(0)
    return float(np.max(spans / np.where(width > 0, width, np.inf)))


def check_clusters(clusters: npt.ArrayLike | None, n: int) -> npt.NDArray[np.generic] | None:
    """One label an anchor, as an array, or None."""
    if clusters is None:
        return None
    labels = np.asarray(clusters)
    if labels.shape != (n,):
        raise ValueError(f"clusters must have shape ({n},), one label an anchor, got {labels.shape}")
    checks.integer("clusters (distinct)", len(np.unique(labels.astype(str))), low=1)
    return labels
