r"""The squeeze family h_λ(u, v) = (u, λv)/N, N² = s + λ²r²: what a linear encoder does when u is held.

With U = s/N², V = λ²r²/N² (so √U = sin φ, √V = cos φ, tan φ = tan t/λ) the limit M → ∞ of the loss is

    L(h_λ) = −alignment/τ + E log(ρ·e^(U/τ)Φ_ℓ(V/τ) + (1 − ρ)·E_s' Φ_m(√(UU')/τ)Φ_ℓ(√(VV')/τ)),
    alignment = E[U + V·A_ℓ(c)] for held pairs.

Reference: arXiv 2606.04280, Theorem 4.5 and its proof.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from viewspan import sphere
from viewspan.theory import quadrature
from viewspan.theory.model import Model

Floats = npt.NDArray[np.float64]


class Terms(NamedTuple):
    """Alignment E⟨h(z), h(z⁺)⟩, uniformity E log E_neg e^⟨h, h'⟩/τ (nats) and their loss, one value per λ."""

    alignment: Floats
    uniformity: Floats
    loss: Floats


def terms(model: Model, tau: float, rho: float, lam: npt.ArrayLike, n: int) -> Terms:  # theory.md (5)
    """The loss of h_λ and its two parts.

    Args:
        model: the positive law.
        tau: temperature τ > 0.
        rho: share ρ of the negatives on the fibre.
        lam: λ > 0, a number or an array.
        n: nodes of the outer and of the inner rule.
    """
    lam = np.atleast_1d(np.asarray(lam, float))
    rule = model.rule(n)
    phi = np.arctan2(np.sin(rule.t), lam[:, None] * np.cos(rule.t))
    u, v = np.sin(phi) ** 2, np.cos(phi) ** 2
    alignment = np.zeros(len(lam))
    if model.share < 1:
        alignment += (1 - model.share) * ((u + v * _fibre_cosine(model, n)) @ rule.weight)
    if model.share > 0:
        alignment += model.share * moved_alignment(model, lam, n)
    log_negatives = _log_negatives(model, tau, rho, lam, phi, n)
    uniformity = log_negatives @ rule.weight
    return Terms(alignment, uniformity, uniformity - alignment / tau)


def _log_negatives(model: Model, tau: float, rho: float, lam: Floats, phi: Floats, n: int) -> Floats:
    """log E_neg e^⟨h(z), h'⟩/τ at each outer node."""
    return quadrature.log_mixture(
        rho,
        lambda: (
            1 / tau + quadrature.log_phi_scaled(model.ell, np.cos(phi) ** 2 / tau, 1 / tau)
        ),  # (u + v)/τ = 1/τ
        lambda: log_everywhere(model, tau, lam, phi, n),
    )


def log_everywhere(model: Model, tau: float, lam: Floats, phi: Floats, n: int) -> Floats:
    """log E_s' Φ_m(√(UU')/τ)Φ_ℓ(√(VV')/τ) at each squeezed angle φ, shape of `phi`."""
    t, log_w = quadrature.window(phi, half_width(tau, n), model.m, model.ell, n, lam[:, None])
    other = np.arctan2(np.sin(t), np.expand_dims(lam, tuple(range(1, phi.ndim + 1))) * np.cos(t))
    angle = phi[..., None]
    gap = 2 * np.sin((angle - other) / 2) ** 2 / tau
    kernel = quadrature.log_phi_scaled(model.m, np.sin(angle) * np.sin(other) / tau, 1 / tau)
    kernel += quadrature.log_phi_scaled(model.ell, np.cos(angle) * np.cos(other) / tau, 1 / tau)
    return quadrature.log_sum(log_w + kernel - gap) + 1 / tau


def moved_alignment(model: Model, lam: Floats, n: int) -> Floats:  # theory.md (13)
    """E⟨h_λ(z), h_λ(z⁺)⟩ of full-support pairs z⁺ ~ vMF(z, κ), one value per λ."""
    weight, cos_u, cos_v, t, other = moved_kernel(model, n)
    phi = np.arctan2(np.sin(t), lam[:, None] * np.cos(t))[..., None]
    phi_other = np.arctan2(np.sin(other), np.expand_dims(lam, (1, 2)) * np.cos(other))
    score = np.sin(phi) * np.sin(phi_other) * cos_u + np.cos(phi) * np.cos(phi_other) * cos_v
    return (weight * score).sum(axis=(-2, -1))


@functools.lru_cache(maxsize=16)
def _fibre_cosine(model: Model, n: int) -> Floats:
    """The mean cosine of the free parts of a held pair at each outer node."""
    return model.fibre_cosine(model.rule(n).t)


