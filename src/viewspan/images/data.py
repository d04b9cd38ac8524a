"""Image sets: decoded once, held as uint8, with labels that mean the same in every split."""

from __future__ import annotations

import hashlib
import inspect
import os
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from viewspan import checks
from viewspan.images import arrays, decode, folders, named


@dataclass(frozen=True, repr=False)
class ImageSet:
    """Images in memory.

    Attributes:
        images: uint8 (n, C, H, W); a list of uint8 (C, H, W) tensors if sizes differ.
        labels: int64 (n,), positions in `classes`; None without labels.
        classes: class names, in natural order (1, 2, 10) unless given.
        names: one name an image: its path below the folder, or its number.
        skipped: (name, reason) of every file left out because it could not be decoded.
        ignored: how many hidden or non-image entries were passed over.
        duplicates: groups of names whose images are identical pixel by pixel.
        source: what was loaded, for the record.
    """

    images: torch.Tensor | list[torch.Tensor]
    labels: torch.Tensor | None = None
    classes: tuple[str, ...] = ()
    names: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    ignored: int = 0
    duplicates: list[list[str]] = field(default_factory=list)
    source: str = "memory"

    def __repr__(self) -> str:
        return f"ImageSet({self.source}: {self.summary()})"

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.images[i]

    @property
    def channels(self) -> int:
        """Channels of every image."""
        return int(self.images[0].shape[0])

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width if all images share them, else None."""
        if not isinstance(self.images, torch.Tensor):
            return None
        return int(self.images.shape[2]), int(self.images.shape[3])

    @property
    def uniform(self) -> bool:
        """Whether all images have one size, so that `images` is one tensor."""
        return isinstance(self.images, torch.Tensor)

    def subset(self, indices: Sequence[int] | torch.Tensor) -> ImageSet:
        """The images at these positions, in this order, with labels, classes and names."""
        at = torch.as_tensor(indices, dtype=torch.long).reshape(-1)
        if isinstance(self.images, torch.Tensor):
            images: torch.Tensor | list[torch.Tensor] = self.images[at]
        else:
            images = [self.images[int(i)] for i in at]
        names = [self.names[int(i)] for i in at]
        kept = set(names)
        groups = [[n for n in group if n in kept] for group in self.duplicates]
        return replace(
            self,
            images=images,
            labels=None if self.labels is None else self.labels[at],
            names=names,
            duplicates=[group for group in groups if len(group) > 1],
        )

    def resized(self, size: int) -> ImageSet:
        """Every image as size × size pixels: the shorter side scaled to `size` (antialiased), the centre kept."""
        checks.integer("size", size, low=1)
        if self.size == (size, size):
            return self
        return replace(self, images=torch.stack([_square(image, size) for image in self.images]))

    def summary(self) -> str:
        """One line that names everything left out."""
        shape = (
            "×".join(map(str, (self.channels, *self.size)))
            if self.size
            else f"{self.channels} channels, mixed sizes"
        )
        parts = [f"{len(self)} images, {shape}"]
        n = len(self.classes)
        parts += [f"{n} class{'es' if n > 1 else ''}" if self.labels is not None else "no labels"]
        parts += [f"{self.ignored} entr{'ies' if self.ignored > 1 else 'y'} ignored"] if self.ignored else []
        if self.skipped:
            parts.append(
                f"{len(self.skipped)} skipped ({', '.join(f'{n}: {why}' for n, why in self.skipped)})"
            )
        copies = sum(len(group) - 1 for group in self.duplicates)
        if copies:
            more = ", …" if len(self.duplicates) > 1 else ""
            parts.append(
                f"{copies} exact {'copies' if copies > 1 else 'copy'} ({' = '.join(self.duplicates[0])}{more})"
            )
        return "; ".join(parts)


def load(
    source: Any,
    *,
    split: str | None = None,
    skip_bad: bool = False,
    classes: Sequence[str] | None = None,
    workers: int = 0,
    limit: int | None = None,
) -> ImageSet:
    """Load images once, completely, as uint8.

    Args:
        source: a folder (class folders or flat); ``cifar10`` or ``cifar10:ROOT`` (a folder
            of that name is ``./cifar10``); an ``.npz`` file with ``images``
            or ``x`` (n, C, H, W) or (n, H, W, C), and perhaps ``labels`` or ``y``; ``package.module:name`` giving
            a Dataset or a sequence of (C, H, W) arrays; or such an object, an array, a tensor, an ImageSet itself.
        split: for a folder its subfolder, for CIFAR-10 ``train`` (default) or ``test``; nothing else has splits.
        skip_bad: leave out files that cannot be decoded, named in `skipped`, instead of refusing.
        classes: the classes to number by, usually the training set's; a class not among them is refused.
        workers: threads that decode files; the result does not depend on it.
        limit: at most so many images, a fixed random choice in their order; the files of a folder are chosen before
            they are decoded.

    Returns:
        An ImageSet; gray images among colour ones become three equal channels.

    Raises:
        ValueError: naming the folder, the bad files with their count, or the rule the data break.
    """
    checks.integer("workers", workers, low=0)
    if limit is not None:
        checks.integer("limit", limit, low=1)
    held = _load(source, split, skip_bad, classes, workers, limit)
    return held if limit is None or len(held) <= limit else held.subset(_choice(len(held), limit))


def _load(
    source: Any,
    split: str | None,
    skip_bad: bool,
    classes: Sequence[str] | None,
    workers: int,
    limit: int | None,
) -> ImageSet:
    if isinstance(source, str | os.PathLike):
        text = os.fspath(source)
        if not text:
            raise ValueError("data must be named, got an empty text")
        if text == "cifar10" or text.startswith("cifar10:"):
            return _relabelled(_cifar10(text.partition(":")[2], split or "train"), classes)
        if not Path(text).exists() and named.is_named(text):
            found = named.import_named(text, what="data")
            with named.blamed(f"data {text!r} failed"):
                makes = inspect.isclass(found) or (callable(found) and not hasattr(found, "__len__"))
                source = found() if makes else found
            return replace(load(source, split=split, classes=classes), source=text)
        if Path(text).is_file() and text.lower().endswith(".npz"):
            _no_split(split)
            values, labels = arrays.npz(Path(text))
            _warn_if_dark(values, text)
            return _from_arrays(values, labels, classes, text)
        found = folders.listing(text, split=split)
        if limit is not None and limit < len(found.files):
            found.keep(_choice(len(found.files), limit).tolist())
        return _from_folder(found, skip_bad, classes, workers)
    _no_split(split)
    if isinstance(source, ImageSet):
        return _relabelled(source, classes)
    if isinstance(source, torch.Tensor | np.ndarray):
        values = arrays.to_numpy(source)
        if (
            isinstance(source, torch.Tensor)
            and values.ndim == 4
            and values.shape[1] > 4
            and values.shape[3] <= 4
        ):
            raise ValueError(f"a tensor of images must be (n, C, H, W), got {tuple(values.shape)}")
        return _from_arrays(arrays.batch(values), None, classes, "array")
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return _from_arrays(*arrays.sequence(source), classes, type(source).__name__)
    raise TypeError(f"data must be a folder, cifar10, an .npz file or a sequence of images, got {source!r}")


def _square(image: torch.Tensor, size: int) -> torch.Tensor:
    """One image (C, H, W) scaled to `size` at its shorter side, its centre cut out."""
    shorter = min(image.shape[1:])
    shape = [max(size, round(side * size / shorter)) for side in image.shape[1:]]
    out = torch.nn.functional.interpolate(image[None].float(), shape, mode="bilinear", antialias=True)[0]
    top, left = (shape[0] - size) // 2, (shape[1] - size) // 2
    return out[:, top : top + size, left : left + size].round().clamp(0, 255).to(torch.uint8)


def _choice(n: int, limit: int) -> torch.Tensor:
    """`limit` of n positions, ascending; the same choice every time."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:limit].sort().values


