"""`viewspan train` and `viewspan probe`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from viewspan import checks, records

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from viewspan.images import ImageSet
    from viewspan.vision import TrainRun, pairing
    from viewspan.vision.loop import Progress

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "float32", "bfloat16"]


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
    device: Device = "auto",
    precision: Precision = "float32",
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
    first = _first_process()
    try:
        with contextlib.redirect_stdout(sys.stderr), _progress() as progress:  # the user's code may print
            backbone = _encoder(encoder)
            pipeline = images.views.resolve(views, order=order)
            held = images.load(data, skip_bad=skip_bad)
            if limit is not None:
                held = _limited(held, limit, seed)
            if first:
                print(held.summary(), file=sys.stderr)
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
    _print_json(
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


def probe(
    run: Path,
    data: str,
    *,
    test: str | None = None,
    encoder: str | None = None,
    k: int = 200,
    protocol: Literal["standard", "published"] = "standard",
    published_epochs: int = 100,
    seed: int = 0,
    limit: int | None = None,
    skip_bad: bool = False,
    device: Device = "auto",
    threads: int | None = None,
    fresh: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Linear probe and kNN of a trained run, beside raw pixels and the untrained encoder.

    Args:
        run: folder written by train.
        data: labelled training images, as in train.
        test: labelled test images; without it the folders train and test in data (or CIFAR-10's own parts) are used.
        encoder: package.module:name, if the run's encoder cannot be imported by name.
        k: neighbours that vote, at most the number of training images.
        protocol: published runs the authors' kind of probe beside (SGD .1, raw features, encoder in train mode).
        published_epochs: protocol published only: epochs of its SGD.
        seed: of the held-out rows and the SGD order.
        limit: fit on so many training images, drawn by the seed (those that train takes with the same two numbers).
        skip_bad: leave out files that cannot be decoded instead of refusing.
        device: where to compute.
        threads: CPU threads.
        fresh: probe again even if the run's folder holds this probe's record.
        json_: print one JSON document.
    """
    from viewspan import runtime, vision
    from viewspan.vision import backbones, drawing

    if published_epochs != 100 and protocol != "published":
        raise ValueError(f"published_epochs applies to protocol published only, got protocol {protocol}")
    with contextlib.redirect_stdout(sys.stderr):  # the user's code may print
        given = None if encoder is None else _encoder(encoder)
        trained, untrained, settings = vision.load_encoders(run, given)
        train_set, test_set = _labelled_sets(data, test, limit=limit, seed=seed, skip_bad=skip_bad)
        for held in (train_set, test_set):
            print(held.summary(), file=sys.stderr)
        decides = {
            "run": settings, "weights": backbones.weights_digest(trained),
            "train": drawing.labelled_digest(train_set), "test": drawing.labelled_digest(test_set), "k": k,
            "protocol": protocol, "published_epochs": published_epochs, "seed": seed,
        }  # fmt: skip
        store = records.Store(run)
        record = None if fresh else store.find("probe", decides)
        if record is None:
            start = time.perf_counter()
            with runtime.threads(threads) as n_threads:
                result = vision.probe(
                    trained, train_set, test_set, untrained=untrained, k=k, protocol=protocol,
                    published_epochs=published_epochs, seed=seed, device=device,
                )  # fmt: skip
            record = records.Record(
                experiment="probe", settings=records.jsonable(decides), result=records.jsonable(result.as_dict()),
                environment=records.environment(
                    device=runtime.device(device).type, threads=n_threads, data=Path(train_set.source).name
                ),
                seconds=time.perf_counter() - start, finished=time.time(),
            )  # fmt: skip
            store.write(record)
        else:
            print("reused 1 of 1 (--fresh probes again)", file=sys.stderr)
    if json_:
        _print_json({**record.result, "record": str(store.path("probe", decides))})
    else:
        _print_probe(record.result)


