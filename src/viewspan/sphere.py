"""The unit sphere S^(d-1) in R^d: uniform and von Mises-Fisher laws, and the two functions everything rests on.

`log_phi` is log of Φ_n(a) = E exp(a·cos) over S^(n-1), the log-partition function of the von Mises-Fisher law;
`mean_cosine` is A_n(a) = Φ_n'(a)/Φ_n(a), its mean cosine. Densities are relative to the uniform probability
measure; subtract `log_area(dim)` for densities relative to surface area, as scipy gives them.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import torch
from numpy.polynomial import Polynomial, polynomial
from scipy import special
from torch import Tensor

from viewspan import checks

Floats = npt.NDArray[np.float64]

_DEBYE_FROM = 50.0  # Bessel order from which the uniform expansion in 1/order is at rounding error
_DEBYE_TERMS = 8
_SERIES_TERMS = 40
_HANKEL_FROM = 1e7  # argument from which (and from 100 times the squared order) Hankel's expansion is exact
_CONCENTRATED = 1e30  # beyond it a draw equals its mean in double precision


def uniform(n: int, dim: int, *, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Independent uniform points on S^(dim-1), drawn on the generator's device.

    Args:
        n: number of points, >= 0.
        dim: ambient dimension d >= 1 (d = 1 gives the two points ±1).
        generator: the source of randomness; its device is where the points lie.
        dtype: float32 or float64.

    Returns:
        Unit vectors, shape (n, dim).

    Example:
        >>> rng = torch.Generator().manual_seed(0)
        >>> uniform(4, 3, generator=rng).norm(dim=1)
        tensor([1.0000, 1.0000, 1.0000, 1.0000])
    """
    checks.integer("n", n, low=0)
    checks.generator(generator)
    checks.integer("dim", dim, low=1)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    return _directions((n, dim), generator, dtype)


def spread(n: int, dim: int, *, generator: torch.Generator) -> Tensor:
    """Points that cover S^(dim-1) more evenly than independent ones: a scrambled Sobol sequence, each point uniform.

    Args:
        n: number of points, >= 1; powers of two cover best.
        dim: ambient dimension d >= 2.
        generator: seeds the scrambling; its device is where the points lie.

    Returns:
        float32 unit vectors, shape (n, dim).
    """
    checks.integer("n", n, low=1)
    checks.integer("dim", dim, low=2)
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    u = torch.quasirandom.SobolEngine(dim, scramble=True, seed=seed).draw(n, dtype=torch.float64)
    x = torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
    return (x / torch.linalg.vector_norm(x, dim=1, keepdim=True)).float().to(generator.device)


def von_mises_fisher(mean: Tensor, kappa: float | Tensor, *, generator: torch.Generator) -> Tensor:
    r"""One von Mises-Fisher draw per row: density proportional to exp(κ⟨μ, x⟩) on S^(d-1).

    The cosine to the mean is drawn exactly (two points for d = 1, inversion for d = 3, otherwise Wood's rejection
    scheme, whose acceptance is bounded below for every κ), written in 1 − cos so that nothing is lost at large κ;
    the direction around the mean is uniform.

    Reference: Wood, "Simulation of the von Mises Fisher distribution", 1994.

    Args:
        mean: μ, unit vectors, shape (..., d), d >= 1. Half precision is promoted to float32.
        kappa: concentration κ >= 0, a scalar or one value per row (shape of `mean` without its last dimension);
            0 is the uniform law.
        generator: the source of randomness, on the device of `mean`.

    Returns:
        Unit vectors, shape and dtype of `mean` (float32 for half precision).

    Raises:
        ValueError: if a mean is not of length 1 or not finite, or κ is negative or not finite.

    Example:
        >>> rng = torch.Generator().manual_seed(0)
        >>> mean = torch.tensor([0.0, 0.0, 1.0]).expand(10_000, 3)
        >>> x = von_mises_fisher(mean, 10.0, generator=rng)
        >>> round(float(x[:, 2].mean()), 2)   # A_3(10) = 0.9
        0.9
    """
    mean = checks.unit_rows("mean", mean)
    checks.generator(generator, mean.device)
    shape, d = mean.shape, mean.shape[-1]
    work = torch.float32 if mean.device.type == "mps" else torch.float64
    mu = mean.reshape(-1, d).to(work)
    mu = mu / torch.linalg.vector_norm(mu, dim=1, keepdim=True)
    k = _concentrations(kappa, shape[:-1], mu)
    if d == 1:
        stay = torch.rand(len(mu), generator=generator, device=mu.device, dtype=work) < torch.sigmoid(2 * k)
        return torch.where(stay[:, None], mu, -mu).reshape(shape).to(mean.dtype)
    gap = _gap_3d(k, generator) if d == 3 else _gap_wood(k, d, generator)
    free = torch.randn(mu.shape, generator=generator, device=mu.device, dtype=work)
    free = free - (free * mu).sum(1, keepdim=True) * mu
    free = free / torch.linalg.vector_norm(free, dim=1, keepdim=True).clamp_min(torch.finfo(work).tiny)
    sine = (gap * (2 - gap)).clamp_min(0).sqrt()
    x = (1 - gap)[:, None] * mu + sine[:, None] * free
    x = x / torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x.reshape(shape).to(mean.dtype)


