r"""What forgetting the sign of the held part costs on pairs that move everything.

A fold h(u, v) = (‖u‖, v), for one held coordinate u → |u|, is an exact minimiser of the support-corrected loss
(arXiv 2606.04280, appendix A.5) and a map that training falls into. Pairs of full support see it:

    L(h) = −E[√(ss') + rr'·A_ℓ(κrr')]/τ + E log E' e^(√(ss')/τ)·Φ_ℓ(rr'/τ),   s = ‖u‖², r = ‖v‖.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from viewspan import checks, pairs, sphere
from viewspan.theory import model as models
from viewspan.theory import quadrature, squeeze
from viewspan.theory.model import Model

_RULES = (24, 36, 54, 81, 122, 183, 274, 411)
_TOLERANCE = 1e-8


def fold_cost(law: pairs.PairLaw, *, temperature: float, n_folded: int = 1) -> float:  # theory.md (19)
    r"""How far a fold's standard loss lies above that of an isometry on full-support pairs, nats at M → ∞.

    The unit in which a trained map's excess on moved pairs is judged: 0 at an isometry, 1 at an exact fold. It is a
    necessary sign of a fold only: other maps cost as much.

    Args:
        law: the moved pairs, full support in each.
        temperature: τ > 0.
        n_folded: coordinates of which only the length is kept, 1 <= n_folded < d.

    Returns:
        L∞(fold) − L∞(isometry), nats.

    Raises:
        RunFailed: if no two quadrature rules agree.

    Example:
        >>> round(fold_cost(pairs.FullSupport(dim=3, kappa=1 / 0.3), temperature=0.3), 4)
        0.268
    """
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    moved = models.of(law)
    if moved.share < 1:
        raise ValueError(f"law must have full support in every pair, got {law}")
    checks.integer("n_folded", n_folded, low=1, high=moved.dim - 1)
    model = replace(moved, m=n_folded)
    isometry = float(sphere.log_phi(model.dim, 1 / tau)) - model.orthogonal_alignment() / tau
    last = math.inf
    for n in _RULES:
        now = _loss(model, tau, n) - isometry
        if abs(now - last) <= _TOLERANCE * max(1, abs(isometry)):
            return now
        last = now
    raise checks.RunFailed(f"quadrature of the fold did not settle for {law} and temperature={tau:g}")


def _loss(model: Model, tau: float, n: int) -> float:
    """L∞ of the fold by rules of n nodes."""
    weight, _, cos_v, t, other = squeeze.moved_kernel(model, n)
    t = t[:, None]
    alignment = weight * (np.sin(t) * np.sin(other) + np.cos(t) * np.cos(other) * cos_v)
    rule = model.rule(n)
    other, log_w = quadrature.window(rule.t, squeeze.half_width(tau, n), model.m, model.ell, n, np.ones(1))
    gap = 2 * np.sin((t - other) / 2) ** 2 / tau
    kernel = quadrature.log_phi_scaled(model.ell, np.cos(t) * np.cos(other) / tau, 1 / tau)
    everywhere = quadrature.log_sum(log_w + kernel - gap) + 1 / tau
    return float(rule.weight @ everywhere - alignment.sum() / tau)
