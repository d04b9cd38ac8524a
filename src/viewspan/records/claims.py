"""The right to run one cell: a file that a live worker renews and a dead one's heir takes over."""

from __future__ import annotations

import functools
import json
import os
import platform
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from viewspan.records.files import unwritable

__all__ = ["CLAIM_EXPIRES", "Claim"]

CLAIM_EXPIRES = 120.0  # seconds without a heartbeat after which a claim is taken for a dead worker's


class Claim:
    """The right to run one cell: a file whose token is ours."""

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self._token = token

    @classmethod
    def take(cls, path: Path) -> Claim | None:
        """Create the file, or None if somebody else's is there."""
        token = uuid.uuid4().hex
        owner = {"host": host(), "pid": os.getpid(), "born": born(os.getpid()), "token": token}
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
def host() -> str:
    """This machine and boot and process space: within it process ids mean the same."""
    parts = [platform.node()]
    with suppress(OSError):
        parts += [
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            os.readlink("/proc/self/ns/pid"),
        ]
    return "/".join(parts)


def born(pid: int) -> str | None:
    """When a living process started (Linux), to tell a reused id; None when dead or unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def gone(owner: Any) -> bool:
    """Whether a claim's process is known to be dead; another host's never is."""
    if not isinstance(owner, dict) or owner.get("host") != host() or not isinstance(owner.get("pid"), int):
        return False
    if Path("/proc/self/stat").exists():
        return born(owner["pid"]) != owner.get("born")
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
