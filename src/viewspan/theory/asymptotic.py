r"""L∞ of any map h, a trained encoder among them.

    L∞(h) = −E⟨h(z), h(z⁺)⟩/τ + E log(ρ·E_K e^⟨h, h'⟩/τ + (1 − ρ)·E_U e^⟨h, h'⟩/τ)

Deterministic quadrature up to d = 4: h is evaluated on a product grid of fibres and of points on each fibre, and
every expectation is a weighted sum over it. Above, scrambled Sobol points with replicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from scipy.stats import qmc
from torch import Tensor

from viewspan import checks, pairs, sphere
from viewspan.theory import model as models
from viewspan.theory import quadrature
from viewspan.theory.model import Model

Floats = npt.NDArray[np.float64]

_LEVELS = {2: (48, 72, 108, 162, 324, 648), 3: (24, 36, 54, 80, 112), 4: (14, 20, 26)}
_TOLERANCE = 5e-3  # nats
_BLOCK = 8_000_000  # entries of a similarity matrix held at once
_REPLICATES = 8
_PAIRS, _ANCHORS, _NEGATIVES = 16_384, 1024, 4096
_FIBRE_ANCHORS, _FIBRE_NEGATIVES = 512, 256


class AsymptoticLoss(NamedTuple):
    """L∞ of a map and what it was computed from.

    Attributes:
        loss: −alignment/τ + uniformity, nats.
        alignment: E⟨h(z), h(z⁺)⟩, in [−1, 1].
        uniformity: E log E_neg e^⟨h, h'⟩/τ, nats.
        error: estimate of the error of `loss`, nats: the difference of two rules, or twice the standard error
            over replicates plus the bias of the logarithm of a mean.
        method: ``quadrature`` or ``quasi_monte_carlo``.
        nodes: points at which h was evaluated for the result.
    """

    loss: float
    alignment: float
    uniformity: float
    error: float
    method: str
    nodes: int


def asymptotic_loss(  # theory.md (17)
    h: Callable[[Tensor], Tensor],
    law: pairs.PairLaw,
    *,
    temperature: float,
    rho: float = 0.0,
    tolerance: float | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int | None = None,
) -> AsymptoticLoss:
    r"""L∞(h): the loss at infinitely many negatives, minus log M.

    Reference: arXiv 2606.04280, the limit of its Eq. (2) with probability measures.

    Args:
        h: the recovered map f∘g on latents, (n, d) → (n, k) unit vectors; an encoder must be in eval mode.
        law: any pair law. With d <= 4, one that describes itself without a turn goes by quadrature; all others
            by draws, and need `sample_support` where ρ > 0.
        temperature: τ > 0.
        rho: share ρ of negatives on the anchor's fibre.
        tolerance: largest accepted `error`, nats; a map too rough for it is refused. None is 5e-3 for quadrature, and
            no limit for draws.
        dtype: of the points handed to h.
        seed: of the Sobol scrambling and the positives of draws, None is 0; quadrature draws nothing and takes none.

    Returns:
        `AsymptoticLoss`.

    Raises:
        ValueError: if h does not give finite unit rows, or for a seed where quadrature is used.
        RunFailed: if the error is above `tolerance`.

    Example:
        >>> law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="subsphere")
        >>> round(asymptotic_loss(lambda z: z, law, temperature=0.3).loss, 4)
        -1.5248
    """
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    rho = checks.number("rho", rho, low=0, high=1)
    if tolerance is not None:
        checks.number("tolerance", tolerance, low=0, open_low=True)
    if seed is not None:
        checks.integer("seed", seed, low=0)
    model = _smooth(law)
    if model is not None:
        if seed is not None:
            raise ValueError(
                f"seed must be left out where quadrature is used, which draws nothing, got {seed}"
            )
        return _by_quadrature(h, model, tau, rho, tolerance or _TOLERANCE, dtype)
    found = _by_replicates(h, law, tau, rho, dtype, seed or 0)
    if tolerance is not None and found.error > tolerance:
        raise checks.RunFailed(
            f"{found.nodes} draws left an error of {found.error:.2g} nats, above tolerance {tolerance:g}"
        )
    return found


def _smooth(law: pairs.PairLaw) -> Model | None:
    """The model of a law whose positives have a density on a grid of few dimensions; None for any other."""
    try:
        model = models.of(law)
    except (TypeError, ValueError):  # it does not say, or not in these terms: it can still draw
        return None
    return model if model.dim in _LEVELS and model.sigma == 0 else None


def _by_quadrature(
    h: Callable[[Tensor], Tensor], model: Model, tau: float, rho: float, tolerance: float, dtype: torch.dtype
) -> AsymptoticLoss:
    rho = 0.0 if model.everywhere else rho  # with full support the fibre is the sphere
    last: AsymptoticLoss | None = None
    for n in _LEVELS[model.dim]:
        grid = _Grid.of(model, n)
        alignment, uniformity, mass = grid.terms(grid.evaluate(h, dtype), tau, rho)
        loss = uniformity - alignment / tau
        now = AsymptoticLoss(loss, alignment, uniformity, math.inf, "quadrature", grid.size)
        if last is not None:
            now = now._replace(error=abs(now.loss - last.loss) + abs(mass - 1) / tau)
            if now.error <= tolerance / 10:
                return now
        last = now
    if last is None or last.error > tolerance:
        raise checks.RunFailed(
            f"quadrature on {grid.size} points left an error of {last.error if last else math.inf:.2g} nats, above "
            f"tolerance {tolerance:g}: the map is too rough, or kappa={model.kappa or model.kappa_moved:g} or "
            f"temperature={tau:g} too sharp, for a grid"
        )
    return last


@dataclass(frozen=True)
class _Grid:
    """Fibres and the points of each: z has shape (fibres, points, d)."""

    model: Model
    z: Floats
    fibre_weight: Floats
    point_weight: Floats
    latitude: Floats
    directions: Floats

    @property
    def size(self) -> int:
        return self.z.shape[0] * self.z.shape[1]

    @classmethod
    def of(cls, model: Model, n: int) -> _Grid:
        m, ell = model.m, model.ell
        rule = quadrature.latitude(m, ell, max(n // 2, 2))
        held = quadrature.sphere_rule(m, n)
        free = quadrature.sphere_rule(ell, n) if ell else quadrature.SphereRule(np.zeros((1, 0)), np.ones(1))
        t = np.repeat(rule.t, len(held.x))
        weight = (rule.weight[:, None] * held.weight).reshape(-1)
        u = np.sin(t)[:, None] * np.tile(held.x, (len(rule.t), 1))
        v = np.cos(t)[:, None, None] * free.x
        z = np.concatenate([np.broadcast_to(u[:, None, :], (*v.shape[:2], m)), v], axis=-1)
        return cls(model, z, weight, free.weight, t, free.x)

    def evaluate(self, h: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Floats:
        """h on every point, shape (fibres, points, k)."""
        out = _values(h, torch.from_numpy(self.z.reshape(self.size, -1)).to(dtype))
        return out.reshape(*self.z.shape[:2], -1)

    def terms(self, y: Floats, tau: float, rho: float) -> tuple[float, float, float]:
        """Alignment, uniformity, and the mass of the positive law on the grid, which should be 1."""
        model = self.model
        weight = (self.fibre_weight[:, None] * self.point_weight).reshape(-1)
        alignment = mass = 0.0
        log_fibre = log_everywhere = np.empty(0)
        if model.share < 1 or rho > 0:
            gram = y @ y.transpose(0, 2, 1)
            if model.share < 1:
                alignment, mass = self._held(gram)
            if rho > 0:
                log_w = np.log(self.point_weight)
                log_fibre = special.logsumexp(gram / tau + log_w, axis=2).reshape(-1)
        if model.share > 0 or rho < 1:
            log_everywhere, moved, moved_mass = self._everywhere(y, tau, weight)
            alignment = (1 - model.share) * alignment + model.share * moved
            mass = (1 - model.share) * mass + model.share * moved_mass
        log_negatives = quadrature.log_mixture(rho, lambda: log_fibre, lambda: log_everywhere)
        return alignment, float(weight @ log_negatives), mass

    def _held(self, gram: Floats) -> tuple[float, float]:
        """E⟨h(z), h(z⁺)⟩ of held pairs, by the density of the fibre draw on the points of each fibre."""
        w, model = self.point_weight, self.model
        if model.ell == 0:
            return float(self.fibre_weight @ gram[:, 0, 0]), 1.0
        c = model.fibre_concentration(self.latitude)
        gap = 1 - self.directions @ self.directions.T
        log_p = -c[:, None, None] * gap - sphere.log_phi_scaled(model.ell, c)[:, None, None]
        joint = np.exp(log_p) * w[:, None] * w
        return float(self.fibre_weight @ (joint * gram).sum((1, 2))), float(
            self.fibre_weight @ joint.sum((1, 2))
        )

    def _everywhere(self, y: Floats, tau: float, weight: Floats) -> tuple[Floats, float, float]:
        """log E_U e^⟨h, h'⟩/τ at each point, and the alignment and mass of full-support pairs."""
        model = self.model
        points, values = self.z.reshape(self.size, -1), y.reshape(self.size, -1)
        out, moved, mass = np.empty(self.size), 0.0, 0.0
        scale = float(sphere.log_phi_scaled(model.dim, model.kappa_moved))
        for rows in _blocks(self.size):
            gram = values[rows] @ values.T
            out[rows] = np.log(np.exp((gram - 1) / tau) @ weight) + 1 / tau
            if model.share > 0:
                density = np.exp(model.kappa_moved * (points[rows] @ points.T - 1) - scale)
                moved += float(weight[rows] @ ((density * gram) @ weight))
                mass += float(weight[rows] @ (density @ weight))
        return out, moved, mass


