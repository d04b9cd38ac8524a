"""What a run is, on disk: one JSON file a run, written whole or not at all, and one sidecar of arrays.

A record is derived, never typed: settings, seed, versions, commit, device and timings are read off the run.
A finished run is reused when its settings and a digest of the package's source agree. A claim file keeps two
workers off one run; it is renewed while the run lasts, so a dead worker's claim is recognised and taken over.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

if TYPE_CHECKING:
    import numpy as np

SCHEMA = 1
LARGEST = 256 * 2**20  # bytes; a larger JSON file is something else's
OF_A_RUN = ("settings.json", "step-*.json")  # written by training on images, beside the record
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, a limit on the size of files
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
    """SHA-256 over the package's own source, so that a changed program never reuses an old run.

    The report is left out: it shows runs and decides none.
    """
    root = Path(__file__).parent
    digest = hashlib.sha256()
    files = [p for p in root.rglob("*") if p.suffix in {".py", ".json"} and root / "report" not in p.parents]
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _commit() -> str | None:
    """The commit of the checkout the package runs from, `+changes` if its source differs, or None."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "-C", str(here), "status", "--porcelain", "--", "."],
            capture_output=True, text=True, timeout=10, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if dirty else "")


def environment(**known: Any) -> dict[str, Any]:
    """Versions, commit, platform and source digest, with what the caller knows (device, threads, …)."""
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


class Store:
    """A folder of records, for any number of processes at once, on any machines that share the folder.

    The folder is made when something is first written to it; that it can be is checked at once.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            there = self.folder.absolute()
            while not there.exists():
                there = there.parent
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise ValueError(
                f"out must be a folder that can be written, got {folder} ({error.strerror})"
            ) from error

    def path(self, experiment: str, settings: Mapping[str, Any]) -> Path:
        """Where the record of these settings lies, whether or not it is there."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", experiment):
            raise ValueError(
                f"experiment must be made of letters, digits, '_', '-' and '.', got {experiment!r}"
            )
        return self.folder / f"{experiment}-{settings_digest(settings)}.json"

    def scratch(self, experiment: str, settings: Mapping[str, Any]) -> Path:
        """A folder for what a run of these settings keeps until it has a record; hidden from readers of records.

        Its name holds the digest of the program's source: another program's half-done work is not gone on with, and
        is removed here.
        """
        path = self.path(experiment, settings)
        mine = path.with_name(f".{path.stem}.{source_digest()}.partial")
        for other in path.parent.glob(f".{path.stem}.*.partial"):
            if other != mine:
                shutil.rmtree(other, ignore_errors=True)
        return mine

    def find(self, experiment: str, settings: Mapping[str, Any]) -> Record | None:
        """The finished run with these settings by this very program, or None."""
        path = self.path(experiment, settings)
        try:
            record = read(path)
        except (RecordError, OSError):
            return None
        same = record.settings == jsonable(settings) and record.environment.get("source") == source_digest()
        return record if same and record.experiment == experiment else None

    def write(self, record: Record, arrays: Mapping[str, np.ndarray] | None = None) -> Path:
        """Write the sidecar (if any), then the record that names it; returns the record's path.

        The sidecar's name holds its checksum, so a reader of the old record never meets the new arrays.
        """
        path = self.path(record.experiment, record.settings)
        sidecar = None
        if arrays:
            import numpy as np

            buffer = io.BytesIO()
            np.savez_compressed(buffer, **dict(arrays))  # type: ignore[arg-type]
            data = buffer.getvalue()
            checksum = hashlib.sha256(data).hexdigest()
            sidecar = {"file": f"{path.stem}.{checksum[:8]}.npz", "sha256": checksum}
            write_atomic(path.with_name(sidecar["file"]), data)
        record = record.model_copy(update={"sidecar": sidecar})
        text = json.dumps(jsonable(record.model_dump()), indent=1, allow_nan=False)
        write_atomic(path, text.encode() + b"\n")
        for old in path.parent.glob(f"{path.stem}.*.npz"):
            if sidecar is None or old.name != sidecar["file"]:
                old.unlink(missing_ok=True)
        return path

    @contextmanager
    def claim(self, experiment: str, settings: Mapping[str, Any]) -> Iterator[Claim | None]:
        """Yields a `Claim` to the one worker that may run these settings, None to the others.

        The claim is a file beside the record, renewed by a thread while the block runs and removed after it.
        One not renewed for `CLAIM_EXPIRES` seconds, or whose process is gone from this host, is taken over.
        """
        path = self.path(experiment, settings).with_suffix(".claim")
        with self._alone():
            claim = None if self._held(path) else Claim.take(path)
        if claim is None:
            yield None
            return
        stop = threading.Event()
        renewal = threading.Thread(target=claim.renew, args=(stop,), daemon=True)
        renewal.start()
        try:
            yield claim
        finally:
            stop.set()
            renewal.join()
            with self._alone():
                claim.release()

    def claimed(self, experiment: str, settings: Mapping[str, Any]) -> bool:
        """Whether a live worker holds these settings; a dead worker's claim is removed on the way."""
        path = self.path(experiment, settings).with_suffix(".claim")
        if not path.exists():
            return False
        with self._alone():
            return self._held(path)

    def abandon(self, experiment: str, settings: Mapping[str, Any]) -> None:
        """Remove this process's own claim, where an interrupt kept the claim's block from doing so."""
        path = self.path(experiment, settings).with_suffix(".claim")
        with self._alone(), suppress(OSError, ValueError):
            owner = json.loads(path.read_bytes())
            if (owner.get("host"), owner.get("pid"), owner.get("born")) == (
                _host(),
                os.getpid(),
                _born(os.getpid()),
            ):
                path.unlink()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time, where the file system has locks; the kernel drops a dead process's lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("ab") as file:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            except (ImportError, OSError):  # no locks here: creating the claim file is still exclusive
                pass
            yield

    def _held(self, path: Path) -> bool:
        """Whether a claim file is there and its worker alive; a dead one's file is removed."""
        try:
            age = self._clock() - path.stat().st_mtime
            owner = json.loads(path.read_bytes() or b"{}")
        except FileNotFoundError:
            return False
        except ValueError:
            owner = {}
        if age <= CLAIM_EXPIRES and not _gone(owner):
            return True
        path.unlink(missing_ok=True)
        return False

    def _clock(self) -> float:
        """The time by the folder's own clock, which may be a file server's."""
        lock = self.folder / ".lock"
        lock.touch()
        return lock.stat().st_mtime


