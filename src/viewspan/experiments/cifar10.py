"""Figure 3 of arXiv 2606.04280: three encoders × three view regimes on CIFAR-10, with the rows the figure lacks.

Beside every trained cell stand the same encoder untrained and raw pixels under the same probe, since a trained cell
below its untrained encoder says nothing about the regime. What the figure claims is judged: which views are best, how
the encoders rank, and how the gap between them changes as the views move less.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import torch

from viewspan import experiments, images, losses, records, runtime, vision
from viewspan.experiments import claims
from viewspan.experiments.profiles import SEEDS, choose_seeds, validated
from viewspan.experiments.summary import spread
from viewspan.sweeps import Cell
from viewspan.vision import drawing

NAME = "cifar10"
ENCODERS = ("resnet18", "vit", "mlp")
REGIMES = ("all", "crop", "all-without-crop")
N_RETRIEVAL = 500
TITLES = {
    "quick": "CIFAR-10, quick profile: a check that everything runs, too short to reproduce Figure 3",
    "cpu": "Figure 3 on a CPU: linear probe on CIFAR-10 by encoder and view regime",
    "paper": "Figure 3: linear probe on CIFAR-10 by encoder and view regime",
}
MEASURED = (
    "probe_accuracy", "knn_accuracy", "untrained_accuracy", "untrained_knn_accuracy", "pixels_accuracy",
    "pixels_knn_accuracy", "gain", "retrieval", "untrained_retrieval", "alignment", "untrained_alignment",
    "uniformity", "untrained_uniformity", "training_loss", "images_per_second",
)  # fmt: skip
BY = ("encoder", "views", "profile", "n_train", "epochs")


class ResNet18(pydantic.BaseModel):
    """`vision.resnet18`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: Literal["resnet18"] = "resnet18"

    def build(self) -> Callable[..., torch.nn.Module]:
        """The encoder's maker."""
        return vision.resnet18


class Mlp(pydantic.BaseModel):
    """`vision.mlp`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: Literal["mlp"] = "mlp"

    def build(self) -> Callable[..., torch.nn.Module]:
        """The encoder's maker."""
        return vision.mlp


class Vit(pydantic.BaseModel):
    """`vision.vit`, at the published size unless said otherwise."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: Literal["vit"] = "vit"
    patch: int = pydantic.Field(4, ge=1)
    width: int = pydantic.Field(384, ge=1)
    layers: int = pydantic.Field(6, ge=1)
    heads: int = pydantic.Field(6, ge=1)
    hidden: int = pydantic.Field(1536, ge=1)

    def build(self) -> Callable[..., torch.nn.Module]:
        """The encoder's maker."""
        return functools.partial(vision.vit, **self.model_dump(exclude={"name"}))


