"""Workers for the sweep's tests: importable by loky's and Dask's processes, and by `python -m`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from viewspan import records, sweeps


def walk(settings: dict[str, Any]) -> tuple[records.Record, dict[str, np.ndarray]]:
    """A short seeded computation; its log, if any, gets one line for every run to the end."""
    rng = np.random.default_rng(settings["seed"])
    steps = rng.normal(size=settings["steps"]).cumsum()
    if "seconds" in settings:
        time.sleep(settings["seconds"])
    log = os.environ.get("SWEEP_LOG")
    if log:
        with open(log, "a") as file:
            file.write(f"{settings['seed']}\n")
    record = records.Record(
        experiment="walk",
        settings=settings,
        result={"end": steps[-1]},
        history={"step": list(range(len(steps))), "loss": steps.tolist()},
    )
    return record, {"steps": steps}


def sometimes_fails(settings: dict[str, Any]) -> tuple[records.Record, dict[str, np.ndarray]]:
    if settings["seed"] % 3 == 1:
        raise ValueError(f"seed {settings['seed']} does not\nconverge")
    return walk(settings)


def dies_once(settings: dict[str, Any]) -> tuple[records.Record, dict[str, np.ndarray]]:
    """Killed as the operating system kills, the first time one marked cell is run; always, for seed 99."""
    mark = Path(os.environ["SWEEP_LOG"] + f".died{settings['seed']}")
    if settings["seed"] == 99 or (settings["seed"] == 3 and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return walk(settings)


def threads(settings: dict[str, Any]) -> tuple[records.Record, None]:
    """What a worker may use: by the environment, in numpy's libraries, and on request in torch."""
    import threadpoolctl

    pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    found = {"omp": os.environ.get("OMP_NUM_THREADS"), "pools": pools, "pid": os.getpid()}
    if settings["torch"]:
        import torch

        found["torch"] = torch.get_num_threads()
    return records.Record(experiment="threads", settings=settings, result=found), None


def cells(count: int, **more: Any) -> list[sweeps.Cell]:
    return [sweeps.Cell("walk", {"seed": seed, "steps": 50, **more}) for seed in range(count)]


def main() -> None:
    """`python sweep_workers.py FOLDER JOBS COUNT SECONDS PARTIES`: one sweep, begun when all parties are there."""
    folder, jobs, count, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    Path(f"{folder}.ready{os.getpid()}").touch()
    while len(list(Path(folder).parent.glob(f"{Path(folder).name}.ready*"))) < int(sys.argv[5]):
        time.sleep(0.01)
    result = sweeps.run(cells(count, seconds=seconds), walk, records.Store(folder), jobs=jobs)
    print(json.dumps({"ran": result.ran, "reused": result.reused, "records": len(result.records)}))


if __name__ == "__main__":
    main()
