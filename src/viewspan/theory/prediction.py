"""`predict`: what the loss will prefer under a pair law, by quadrature, before anyone trains."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from viewspan import checks, pairs, records
from viewspan.theory import finite_sample
from viewspan.theory import model as models
from viewspan.theory.model import floor
from viewspan.theory.optimum import Problem, Squeeze, angles, best_squeeze, orthogonal_loss
from viewspan.theory.verdict import Numbers, Verdict, judge

_RULES = (16, 24, 36, 54, 81, 122, 183, 274, 411, 617)
_TOLERANCE = {"orthogonal_loss": 1e-8, "lam": 1e-4, "loss": 1e-6, "r2": 1e-5, "ape": 1e-4}


@dataclass(frozen=True, kw_only=True)
class Prediction(Verdict):
    """What the loss will prefer, the numbers behind a `Verdict`; all losses are L∞ = lim (L − log M) in nats.

    Attributes:
        dim: d.
        n_fixed: m, held coordinates (0 for full support).
        kappa: concentration κ of the positives.
        temperature: τ.
        rho: share ρ of the negatives on the fibre.
        convention: ``ambient`` or ``subsphere``; None where every pair has full support.
        orthogonal_loss: L∞ of any orthogonal map.
        floor: the least any measurable map can reach under any pair law (ρ = 0 only).
        squeeze: the best map of the squeeze family.
        finite_m_coefficient: c of L_M − log M = L∞ + c/M for ``orthogonal``, ``squeeze`` and ``floor``.
        error: the largest of `errors`.
        errors: for each number, the difference of two quadrature rules (relative for ``lam``).
        share: ε of full-support pairs where others hold latents; else None.
        sigma: standard deviation of the turn, radians, where there is one; else None.
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
    squeeze: Squeeze
    finite_m_coefficient: dict[str, float | None]
    error: float
    errors: dict[str, float]
    share: float | None = None
    sigma: float | None = None
    ms: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, no Infinity and no NaN."""
        plain = {
            name: getattr(self, name) for name in (*Prediction.__annotations__, *Verdict.__annotations__)
        }
        plain["squeeze"] = vars(self.squeeze)
        result: dict[str, Any] = records.jsonable(plain)
        return result

    def loss_minus_log_m(self, which: str, *, m: int) -> float | None:  # theory.md (12)
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
        law: a pair law that describes itself: `FullSupport`, `FixedLatents`, `Mixture`, `Jittered` or an own one.
        temperature: τ > 0.
        rho: ρ in [0, 1], share of the negatives drawn on the anchor's own fibre: 0 the standard loss,
            1 the support-corrected one. With full support the fibre is the sphere and ρ changes nothing.

    Returns:
        `Prediction`.

    Raises:
        ValueError: for a temperature or ρ out of range, or ρ > 0 with a law whose fibre is not known.
        TypeError: for a law that does not describe itself, or `Tagged`, which is two laws for two losses.
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
    model, said = models.of(law), pairs.described(law)
    if model.sigma > 0 and rho > 0:
        raise ValueError(
            f"rho must be 0 for turned pairs ({type(law).__name__}), whose fibre is not a sphere of free latents, "
            f"got {rho:g}"
        )
    full = model.everywhere or (model.share == 1 and rho == 0)
    problem = Problem(model, tau, 0.0 if full else rho, full)
    numbers, errors, rule = _agreeing(problem)
    verdict = judge(problem, numbers, errors["orthogonal_loss"] + errors.get("loss", 0.0))
    coefficients = _coefficients(problem, numbers, rule)
    return Prediction(
        dim=model.dim,
        n_fixed=said.n_fixed,
        kappa=model.kappa if said.n_fixed else model.kappa_moved,
        temperature=tau,
        rho=rho,
        convention=said.convention,
        orthogonal_loss=numbers.orthogonal,
        floor=floor(model.dim, temperature=tau) if rho == 0 else None,
        squeeze=numbers.squeeze,
        finite_m_coefficient=coefficients,
        error=max(errors.values()),
        errors=errors,
        share=model.share if said.n_fixed and model.share else None,
        sigma=model.sigma or None,
        ms=1e3 * (time.perf_counter() - start),
        **vars(verdict),
    )


def _agreeing(problem: Problem) -> tuple[Numbers, dict[str, float], int]:
    """The numbers under the finer of the first two consecutive rules that agree."""
    last: Numbers | None = None
    for n in _RULES:
        now = _numbers(problem, n, last)
        if last is not None:
            errors = _differences(last, now)
            size = max(1.0, abs(now.orthogonal))  # losses grow like 1/τ
            if errors is not None and all(e <= _TOLERANCE[name] * size for name, e in errors.items()):
                return *_with_angles(problem, now, errors), n
        last = now
    raise checks.RunFailed(
        f"quadrature did not settle for dim={problem.model.dim}, temperature={problem.tau:g}, rho={problem.rho:g}: "
        f"rules of {_RULES[-2]} and {_RULES[-1]} nodes differ by {errors if errors else 'the kind of minimum'}"
    )


def _with_angles(
    problem: Problem, numbers: Numbers, errors: dict[str, float]
) -> tuple[Numbers, dict[str, float]]:
    """The same with the angle preservation error of the best squeeze."""
    best = numbers.squeeze
    if best.loss is None or best.ape is not None:
        return numbers, errors
    ape, error = angles(problem.model, best.position)
    if error > _TOLERANCE["ape"]:
        raise checks.RunFailed(
            f"quadrature of the angles did not settle: its last two rules differ by {error:.1e}"
        )
    return replace(numbers, squeeze=replace(best, ape=ape)), {**errors, "ape": error}


def _differences(a: Numbers, b: Numbers) -> dict[str, float] | None:
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


def _numbers(problem: Problem, n: int, last: Numbers | None) -> Numbers:
    orthogonal = orthogonal_loss(problem.model, problem.tau, problem.rho, n)
    return Numbers(orthogonal, best_squeeze(problem, n, None if last is None else last.squeeze.lam))


def _coefficients(problem: Problem, numbers: Numbers, n: int) -> dict[str, float | None]:
    model, tau, rho = problem.model, problem.tau, problem.rho
    out: dict[str, float | None] = {"orthogonal": None, "squeeze": None, "floor": None}
    if rho == 0:
        out["floor"] = finite_sample.floor_coefficient(model.dim, tau)
    if model.sigma == 0:
        out["orthogonal"] = finite_sample.coefficient(model, tau, rho, 1.0, n)
        out["squeeze"] = finite_sample.coefficient(model, tau, rho, numbers.squeeze.position, n)
    return out
