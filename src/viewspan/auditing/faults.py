"""Mechanical faults of a view pipeline, in seconds. Every rule has an id, a reason and a fix."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from viewspan import images
from viewspan.auditing.verdict import Fault
from viewspan.checks import ViewspanWarning
from viewspan.images.draws import seeded_globals
from viewspan.images.views import ViewPipeline

RULES: dict[str, tuple[str, str]] = {
    "raises": (
        "an operation failed on an image",
        "make it accept every image of the data, or leave the file out",
    ),
    "wrong-shape": (
        "views are not images of one shape and cannot be stacked",
        "return (C, h, w) of one size: resize or crop to a fixed size at the end",
    ),
    "mutates-input": (
        "an operation writes into its input: later views start from a changed image",
        "copy the image before changing it",
    ),
    "uint8-float": (
        "values are on another scale than the operation assumes (0 to 255 against 0 to 1)",
        "convert once, at the start, and scale by 255 exactly once",
    ),
    "out-of-range": (
        "values leave [0, 1], so later operations clip or wrap them",
        "clamp to [0, 1], and normalise after the last operation only",
    ),
    "clipped": (
        "a large share of pixels is pushed to black or white, where nothing is left to see",
        "lower the strength of brightness and contrast changes, or check the scale of the values",
    ),
    "own-generator": (
        "the same seed gives another view: the operation keeps a generator of its own, which every worker copies, "
        "so that workers repeat one another's draws",
        "draw from the global generators, or reseed the generator in each worker",
    ),
    "one-draw-per-batch": (
        "all images of a batch get the same random draw",
        "draw one set of parameters an image (apply the transform image by image, or same_on_batch=False)",
    ),
    "views-equal": (
        "both views of every image are the same: positives carry no information",
        "draw the second view independently, or give the pipeline something random",
    ),
    "epochs-repeat": (
        "every epoch repeats the same views",
        "let the draws depend on the epoch",
    ),
    "never-fires": (
        "an operation changed no view",
        "check its probability and strength, and that it applies to such images",
    ),
    "gray": (
        "colour operations meet gray images, or colour is lost in every view",
        "drop colour operations for gray data; for colour data lower the probability of grayscale below 1",
    ),
    "channels": (
        "views have another number of channels than the images (alpha, gray)",
        "convert to the channels the encoder takes, once, at the start",
    ),
}
_COLOUR_WORDS = re.compile(r"jitter|hue|satur|gray|grey|colou?r", re.IGNORECASE)
_FLATTENED = 0.05  # a normalised view spans more of its images' range than this
_LOOKS = 16  # images looked at
_ROUNDS = 8  # views of each for the question whether an operation ever fires


def find(data: images.ImageSet, pipeline: ViewPipeline, *, seed: int = 0) -> list[Fault]:
    """Faults of a pipeline on the first images of a set; an empty list if there are none."""
    count = min(len(data), _LOOKS)
    if not count:
        raise ValueError("data must hold at least one image, got 0")
    shape = data.images[0].shape
    rows = [i for i in range(count) if data.images[i].shape == shape]
    batch = torch.stack([data.images[i] for i in rows])
    called = [data.names[i] for i in rows]
    look = _Look(pipeline, batch, rows, called, seed)
    try:
        plain = look()
        if len(rows) < count:  # images of other sizes must still give views of one shape
            pipeline(
                [data.images[i] for i in range(count)], seed=seed, epoch=0, indices=list(range(count)), view=0,
                names=data.names[:count],
            )  # fmt: skip
        found = [*_values(batch, plain, look), *_randomness(plain, look), *_colours(batch, plain, look)]
        return found + _idle(look)
    except (ValueError, TypeError) as error:  # of some views only, perhaps
        return [_failure(str(error))]


class _Look:
    """Views of a few images, by epoch and view, without warnings."""

    def __init__(
        self, pipeline: ViewPipeline, batch: Tensor, rows: list[int], called: list[str], seed: int
    ) -> None:
        self.pipeline, self.batch, self.rows, self.called, self.seed = pipeline, batch, rows, called, seed

    def __call__(self, *, epoch: int = 0, view: int = 0, part: ViewPipeline | None = None) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ViewspanWarning)
            return (part or self.pipeline)(
                self.batch, seed=self.seed, epoch=epoch, indices=self.rows, view=view, names=self.called
            )

    def same_image(self, epoch: int) -> Tensor:
        """Views of one image in every place of a batch."""
        n = max(len(self.rows), 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ViewspanWarning)
            return self.pipeline(
                self.batch[:1].expand(n, *self.batch.shape[1:]), seed=self.seed, epoch=epoch,
                indices=list(range(n)), view=0, names=[self.called[0]] * n,
            )  # fmt: skip


def _failure(message: str) -> Fault:
    if "in place" in message:
        return _fault("mutates-input", message)
    if "floats up to" in message or "NaN" in message:
        return _fault("uint8-float", message)
    if "one shape" in message or "must return" in message:
        return _fault("wrong-shape", message)
    return _fault("raises", message)


def _fault(rule: str, message: str = "", operation: str | None = None) -> Fault:
    reason, fix = RULES[rule]
    return Fault(id=rule, message=f"{reason}: {message}" if message else reason, fix=fix, operation=operation)


def _values(batch: Tensor, x: Tensor, look: _Look) -> list[Fault]:
    low, high = float(x.min()), float(x.max())
    before = images.views.as_float(batch)
    span = float((x.amax((0, 2, 3)) - x.amin((0, 2, 3))).max())
    if span < _FLATTENED * float(before.max() - before.min()) and (low < -1e-3 or high > 2.5 / 255):
        return [_fault("uint8-float", _normalised_twice(look, low, high))]
    if low < -1e-3 or high > 1 + 1e-3:
        if any(name.split("-")[0] == "Normalize" for name in look.pipeline.names):
            return []
        return [_fault("out-of-range", f"values from {low:.3g} to {high:.3g}")]
    found = []
    levels = len(torch.unique((x * 255).round()))
    if high <= 2.5 / 255 < float(before.max()) / 4:
        found.append(_fault("uint8-float", f"no value of a view exceeds {high:.2g}"))
    elif levels <= 2 < len(torch.unique(batch)) / 8:
        found.append(_fault("uint8-float", f"views hold {levels} distinct values"))
    for end, name in ((0.0, "black"), (1.0, "white")):
        share = float((x == end).float().mean() - (before == end).float().mean())
        if share > 0.3 and not found:
            found.append(_fault("clipped", f"{share:.0%} more pixels are pure {name} than in the images"))
    return found


def _normalised_twice(look: _Look, low: float, high: float) -> str:
    """Views squeezed into a sliver: the statistics they were normalised with, where the pipeline shows them."""
    seen = f"all values of the views lie between {low:.3g} and {high:.3g}"
    for _, operation in look.pipeline.operations:
        mean, std = (getattr(getattr(operation, "function", None), name, None) for name in ("mean", "std"))
        if mean is not None and std is not None:
            largest = (
                float(np.max(np.asarray(mean, dtype=float))),
                float(np.max(np.asarray(std, dtype=float))),
            )
            return f"{seen}: a mean of {largest[0]:.4g} and a standard deviation of {largest[1]:.4g} are of another scale"
    return f"{seen}, as after a normalisation with statistics of another scale"


def _randomness(x: Tensor, look: _Look) -> list[Fault]:
    again, second, later = look(), look(view=1), look(epoch=1)
    if not _equal(x, again):
        return [_fault("own-generator", "", _own_generator(look))]
    if _equal(x, second):
        return [_fault("views-equal", "every epoch too" if _equal(x, later) else "")]
    found = []
    if _equal(x, later):
        found.append(_fault("epochs-repeat"))
    same = [look.same_image(epoch) for epoch in range(2)]
    if all(bool((s == s[:1]).all()) for s in same) and not _equal(same[0], same[1]):
        found.append(_fault("one-draw-per-batch", "one image in every place of a batch gives one view"))
    found += _batch_calls(look)
    return found


def _own_generator(look: _Look) -> str | None:
    """The operation whose views differ under one seed, if it can be singled out."""
    names = look.pipeline.names
    if len(names) == 1:
        return names[0]
    for name in names:
        part = look.pipeline.only(name)
        if _quietly(lambda part=part: not _equal(look(part=part), look(part=part))):  # type: ignore[misc]
            return name
    return None


def _batch_calls(look: _Look) -> list[Fault]:
    """Callables made for batches (kornia's): whether they draw once for all rows."""
    found = []
    for name, operation in look.pipeline.operations:
        function = getattr(operation, "function", None)
        if function is None or getattr(operation, "kind", None) != "kornia":
            continue
        x = images.views.as_float(look.batch[:1]).expand(8, *look.batch.shape[1:])

        def one_draw(function: Callable[[Tensor], Tensor] = function, x: Tensor = x) -> bool:
            a, b = function(x.clone()), function(x.clone())
            whole = a.shape[0] == len(x) and a.ndim == 4
            return whole and bool((a == a[:1]).all()) and not bool((a == b).all())

        with seeded_globals():
            if _quietly(one_draw):
                found.append(_fault("one-draw-per-batch", "called on a batch it treats all rows alike", name))
    return found


def _colours(batch: Tensor, x: Tensor, look: _Look) -> list[Fault]:
    found = []
    before, after = batch.shape[1], x.shape[1]
    if before != after or before not in (1, 3):
        found.append(_fault("channels", f"images have {before}, views {after}"))
    gray_data = before == 1 or bool((batch[:, :1] == batch).all())
    if gray_data:
        names = [name for name in look.pipeline.names if _COLOUR_WORDS.search(name)]
        if names:
            found.append(_fault("gray", "all images looked at are gray", names[0]))
    elif after >= 3 and all(
        bool(((v := look(epoch=e))[:, :1] - v).abs().max() < 1e-6) for e in range(_ROUNDS)
    ):
        found.append(_fault("gray", "no view has colour, though the images have"))
    return found


def _idle(look: _Look) -> list[Fault]:
    """Operations that change nothing, alone and over many draws."""
    found = []
    before = images.views.as_float(look.batch)
    for name in look.pipeline.names:
        part = look.pipeline.only(name)
        if len(look.pipeline.names) > 1 and name in look.pipeline.only(_another(look.pipeline, name)).names:
            continue  # a conversion

        def idle(part: ViewPipeline = part) -> bool:
            views = (look(epoch=e, part=part) for e in range(_ROUNDS))
            return all(v.shape == before.shape and bool((v - before).abs().max() < 0.6 / 255) for v in views)

        if _quietly(idle):
            found.append(_fault("never-fires", f"{len(before) * _ROUNDS} views looked at", name))
    return found


def _another(pipeline: ViewPipeline, name: str) -> str:
    return next(n for n in pipeline.names if n != name)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a.numpy(), b.numpy()))


def _quietly(question: Callable[[], bool]) -> bool:
    """The answer, or no where it cannot be asked (an operation that needs the others, a callable for images)."""
    try:
        return question()
    except Exception:
        return False
