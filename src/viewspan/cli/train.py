"""`viewspan train`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from viewspan.cli import vision as vision_cli

if TYPE_CHECKING:
    from torch import nn

    from viewspan.vision import TrainRun, pairing


def train(
    data: str,
    *,
    encoder: str,
    views: str,
    out: Path,
    epochs: int,
    loss: Literal["ntxent", "standard", "corrected", "same-anchor"] = "ntxent",
    pairs: Literal["two-views", "clean-view"] = "two-views",
    temperature: float = 0.5,
    base_views: int = 8,
    strength: float = 0.1,
    shift: int = 1,
    negatives: int = 512,
    batch_size: int = 256,
    lr: float = 3e-4,
    schedule: Literal["constant", "cosine"] = "constant",
    weight_decay: float = 0.0,
    head: Literal["none", "mlp"] = "none",
    order: Literal["fixed", "random"] = "fixed",
    seed: int = 0,
    limit: int | None = None,
    skip_bad: bool = False,
    resume: bool = False,
    save_seconds: float = 60.0,
    device: vision_cli.Device = "auto",
    precision: vision_cli.Precision = "float32",
    threads: int | None = None,
    track: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Contrastive training on images.

    Ctrl-C (SIGINT) and SIGTERM end the run after the step under way, with a checkpoint, and exit codes 130 and 143.

    Args:
        data: class folders, a flat folder, an .npz file, cifar10 or package.module:name.
        encoder: resnet18, vit, mlp, convnet (small, for a CPU), or package.module:name of what gives a torch module.
        views: all, crop, all-without-crop, a .yaml file, or package.module:name of a callable.
        out: folder for checkpoints and the record.
        epochs: passes over the images.
        loss: ntxent; standard (InfoNCE, one direction); corrected (support-corrected, on two levels of views of one
            image); same-anchor (Algorithm 14 as published, which cannot learn).
        pairs: two-views, or clean-view: the first view is the image itself, as published.
        temperature: τ > 0.
        base_views: corrected only: views of an image that form its group.
        strength: corrected only: colour jitter of the positive, as a share of the views' own.
        shift: corrected only: largest shift of the positive, pixels.
        negatives: same-anchor only: views of the image that serve as negatives.
        batch_size: positive pairs in a step, over all processes.
        lr: Adam's learning rate.
        schedule: constant, or cosine with a short rise.
        weight_decay: L2 term.
        head: none, or mlp: a projection head that the probe drops.
        order: fixed or random order of the views' operations, drawn once a run.
        seed: of everything random.
        limit: train on so many images, drawn by the seed.
        skip_bad: leave out files that cannot be decoded instead of refusing.
        resume: go on from the checkpoint in the folder, if there is one.
        save_seconds: seconds between checkpoints; 0: one after each step.
        device: where to compute.
        precision: auto takes bfloat16 where it is at least 1.5 times faster.
        threads: CPU threads.
        track: folder for TensorBoard.
        json_: print one JSON document.
    """
    from viewspan import images, vision

    objective, pairing = _objective(
        loss, pairs, temperature, base_views=base_views, strength=strength, shift=shift, negatives=negatives
    )
    first = vision_cli.first_process()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the user's code may print
            backbone = vision_cli.encoder(encoder)
            pipeline = images.views.resolve(views, order=order)
            held = images.load(data, skip_bad=skip_bad)
            if limit is not None:
                held = vision_cli.limited(held, limit, seed)
            if first:
                print(held.summary(), file=sys.stderr)
            with vision_cli.Bar() as progress:
                run = vision.train(
                    held, encoder=backbone, views=pipeline, loss=objective, pairs=pairing, epochs=epochs,
                    batch_size=batch_size, lr=lr, schedule=schedule, weight_decay=weight_decay, head=head, seed=seed,
                    out=out, resume=resume, save_seconds=save_seconds, device=device, precision=precision,
                    threads=threads, track=track, progress=progress,
                )  # fmt: skip
    except vision.Interrupted as stopped:
        print(f"viewspan: {stopped}; go on with --resume", file=sys.stderr)
        return 128 + stopped.signum
    if first:
        _report_training(run, str(out), [name for name, _ in held.skipped], json_)
    return 0


def _report_training(run: TrainRun, out: str, skipped: list[str], as_json: bool) -> None:
    """What a finished run prints."""
    if not as_json:
        print(f"{'reused 1 of 1: ' if run.reused else ''}{run.steps} steps, {run.sentence}")
        print(f"{run.images_per_second:.0f} images/s; {run.record}")
        return
    vision_cli.print_json(
        {
            "run": out,
            "steps": run.steps,
            "loss": run.loss,
            "m": run.m,
            "loss_minus_log_m": run.history["loss_minus_log_m"][-1],
            "no_signal": run.no_signal,
            "images_per_second": run.images_per_second,
            "n_train": run.settings["data"]["n"],
            "skipped": skipped,
            "precision": run.settings["precision"],
            "record": str(run.record),
            "reused": run.reused,
        }
    )


def _objective(
    loss: str,
    pairs: str,
    temperature: float,
    *,
    base_views: int,
    strength: float,
    shift: int,
    negatives: int,
) -> tuple[nn.Module, pairing.Pairing]:
    """The loss and the pairing behind the names of the command line; an option that would do nothing is refused."""
    from viewspan import losses, vision

    clean = pairs == "clean-view"
    given = {"base_views": base_views != 8, "strength": strength != 0.1, "shift": shift != 1}
    for name, changed in given.items():
        if changed and loss != "corrected":
            raise ValueError(f"{name} applies to loss corrected only, got loss {loss}")
    if negatives != 512 and loss != "same-anchor":
        raise ValueError(f"negatives applies to loss same-anchor only, got loss {loss}")
    if loss == "corrected":
        if clean:
            raise ValueError(
                "pairs clean-view does not apply to loss corrected: its anchors are views of the image"
            )
        two_level = vision.TwoLevel(base_views=base_views, strength=strength, shift=shift)
        return losses.InfoNCE(temperature, rho=1), two_level
    if loss == "same-anchor":
        return losses.InfoNCE(temperature), vision.SameAnchor(negatives=negatives, clean=clean)
    objective = losses.NTXent(temperature) if loss == "ntxent" else losses.InfoNCE(temperature)
    return objective, vision.TwoViews(clean=clean)
