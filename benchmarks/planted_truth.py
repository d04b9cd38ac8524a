"""Does the audit find what was planted, and nothing else? One line a claim, PASS or FAIL; exit code 1 on a FAIL.

    python benchmarks/planted_truth.py --seeds 100 [--cifar FOLDER] [--only NAME,…] [--json FILE]

FOLDER holds CIFAR-10 images in class folders (its training half).
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.transforms import v2

import viewspan as vs
from viewspan import images, processes, testing
from viewspan.auditing import (
    Audit,
    Sampling,
    dimension,
    factors,
    held_directions,
    intraclass_correlation,
    stability,
)  # fmt: skip

EFFECT = 0.002  # 1 - ICC of the least moved coordinate from which a count must be right
N = 2000  # pairs
KAPPAS = (10 / 3, 30.0, 300.0)
WORDS = {True: "PASS", False: "FAIL", None: "NOTE"}

Line = dict[str, Any]


def held(seeds: int) -> Iterator[Line]:
    """Linear held directions through the identity and a linear process, noise floor given."""
    right = wrong = alarms = cells = below = 0
    worst: tuple[float, str] = (1.0, "")
    for d, kappa in itertools.product((3, 5, 10), KAPPAS):
        for m, noise, through in itertools.product(range(d), (0.0, 0.02, 0.05), ("identity", "linear")):
            effect = least_moved(d, m, kappa)
            if effect < EFFECT:
                below += 1
                continue
            counts = [planted(d, m, kappa, noise, through, seed) for seed in range(seeds)]
            good = sum(c == m for c in counts)
            cells += 1
            right, wrong = right + good, wrong + len(counts) - good
            alarms += sum(c > m for c in counts)
            worst = min(worst, (good / seeds, f"d={d} m={m} kappa={kappa:.3g} noise={noise} {through}"))
    yield line(
        f"held directions: {cells} cells x {seeds} seeds with 1 - ICC >= {EFFECT} ({below} cells below it left out): "
        f"right in {right / (right + wrong):.2%}, worst cell {worst[0]:.0%} ({worst[1]})", worst[0] >= 0.95,
    )  # fmt: skip
    yield line(f"false alarms: {alarms / (right + wrong):.2%} of runs", alarms / (right + wrong) <= 0.05)


def least_moved(d: int, m: int, kappa: float) -> float:
    data = testing.held_pairs(20_000, dim=d, n_held=m, kappa=kappa, seed=999)
    return min(1 - intraclass_correlation(data.latents[:, :, j]) for j in range(m, d))


def planted(d: int, m: int, kappa: float, noise: float, through: str, seed: int) -> int:
    generator = torch.Generator().manual_seed(seed)
    process = processes.Linear(d, 2 * d + 1, generator=generator) if through == "linear" else None
    data = testing.held_pairs(N, dim=d, n_held=m, kappa=kappa, noise=noise, process=process, seed=seed)
    return len(held_directions(data.views, noise=data.noise).directions)


def nonlinear(seeds: int) -> Iterator[Line]:
    """Nonlinear processes bend the held coordinate: no direction may be named unless one is held after all.

    Some random processes are affine on the whole sphere (no unit changes its sign there): a direction of what is
    observed then is the held coordinate, and naming it is right.
    """
    named = wrong = runs = 0
    worst = 1.0
    for seed, kappa, noise in itertools.product(range(seeds), KAPPAS[:2], (0.0, 0.02)):
        generator = torch.Generator().manual_seed(seed)
        for process, d in (
            (processes.Spiral(), 3),
            (processes.Patches(), 3),
            (processes.InvertibleMLP(3, generator=generator), 3),
            (processes.InvertibleMLP(5, generator=generator), 5),
        ):
            data = testing.held_pairs(
                N, dim=d, n_held=1, kappa=kappa, noise=noise, process=process, seed=seed
            )
            found = held_directions(data.views, noise=data.noise).directions
            runs += 1
            if found:
                linear, follows = _held_linearly(data, process, found[0].vector)
                named += 1
                wrong += not linear or len(found) > 1 or follows < 0.99
                worst = min(worst, follows)
    yield line(
        f"nonlinear processes: a false direction named in {wrong} of {runs} runs; in {named - wrong} the process is "
        f"affine and the direction named is the held coordinate (correlation at least {worst:.3f})", wrong == 0,
    )  # fmt: skip


def _held_linearly(
    data: testing.HeldPairs, process: torch.nn.Module, w: Sequence[float]
) -> tuple[bool, float]:
    """Whether the held latent is a linear function of what is observed, and how closely w, read without noise, follows it."""
    latents = data.latents.reshape(-1, data.latents.shape[-1])
    with torch.no_grad():
        clean = process(torch.from_numpy(latents).float()).double().numpy()
    clean, held_latent = clean - clean.mean(0), latents[:, 0] - latents[:, 0].mean()
    best = clean @ np.linalg.lstsq(clean, held_latent, rcond=None)[0]
    linear = np.corrcoef(best, held_latent)[0, 1] > 0.9999
    return bool(linear), abs(float(np.corrcoef(clean @ np.array(w), held_latent)[0, 1]))


def coordinates() -> Iterator[Line]:
    """ICC(1) of a free coordinate against its exact value."""
    for n_held, convention, exact in (
        (1, "subsphere", 0.6921),
        (1, "ambient", 0.5851),
        (0, "ambient", 0.4936),
    ):
        data = testing.held_pairs(
            5000, dim=3, n_held=n_held, kappa=1 / 0.3, n_views=8, convention=convention, anchor_first=False
        )
        found = stability(data.latents[:, :, 2])
        assert found.icc is not None
        assert found.interval is not None
        error = (found.interval[1] - found.interval[0]) / 3.92
        yield line(
            f"ICC(1), {n_held} held, {convention}: {found.icc:.4f}, exact {exact}, standard error {error:.4f}",
            abs(found.icc - exact) < 3 * error,
        )


def shapes(seeds: int) -> Iterator[Line]:
    """Every set of frozen factors of rendered shapes."""
    wrong = runs = 0
    for size in range(6):
        for frozen in itertools.combinations(testing.SHAPE_FACTORS, size):
            for seed in range(seeds):
                moved = [f for f in testing.SHAPE_FACTORS if f not in frozen]
                data = testing.shapes(100, n_views=6, moved=moved, seed=seed)
                report = vs.audit(data.images, factors=list(data.expected), sampling=Sampling(resamples=200))
                wrong += {f.name: f.verdict for f in report.factors} != data.expected
                runs += 1
    yield line(f"rendered shapes: {wrong} of {runs} audits name a wrong set of frozen factors", wrong == 0)


def support() -> Iterator[Line]:
    """Dimension of the views of an anchor on spheres."""
    worst = 0.0
    for d in range(2, 6):
        for m in range(d):
            convention = "subsphere" if d - m == 1 else "ambient"
            data = testing.held_pairs(
                5, dim=d, n_held=m, kappa=10 / 3, n_views=1000, convention=convention, seed=d + m
            )
            found = dimension.views_dimension(list(data.views)).value
            assert found is not None
            worst = max(worst, abs(found - data.support_dim))
            if d - m == 1 and found != 0:
                worst = 99.0
    yield line(
        f"support dimension of views, d <= 5, 5 anchors x 1000 views: off by at most {worst:.2f}",
        worst <= 0.3,
    )


def cifar(folder: Path) -> Iterator[Line]:
    """Known dimensions and stabilities of the published regimes on CIFAR-10."""
    data = images.load(folder)
    every = images.views.resolve("all")
    pipelines = [
        images.views.resolve("crop"),
        every.only("jitter"),
        images.views.resolve("all-without-crop"),
        every,
    ]
    first = vs.audit(data, views=pipelines, sampling=Sampling(support_anchors=100, operation_anchors=0))
    audits = dict(zip(("crop", "jitter", "all-without-crop", "all"), [first, *first.others]))
    yield _whole_pixels(data)
    for name, right, within in (
        ("crop", 4, 0.5),
        ("jitter", 4, 0.6),
        ("all-without-crop", 9, 1.0),
        ("all", 12.5, 1.2),
    ):
        found, text = _dimension(audits[name])
        yield line(
            f"{name}: views have dimension {text}, expected {right} +- {within}", abs(found - right) <= within
        )
    for name, factor, right in (
        ("crop", "saturation", 0.92),
        ("crop", "red_green", 0.94),
        ("crop", "yellow_blue", 0.94),
        ("crop", "brightness", 0.83),
        ("crop", "vertical_centre", 0.39),
        ("all-without-crop", "horizontal_centre", 0.01),
        ("all-without-crop", "vertical_centre", 0.43),
        ("all-without-crop", "brightness", 0.33),
        ("jitter", "horizontal_centre", 0.92),
        ("jitter", "vertical_centre", 0.92),
        ("jitter", "orientation", 0.97),
    ):
        icc = audits[name].factor(factor).stability.icc
        assert icc is not None
        yield line(f"{name}, {factor}: ICC(1) {icc:.3f}, expected {right} +- .08", abs(icc - right) <= 0.08)
    others = {f.name: f.stability.icc for f in audits["all"].factors if f.name != "hue"}
    name, icc = max(((n, i) for n, i in others.items() if i is not None), key=lambda pair: pair[1])
    yield line(f"all, factors but hue: ICC(1) at most {icc:.3f} ({name}), expected .43 +- .08", icc <= 0.51)
    yield from _hue(data, audits)


def _dimension(audit: Audit) -> tuple[float, str]:
    found = audit.support
    assert found.views_dim is not None
    assert found.views_interval is not None
    low, high = found.views_interval
    return found.views_dim, f"{found.views_dim:.2f} ({low:.2f} to {high:.2f} over 100 anchors)"


def _whole_pixels(data: images.ImageSet) -> Line:
    """The same crop with its boxes rounded to whole pixels, as torchvision cuts them: no expectation."""
    found = vs.audit(
        data, views=v2.RandomResizedCrop(32), factors=["brightness"],
        sampling=Sampling(n_views=2, support_anchors=100, operation_anchors=0),
    )  # fmt: skip
    return line(f"crop in whole pixels (torchvision): views have dimension {_dimension(found)[1]}", None)


def _hue(data: images.ImageSet, audits: dict[str, Audit]) -> Iterator[Line]:
    """Hue is a direction on the colour circle, and jitter turns it by a known law."""
    found = audits["jitter"].factor("hue").stability.icc
    assert found is not None
    x = torch.stack(list(data.images[::50]))
    hue = factors.measure(images.views.as_float(x), ["hue"])["hue"]
    m2 = float((np.nanmean(hue, axis=0) ** 2).sum())  # hues of the data are not uniform: their mean direction
    turned = np.sin(0.4 * np.pi) / (0.4 * np.pi)  # E cos of a shift uniform in +-.2 turns
    r2 = (0.2 + 0.8 * turned) ** 2
    right = r2 * (1 - m2) / (1 - r2 * m2)
    yield line(f"jitter, hue: ICC(1) {found:.3f}, closed form {right:.3f} +- .05", abs(found - right) <= 0.05)
    whole = audits["all"]
    share = whole.factor("hue").stability.undefined / (whole.n_anchors * whole.n_views)
    yield line(
        f"all, hue (no expectation): ICC(1) {whole.factor('hue').stability.icc:.3f}: the crop adds little to the jitter, "
        f"and the {share:.0%} of views without a hue (most of them grayed) are left out", None,
    )  # fmt: skip


def line(text: str, good: bool | None) -> Line:
    """A claim and whether it holds; None for a finding without an expectation."""
    return {"line": text, "pass": None if good is None else bool(good)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="seeds a cell of the held directions [100]")
    parser.add_argument("--cifar", type=Path, help="folder of CIFAR-10's training images, by class")
    parser.add_argument(
        "--only", help="comma-separated: coordinates, support, shapes, nonlinear, held, cifar"
    )
    parser.add_argument("--json", type=Path, help="write the lines here too")
    given = parser.parse_args()
    few = max(given.seeds // 20, 1)
    parts: dict[str, Iterator[Line]] = {
        "coordinates": coordinates(),
        "support": support(),
        "shapes": shapes(few),
        "nonlinear": nonlinear(few),
        "held": held(given.seeds),
    }
    if given.cifar is not None:
        parts["cifar"] = cifar(given.cifar)
    chosen = given.only.split(",") if given.only else list(parts)
    lines = []
    start = time.perf_counter()
    for found in itertools.chain(*(parts[name] for name in chosen)):
        lines.append(found)
        print(f"{WORDS[found['pass']]}  {found['line']}", flush=True)
    claims = [found["pass"] for found in lines if found["pass"] is not None]
    print(f"{sum(claims)} of {len(claims)} claims hold, {time.perf_counter() - start:.0f} s")
    if given.json is not None:
        given.json.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(0 if all(claims) else 1)


if __name__ == "__main__":
    main()