def _labelled_sets(
    data: str, test: str | None, *, limit: int | None, seed: int, skip_bad: bool
) -> tuple[ImageSet, ImageSet]:
    """The images to fit on and those to score."""
    from viewspan import images

    parts = data.partition(":")[0] == "cifar10" or (Path(data) / "train").is_dir()
    chosen = test is None and parts
    train_set = images.load(data, split="train" if chosen else None, skip_bad=skip_bad)
    if train_set.labels is None:
        raise ValueError(f"data {data} holds no labels: a probe needs class folders or labels")
    if test is None and not parts:
        raise ValueError(
            f"test must be given (--test DATA): {data} has no parts train and test; with --test {data} "
            "kNN leaves each image out of its own neighbours"
        )
    if limit is not None:
        train_set = _limited(train_set, limit, seed)
    where = data if test is None else test
    test_set = images.load(
        where, split="test" if chosen else None, skip_bad=skip_bad, classes=train_set.classes
    )
    return train_set, test_set


def _print_probe(result: dict[str, Any]) -> None:
    """The table of rows."""
    import rich.console
    import rich.table

    table = rich.table.Table("features", "linear probe", f"kNN (k = {result['k']})")
    published = result["published"]
    if published:
        table.add_column("published probe, last (best) epoch")
    for name, linear, near in (
        ("trained", "probe_accuracy", "knn_accuracy"),
        ("untrained", "untrained_accuracy", "untrained_knn_accuracy"),
        ("pixels", "pixels_accuracy", "pixels_knn_accuracy"),
    ):
        cells = [name, f"{result[linear]:.3f}", f"{result[near]:.3f}"]
        if published:
            cells.append(f"{published[name]['last']:.3f} ({published[name]['best']:.3f})")
        table.add_row(*cells)
    rich.console.Console().print(table)
    low, high = result["gain_interval"]
    print(
        f"trained − untrained {result['gain']:+.3f}, 95 % interval [{low:+.3f}, {high:+.3f}] over test images"
    )
    aside = "; scored on itself: the linear probe has seen every image" if result["leave_one_out"] else ""
    print(
        f"{result['n_train']} training and {result['n_test']} test images, {result['overlap']} in both{aside}"
    )


def _print_json(value: Any) -> None:
    print(json.dumps(records.jsonable(value), allow_nan=False))


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


def _encoder(name: str) -> Any:
    from viewspan import vision
    from viewspan.images import named

    built_in = {"resnet18": vision.resnet18, "vit": vision.vit, "mlp": vision.mlp, "convnet": vision.convnet}
    if name in built_in:
        return built_in[name]
    if not named.is_named(name):
        raise ValueError(f"encoder must be one of {', '.join(built_in)} or package.module:name, got {name!r}")
    return named.import_named(name, what="encoder")


def _limited(held: ImageSet, limit: int, seed: int) -> ImageSet:
    """A random subset of the images, the same for the same seed."""
    import torch

    checks.integer("limit", limit, low=2)
    if limit >= len(held):
        return held
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))
    return held.subset(order[:limit].sort().values)


def _first_process() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


class _progress:
    """Progress on stderr: a bar on a terminal, else a line an epoch."""

    def __enter__(self) -> Callable[[Progress], None]:
        import rich.console
        import rich.progress as bars

        self.bar: bars.Progress | None = None
        self.last = time.monotonic()
        console = rich.console.Console(stderr=True)
        if console.is_terminal and _first_process():
            columns = (
                bars.TextColumn("epoch {task.fields[epoch]}"),
                bars.BarColumn(),
                bars.MofNCompleteColumn(),
                bars.TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} images/s"),
                bars.TimeRemainingColumn(),
            )
            self.bar = bars.Progress(*columns, console=console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("train", total=None, epoch="", loss=float("nan"), speed=0.0)
        return self.show

    def __exit__(self, *failure: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, p: Progress) -> None:
        """After a step."""
        epoch = f"{p.epoch}/{p.epochs}"
        if self.bar is not None:
            self.bar.update(
                self.task,
                completed=p.step,
                total=p.steps,
                epoch=epoch,
                loss=p.loss,
                speed=p.images_per_second,
            )
        elif p.step * p.epochs % p.steps == 0 or time.monotonic() - self.last > 30:
            self.last = time.monotonic()
            left = time.strftime("%H:%M:%S", time.gmtime(p.seconds_left))
            print(
                f"epoch {epoch}  step {p.step}/{p.steps}  loss {p.loss:.4f}  {p.images_per_second:.0f} images/s  "
                f"{left} left",
                file=sys.stderr,
            )
