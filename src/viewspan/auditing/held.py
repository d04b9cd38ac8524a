"""Linear directions of an embedding that views of one anchor never move."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import linalg

from viewspan import checks
from viewspan.auditing.dimension import scaled

Floats = npt.NDArray[np.float64]

_RANK = 1e-9  # share of the largest total variance below which a direction is not in the data
_ROUNDING = 1e-6  # share of variance that float32 data cannot resolve
_ALL_NOISE = 1e6  # noise beyond this multiple of the data's spread says no more
_DETECT = 3.0  # standard errors above the noise at which a direction counts as moved


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldDirection:
    """One direction w of the embedding, x ↦ ⟨w, x⟩, that is held or moves less than can be told.

    Attributes:
        status: ``held`` (no movement beyond the noise floor, or none at all beyond rounding) or
            ``held or below sigma`` (no floor is known; it moves by at most `sigma`).
        share: within-anchor share of the direction's variance, noise removed where the floor is known; 0 = held.
        sigma: within-anchor standard deviation over total standard deviation of the direction, as measured.
        vector: w scaled to unit length, shape (D,).
        correlations: correlation of ⟨w, x⟩ with each coordinate of the embedding, shape (D,).
    """

    status: str
    share: float
    sigma: float
    vector: tuple[float, ...]
    correlations: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldDirections:
    """Every held direction, and what could have been seen.

    Attributes:
        directions: the held ones, most certain first.
        shares: all generalised eigenvalues of within-anchor against total covariance, ascending.
        floor: where the noise floor came from: ``given``, ``repeated measurement`` or ``unknown``.
        detectable: smallest within-anchor share that would have been told from the floor (median over the held
            directions, over all if none is held).
        rank: directions that vary in the data.
        sentence: the finding in words.
    """

    directions: tuple[HeldDirection, ...]
    shares: tuple[float, ...]
    floor: str
    detectable: float
    rank: int
    sentence: str


def held_directions(
    views: npt.ArrayLike,
    *,
    noise: float | npt.ArrayLike | None = None,
    repeats: npt.ArrayLike | None = None,
    threshold: float = 0.01,
) -> HeldDirections:
    """Directions with no within-anchor variance, by generalised eigenvalues against a noise floor.

    S_w w = λ S_t w with S_w the covariance within anchors and S_t the total one; λ = 1 − ICC(1) of the direction.
    With a noise covariance N both are taken minus N, and a direction is held if its λ lies within 3 standard
    errors of 0. Without one, directions with λ < `threshold` are "held or below sigma", sigma = √λ, except those
    that do not move at all.

    Args:
        views: embeddings, shape (n, k, D), k >= 2 views of n anchors, n > D.
        noise: standard deviation of the measurement noise of each coordinate, a scalar or shape (D,); 0 = exact.
        repeats: repeated measurements of the same views, shape (r, s, D), s >= 2: the floor is estimated.
        threshold: largest λ listed where no floor is known, in (0, 1).

    Returns:
        The directions, with all eigenvalues. Linear only: a held *function* of several coordinates is not seen.
    """
    x = _finite("views", views, 3)
    n, k, _ = x.shape
    if n < 3 or k < 2:
        raise ValueError(f"views must hold at least 3 anchors of 2 views, got shape {x.shape}")
    if noise is not None and repeats is not None:
        raise ValueError("noise and repeats both give the floor, pass one of them")
    checks.number("threshold", threshold, low=0, high=1, open_low=True)
    x, scale = _standardised(x)
    floor, name, df_noise = _floor(noise, repeats, scale)
    within, total = _covariances(x)
    df = n * (k - 1)
    basis = _signal_basis(total, floor, n)
    rank = basis.shape[1]
    if rank == 0:
        return HeldDirections(
            directions=(), shares=(), floor=name, detectable=float("nan"), rank=0,
            sentence="nothing varies above the noise floor",
        )  # fmt: skip
    if n <= 2 * rank:
        raise ValueError(
            f"held directions need more than twice as many anchors as directions, got {n} for {rank}"
        )
    clean = basis.T @ (total - floor) @ basis
    shares, w = linalg.eigh(basis.T @ (within - floor) @ basis, clean)
    w = basis @ w
    nu = np.einsum(
        "ij,ik,kj->j", w, floor, w
    )  # noise share of each direction, relative to its clean variance
    raw = np.einsum("ij,ik,kj->j", w, within, w)
    everything = np.einsum("ij,ik,kj->j", w, total, w)
    spread = math.sqrt(rank / df)
    limit = nu * ((1 + spread + _DETECT / math.sqrt(2 * df)) ** 2 - 1)
    if df_noise:
        limit = limit + nu * _DETECT * math.sqrt(2 / df_noise)
    limit = limit + _ROUNDING
    found = [
        HeldDirection(
            status="held" if exact else "held or below sigma",
            share=float(max(shares[j], 0.0)),
            sigma=float(math.sqrt(max(raw[j], 0.0) / everything[j])),
            vector=_unit(w[:, j], scale),
            correlations=_correlations(w[:, j], total, everything[j]),
        )
        for j, exact in _held(shares, limit, raw / everything, known=name != "unknown", threshold=threshold)
    ]
    detectable = (
        float(np.median(limit if not found else limit[: len(found)])) if name != "unknown" else threshold
    )
    return HeldDirections(
        directions=tuple(found), shares=tuple(float(s) for s in shares), floor=name, detectable=detectable,
        rank=rank, sentence=_sentence(found, rank, name, detectable),
    )  # fmt: skip


def _held(
    shares: Floats, limit: Floats, raw: Floats, *, known: bool, threshold: float
) -> list[tuple[int, bool]]:
    """Directions that are held, and whether that is sure: within the floor's limit, or not moving at all."""
    found = []
    for j, share in enumerate(shares):
        exact = bool(share <= limit[j] and (known or raw[j] <= _ROUNDING))
        hidden = exact and limit[j] > 0.5  # the floor hides everything: nothing can be claimed
        if not hidden and (exact or (not known and share <= threshold)):
            found.append((j, exact))
    return found


