"""`predict`: what the loss will prefer under a pair law, by quadrature, before anyone trains."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import optimize

from viewspan import checks, pairs, records, sphere
from viewspan.theory import finite_sample, quadrature, squeeze
from viewspan.theory import model as models
from viewspan.theory.model import Model

_RULES = (16, 24, 36, 54, 81, 122, 183, 274, 411)
_TOLERANCE = {"orthogonal_loss": 1e-8, "lam": 1e-4, "loss": 1e-6, "r2": 1e-5, "ape": 1e-4}
_LOG_LAM = np.linspace(math.log(1e-3), math.log(1e3), 21)
_NEAR = 0.05  # half width in log λ of the search around another rule's λ*


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


@dataclass(frozen=True)
class Prediction:
    """What the loss will prefer; all losses are L∞ = lim (L − log M) in nats.

    Attributes:
        dim: d.
        n_fixed: m, held coordinates (0 for full support).
        kappa: concentration κ of the positives.
        temperature: τ.
        rho: share ρ of the negatives on the fibre.
        convention: ``ambient`` or ``subsphere``; None for full support.
        orthogonal_loss: L∞ of any orthogonal map.
        floor: the least any measurable map can reach under any pair law (ρ = 0 only).
        lower_bound: the best bound known for this law: no map has a lower loss.
        squeeze: the best map of the squeeze family.
        incentive_nats: orthogonal_loss − inf L, the incentive to distort; None where nothing is known.
        incentive_bits: the same in bits.
        incentive: ``exact``, ``at_least`` or ``unknown``.
        bound: one sentence that says what `incentive_nats` is.
        rival: the map that gives it, or None where orthogonal maps are minimisers.
        orthogonal_is_minimiser: True by a theorem, False where a better map is known, None where unknown.
        theorem: what says so, or None.
        finite_m_coefficient: c of L_M − log M = L∞ + c/M for ``orthogonal``, ``squeeze`` and ``floor``.
        error: the largest of `errors`.
        errors: for each number, the difference of two quadrature rules (relative for ``lam``).
        ms: milliseconds taken.
    """

    dim: int
    n_fixed: int
    kappa: float
    temperature: float
    rho: float
    convention: str | None
    orthogonal_loss: float
    floor: float | None
    lower_bound: float
    squeeze: Squeeze
    incentive_nats: float | None
    incentive_bits: float | None
    incentive: str
    bound: str
    rival: str | None
    orthogonal_is_minimiser: bool | None
    theorem: str | None
    finite_m_coefficient: dict[str, float | None]
    error: float
    errors: dict[str, float]
    share: float | None = None
    sigma: float | None = None
    ms: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, no Infinity and no NaN."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["squeeze"] = vars(self.squeeze)
        result: dict[str, Any] = records.jsonable(plain)
        return result

    def loss_minus_log_m(self, which: str, *, m: int) -> float | None:
        """L∞ + c/M: the loss minus log M at M negatives, nats.

        Args:
            which: ``orthogonal``, ``squeeze`` or ``floor``.
            m: number of negatives M.

        Returns:
            None where the map has no loss here (no floor for ρ > 0) or c overflows.
        """
        checks.choice("which", which, ("orthogonal", "squeeze", "floor"))
        checks.integer("m", m, low=1)
        losses = {"orthogonal": self.orthogonal_loss, "squeeze": self.squeeze.loss, "floor": self.floor}
        loss, c = losses[which], self.finite_m_coefficient[which]
        return None if loss is None or c is None else loss + c / m


def predict(law: pairs.PairLaw, *, temperature: float, rho: float = 0.0) -> Prediction:
    r"""Predict what InfoNCE with infinitely many negatives prefers under a pair law.

    Reference: arXiv 2606.04280, Theorems 4.4, 4.5 and 4.6.

    Args:
        law: `FullSupport`, `FixedLatents`, `Mixture` or `Jittered`.
        temperature: τ > 0.
        rho: ρ in [0, 1], share of the negatives drawn on the anchor's own fibre: 0 the standard loss,
            1 the support-corrected one. With full support the fibre is the sphere and ρ changes nothing.

    Returns:
        `Prediction`.

    Raises:
        ValueError: for a temperature or ρ out of range, or ρ > 0 with a law whose fibre is not known.
        TypeError: for a law without closed forms.
        RunFailed: if two quadrature rules never agree.

    Example:
        >>> law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="subsphere")
        >>> p = predict(law, temperature=0.3)
        >>> round(p.squeeze.lam, 4), round(p.squeeze.loss, 4), round(p.floor, 4), round(p.incentive_nats, 4)
        (0.7296, -1.5488, -1.8984, 0.3736)
    """
    start = time.perf_counter()
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    rho = checks.number("rho", rho, low=0, high=1)
    if isinstance(law, pairs.Jittered) and law.sigma == 0:
        law = law.held
    model = models.of(law)
    if isinstance(law, pairs.Jittered) and rho > 0:
        raise ValueError(
            f"rho must be 0 for Jittered pairs, whose fibre is not a sphere of free latents, got {rho:g}"
        )
    full = (
        isinstance(law, pairs.FullSupport)
        or getattr(law, "n_fixed", None) == 0
        or (model.share == 1 and rho == 0)
    )
    problem = _Problem(model, tau, 0.0 if full else rho, full)
    numbers, errors, rule = _agreeing(problem)
    verdict = _judge(problem, numbers, errors["orthogonal_loss"] + errors.get("loss", 0.0))
    coefficients = _coefficients(problem, numbers, rule)
    jittered = isinstance(law, pairs.Jittered)
    return Prediction(
        dim=model.dim,
        n_fixed=0 if isinstance(law, pairs.FullSupport) else getattr(getattr(law, "held", law), "n_fixed", 0),
        kappa=getattr(getattr(law, "held", law), "kappa", model.kappa_moved),
        temperature=tau,
        rho=rho,
        convention=getattr(getattr(law, "held", law), "convention", None),
        orthogonal_loss=numbers.orthogonal,
        floor=floor(model.dim, temperature=tau) if rho == 0 else None,
        squeeze=numbers.squeeze,
        finite_m_coefficient=coefficients,
        error=max(errors.values()),
        errors=errors,
        share=model.share if isinstance(law, pairs.Mixture) else None,
        sigma=model.sigma if jittered else None,
        ms=1e3 * (time.perf_counter() - start),
        **vars(verdict),
    )


def floor(dim: int, *, temperature: float) -> float:
    """The floor −1/τ + log Φ_d(1/τ) of the standard loss over all measurable maps and all pair laws, nats.

    Args:
        dim: d >= 2.
        temperature: τ > 0.

    Example:
        >>> round(floor(3, temperature=0.3), 4), round(floor(10, temperature=0.3), 4)
        (-1.8984, -2.8011)
    """
    checks.integer("dim", dim, low=2)
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    return float(sphere.log_phi_scaled(dim, 1 / tau))


@dataclass(frozen=True)
class _Problem:
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
class _Numbers:
    orthogonal: float
    squeeze: Squeeze


@dataclass(frozen=True)
class _Verdict:
    lower_bound: float
    incentive_nats: float | None
    incentive_bits: float | None
    incentive: str
    bound: str
    rival: str | None
    orthogonal_is_minimiser: bool | None
    theorem: str | None


def _agreeing(problem: _Problem) -> tuple[_Numbers, dict[str, float], int]:
    """The numbers under the finer of the first two consecutive rules that agree."""
    last: _Numbers | None = None
    for n in _RULES:
        now = _numbers(problem, n, last)
        if last is not None:
            errors = _differences(last, now)
            size = max(1.0, abs(now.orthogonal))  # losses grow like 1/τ
            if errors is not None and all(e <= _TOLERANCE[name] * size for name, e in errors.items()):
                return now, errors, n
        last = now
    raise checks.RunFailed(
        f"quadrature did not settle for dim={problem.model.dim}, temperature={problem.tau:g}, rho={problem.rho:g}: "
        f"rules of {_RULES[-2]} and {_RULES[-1]} nodes differ by {errors if errors else 'the kind of minimum'}"
    )


def _differences(a: _Numbers, b: _Numbers) -> dict[str, float] | None:
    """Number by number; None if the two rules disagree on the kind of minimum."""
    if a.squeeze.limit != b.squeeze.limit or (a.squeeze.lam is None) != (b.squeeze.lam is None):
        return None
    out = {"orthogonal_loss": abs(a.orthogonal - b.orthogonal)}
    if a.squeeze.lam is not None and b.squeeze.lam is not None:
        out["lam"] = abs(a.squeeze.lam / b.squeeze.lam - 1)
    for name in ("loss", "r2", "ape"):
        x, y = getattr(a.squeeze, name), getattr(b.squeeze, name)
        if x is not None and y is not None:
            out[name] = abs(x - y)
    return out


def _numbers(problem: _Problem, n: int, last: _Numbers | None) -> _Numbers:
    orthogonal = orthogonal_loss(problem.model, problem.tau, problem.rho, n)
    return _Numbers(orthogonal, _best_squeeze(problem, n, None if last is None else last.squeeze.lam))


def orthogonal_loss(model: Model, tau: float, rho: float, n: int) -> float:
    """L∞ of an orthogonal map by a rule of n nodes."""
    everywhere = float(sphere.log_phi(model.dim, 1 / tau))
    alignment = model.orthogonal_alignment(n)
    if rho == 0:
        return everywhere - alignment / tau
    if model.ell == 0:
        fibre = np.array([1 / tau])
        weight = np.ones(1)
    else:
        rule = quadrature.latitude(model.m, model.ell, n)
        weight = rule.weight
        fibre = np.sin(rule.t) ** 2 / tau + sphere.log_phi(model.ell, np.cos(rule.t) ** 2 / tau)
    if rho < 1:
        fibre = np.logaddexp(np.log(rho) + fibre, np.log1p(-rho) + everywhere)
    return float(weight @ fibre) - alignment / tau


def _best_squeeze(problem: _Problem, n: int, near: float | None) -> Squeeze:
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
    r2, ape = squeeze.recovery(model, lam, n), squeeze.angle_error(model, lam, 2 * n)
    return Squeeze(lam=lam, loss=loss, r2=r2, ape=ape)


def _limit(problem: _Problem, lam: float, n: int) -> Squeeze:
    model, tau, rho = problem.model, problem.tau, problem.rho
    towards = squeeze.squeezed_to_free if lam else squeeze.squeezed_to_held
    return Squeeze(
        limit="great_subspheres" if lam else "held_only",
        loss=towards(model, tau, rho, n),
        r2=squeeze.recovery(model, lam, n),
        ape=squeeze.angle_error(model, lam, 2 * n),
        r2_limit=_recovery_limit(model, lam, n),
        reason=f"no λ is better than the limit λ → {'∞' if lam else '0'} by more than 1e-10 nats",
    )


def _recovery_limit(model: Model, lam: float, n: int) -> float:
    """lim R²(h_λ) as λ → 0 or ∞: the vanishing part is still read out, by a readout that grows without bound."""
    kept, lost = (model.ell, model.m) if lam else (model.m, model.ell)
    rule = quadrature.latitude(lost, kept, n)
    a, b, w = np.sin(rule.t) ** 2, np.cos(rule.t) ** 2, rule.weight
    r2_kept = (w @ np.sqrt(b)) ** 2 / (w @ b)
    r2_lost = 0.0 if kept <= 2 else (w @ (a / np.sqrt(b))) ** 2 / ((w @ a) * (w @ (a / b)))  # E a/b diverges
    return float((kept * r2_kept + lost * r2_lost) / model.dim)


def _minimise(problem: _Problem, n: int, near: float | None) -> tuple[float, float]:
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


def _coefficients(problem: _Problem, numbers: _Numbers, n: int) -> dict[str, float | None]:
    model, tau, rho = problem.model, problem.tau, problem.rho
    out: dict[str, float | None] = {"orthogonal": None, "squeeze": None, "floor": None}
    if rho == 0:
        out["floor"] = finite_sample.floor_coefficient(model.dim, tau)
    if model.sigma == 0:
        out["orthogonal"] = finite_sample.coefficient(model, tau, rho, 1.0, n)
        out["squeeze"] = finite_sample.coefficient(model, tau, rho, numbers.squeeze.position, n)
    return out


def _judge(problem: _Problem, numbers: _Numbers, error: float) -> _Verdict:
    """What is proved, what is exhibited, and what is only bounded."""
    loss = numbers.orthogonal
    proved = _proved(problem)
    if proved is not None:
        return _verdict(loss, loss, "exact", f"exact: {proved}", None, True, proved)
    rivals = _rivals(problem, numbers)
    name = min(rivals, key=lambda key: rivals[key])
    best = rivals[name]
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
) -> _Verdict:  # fmt: skip
    nats = None if best is None else max(loss - best, 0.0)
    bits = None if nats is None else nats / math.log(2)
    if lower is None:
        lower = loss if best is None else best
    return _Verdict(lower, nats, bits, kind, bound, rival, minimiser, theorem)


def _proved(problem: _Problem) -> str | None:
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


def _attained(problem: _Problem) -> str | None:
    """Why the infimum is known although orthogonal maps do not reach it, or None."""
    model = problem.model
    if problem.full or model.share or model.sigma:
        return None
    if problem.rho == 0:
        return "the floor is attained by h = φ(u), φ measure-preserving onto the sphere"
    if problem.rho == 1 and model.kappa * problem.tau <= 1 + 1e-9:
        return "the entropy bound is attained by a free part of squared length τc, c the concentration on the fibre"
    return None


def _rivals(problem: _Problem, numbers: _Numbers) -> dict[str, float]:
    """Losses of known maps other than orthogonal ones."""
    model, tau, rho = problem.model, problem.tau, problem.rho
    rivals = {"constant": 0.0}
    if numbers.squeeze.loss is not None and not problem.everything_held:
        rivals["squeeze"] = numbers.squeeze.loss
    if not problem.full and model.share == 0 and model.sigma == 0:
        everywhere = float(sphere.log_phi(model.dim, 1 / tau))
        mixed = squeeze.mixed(rho, 1 / tau, everywhere)
        rivals["spreading"] = mixed - 1 / tau
        if rho == 1 and model.ell:
            rule = quadrature.latitude(model.m, model.ell, _RULES[-1])
            c = model.fibre_concentration(rule.t)
            v = np.minimum(1, tau * c)
            fibre = sphere.log_phi(model.ell, v / tau) - v * model.fibre_cosine(rule.t) / tau
            rivals["rescaled"] = float(rule.weight @ fibre)
    return rivals


def _lower_bound(problem: _Problem) -> float:
    """The largest of the lower bounds known for every map."""
    model, tau, rho = problem.model, problem.tau, problem.rho
    bounds = [floor(model.dim, temperature=tau)]
    if problem.full:
        bounds.append(float(sphere.entropy(model.dim, model.kappa_moved)))
    elif model.share == 0 and model.sigma == 0 and rho > 0:
        entropy = model.fibre_entropy(_RULES[-1])
        bounds.append(math.log(rho) + entropy)  # the fibre's own negatives are a part of all negatives
        bounds.append(rho * entropy + (1 - rho) * bounds[0])  # concavity of the logarithm
    return max(bounds)