@functools.lru_cache(maxsize=16)
def moved_kernel(model: Model, n: int) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Joint weights of the two latitudes of a full-support pair, and the mean cosines of its two parts."""
    kappa, m, ell = model.kappa_moved, model.m, model.ell
    rule = quadrature.latitude(m, ell, n)
    one = np.ones(1)
    half = half_width(1 / kappa, n) if kappa > 0 else np.pi / 2
    other, log_w = quadrature.window(rule.t, half, m, ell, n, one)
    t = rule.t[:, None]
    a, b = kappa * np.sin(t) * np.sin(other), kappa * np.cos(t) * np.cos(other)
    log_joint = rule.log_weight[:, None] + log_w + sphere.log_phi_scaled(m, a) + sphere.log_phi_scaled(ell, b)
    log_joint = log_joint - 2 * kappa * np.sin((t - other) / 2) ** 2 - sphere.log_phi_scaled(model.dim, kappa)
    return np.exp(log_joint), sphere.mean_cosine(m, a), sphere.mean_cosine(ell, b), rule.t, other


def half_width(tau: float, n: int) -> float:
    """Half width of the angle outside which e^((cos − 1)/τ) is rounding noise; finer rules look further."""
    cosine = 1 - (40 + n / 2) * tau
    return float(np.arccos(cosine)) if cosine > 0 else np.pi / 2


def squeezed_to_held(model: Model, tau: float, rho: float, n: int) -> float:  # theory.md (6)
    """lim λ → 0 of L(h_λ): only u is kept, h = u/‖u‖."""
    alignment, everywhere = 1.0, sphere.log_phi(model.m, 1 / tau)
    if model.share > 0:
        weight, cos_u, _, _, _ = moved_kernel(model, n)
        alignment = 1 - model.share + model.share * float((weight * cos_u).sum())
    negatives = quadrature.log_mixture(rho, lambda: np.array(1 / tau), lambda: everywhere)
    return -alignment / tau + float(negatives)


def squeezed_to_free(model: Model, tau: float, rho: float, n: int) -> float:  # theory.md (6)
    """lim λ → ∞ of L(h_λ): every fibre goes to one great subsphere, h = v/‖v‖."""
    rule = model.rule(n)
    alignment = (1 - model.share) * float(rule.weight @ _fibre_cosine(model, n))
    if model.share > 0:
        weight, _, cos_v, _, _ = moved_kernel(model, n)
        alignment += model.share * float((weight * cos_v).sum())
    kernel = float(sphere.log_phi(model.ell, 1 / tau))
    return -alignment / tau + kernel


def recovery(model: Model, lam: float, n: int) -> float:  # theory.md (7)
    """R² of the best linear readout of z from h_λ(z): 1 best; λ = 0 and ∞ are the limit maps themselves."""
    rule = quadrature.latitude(model.m, model.ell, n)
    s, r2, w = np.sin(rule.t) ** 2, np.cos(rule.t) ** 2, rule.weight
    if lam == 0:
        return float(w @ np.sqrt(s)) ** 2
    if lam == np.inf:
        return float(w @ np.sqrt(r2)) ** 2
    scale = np.hypot(np.sin(rule.t), lam * np.cos(rule.t))
    r2_u = (w @ (s / scale)) ** 2 / ((w @ s) * (w @ (s / scale**2)))
    r2_v = (w @ (r2 / scale)) ** 2 / ((w @ r2) * (w @ (r2 / scale**2)))
    return float((model.m * r2_u + model.ell * r2_v) / model.dim)


def angle_error(model: Model, lam: float, n: int) -> float:  # theory.md (8)
    """Angle preservation error E|⟨z, z'⟩ − ⟨h_λ, h_λ'⟩| over independent z, z', in [0, 2]; 0 best."""
    rule = quadrature.latitude(model.m, model.ell, n)
    sin, cos = np.sin(rule.t), np.cos(rule.t)
    if lam == 0:
        phi = np.full_like(rule.t, np.pi / 2)
    elif lam == np.inf:
        phi = np.zeros_like(rule.t)
    else:
        phi = np.arctan2(sin, lam * cos)
    kept = np.flatnonzero(rule.weight > 1e-14)
    i, j = (kept[k] for k in np.triu_indices(len(kept)))  # the two points may change places
    a = sin[i] * sin[j] - np.sin(phi[i]) * np.sin(phi[j])
    b = cos[i] * cos[j] - np.cos(phi[i]) * np.cos(phi[j])
    m, ell = model.m, model.ell
    if ell == 1:  # the closed form averages over the larger sphere
        a, b, m, ell = b, a, ell, m
    c, weight = quadrature.cosine_rule(m, 8 + n // 4)
    inner = quadrature.mean_absolute(a[:, None] * c, np.broadcast_to(b[:, None], (len(b), len(c))), ell)
    return float(np.where(i == j, 1.0, 2.0) * rule.weight[i] * rule.weight[j] @ (inner @ weight))