def _blocks(n: int) -> Iterator[slice]:
    step = max(1, _BLOCK // n)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _values(h: Callable[[Tensor], Tensor], z: Tensor) -> Floats:
    with torch.no_grad():
        y = torch.cat([h(part) for part in z.split(65_536)])
    if not isinstance(y, Tensor) or y.ndim != 2 or len(y) != len(z):
        raise ValueError(f"h must map (n, d) to (n, k), got {tuple(y.shape)} from {tuple(z.shape)}")
    y = checks.unit_rows("h(z)", y.detach().double().cpu())
    return np.asarray(y.numpy(), dtype=np.float64)


def _by_replicates(
    h: Callable[[Tensor], Tensor], law: pairs.PairLaw, tau: float, rho: float, dtype: torch.dtype, seed: int
) -> AsymptoticLoss:
    if rho > 0 and not hasattr(law, "sample_support"):
        raise TypeError(
            f"rho = {rho:g} needs a law with sample_support(z, n, generator); {type(law).__name__} has none"
        )
    found = np.array([_replicate(h, law, tau, rho, dtype, seed, i) for i in range(_REPLICATES)])
    alignment, uniformity, bias = found.mean(0)
    losses = found[:, 1] - found[:, 0] / tau
    error = 2 * float(losses.std(ddof=1)) / math.sqrt(_REPLICATES) + float(bias)
    anchors = _FIBRE_ANCHORS if rho > 0 else _ANCHORS
    negatives = (_NEGATIVES if rho < 1 else 0) + (anchors * _FIBRE_NEGATIVES if rho > 0 else 0)
    nodes = _REPLICATES * (2 * _PAIRS + negatives)
    return AsymptoticLoss(
        float(losses.mean()), float(alignment), float(uniformity), error, "quasi_monte_carlo", nodes
    )


def _replicate(
    h: Callable[[Tensor], Tensor],
    law: pairs.PairLaw,
    tau: float,
    rho: float,
    dtype: torch.dtype,
    seed: int,
    i: int,
) -> tuple[float, float, float]:
    """Alignment, uniformity and the bound of its bias from one scrambling."""
    rng = torch.Generator().manual_seed((seed * _REPLICATES + i) % 2**63)
    n = _FIBRE_ANCHORS if rho > 0 else _ANCHORS
    z = _sobol(law.dim, _PAIRS, seed=2 * (seed * _REPLICATES + i)).to(dtype)
    anchor, positive = _values(h, z), _values(h, law.sample(z, rng))
    alignment = float((anchor * positive).sum(1).mean())
    z, anchor = z[:n], anchor[:n]  # the head of a Sobol sequence is one itself
    log_fibre, log_everywhere, bias = np.empty(0), np.empty(0), np.zeros(n)
    if rho < 1:
        others = _values(h, _sobol(law.dim, _NEGATIVES, seed=2 * (seed * _REPLICATES + i) + 1).to(dtype))
        log_everywhere, bias = _log_mean(anchor @ others.T / tau)
    if rho > 0:
        support = law.sample_support(z, _FIBRE_NEGATIVES, rng)  # type: ignore[attr-defined]
        near = _values(h, support.reshape(-1, law.dim)).reshape(n, _FIBRE_NEGATIVES, -1)
        log_fibre, fibre_bias = _log_mean(np.einsum("nk,njk->nj", anchor, near) / tau)
        log_fibre = log_fibre + fibre_bias  # independent draws: the leading bias is known and removed
    log_negatives = quadrature.log_mixture(rho, lambda: log_fibre, lambda: log_everywhere)
    return alignment, float(log_negatives.mean()), float(bias.mean())


def _log_mean(scores: Floats) -> tuple[Floats, Floats]:
    """log of the mean of e^scores along the last axis, and Var/(2nμ²), by which it falls short on average."""
    n, top = scores.shape[-1], scores.max(-1, keepdims=True)
    e = np.exp(scores - top)
    mean = e.mean(-1)
    return np.log(mean) + top[..., 0], (np.square(e).mean(-1) / mean**2 - 1) / (2 * n)


def _sobol(dim: int, n: int, *, seed: int) -> Tensor:
    """n scrambled Sobol points carried onto the sphere through normal quantiles."""
    uniform = qmc.Sobol(dim, scramble=True, seed=np.random.default_rng(seed)).random(n)
    x = special.ndtri(np.clip(uniform, 1e-12, 1 - 1e-12))
    return torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))
