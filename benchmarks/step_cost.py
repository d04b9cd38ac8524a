"""Cost of one training step against the published recipe written plainly, as ratios on this machine.

The published recipe encodes anchors, positives and M = 2000 fresh negatives in three passes of the encoder; its
support-corrected loss draws and encodes M fresh negatives on the fibre of *each* anchor. Here a step encodes anchors
and positives in one pass whatever the loss: the other pairs' positives are the negatives.

Both sides train the same MLP (spiral process, d = 3, Adam) with 2000 anchors a step. Per-anchor negatives do not fit
at that batch, so that side is timed at a batch that does and scaled to one anchor. Ratios are medians of paired
runs: both sides are timed in turn within each pair, so that a slow moment of the machine strikes both.

    standard_fp32         plain recipe / our step, standard loss, both float32
    standard_best         the same against our fastest precision and compilation on this machine
    corrected_per_anchor  plain recipe / our step, corrected loss, time for one anchor, both float32
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from viewspan import encoders, losses, pairs, processes, runtime, sphere

TAU = 0.3
M = 2000
BATCH = 2000
FIBRE_BATCH = 10  # anchors of the plain corrected step: 10 · 2002 rows of the encoder
GROUP = 50
DIM = 3

Step = Callable[[], object]


def published_scores(anchor: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
    """The loss in the plain form: all exponentials are formed, then summed."""
    own = ((anchor * positive).sum(1) / TAU).exp()
    if negatives.ndim == 2:
        others = (anchor @ negatives.T / TAU).exp().sum(1)
    else:
        others = ((anchor[:, None] * negatives).sum(2) / TAU).exp().sum(1)
    return -(own / (own + others)).log().mean()


def plain_step(*, corrected: bool) -> Step:
    """Three encoder passes and fresh negatives, shared for the standard loss, for each anchor for the corrected."""
    rng = torch.Generator().manual_seed(0)
    f, g = encoders.MLP(DIM, DIM, generator=rng), processes.Spiral()
    law = pairs.FixedLatents(dim=DIM, kappa=1 / TAU, n_fixed=1, convention="subsphere")
    optimiser = torch.optim.Adam(f.parameters(), lr=1e-3)
    n = FIBRE_BATCH if corrected else BATCH

    def step() -> None:
        z = sphere.uniform(n, DIM, generator=rng)
        positive = law.sample(z, rng)
        if corrected:
            negatives = law.sample_support(z, M, rng).reshape(n * M, DIM)
        else:
            negatives = sphere.uniform(M, DIM, generator=rng)
        h, h_positive, h_negatives = (f(g(x)) for x in (z, positive, negatives))
        if corrected:
            h_negatives = h_negatives.reshape(n, M, DIM)
        optimiser.zero_grad()
        published_scores(h, h_positive, h_negatives).backward()
        optimiser.step()

    return step


def our_step(*, corrected: bool, precision: str = "float32", compiled: bool = False) -> Step:
    """The step of `viewspan.fit`, one call at a time."""
    rng = torch.Generator().manual_seed(0)
    f: nn.Module = encoders.MLP(DIM, DIM, generator=rng)
    g = processes.Spiral()
    law = pairs.FixedLatents(dim=DIM, kappa=1 / TAU, n_fixed=1, convention="subsphere")
    loss = losses.InfoNCE(TAU, rho=1.0 if corrected else 0.0)
    optimiser = torch.optim.Adam(f.parameters(), lr=1e-3, fused=True)
    encode = torch.compile(f) if compiled else f
    cpu = torch.device("cpu")

    def step() -> None:
        batch = law.batch(BATCH, group_size=GROUP if corrected else None, generator=rng)
        with torch.no_grad():
            x = g(torch.cat([batch.anchor, batch.positive]))
        with runtime.autocast(cpu, precision):
            h = encode(x).float()
        anchor, positive = h.split(BATCH)
        fields = {"group": batch.group} if corrected else {}
        optimiser.zero_grad(set_to_none=True)
        loss(anchor, positive, **fields).backward()
        optimiser.step()

    return step


def seconds(step: Step, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def ratio(plain: Step, ours: Step, runs: int, repeats: int) -> float:
    """Median over paired runs of the time of `plain` over that of `ours`."""
    for step in (plain, ours):
        seconds(step, 2)
    return statistics.median(seconds(plain, repeats) / seconds(ours, repeats) for _ in range(runs))


def measure(runs: int = 5, repeats: int = 3) -> dict[str, float | str | bool]:
    """All three ratios, with the precision and compilation behind `standard_best`."""
    plain = plain_step(corrected=False)
    standard = ratio(plain, our_step(corrected=False), runs, repeats)
    best, precision, compiled = standard, "float32", False
    for candidate in (("bfloat16", False), ("float32", True), ("bfloat16", True)):
        with contextlib.suppress(RuntimeError):  # no compiler on this machine
            ours = our_step(corrected=False, precision=candidate[0], compiled=candidate[1])
            value = ratio(plain, ours, runs, repeats)
            if value > best:
                best, (precision, compiled) = value, candidate
    corrected = ratio(plain_step(corrected=True), our_step(corrected=True), runs, 1) * BATCH / FIBRE_BATCH
    return {
        "standard_fp32": round(standard, 3),
        "standard_best": round(best, 3),
        "corrected_per_anchor": round(corrected, 1),
        "precision": precision,
        "compiled": compiled,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: torch's own number)")
    parser.add_argument("--runs", type=int, default=5, help="paired runs, whose median counts (default 5)")
    options = parser.parse_args()
    with runtime.threads(options.threads):
        result = measure(options.runs)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
