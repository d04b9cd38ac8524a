"""Paired data without augmentation: arrays, tables, views made beforehand."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from viewspan import checks
from viewspan.auditing import files
from viewspan.auditing.dimension import same_rows, scaled
from viewspan.checks import ViewspanWarning

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

TABLES = (".csv", ".tsv", ".parquet")
_BY_CHANCE = 5  # times as many equal anchors as chance makes: then they are copies
MAX_COORDINATES = 64  # wider embeddings are not audited coordinate by coordinate
GROUP_WORDS = (
    "patient",
    "subject",
    "session",
    "participant",
    "animal",
    "donor",
    "site",
    "scanner",
    "recording",
)


@dataclasses.dataclass(kw_only=True)
class Paired:
    """Views of anchors with their factors, however they came.

    Attributes:
        kind: ``pairs``, ``views``, ``table`` or ``lag``.
        factors: values by name, shape (n, k) or (n, k, c); strings are categories.
        views: the embedding or signal, shape (n, k, D), or None.
        coordinates: names of the D coordinates.
        pictures: the views as images, shape (n, k, C, H, W), if they are images.
        clusters: label of each anchor to resample by, or None; `cluster` is its name.
        repeats: repeated measurements for the noise floor, shape (r, s, D), or None.
        duplicates: groups of anchors that are exact copies, by name; all but the first are left out.
        skipped: what was left out, with the reason.
        notes: what the reader must know.
    """

    kind: str
    factors: dict[str, Array]
    views: Floats | None = None
    coordinates: tuple[str, ...] = ()
    pictures: Array | None = None
    clusters: Array | None = None
    cluster: str | None = None
    repeats: Floats | None = None
    duplicates: list[list[str]] = dataclasses.field(default_factory=list)
    skipped: list[dict[str, str]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """Anchors and views."""
        first = self.views if self.views is not None else next(iter(self.factors.values()))
        return first.shape[0], first.shape[1]


def is_paired_file(path: Path) -> bool:
    """Whether the file's suffix is one of arrays or of a table."""
    return path.suffix.lower() in (".npz", ".npy", *TABLES)


def from_arrays(
    arrays: Mapping[str, Array],
    *,
    pairs: tuple[str, str] = ("a", "b"),
    cluster: str | None = None,
    wanted: Sequence[str] | None = None,
    skip_bad: bool = False,
    where: str = "data",
) -> Paired:
    """Pairs from named arrays: two views, or `views` (anchors, views, features…), and one array a factor.

    A factor has shape (n, k) or (n, k, c); an array of shape (n,) is a label of the anchor, usable as `cluster`;
    `repeats`, shape (r, s, …), holds repeated measurements for the noise floor.
    """
    rest = {name: np.asarray(a) for name, a in arrays.items()}
    first, second = pairs
    if first in rest and second in rest:
        a, b = rest.pop(first), rest.pop(second)
        if a.shape != b.shape or a.ndim < 1:
            raise ValueError(
                f"{where}: {first} and {second} must have one shape, got {a.shape} and {b.shape}"
            )
        stacked, kind = np.stack([a, b], axis=1), "pairs"
    elif "views" in rest:
        stacked, kind = rest.pop("views"), "views"
        if stacked.ndim == 2:
            raise ValueError(
                f"{where}: views must have at least 3 axes (anchors, views, features…), got {stacked.shape}; where a "
                "view is one number, add a last axis of length 1"
            )
    elif any(a.ndim >= 2 and a.shape[1] == 2 for a in rest.values()):
        stacked, kind = None, "pairs"
    else:
        found = ", ".join(f"{n} {a.shape}" for n, a in rest.items()) or "nothing"
        raise ValueError(
            f"{where}: expected arrays {first} and {second}, or views (anchors, views, …); found {found}"
        )
    views = None if stacked is None else _views(stacked, where)
    repeats = _views(rest.pop("repeats"), where) if "repeats" in rest else None
    shape = next(a.shape[:2] for a in rest.values() if a.ndim >= 2) if views is None else views.shape[:2]
    factors, labels = {}, {}
    for name, array in rest.items():
        if array.dtype.kind in "cOV":
            raise TypeError(f"{where}: factor {name} must be numbers or text, got dtype {array.dtype}")
        if array.ndim in (2, 3) and array.shape[:2] == shape:
            factors[name] = array
        elif array.shape == shape[:1]:
            labels[name] = array
        else:
            raise ValueError(
                f"{where}: factor {name} must have shape {shape} (or {shape[:1]} for a label), got {array.shape}"
            )
    if wanted is not None and set(wanted) <= set(factors):
        factors = {name: factors[name] for name in wanted}
    names = (
        tuple(f"{first if kind == 'pairs' else 'views'}[{j}]" for j in range(views.shape[2]))
        if views is not None
        else ()
    )
    pictures = None if stacked is None else _pictures(stacked)
    paired = Paired(
        kind=kind, factors=factors, views=views, coordinates=names, repeats=repeats, pictures=pictures
    )
    _take_cluster(paired, labels, cluster, where)
    unused = sorted(set(labels) - {cluster})
    if unused:
        paired.notes.append(
            f"one value an anchor, so held by construction and not audited: {', '.join(unused)}"
        )
    drop_copies(paired, [f"row {i}" for i in _drop_bad(paired, skip_bad, where)])
    if views is not None and not factors and views.shape[2] <= MAX_COORDINATES and paired.views is not None:
        paired.factors = {names[j]: paired.views[:, :, j] for j in range(views.shape[2])}
    return paired


