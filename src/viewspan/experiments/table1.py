"""Table 1 of arXiv 2606.04280: five processes, with and without diversity, plain and inverse encoders.

What was run, not what the text defines: the ``subsphere`` law, the published code's processes and encoder order.
The corrected loss is our grouped one, which has the same minimisers at the cost of the standard loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from viewspan import experiments, records
from viewspan.experiments import summary, synthetic
from viewspan.experiments.profiles import choose_seeds
from viewspan.sweeps import Cell

NAME = "table1"
TITLE = "Table 1: recovery by process, pairs, loss and encoder"
PROCESSES = ("identity", "linear", "spiral", "patches", "invertible_mlp")
COLUMNS = (
    ("holds", "standard", "mlp"),
    ("violated", "standard", "mlp"),
    ("violated", "corrected", "mlp"),
    ("violated", "standard", "inverse"),
)  # pairs, loss, encoder
BY = ("process", "pairs", "loss", "encoder", "convention", "process_variant", "norm_order")


def cells(
    profile: str = "quick",
    *,
    seeds: int | None = None,
    processes: list[str] | None = None,
    convention: str = "subsphere",
) -> list[Cell]:
    """The runs of a profile: 19 cells a seed, all of one seed before the next.

    Args:
        profile: ``quick`` (minutes on two cores) or ``paper`` (5000 steps, batch 2000).
        seeds: how many seeds, 0, 1, …; the profile's own number if None (1 or 5).
        processes: names of processes, all if None.
        convention: ``subsphere``, what was published, or ``ambient``.
    """
    chosen = choose_seeds(profile, seeds)
    names = synthetic.choose_processes(processes, PROCESSES)
    found = []
    for seed in chosen:
        for process in names:
            for pair_law, loss, encoder in COLUMNS:
                if encoder == "inverse" and process == "invertible_mlp":
                    continue
                settings = {
                    "process": process,
                    "pairs": pair_law,
                    "loss": loss,
                    "encoder": encoder,
                    "convention": convention,
                    "seed": seed,
                    "rho": 1.0 if loss == "corrected" else 0.0,
                    "profile": profile,
                    **schedule(profile, process, pair_law, loss, encoder),
                }
                found.append(Cell(NAME, synthetic.complete(settings)))
    return found


def schedule(profile: str, process: str, pair_law: str, loss: str, encoder: str) -> dict[str, Any]:
    """Steps and batch of one cell; the groups of the corrected loss are G fibres of 25 or 40 anchors."""
    if profile == "paper":
        return {"steps": 5000, "batch_size": 2000, "group_size": 40 if loss == "corrected" else None}
    if encoder == "inverse":
        return {
            "steps": {"identity": 800, "linear": 800, "spiral": 2000, "patches": 1500}[process],
            "lr": 5e-3,
        }
    if loss == "corrected":
        return {"steps": 300, "batch_size": 500, "group_size": 25, "lr": 2e-3}
    if pair_law == "holds":
        return {
            "steps": {"identity": 300, "linear": 300, "spiral": 700, "patches": 500, "invertible_mlp": 400}[
                process
            ]
        }
    return {"steps": 450, "lr": 2e-3}


def run(settings: dict[str, Any]) -> tuple[records.Record, dict[str, np.ndarray]]:
    """One cell's record, with the published numbers of its cell beside it."""
    return synthetic.run(NAME, settings, published)


def published(s: dict[str, Any]) -> dict[str, Any] | None:
    """The published numbers of a cell: R² (Table 1), correlation, APE (halved there) and loss (Tables 3 to 6)."""
    tables = experiments.published()
    column = f"{'corrected' if s['loss'] == 'corrected' else 'infonce'}/{s['encoder']}"
    r2 = tables["table1_r2"][s["process"]][f"{s['pairs']}/{column}"]
    if r2 is None or s["convention"] != "subsphere":
        return None
    if s["pairs"] == "holds":
        more = tables["table3_holds_mlp"][s["process"]]  # Table 3
    else:
        names = {
            "mcc": "table4_violated_mcc",  # Table 4
            "ape": "table5_violated_ape",  # Table 5
            "loss": "table6_violated_loss",  # Table 6
        }
        more = {key: tables[table][s["process"]][column] for key, table in names.items()}
    return {
        "r2": r2["mean"],
        "r2_sd": r2["std"],
        "mcc": more["mcc"]["mean"],
        "ape": more["ape"]["mean"],
        "loss": more["loss"]["mean"],
        "m": more["loss"]["m"],
        "loss_minus_log_m": summary.comparable(more["loss"]["mean"], more["loss"]["m"]),
    }


def table(runs: list[records.Record]) -> dict[str, Any]:
    """The table of records: one cell a line, published and predicted beside measured."""
    lines = []
    for line in summary.aggregate(runs, BY):
        line["variant"] = {"process": line.pop("process_variant"), "norm_order": line.pop("norm_order")}
        line["published"] = published(line)
        lines.append(line)
    return {
        "experiment": NAME,
        "title": TITLE,
        "cells": lines,
        "inverse_minus_mlp": [
            difference for process in PROCESSES for difference in differences(process, lines)
        ],
        "notes": [
            "r2: held out; mean ± sd over seeds. ape: mean |cos − cos|, in [0, 2]; the published tables hold half of "
            "it, so half is printed here.",
            "loss − log M: 4096 fresh anchors against M fresh negatives, in eval mode. above floor: over the lowest "
            "loss any map can reach; far above it a run is unfinished and can look recovered.",
            "published losses are training batches at other M; --json gives each.",
        ],
    }


def differences(process: str, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """R² of the inverse encoder (violated) minus that of the MLP, where diversity holds and where it does not."""
    at = {(x["pairs"], x["loss"], x["encoder"]): x for x in lines if x["process"] == process}
    inverse = at.get(("violated", "standard", "inverse"))
    found = []
    for pair_law in ("holds", "violated"):
        mlp = at.get((pair_law, "standard", "mlp"))
        if inverse is None or mlp is None or inverse["r2"] is None or mlp["r2"] is None:
            continue
        theirs = None
        if inverse["published"] and mlp["published"]:
            theirs = inverse["published"]["r2"] - mlp["published"]["r2"]
        found.append(
            {
                "process": process,
                "mlp_pairs": pair_law,
                "r2_difference": inverse["r2"]["mean"] - mlp["r2"]["mean"],
                "published": theirs,
            }
        )
    return found