class Settings(pydantic.BaseModel):
    """Everything that decides a run.

    Attributes:
        data: image folder with ``train/`` and ``test/``, or ``cifar10[:ROOT]``.
        encoder: ``resnet18``, ``vit`` (with its size) or ``mlp``.
        views: the regime.
        order: of the operations, permuted once a run (``random``) as published, or ``fixed``.
        pairs: ``clean-view`` (one of two views is the image itself, as in the published code) or ``two-views``.
        n_train, n_test: images used, None for all; a fixed random choice, the same in every cell.
        epochs, batch_size, lr, schedule, weight_decay, temperature, head: of the training.
        protocol, published_epochs, k: of the probe and its nearest neighbours.
        device, precision, threads: where and how it computes.
        seed: of weights, batches, views and dropout.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    data: str = "cifar10"
    encoder: ResNet18 | Vit | Mlp = pydantic.Field(discriminator="name")
    views: Literal["all", "crop", "all-without-crop"]
    order: Literal["fixed", "random"] = "random"
    pairs: Literal["two-views", "clean-view"] = "clean-view"
    n_train: int | None = None
    n_test: int | None = None
    epochs: int = pydantic.Field(200, ge=1)
    batch_size: int = pydantic.Field(2000, ge=2)
    lr: float = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 1e-4
    temperature: float = 0.5
    head: Literal["none", "mlp"] = "none"
    protocol: Literal["standard", "published"] = "published"
    published_epochs: int = 100
    k: int = pydantic.Field(200, ge=1)
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    threads: int = pydantic.Field(1, ge=1)
    seed: int
    profile: str = "paper"


QUICK: dict[str, Any] = {
    "n_train": 2000, "n_test": 1000, "epochs": 4, "batch_size": 200, "protocol": "standard", "lr": 1e-3,
}  # fmt: skip
# 50,000 images, two cores: chosen on one cell, ResNet-18 under `all`, by benchmarks/cifar10_search.py
CPU: dict[str, Any] = {
    "epochs": 12, "batch_size": 256, "protocol": "standard", "lr": 1e-3, "schedule": "cosine", "temperature": 0.1,
    "precision": "auto",
}  # fmt: skip
PROFILES: dict[str, dict[str, Any]] = {"quick": QUICK, "cpu": CPU, "paper": {}}
# a transformer that costs no more than the ResNet on a CPU: 1.5 M weights on 16 patches, published 10.9 M on 64
VITS: dict[str, dict[str, Any]] = {
    "quick": {"width": 64, "layers": 2, "heads": 2, "hidden": 256},
    "cpu": {"patch": 8, "width": 192, "layers": 3, "heads": 3, "hidden": 768},
    "paper": {},
}


def cells(
    profile: str = "quick",
    *,
    seeds: int | None = None,
    data: str = "cifar10",
) -> list[Cell]:
    """The runs of a profile: 9 cells a seed, all of one seed before the next.

    Args:
        profile: ``quick`` (minutes on two cores, 2,000 images, a small transformer), ``cpu`` (hours on two cores, all
            images, a small transformer) or ``paper`` (a GPU).
        seeds: how many seeds, 0, 1, …; the profile's own number if None (1, 2 or 5).
        data: image folder with ``train/`` and ``test/``, or ``cifar10[:ROOT]`` (downloaded once).
    """
    chosen = choose_seeds(profile, seeds, SEEDS | {"cpu": 2})
    if data.split(":")[0] != "cifar10" and not Path(data).is_dir():
        raise ValueError(f"data must be cifar10[:ROOT] or a folder with train/ and test/, got {data!r}")
    found = []
    for seed in chosen:
        for encoder in ENCODERS:
            for regime in REGIMES:
                size = VITS[profile] if encoder == "vit" else {}
                settings = {
                    "data": data, "encoder": {"name": encoder, **size}, "views": regime, "seed": seed,
                    "profile": profile, **PROFILES[profile],
                }  # fmt: skip
                found.append(Cell(NAME, complete(settings)))
    return found


def complete(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings checked and filled in with every default, as JSON values; the error names the field and the rule."""
    return validated(Settings, settings)