def from_columns(
    columns: Mapping[str, Array],
    *,
    suffixes: tuple[str, str] = ("a", "b"),
    cluster: str | None = None,
    wanted: Sequence[str] | None = None,
    skip_bad: bool = False,
    where: str = "data",
) -> Paired:
    """Pairs from a table with columns NAME_a and NAME_b, all or those `wanted`; text columns are categories."""
    first, second = (f"_{s}" for s in suffixes)
    names = [c.removesuffix(first) for c in columns if c.endswith(first) and c != first]
    orphans = [n + first for n in names if n + second not in columns]
    orphans += [c for c in columns if c.endswith(second) and c.removesuffix(second) + first not in columns]
    if orphans:
        raise ValueError(
            f"{where}: column {orphans[0]} has no partner (NAME{first} and NAME{second} make a pair)"
        )
    if not names:
        raise ValueError(
            f"{where}: no columns NAME{first} and NAME{second}; found {', '.join(columns) or 'none'}"
        )
    used = {n + s for n in names for s in (first, second)}
    if wanted is not None:
        for name in wanted:
            checks.choice("factors", name, names)
        names = list(wanted)
    factors: dict[str, Array] = {}
    notes: list[str] = []
    for name in names:
        a, b = (files.column(columns[name + s], name + s, where) for s in (first, second))
        if (a.dtype.kind == "f") != (b.dtype.kind == "f"):
            a, b = a.astype(str), b.astype(str)
        factors[name] = np.stack([a, b], axis=1)
        if a.dtype.kind != "f" and set(a).isdisjoint(b):
            notes.append(f"{name}: no value of {name}{first} occurs in {name}{second}: are they coded alike?")
            warnings.warn(notes[-1], ViewspanWarning, stacklevel=2)
    if (n := len(factors[names[0]])) < 2:
        raise ValueError(f"{where}: at least 2 anchors (rows) are needed, got {n}")
    numeric = [n for n in names if factors[n].dtype.kind == "f"]
    views = np.stack([factors[n] for n in numeric], axis=2) if numeric else None
    paired = Paired(kind="table", factors=factors, views=views, coordinates=tuple(numeric), notes=notes)
    _take_cluster(paired, {c: v for c, v in columns.items() if c not in used}, cluster, where)
    drop_copies(paired, [f"row {i}" for i in _drop_bad(paired, skip_bad, where)])
    return paired


def _views(x: Array, where: str) -> Floats:
    if x.dtype.kind not in "fiub":
        raise TypeError(f"{where}: views must be numbers, got dtype {x.dtype}")
    x = x.astype(np.float64)
    if x.ndim == 2:
        x = x[:, :, None]
    if x.ndim < 3 or x.shape[1] < 2 or x.shape[0] < 2:
        raise ValueError(
            f"{where}: views must hold at least 2 anchors and 2 views (anchors, views, …), got {x.shape}"
        )
    if not x.size:
        raise ValueError(f"{where}: views must hold at least 1 feature, got {x.shape}")
    return x.reshape(*x.shape[:2], -1)


def _pictures(x: Array) -> Array | None:
    """Views as (n, k, C, H, W) if that is what they are: five axes, one of them 1, 3 or 4 channels."""
    if x.ndim != 5:
        return None
    if x.shape[2] in (1, 3, 4):
        return x
    return x.transpose(0, 1, 4, 2, 3) if x.shape[4] in (1, 3, 4) else None


def labels_of(column: Array, name: str, where: str) -> Array:
    """A column of labels as text, none of them missing."""
    column = np.asarray(column)
    missing = next((i for i, v in enumerate(column) if files.missing(v)), None)
    if missing is not None:
        raise ValueError(f"{where}: column {name} row {missing} is missing")
    return column.astype(str)


def _take_cluster(paired: Paired, labels: Mapping[str, Array], cluster: str | None, where: str) -> None:
    n = paired.shape[0]
    if cluster is not None:
        if cluster not in labels:
            raise ValueError(f"{where}: no column {cluster} for cluster; found {', '.join(labels) or 'none'}")
        paired.clusters, paired.cluster = labels_of(labels[cluster], cluster, where), cluster
        return
    for name, column in labels.items():
        distinct = len(set(map(str, column)))
        named = any(word in name.lower() for word in GROUP_WORDS) or name.lower().endswith(("_id", "id"))
        if 1 < distinct < n and (named or column.dtype.kind in "OUST") and distinct <= n / 1.5:
            message = (
                f"column {name} takes {distinct} values over {n} anchors: rows that share one are not independent "
                f"and the intervals are too narrow; pass cluster={name} (--cluster {name})"
            )
            warnings.warn(message, ViewspanWarning, stacklevel=4)
            paired.notes.append(message)


