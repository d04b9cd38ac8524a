"""What a sweep costs over a bare loop, and what a second worker brings.

    python benchmarks/sweep.py [--cells 40] [--seconds 0.1] [--json]

Each cell multiplies matrices for a fixed number of products that takes about `--seconds` on one core. Printed:
time of the sweep at one job over that of a plain loop over the same cells (the loop writes nothing), and time at one
job over time at two.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core a cell, in the loop as in the workers

import numpy as np

from viewspan import records, runtime, sweeps


def multiply(settings: dict[str, Any]) -> tuple[records.Record, None]:
    a = np.random.default_rng(settings["seed"]).normal(size=(256, 256)) / 16
    for _ in range(settings["products"]):
        a = np.tanh(a @ a)
    history = {"loss": [float(x) for x in a[0]]}
    record = records.Record(
        experiment="multiply", settings=settings, result={"norm": float(np.abs(a).max())}, history=history
    )
    return record, None


def seconds_of(cells: list[sweeps.Cell], jobs: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = sweeps.run(cells, multiply, records.Store(folder), jobs=jobs)
        assert result.ran == len(cells), result
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.1, help="about how long one cell takes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()
    multiply({"seed": 0, "products": 50})
    products = max(1, round(50 * options.seconds / (time.perf_counter() - start)))
    cells = [sweeps.Cell("multiply", {"seed": seed, "products": products}) for seed in range(options.cells)]
    loops, ones, twos = [], [], []
    for _ in range(3):
        start = time.perf_counter()
        for cell in cells:
            multiply(cell.settings)
        loops.append(time.perf_counter() - start)
        ones.append(seconds_of(cells, jobs=1))
        twos.append(seconds_of(cells, jobs=2))
    found = {
        "cells": len(cells),
        "cores": runtime.cores(),
        "cell_ms": round(1000 * min(loops) / len(cells), 1),
        "overhead_jobs_1": round(min(ones) / min(loops) - 1, 4),
        "speedup_jobs_2": round(min(ones) / min(twos), 3),
    }
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{found['cells']} cells of {found['cell_ms']} ms on {found['cores']} cores")
        print(f"one job: {100 * found['overhead_jobs_1']:+.1f} % over a bare loop")
        print(f"two jobs: {found['speedup_jobs_2']:.2f} times as fast as one, starting the workers included")


if __name__ == "__main__":
    main()