def run(
    settings: dict[str, Any], scratch: Path | None = None
) -> tuple[records.Record, dict[str, np.ndarray]]:
    """Train one cell, probe it beside its untrained twin and raw pixels, and see how held-out images' views lie.

    Args:
        settings: the fields of `Settings`.
        scratch: folder for checkpoints, one a minute; a cell begun there before is gone on with.
    """
    s = Settings.model_validate(settings)
    train_set, test_set = data(s.data, s.n_train, s.n_test)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    trained = train(s, train_set, scratch)
    start = time.perf_counter()
    pipeline = images.views.resolve(s.views, order=s.order)
    with runtime.threads(s.threads):
        read = vision.probe(
            trained, train_set, test_set, k=s.k, protocol=s.protocol, published_epochs=s.published_epochs,
            seed=s.seed, device=s.device,
        )  # fmt: skip
        on_views = {
            prefix + key: value
            for prefix, encoder in (("", trained.encoder), ("untrained_", trained.untrained))
            for key, value in vision.view_statistics(
                encoder, test_set, pipeline, n=N_RETRIEVAL, seed=s.seed, device=s.device
            )._asdict().items()
        }  # fmt: skip
    probed = read.as_dict()
    result = {
        **probed,
        **on_views,
        "under_published_probe": probed.pop("published"),
        "published": published(s.encoder.name, s.views),
        "data": {"train": drawing.labelled_digest(train_set), "test": drawing.labelled_digest(test_set)},
        "steps": trained.steps,
        "training_loss": trained.loss,
        "m": trained.m,
        "no_signal": trained.no_signal,
        "images_per_second": trained.images_per_second,
        "weights": sum(p.numel() for p in trained.encoder.parameters()),
        "peak_memory_gib": _peak_memory(),
    }
    record = records.Record(
        experiment=NAME,
        settings=records.jsonable(s.model_dump(mode="json")),
        result=result,
        history=trained.history,
        environment=records.environment(
            device=str(runtime.device(s.device)), precision=trained.settings["precision"], threads=s.threads
        ),
        seconds=s.epochs * len(train_set) / trained.images_per_second + time.perf_counter() - start,
    )
    return record, {f"correct_{name}": row.correct for name, row in read.rows.items()}


def train(s: Settings, train_set: images.ImageSet, scratch: Path | None = None) -> vision.TrainRun:
    """The training of one cell."""
    return vision.train(
        train_set, encoder=s.encoder.build(), views=images.views.resolve(s.views, order=s.order),
        loss=losses.NTXent(s.temperature), pairs=vision.TwoViews(clean=s.pairs == "clean-view"), epochs=s.epochs,
        batch_size=s.batch_size, lr=s.lr, schedule=s.schedule, weight_decay=s.weight_decay, seed=s.seed,
        device=s.device, precision=s.precision, threads=s.threads, head=s.head, out=scratch, resume=True,
    )  # fmt: skip


def name_of(encoder: str | dict[str, Any]) -> str:
    """The encoder's name in a record's settings; records of version 0.1 hold the bare name."""
    return encoder if isinstance(encoder, str) else encoder["name"]


@functools.lru_cache(maxsize=1)
def data(source: str, n_train: int | None, n_test: int | None) -> tuple[images.ImageSet, images.ImageSet]:
    """Training and test images, decoded once a process."""
    train = images.load(source, split="train", limit=n_train)
    return train, images.load(source, split="test", classes=train.classes, limit=n_test)


