"""Beyond the paper: the support-corrected loss under the law its theorem is about, and under the law that was run.

Theorem 4.6 of arXiv 2606.04280 is about Eq. (6) (``ambient``); its experiments drew positives by Algorithm 13
(``subsphere``), under which every minimiser sends each fibre to a great subsphere and R² ends at (π/4)² = .617 in
three dimensions. Under ``ambient`` isometries are minimisers, and so are folds; a separate uniformity term leaves the
folds out and still lets fibres turn against each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from viewspan import experiments, records
from viewspan.experiments import summary, synthetic
from viewspan.experiments.profiles import choose_seeds
from viewspan.sweeps import Cell

NAME = "law"
TITLE = "The corrected loss under both laws, with and without a uniformity term"
PROCESSES = ("identity", "linear", "spiral", "patches", "invertible_mlp")
BY = ("process", "convention", "loss", "pairs", "encoder", "beta", "dim", "n_fixed")
RECOVERED = 0.95


def cells(
    profile: str = "quick",
    *,
    seeds: int | None = None,
    processes: list[str] | None = None,
) -> list[Cell]:
    """The runs of a profile: both laws, each with the corrected loss alone and with a uniformity term (β = 1).

    Args:
        profile: ``quick`` or ``paper`` (5000 steps, batch 2000).
        seeds: how many seeds, 0, 1, …; the profile's own number if None (1 or 5).
        processes: names of processes, all if None.
    """
    found = []
    for seed in choose_seeds(profile, seeds):
        for process in synthetic.choose_processes(processes, PROCESSES):
            for convention in ("subsphere", "ambient"):
                for loss in ("corrected", "uniformity"):
                    found.append(Cell(NAME, synthetic.complete({
                        "process": process, "pairs": "violated", "convention": convention, "loss": loss,
                        "rho": 1.0 if loss == "corrected" else 0.0,
                        "seed": seed, "profile": profile,
                        **schedule(profile, loss),
                    })))  # fmt: skip
    return found


def schedule(profile: str, loss: str) -> dict[str, Any]:
    """Steps and batch of one cell."""
    if profile == "paper":
        return {"steps": 5000, "batch_size": 2000, "group_size": 40}
    return {
        "steps": {"corrected": 300, "uniformity": 400}[loss],
        "batch_size": 500,
        "group_size": 25,
        "lr": 2e-3,
    }


def run(settings: dict[str, Any]) -> tuple[records.Record, dict[str, np.ndarray]]:
    """One cell's record, with the published number of its cell beside it."""
    return synthetic.run(NAME, settings, published)


def published(s: dict[str, Any]) -> dict[str, Any] | None:
    """The published R² of the corrected loss (Table 1), which was trained under the ``subsphere`` law."""
    if s["convention"] != "subsphere" or s["loss"] != "corrected":
        return None
    found = experiments.published()["table1_r2"][s["process"]]["violated/corrected/mlp"]
    return {"r2": found["mean"], "r2_sd": found["std"]}


def table(runs: list[records.Record]) -> dict[str, Any]:
    """The table of records, and how many runs recover the sphere under each law and loss."""
    lines = summary.aggregate(runs, BY)
    for line in lines:
        line["published"] = published(line)
        line["recovered"] = sum(r2 is not None and r2 >= RECOVERED for r2 in line["r2_runs"])
    return {
        "experiment": NAME,
        "title": TITLE,
        "cells": lines,
        "sentences": sentences(lines),
        "notes": [
            "loss − log M is that of the corrected loss, without the uniformity term.",
            "published: Table 1, corrected, trained under the subsphere law.",
        ],
    }


def sentences(lines: list[dict[str, Any]]) -> list[str]:
    """The share of runs that recover the sphere, and what the others are, for each law and loss."""
    found = []
    for convention, loss in dict.fromkeys((x["convention"], x["loss"]) for x in lines):
        own = [x for x in lines if (x["convention"], x["loss"]) == (convention, loss)]
        total, good = sum(x["seeds"] for x in own), sum(x["recovered"] for x in own)
        kinds: dict[str, int] = {}
        for line in own:
            for kind, count in line["diagnoses"].items():
                kinds[kind] = kinds.get(kind, 0) + count
        named = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items(), key=lambda k: -k[1]))
        found.append(
            f"{convention}, {loss}: R² ≥ {RECOVERED} in {good} of {total} runs; diagnosed as {named}."
        )
    return found
