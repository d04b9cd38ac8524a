"""What a run is, on disk: one JSON file a run, written whole or not at all, and one checksummed sidecar of arrays.

A record is derived, never typed: settings, seed, versions, commit, device and timings are read off the run.
A finished run is reused when its settings, the package's version and a digest of the package's source agree.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

if TYPE_CHECKING:
    import numpy as np

SCHEMA = 1
CLAIM_EXPIRES = 120.0  # seconds without a heartbeat after which a claim is taken for a dead worker's


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


@functools.cache
def source_digest() -> str:
    """SHA-256 over the package's own source, so that a changed program never reuses an old run."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".json", ".html", ".js", ".css"}):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _commit() -> str | None:
    """The commit of the checkout the package runs from, with `+changes` if its source differs; None outside git."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "-C", str(here), "status", "--porcelain", "--", "."],
            capture_output=True, text=True, timeout=10, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if dirty else "")


def environment(**known: Any) -> dict[str, Any]:
    """Versions, commit, platform and source digest, with what the caller knows (device, precision, threads)."""
    versions = {}
    for package in ("viewspan", "torch", "numpy", "scipy", "scikit-learn", "torchvision", "kornia"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "commit": _commit(),
        "source": source_digest(),
        **known,
    }


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
    """Write under a temporary name, flush to disk, rename: a reader sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class Store:
    """A folder of records. Any number of processes, on any machines that share the folder, may use it at once."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise ValueError(f"out must be a folder that can be written, got {folder} ({error.strerror})") from error

    def path(self, experiment: str, settings: Mapping[str, Any]) -> Path:
        """Where the record of these settings lies, whether or not it is there."""
        return self.folder / f"{experiment}-{settings_digest(settings)}.json"

    def find(self, experiment: str, settings: Mapping[str, Any]) -> Record | None:
        """The finished run with these settings by this very program, or None."""
        path = self.path(experiment, settings)
        try:
            record = read(path)
        except (RecordError, FileNotFoundError):
            return None
        same = record.settings == jsonable(settings) and record.environment.get("source") == source_digest()
        return record if same else None

    def write(self, record: Record, arrays: Mapping[str, np.ndarray] | None = None) -> Path:
        """Write the sidecar (if any), then the record that names it; returns the record's path."""
        path = self.path(record.experiment, record.settings)
        if arrays:
            import numpy as np

            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)
            data = buffer.getvalue()
            side = path.with_suffix(".npz")
            write_atomic(side, data)
            record = record.model_copy(
                update={"sidecar": {"file": side.name, "sha256": hashlib.sha256(data).hexdigest()}}
            )
        text = json.dumps(jsonable(record.model_dump()), indent=1, allow_nan=False)
        write_atomic(path, text.encode() + b"\n")
        return path

    @contextmanager
    def claim(self, experiment: str, settings: Mapping[str, Any]) -> Iterator[bool]:
        """Yields True to the one worker that may run these settings, False to the others.

        The claim is a file beside the record, removed afterwards; one whose time stamp is older than
        `CLAIM_EXPIRES` seconds is taken for a dead worker's and taken over. Long runs touch it through `heartbeat`.
        """
        path = self.path(experiment, settings).with_suffix(".claim")
        mine = self._take(path)
        try:
            yield mine
        finally:
            if mine:
                path.unlink(missing_ok=True)

    def _take(self, path: Path) -> bool:
        for _ in range(2):
            try:
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                try:
                    stale = time.time() - path.stat().st_mtime > CLAIM_EXPIRES
                except FileNotFoundError:
                    continue
                if not stale:
                    return False
                path.unlink(missing_ok=True)
            else:
                os.write(handle, f"{platform.node()} {os.getpid()}\n".encode())
                os.close(handle)
                return True
        return False


def read(path: str | os.PathLike[str]) -> Record:
    """One record from its file; `RecordError` names a truncated, foreign or newer file."""
    path = Path(path)
    text = path.read_bytes()
    try:
        data = json.loads(text)
    except ValueError:
        raise RecordError(f"{path}: not JSON (truncated?)") from None
    if not isinstance(data, dict) or "schema_version" not in data or "experiment" not in data:
        raise RecordError(f"{path}: not a viewspan record")
    if not isinstance(data["schema_version"], int) or data["schema_version"] > SCHEMA:
        raise RecordError(f"{path}: schema {data['schema_version']} is newer than this program's {SCHEMA}")
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
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def read_all(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[tuple[Path, Record]], list[tuple[Path, str]]]:
    """Every record in files and folders, and the files skipped with the reason for each."""
    found: list[tuple[Path, Record]] = []
    skipped: list[tuple[Path, str]] = []
    for item in map(Path, paths):
        files = sorted(item.glob("*.json")) if item.is_dir() else [item]
        for path in files:
            try:
                found.append((path, read(path)))
            except (RecordError, OSError) as error:
                skipped.append((path, str(error)))
    return found, skipped