def _peak_memory() -> float | None:
    """Largest accelerator memory in use during a cell, GiB; None on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def published(encoder: str, views: str) -> dict[str, Any]:
    """The figure's bar (read off the chart, about ± .03) and the authors' logged run, as shares of 1."""
    figure = experiments.published()["figure3_cifar10_linear_probe_percent"]
    key = views.replace("-", "_")
    logged = figure["authors_logged_runs_best_epoch"].get(encoder, {}).get(key)
    return {
        "probe_accuracy": round(figure[encoder][key] / 100, 4),
        "logged_accuracy": None if logged is None else round(logged / 100, 4),
    }


def table(runs: list[records.Record]) -> dict[str, Any]:
    """The table of records: one cell a line beside Figure 3, then what the figure claims, judged."""
    groups: dict[tuple[Any, ...], list[records.Record]] = {}
    for record in runs:
        groups.setdefault(tuple(_key(record.settings, key) for key in BY), []).append(record)
    lines = [_line(group) for group in groups.values()]
    over_seeds = claims.pooled(lines, "gain")
    for line, group in zip(lines, groups.values()):
        intervals = np.array([r.result["gain_interval"] for r in group])
        line["gain_interval"] = claims.gain_interval(intervals, line["gain"]["mean"], over_seeds)
        line["above_untrained"] = line["gain_interval"][0] > 0
        line["diagnosis"] = _diagnosis(line)
    profiles = {line["profile"] for line in lines}
    found, ahead = claims.claims(lines, REGIMES), claims.gaps(lines, REGIMES)
    return {
        "experiment": NAME,
        "title": TITLES[profiles.pop() if len(profiles) == 1 else "paper"],
        "cells": lines,
        "claims": found,
        "gaps": ahead,
        "sentences": [_above(lines), *claims.sentences(found, ahead)] if lines else [],
        "notes": _notes(lines),
    }


def _key(settings: dict[str, Any], key: str) -> Any:
    return name_of(settings["encoder"]) if key == "encoder" else settings[key]


def _line(group: list[records.Record]) -> dict[str, Any]:
    """One line of the table: mean ± standard deviation over seeds of every measured number."""
    first = group[0]
    line: dict[str, Any] = {key: _key(first.settings, key) for key in BY}
    line |= {"seeds": len(group), "n_test": first.result["n_test"], "weights": first.result["weights"]}
    for key in MEASURED:
        line[key] = spread([r.result.get(key) for r in group])
    line["probe_runs"] = [r.result["probe_accuracy"] for r in sorted(group, key=lambda r: r.settings["seed"])]
    line["no_signal"] = [r.result["no_signal"] for r in group]
    probes = [r.result["under_published_probe"] for r in group]
    for row in ("trained", "untrained", "pixels"):
        for when in ("last", "best"):
            values = [None if p is None else p[row][when] for p in probes]
            line[f"published_probe_{row}_{when}"] = spread(values)
    line["published"] = published(line["encoder"], line["views"])
    line["seconds"] = sum(r.seconds for r in group)
    return line


def _diagnosis(line: dict[str, Any]) -> str:
    """What training changed, in a few words: probe and retrieval against the untrained encoder."""
    low, high = line["gain_interval"]
    return (
        f"{line['gain']['mean']:+.3f} [{low:+.3f}, {high:+.3f}] over untrained; "
        f"retrieval {line['retrieval']['mean']:.3f} (untrained {line['untrained_retrieval']['mean']:.3f})"
    )


def _above(lines: list[dict[str, Any]]) -> str:
    """How many cells say anything at all."""
    above = [f"{line['encoder']} {line['views']}" for line in lines if line["above_untrained"]]
    signal = sum(line["retrieval"]["mean"] > line["untrained_retrieval"]["mean"] for line in lines)
    which = f" ({', '.join(above)})" if 0 < len(above) < len(lines) else ""
    return (
        f"{len(above)} of {len(lines)} cells lie above their untrained encoder by more than the 95 % interval{which}; "
        f"{signal} of {len(lines)} find a held-out image's other view among {N_RETRIEVAL} more often than untrained."
    )


def _notes(lines: list[dict[str, Any]]) -> list[str]:
    notes = [
        "probe: logistic regression on standardised features of the frozen encoder (eval mode, clean images, last "
        "epoch), penalty chosen on held-out training rows. Figure 3 is the best test epoch of a probe fitted in train "
        "mode, read off a chart (± .03).",
        "gain: trained − untrained on the same test images, with a 95 % paired bootstrap interval.",
    ]
    short = next((line for line in lines if line["n_train"] is not None or line["epochs"] != 200), None)
    if short is not None:
        sizes = sorted({f"{line['encoder']} {line['weights'] / 1e6:.1f} M" for line in lines})
        notes.append(
            f"{short['n_train'] or 50000} training images and {short['epochs']} epochs instead of 50000 and 200; weights: "
            f"{', '.join(sizes)} (published: about 11 M each)."
        )
    return notes


def peak(runs: list[records.Record]) -> float:
    """Largest accelerator memory of some runs, GiB; 0 without an accelerator."""
    return max((r.result["peak_memory_gib"] or 0.0 for r in runs), default=math.nan)
