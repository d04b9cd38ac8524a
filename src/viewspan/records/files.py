"""Plain JSON values, and files that are whole or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["FULL", "jsonable", "settings_digest", "unwritable", "write_atomic"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, a limit on the size of files


def jsonable(value: Any) -> Any:
    """Plain JSON values: tuples to lists, numpy scalars to numbers; Infinity and NaN become null."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if hasattr(value, "tolist"):  # numpy and torch scalars and arrays
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    raise TypeError(f"not a JSON value: {value!r}")


def settings_digest(settings: Mapping[str, Any]) -> str:
    """A short digest of settings, independent of key order."""
    return hashlib.sha256(json.dumps(jsonable(settings), sort_keys=True).encode()).hexdigest()[:12]


def write_atomic(path: Path, data: bytes) -> None:
    """Write under a temporary name, flush, rename: a reader sees the old file or the new one, whole.

    Raises:
        OSError: naming the file that was asked for, and for a full disk what to do; the old file is as it was.
    """
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            with suppress(OSError):
                os.unlink(name)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def unwritable(path: str | os.PathLike[str], error: OSError) -> OSError:
    """The same error, told of the file that was asked for, with what to do about a full disk."""
    advice = "; free some space there, or choose a folder on another disk" if error.errno in FULL else ""
    return OSError(error.errno, f"cannot be written ({error.strerror or error}){advice}", os.fspath(path))
