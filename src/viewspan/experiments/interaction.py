"""Does the gap between encoders change with the view regime? Differences of differences, with their errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from viewspan.experiments.summary import spread

PAIRS = (("resnet18", "mlp"), ("resnet18", "vit"))
Z95 = 1.96


def mean_interval(gains: Sequence[float], intervals: np.ndarray) -> list[float]:
    """95 % interval of the mean gain over seeds.

    One seed: its own bootstrap interval, over test images. Several: the mean of the bootstrap half-widths, with the
    spread over seeds added in quadrature; the test images are shared by the seeds, so they do not average out.

    Args:
        gains: one a seed.
        intervals: (seeds, 2).
    """
    if len(gains) == 1:
        return [float(v) for v in intervals[0]]
    mean, over_seeds = float(np.mean(gains)), float(np.std(gains, ddof=1)) / math.sqrt(len(gains))
    over_images = float(np.mean(intervals[:, 1] - intervals[:, 0])) / 2
    half = math.hypot(over_images, Z95 * over_seeds)
    return [mean - half, mean + half]


def interactions(lines: list[dict[str, Any]], regimes: Sequence[str]) -> list[dict[str, Any]]:
    """For each pair of encoders and regime: the gap, its change from the first regime, and the published ones.

    Each number is ``{"mean", "sd", "median"}`` over the seeds that both cells have, with ``error``: one standard
    error, from the seeds if there are several, else from the test images.
    """
    at = {(line["encoder"], line["views"]): line for line in lines}
    found = []
    for a, b in PAIRS:
        for regime in regimes:
            four = [at.get((e, v)) for v in (regime, regimes[0]) for e in (a, b)]
            if four[0] is None or four[1] is None:
                continue
            known = [line for line in four if line is not None]
            entry: dict[str, Any] = {
                "encoders": [a, b],
                "views": regime,
                "gap": _contrast(known[:2], (1, -1)),
            }
            entry["change"] = (
                _contrast(known, (1, -1, -1, 1)) if len(known) == 4 and regime != regimes[0] else None
            )
            entry["judged"] = all(line["above_untrained"] for line in known)
            entry["published"] = _published(known, regime != regimes[0])
            found.append(entry)
    return found


def _contrast(lines: list[dict[str, Any]], signs: Sequence[int]) -> dict[str, Any]:
    """A signed sum of probe accuracies."""
    n = min(line["seeds"] for line in lines)
    runs = [sum(s * line["probe_runs"][i] for s, line in zip(signs, lines)) for i in range(n)]
    out: dict[str, Any] = dict(spread(runs) or {})
    if n > 1:
        out["error"] = out["sd"] / math.sqrt(n)
    else:
        p = [line["probe_accuracy"]["mean"] for line in lines]
        out["error"] = math.sqrt(sum(x * (1 - x) / line["n_test"] for x, line in zip(p, lines)))
    return out


def _published(lines: list[dict[str, Any]], change: bool) -> dict[str, Any]:
    """Gap and change in the figure and in the authors' logged runs."""
    out: dict[str, Any] = {}
    for name, key in (("figure", "probe_accuracy"), ("logged", "logged_accuracy")):
        values = [line["published"][key] for line in lines]
        known = None not in values
        out[f"{name}_gap"] = values[0] - values[1] if known else None
        out[f"{name}_change"] = (
            values[0] - values[1] - values[2] + values[3] if known and change and len(values) == 4 else None
        )
    return out


def sentences(found: list[dict[str, Any]]) -> list[str]:
    """The gaps and their changes in words, whether the claim holds, and what the published figure itself says."""
    out = []
    for a, b in PAIRS:
        mine = [entry for entry in found if entry["encoders"] == [a, b]]
        if not mine:
            continue
        gaps = "; ".join(f"{entry['views']} {_signed(entry)}{_theirs(entry)}" for entry in mine)
        out.append(f"{a} − {b}: {gaps}.")
        out += [_verdict(entry) for entry in mine if entry["change"] is not None]
    changes = [entry for entry in found if entry["change"] is not None]
    if changes:
        out.append(_summary(changes))
    mine = [entry for entry in found if entry["encoders"] == list(PAIRS[0])]
    return [*out, _published_sentence(mine)] if len(mine) == 3 else out


def _summary(changes: list[dict[str, Any]]) -> str:
    """Whether the claimed interaction holds, over all changes from the first regime."""
    judged = [entry for entry in changes if entry["judged"]]
    if not judged:
        return "Whether the claimed interaction holds is not said: no change involves only cells above untrained."
    widens = sum(_told(entry) and entry["change"]["mean"] > 0 for entry in judged)
    return (
        f"The claimed interaction, gaps that widen as views move less, holds in {widens} of {len(judged)} changes that "
        f"can be judged ({len(changes)} in all)."
    )


def _told(entry: dict[str, Any]) -> bool:
    """Whether a change is larger than its noise."""
    return abs(entry["change"]["mean"]) > Z95 * entry["change"]["error"]


def _published_sentence(mine: list[dict[str, Any]]) -> str:
    """What the published numbers themselves say of ResNet − MLP."""
    figure = ", ".join(f"{100 * entry['published']['figure_gap']:+.0f}" for entry in mine)
    logged = ", ".join(f"{100 * entry['published']['logged_gap']:+.1f}" for entry in mine)
    return (
        f"The published gaps resnet18 − mlp themselves ({', '.join(entry['views'] for entry in mine)}: figure {figure}; "
        f"logged runs {logged}) are largest under all: they narrow as diversity shrinks."
    )


def _signed(entry: dict[str, Any]) -> str:
    gap = entry["gap"]
    spread_over = f" ± {100 * gap['sd']:.1f}" if gap["sd"] is not None else ""
    return f"{100 * gap['mean']:+.1f}{spread_over}"


def _theirs(entry: dict[str, Any]) -> str:
    figure, logged = entry["published"]["figure_gap"], entry["published"]["logged_gap"]
    if figure is None:
        return ""
    return f" (figure {100 * figure:+.0f}" + ("" if logged is None else f", logged {100 * logged:+.1f}") + ")"


def _verdict(entry: dict[str, Any]) -> str:
    """Whether the gap widens from `all` to a regime, or why that is not said."""
    a, b = entry["encoders"]
    change = entry["change"]
    text = f"from all to {entry['views']} the gap {a} − {b} changes by {100 * change['mean']:+.1f}"
    text += f" ± {100 * change['sd']:.1f} (sd)" if change["sd"] is not None else ""
    text += f", standard error {100 * change['error']:.1f}"
    if not entry["judged"]:
        return text + ": not judged, since a cell in it is not above its untrained encoder."
    if not _told(entry):
        return text + ": no interaction can be told from noise."
    return text + (
        ": the claimed interaction (a gap that widens) holds here."
        if change["mean"] > 0
        else ": the claimed interaction (a gap that widens) does not hold here; the gap narrows."
    )
