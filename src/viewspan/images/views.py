"""View pipelines: the published regimes, a YAML file's own list, or any callable.

The regimes of the published CIFAR-10 experiment (arXiv 2606.04280, Figure 3): `all` jitters colours, crops, flips,
grays, blurs and erases; `crop` crops only; `all-without-crop` is `all` without the crop. Nothing is normalised.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from viewspan import checks
from viewspan.images import callables, named, operations
from viewspan.images.pipeline import ViewPipeline, as_float

__all__ = ["OPERATIONS", "REGIMES", "ViewPipeline", "as_float", "from_yaml", "regime", "resolve"]

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


def resolve(
    spec: Any, *, order: str | None = None, size: int | None = None, workers: int | None = None
) -> ViewPipeline:
    """A view pipeline from what a user gives.

    Args:
        spec: ``all``, ``crop`` or ``all-without-crop``; a ``.yaml`` file that lists operations; ``package.module:name``
            of a callable; a callable (PIL image or float (C, H, W) in, one view or a list of views out); or a
            ViewPipeline.
        order: ``fixed`` (the default), or ``random``: the operations are permuted once a run. A ViewPipeline keeps
            its own unless this is given.
        size: height and width of the regimes' cropped views; None keeps the images' own.
        workers: processes that run callables, 0 (the default) for this one; the views do not depend on it.

    Raises:
        ValueError: if the name, the file or the object is none of these.
    """
    pipeline = _pipeline(spec, order=order, size=size)
    return pipeline if workers is None else replace(pipeline, workers=workers)


def _pipeline(spec: Any, *, order: str | None, size: int | None) -> ViewPipeline:
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
        return replace(_pipeline(found, order=order, size=None), name=text)
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
        got = "an empty file" if items is None else "an empty list" if items == [] else type(items).__name__
        raise ValueError(f"{path} must hold a list of operations, got {got}")
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
    except (Exception, SystemExit) as error:
        raise ValueError(f"{where}, {name}: {named.told(error)}") from error
    if not callable(made):
        raise ValueError(f"{where}, {name}: must give a callable, got {type(made).__name__}")
    return label, made if maker in OPERATIONS.values() else callables.UserOperation(made)
