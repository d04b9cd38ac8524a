"""Named operations in order, called on a batch: one view an image, decided by (seed, epoch, index, view) alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import joblib
import numpy as np
import torch
from torch import Tensor

from viewspan import checks
from viewspan.images import callables, operations
from viewspan.images.draws import Draws

CHUNK = 256  # images worked on at a time: small enough for a CPU's cache, and invisible in the result


@dataclass(frozen=True)
class ViewPipeline:
    """Named operations in order; called on a batch it gives one view an image.

    Attributes:
        name: the regime, file or callable it came from.
        operations: (name, operation) in order; the name keys the draws, so `only` and `without` keep each
            remaining operation's draws as they were.
        order: ``fixed``, or ``random``: the operations are permuted once a run, decided by the seed.
        workers: processes that run callables, 0 for this one; the views do not depend on it. The batched operations
            need none and use none.
    """

    name: str
    operations: tuple[tuple[str, Any], ...]
    order: str = "fixed"
    workers: int = 0

    def __post_init__(self) -> None:
        checks.integer("workers", self.workers, low=0)
        checks.choice("order", self.order, ("fixed", "random"))
        fixed = [name for name, operation in self.operations if _converts(operation)]
        if self.order == "random" and fixed:
            raise ValueError(
                f"order must be fixed for views {self.name}, where {', '.join(fixed)} has its place"
            )
        object.__setattr__(self, "operations", tuple(self.operations))

    def __call__(
        self,
        batch: Tensor | Sequence[Tensor],
        *,
        seed: int,
        epoch: int,
        indices: Tensor | Sequence[int],
        view: int,
        names: Sequence[str] | None = None,
    ) -> Tensor:
        """One view of each image, decided by (seed, epoch, index, view) alone.

        Args:
            batch: uint8 (n, C, H, W), or float in [0, 1]; a list of (C, H, W) if sizes differ.
            seed: the run's seed.
            epoch: the pass over the data, ≥ 0.
            indices: each image's position in its set (n,): the same image keeps its view in any batch.
            view: which view of a pair, 0 or 1.
            names: what errors call the images; their indices if not given.

        Returns:
            float32 (n, C, h, w) in [0, 1] on the batch's device; a callable that normalises keeps its own scale.

        Raises:
            ValueError: naming the operation, and the image where there is one, if an operation fails or the views
                are not of one shape.
        """
        draws = Draws.of(seed=seed, epoch=epoch, view=view, indices=indices)
        if len(batch) != len(draws.indices) or not len(batch):
            raise ValueError(
                f"indices must be one an image, got {len(draws.indices)} for {len(batch)} images"
            )
        called = list(names) if names is not None else [f"image {i}" for i in draws.indices]
        if isinstance(batch, torch.Tensor):
            return self._uniform(batch, draws, called)
        shapes = [tuple(image.shape) for image in batch]
        out: list[Tensor] = [torch.empty(0)] * len(batch)
        for shape in dict.fromkeys(shapes):
            rows = [i for i, s in enumerate(shapes) if s == shape]
            stacked = torch.stack([batch[i] for i in rows])
            views = self._uniform(stacked, draws.rows(np.asarray(rows)), [called[i] for i in rows])
            for i, image in zip(rows, views):
                out[i] = image
        odd = next((i for i, image in enumerate(out) if image.shape != out[0].shape), None)
        if odd is not None:
            raise ValueError(
                f"views {self.name} must be of one shape, got {tuple(out[0].shape)} for {called[0]} and "
                f"{tuple(out[odd].shape)} for {called[odd]}; give a crop its size (views in a .yaml file: "
                "- crop: {size: 32}), or resize the images first"
            )
        return torch.stack(out)

    def _uniform(self, batch: Tensor, draws: Draws, names: list[str]) -> Tensor:
        """Views of images of one size, a chunk at a time on the CPU."""
        if batch.ndim != 4 or 0 in batch.shape:
            raise ValueError(f"batch must have shape (n, C, H, W), got {tuple(batch.shape)}")
        if self.workers and any(isinstance(op, callables.UserOperation) for _, op in self.operations):
            return self._in_workers(batch, draws, names)
        chunk = CHUNK if batch.device.type == "cpu" else len(batch)
        parts = []
        for start in range(0, len(batch), chunk):
            rows = slice(start, start + chunk)
            parts.append(self._apply(batch[rows], draws.rows(rows), names[rows]))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _in_workers(self, batch: Tensor, draws: Draws, names: list[str]) -> Tensor:
        """The same in several processes; the first image here, where kinds are found out and warnings are heard."""
        first = self._apply(batch[:1], draws.rows(slice(0, 1)), names[:1])
        step = max(1, math.ceil((len(batch) - 1) / self.workers))
        slices = [slice(start, start + step) for start in range(1, len(batch), step)]
        parts = joblib.Parallel(n_jobs=self.workers)(
            joblib.delayed(self._apply)(batch[rows].cpu(), draws.rows(rows), names[rows]) for rows in slices
        )
        odd = next((i for i, part in enumerate(parts) if part.shape[1:] != first.shape[1:]), None)
        if odd is not None:
            raise ValueError(
                f"views {self.name} must give one shape, got {tuple(first.shape[1:])} for {names[0]} "
                f"and {tuple(parts[odd].shape[1:])} for {names[slices[odd]][0]}"
            )
        return torch.cat([first, *(part.to(first.device) for part in parts)])

    def _apply(self, x: Tensor, draws: Draws, names: list[str]) -> Tensor:
        chain: list[tuple[str, callables.UserOperation]] = []
        for name, operation in self._ordered(draws.seed):
            if isinstance(operation, callables.UserOperation):
                chain.append((name, operation))
                continue
            if chain:
                x, chain = callables.run_chain(chain, x, draws, names, self.name), []
            try:
                x = operation(as_float(x), draws, name)
            except (ValueError, TypeError, RuntimeError) as error:
                raise ValueError(f"views {self.name}, operation {name}: {error}") from error
        return callables.run_chain(chain, x, draws, names, self.name) if chain else as_float(x)

    def _ordered(self, seed: int) -> Sequence[tuple[str, Any]]:
        """The operations in this run's order."""
        if self.order == "fixed":
            return self.operations
        names = [
            Draws.of(seed=seed, epoch=0, view=0, indices=[0]).uniform(f"order {n}", 1)[0, 0]
            for n in self.names
        ]
        return [self.operations[i] for i in np.argsort(names)]

    @property
    def names(self) -> tuple[str, ...]:
        """The operations' names, in order."""
        return tuple(name for name, _ in self.operations)

    def only(self, *kept: str) -> ViewPipeline:
        """The pipeline with these operations alone (and conversions such as torchvision's ToTensor)."""
        self._known(kept)
        steps = [(n, op) for n, op in self.operations if n in kept or _converts(op)]
        return replace(self, name=f"{self.name}[{'+'.join(kept)}]", operations=tuple(steps))

    def without(self, *dropped: str) -> ViewPipeline:
        """The pipeline without these operations."""
        self._known(dropped)
        steps = [(n, op) for n, op in self.operations if n not in dropped]
        return replace(self, name=f"{self.name}[without {'+'.join(dropped)}]", operations=tuple(steps))

    def _known(self, names: Sequence[str]) -> None:
        for name in names:
            checks.choice("operation", name, self.names)

    def perturbation(self, *, strength: float = 0.1, shift: int = 1) -> ViewPipeline:
        """Small moves around a view: this pipeline's colour jitter at a share of its strength, and a small shift.

        Args:
            strength: factor on the jitter's strengths, in [0, 1].
            shift: largest shift in pixels, ≥ 0.
        """
        checks.number("strength", strength, low=0, high=1)
        steps: list[tuple[str, Any]] = []
        for name, op in self.operations:
            if isinstance(op, operations.Jitter):
                scaled = {
                    f: strength * getattr(op, f) for f in ("brightness", "contrast", "saturation", "hue")
                }
                steps.append((name, operations.Jitter(**scaled, p=1.0)))
        return ViewPipeline(f"{self.name}[perturbation]", (*steps, ("shift", operations.Shift(pixels=shift))))


def as_float(batch: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1]; float images as they are."""
    if batch.dtype == torch.uint8:
        return batch.float() / 255
    if not batch.is_floating_point():
        raise TypeError(f"images must be uint8 or floating point, got {batch.dtype}")
    return batch.float()


def _converts(operation: Any) -> bool:
    """Whether an operation only converts or normalises, so that others may depend on it."""
    if not isinstance(operation, callables.UserOperation):
        return False
    return callables.describe(operation.function) in callables.CONVERSIONS
