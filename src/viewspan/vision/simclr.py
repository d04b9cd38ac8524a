"""Contrastive training on images: one loop for every encoder, view pipeline, pairing and loss.

A step draws views of a batch, encodes all of them in one pass and hands unit embeddings to the loss. Everything
random follows from (seed, epoch, image, view) or (seed, step), so a run continues from a checkpoint, or spreads over
processes, without a stored random state.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from viewspan import checks, losses, records, runtime
from viewspan.images import ImageSet, named
from viewspan.images import views as view_pipelines
from viewspan.vision import backbones, drawing, pairing, run_folder
from viewspan.vision.distributed import world
from viewspan.vision.loop import Loop, Plan, Progress

LARGEST_SEED = 2**63 - 1


@dataclass
class TrainRun:
    """A finished run.

    Attributes:
        encoder: the trained encoder, in eval mode, on the CPU.
        untrained: the same encoder with its first weights.
        settings: everything that decides the run.
        steps: optimiser steps taken.
        loss: mean of the last epoch, nats.
        m: negatives an anchor meets in a full batch.
        no_signal: True if the loss never left log(M + 1) by more than 3 standard errors over the last steps;
            None if there were too few steps to tell.
        images_per_second: images of the set that passed in a second (two or more views each), checkpoints left out.
        history: ``epoch``, ``loss``, ``loss_minus_log_m``, ``alignment``, ``uniformity``, ``images_per_second``.
        folder: the run's folder, or None.
        record: the run's record, or None without a folder.
        reused: the folder already held this finished run.
    """

    encoder: backbones.Encoder
    untrained: backbones.Encoder
    settings: dict[str, Any]
    steps: int
    loss: float
    m: int
    no_signal: bool | None
    images_per_second: float
    history: dict[str, list[float | None]] = field(default_factory=dict)
    folder: Path | None = None
    record: Path | None = None
    reused: bool = False

    @property
    def sentence(self) -> str:
        """What the loss says, in words."""
        if self.no_signal:
            return (
                f"no signal: over the last steps the loss stays within 3 standard errors of log(M + 1) = "
                f"{math.log(self.m + 1):.4f} (M = {self.m}), which a constant encoder attains"
            )
        return f"loss {self.loss:.4f}, log(M + 1) = {math.log(self.m + 1):.4f} (M = {self.m})"


def train(
    images: ImageSet,
    *,
    encoder: backbones.Backbone | nn.Module,
    views: Any,
    loss: nn.Module | None = None,
    pairs: pairing.Pairing | None = None,
    epochs: int,
    batch_size: int = 256,
    lr: float = 3e-4,
    schedule: str = "constant",
    weight_decay: float = 0.0,
    head: str = "none",
    seed: int,
    out: str | Path | None = None,
    resume: bool = False,
    save_seconds: float = 60.0,
    device: str = "auto",
    precision: str = "float32",
    threads: int | None = None,
    track: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> TrainRun:
    """Train an encoder on views of images with Adam.

    Args:
        images: the images; labels are not read.
        encoder: a backbone (`vision.resnet18`, `vision.vit`, `vision.mlp` or your own), see `vision.backbones`.
        views: a `ViewPipeline`, or anything `images.views.resolve` takes (in fixed order).
        loss: NT-Xent with temperature .5 unless given. A loss with ρ > 0 needs `pairs=TwoLevel()`.
        pairs: `TwoViews()` unless given.
        epochs: passes over the images, >= 1.
        batch_size: positive pairs in a step, over all processes. A left-over too small for a step joins the one
            before it; a set smaller than one batch is one batch.
        lr: Adam's learning rate; constant, or with ``schedule="cosine"`` falling to 0 after a linear rise over the
            first twentieth of the steps.
        schedule: ``constant`` (as published) or ``cosine``.
        weight_decay: L2 term added to the gradient (the published code: 1e-4).
        head: ``none`` (as published) or ``mlp``; the probe drops it.
        seed: of weights, batches, views and dropout.
        out: folder for checkpoints and the record. Without it nothing is written.
        resume: go on from the folder's checkpoint; it must have been written with the same settings.
        save_seconds: write a checkpoint when so many seconds have passed since the last; 0: after every step.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        precision: ``auto``, ``float32`` or ``bfloat16``; the loss is always computed in float32.
        threads: CPU threads, torch's number unless given.
        track: folder for TensorBoard event files (needs the ``track`` extra).
        progress: called after each step in the first process.

    Returns:
        The finished run.

    Raises:
        ValueError: for settings that cannot be trained on, before anything is written.
        checks.RunFailed: if loss or weights stop being finite; the last good checkpoint is kept.
        signals.Interrupted: after SIGINT or SIGTERM, with a checkpoint written (only if `out` is given).
    """
    plan = Plan(
        epochs=checks.integer("epochs", epochs, low=1),
        batch_size=checks.integer("batch_size", batch_size, low=2),
        lr=checks.number("lr", lr, low=0, open_low=True),
        schedule=checks.choice("schedule", schedule, ("constant", "cosine")),
        weight_decay=checks.number("weight_decay", weight_decay, low=0),
        seed=checks.integer("seed", seed, low=0, high=LARGEST_SEED),
    )
    checks.number("save_seconds", save_seconds, low=0)
    loss = losses.NTXent(0.5) if loss is None else loss
    pairs = pairing.TwoViews() if pairs is None else pairs
    pairs.loss(loss, torch.eye(2 * pairs.rows).unflatten(0, (2, pairs.rows)))  # what does not fit fails here
    pipeline = view_pipelines.resolve(views)
    on = runtime.device(device)
    if precision == "auto" and out is not None and (Path(out) / run_folder.SETTINGS).exists():
        # a timing must not part a run from its checkpoint
        precision = run_folder.read_settings(out)["precision"]
    with runtime.threads(threads) as n_threads, world(on) as whole:
        precision = whole.agree(runtime.precision(precision, on), on)
        source = drawing.Source(images, pipeline, seed=seed, on=on)
        untrained = backbones.build(encoder, source.shape, head=head, seed=seed)
        loop = Loop(source, untrained, loss, pairs, plan, precision, whole)
        loop.rehearse()
        settings = records.jsonable(
            _settings(images, encoder, untrained, source, loss, pairs)
            | {"head": head, "precision": precision, **plan._asdict()}
        )
        folder = None if out is None else run_folder.RunFolder(out, settings, whole)
        if folder is not None and (done := folder.finished()) is not None:
            return _reused(done, folder, encoder)
        with (
            run_folder.scalars(track if whole.rank == 0 else None) as scalars,
            contextlib.nullcontext() if folder is None else folder.alone(),
        ):
            if folder is not None:
                loop.restore(folder.open(untrained, resume))
            loop.run(folder, save_seconds=save_seconds, progress=progress, scalars=scalars)
            run = TrainRun(loop.trained(), untrained.eval(), settings, history=loop.history, **loop.result())
            if folder is not None:
                environment = records.environment(
                    device=on.type,
                    precision=precision,
                    threads=n_threads,
                    processes=whole.size,
                    data=Path(images.source).name,
                    skipped=[name for name, _ in images.skipped],
                )
                run.record = folder.finish(loop.result(), loop.history, environment, loop.seconds)
                run.folder = folder.path
    if run.no_signal:
        warnings.warn(run.sentence, checks.ViewspanWarning, stacklevel=2)
    return run


def _settings(
    images: ImageSet,
    encoder: Any,
    built: nn.Module,
    source: drawing.Source,
    loss: nn.Module,
    pairs: pairing.Pairing,
) -> dict[str, Any]:
    """The parts of a run as JSON values; the data by their content, the user's own code by its text."""
    operations = [op for _, op in source.pipeline.operations]
    own = named.code_digest(encoder, loss, pairs, *(getattr(op, "function", op) for op in operations))
    return {
        "data": {"n": len(images), "digest": drawing.digest(images)},
        "encoder": backbones.described(encoder),
        "weights": sum(p.numel() for p in built.parameters()),
        "shape": list(source.shape),
        **run_folder.described_views(source.pipeline),
        "loss": run_folder.described(loss),
        "pairs": run_folder.described(pairs),
        **({} if own is None else {"code": own}),
    }


def _reused(done: records.Record, folder: run_folder.RunFolder, encoder: Any) -> TrainRun:
    trained, untrained, settings = run_folder.load_encoders(folder.path, encoder)
    return TrainRun(
        trained, untrained, settings, **done.result, history=done.history,
        folder=folder.path, record=folder.store.path("train", settings), reused=True,
    )  # fmt: skip
