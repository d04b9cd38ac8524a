"""Quadrature rules for the sphere split into held and free coordinates, z = (sin t·ω, cos t·w).

The latitude t in [0, π/2] has density ∝ sin^(m-1) t · cos^(ℓ-1) t under the uniform law (sin² t ~ Beta(m/2, ℓ/2)),
ω is uniform on S^(m-1) and w on S^(ℓ-1). Nodes are placed in the angle, where every integrand here is smooth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import interpolate, special

from viewspan import sphere

Floats = npt.NDArray[np.float64]

_DROP = 60.0  # weights below e^-60 of the largest are rounding noise in any sum
_STEP = 0.002  # of the table of log Φ_n, in log(1 + a)
_ANGLE_STEP = 0.005  # of the table of E|x + c|, in arcsin x, for ℓ = 1


class Latitude(NamedTuple):
    """Nodes t, their normalised log weights, and the span outside which the density is negligible."""

    t: Floats
    log_weight: Floats
    low: float
    high: float

    @property
    def weight(self) -> Floats:
        """Weights that sum to 1."""
        return np.exp(self.log_weight)


class SphereRule(NamedTuple):
    """Nodes on S^(k-1), shape (n, k), and weights that sum to 1."""

    x: Floats
    weight: Floats


@functools.lru_cache(maxsize=64)
def legendre(n: int) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    x, w = special.roots_legendre(n)
    return (x + 1) / 2, w / 2


def log_density(t: Floats, m: int, ell: int) -> Floats:
    """log of the normalised density of the latitude t."""
    log_norm = np.log(2) - special.betaln(m / 2, ell / 2)
    with np.errstate(divide="ignore"):
        s = (m - 1) * np.log(np.sin(t)) if m > 1 else np.zeros_like(t)
        r = (ell - 1) * np.log(np.cos(t)) if ell > 1 else np.zeros_like(t)
    return log_norm + s + r


@functools.lru_cache(maxsize=256)
def span(m: int, ell: int) -> tuple[float, float]:
    """The interval of latitudes that holds all but e^-60 of the density's peak."""
    if m == 0 or ell == 0:
        return (0.0, 0.0) if m == 0 else (np.pi / 2, np.pi / 2)
    t = np.linspace(0, np.pi / 2, 4097)[1:-1]
    p = log_density(t, m, ell)
    keep = np.flatnonzero(p > p.max() - _DROP)
    low = 0.0 if keep[0] == 0 or m == 1 else float(t[keep[0] - 1])
    high = np.pi / 2 if keep[-1] == len(t) - 1 or ell == 1 else float(t[keep[-1] + 1])
    return low, high


@functools.lru_cache(maxsize=64)
def latitude(m: int, ell: int, n: int, layer: float = 0.0) -> Latitude:
    """A rule of n nodes for the latitude; a single node where nothing is held (m = 0) or all is (ℓ = 0).

    With `layer`, n more nodes are given to the last `layer` radians before r = cos t = 0.
    """
    low, high = span(m, ell)
    if low == high:
        return Latitude(np.array([low]), np.zeros(1), low, high)
    x, w = legendre(n)
    split = high - layer
    panels = [(low, split), (split, high)] if low < split < high else [(low, high)]
    t = np.concatenate([a + (b - a) * x for a, b in panels])
    log_w = np.concatenate([np.log(w * (b - a)) for a, b in panels]) + log_density(t, m, ell)
    return Latitude(t, log_w - special.logsumexp(log_w), low, high)


def window(centre: Floats, half: float, m: int, ell: int, n: int, lam: Floats) -> tuple[Floats, Floats]:
    """Inner rules for latitudes t' whose squeezed angle lies within `half` of `centre`.

    Args:
        centre: squeezed angles φ with tan φ = tan t/λ, shape (..., N).
        half: half width in the squeezed angle, radians.
        m: held coordinates.
        ell: free coordinates.
        n: number of inner nodes.
        lam: λ, broadcastable to `centre`.

    Returns:
        t' and log weights (density included, not renormalised), shape (..., N, n).
    """
    low, high = span(m, ell)
    if low == high:
        t = np.broadcast_to(np.array(low), (*centre.shape, 1))
        return t, np.zeros_like(t)
    if half >= np.pi / 2:
        rule = latitude(m, ell, n)
        return rule.t, rule.log_weight
    a = np.clip(unsqueezed(np.clip(centre - half, 0, np.pi / 2), lam), low, high)
    b = np.clip(unsqueezed(np.clip(centre + half, 0, np.pi / 2), lam), low, high)
    x, w = legendre(n)
    width = (b - a)[..., None]
    t = a[..., None] + width * x
    with np.errstate(divide="ignore"):
        log_w = np.log(width * w) + log_density(t, m, ell)
    return t, log_w


def unsqueezed(phi: Floats, lam: Floats) -> Floats:
    """The latitude t with tan t = λ tan φ."""
    return np.arctan2(lam * np.sin(phi), np.cos(phi))


