"""How much faster the audit is than a loop over images, and how much memory it takes.

    python benchmarks/audit.py [--anchors 300] [--views 16] [--size 32] [--memory]

The loop draws each view of each image through torchvision's own transforms (the published `all` regime) and
measures the same factors image by image. Prints a ratio and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np
import torch

import viewspan as vs
from viewspan import images
from viewspan.auditing import Sampling, factors, stability


def plain_loop(batch: torch.Tensor, n_views: int) -> float:
    """Seconds for views by torchvision and factors, one image at a time."""
    from torchvision.transforms import v2

    size = batch.shape[-1]
    steps = v2.Compose([
        v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        v2.RandomResizedCrop(size, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.RandomGrayscale(0.2),
        v2.GaussianBlur(3, (0.1, 2.0)),
        v2.RandomErasing(p=1.0),
    ])  # fmt: skip
    start = time.perf_counter()
    values: dict[str, list[list[np.ndarray]]] = {name: [] for name in factors.NAMES}
    for image in batch:
        rows: dict[str, list[np.ndarray]] = {name: [] for name in factors.NAMES}
        for _ in range(n_views):
            view = steps(image.float() / 255)[None].clamp(0, 1)
            for name, value in factors.measure(view, factors.NAMES).items():
                rows[name].append(value[0])
        for name, row in rows.items():
            values[name].append(row)
    for name in factors.NAMES:
        stability(np.array(values[name]))
    return time.perf_counter() - start


def audit(batch: torch.Tensor, n_views: int) -> float:
    """Seconds for the same by the audit, support dimension and operation matrix left out."""
    sampling = Sampling(n_anchors=len(batch), n_views=n_views, support_anchors=0, operation_anchors=0)
    loaded = images.load(batch)
    start = time.perf_counter()
    vs.audit(loaded, views="all", sampling=sampling)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--anchors", type=int, default=300)
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument(
        "--loop-share", type=float, default=0.25, help="share of the anchors the loop is timed on"
    )
    parser.add_argument(
        "--memory", action="store_true", help="2,000 images of 256 x 256 instead: peak memory only"
    )
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    if given.memory:
        batch = torch.from_numpy(rng.integers(0, 256, (2000, 3, 256, 256), dtype=np.uint8))
        seconds = audit(batch, given.views)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"peak memory {peak:.2f} GiB in {seconds:.0f} s")
        print(json.dumps({"peak_gib": peak, "seconds": seconds}))
        return
    coarse = torch.from_numpy(rng.integers(0, 256, (given.anchors, 3, 8, 8), dtype=np.uint8)).float()
    batch = torch.nn.functional.interpolate(coarse, given.size, mode="bilinear").round().to(torch.uint8)
    audit(batch[:20], 2)  # warm up
    fast = audit(batch, given.views)
    count = max(int(given.loop_share * given.anchors), 2)
    slow = plain_loop(batch[:count], given.views) * given.anchors / count
    print(f"ratio {slow / fast:.1f}: a loop over images takes {slow / fast:.1f} times as long as the audit")
    print(json.dumps({"ratio": slow / fast, "audit_seconds": fast, "loop_seconds": slow, "anchors": given.anchors,
                      "views": given.views, "size": given.size}))  # fmt: skip


if __name__ == "__main__":
    main()
