"""Beyond the paper: how much diversity is enough? R² of the standard loss against two doses of it.

- ``mixture``: a share ε of the pairs has full support, and nobody knows which.
- ``jittered``: every pair turns the held coordinate a little, by an angle of standard deviation σ.

The condition holds for every ε > 0 and (with one held coordinate) every σ > 0, so it cannot be what decides. What a
map gains by spreading must fall below what it loses on the moved pairs; `theory.mixtures.break_even_dose` bounds that ε from
below, and λ*(ε) says how far a linear encoder, which cannot spread, still squeezes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from viewspan import pairs, records
from viewspan.experiments import summary, synthetic
from viewspan.experiments.profiles import choose_seeds
from viewspan.sweeps import Cell
from viewspan.theory import mixtures

NAME = "dose"
TITLE = "How much diversity is enough: the standard loss against the dose"
PROCESSES = ("identity", "linear", "spiral", "patches", "invertible_mlp")
DOSES = {
    "quick": {"mixture": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4), "jittered": (0.1, 0.3, 0.6, 1.0)},
    "paper": {
        "mixture": (0.0, 0.02, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0),
        "jittered": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3),
    },
}
BY = ("process", "encoder", "pairs", "convention", "share", "sigma", "loss", "dim", "n_fixed")
RECOVERED = 0.95


def cells(
    profile: str = "quick",
    *,
    seeds: int | None = None,
    processes: list[str] | None = None,
    convention: str | None = None,
) -> list[Cell]:
    """The runs of a profile: each dose with an MLP and, where the process is linear, with its inverse encoder.

    Args:
        profile: ``quick`` (the identity unless others are named) or ``paper`` (five processes, more doses).
        seeds: how many seeds, 0, 1, …; the profile's own number if None (1 or 5).
        processes: names of processes.
        convention: law of the held pairs; both if None.
    """
    found = []
    for seed in choose_seeds(profile, seeds):
        names = synthetic.choose_processes(processes, PROCESSES)
        for process in names if processes or profile == "paper" else ("identity",):
            for encoder in ("mlp", "inverse") if process in ("identity", "linear") else ("mlp",):
                for law in (convention,) if convention else ("ambient", "subsphere"):
                    for kind, doses in DOSES[profile].items():
                        for dose in doses:
                            found.append(Cell(NAME, synthetic.complete({
                                "process": process, "pairs": kind, "convention": law, "loss": "standard", "encoder": encoder,
                                "share": dose if kind == "mixture" else 0.0,
                                "sigma": dose if kind == "jittered" else 0.0,
                                "seed": seed, "profile": profile,
                                **schedule(profile, encoder),
                            })))  # fmt: skip
    return found


def schedule(profile: str, encoder: str) -> dict[str, Any]:
    """Steps and batch of one cell."""
    if profile == "paper":
        return {"steps": 5000, "batch_size": 2000}
    if encoder == "inverse":
        return {"steps": 150, "batch_size": 1000, "lr": 0.05}
    return {"steps": 300, "batch_size": 500, "lr": 2e-3}


def run(settings: dict[str, Any]) -> tuple[records.Record, dict[str, np.ndarray]]:
    """One cell's record."""
    return synthetic.run(NAME, settings)


def table(runs: list[records.Record]) -> dict[str, Any]:
    """The table of records, with the break-even dose and the dose at which recovery was first seen."""
    lines = summary.aggregate(runs, BY)
    for line in lines:
        share, sigma = line.pop("share"), line.pop("sigma")
        line["dose"] = share if line["pairs"] == "mixture" else sigma
        line["published"] = None
    return {
        "experiment": NAME,
        "title": TITLE,
        "cells": lines,
        "break_even": {x: break_even(x) for x in dict.fromkeys(line["convention"] for line in lines)},
        "sentences": sentences(lines),
        "notes": [
            "dose: the share ε of full-support pairs (mixture) or the standard deviation σ of the turn, radians "
            "(jittered).",
            "predicted: the best map of the squeeze family, which a linear encoder can represent. Theory does not say "
            "where an MLP ends.",
        ],
    }


def break_even(convention: Any) -> float:
    """Below this share of moved pairs a spreading map has a lower loss than every isometry."""
    law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention=convention)
    return mixtures.break_even_dose(law, temperature=0.3)


def sentences(lines: list[dict[str, Any]]) -> list[str]:
    """For each column: break-even beside the smallest dose from which on every mean R² is at least .95."""
    found = []
    for key in dict.fromkeys((x["process"], x["encoder"], x["pairs"], x["convention"]) for x in lines):
        process, encoder, kind, convention = key
        own = sorted(
            (x for x in lines if (x["process"], x["encoder"], x["pairs"], x["convention"]) == key),
            key=lambda x: x["dose"],
        )
        below = [x["dose"] for x in own if x["r2"] is None or x["r2"]["mean"] < RECOVERED]
        above = [x["dose"] for x in own if not below or x["dose"] > below[-1]]
        symbol = "ε" if kind == "mixture" else "σ"
        where = f"from {symbol} = {above[0]:g} on" if above else f"at no {symbol} tried"
        even = f"; break-even at {symbol} ≥ {break_even(convention):.3f}" if kind == "mixture" else ""
        found.append(f"{process}, {encoder}, {kind}, {convention}: mean R² ≥ {RECOVERED} {where}{even}.")
    return found
