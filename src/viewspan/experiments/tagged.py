"""Beyond the paper: a few pairs known to move everything, used in a loss that knows which they are.

L = (1 − w)·corrected(held pairs) + w·standard(moved pairs). Under the ``ambient`` law with κ = 1/τ isometries are its
only minimisers at every share of moved pairs, where the untagged mixture needs a share past break-even. What is left
is optimisation: a fold is a local minimum, so the moved term is trained alone first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from viewspan import experiments, records
from viewspan.experiments import summary, synthetic
from viewspan.experiments.profiles import choose_seeds
from viewspan.sweeps import Cell

NAME = "tagged"
TITLE = "Tagged pairs: recovery against the share of pairs known to move every latent"
PROCESSES = ("identity", "linear", "spiral", "patches", "invertible_mlp")
QUICK_PROCESSES = ("identity", "patches")
SHARES = {"quick": (0.0, 0.02, 0.1), "paper": (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)}
BY = ("process", "share", "loss", "pairs", "encoder", "convention", "dim", "n_fixed")


def cells(
    profile: str = "quick",
    *,
    seeds: int | None = None,
    processes: list[str] | None = None,
    convention: str = "ambient",
) -> list[Cell]:
    """The runs of a profile: at each share the tagged loss (not at 0, where it has no term) and the untagged one.

    Args:
        profile: ``quick`` (identity and patches unless others are named) or ``paper`` (five processes, six shares).
        seeds: how many seeds, 0, 1, …; the profile's own number if None (1 or 5).
        processes: names of processes.
        convention: law of the held pairs; ``ambient``, the one the theory is about, or ``subsphere``.
    """
    found = []
    for seed in choose_seeds(profile, seeds):
        names = synthetic.choose_processes(processes, PROCESSES)
        for process in names if processes or profile == "paper" else QUICK_PROCESSES:
            for share in SHARES[profile]:
                for loss in ("tagged", "standard") if share > 0 else ("standard",):
                    found.append(Cell(NAME, synthetic.complete({
                        "process": process, "convention": convention, "share": share, "loss": loss,
                        "pairs": "tagged" if loss == "tagged" else "mixture",
                        "seed": seed, "profile": profile,
                        **schedule(profile, process, loss, share),
                    })))  # fmt: skip
    return found


def schedule(profile: str, process: str, loss: str, share: float) -> dict[str, Any]:
    """Steps, batch and weights of one cell; patches, torn along many circles, take the longest to resolve."""
    if loss == "standard":
        return (
            {"steps": 5000, "batch_size": 2000} if profile == "paper" else {"steps": 300, "batch_size": 500}
        )
    weight = {"group_size": 20, "weight": 0.2 if share >= 0.05 else 0.1, "extra": 3, "restarts": 3}
    if profile == "paper":
        sizes = {"warm_steps": 2000, "warm_batch_size": 500, "steps": 3000, "batch_size": 1000, "drawn": 5000}
        return {**sizes, **weight}
    sizes = {"warm_steps": 300, "warm_batch_size": 200, "steps": 150, "batch_size": 500, "drawn": 1000}
    slower = {
        "spiral": {"warm_steps": 500},
        "patches": {"steps": 2500},
        "invertible_mlp": {"warm_steps": 400},
    }
    return {"lr": 2e-3, **sizes, **slower.get(process, {}), **weight}


def run(settings: dict[str, Any]) -> tuple[records.Record, dict[str, np.ndarray]]:
    """One cell's record, with the moved pairs it saw and the published numbers of its process."""
    record, arrays = synthetic.run(NAME, settings, published)
    s = synthetic.Settings(**settings)
    steps = ((record.result["steps"] - s.steps, s.warm_batch_size or s.batch_size), (s.steps, s.batch_size))
    moved = sum(n * synthetic.moved_pairs(s, size) for n, size in steps)
    return record.model_copy(update={"result": {**record.result, "moved_pairs": moved}}), arrays


def published(s: dict[str, Any]) -> dict[str, Any]:
    """What the paper reports without moved pairs (Table 1, diversity violated): R² of three ways to train."""
    row = experiments.published()["table1_r2"][s["process"]]
    columns = {"standard": "infonce/mlp", "corrected": "corrected/mlp", "inverse": "infonce/inverse"}
    found = {name: row[f"violated/{column}"] for name, column in columns.items()}
    return {f"r2_{name}": None if value is None else value["mean"] for name, value in found.items()}


def table(runs: list[records.Record]) -> dict[str, Any]:
    """The table of records: tagged beside untagged at each share, and the published ways to train beside both."""
    lines = summary.aggregate(runs, BY)
    for line in lines:
        line["published"] = published(line)
    return {
        "experiment": NAME,
        "title": TITLE,
        "cells": lines,
        "sentences": sentences(lines),
        "notes": [
            "share: moved pairs among all pairs of a step. standard: the same pairs, untagged, under the standard loss.",
            "loss − log M is the standard loss on the mixture of both kinds of pairs.",
        ],
    }


def sentences(lines: list[dict[str, Any]]) -> list[str]:
    """For each process: tagged against untagged at each share, then what was published without moved pairs."""
    found = []
    for process in dict.fromkeys(line["process"] for line in lines):
        own = {(x["share"], x["loss"]): x for x in lines if x["process"] == process and x["r2"] is not None}
        gains = [
            f"{share:.0%}: {x['r2']['median']:.3f} against {own[share, 'standard']['r2']['median']:.3f}"
            for (share, loss), x in own.items()
            if loss == "tagged" and (share, "standard") in own
        ]
        theirs = published({"process": process})
        beside = ", ".join(
            f"{name} {theirs[f'r2_{name}']:.2f}"
            for name in ("standard", "corrected", "inverse")
            if theirs[f"r2_{name}"] is not None
        )
        if gains:
            found.append(
                f"{process}: median R², tagged against untagged: {'; '.join(gains)} "
                f"(published without moved pairs: {beside})."
            )
    return found
