"""Where a number comes from: versions, commit, platform and a digest of the program's own source."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["environment", "source_digest"]

PACKAGE = Path(__file__).parents[1]


@functools.cache
def source_digest() -> str:
    """SHA-256 over the package's own source, so that a changed program never reuses an old run.

    The report is left out: it shows runs and decides none.
    """
    digest = hashlib.sha256()
    files = [
        p for p in PACKAGE.rglob("*") if p.suffix in {".py", ".json"} and PACKAGE / "report" not in p.parents
    ]
    for path in sorted(files):
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _commit() -> str | None:
    """The commit of the checkout the package runs from, `+changes` if its source differs, or None."""
    try:
        head = subprocess.run(
            ["git", "-C", str(PACKAGE), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "-C", str(PACKAGE), "status", "--porcelain", "--", "."],
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
