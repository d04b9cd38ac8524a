"""View pipelines: the published regimes, a YAML file's own list, or any callable.

The regimes of the published CIFAR-10 experiment (arXiv 2606.04280, Figure 3): `all` jitters colours, crops, flips,
grays, blurs and erases; `crop` crops only; `all-without-crop` is `all` without the crop. Nothing is normalised.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viewspan import checks
from viewspan.images import callables, named, operations
from viewspan.images.draws import Draws

REGIMES = ("all", "crop", "all-without-crop")
OPERATIONS: dict[str, type[Any]] = {
    "jitter": operations.Jitter,
    "crop": operations.Crop,
    "flip": operations.Flip,
    "grayscale": operations.Grayscale,
    "blur": operations.Blur,
    "erase": operations.Erase,
    "shift": operations.Shift,
}
CHUNK = 256  # images worked on at a time: small enough for a CPU's cache, and invisible in the result


@dataclass(frozen=True)
class ViewPipeline:
    """Named operations in order; called on a batch it gives one view an image.

    Attributes:
        name: the regime, file or callable it came from.
        operations: (name, operation) in order; the name keys the draws, so `only` and `without` keep each
            remaining operation's draws as they were.
        order: ``fixed``, or ``random``: the operations are permuted once a run, decided by the seed.
    """

    name: str
    operations: tuple[tuple[str, Any], ...]
    order: str = "fixed"

    def __post_init__(self) -> None:
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
                f"{tuple(out[odd].shape)} for {called[odd]}; give a size, or resize the images first"
            )
        return torch.stack(out)

    def _uniform(self, batch: Tensor, draws: Draws, names: list[str]) -> Tensor:
        """Views of images of one size, a chunk at a time on the CPU."""
        if batch.ndim != 4 or 0 in batch.shape:
            raise ValueError(f"batch must have shape (n, C, H, W), got {tuple(batch.shape)}")
        chunk = CHUNK if batch.device.type == "cpu" else len(batch)
        parts = []
        for start in range(0, len(batch), chunk):
            rows = slice(start, start + chunk)
            parts.append(self._apply(batch[rows], draws.rows(rows), names[rows]))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

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


def regime(name: str, *, size: int | None = None, order: str = "fixed") -> ViewPipeline:
    """One of the published regimes: ``all``, ``crop`` or ``all-without-crop``.

    Args:
        name: the regime.
        size: height and width of a cropped view in pixels; None keeps the images' own.
        order: ``fixed`` or ``random`` (permuted once a run, as published).
    """
    checks.choice("views", name, REGIMES)
    if size is not None and name == "all-without-crop":
        raise ValueError(
            f"size applies to views that crop, got size {size} with views {name!r}; resize the images"
        )
    steps: list[tuple[str, Any]] = [
        ("jitter", operations.Jitter()),
        ("crop", operations.Crop(size=size)),
        ("flip", operations.Flip()),
        ("grayscale", operations.Grayscale()),
        ("blur", operations.Blur()),
        ("erase", operations.Erase()),
    ]
    if name == "crop":
        steps = steps[1:2]
    elif name == "all-without-crop":
        steps = steps[:1] + steps[2:]
    return ViewPipeline(name, tuple(steps), order)


def resolve(spec: Any, *, order: str | None = None, size: int | None = None) -> ViewPipeline:
    """A view pipeline from what a user gives.

    Args:
        spec: ``all``, ``crop`` or ``all-without-crop``; a ``.yaml`` file that lists operations; ``package.module:name``
            of a callable; a callable (PIL image or float (C, H, W) in, one view or a list of views out); or a
            ViewPipeline.
        order: ``fixed`` (the default), or ``random``: the operations are permuted once a run. A ViewPipeline keeps
            its own unless this is given.
        size: height and width of the regimes' cropped views; None keeps the images' own.

    Raises:
        ValueError: if the name, the file or the object is none of these.
    """
    if isinstance(spec, ViewPipeline):
        return spec if order is None else replace(spec, order=order)
    order = "fixed" if order is None else order
    if isinstance(spec, str | os.PathLike):
        text = os.fspath(spec)
        if text in REGIMES:
            return regime(text, size=size, order=order)
        if size is not None:
            raise ValueError(f"size applies to the views all and crop, got size {size} with views {text!r}")
        if text.endswith((".yaml", ".yml")):
            return from_yaml(text, order=order)
        if not named.is_named(text):
            raise ValueError(
                f"views must be one of {', '.join(REGIMES)}, package.module:name or a .yaml file, got {text!r}"
            )
        found = named.import_named(text, what="views")
        if inspect.isclass(found):
            raise ValueError(f"views {text!r} is a class; name an instance of it, or a function")
        return replace(resolve(found, order=order), name=text)
    if callable(spec):
        return ViewPipeline(callables.describe(spec), tuple(_unique(callables.unpacked(spec))), order)
    raise TypeError(f"views must be a name, a file or a callable, got {spec!r}")


def _unique(steps: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The same steps, later ones of a repeated name numbered."""
    counts: dict[str, int] = {}
    out = []
    for name, op in steps:
        counts[name] = counts.get(name, 0) + 1
        out.append((name if counts[name] == 1 else f"{name}-{counts[name]}", op))
    return out


def from_yaml(path: str | os.PathLike[str], *, order: str = "fixed") -> ViewPipeline:
    """A pipeline from a YAML list: names of operations, each with its parameters or alone.

    An item is ``crop``, or ``crop: {area: [0.2, 1]}``, or ``package.module:Class: {…}`` for a class of one's own.
    """
    import yaml

    try:
        items = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"views must be a file that can be read, got {path} ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(items, list) or not items:
        raise ValueError(f"{path} must hold a list of operations, got {type(items).__name__}")
    return ViewPipeline(
        str(path),
        tuple(_unique([_item(item, f"{path}, item {i + 1}") for i, item in enumerate(items)])),
        order,
    )


def _item(item: Any, where: str) -> tuple[str, Any]:
    """One operation of a YAML list."""
    if isinstance(item, str):
        item = {item: {}}
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError(f"{where} must be an operation's name, alone or with parameters, got {item!r}")
    name, given = next(iter(item.items()))
    given = {} if given is None else given
    if not isinstance(given, dict) or not isinstance(name, str):
        raise ValueError(f"{where}: parameters of {name} must be names with values, got {given!r}")
    if named.is_named(name):
        maker: Callable[..., Any] = named.import_named(name, what=where)
        label = name.partition(":")[2]
    else:
        maker, label = OPERATIONS[checks.choice(where, name, OPERATIONS)], name
        known = [f.name for f in fields(maker)]
        for key in given:
            checks.choice(f"{where}, {name}", key, known)
        given = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
    try:
        made = maker(**given) if inspect.isclass(maker) or given else maker
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}, {name}: {error}") from error
    return label, made if maker in OPERATIONS.values() else callables.UserOperation(made)