def _floor(
    noise: float | npt.ArrayLike | None, repeats: npt.ArrayLike | None, scale: Floats
) -> tuple[Floats, str, int]:
    """Noise covariance in standardised coordinates, where it came from, its degrees of freedom (0 = exact)."""
    d = len(scale)
    if repeats is not None:
        r = _finite("repeats", repeats, 3)
        if r.shape[2] != d or r.shape[1] < 2:
            raise ValueError(f"repeats must have shape (r, s >= 2, {d}), got {r.shape}")
        within, _ = _covariances(r / scale)
        return within, "repeated measurement", r.shape[0] * (r.shape[1] - 1)
    if noise is None:
        return np.zeros((d, d)), "unknown", 0
    sd = np.asarray(noise, dtype=np.float64)
    if sd.shape not in ((), (d,)) or not np.isfinite(sd).all() or (sd < 0).any():
        raise ValueError(f"noise must be a standard deviation >= 0, a scalar or shape ({d},), got {noise!r}")
    share = np.minimum(np.broadcast_to(sd, (d,)) / scale, _ALL_NOISE)
    return np.diag(share**2), "given", 0


def _covariances(x: Floats) -> tuple[Floats, Floats]:
    """Within-anchor and total covariance of shape (n, k, D) data: S_t = S_w + between-anchor component."""
    n, k, d = x.shape
    mean = x.mean(1)
    rest = (x - mean[:, None]).reshape(-1, d)
    within = rest.T @ rest / (n * (k - 1))
    centred = mean - mean.mean(0)
    between = centred.T @ centred / (n - 1) - within / k  # the variance component, as in ICC(1)
    return within, within + between


def _signal_basis(total: Floats, floor: Floats, n: int) -> Floats:
    """Directions whose total variance stands out of the noise (out of rounding where no floor is known)."""
    values, vectors = np.linalg.eigh(total)
    keep = values > _RANK * max(values.max(), 0.0) if values.max() > 0 else np.zeros(len(values), dtype=bool)
    basis = vectors[:, keep]
    if not floor.any() or not keep.any():
        return np.asarray(basis)
    t, f = basis.T @ total @ basis, basis.T @ floor @ basis
    ratio, w = linalg.eigh(f, t)  # noise share of the variance, t-orthonormal directions
    edge = (1 + math.sqrt(len(t) / n) + _DETECT / math.sqrt(2 * n)) ** 2
    return np.asarray(basis @ w[:, ratio * edge < 1])


def _correlations(w: Floats, total: Floats, variance: float) -> tuple[float, ...]:
    sd = np.sqrt(np.maximum(np.diag(total), 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = total @ w / (np.where(sd > 0, sd, np.inf) * math.sqrt(variance))
    r = r * np.sign(r[np.abs(r).argmax()])
    return tuple(float(v) for v in np.clip(r, -1, 1))


def _standardised(x: Floats) -> tuple[Floats, Floats]:
    """Coordinates with mean 0 and standard deviation 1, and their scale; largest value first: squares stay finite."""
    x, size = scaled(x, (0, 1))
    x = x - x.mean((0, 1))
    sd = x.std((0, 1))
    sd = np.where(sd > 0, sd, 1.0)
    return x / sd, size * sd


def _unit(w: Floats, scale: Floats) -> tuple[float, ...]:
    """A direction of standardised coordinates in the data's own units, of length 1."""
    w = w * (scale.min() / scale)
    w = w / np.abs(w).max()
    w = w / np.linalg.norm(w)
    return tuple(float(v) for v in w * np.sign(w[np.abs(w).argmax()]))


def _finite(name: str, value: npt.ArrayLike, ndim: int) -> Floats:
    x = np.asarray(value, dtype=np.float64)
    if x.ndim != ndim:
        raise ValueError(
            f"{name} must have {ndim} dimensions (anchors, views, features), got shape {x.shape}"
        )
    bad = ~np.isfinite(x).all(axis=tuple(range(1, ndim)))
    if bad.any():
        raise ValueError(f"{name} row {int(bad.argmax())} is not finite")
    return x


def _sentence(found: list[HeldDirection], rank: int, floor: str, detectable: float) -> str:
    if not found:
        return (
            f"no linear held direction among {rank} (a direction would have to move by a share of its variance "
            f"below {detectable:.2g} to be missed); held nonlinear functions are not seen"
        )
    exact = sum(d.status == "held" for d in found)
    parts = []
    if exact:
        beyond = "at all" if floor == "unknown" else f"beyond the noise floor ({floor})"
        parts.append(f"{exact} of {rank} linear directions never move {beyond}")
    if len(found) > exact:
        worst = max(d.sigma for d in found)
        parts.append(
            f"{len(found) - exact} of {rank} are held or move by less than {worst:.2g} of their standard deviation "
            "(no noise floor is known: give one, or repeated measurements)"
        )
    return "; ".join(parts)
