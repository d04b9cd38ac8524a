"""Objects named on the command line as `package.module:name`, and the errors of such code told in one line."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parents[1])


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
    except (Exception, SystemExit) as error:
        raise ValueError(f"{what} {spec!r}: cannot import {module_name} ({told(error)})") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{what} {spec!r}: {module_name} has no {name}")
        found = getattr(found, part)
    return found


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Whatever code of the user's raises in the block, `sys.exit` among it, as a ValueError that says where.

    Errors of this package's own, and a machine out of memory, pass as they are.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if _of_package(error) or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise
        raise ValueError(f"{what}: {told(error)}") from error


def told(error: BaseException) -> str:
    """An error in one line: its kind, its message and the user's line it came from; the package's own as it reads."""
    if _of_package(error):
        return str(error)
    if isinstance(error, SystemExit):
        text = f"ended the program (exit code {error.code})"
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if _of_user(frame.filename) and not frame.filename.startswith("<")]
    return f"{text} ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else text


def _of_package(error: BaseException) -> bool:
    """Whether this package raised it, in its own words."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        bool(frames)
        and frames[-1].filename.startswith(PACKAGE)
        and (frames[-1].line or "").startswith("raise ")
    )


def _of_user(file: str) -> bool:
    """Whether a source file is neither of this package nor Python's own nor installed."""
    return not file.startswith((PACKAGE, sysconfig.get_path("stdlib"))) and "site-packages" not in file


def code_digest(*parts: Any) -> str | None:
    """A digest of the source of the user's own functions and classes among `parts`; None if there are none."""
    texts = []
    for part in parts:
        owner = part if inspect.isroutine(part) or inspect.isclass(part) else type(part)
        with contextlib.suppress(OSError, TypeError):
            if _of_user(inspect.getsourcefile(owner) or ""):
                texts.append(inspect.getsource(owner))
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12] if texts else None
