"""Any callable as a step of a view pipeline: torchvision, kornia, albumentations, lightly or a plain function.

Called image by image. The global generators of Python, NumPy and torch are seeded for each image from
(seed, epoch, index, view) and put back afterwards, so workers and batches cannot repeat or change a view.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from viewspan import checks
from viewspan.images import arrays, decode, named
from viewspan.images.draws import Draws, seed_globals, seeded_globals

LARGEST_FLOAT = 20.0  # normalised pixels stay below; a float image on the scale 0..255 does not
CONVERSIONS = frozenset({
    "ToTensor", "PILToTensor", "ToImage", "ToPILImage", "ToDtype", "ConvertImageDtype", "ToPureTensor", "Normalize",
    "Resize", "CenterCrop",
})  # fmt: skip


@dataclass
class UserOperation:
    """A callable that maps one image to one view, or to a list of views.

    Attributes:
        function: takes a PIL image, or a float tensor (C, H, W) in [0, 1]; albumentations and kornia objects are
            called in their own style. A first argument annotated as a Tensor or as an array (H, W, C) gets that.
        kind: what it is given, found out at the first image.
    """

    function: Callable[..., Any]
    kind: str | None = None
    views: bool | None = field(default=None, repr=False)  # whether it returns a list of views
    checked: bool = field(default=False, repr=False)

    def run(self, image: Any, seeds: tuple[int, int], view: int, *, raw: bool = True) -> Any:
        """One view of one image: uint8 (C, H, W) if `raw`, else whatever the step before returned, as it is."""
        first = seeds[0] if self.views else seeds[1]
        out = self._call(image, first, raw)
        if self.views is None:
            self.views = isinstance(out, list | tuple)
            if self.views and view:
                out = self._call(image, seeds[0], raw)  # the views of one call belong together
        if not self.views:
            return out
        if not isinstance(out, list | tuple) or view >= len(out):
            count = len(out) if isinstance(out, list | tuple) else 1
            raise ValueError(f"returned {count} views, view {view + 1} was asked for")
        return out[view]

    def _call(self, image: Any, seed: int, raw: bool) -> Any:
        seed_globals(seed)
        out = self._seeded(image, seed, raw)
        if not self.checked:
            self.checked = True
            seed_globals(seed)
            if not _equal(out, self._seeded(image, seed, raw)):
                warnings.warn(
                    f"views: {describe(self.function)} gives another view under the same seed: it keeps a generator of "
                    "its own, so its views depend on the order of images and on the number of workers",
                    checks.ViewspanWarning, stacklevel=2,
                )  # fmt: skip
                seed_globals(seed)
        return out

    def _seeded(self, image: Any, seed: int, raw: bool) -> Any:
        if not raw:
            return self.function(image)  # the step before decided what this one gets
        if self.kind is None:
            self.kind = _input_kind(self.function, image)
            if self.kind == "pil" and not _annotated(self.function):
                try:
                    return self._given(image, "pil", seed)
                except (TypeError, AttributeError):
                    seed_globals(seed)
                    out = self._given(image, "tensor", seed)
                    self.kind = "tensor"
                    return out
        return self._given(image, self.kind, seed)

    def _given(self, image: Tensor, kind: str, seed: int) -> Any:
        """Call the function with its kind of image, and see that it left that image alone."""
        if kind == "albumentations":
            if hasattr(self.function, "set_random_seed"):
                self.function.set_random_seed(seed & 0x7FFFFFFF)
            given: Any = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
            out = self.function(image=given)["image"]
        elif kind == "array":
            given = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
            out = self.function(given)
        elif kind == "kornia":
            given = (image.float() / 255)[None]
            out = self.function(given)
            out = out[0] if isinstance(out, torch.Tensor) and out.ndim == 4 else out
        elif kind == "tensor":
            given = image.float() / 255
            out = self.function(given)
        else:
            given = to_pil(image)
            out = self.function(given)
        if not np.array_equal(_original(image, kind), np.asarray(given)):
            raise ValueError("changed the image it was given in place; it must return a new one")
        return out


def _original(image: Tensor, kind: str) -> np.ndarray:
    """What an untouched input of this kind looks like."""
    if kind in ("tensor", "kornia"):
        return (image.float() / 255).numpy()[None] if kind == "kornia" else (image.float() / 255).numpy()
    pixels = image.permute(1, 2, 0).numpy()
    return pixels[..., 0] if kind == "pil" and pixels.shape[2] == 1 else pixels


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        a, b = a.detach(), b.detach()
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype == object:
        return True  # nothing that can be compared; the result itself is refused later
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def to_pil(image: Tensor) -> Any:
    """A uint8 tensor (C, H, W), C = 1 or 3, as a PIL image of mode L or RGB."""
    from PIL import Image

    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def describe(function: Callable[..., Any]) -> str:
    """A callable's own name."""
    return str(getattr(function, "__name__", type(function).__name__))


