"""Which failure a recovered map shows: named, with the numbers that show it.

The latents split as z = (u, v): u the m held coordinates, v the free ones. A fibre is the set of latents with one u;
rows are not assumed to come in fibres, so what happens within one is read off pairs of rows that are near in u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize, spatial

from viewspan import metrics, pairs

Floats = npt.NDArray[np.float64]
Kind = Literal[
    "isometry", "squeezed", "great_subspheres", "folded", "twisted", "tilted", "spreading", "collapsed", "unresolved"
]  # fmt: skip

_NEIGHBOURS = 6
_CLOSE = 0.04  # mean squared distance from a best-aligned isometry that still counts as one
_SQUEEZED = 0.05  # |log λ| from which a squeeze is named
_EXPLAINED = 0.2  # share of the distance from an isometry that a squeeze must remove
_WITHIN = 0.4  # within fibres the Gram error must be below this share of that over all pairs
_ALIGNED = 0.6  # share of the way from an isometry's alignment on a fibre to 1
_RECOVERED, _LOST = 0.9, 0.2  # R² of a coordinate that is read out, and of one that is not
_EVEN = 0.7  # R² of |x| or x² from which a coordinate x that is lost is lost to its sign only


@dataclass(frozen=True)
class Diagnosis:
    """A named failure (or success) of a recovered map.

    Attributes:
        kind: ``isometry``, ``squeezed``, ``great_subspheres``, ``folded``, ``twisted``, ``tilted``, ``spreading``,
            ``collapsed`` or ``unresolved``.
        evidence: the numbers it rests on; every number that was computed is there, whatever the kind.
        sentence: the finding in words.
    """

    kind: Kind
    evidence: dict[str, float]
    sentence: str


def diagnose(z: metrics.Rows, h: metrics.Rows, law: pairs.PairLaw) -> Diagnosis:
    """Name what a recovered map does to the latents, up to a rotation of the embedding.

    Args:
        z: latents, unit rows, shape (n, d), n >= 200; independent draws, in any order.
        h: recovered map f(g(z)), unit rows, shape (n, k).
        law: the pair law, which describes itself; its held coordinates say what can go wrong. With full support,
            or everything held, only isometry, fold, collapse and unresolved are distinguished.

    Returns:
        `Diagnosis`. Its evidence:

        - ``r2``, ``r2_held``, ``r2_free``: held-out linear R², of all, held and free coordinates; 1 best.
        - ``ape``: angle preservation error, in [0, 2]; 0 best.
        - ``isometry_residual``, ``squeeze_residual``: mean squared distance to the best isometry and to the best
            h_λ up to rotation, in [0, 4]; ``lam``: that λ, in [0.02, 50].
        - ``fold_r2``, ``fold_r2_even``: R² along the worst-recovered direction b, of ⟨b, z⟩ and of |⟨b, z⟩| or its
            square, whichever is read out better (a fold that has spread over the sphere bends both).
        - ``fibre_alignment``: E⟨h, h'⟩ over rows with one u; ``fibre_radius``: √(1 − that), the radius of a fibre's
            image about its own centroid; ``fibre_alignment_isometry``: the first number for an isometry.
        - ``within_fibre_error``, ``gram_error``: mean squared error of ⟨h, h'⟩ against ⟨z, z'⟩ over rows with one
            u, and over all; ``great_error``: that against ⟨w, w'⟩, w = v/‖v‖, over rows with one u.
        - ``smallest_share``: smallest eigenvalue of E hhᵀ times k, 1 for a uniform image, 0 for a deficient rank.

    Raises:
        ValueError: for rows that are not unit, do not match the law, or are too few.
        TypeError: for a law that does not say what it holds (`pairs.described`).

    Example:
        >>> import torch
        >>> from viewspan import sphere
        >>> from viewspan.theory import maps
        >>> z = sphere.uniform(2000, 3, generator=torch.Generator().manual_seed(0))
        >>> law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="subsphere")
        >>> found = diagnose(z, maps.squeezed(0.73)(z), law)
        >>> found.kind, round(found.evidence["lam"], 2)
        ('squeezed', 0.73)
    """
    a, b = metrics.unit_rows("z", z), metrics.unit_rows("h", h)
    if len(a) != len(b):
        raise ValueError(f"z and h must have the same number of rows, got {len(a)} and {len(b)}")
    if a.shape[1] != law.dim:
        raise ValueError(f"z must have the law's dimension {law.dim}, got shape {tuple(a.shape)}")
    if len(a) < 200 or len(a) < 4 * (a.shape[1] + b.shape[1]):
        needed = max(200, 4 * (a.shape[1] + b.shape[1]))
        raise ValueError(f"z must have at least {needed} rows to be diagnosed, got {len(a)}")
    m = pairs.described(law).n_fixed
    split = m if 0 < m < law.dim else 0
    evidence = _everywhere(a, b, m)
    if split:
        evidence |= _squeeze(a, b, split) | _fibres(a, b, split)
    kind = _kind(evidence, split, law.dim)
    return Diagnosis(kind, evidence, _sentence(kind, evidence))


def _everywhere(z: Floats, h: Floats, m: int) -> dict[str, float]:
    """What needs no fibres: recovery, angles, rank, the best isometry, the worst direction."""
    fit = metrics.r2(z, h)
    each = np.array([0.0 if v is None else v for v in fit.per_coordinate])
    evidence = {"n": float(len(z)), "r2": float(each.mean())}
    if 0 < m < z.shape[1]:
        evidence |= {"r2_held": float(each[:m].mean()), "r2_free": float(each[m:].mean())}
    moment = np.linalg.eigvalsh(h.T @ h / len(h))
    evidence["ape"] = metrics.angle_preservation_error(z, h)
    evidence["variance"] = float(1 - np.linalg.norm(h.mean(0)) ** 2)
    evidence["smallest_share"] = float(moment[max(h.shape[1] - z.shape[1], 0)] * min(h.shape[1], z.shape[1]))
    evidence["isometry_residual"] = _distance(z, h)
    half = len(z) // 2
    design = np.hstack([np.ones((len(z), 1)), h])
    weights = np.linalg.lstsq(design[:half], z[:half], rcond=1e-8)[0]
    residual = z[half:] - design[half:] @ weights
    worst = np.linalg.eigh(residual.T @ residual)[1][:, -1]
    along = z @ worst
    three = metrics.r2(np.stack([along, np.abs(along), along**2], 1), h).per_coordinate
    odd, *even = (0.0 if v is None else v for v in three)
    evidence["fold_r2"], evidence["fold_r2_even"] = odd, max(even)
    return evidence


def _distance(z: Floats, h: Floats) -> float:
    """Mean squared distance of h from the best-rotated z: 2 − 2‖zᵀh‖_*/n, orthogonal Procrustes."""
    return float(max(0.0, 2 - 2 * np.linalg.svd(z.T @ h / len(z), compute_uv=False).sum()))


def _squeeze(z: Floats, h: Floats, m: int) -> dict[str, float]:
    """λ of the h_λ nearest to h up to rotation, and how far that is."""
    scale = np.ones(z.shape[1])

    def distance(log_lam: float) -> float:
        scale[m:] = math.exp(log_lam)
        x = z * scale
        return _distance(x / np.linalg.norm(x, axis=1, keepdims=True), h)

    grid = np.linspace(math.log(0.02), math.log(50), 17)
    best = int(np.argmin([distance(x) for x in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = optimize.minimize_scalar(distance, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return {"lam": math.exp(found.x), "squeeze_residual": float(found.fun)}


def _fibres(z: Floats, h: Floats, m: int) -> dict[str, float]:
    """Statistics over pairs of rows that are nearest neighbours in the held coordinates."""
    near = spatial.cKDTree(z[:, :m]).query(z[:, :m], k=_NEIGHBOURS + 1)[1]
    own = np.arange(len(z))[:, None]
    i = np.broadcast_to(own, near.shape)[near != own]
    j = near[near != own]
    w = z[:, m:] / np.maximum(np.linalg.norm(z[:, m:], axis=1, keepdims=True), 1e-12)
    gram_h, gram_z, gram_w = ((x[i] * x[j]).sum(1) for x in (h, z, w))
    other = np.roll(np.arange(len(z)), 1 + len(z) // 3)
    far_h, far_z = ((x * x[other]).sum(1) for x in (h, z))
    return {
        "fibre_alignment": float(gram_h.mean()),
        "fibre_alignment_isometry": float(gram_z.mean()),
        "fibre_radius": math.sqrt(min(max(1 - float(gram_h.mean()), 0.0), 1.0)),
        "within_fibre_error": float(np.square(gram_h - gram_z).mean()),
        "gram_error": float(np.square(far_h - far_z).mean()),
        "great_error": float(np.square(gram_h - gram_w).mean()),
    }


def _kind(e: dict[str, float], m: int, dim: int) -> Kind:
    """The first kind whose evidence is there, from the most to the least specific."""
    if e["variance"] < 1e-2:
        return "collapsed"
    if m and _is_squeeze(e):
        return "squeezed"
    if e["isometry_residual"] <= _CLOSE:
        return "isometry"
    if m and _is_great(e):
        return "great_subspheres"
    if e["smallest_share"] < 0.01:
        return "collapsed"
    if m and _is_spreading(e, m, dim):  # before folds: with one free coordinate it looks like one
        return "spreading"
    if e["fold_r2"] <= _LOST and e["fold_r2_even"] >= _EVEN:
        return "folded"
    if not m:
        return "unresolved"
    if e["within_fibre_error"] <= _WITHIN * e["gram_error"]:
        return "twisted" if e["r2_held"] >= _RECOVERED else "tilted"
    return "unresolved"


def _is_squeeze(e: dict[str, float]) -> bool:
    gained = e["isometry_residual"] - e["squeeze_residual"]
    named = _SQUEEZED <= abs(math.log(e["lam"])) <= math.log(30)
    return named and e["squeeze_residual"] <= _CLOSE and gained >= _EXPLAINED * e["isometry_residual"]


def _is_great(e: dict[str, float]) -> bool:
    better = e["great_error"] <= 0.5 * e["within_fibre_error"]
    return better and e["r2_held"] <= _LOST and e["fibre_radius"] >= 0.9


def _is_spreading(e: dict[str, float], m: int, dim: int) -> bool:
    own = e["fibre_alignment_isometry"]
    return e["fibre_alignment"] >= own + _ALIGNED * (1 - own) and e["r2"] < m / dim + 0.05


def _sentence(kind: Kind, e: dict[str, Any]) -> str:
    angles = f"angle preservation error {e['ape']:.3f}"
    if kind == "isometry":
        return f"The latents are recovered up to a rotation or reflection ({angles}, R² {e['r2']:.3f})."
    if kind == "squeezed":
        return f"The free coordinates are scaled by λ = {e['lam']:.3f} before normalising ({angles}, R² {e['r2']:.3f})."
    if kind == "great_subspheres":
        return (
            f"Every fibre is spread over a great subsphere (radius {e['fibre_radius']:.2f}) and the held coordinates "
            f"are lost (their R² {e['r2_held']:.2f})."
        )
    if kind == "folded":
        return (
            f"The map is folded: one direction is read out only up to its sign (R² {e['fold_r2']:.2f} of it, "
            f"{e['fold_r2_even']:.2f} without its sign)."
        )
    if kind == "twisted":
        return (
            f"Each fibre keeps its shape but is turned by an angle that depends on the held coordinates (their R² "
            f"{e['r2_held']:.2f}, free ones {e['r2_free']:.2f})."
        )
    if kind == "tilted":
        return (
            f"Each fibre keeps its shape but its axis depends on the held coordinates (their R² {e['r2_held']:.2f}, "
            f"{angles})."
        )
    if kind == "spreading":
        return (
            f"The held coordinates alone are spread over the sphere: latents that differ only in the free ones "
            f"coincide (alignment {e['fibre_alignment']:.2f}), R² {e['r2']:.2f}."
        )
    if kind == "collapsed":
        what = "is nearly constant" if e["variance"] < 1e-2 else "does not fill the embedding"
        return f"The image {what} (smallest share {e['smallest_share']:.4f}, variance {e['variance']:.4f})."
    return f"None of the known maps fits ({angles}, R² {e['r2']:.3f})."