def _no_split(split: str | None) -> None:
    if split is not None:
        raise ValueError(f"split applies to folders and cifar10 only, got {split!r}")


def _from_folder(
    found: folders.Listing, skip_bad: bool, classes: Sequence[str] | None, workers: int
) -> ImageSet:
    """Decode every file before anything else happens."""
    paths = [found.root / name for name in found.files]
    if workers:
        with ThreadPoolExecutor(workers) as pool:
            decoded = list(pool.map(_try_decode, paths))
    else:
        decoded = [_try_decode(path) for path in paths]
    bad = found.unreadable + [(n, d) for n, d in zip(found.files, decoded) if isinstance(d, str)]
    good = [i for i, d in enumerate(decoded) if not isinstance(d, str)]
    if bad and not skip_bad:
        listed = ", ".join(f"{name} ({reason})" for name, reason in bad)
        raise ValueError(
            f"{len(bad)} of {len(paths) + len(found.unreadable)} files in {found.root} cannot be decoded: {listed}; "
            "skip_bad leaves them out"
        )
    if not good:
        raise ValueError(f"no readable image in {found.root}: {len(bad)} files cannot be decoded")
    labels = [found.classes[i] for i in good]
    names = [found.files[i] for i in good]
    images = _one_channel_count([d for d in decoded if not isinstance(d, str)], names)
    given = tuple(sorted({c for c in found.classes if c is not None}, key=folders.natural))
    _warn_if_dark(images, str(found.root))
    whole = _assemble(images, None if labels[0] is None else [str(c) for c in labels], given, names)
    return _relabelled(replace(whole, skipped=bad, ignored=found.ignored, source=str(found.root)), classes)