def _annotated(function: Callable[..., Any]) -> str | None:
    """The kind of image its first argument is annotated with, if any."""
    call = function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__
    if isinstance(function, torch.nn.Module):
        call = type(function).forward
    try:
        parameters = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    except (TypeError, ValueError):
        return None
    text = str(parameters[0].annotation) if parameters else ""
    return next(
        (
            kind
            for word, kind in (("Tensor", "tensor"), ("ndarray", "array"), ("Image", "pil"))
            if word in text
        ),
        None,
    )


def _input_kind(function: Callable[..., Any], image: Tensor) -> str:
    """What to hand to a callable."""
    package = (
        type(function).__module__ if not inspect.isroutine(function) else function.__module__ or ""
    ).split(".")[0]
    if package in ("albumentations", "kornia"):
        return package
    if package == "torchvision":
        return "pil" if image.shape[0] in (1, 3) else "tensor"
    return _annotated(function) or ("pil" if image.shape[0] in (1, 3) else "tensor")


def unpacked(function: Callable[..., Any]) -> list[tuple[str, UserOperation]]:
    """The named steps of a torchvision `Compose`; anything else is one step."""
    steps = getattr(function, "transforms", None)
    is_compose = type(function).__name__ == "Compose" and type(function).__module__.startswith("torchvision.")
    parts = list(steps) if is_compose and steps else [function]
    return [(describe(part), UserOperation(part)) for part in parts]


def run_chain(
    chain: Sequence[tuple[str, UserOperation]],
    batch: Tensor | Sequence[Tensor],
    draws: Draws,
    names: Sequence[str],
    pipeline: str,
) -> Tensor:
    """Every image through the steps of a chain; float (n, C, h, w) on the batch's device.

    Raises:
        ValueError: naming the pipeline, the operation and the image, if a step fails, changes its input, or gives
            something that is no image or not of the other images' shape.
    """
    own = [draws.seeds(name) for name, _ in chain]
    shared = [Draws(draws.seed, draws.epoch, 0, draws.indices).seeds(name) for name, _ in chain]
    out: list[Tensor] = []
    with seeded_globals():
        for i, image in enumerate(batch):
            value: Any = _uint8(image)
            for k, (name, step) in enumerate(chain):
                where = f"views {pipeline}" + (f", operation {name}" if len(chain) > 1 else "")
                try:
                    value = step.run(value, (shared[k][i], own[k][i]), draws.view, raw=k == 0)
                except (Exception, SystemExit) as error:
                    raise ValueError(f"{where}, failed on {names[i]}: {named.told(error)}") from error
            out.append(_view(value, f"views {pipeline} on {names[i]}"))
            if out[i].shape != out[0].shape:
                raise ValueError(
                    f"views {pipeline} must give one shape, got {tuple(out[0].shape)} for {names[0]} "
                    f"and {tuple(out[i].shape)} for {names[i]}"
                )
    return torch.stack(out).to(batch[0].device)


def _uint8(image: Tensor) -> Tensor:
    """An image as uint8 on the CPU."""
    image = image.detach().cpu()
    return image if image.dtype == torch.uint8 else (image * 255).round().clamp(0, 255).to(torch.uint8)


def _view(value: Any, where: str) -> Tensor:
    """What a pipeline returned as a float tensor (C, h, w)."""
    if hasattr(value, "mode") and hasattr(value, "convert"):
        value = torch.from_numpy(decode.from_pil(value).copy())
    elif isinstance(value, np.ndarray):
        value = torch.from_numpy(
            np.ascontiguousarray(value.transpose(2, 0, 1) if value.ndim == 3 else value[None])
        )
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} must return an image, got {type(value).__name__}")
    value = value.as_subclass(torch.Tensor).detach().cpu()
    if value.ndim != 3 or 0 in value.shape:
        raise ValueError(f"{where} must return (C, h, w), got shape {tuple(value.shape)}")
    if not value.is_floating_point():
        return torch.from_numpy(arrays.as_uint8(value.numpy(), where)).float() / 255
    value = value.float()
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{where} returned NaN or infinity")
    if float(value.abs().max()) > LARGEST_FLOAT:
        raise ValueError(
            f"{where} returned floats up to {float(value.abs().max()):g}; "
            "return uint8, or floats in [0, 1] or normalised"
        )
    return value
