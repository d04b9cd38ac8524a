"""Tables 8 to 11 of arXiv 2606.04280: recovery against ρ, the share of negatives from the anchor's own fibre.

Between the standard loss (ρ = 0, which squeezes the free coordinates) and the support-corrected one (ρ = 1, which
under the ``subsphere`` law stretches them onto great circles) lies a ρ at which a linear encoder is an isometry: the
quadrature says where, and how far from it every other ρ ends.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from viewspan import experiments, records
from viewspan.experiments import summary, synthetic
from viewspan.experiments.profiles import choose_seeds
from viewspan.sweeps import Cell

NAME = "rho"
TITLE = "Tables 8 to 11: recovery against the share ρ of negatives on the anchor's fibre"
PROCESSES = ("identity", "linear", "invertible_mlp", "patches", "spiral")
QUICK_PROCESSES = ("identity", "linear")
RATIOS = tuple(i / 10 for i in range(11))
BY = ("process", "encoder", "rho", "pairs", "loss", "convention", "process_variant", "dim", "n_fixed")


def cells(
    profile: str = "quick",
    *,
    seeds: int | None = None,
    processes: list[str] | None = None,
    convention: str = "subsphere",
) -> list[Cell]:
    """The runs of a profile: each process with an MLP and with its inverse encoder, at eleven ρ.

    Args:
        profile: ``quick`` (identity and linear unless others are named) or ``paper`` (nine columns, 5000 steps).
        seeds: how many seeds, 0, 1, …; the profile's own number if None (1 or 5).
        processes: names of processes.
        convention: ``subsphere``, what was published, or ``ambient``.
    """
    found = []
    for seed in choose_seeds(profile, seeds):
        names = synthetic.choose_processes(processes, PROCESSES)
        for process in names if processes or profile == "paper" else QUICK_PROCESSES:
            for encoder in ("mlp",) if process == "invertible_mlp" else ("mlp", "inverse"):
                for rho in RATIOS:
                    found.append(Cell(NAME, synthetic.complete({
                        "process": process, "pairs": "violated", "convention": convention, "encoder": encoder, "rho": rho,
                        "loss": {0.0: "standard", 1.0: "corrected"}.get(rho, "mixed"),
                        "seed": seed, "profile": profile,
                        **schedule(profile, process, encoder, rho),
                    })))  # fmt: skip
    return found


def schedule(profile: str, process: str, encoder: str, rho: float) -> dict[str, Any]:
    """Steps and batch of one cell. A group of n stands for the fibre by n − 1 others, which moves λ* a little."""
    group = 20 if rho > 0 else None
    if profile == "paper":
        return {"steps": 5000, "batch_size": 2000, "group_size": group}
    if encoder == "mlp":
        return {"steps": 300, "batch_size": 500, "group_size": group, "lr": 2e-3}
    if process in QUICK_PROCESSES:  # a few weights: a large batch costs the similarity matrix and little else
        lr = {"identity": 0.05, "linear": 0.1}[process]  # a linear g can nearly hide a latent
        return {"steps": 160, "batch_size": 2000, "group_size": 50 if rho > 0 else None, "lr": lr}
    return {"steps": 1000, "batch_size": 500, "group_size": group, "lr": 5e-3}


def run(settings: dict[str, Any]) -> tuple[records.Record, dict[str, np.ndarray]]:
    """One cell's record, with the published numbers of its cell beside it."""
    return synthetic.run(NAME, settings, published)


def published(s: dict[str, Any]) -> dict[str, Any] | None:
    """The published numbers of a cell: R², correlation, APE (halved there) and loss of Tables 8, 9, 10 and 11."""
    if s["convention"] != "subsphere":
        return None
    tables = experiments.published()
    column = f"{s['process']}/{s['encoder']}"
    names = {
        "r2": "table8_rho_r2",  # Table 8
        "mcc": "table9_rho_mcc",  # Table 9
        "ape": "table10_rho_ape",  # Table 10
        "loss": "table11_rho_loss",  # Table 11
    }
    found: dict[str, Any] = {
        key: next(row[column] for row in tables[table] if math.isclose(row["rho"], s["rho"]))
        for key, table in names.items()
    }
    m = tables["table11_m"][column]
    return {**found, "m": m, "loss_minus_log_m": summary.comparable(found["loss"], m)}


def table(runs: list[records.Record]) -> dict[str, Any]:
    """The table of records: one cell a line, published and predicted beside measured."""
    lines = summary.aggregate(runs, BY)
    for line in lines:
        line["published"] = published(line)
    return {
        "experiment": NAME,
        "title": TITLE,
        "cells": lines,
        "sentences": best(lines),
        "notes": [
            "ape: mean |cos − cos|, in [0, 2]; the published tables hold half of it, so half is printed here.",
            "predicted: the squeeze family's optimum, which a linear encoder can represent. At ρ = 1 it is reached only "
            "like 1/log λ as the free coordinates are stretched without end; an unfinished descent has higher R².",
            "published losses are at other M; --json gives each.",
        ],
    }


def best(lines: list[dict[str, Any]]) -> list[str]:
    """For each column the ρ of the best R², and whether an MLP ever gets there."""
    found = []
    for key in dict.fromkeys((line["process"], line["encoder"]) for line in lines):
        own = [x for x in lines if (x["process"], x["encoder"]) == key and x["r2"] is not None]
        if len({x["rho"] for x in own}) > 1:
            top = max(own, key=lambda x: x["r2"]["mean"])
            found.append(f"{key[0]}, {key[1]}: best R² {top['r2']['mean']:.3f} at ρ = {top['rho']:g}")
    return found
