"""The steps of a training run: batches, losses, checkpoints, signals."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from viewspan import checks, runtime
from viewspan.vision import backbones, checkpoints, drawing, pairing, run_folder, signals
from viewspan.vision.distributed import World

WINDOW = 200  # steps at most that the verdict on the training signal looks back on
ENOUGH = 20  # and at least
WARMUP = 0.05  # share of the steps over which the cosine schedule rises


class Plan(NamedTuple):
    """What decides the steps."""

    epochs: int
    batch_size: int
    lr: float
    schedule: str
    weight_decay: float
    seed: int

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step (from 0)."""
        if self.schedule == "constant":
            return self.lr
        rise = max(1, round(WARMUP * steps))
        if step < rise:
            return self.lr * (step + 1) / rise
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


class Progress(NamedTuple):
    """Where a run stands, after each step.

    Attributes:
        epoch, epochs: the epoch under way (from 1), of how many.
        step, steps: optimiser steps taken, of how many.
        loss: of this step, nats.
        images_per_second: so far, over all processes.
        seconds_left: at this speed.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    images_per_second: float
    seconds_left: float


class Loop:
    """One run's state and its steps.

    Attributes:
        history: ``epoch``, ``loss``, ``loss_minus_log_m``, ``alignment``, ``uniformity`` (the two parts of the loss;
            all four are means of the epoch in nats), ``images_per_second``.
        seconds: computing time, that of earlier parts of a resumed run included.
    """

    def __init__(
        self,
        source: drawing.Source,
        untrained: backbones.Encoder,
        loss: nn.Module,
        pairs: pairing.Pairing,
        plan: Plan,
        precision: str,
        whole: World,
    ) -> None:
        self.source, self.loss, self.pairs, self.plan = source, loss, pairs, plan
        self.precision, self.whole, self.on = precision, whole, source.on
        per_step, fewest = plan.batch_size // pairs.pairs, max(pairs.fewest, whole.size)
        if per_step < fewest:
            raise ValueError(
                f"batch_size must be at least {fewest * pairs.pairs} ({pairs.pairs} pairs an image, "
                f"{whole.size} processes), got {plan.batch_size}"
            )
        self.slices = drawing.batches(len(source), per_step, fewest)
        self.steps = plan.epochs * len(self.slices)
        self.encoder = copy.deepcopy(untrained).train()
        self.layout = torch.contiguous_format
        if whole.size > 1 and self.on.type == "cuda":
            self.encoder = nn.SyncBatchNorm.convert_sync_batchnorm(self.encoder)
        self.encoder.to(self.on)
        if self.on.type == "cuda" or precision == "bfloat16":
            self.layout = self._layout()
            self.encoder.to(memory_format=self.layout)
        self.model: nn.Module = self.encoder
        if whole.size > 1:
            self.model = nn.parallel.DistributedDataParallel(self.encoder)
        weights = [p for p in self.encoder.parameters() if p.requires_grad]
        if not weights:
            raise ValueError("encoder must have weights that can be trained, got none")
        fused = self.on.type in ("cpu", "cuda")
        self.optimiser = torch.optim.Adam(weights, lr=plan.lr, weight_decay=plan.weight_decay, fused=fused)
        self.step, self.m, self.seconds, self.images = 0, 0, 0.0, 0
        self.epoch_losses: list[
            list[float]
        ] = []  # of each step: loss, it less the step's own log M, its two parts
        self.recent: list[float] = []
        self.history: dict[str, list[float | None]] = {
            k: []
            for k in ("epoch", "loss", "loss_minus_log_m", "alignment", "uniformity", "images_per_second")
        }
        self.infinite = [k for k, v in self.encoder.state_dict().items() if bool(torch.isinf(v).any())]
        self.kept = ""  # what a failure says of the folder

    def _layout(self) -> torch.memory_format:
        """Channels last, which convolutions in half precision want, unless the encoder views rows in another order."""
        trial = copy.deepcopy(self.encoder).to(memory_format=torch.channels_last).eval()
        images = torch.zeros(2, *self.source.shape, device=self.on).contiguous(
            memory_format=torch.channels_last
        )
        try:
            with torch.no_grad():
                trial(images)
        except (RuntimeError, ValueError):
            return torch.contiguous_format
        return torch.channels_last

    def rehearse(self) -> None:
        """Two images' views drawn and encoded, so that what cannot work fails before anything is written.

        Raises:
            ValueError: if the encoder's embeddings are not finite, are zero, or hang on none of its weights.
        """
        few = torch.arange(2)
        with torch.random.fork_rng(devices=self._devices()):
            embeddings = self._encode(self.encoder.eval(), self._rows(few, epoch=0))
        self.encoder.train()
        if (fault := _fault(embeddings)) is not None:
            raise ValueError(f"encoder: before the first step the {fault}")
        if not embeddings.requires_grad:
            raise ValueError(
                "encoder must give embeddings that hang on its weights, got some without a gradient"
            )

    def run(
        self,
        folder: run_folder.RunFolder | None,
        *,
        save_seconds: float,
        progress: Callable[[Progress], None] | None,
        scalars: Callable[[str, float, int], None],
    ) -> None:
        """All steps that are left, with a checkpoint from time to time and at the end."""
        watch = signals.pending() if folder is not None else signals.unwatched()
        with watch as pending, torch.random.fork_rng(devices=self._devices()):
            if folder is not None:
                self.kept = f"; the last good checkpoint is kept in {folder.path}"
                if self.step == 0:
                    self._save(folder)
            saved = time.monotonic()
            while self.step < self.steps:
                start = time.perf_counter()
                try:
                    value = self._one()
                except checks.RunFailed:
                    raise
                except (
                    MemoryError,
                    RuntimeError,
                ) as error:  # memory, a gradient, an overflow in the optimiser
                    raise checks.RunFailed(f"step {self.step + 1}: {error}{self.kept}") from error
                self.seconds += time.perf_counter() - start
                self._note(value, progress, scalars)
                if folder is None:
                    continue
                stop = self.whole.any(pending.signum, self.on)
                if stop or self.step == self.steps or time.monotonic() - saved >= save_seconds:
                    try:
                        self._save(folder)
                    except checks.RunFailed as error:
                        raise checks.RunFailed(f"step {self.step}: {error}{self.kept}") from error
                    saved = time.monotonic()
                if stop and self.step < self.steps:
                    self.whole.wait()
                    raise signals.Interrupted(stop, self.step, folder.path)

    def _one(self) -> float:
        """One optimiser step; returns its loss."""
        epoch, part = divmod(self.step, len(self.slices))
        order = drawing.order_of(len(self.source), seed=self.plan.seed, epoch=epoch)
        batch = order[self.slices[part]]
        mine = batch[self.whole.share(len(batch))]
        torch.manual_seed(drawing.step_seed(self.plan.seed, self.step, self.whole.rank))
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.rate(self.step, self.steps)
        embeddings = self.whole.gather(self._encode(self.model, self._rows(mine, epoch=epoch)), len(batch))
        parts = self.pairs.loss(self.loss, embeddings) if (fault := _fault(embeddings)) is None else None
        if parts is None or not math.isfinite(parts.total.item()):
            fault = fault or "loss is not finite"
            raise checks.RunFailed(
                f"at step {self.step + 1} the {fault}; a smaller lr is the usual cure{self.kept}"
            )
        value = parts.total.item()
        self.optimiser.zero_grad(set_to_none=True)
        parts.total.backward()
        self.optimiser.step()
        self.step += 1
        self.images += len(batch)
        self.m = max(self.m, parts.m)
        both = parts.alignment.item(), parts.uniformity.item()
        self.epoch_losses.append([value, value - math.log(parts.m), *both])
        self.recent = [*self.recent, value - math.log(parts.m + 1)][-WINDOW:]
        return value

    def _rows(self, at: Tensor, *, epoch: int) -> Tensor:
        """The encoder rows of some images, (n, k, C, h, w)."""
        with torch.no_grad():
            return self.pairs.views(
                lambda j: self.source.draw(at, epoch=epoch, view=j),
                lambda: self.source.clean(at),
                lambda views, j, strength, shift: self.source.near(
                    views, at, epoch=epoch, view=j, strength=strength, shift=shift
                ),
            )

    def _encode(self, model: nn.Module, rows: Tensor) -> Tensor:
        """Embeddings of encoder rows, (n, k, d) in float32."""
        with runtime.autocast(self.on, self.precision):
            embeddings = model(rows.flatten(0, 1).contiguous(memory_format=self.layout))
        return embeddings.float().unflatten(0, rows.shape[:2])

    def _devices(self) -> list[int]:
        """Accelerators whose random state is put back."""
        return [torch.cuda.current_device()] if self.on.type == "cuda" else []

    def _note(
        self,
        value: float,
        progress: Callable[[Progress], None] | None,
        scalars: Callable[[str, float, int], None],
    ) -> None:
        """History at the end of an epoch, progress after each step."""
        epoch = (self.step - 1) // len(self.slices) + 1
        speed = self.images / self.seconds
        scalars("loss", value, self.step)
        if self.step % len(self.slices) == 0:
            row = (float(epoch), *map(statistics.fmean, zip(*self.epoch_losses)), speed)
            for series, number in zip(self.history.values(), row):
                series.append(number)
            scalars("images_per_second", speed, self.step)
            self.epoch_losses = []
        if progress is not None and self.whole.rank == 0:
            left = (self.steps - self.step) * self.seconds / self.step
            progress(Progress(epoch, self.plan.epochs, self.step, self.steps, value, speed, left))

    def _save(self, folder: run_folder.RunFolder) -> None:
        folder.save(
            self.step,
            self.encoder.state_dict(),
            {
                "optimiser": self.optimiser.state_dict(),
                "m": self.m,
                "seconds": self.seconds,
                "images": self.images,
                "epoch_losses": self.epoch_losses,
                "recent": self.recent,
                "history": self.history,
            },
            constant=self.infinite,
        )

    def restore(self, checkpoint: checkpoints.Checkpoint | None) -> None:
        """Go on from a checkpoint, or begin."""
        if checkpoint is None:
            return
        state = checkpoint.resume
        if state["history"].keys() != self.history.keys():
            raise ValueError(
                f"the checkpoint of step {checkpoint.step} was written by another version of viewspan, which kept "
                f"{', '.join(state['history'])} a step: train anew in another folder"
            )
        self.encoder.load_state_dict(checkpoint.weights)
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.m = checkpoint.step, state["m"]
        self.seconds, self.images = state["seconds"], state["images"]
        self.epoch_losses, self.recent, self.history = (
            state["epoch_losses"],
            state["recent"],
            state["history"],
        )

    def result(self) -> dict[str, Any]:
        """What the run came to."""
        return {
            "steps": self.step,
            "loss": self.history["loss"][-1],
            "m": self.m,
            "no_signal": no_signal(self.recent[-max(ENOUGH, len(self.slices)) :]),
            "images_per_second": self.images / self.seconds,
        }

    def trained(self) -> backbones.Encoder:
        """The encoder in eval mode on the CPU."""
        return copy.deepcopy(self.encoder).cpu().eval()


def _fault(embeddings: Tensor) -> str | None:
    """What is wrong with embeddings that should have length 1, or None."""
    length = embeddings.detach().norm(dim=-1)
    bad = ~((length - 1).abs() < 0.1)
    if not bool(bad.any()):
        return None
    image, row = (int(i) for i in bad.nonzero()[0])
    return f"embedding of image {image} of the batch, view {row}, has length {float(length[image, row]):g}, not 1"


def no_signal(above: list[float]) -> bool | None:
    """Whether losses less log(M + 1) are not below 0 by more than 3 standard errors; None if too few to tell.

    Example:
        >>> no_signal([0.01, -0.01] * 10), no_signal([-1.0, -1.1] * 10)
        (True, False)
    """
    if len(above) < ENOUGH:
        return None
    error = statistics.stdev(above) / math.sqrt(len(above))
    return statistics.fmean(above) >= -3 * error
