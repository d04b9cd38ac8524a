"""How many dimensions the views of one anchor span, against those of the data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from viewspan import checks

Floats = npt.NDArray[np.float64]

MIN_VIEWS = 200  # views of an anchor below which TwoNN of its views is not quoted
MIN_DATA = 50  # distinct anchors below which the data's dimension is not quoted
_FEW = 20  # points that occur once: fewer, among repeated ones, and the views are a finite set
_SAME = 1e-6  # points closer than this share of the data's spread are copies
_MOST = 0.9  # share of the rows that say how wide the data spread: outliers must not
_STEPS = 4  # steps of float32, in each coordinate, by which copies may differ where the data are float32
_DISCARD = 0.1  # share of the largest ratios left out: they meet the edges of the data
_ENERGY = 0.02  # share of the largest displacement variance below which a tangent direction is not reached


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dimension:
    """An intrinsic dimension.

    Attributes:
        value: the estimate; 0 for a point or a finite set; None where undefined.
        interval: 95 % interval, or None.
        n: distinct points it rests on (of one anchor: the median over anchors).
        copies: points that equal another up to rounding, merged with it.
        reason: why `value` is None, else "".
    """

    value: float | None
    interval: tuple[float, float] | None
    n: int
    copies: int
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Support:
    """Support dimension of the views against the data's.

    Attributes:
        views_dim: mean over anchors of the dimension of one anchor's views; None with fewer than 200 views.
        views_interval: 95 % interval over anchors.
        data_dim: dimension of the data (one view of each anchor).
        data_interval: 95 % interval.
        deficit: data_dim − views_dim, or tangent_rank − displacement_rank where views_dim is None.
        copies: views that equal another of their anchor up to rounding, merged before estimating.
        data_copies: the same among the data.
        displacement_rank, tangent_rank: where views_dim is None: directions of the data's local tangent space
            that displacements between views reach, and its dimension.
        reason: why something is None.
    """

    views_dim: float | None
    views_interval: tuple[float, float] | None
    data_dim: float | None
    data_interval: tuple[float, float] | None
    deficit: float | None
    copies: int
    data_copies: int = 0
    displacement_rank: int | None = None
    tangent_rank: int | None = None
    reason: str = ""


def intrinsic_dimension(points: npt.ArrayLike) -> Dimension:
    """TwoNN: log(r₂/r₁) is exponential with rate d, r₁ and r₂ the distances to the two nearest neighbours.

    d is the slope through the origin of −log(1 − F) against log(r₂/r₁), F its empirical distribution, without the
    largest tenth.

    Copies, up to rounding, are merged first: they make r₁ = 0. If all but a few points are repeated, they are draws from
    a finite set, of dimension 0.

    Reference: Facco et al., "Estimating the intrinsic dimension of datasets by a minimal neighborhood
    information", 2017.

    Args:
        points: shape (n, D), finite.

    Returns:
        The estimate with a 95 % interval from its asymptotic standard error d/√n.

    Example:
        >>> import numpy as np
        >>> plane = np.random.default_rng(0).random((2000, 2)) @ np.array([[1.0, 0, 2], [0, 1, 1]])
        >>> round(intrinsic_dimension(plane).value)
        2
    """
    x = _points(points)
    n = len(x)
    _, first, counts = np.unique(same_rows(x), return_index=True, return_counts=True)
    distinct = scaled(x)[0][first]  # dimensions do not depend on the size
    distinct = distinct - distinct.mean(0)
    copies = n - len(distinct)
    if len(distinct) == 1:
        return Dimension(value=0.0, interval=(0.0, 0.0), n=1, copies=copies)
    once = int((counts == 1).sum())
    if n >= MIN_DATA and once < _FEW and copies > len(distinct):
        return Dimension(value=0.0, interval=(0.0, 0.0), n=len(distinct), copies=copies)
    ratios = _log_ratios(distinct)
    if len(ratios) < _FEW:
        reason = f"{len(ratios)} distinct points, at least {_FEW} are needed"
        return Dimension(value=None, interval=None, n=len(distinct), copies=copies, reason=reason)
    m = len(ratios)
    value = _slope(ratios)
    half = 1.96 / math.sqrt(m)
    return Dimension(
        value=value, interval=(value / (1 + half), value / max(1 - half, 1e-9)), n=m, copies=copies
    )


def same_rows(points: npt.ArrayLike) -> npt.NDArray[np.intp]:
    """One label a row, shape (n,): rows that equal one another up to rounding share it.

    Two rows are the same if they lie within a millionth of the data's spread (nine tenths of the rows lie so near their
    median), or, where every number is a float32, within a few steps of float32 at the largest of them; so are rows
    that a chain of such neighbours connects.

    Args:
        points: shape (n, D), finite.
    """
    from scipy import sparse, spatial

    given = _points(points)
    x, _ = scaled(given)
    reach = _SAME * float(np.quantile(np.linalg.norm(x - np.median(x, axis=0), axis=1), _MOST))
    with np.errstate(over="ignore", under="ignore"):
        if bool((given.astype(np.float32) == given).all()):
            reach = max(reach, _STEPS * math.sqrt(x.shape[1]) * float(np.finfo(np.float32).eps))
    distinct, labels = np.unique(x, axis=0, return_inverse=True)
    near = spatial.cKDTree(distinct).query_pairs(reach, output_type="ndarray")
    n = len(distinct)
    graph = sparse.coo_matrix((np.ones(len(near)), (near[:, 0], near[:, 1])), shape=(n, n))
    merged = sparse.csgraph.connected_components(graph, directed=False)[1]
    return np.asarray(merged[labels.reshape(-1)], dtype=np.intp)


def views_dimension(clouds: Sequence[npt.ArrayLike]) -> Dimension:
    """Mean over anchors of the dimension of one anchor's views, with a t-interval over anchors.

    Args:
        clouds: for each anchor its views, shape (k, D).

    Returns:
        None with a reason if an anchor has fewer than 200 views.
    """
    if not clouds:
        return Dimension(value=None, interval=None, n=0, copies=0, reason="no anchor was viewed often enough")
    fewest = min(len(np.asarray(c)) for c in clouds)
    if fewest < MIN_VIEWS:
        reason = f"{fewest} views an anchor, at least {MIN_VIEWS} are needed"
        return Dimension(value=None, interval=None, n=fewest, copies=0, reason=reason)
    each = [intrinsic_dimension(c) for c in clouds]
    copies = sum(e.copies for e in each)
    values = np.array([e.value for e in each if e.value is not None])
    n = int(np.median([e.n for e in each]))
    if not len(values):
        return Dimension(value=None, interval=None, n=n, copies=copies, reason=each[0].reason)
    mean = float(values.mean())
    if len(values) < 3:
        bounds = [e.interval for e in each if e.interval is not None]
        interval = (min(b[0] for b in bounds), max(b[1] for b in bounds)) if bounds else None
    else:
        from scipy import stats

        half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
        interval = (max(mean - half, 0.0), mean + half)
    return Dimension(value=mean, interval=interval, n=n, copies=copies)


def support(
    data: npt.ArrayLike, clouds: Sequence[npt.ArrayLike], displacements: npt.ArrayLike | None
) -> Support:
    """Support dimension of views against the data's.

    Args:
        data: one view of each anchor (or the anchors themselves), shape (n, D).
        clouds: views of a few anchors, shape (k, D) each; may be empty.
        displacements: view minus anchor, one row for each row of `data`: the fallback when views are few.
    """
    x = _points(data)
    whole = _data_dimension(x)
    views = views_dimension(clouds)
    copies, reasons = (
        views.copies,
        [whole.reason and f"data: {whole.reason}", views.reason and f"views: {views.reason}"],
    )
    displacement_rank = tangent_rank = None
    deficit = None
    if views.value is not None and whole.value is not None:
        deficit = whole.value - views.value
    elif views.value is None and whole.value is not None and displacements is not None:
        displacement_rank, tangent_rank, reason = displacement_against_tangent(x, displacements, whole.value)
        reasons.append(reason)
        if displacement_rank is not None and tangent_rank is not None:
            deficit = float(tangent_rank - displacement_rank)
    return Support(
        views_dim=views.value, views_interval=views.interval, data_dim=whole.value, data_interval=whole.interval,
        deficit=deficit, copies=copies, data_copies=whole.copies, displacement_rank=displacement_rank, tangent_rank=tangent_rank,
        reason="; ".join(r for r in reasons if r),
    )  # fmt: skip


def displacement_against_tangent(
    data: npt.ArrayLike, displacements: npt.ArrayLike, dimension: float
) -> tuple[int | None, int | None, str]:
    """How many directions of the data's tangent space small displacements between views reach.

    Around each of up to 100 anchors, the nearest neighbours give the tangent space (their leading principal
    directions, as many as the data's dimension, rounded) and the shortest of their displacements, projected on it,
    give a covariance; directions with more than 2 % of its largest eigenvalue count. Medians over the anchors.
    An upper bound where displacements are long against the curvature of what they stay on: chords of a circle span
    two directions.

    Returns:
        Rank of the displacements, rank of the tangent space, and the reason if they are None.
    """
    x, delta = scaled(_points(data))[0], scaled(_points(displacements))[0]
    rank = max(round(dimension), 1)
    size = max(6 * rank, 20)
    if len(x) < 4 * size:
        return (
            None,
            None,
            f"displacements: {len(x)} anchors, at least {4 * size} are needed for tangents of rank {rank}",
        )
    from sklearn.neighbors import NearestNeighbors

    length = np.linalg.norm(delta, axis=1)
    if not (length > 0).any():
        return 0, rank, ""
    shortest = length <= np.quantile(length, 0.5)  # long ones leave the tangent space
    pool = (
        np.flatnonzero(shortest & (length > 0))
        if (shortest & (length > 0)).sum() >= size
        else np.flatnonzero(length > 0)
    )
    if len(pool) < size:
        return None, None, f"displacements: only {len(pool)} anchors have views that differ"
    centres = np.linspace(0, len(x) - 1, min(100, len(x))).astype(int)
    around = NearestNeighbors(n_neighbors=size).fit(x).kneighbors(x[centres], return_distance=False)
    moves = NearestNeighbors(n_neighbors=size).fit(x[pool]).kneighbors(x[centres], return_distance=False)
    ranks = []
    for near, close in zip(around, moves):
        local = x[near] - x[near].mean(0)
        tangent = np.linalg.svd(local, full_matrices=False)[2][:rank]
        step = delta[pool[close]]
        step = step / np.linalg.norm(step, axis=1, keepdims=True)
        values = np.linalg.svd(step @ tangent.T, compute_uv=False) ** 2
        ranks.append(int((values > _ENERGY * size / rank).sum()))
    return int(np.median(ranks)), rank, ""


def _data_dimension(x: Floats) -> Dimension:
    whole = intrinsic_dimension(x)
    if whole.n < MIN_DATA and whole.value != 0:
        reason = f"{whole.n} distinct anchors, at least {MIN_DATA} are needed"
        return Dimension(value=None, interval=None, n=whole.n, copies=whole.copies, reason=reason)
    return whole


def _log_ratios(x: Floats) -> Floats:
    """log(r₂/r₁) of each of some distinct points."""
    from sklearn.neighbors import NearestNeighbors

    if len(x) < 3:
        return np.zeros(0)
    r = NearestNeighbors(n_neighbors=3).fit(x).kneighbors(x)[0][:, 1:]
    return np.asarray(np.log(r[:, 1] / r[:, 0]))


def _slope(ratios: Floats) -> float:
    """Least squares through the origin of −log(1 − F) on the sorted log ratios, the largest tenth left out."""
    ordered = np.sort(ratios)
    count = int(len(ordered) * (1 - _DISCARD))
    x, y = ordered[:count], -np.log1p(-np.arange(count) / len(ordered))
    return float(x @ y / (x @ x))


def _points(value: npt.ArrayLike) -> Floats:
    x = np.asarray(value, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] < 1:
        raise ValueError(f"points must have shape (n, D), got {x.shape}")
    bad = ~np.isfinite(x).all(axis=1)
    if bad.any():
        raise ValueError(f"points row {int(bad.argmax())} is not finite")
    checks.integer("points (dimensions)", x.shape[1], low=1)
    return x


def scaled(x: Floats, axis: tuple[int, ...] | None = None) -> tuple[Floats, Floats]:
    """Numbers over the largest along `axis`, and that: squares of huge or tiny ones leave the range of floats."""
    size = np.abs(x).max(axis)
    size = np.where(size > 0, size, 1.0)
    return x / size, size
