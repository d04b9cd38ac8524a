"""Where and how a run computes: device, precision, threads. Torch is imported only when asked."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from viewspan import checks

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "float32", "bfloat16")


def device(name: str = "auto") -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda` or `mps`; `auto` takes an accelerator if there is one."""
    import torch

    checks.choice("device", name, DEVICES)
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available[name]:
        raise ValueError(f"device must be available on this machine, got {name!r}")
    return torch.device(name)


def precision(name: str, on: torch.device) -> str:
    """`float32` or `bfloat16`; `auto` times one product of each and takes bfloat16 only if 1.5 times faster."""
    checks.choice("precision", name, PRECISIONS)
    return ("bfloat16" if bfloat16_speedup(on) >= 1.5 else "float32") if name == "auto" else name


def bfloat16_speedup(on: torch.device, size: int = 1024) -> float:
    """Time of one float32 matrix product over that of a bfloat16 one (median of 5)."""
    import torch

    def median_seconds(dtype: torch.dtype) -> float:
        a = torch.ones(size, size, dtype=dtype, device=on)
        times = []
        for _ in range(6):
            start = time.perf_counter()
            float((a @ a)[0, 0])
            times.append(time.perf_counter() - start)
        return sorted(times[1:])[2]

    return median_seconds(torch.float32) / median_seconds(torch.bfloat16)


@contextlib.contextmanager
def autocast(on: torch.device, precision_name: str) -> Iterator[None]:
    """Matrix products in bfloat16 inside the block, or nothing at all for float32."""
    import torch

    with torch.autocast(on.type, torch.bfloat16, enabled=precision_name == "bfloat16"):
        yield


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Use `count` CPU threads inside the block (None leaves torch's number), then put the number back."""
    import torch

    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(checks.integer("threads", count, low=1))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
