"""The best map of the squeeze family, and the orthogonal map beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from viewspan import sphere
from viewspan.theory import quadrature, squeeze
from viewspan.theory.model import Model

_LOG_LAM = np.linspace(math.log(1e-3), math.log(1e3), 21)
_ANGLE_RULES = (32, 48, 72, 108, 162, 243)  # an absolute value is rough, but a rule is squared
_ANGLES_AGREE = 1e-5
_NEAR = 0.05  # half width in log λ of the search around another rule's λ*


@dataclass(frozen=True)
class Problem:
    """A positive law and the loss it meets; `full` where the fibre is the whole sphere."""

    model: Model
    tau: float
    rho: float
    full: bool

    @property
    def matched(self) -> bool:
        """κ = 1/τ, what Theorems 4.4 and 4.6 assume."""
        kappa = self.model.kappa_moved if self.full else self.model.kappa
        return math.isclose(kappa * self.tau, 1, rel_tol=1e-9)

    @property
    def everything_held(self) -> bool:
        return self.model.ell == 0


@dataclass(frozen=True)
class Squeeze:
    """The best member of the squeeze family h_λ(u, v) ∝ (u, λv).

    Attributes:
        lam: λ* > 0, or None where the infimum is a limit or λ changes nothing.
        limit: ``great_subspheres`` (λ* → ∞), ``held_only`` (λ* → 0), or None.
        loss: L∞ there, nats.
        r2: R² of the best linear readout; at a limit, that of the limit map.
        ape: angle preservation error, in [0, 2].
        r2_limit: at a limit, lim R²(h_λ), which differs from `r2` because R² ignores scale; else None.
        reason: why `lam` is None, or None.
    """

    lam: float | None = None
    limit: str | None = None
    loss: float | None = None
    r2: float | None = None
    ape: float | None = None
    r2_limit: float | None = None
    reason: str | None = None

    @property
    def position(self) -> float:
        """λ in [0, ∞], with the limits as 0 and ∞."""
        if self.limit is not None:
            return math.inf if self.limit == "great_subspheres" else 0.0
        return 1.0 if self.lam is None else self.lam


def orthogonal_loss(model: Model, tau: float, rho: float, n: int) -> float:  # theory.md (2), theory.md (4)
    """L∞ of an orthogonal map by a rule of n nodes."""
    rule = model.rule(n)
    negatives = quadrature.log_mixture(
        rho,
        lambda: model.log_fibre(rule.t, tau),
        lambda: np.full_like(rule.t, sphere.log_phi(model.dim, 1 / tau)),
    )
    return float(rule.weight @ negatives) - model.orthogonal_alignment(n) / tau


def best_squeeze(problem: Problem, n: int, near: float | None) -> Squeeze:
    """The best member by a rule of n nodes; its angles are left to `angles`, which needs rules of its own."""
    model, tau, rho = problem.model, problem.tau, problem.rho
    if problem.everything_held:
        loss = orthogonal_loss(model, tau, rho, n)
        return Squeeze(loss=loss, r2=1.0, ape=0.0, reason="nothing is free: every λ gives the identity")
    if model.sigma > 0:
        return Squeeze(reason="no closed form is known for turned pairs")
    exact = problem.matched and model.share in (0, 1)
    if exact and (problem.full or (rho == 1 and model.convention == "ambient")):
        return Squeeze(lam=1.0, loss=orthogonal_loss(model, tau, rho, n), r2=1.0, ape=0.0)
    if exact and rho == 1:
        return _limit(problem, math.inf, n)
    lam, loss = _minimise(problem, n, near)
    if lam in (0, math.inf):
        return _limit(problem, lam, n)
    if problem.full:  # λ = 1 is stationary by symmetry; rounding must not read as a squeeze
        loss_at_one = float(squeeze.terms(model, tau, rho, 1.0, n).loss[0])
        lam, loss = (1.0, loss_at_one) if loss_at_one <= loss + 1e-10 else (lam, loss)
    return Squeeze(lam=lam, loss=loss, r2=squeeze.recovery(model, lam, n))


def angles(model: Model, lam: float) -> tuple[float, float]:
    """Angle preservation error of h_λ, and its difference from that of the rule before."""
    last = math.inf
    for n in _ANGLE_RULES:
        now = squeeze.angle_error(model, lam, n)
        error, last = abs(now - last), now
        if error <= _ANGLES_AGREE:
            break
    return last, error


def _limit(problem: Problem, lam: float, n: int) -> Squeeze:
    model, tau, rho = problem.model, problem.tau, problem.rho
    towards = squeeze.squeezed_to_free if lam else squeeze.squeezed_to_held
    return Squeeze(
        limit="great_subspheres" if lam else "held_only",
        loss=towards(model, tau, rho, n),
        r2=squeeze.recovery(model, lam, n),
        r2_limit=_recovery_limit(model, lam, n),
        reason=f"no λ in [1e-3, 1e3] is better than the limit λ → {'∞' if lam else '0'} by more than 1e-10 nats",
    )


def _recovery_limit(model: Model, lam: float, n: int) -> float:
    """lim R²(h_λ) as λ → 0 or ∞: the vanishing part is still read out, by a readout that grows without bound."""
    kept, lost = (model.ell, model.m) if lam else (model.m, model.ell)
    rule = quadrature.latitude(lost, kept, n)
    a, b, w = np.sin(rule.t) ** 2, np.cos(rule.t) ** 2, rule.weight
    r2_kept = (w @ np.sqrt(b)) ** 2 / (w @ b)
    r2_lost = 0.0 if kept <= 2 else (w @ (a / np.sqrt(b))) ** 2 / ((w @ a) * (w @ (a / b)))  # E a/b diverges
    return float((kept * r2_kept + lost * r2_lost) / model.dim)


def _minimise(problem: Problem, n: int, near: float | None) -> tuple[float, float]:
    """λ* in [0, ∞] and the loss there: a grid in log λ, then Brent's method, then the two limits.

    `near` is λ* under a coarser rule: the grid is skipped if the minimum is still inside a narrow bracket around it.
    """
    model, tau, rho = problem.model, problem.tau, problem.rho

    def at(x: float) -> float:
        return float(squeeze.terms(model, tau, rho, math.exp(x), n).loss[0])

    def search(low: float, high: float) -> tuple[float, float]:
        found = optimize.minimize_scalar(at, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
        return float(found.x), float(found.fun)

    limits = {
        0.0: squeeze.squeezed_to_held(model, tau, rho, n),
        math.inf: squeeze.squeezed_to_free(model, tau, rho, n),
    }
    end = min(limits, key=lambda lam: limits[lam])
    x = loss = math.nan
    if near is not None:
        x, loss = search(math.log(near) - _NEAR, math.log(near) + _NEAR)
    if near is None or abs(x - math.log(near)) > 0.9 * _NEAR:
        losses = squeeze.terms(model, tau, rho, np.exp(_LOG_LAM), n).loss
        best, last = int(np.argmin(losses)), len(_LOG_LAM) - 1
        if best in (0, last) and limits[end] <= losses[best]:
            return end, limits[end]
        x, loss = search(_LOG_LAM[max(best - 1, 0)], _LOG_LAM[min(best + 1, last)])
    return (end, limits[end]) if limits[end] <= loss + 1e-10 else (math.exp(x), loss)