class Claim:
    """The right to run one cell: a file whose token is ours."""

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self._token = token

    @classmethod
    def take(cls, path: Path) -> Claim | None:
        """Create the file, or None if somebody else's is there."""
        token = uuid.uuid4().hex
        owner = {"host": _host(), "pid": os.getpid(), "born": _born(os.getpid()), "token": token}
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return None
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(owner, file)
        except OSError as error:  # an empty claim would keep everybody waiting
            path.unlink(missing_ok=True)
            raise unwritable(path, error) from error
        return cls(path, token)

    def mine(self) -> bool:
        """False once another worker has taken the claim over (this one was suspended for too long)."""
        try:
            return json.loads(self.path.read_bytes()).get("token") == self._token
        except (OSError, ValueError, AttributeError):
            return False

    def renew(self, stop: threading.Event) -> None:
        """Touch the file until told to stop, or until it is another's."""
        while not stop.wait(CLAIM_EXPIRES / 8):
            if not self.mine():
                return
            os.utime(self.path)

    def release(self) -> None:
        """Remove the file if it is still ours."""
        if self.mine():
            self.path.unlink(missing_ok=True)


@functools.cache
def _host() -> str:
    """This machine and boot and process space: within it process ids mean the same."""
    parts = [platform.node()]
    with suppress(OSError):
        parts += [
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            os.readlink("/proc/self/ns/pid"),
        ]
    return "/".join(parts)


def _born(pid: int) -> str | None:
    """When a living process started (Linux), to tell a reused id; None when dead or unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _gone(owner: Any) -> bool:
    """Whether a claim's process is known to be dead; another host's never is."""
    if not isinstance(owner, dict) or owner.get("host") != _host() or not isinstance(owner.get("pid"), int):
        return False
    if Path("/proc/self/stat").exists():
        return _born(owner["pid"]) != owner.get("born")
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


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
