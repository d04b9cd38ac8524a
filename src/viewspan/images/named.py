"""Objects named on the command line as `package.module:name`, from an installed package or the current folder."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def is_named(spec: str) -> bool:
    """Whether a string has the form `package.module:name`."""
    module, colon, name = spec.partition(":")
    return bool(colon) and all(p.isidentifier() for p in (*module.split("."), *name.split(".")))


def import_named(spec: str, *, what: str) -> Any:
    """The object behind `package.module:name`; `what` names the argument in errors.

    Raises:
        ValueError: if the form is wrong, the module cannot be imported or has no such name.
    """
    if not is_named(spec):
        raise ValueError(f"{what} must have the form package.module:name, got {spec!r}")
    module_name, _, name = spec.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(
            0, here
        )  # it stays there, as for a script: the module may import its neighbours later
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{what} {spec!r}: cannot import {module_name} ({error})") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{what} {spec!r}: {module_name} has no {name}")
        found = getattr(found, part)
    return found