@functools.lru_cache(maxsize=32)
def sphere_rule(k: int, n: int) -> SphereRule:
    """A product rule on S^(k-1) for 1 <= k <= 4: two points, n equispaced angles, n/2 latitudes by n, and so on."""
    if k == 1:
        return SphereRule(np.array([[1.0], [-1.0]]), np.array([0.5, 0.5]))
    if k == 2:
        angle = 2 * np.pi * (np.arange(n) + 0.5) / n
        return SphereRule(np.stack([np.cos(angle), np.sin(angle)], 1), np.full(n, 1 / n))
    x, w = special.roots_gegenbauer(max(n // 2, 2), (k - 2) / 2)
    inner = sphere_rule(k - 1, n)
    ring = np.sqrt(1 - x * x)[:, None, None] * inner.x
    nodes = np.concatenate([np.broadcast_to(x[:, None, None], (*ring.shape[:2], 1)), ring], axis=-1)
    weights = (w / w.sum())[:, None] * inner.weight
    return SphereRule(nodes.reshape(-1, k), weights.reshape(-1))


@functools.lru_cache(maxsize=32)
def cosine_rule(k: int, n: int) -> tuple[Floats, Floats]:
    """Nodes and weights for one coordinate of a uniform point of S^(k-1), by the symmetry c → −c on c >= 0 only."""
    if k == 1:
        return np.array([1.0]), np.array([1.0])
    x, w = legendre(n)
    angle = np.pi / 2 * x
    weight = w * np.sin(angle) ** (k - 2)
    return np.cos(angle), weight / weight.sum()


def mean_absolute(a: Floats, b: Floats, ell: int) -> Floats:
    r"""E|a + b·c| for one coordinate c of a uniform point of S^(ℓ-1).

    |a| where |a| >= |b|; otherwise, with x = |a/b|, |b|·(x·P(|c| <= x) + 2k(1 − x²)^((ℓ-1)/2)/(ℓ-1)) and
    k = Γ(ℓ/2)/(√π Γ((ℓ-1)/2)): in closed form up to ℓ = 3, above from a cached table in arcsin x (to about 1e-12).
    """
    a, b = np.abs(a), np.abs(b)
    if ell == 1:
        return np.maximum(a, b)
    x = np.divide(a, b, out=np.ones_like(a), where=b > a)
    inside = _mean_absolute_table(ell)(np.arcsin(x)) if ell > 3 else _mean_absolute(x, _inside(x, ell), ell)
    return np.where(a >= b, a, b * inside)


def _inside(x: Floats, ell: int) -> Floats:
    """P(|c| <= x)."""
    if ell == 2:
        return 2 / np.pi * np.arcsin(x)
    return x if ell == 3 else np.asarray(special.betainc(0.5, (ell - 1) / 2, x * x))


def _mean_absolute(x: Floats, inside: Floats, ell: int) -> Floats:
    """E|x + c|, 0 <= x <= 1."""
    log_k = special.gammaln(ell / 2) - special.gammaln((ell - 1) / 2) - 0.5 * np.log(np.pi)
    return x * inside + 2 * np.exp(log_k) * (1 - x * x) ** ((ell - 1) / 2) / (ell - 1)


@functools.lru_cache(maxsize=32)
def _mean_absolute_table(ell: int) -> interpolate.CubicHermiteSpline:
    """E|sin θ + c|; its slope in x is P(|c| <= x). The finer the narrower the law of c."""
    theta = np.linspace(0, np.pi / 2, 16 + int(np.pi / 2 * np.sqrt(ell) / _ANGLE_STEP))
    x = np.sin(theta)
    inside = _inside(x, ell)
    return interpolate.CubicHermiteSpline(theta, _mean_absolute(x, inside, ell), inside * np.cos(theta))


def log_sum(x: Floats) -> Floats:
    """log Σ e^x over the last axis; scipy's `logsumexp` takes three times as long on arrays this small."""
    top = np.maximum(x.max(-1, keepdims=True), np.finfo(float).min)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(x - top).sum(-1)) + top[..., 0])


def log_mixture(rho: float, fibre: Callable[[], Floats], everywhere: Callable[[], Floats]) -> Floats:
    """log(ρ·e^fibre + (1 − ρ)·e^everywhere), the mean over the negatives; what ρ does not need is not computed."""
    if rho == 0:
        return everywhere()
    if rho == 1:
        return fibre()
    return np.logaddexp(np.log(rho) + fibre(), np.log1p(-rho) + everywhere())


def log_phi_scaled(n: int, a: Floats, largest: float) -> Floats:
    """log Φ_n(a) − a for 0 <= a <= `largest`: exact for n = 1 and 3, else from a cached table (to about 1e-12).

    Kernels of two rules need it at thousands of points for each λ, where Bessel functions are the whole cost.
    """
    if n in (1, 3):
        return sphere.log_phi_scaled(n, a)
    return np.asarray(_log_phi_table(n, largest)(np.log1p(a)))


@functools.lru_cache(maxsize=32)
def _log_phi_table(n: int, largest: float) -> interpolate.CubicHermiteSpline:
    """The cubic spline through values and slopes, equispaced in log(1 + a)."""
    y = np.linspace(0, np.log1p(largest) * (1 + 1e-12), 16 + int(np.log1p(largest) / _STEP))
    a = np.expm1(y)
    slope = (sphere.mean_cosine(n, a) - 1) * (1 + a)
    return interpolate.CubicHermiteSpline(y, sphere.log_phi_scaled(n, a), slope)
