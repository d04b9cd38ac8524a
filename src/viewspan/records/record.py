"""One finished run: what it holds, and how it is read from its file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

if TYPE_CHECKING:
    import numpy as np

__all__ = ["SCHEMA", "Record", "RecordError", "read", "read_all", "read_arrays"]

SCHEMA = 1
LARGEST = 256 * 2**20  # bytes; a larger JSON file is something else's
OF_A_RUN = ("settings.json", "step-*.json")  # written by training on images, beside the record


class Record(pydantic.BaseModel):
    """One finished run.

    Attributes:
        experiment: which experiment the run belongs to, e.g. ``table1``, ``audit``, ``train``.
        settings: everything that decides the result, the seed among it; JSON values only.
        result: what was measured, JSON values only (null where undefined, with a reason beside it).
        history: named series over training, e.g. ``{"step": [...], "loss": [...]}``.
        environment: versions, commit, source digest, device, precision, threads, platform.
        seconds: wall time of the run.
        finished: Unix time at which the run ended.
        sidecar: ``{"file", "sha256"}`` of the ``.npz`` beside the record, or None.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    schema_version: int = SCHEMA
    experiment: str
    settings: dict[str, Any]
    result: dict[str, Any]
    history: dict[str, list[float | None]] = {}
    environment: dict[str, Any] = {}
    seconds: float = 0.0
    finished: float = 0.0
    sidecar: dict[str, str] | None = None


class RecordError(ValueError):
    """A file that is not a readable record; the message names the file and the reason."""


def read(path: str | os.PathLike[str]) -> Record:
    """One record from its file; `RecordError` names a truncated, foreign or newer file."""
    path = Path(path)
    if path.stat().st_size > LARGEST:
        raise RecordError(f"{path}: larger than any record ({LARGEST >> 20} MiB)")
    text = path.read_bytes()
    try:
        data = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        raise RecordError(f"{path}: not JSON ({'empty' if not text.strip() else 'truncated?'})") from None
    if not isinstance(data, dict) or "schema_version" not in data or "experiment" not in data:
        raise RecordError(f"{path}: not a viewspan record")
    version = data["schema_version"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordError(f"{path}: schema {version!r} is not a version number")
    if version > SCHEMA:
        raise RecordError(f"{path}: schema {version} is newer than this program's {SCHEMA}")
    try:
        return Record.model_validate(data)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise RecordError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def read_arrays(path: str | os.PathLike[str], record: Record) -> dict[str, np.ndarray]:
    """The sidecar of a record read from `path`, checked against its checksum; {} if it has none."""
    import numpy as np

    if record.sidecar is None:
        return {}
    side = Path(path).with_name(Path(record.sidecar["file"]).name)
    try:
        data = side.read_bytes()
    except FileNotFoundError:
        raise RecordError(f"{side}: the record's sidecar is missing") from None
    if hashlib.sha256(data).hexdigest() != record.sidecar["sha256"]:
        raise RecordError(f"{side}: checksum differs from the record's")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise RecordError(f"{side}: not an array archive ({error})") from None


def read_all(
    paths: Iterable[str | os.PathLike[str]],
) -> tuple[list[tuple[Path, Record]], list[tuple[Path, str]]]:
    """Every record in files and (nested) folders, and the files skipped with the reason for each.

    What a training run keeps beside its record is no record and no reason to speak of.
    """
    found: list[tuple[Path, Record]] = []
    skipped: list[tuple[Path, str]] = []
    seen: set[Path] = set()
    for item in map(Path, paths):
        files = sorted(item.rglob("*.json")) if item.is_dir() else [item]
        for path in files:
            key = path.resolve()
            beside = item.is_dir() and any(path.match(pattern) for pattern in OF_A_RUN)
            if key in seen or beside or any(part.startswith(".") for part in path.relative_to(item).parts):
                continue
            seen.add(key)
            try:
                found.append((path, read(path)))
            except (RecordError, OSError) as error:
                skipped.append((path, str(error)))
    return found, skipped
