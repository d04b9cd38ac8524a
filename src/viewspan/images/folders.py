"""What a folder of images holds: class folders or a flat heap, told apart by rule and never by luck."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from viewspan import checks
from viewspan.images import decode

SPLITS = ("train", "val", "valid", "validation", "test")


@dataclass
class Listing:
    """The image files under a root, by relative path, with the class folder of each (None in a flat folder)."""

    root: Path
    files: list[str] = field(default_factory=list)
    classes: list[str | None] = field(default_factory=list)
    ignored: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def keep(self, positions: list[int]) -> None:
        """Forget all files but these."""
        self.files = [self.files[i] for i in positions]
        self.classes = [self.classes[i] for i in positions]


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A sort key that reads numbers as numbers: 1, 2, 10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(p), "") if p.isdecimal() and p.isascii() else (1, 0, p) for p in parts if p], name


def listing(folder: str | os.PathLike[str], *, split: str | None = None) -> Listing:
    """Every image under a folder. The class is the first folder below the root, however deep the file lies.

    Names that begin with a dot, and files without an image's extension, are counted as ignored. Links are
    followed, but not in circles. Images directly under the root beside class folders leave the set without
    labels, with a warning.

    Raises:
        ValueError: if the folder does not exist, holds no image, or holds splits and none was chosen.
    """
    root = _chosen_root(Path(folder), split)
    found = Listing(root)
    top = _entries(root, "", found)
    loose = [entry.name for entry in top if not entry.is_dir()]
    above = (os.path.realpath(root),)
    for name in sorted(loose, key=natural):
        _take(found, name, None)
    empty = []
    for entry in sorted((e for e in top if e.is_dir()), key=lambda e: natural(e.name)):
        before = len(found.files)
        _descend(found, entry.name, entry.name, above)
        if len(found.files) == before:
            empty.append(entry.name)
    if not found.files:
        reason = f" ({found.unreadable[0][0]}: {found.unreadable[0][1]})" if found.unreadable else ""
        raise ValueError(f"no image in {root}{reason}; accepted extensions: {', '.join(decode.EXTENSIONS)}")
    labelled = [c for c in found.classes if c is not None]
    if labelled and len(labelled) < len(found.classes):
        warnings.warn(
            f"{root}: {len(found.classes) - len(labelled)} images lie beside class folders, so no image has a label",
            checks.ViewspanWarning, stacklevel=3,
        )  # fmt: skip
        found.classes = [None] * len(found.files)
    elif empty:
        warnings.warn(
            f"{root}: no image in {', '.join(empty)}; not counted as a class",
            checks.ViewspanWarning,
            stacklevel=3,
        )
    return found


def _chosen_root(root: Path, split: str | None) -> Path:
    """The folder to read, with `split` resolved."""
    if not root.exists():
        raise ValueError(f"data must be a folder that exists, got {root}")
    if not root.is_dir():
        raise ValueError(f"data must be a folder, an .npz file or package.module:name, got the file {root}")
    if split is not None:
        if not (root / split).is_dir():
            raise ValueError(f"split must name a folder in {root}, got {split!r}")
        return root / split
    try:
        names = {e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith(".")}
    except OSError as error:
        raise ValueError(f"data must be a readable folder, got {root} ({error.strerror})") from error
    if names and names <= set(SPLITS):
        raise ValueError(
            f"{root} holds the splits {', '.join(sorted(names))}: give one of them, e.g. {root / 'train'}"
        )
    return root


def _entries(path: Path, relative: str, found: Listing) -> list[os.DirEntry[str]]:
    """What is worth looking at in one folder; the rest is counted."""
    try:
        everything = list(os.scandir(path))
    except OSError as error:
        found.unreadable.append((relative or str(path), error.strerror or str(error)))
        return []
    shown = []
    for entry in everything:
        hidden = entry.name.startswith(".") or entry.name == "__MACOSX"
        wanted = not hidden and (entry.is_dir() or entry.name.lower().endswith(decode.EXTENSIONS))
        if wanted:
            shown.append(entry)
        else:
            found.ignored += 1
    return shown


def _take(found: Listing, name: str, label: str | None) -> None:
    """Add one file."""
    found.files.append(name)
    found.classes.append(label)


def _descend(found: Listing, relative: str, label: str, above: tuple[str, ...]) -> None:
    """Add every image below one folder; a link back to a folder above it is left out."""
    path = found.root / relative
    real = os.path.realpath(path)
    if real in above:
        found.ignored += 1
        return
    entries = sorted(_entries(path, relative, found), key=lambda e: natural(e.name))
    for entry in entries:
        below = f"{relative}/{entry.name}"
        if entry.is_dir():
            _descend(found, below, label, (*above, real))
        else:
            _take(found, below, label)
