"""Views made beforehand as files: NAME_VIEW.png (any image) or NAME_VIEW.npy, grouped by NAME."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from viewspan import images
from viewspan.auditing import factors, files
from viewspan.auditing.sources import MAX_COORDINATES, Paired, drop_copies


def read_stems(folder: Path, *, skip_bad: bool = False) -> Paired:
    """Anchors are the stems before the last underscore; a stem with one file is left out and named."""
    if not folder.is_dir():
        raise ValueError(f"group='stem' needs a folder of files NAME_VIEW.ext, got {folder}")
    arrays = sorted(folder.rglob("*.npy"))
    if arrays:
        names = [str(p.relative_to(folder)) for p in arrays]
        rows = [_array(p) for p in arrays]
        measured: dict[str, npt.NDArray[Any]] = {}
        found = Paired(kind="views", factors={})
    else:
        data = images.load(folder, skip_bad=skip_bad)
        names = data.names
        rows, values = [], []
        for image in data.images:
            x = images.views.as_float(image[None])
            rows.append(factors.pooled(x, factors.SUPPORT_SIZE).flatten().double().numpy())
            values.append(factors.measure(x, factors.NAMES))
        measured = {name: np.concatenate([v[name] for v in values]) for name in factors.NAMES}
        found = Paired(kind="views", factors={}, skipped=[{"name": n, "reason": r} for n, r in data.skipped])
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        stem = str(Path(name).with_suffix(""))
        groups.setdefault(stem.rpartition("_")[0] or stem, []).append(i)
    single = [stem for stem, members in groups.items() if len(members) < 2]
    found.skipped += [{"name": stem, "reason": "one view only"} for stem in single]
    anchors = [members for members in groups.values() if len(members) > 1]
    if len(anchors) < 2:
        raise ValueError(f"{folder}: at least 2 stems with 2 files NAME_VIEW are needed, got {len(anchors)}")
    k = max(len(members) for members in anchors)
    for name, column in measured.items():
        table = np.full((len(anchors), k, *column.shape[1:]), np.nan)
        for at, members in enumerate(anchors):
            table[at, : len(members)] = column[members]
        found.factors[name] = table
    even = all(len(members) == k for members in anchors) and len({len(r) for r in rows}) == 1
    if even:
        found.views = np.stack([np.stack([rows[i] for i in members]) for members in anchors])
        found.coordinates = tuple(f"value {j}" for j in range(found.views.shape[2]))
    elif arrays:
        raise ValueError(f"{folder}: every stem must have the same number of arrays of one size")
    drop_copies(found, [stem for stem, members in groups.items() if len(members) > 1])
    if found.views is not None and not measured and found.views.shape[2] <= MAX_COORDINATES:
        found.factors = {name: found.views[:, :, j] for j, name in enumerate(found.coordinates)}
    return found


def _array(path: Path) -> npt.NDArray[np.float64]:
    """The finite numbers of one `.npy`, flat."""
    (values,) = files.read_arrays(path).values()
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        raise ValueError(f"{path} must hold finite numbers")
    return values.reshape(-1).astype(np.float64)


def measure_pictures(paired: Paired) -> None:
    """The image bank on views given as pictures (n, k, C, H, W), uint8 or float in [0, 1]; small copies for the rest."""
    assert paired.pictures is not None
    n, k = paired.pictures.shape[:2]
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    small, low, high = [], np.inf, -np.inf
    for row in paired.pictures:
        x = images.views.as_float(torch.from_numpy(np.ascontiguousarray(row)))
        low, high = min(low, float(x.min())), max(high, float(x.max()))
        small.append(factors.pooled(x, factors.SUPPORT_SIZE).flatten(1).double().numpy())
        for name, value in factors.measure(x, factors.NAMES).items():
            found.setdefault(name, []).append(value)
    measured = {name: np.stack(values).reshape(n, k, *values[0].shape[1:]) for name, values in found.items()}
    paired.factors = {**measured, **paired.factors}
    paired.views = np.stack(small)
    paired.coordinates = tuple(f"value {j}" for j in range(paired.views.shape[2]))
    if low < -1e-3 or high > 1 + 1e-3:
        paired.notes.append(
            f"values run from {low:.3g} to {high:.3g}: colours mean something in [0, 1] only, so undo the "
            "normalisation of such views"
        )
