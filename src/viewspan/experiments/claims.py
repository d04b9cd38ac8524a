"""What Figure 3 claims, judged: differences of accuracies with intervals over seeds and test images.

A claim is a list of differences that must all be positive. It holds where the lower end of every 95 % interval is
above zero (an intersection–union test, so no correction is due), it is refuted where the upper end of one interval at
level 95 % / number of differences (Bonferroni) is below zero, and it is not decided otherwise. A difference that
involves a cell which is not above its own untrained encoder says nothing about the views and is not judged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from viewspan.experiments.summary import spread

__all__ = ["claims", "gain_interval", "gaps", "pooled", "sentences"]

ORDER = ("resnet18", "vit", "mlp")  # as the figure is said to rank them
TITLES = {
    "diverse_best": "the most diverse views (all) are best for every encoder",
    "order": "ResNet > ViT > MLP",
    "gap_widens": "the gap between encoders widens as diversity shrinks",
}
LEVEL = 0.95
Lines = Mapping[tuple[str, str], dict[str, Any]]


def gain_interval(intervals: np.ndarray, mean: float, over_seeds: tuple[float, int]) -> list[float]:
    """95 % interval of the mean gain of a cell over its seeds.

    One seed: its own bootstrap interval, over test images. Several: the mean of the bootstrap half-widths, with the
    spread over seeds added in quadrature; the test images are shared by the seeds, so they do not average out.

    Args:
        intervals: bootstrap interval of each seed, (seeds, 2).
        mean: of the gain over the seeds.
        over_seeds: what `pooled` gives for the gain.
    """
    if len(intervals) == 1:
        return [float(v) for v in intervals[0]]
    sd, freedom = over_seeds
    over_images = float(np.mean(intervals[:, 1] - intervals[:, 0])) / 2
    half = math.hypot(over_images, _quantile(LEVEL, freedom) * sd / math.sqrt(len(intervals)))
    return [mean - half, mean + half]


def claims(lines: Sequence[dict[str, Any]], regimes: Sequence[str]) -> list[dict[str, Any]]:
    """The three claims, each with its differences and a verdict: ``holds``, ``not so``, ``not decided``, ``cannot tell``.

    Args:
        lines: of the table, one a cell.
        regimes: the views, the most diverse first.
    """
    at = {(line["encoder"], line["views"]): line for line in lines}
    first, *others = regimes
    terms: dict[str, list[tuple[str, dict[tuple[str, str], int]]]] = {
        "diverse_best": [
            (f"{e}: {first} − {views}", {(e, first): 1, (e, views): -1}) for e in ORDER for views in others
        ],
        "order": [
            (f"{views}: {a} − {b}", {(a, views): 1, (b, views): -1})
            for views in regimes
            for a, b in itertools.pairwise(ORDER)
        ],
        "gap_widens": [
            (
                f"{a} − {b}, {views} against {first}",
                {(a, views): 1, (b, views): -1, (a, first): -1, (b, first): 1},
            )
            for a, b in (("resnet18", "mlp"), ("resnet18", "vit"))
            for views in others
        ],
    }
    return [_claim(name, at, needed, pooled(lines)) for name, needed in terms.items()]


def gaps(lines: Sequence[dict[str, Any]], regimes: Sequence[str]) -> list[dict[str, Any]]:
    """How far ResNet-18 is ahead of each other encoder under each regime, beside the published gaps."""
    at = {(line["encoder"], line["views"]): line for line in lines}
    pairs = [
        (f"{ORDER[0]} − {other}, {views}", {(ORDER[0], views): 1, (other, views): -1})
        for other in reversed(ORDER[1:])
        for views in regimes
    ]
    return [
        _difference(at, name, signs, pooled(lines), 1) for name, signs in pairs if signs.keys() <= at.keys()
    ]


def pooled(lines: Sequence[dict[str, Any]], key: str = "probe_accuracy") -> tuple[float, int]:
    """Standard deviation over seeds, pooled over the cells (a cell's own has too few), and its degrees of freedom."""
    freedom = sum(line["seeds"] - 1 for line in lines)
    squares = sum((line["seeds"] - 1) * line[key]["sd"] ** 2 for line in lines if line["seeds"] > 1)
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


def _claim(
    name: str,
    at: Lines,
    needed: Sequence[tuple[str, dict[tuple[str, str], int]]],
    over_seeds: tuple[float, int],
) -> dict[str, Any]:
    known = [(text, signs) for text, signs in needed if signs.keys() <= at.keys()]
    found = [_difference(at, text, signs, over_seeds, len(needed)) for text, signs in known]
    judged = [entry for entry in found if entry["judged"]]
    against = [entry for entry in judged if entry["corrected_interval"][1] < 0]
    if against:
        verdict = "not so"
        reason = "against it: " + "; ".join(map(_told, against))
    elif len(judged) < len(needed):
        verdict = "cannot tell"
        missing = len(needed) - len(known)
        below = sorted({f"{e} {v}" for (_, s), f in zip(known, found) for e, v in f["below"]})
        reason = f"cells not run: {missing} of {len(needed)} differences lack one" if missing else ""
        if below:
            reason += (", " if reason else "") + f"not above their untrained encoder: {', '.join(below)}"
    elif all(entry["interval"][0] > 0 for entry in judged):
        verdict, reason = "holds", "smallest: " + _told(min(judged, key=lambda e: e["interval"][0]))
    else:
        verdict = "not decided"
        reason = "not told from zero: " + "; ".join(_told(e) for e in judged if e["interval"][0] <= 0)
    return {"claim": name, "title": TITLES[name], "verdict": verdict, "reason": reason, "differences": found}


def _difference(
    at: Lines, name: str, signs: Mapping[tuple[str, str], int], over_seeds: tuple[float, int], tests: int
) -> dict[str, Any]:
    """A signed sum of probe accuracies: its mean, error, intervals (alone, and as one of `tests`), the published one."""
    cells = {key: at[key] for key in signs}
    mean = sum(sign * cells[key]["probe_accuracy"]["mean"] for key, sign in signs.items())
    sd, freedom = over_seeds
    seeds = sum(sd**2 / line["seeds"] for line in cells.values())
    p = [line["probe_accuracy"]["mean"] for line in cells.values()]
    # the cells share their test images, which makes the true error smaller: their answers go together
    pictures = sum(x * (1 - x) / line["n_test"] for x, line in zip(p, cells.values()))

    def interval(level: float) -> list[float]:
        over = _quantile(level, freedom) * math.sqrt(seeds) if freedom else 0.0
        half = math.hypot(over, _quantile(level, None) * math.sqrt(pictures))
        return [mean - half, mean + half]

    return {
        "name": name,
        "mean": mean,
        "runs": spread(_runs(cells, signs)),
        "interval": interval(LEVEL),
        "corrected_interval": interval(1 - (1 - LEVEL) / tests),
        "judged": all(line["above_untrained"] for line in cells.values()),
        "below": [list(key) for key, line in cells.items() if not line["above_untrained"]],
        "published": {kind: _published(cells, signs, key) for kind, key in PUBLISHED.items()},
    }


PUBLISHED = {"figure": "probe_accuracy", "logged": "logged_accuracy"}


def _runs(cells: Lines, signs: Mapping[tuple[str, str], int]) -> list[float]:
    n = min(line["seeds"] for line in cells.values())
    return [sum(sign * cells[key]["probe_runs"][i] for key, sign in signs.items()) for i in range(n)]


def _published(cells: Lines, signs: Mapping[tuple[str, str], int], kind: str) -> float | None:
    values = {key: line["published"][kind] for key, line in cells.items()}
    return None if None in values.values() else sum(sign * values[key] for key, sign in signs.items())


def _quantile(level: float, freedom: int | None) -> float:
    """Two-sided quantile of Student's t, of the normal distribution without degrees of freedom."""
    from scipy import stats

    upper = (1 + level) / 2
    return float(stats.norm.ppf(upper) if freedom is None else stats.t.ppf(upper, freedom))


def sentences(found: Sequence[dict[str, Any]], ahead: Sequence[dict[str, Any]]) -> list[str]:
    """The gaps, then the claims with their verdicts, then what the published numbers themselves say, in words."""
    out = []
    for other in reversed(ORDER[1:]):
        mine = [entry for entry in ahead if entry["name"].startswith(f"{ORDER[0]} − {other},")]
        if mine:
            out.append(f"{ORDER[0]} − {other}: " + "; ".join(_gap(entry) for entry in mine) + ".")
    out += [f"{c['title']}: {c['verdict']} ({c['reason']})." for c in found]
    mine = [e for e in ahead if e["name"].startswith(f"{ORDER[0]} − {ORDER[2]},")]
    if len(mine) == 3:
        out.append(_published_sentence(mine))
    return out


def _published_sentence(mine: Sequence[dict[str, Any]]) -> str:
    regimes = ", ".join(entry["name"].split(", ")[1] for entry in mine)
    figure = ", ".join(f"{100 * entry['published']['figure']:+.0f}" for entry in mine)
    logged = ", ".join(f"{100 * entry['published']['logged']:+.1f}" for entry in mine)
    return (
        f"The published gaps {ORDER[0]} − {ORDER[2]} themselves ({regimes}: figure {figure}; logged runs {logged}) are "
        "largest under all: they narrow as diversity shrinks."
    )


def _gap(entry: dict[str, Any]) -> str:
    figure, logged = entry["published"]["figure"], entry["published"]["logged"]
    theirs = f"figure {100 * figure:+.0f}" if figure is not None else ""
    theirs += f", logged {100 * logged:+.1f}" if logged is not None else ""
    return _told(entry).partition(", ")[2] + (f" (published: {theirs})" if theirs else "")


def _told(entry: dict[str, Any]) -> str:
    """A difference and its interval in percentage points."""
    low, high = (100 * end for end in entry["interval"])
    return f"{entry['name']} {100 * entry['mean']:+.1f} [{low:+.1f}, {high:+.1f}]"