def _warn_if_dark(images: Iterable[np.ndarray], source: str) -> None:
    """A set with no pixel above 16 of 255 is a scale gone wrong (12 bits stored as 16, [0, 1] cast to integers)."""
    brightest = max(int(image.max()) for image in images)
    if brightest <= 16:
        warnings.warn(
            f"{source}: no pixel is above {brightest} of 255; is the range of the stored numbers the one meant?",
            checks.ViewspanWarning,
            stacklevel=4,
        )


def _try_decode(path: Path) -> np.ndarray | str:
    """The image, or why it cannot be had."""
    try:
        return decode.decode(path)
    except decode.BadImage as error:
        return str(error)


def _one_channel_count(images: list[np.ndarray], names: list[str]) -> list[np.ndarray]:
    """Gray images among colour ones get three equal channels; other mixtures are refused."""
    counts = {image.shape[0] for image in images}
    if counts == {1, 3}:
        return [np.repeat(image, 3, axis=0) if image.shape[0] == 1 else image for image in images]
    if len(counts) > 1:
        odd = next(i for i, image in enumerate(images) if image.shape[0] != images[0].shape[0])
        raise ValueError(
            f"images must share one number of channels, got {images[0].shape[0]} in {names[0]} "
            f"and {images[odd].shape[0]} in {names[odd]}"
        )
    return images


def _from_arrays(
    images: np.ndarray | list[np.ndarray], labels: Any | None, classes: Sequence[str] | None, source: str
) -> ImageSet:
    """An ImageSet from uint8 arrays."""
    names = [str(i) for i in range(len(images))]
    given: tuple[str, ...] = ()
    if labels is not None:
        labels, given = arrays.labels(labels, len(images))
    if isinstance(images, list):
        images = _one_channel_count(images, names)
    return _relabelled(replace(_assemble(images, labels, given, names), source=source), classes)


def _assemble(
    images: np.ndarray | list[np.ndarray],
    labels: list[str] | None,
    classes: tuple[str, ...],
    names: list[str],
) -> ImageSet:
    """Stack images of one size, number the labels, find the copies."""
    digests: dict[bytes, list[str]] = {}
    for name, image in zip(names, images):
        key = hashlib.blake2b(
            repr(image.shape).encode() + np.ascontiguousarray(image).tobytes(), digest_size=16
        )
        digests.setdefault(key.digest(), []).append(name)
    if isinstance(images, list) and len({image.shape for image in images}) == 1:
        images = np.stack(images)
    if isinstance(images, list):
        held: torch.Tensor | list[torch.Tensor] = [torch.from_numpy(np.array(image)) for image in images]
    else:
        held = torch.from_numpy(np.array(images))
    position = {name: i for i, name in enumerate(classes)}
    return ImageSet(
        images=held,
        labels=None if labels is None else torch.tensor([position[c] for c in labels]),
        classes=classes if labels is not None else (),
        names=names,
        duplicates=[group for group in digests.values() if len(group) > 1],
    )


def _relabelled(images: ImageSet, classes: Sequence[str] | None) -> ImageSet:
    """The same images numbered by the given classes."""
    if classes is None:
        return images
    if images.labels is None:
        raise ValueError(f"classes were given, but {images.source} holds no labels")
    position = {name: i for i, name in enumerate(classes)}
    used = [images.classes[i] for i in images.labels.unique().tolist()]
    unknown = [name for name in used if name not in position]
    if unknown:
        raise ValueError(f"{images.source} holds classes not among the given ones: {', '.join(unknown)}")
    table = torch.tensor([position.get(name, -1) for name in images.classes])
    return replace(images, labels=table[images.labels], classes=tuple(classes))


def _cifar10(root: str, split: str) -> ImageSet:
    """CIFAR-10 through torchvision, which downloads it once and checks its checksum."""
    checks.choice("split", split, ("train", "test"))
    from torchvision.datasets import CIFAR10

    folder = Path(root).expanduser() if root else Path.home() / ".cache" / "viewspan" / "cifar10"
    try:
        held = CIFAR10(str(folder), train=split == "train", download=True)
    except (OSError, RuntimeError) as error:
        raise checks.RunFailed(
            f"cifar10 could not be downloaded to {folder} ({error}); put cifar-10-python.tar.gz there, or give a "
            "folder of images"
        ) from error
    images = np.ascontiguousarray(held.data.transpose(0, 3, 1, 2))
    labels = [held.classes[i] for i in held.targets]
    names = [f"{split}/{i}" for i in range(len(images))]
    return replace(_assemble(images, labels, tuple(held.classes), names), source="cifar10")
