"""What the theory says about a pair law on a sphere that holds as many directions and is as concentrated."""

from __future__ import annotations

from typing import Any

from scipy import optimize

from viewspan import pairs, sphere, theory
from viewspan.auditing.verdict import NEVER, Audit

_LARGEST_KAPPA = 1e4


def analogy(audit: Audit, *, temperature: float) -> dict[str, Any] | None:
    """The incentive to distort of `FixedLatents` with the audit's counts, or None where nothing is held.

    d is the number of directions of the embedding (else of measured factors), m the number held, and κ matches
    the mean ICC(1) of the others through A_(d−m)(κ)². Real data do not live on a sphere: this says how strong the
    pull would be there, no more.
    """
    if audit.held is not None and audit.held.rank >= 2:
        d, m = audit.held.rank, len(audit.held.directions)
        free = sorted(audit.held.shares)[m:]
        what = "directions of the embedding"
    else:
        known = [f for f in audit.factors if f.moved_share is not None]
        d, m = len(known), sum(f.verdict == NEVER for f in known)
        free = [f.moved_share for f in known if f.verdict != NEVER and f.moved_share is not None]
        what = "measured factors"
    if not 0 < m < d or not free:
        return None
    kappa = _concentration(d - m, 1 - sum(free) / len(free))
    law = pairs.FixedLatents(dim=d, kappa=kappa, n_fixed=m, convention="subsphere")
    prediction = theory.predict(law, temperature=temperature)
    sentence = (
        f"by analogy with a sphere in {d} dimensions of which {m} are held ({m} of {d} {what}): at temperature "
        f"{temperature:g} a map that spreads the held part gains {prediction.incentive_nats:.3g} nats over one "
        "that keeps the geometry"
    )
    return {
        "sentence": sentence, "dim": d, "n_fixed": m, "kappa": kappa, "temperature": temperature,
        "convention": "subsphere", "incentive_nats": prediction.incentive_nats,
        "incentive_bits": prediction.incentive_bits,
    }  # fmt: skip


def _concentration(free: int, icc: float) -> float:
    """κ with A_free(κ)² = icc, between 0 and a large bound."""
    target = max(icc, 0.0) ** 0.5
    if target <= 0:
        return 0.0
    if float(sphere.mean_cosine(free, _LARGEST_KAPPA)) <= target:
        return _LARGEST_KAPPA
    return float(optimize.brentq(lambda k: float(sphere.mean_cosine(free, k)) - target, 0.0, _LARGEST_KAPPA))
