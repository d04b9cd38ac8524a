"""What `viewspan train` and `viewspan probe` share: names of encoders, a subset of the images, progress."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

from viewspan import checks, records
from viewspan.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from viewspan.images import ImageSet
    from viewspan.vision.loop import Progress

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "float32", "bfloat16"]


def encoder(name: str) -> Any:
    """A built-in encoder, or the user's own."""
    from viewspan import vision
    from viewspan.images import named

    built_in = {"resnet18": vision.resnet18, "vit": vision.vit, "mlp": vision.mlp, "convnet": vision.convnet}
    if name in built_in:
        return built_in[name]
    if not named.is_named(name):
        raise ValueError(f"encoder must be one of {', '.join(built_in)} or package.module:name, got {name!r}")
    return named.import_named(name, what="encoder")


def limited(held: ImageSet, limit: int, seed: int) -> ImageSet:
    """A random subset of the images, the same for the same seed."""
    import torch

    checks.integer("limit", limit, low=2)
    if limit >= len(held):
        return held
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))
    return held.subset(order[:limit].sort().values)


def first_process() -> bool:
    """Whether this is the process that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


class Bar:
    """Progress on stderr: a bar on a terminal, else a line an epoch."""

    def __enter__(self) -> Callable[[Progress], None]:
        import rich.progress as bars

        self.bar: bars.Progress | None = None
        self.last = time.monotonic()
        console = terminal.console(stderr=True)
        if console.is_terminal and first_process():
            columns = (
                bars.TextColumn("epoch {task.fields[epoch]}"),
                bars.BarColumn(),
                bars.MofNCompleteColumn(),
                bars.TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} images/s"),
                bars.TimeRemainingColumn(),
            )
            self.bar = bars.Progress(*columns, console=console, transient=True)
        return self.show

    def __exit__(self, *failure: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, p: Progress) -> None:
        """After a step."""
        epoch = f"{p.epoch}/{p.epochs}"
        if self.bar is not None:
            if not self.bar.task_ids:  # the first step is there: now the numbers are known
                self.task = self.bar.add_task(
                    "train", total=p.steps, epoch=epoch, loss=p.loss, speed=p.images_per_second
                )
                self.bar.start()
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


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(records.jsonable(value), allow_nan=False))