def log_phi(n: int, a: npt.ArrayLike) -> Floats:  # theory.md (1)
    r"""log Φ_n(a), where Φ_n(a) = E exp(a·cos) over uniform S^(n-1).

    Φ_n(a) = Γ(n/2)(2/a)^(n/2-1) I_(n/2-1)(a); Φ_1 = cosh. Stable from a = 0 to 1e6 and beyond, for any n.

    Args:
        n: dimension of the ambient space, >= 1.
        a: argument >= 0, any shape.

    Returns:
        Nats, shape of `a`; 0 at a = 0.

    Example:
        >>> round(float(log_phi(3, 2.0)), 6)   # log(sinh 2 / 2)
        0.59522
    """
    a = _argument(n, a)
    return np.where(_small(n, a), _log_series(n, np.where(_small(n, a), a, 0.0)), _log_phi_scaled(n, a) + a)


def log_phi_scaled(n: int, a: npt.ArrayLike) -> Floats:
    """log Φ_n(a) − a, which stays moderate and exact where Φ_n itself is astronomically large."""
    return _log_phi_scaled(n, _argument(n, a))


def mean_cosine(n: int, a: npt.ArrayLike) -> Floats:  # theory.md (1)
    r"""A_n(a) = I_(n/2)(a)/I_(n/2-1)(a) = (a/n)·Φ_(n+2)(a)/Φ_n(a), the mean cosine of a von Mises-Fisher law.

    A_1 = tanh, A_3 = coth a − 1/a. Between 0 (a = 0) and 1 (a → ∞).

    Args:
        n: dimension of the ambient space, >= 1.
        a: concentration >= 0, any shape.
    """
    a = _argument(n, a)
    if n == 1:
        return np.tanh(a)
    return np.minimum(a / n * np.exp(_log_phi_scaled(n + 2, a) - _log_phi_scaled(n, a)), 1.0)


def log_prob(x: Tensor, mean: Tensor, kappa: float | Tensor) -> Tensor:
    """Log-density of the von Mises-Fisher law at x, relative to the uniform probability measure.

    Args:
        x: unit vectors, shape (..., d).
        mean: unit vectors, shape (..., d).
        kappa: concentration >= 0, a scalar or shape (...,).

    Returns:
        Nats, shape (...,). Subtract `log_area(d)` for the density relative to surface area.
    """
    x, mean = torch.broadcast_tensors(checks.unit_rows("x", x), checks.unit_rows("mean", mean))
    d = x.shape[-1]
    k = torch.as_tensor(kappa, dtype=torch.float64)
    if not bool(((k >= 0) & torch.isfinite(k)).all()):
        raise ValueError(f"kappa must be finite and in [0, inf), got {kappa!r}")
    plain = k.detach().cpu().numpy()
    scaled = torch.from_numpy(np.asarray(_log_phi_scaled(d, plain))).to(k.device)
    if k.requires_grad:  # the derivative that numpy hides: d(log Φ − κ)/dκ = A − 1
        scaled = scaled - torch.from_numpy(np.asarray(_mean_gap(d, plain))).to(k.device) * (k - k.detach())
    gap = (
        (x.double() - mean.double()).square().sum(-1) / 2
        if x.device.type != "mps"
        else (x - mean).square().sum(-1) / 2
    )
    return (-k.to(gap) * gap - scaled.to(gap)).to(x.dtype)