def _drop_bad(paired: Paired, skip_bad: bool, where: str) -> npt.NDArray[np.intp]:
    """Name the first row with a missing value, or leave such rows out; the numbers of the rows that stay."""
    n = paired.shape[0]
    bad = np.zeros(n, dtype=bool)
    reasons: dict[int, str] = {}
    for name, values in [
        *paired.factors.items(),
        *([("views", paired.views)] if paired.views is not None else []),
    ]:
        if values.dtype.kind in "fc":
            missing = ~np.isfinite(values).reshape(n, -1).all(axis=1)
        elif values.dtype.kind == "O":
            missing = np.array([any(files.missing(v) for v in row) for row in values])
        else:
            continue
        for i in np.flatnonzero(missing & ~bad):
            reasons[int(i)] = f"{name} is missing or not finite"
        bad |= missing
    if not bad.any():
        return np.arange(n)
    row = int(bad.argmax())
    if not skip_bad:
        raise ValueError(
            f"{where}: row {row}: {reasons[row]} ({int(bad.sum())} such rows of {n}; skip_bad leaves them out)"
        )
    if n - int(bad.sum()) < 2:
        raise ValueError(f"{where}: {n - int(bad.sum())} rows are left of {n}, at least 2 are needed")
    _keep(paired, ~bad)
    paired.skipped += [{"name": f"row {i}", "reason": reason} for i, reason in sorted(reasons.items())]
    return np.flatnonzero(~bad)


def drop_copies(paired: Paired, names: Sequence[str]) -> None:
    """Leave out anchors that equal another in everything up to rounding, unless coarse values make such anchors equal by chance."""
    n = paired.shape[0]
    columns = [] if paired.views is None else [paired.views]
    columns += [x for x in paired.factors.values() if paired.kind != "table" or x.dtype.kind != "f"]
    numbers = [x.reshape(n, -1).astype(np.float64) for x in columns if x.dtype.kind in "fiub"]
    labels = same_rows(_in_own_units(np.concatenate(numbers, axis=1))) if numbers else np.zeros(n, dtype=int)
    words = [x for x in columns if x.dtype.kind not in "fiub"]
    groups: dict[Any, list[int]] = {}
    for i in range(n):
        key = (labels[i], *(tuple(x[i]) if x.dtype.kind == "O" else x[i].tobytes() for x in words))
        groups.setdefault(key, []).append(i)
    if len(groups) < 3 or len(groups) == n:
        return
    first = [rows[0] for rows in groups.values()]
    equal = sum(len(rows) * (len(rows) - 1) / 2 for rows in groups.values())
    if equal <= _BY_CHANCE * n * (n - 1) / 2 * _chance([x[:, 0] for x in columns]):
        return
    keep = np.zeros(n, dtype=bool)
    keep[first] = True
    paired.duplicates = [[names[i] for i in rows] for rows in groups.values() if len(rows) > 1]
    _keep(paired, keep)


def _in_own_units(x: Floats) -> Floats:
    """Columns over the distance from their median that nine tenths of the rows keep; a constant column as it is."""
    x = np.where(np.isfinite(x), x, 0.0)
    x, _ = scaled(x, (0,))
    x = x - np.median(x, axis=0)
    unit = np.quantile(np.abs(x), 0.9, axis=0)
    return np.asarray(x / np.where(unit > 0, unit, 1.0))


def _chance(columns: Sequence[Array]) -> float:
    """How often two different anchors agree in every column, were the columns independent."""
    return float(np.prod([_agree(v) for x in columns for v in x.reshape(len(x), -1).T]))


def _agree(values: Array) -> float:
    """How often two anchors have the same value: counted for coarse values, by the finest step for others.

    Counting alone would take the copies themselves for coarseness.
    """
    n = len(values)
    levels, counts = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_counts=True)
    if values.dtype.kind in "fiu" and len(levels) > 1:
        scaled = levels / np.abs(levels).max()
        steps = (scaled[-1] - scaled[0]) / np.diff(scaled).min()
        if steps >= n / 2:
            return float(max(1 / steps, (counts.max() / n) ** 2))
    return float((counts * (counts - 1)).sum() / (n * (n - 1)))


def _keep(paired: Paired, rows: npt.NDArray[np.bool_]) -> None:
    paired.factors = {name: values[rows] for name, values in paired.factors.items()}
    paired.views = None if paired.views is None else paired.views[rows]
    paired.pictures = None if paired.pictures is None else paired.pictures[rows]
    paired.clusters = None if paired.clusters is None else paired.clusters[rows]


def select(paired: Paired, names: Sequence[str]) -> None:
    """Keep only the named factors."""
    for name in names:
        if name not in paired.factors:
            raise ValueError(f"factors must be among {', '.join(paired.factors) or 'none'}, got {name!r}")
    paired.factors = {name: paired.factors[name] for name in names}
