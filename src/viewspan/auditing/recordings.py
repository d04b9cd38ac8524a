"""Pairs of two moments of a recording: rows a fixed lag apart, inside a session."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from viewspan import checks
from viewspan.auditing import files
from viewspan.auditing.sources import GROUP_WORDS, Paired, labels_of
from viewspan.checks import ViewspanWarning

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

_TIME_WORDS = ("t", "time", "timestamp", "date", "datetime", "frame", "sample", "seconds")
_STEPS = 20  # rows that must all increase before a column is taken for a clock


def lagged(
    columns: Mapping[str, Array],
    *,
    lag: int,
    session: str | None = None,
    cluster: str | None = None,
    factors: Sequence[str] | None = None,
    skip_bad: bool = False,
    where: str = "data",
) -> Paired:
    """Pairs (x_t, x_t+lag) inside each session of a recording, rows in order of time.

    The signal is one array (time, channels), or every numeric column (those in `factors`, if given). Other columns
    are factors too: numbers, or categories if they are text. A clock (a column that increases throughout every
    session) is left out, and noted.

    Neighbouring pairs are not independent: sessions are resampled, or, without sessions, contiguous blocks.
    """
    checks.integer("lag", lag, low=1)
    arrays = {name: np.asarray(a) for name, a in columns.items()}
    wide = _wide(arrays, where)
    n = len(next(iter(arrays.values()))) if wide is None else len(arrays[wide])
    for name in (session, cluster):
        if name is not None and arrays.get(name, np.zeros(0)).shape != (n,):
            what = "session" if name == session else "cluster"
            raise ValueError(f"{where}: no column {name} for {what}; found {', '.join(columns)}")
    sessions = np.zeros(n, dtype=int) if session is None else labels_of(arrays[session], session, where)
    rows = [np.flatnonzero(sessions == label) for label in dict.fromkeys(sessions.tolist())]
    skipped = [
        {"name": f"session {sessions[r[0]]}", "reason": f"{len(r)} rows, not more than the lag"}
        for r in rows
        if len(r) <= lag
    ]
    i, j = (
        np.concatenate([np.zeros(0, dtype=int), *parts])
        for parts in ([r[:-lag] for r in rows if len(r) > lag], [r[lag:] for r in rows if len(r) > lag])
    )
    if not len(i):
        longest = max(map(len, rows), default=0)
        raise ValueError(f"lag must be shorter than a session, got {lag} (the longest has {longest} rows)")
    if wide is None:
        for name in factors or ():
            checks.choice("factors", name, [c for c in arrays if c not in (session, cluster)])
    notes: list[str] = []
    single = {
        name: files.column(a, name, where)
        for name, a in arrays.items()
        if a.shape == (n,) and name not in (session, cluster) and (factors is None or name in factors)
    }
    if factors is None:
        single = _without_labels(single, rows, session, notes)
    values = {**single, **({} if wide is None else {wide: arrays[wide].astype(np.float64)})}
    bad = _bad_rows(values, n)
    keep = ~(np.isin(i, list(bad)) | np.isin(j, list(bad)))
    if bad and (not skip_bad or keep.sum() < 2):
        row, name = next(iter(sorted(bad.items())))
        left = "" if not skip_bad else f"; without them {int(keep.sum())} pairs are left"
        raise ValueError(
            f"{where}: column {name} row {row} is missing or not finite ({len(bad)} such rows of {n}; skip_bad "
            f"leaves out pairs with them{left})"
        )
    skipped += [
        {"name": f"row {r}", "reason": f"{c} is missing or not finite"} for r, c in sorted(bad.items())
    ]
    i, j = i[keep], j[keep]
    paired = _pair(values, wide, i, j, where)
    paired.skipped, paired.notes = skipped, notes
    if cluster is not None:
        paired.clusters, paired.cluster = labels_of(arrays[cluster], cluster, where)[i], cluster
    elif session is not None:
        paired.clusters, paired.cluster = sessions[i], session
    else:
        block = max(10 * lag, len(i) // 50, 1)
        paired.clusters, paired.cluster = np.arange(len(i)) // block, f"blocks of {block} rows"
        paired.notes.append(f"no sessions: intervals resample contiguous blocks of {block} rows")
    return paired


def _wide(arrays: Mapping[str, Array], where: str) -> str | None:
    """The name of the one array (time, channels), or None if every array is a column."""
    wide = [name for name, a in arrays.items() if a.ndim == 2 and a.dtype.kind in "fiu"]
    if len(wide) > 1:
        raise ValueError(f"{where}: lag needs one array (time, channels), found {', '.join(wide)}")
    lengths = {len(a) for a in arrays.values() if a.ndim}
    if not wide and (len(lengths) != 1 or any(a.ndim != 1 for a in arrays.values())):
        found = ", ".join(f"{n} {a.shape}" for n, a in arrays.items()) or "nothing"
        raise ValueError(f"{where}: lag needs an array (time, channels), found {found}")
    return wide[0] if wide else None


def _without_labels(
    columns: dict[str, Array], rows: Sequence[npt.NDArray[np.intp]], session: str | None, notes: list[str]
) -> dict[str, Array]:
    """The columns less those that number or name the rows; what is left out is noted, rows out of order warned of."""
    kept = {}
    for name, values in columns.items():
        text = values.dtype.kind != "f"
        steps = [_increases(values[r], strictly=True) for r in rows]
        distinct = len(set(values.tolist()))
        named = any(word in name.lower() for word in GROUP_WORDS)
        if name.lower() in _TIME_WORDS and not all(_increases(values[r], strictly=False) for r in rows):
            message = f"column {name} does not increase within a session: pairs are rows apart, so sort the rows by time"
            warnings.warn(message, ViewspanWarning, stacklevel=2)
            notes.append(message)
        if all(steps) and sum(map(len, rows)) - len(rows) >= _STEPS and distinct > len(rows):
            notes.append(f"not audited: {name} increases throughout every session, as a clock does")
        elif text and distinct == len(values):
            notes.append(f"not audited: {name} has another text in every row")
        elif session is None and named and 1 < distinct <= len(values) / 2:
            message = f"not audited: {name} looks like a label of sessions, and pairs cross them: pass session={name} (--session {name})"
            warnings.warn(message, ViewspanWarning, stacklevel=2)
            notes.append(message)
        else:
            kept[name] = values
    return kept


def _increases(values: Array, *, strictly: bool) -> bool:
    if values.dtype.kind != "f":
        values = values.astype(str)
    ahead, behind = values[1:], values[:-1]
    return bool((ahead > behind).all() if strictly else (ahead >= behind).all())


def _bad_rows(values: Mapping[str, Array], n: int) -> dict[int, str]:
    """Rows with a missing value, and the first column that lacks it."""
    bad: dict[int, str] = {}
    for name, x in values.items():
        if x.dtype.kind == "f":
            missing = ~np.isfinite(x).reshape(n, -1).all(axis=1)
        else:
            missing = np.array([files.missing(v) for v in x])
        for row in np.flatnonzero(missing):
            bad.setdefault(int(row), name)
    return bad


def _pair(
    values: Mapping[str, Array],
    wide: str | None,
    i: npt.NDArray[np.intp],
    j: npt.NDArray[np.intp],
    where: str,
) -> Paired:
    both = {name: np.stack([x[i], x[j]], axis=1) for name, x in values.items()}
    views: Floats | None
    if wide is not None:
        views = both.pop(wide)
        names = tuple(f"{wide}[{c}]" for c in range(views.shape[2]))
        both = {**{name: views[:, :, c] for c, name in enumerate(names)}, **both}
    else:
        names = tuple(name for name, x in both.items() if x.dtype.kind == "f")
        if not both:
            raise ValueError(f"{where}: no column to pair, found {', '.join(values) or 'none'}")
        views = np.stack([both[name] for name in names], axis=2) if names else None
    return Paired(kind="lag", factors=both, views=views, coordinates=names)
