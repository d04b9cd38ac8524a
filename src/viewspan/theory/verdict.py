"""What is proved about the minimisers, what is exhibited, and what is only bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from viewspan import sphere
from viewspan.theory import quadrature
from viewspan.theory.model import floor
from viewspan.theory.optimum import Problem, Squeeze

_NODES = 411  # one-dimensional rules cost nothing


@dataclass(frozen=True)
class Numbers:
    """What one quadrature rule gives."""

    orthogonal: float
    squeeze: Squeeze


@dataclass(frozen=True)
class Verdict:
    """What is known of the minimisers under a law and a loss; losses are L∞ in nats.

    Attributes:
        lower_bound: the best bound known for this law: no map has a lower loss.
        incentive_nats: orthogonal_loss − inf L, the incentive to distort; None where nothing is known.
        incentive_bits: the same in bits.
        incentive: ``exact``, ``at_least`` or ``unknown``.
        bound: one sentence that says what `incentive_nats` is.
        rival: the map that gives it, or None where orthogonal maps are minimisers.
        orthogonal_is_minimiser: True by a theorem, False where a better map is known, None where unknown.
        theorem: what says so, or None.
    """

    lower_bound: float
    incentive_nats: float | None
    incentive_bits: float | None
    incentive: str
    bound: str
    rival: str | None
    orthogonal_is_minimiser: bool | None
    theorem: str | None


def judge(problem: Problem, numbers: Numbers, error: float) -> Verdict:  # theory.md (10)
    """What is proved, what is exhibited, and what is only bounded."""
    loss = numbers.orthogonal
    proved = _proved(problem)
    if proved is not None:
        return _verdict(loss, loss, "exact", f"exact: {proved}", None, True, proved)
    rivals = _rivals(problem, numbers)
    best = min(rivals.values())
    name = next(key for key, value in rivals.items() if value <= best + 1e-12 * max(1, abs(best)))
    better = best < loss - max(10 * error, 1e-12)
    attained = _attained(problem)
    lower = _lower_bound(problem)
    if attained is not None:
        lower = min(lower, best)
        return _verdict(loss, best, "exact", f"exact: {attained}", name, False if better else None, attained)
    if better:
        bound = f"at least: the {name} map is better by this much; the infimum is not known"
        return _verdict(loss, best, "at_least", bound, name, False, None, lower)
    bound = f"unknown: no better map is known, and none can be better by more than {loss - lower:.4g} nats"
    return _verdict(loss, None, "unknown", bound, None, None, None, lower)


def _verdict(
    loss: float, best: float | None, kind: str, bound: str, rival: str | None, minimiser: bool | None,
    theorem: str | None, lower: float | None = None,
) -> Verdict:  # fmt: skip
    nats = None if best is None else max(loss - best, 0.0)
    bits = None if nats is None else nats / math.log(2)
    if lower is None:
        lower = loss if best is None else best
    return Verdict(lower, nats, bits, kind, bound, rival, minimiser, theorem)


def _proved(problem: Problem) -> str | None:
    """The theorem that makes orthogonal maps minimisers, or None."""
    if problem.full and problem.matched:
        return "Theorem 4.4: full support and κ = 1/τ"
    if problem.model.share or problem.model.sigma:
        return None
    if problem.everything_held:
        if problem.rho == 1:
            return "every map has loss 0: the negatives are the positive"
        return "positives are the anchors, so alignment is 1 for every map and uniform h is best"
    if problem.rho == 1 and problem.matched and problem.model.convention == "ambient":
        return "Theorem 4.6: negatives on the fibre, Eq. (6), κ = 1/τ"
    return None


def _attained(problem: Problem) -> str | None:
    """Why the infimum is known although orthogonal maps do not reach it, or None."""
    model = problem.model
    if problem.full or model.share or model.sigma:
        return None
    if problem.rho == 0:
        return "the floor is attained by h = φ(u), φ measure-preserving onto the sphere"
    if problem.rho == 1 and model.kappa * problem.tau <= 1 + 1e-9:
        return "the entropy bound is attained by a free part of squared length τc, c the concentration on the fibre"
    return None


def _rivals(problem: Problem, numbers: Numbers) -> dict[str, float]:
    """Losses of known maps other than orthogonal ones; of equal ones the first is named."""
    model, tau, rho = problem.model, problem.tau, problem.rho
    rivals = {}
    if not problem.full and model.share == 0 and model.sigma == 0:
        if rho == 1 and model.ell:
            rule = model.rule(_NODES)
            c = model.fibre_concentration(rule.t)
            v = np.minimum(1, tau * c)
            fibre = sphere.log_phi(model.ell, v / tau) - v * model.fibre_cosine(rule.t) / tau
            rivals["rescaled"] = float(rule.weight @ fibre)
        negatives = quadrature.log_mixture(
            rho, lambda: np.array(1 / tau), lambda: sphere.log_phi(model.dim, 1 / tau)
        )
        rivals["spreading"] = float(negatives) - 1 / tau
    if numbers.squeeze.loss is not None and not problem.everything_held:
        rivals["squeeze"] = numbers.squeeze.loss
    return {**rivals, "constant": 0.0}


def _lower_bound(problem: Problem) -> float:  # theory.md (11)
    """The largest of the lower bounds known for every map."""
    model, tau, rho = problem.model, problem.tau, problem.rho
    bounds = [floor(model.dim, temperature=tau)]
    if problem.full:
        bounds.append(float(sphere.entropy(model.dim, model.kappa_moved)))
    elif model.share == 0 and model.sigma == 0 and rho > 0:
        entropy = model.fibre_entropy(_NODES)
        bounds.append(math.log(rho) + entropy)  # the fibre's own negatives are a part of all negatives
        bounds.append(rho * entropy + (1 - rho) * bounds[0])  # concavity of the logarithm
    return max(bounds)