def entropy(dim: int, kappa: npt.ArrayLike) -> Floats:
    """Entropy of the von Mises-Fisher law relative to the uniform one, in nats: minus its KL divergence from it.

    0 at κ = 0, negative otherwise. Add `log_area(dim)` for the entropy relative to surface area.
    """
    k = _argument(dim, kappa)
    return _log_phi_scaled(dim, k) + k * _mean_gap(dim, k)


def log_area(dim: int) -> float:
    """log of the surface area 2π^(d/2)/Γ(d/2) of S^(dim-1)."""
    checks.integer("dim", dim, low=1)
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


def _directions(shape: tuple[int, int], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    x = torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)
    if shape[1] == 1:
        return torch.where(x < 0, -torch.ones_like(x), torch.ones_like(x))
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / length.clamp_min(torch.finfo(dtype).tiny)


def _concentrations(kappa: float | Tensor, shape: torch.Size, mu: Tensor) -> Tensor:
    try:
        k = torch.as_tensor(kappa, dtype=mu.dtype, device=mu.device).detach()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"kappa must be a number or a tensor, got {kappa!r}") from None
    if k.ndim and k.shape != shape:
        raise ValueError(f"kappa must be a scalar or have shape {tuple(shape)}, got {tuple(k.shape)}")
    if not bool(((k >= 0) & torch.isfinite(k)).all()):
        bad = ~((k >= 0) & torch.isfinite(k)).reshape(-1)
        row = int(bad.nonzero()[0, 0])
        value = kappa if k.ndim == 0 else f"{float(k.reshape(-1)[row]):g} in row {row}"
        raise ValueError(f"kappa must be finite and in [0, inf), got {value}")
    k = k.clamp(max=_CONCENTRATED)
    return k.reshape(-1) if k.ndim else k.expand(len(mu))


def _gap_3d(k: Tensor, generator: torch.Generator) -> Tensor:
    """1 − cos for d = 3, by inversion of its distribution function."""
    u = torch.rand(k.shape, generator=generator, device=k.device, dtype=k.dtype)
    gap = -torch.log1p((1 - u) * torch.expm1(-2 * k)) / k
    return torch.where(k > 0, gap, 2 * (1 - u)).clamp(0, 2)


def _gap_wood(k: Tensor, d: int, generator: torch.Generator) -> Tensor:
    """1 − cos for general d >= 2, by Wood's rejection scheme; the rows not yet accepted are drawn again."""
    b = (d - 1) / (2 * k + torch.hypot(2 * k, torch.full_like(k, d - 1)))
    mode_gap = 2 * b / (1 + b)  # 1 − x₀
    gap = torch.empty_like(k)
    todo = torch.arange(len(k), device=k.device)
    while len(todo):
        b_, mode, k_ = b[todo], mode_gap[todo], k[todo]
        # Beta((d-1)/2, (d-1)/2): a squashed coordinate of a uniform point
        point = _directions((len(todo), d), generator, k.dtype)
        beta = (1 - point[:, 0]) / 2
        proposal = 2 * b_ * beta / (1 - (1 - b_) * beta)
        ratio = (mode + (1 - mode) * proposal) / (mode * (2 - mode))  # (1 − x₀w)/(1 − x₀²)
        log_u = torch.rand(len(todo), generator=generator, device=k.device, dtype=k.dtype).log()
        accept = k_ * (mode - proposal) + (d - 1) * ratio.log() >= log_u
        gap[todo[accept]] = proposal[accept]
        todo = todo[~accept]
    return gap


