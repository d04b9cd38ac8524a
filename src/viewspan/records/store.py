"""A folder of records that any number of workers share."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viewspan.records import claims
from viewspan.records.claims import Claim
from viewspan.records.files import jsonable, settings_digest, write_atomic
from viewspan.records.provenance import source_digest
from viewspan.records.record import Record, RecordError, read

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Store"]


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
                claims.host(),
                os.getpid(),
                claims.born(os.getpid()),
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
        if age <= claims.CLAIM_EXPIRES and not claims.gone(owner):
            return True
        path.unlink(missing_ok=True)
        return False

    def _clock(self) -> float:
        """The time by the folder's own clock, which may be a file server's."""
        lock = self.folder / ".lock"
        lock.touch()
        return lock.stat().st_mtime