def _argument(n: int, a: npt.ArrayLike) -> Floats:
    checks.integer("n", n, low=1)
    x = np.asarray(a, dtype=np.float64)
    if not np.all((x >= 0) & np.isfinite(x)):
        raise ValueError(f"the concentration must be finite and in [0, inf), got {a!r}")
    return x


def _small(n: int, a: Floats) -> npt.NDArray[np.bool_]:
    """Where the power series is exact within its terms."""
    return a <= 2 * math.sqrt(n)


def _log_phi_scaled(n: int, a: Floats) -> Floats:
    """log Φ_n(a) − a: a power series for small a, Bessel functions otherwise."""
    if n == 1:
        return np.log1p(np.expm1(-2 * a) / 2)
    order = n / 2 - 1
    small = _small(n, a)
    out = np.empty_like(a)
    out[small] = _log_series(n, a[small]) - a[small]
    x = a[~small]
    out[~small] = special.gammaln(n / 2) + order * np.log(2 / x) + _log_bessel(order, x)
    return out


def _mean_gap(n: int, a: Floats) -> Floats:
    """1 − A_n(a), to full relative precision also where A_n is close to 1."""
    if n == 1:
        return 2 * special.expit(-2 * a)
    far = a >= max(_HANKEL_FROM, 100 * n * n)
    x = np.where(far, a, 1.0)
    # A' = 1 − A² − (n−1)A/a, solved in powers of 1/a
    c = [1.0]
    for k in range(1, 6):
        c.append(((k - n) * c[k - 1] - sum(c[i] * c[k - i] for i in range(1, k))) / 2)
    return np.where(far, -sum(c[k] * x**-k for k in range(1, 6)), 1 - mean_cosine(n, a))


def _log_series(n: int, a: Floats) -> Floats:
    """log Σ_k (a²/4)^k / (k! (n/2)_k), a <= 2√n; all terms are positive."""
    q = a * a / (2 * n)  # at most 2, so that 40 terms are more than enough
    return np.log1p(q * polynomial.polyval(q, _series_coefficients(n)))


@functools.cache
def _series_coefficients(n: int) -> Floats:
    """(n/2)^k / (k! (n/2)_k) for k from 1."""
    k = np.arange(1, _SERIES_TERMS + 1)
    return np.asarray(np.cumprod(1 / (k * (1 + 2 * (k - 1) / n))), dtype=np.float64)


@functools.cache
def _debye_polynomial(order: float) -> Floats:
    """Coefficients in t of Σ_k u_k(t)/ν^k, u_k of the uniform expansion of I_ν(νz) (Olver, DLMF 10.41.9)."""
    u = total = Polynomial([1.0])
    t2 = Polynomial([0, 0, 1.0])
    for k in range(1, _DEBYE_TERMS + 1):
        u = t2 * (1 - t2) * u.deriv() / 2 + ((1 - 5 * t2) * u).integ() / 8
        total = total + u / order**k
    return np.asarray(total.coef)


def _log_bessel(order: float, x: Floats) -> Floats:
    """log(I_ν(x) e^(-x)), x > 0."""
    if order >= _DEBYE_FROM:
        return _log_bessel_debye(order, x)
    far = x >= _HANKEL_FROM
    near = np.log(special.ive(order, np.where(far, 1.0, x)))
    term, series = np.ones_like(x), np.ones_like(x)
    for k in range(1, 5):
        term = -term * ((4 * order**2 - (2 * k - 1) ** 2) / (8 * k)) / x
        series = series + term
    hankel = np.where(far, np.log(np.where(far, series, 1.0)) - 0.5 * (np.log(2 * np.pi) + np.log(x)), 0.0)
    return np.where(far, hankel, near)


def _log_bessel_debye(order: float, x: Floats) -> Floats:
    """log(I_ν(x) e^(-x)) for large ν, uniformly in x."""
    root = np.hypot(order, x)
    t = order / root
    # νη − x with η = √(1+z²) + log(z/(1+√(1+z²))); root − x is written without cancellation
    exponent = order * order / (root + x) + order * np.log(x / (order + root))
    series = polynomial.polyval(t, _debye_polynomial(order))
    return exponent - 0.5 * np.log(2 * np.pi * root) + np.log(series)
