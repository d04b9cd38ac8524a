"""Records to cells: runs that differ only in their seed, with mean and spread of what they measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viewspan.records import Record

# Settings that say what a cell is, in the order a reader wants them; the others only tell alike cells apart.
PRIMARY = (
    "process", "data", "views", "pairs", "loss", "encoder", "convention", "rho", "n_fixed", "share", "dose", "sigma",
    "beta", "weight", "dim", "temperature", "protocol",
)  # fmt: skip
OF_LOSS = ("rho", "beta", "weight")  # told by the loss's name where they are a function of it
ALWAYS = ("process", "encoder")
MINUS = "\u2212"
ABSENT = "\u2013"


@dataclass(frozen=True)
class Stat:
    """A measured number over seeds: mean, standard deviation (n − 1; None for one seed) and the values."""

    mean: float | None
    sd: float | None
    values: tuple[float, ...]


@dataclass
class Cell:
    """Runs with the same settings but for the seed."""

    experiment: str
    settings: dict[str, Any]
    runs: list[tuple[Path, Record]] = field(default_factory=list)

    def stat(self, key: str) -> Stat:
        """The number `key` of the results over the runs that have it."""
        return stat(number(record.result.get(key)) for _, record in self.runs)

    def beside(self, what: str, key: str) -> float | None:
        """The number `key` of `published` or `predicted`, from the first run that has it."""
        for _, record in self.runs:
            held = record.result.get(what)
            if isinstance(held, dict):
                found = held.get(key)
                found = number(found.get("mean") if isinstance(found, dict) else found)
                if found is not None:
                    return found
        return None

    def words(self, key: str) -> dict[str, int]:
        """How often each text under `key` (a diagnosis, a verdict) was found."""
        found: dict[str, int] = {}
        for _, record in self.runs:
            value = record.result.get(key)
            if isinstance(value, str):
                text = value.replace("_", " ") if len(value) < 40 else value
                found[text] = found.get(text, 0) + 1
        return found


def number(value: Any) -> float | None:
    """A finite float, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def stat(values: Iterable[float | None]) -> Stat:
    """Mean and standard deviation of the known values."""
    known = tuple(v for v in values if v is not None)
    if not known:
        return Stat(None, None, ())
    return Stat(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, known)


def by_experiment(found: Sequence[tuple[Path, Record]]) -> dict[str, list[Cell]]:
    """The cells of each experiment; of two records with equal settings the later one counts."""
    latest: dict[tuple[str, str], tuple[Path, Record]] = {}
    for path, record in found:
        key = (record.experiment, frozen(told(record.settings)))
        if key not in latest or record.finished >= latest[key][1].finished:
            latest[key] = (path, record)
    cells: dict[str, dict[str, Cell]] = {}
    for path, record in latest.values():
        settings = {k: v for k, v in told(record.settings).items() if k != "seed"}
        group = cells.setdefault(record.experiment, {})
        group.setdefault(frozen(settings), Cell(record.experiment, settings)).runs.append((path, record))
    for group in cells.values():
        for cell in group.values():
            cell.runs.sort(key=lambda run: (number(told(run[1].settings).get("seed")) or 0.0, str(run[0])))
    return {name: list(group.values()) for name, group in cells.items()}


def told(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a reader would tell runs apart.

    A probe's are those of the run it read, the images and the readout: its seed is the run's, and the digest of the
    weights, which follow from the run, is left out. The package's own encoders go by their short names.
    """
    run = settings.get("run")
    if isinstance(run, dict):
        own = {
            "probe_seed" if k == "seed" else k: v for k, v in settings.items() if k not in ("run", "weights")
        }
        settings = {**run, **own}
    encoder = settings.get("encoder")
    if isinstance(encoder, str) and encoder.startswith("viewspan."):
        settings = {**settings, "encoder": encoder.partition(":")[2]}
    if isinstance(encoder, dict):  # a part with its own fields: its name, and the fields beside it
        sizes = {f"{encoder['name']}_{key}": value for key, value in encoder.items() if key != "name"}
        settings = {**settings, "encoder": encoder["name"], **sizes}
    return settings


def frozen(value: Any) -> str:
    """A hashable stand-in for JSON values, independent of key order."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k!r}:{frozen(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(frozen, value)) + "]"
    return repr(value)


def columns(cells: Sequence[Cell]) -> list[str]:
    """The settings that tell the cells apart: primary ones that vary, and others only if those do not suffice."""
    keys = list(dict.fromkeys(key for cell in cells for key in cell.settings))

    def varies(key: str) -> bool:
        return len({frozen(cell.settings.get(key)) for cell in cells}) > 1

    found = [k for k in PRIMARY if k in keys and (varies(k) or k in ALWAYS)]
    found = [k for k in found if k not in OF_LOSS or not follows(cells, k, "loss")]
    labels = {tuple(frozen(cell.settings.get(k)) for k in found) for cell in cells}
    if len(labels) < len(cells):
        found += [k for k in keys if k not in PRIMARY and varies(k)]
    return found


def follows(cells: Sequence[Cell], key: str, other: str) -> bool:
    """Whether one setting is a function of another, so that it tells nothing more."""
    held: dict[str, set[str]] = {}
    for cell in cells:
        held.setdefault(frozen(cell.settings.get(other)), set()).add(frozen(cell.settings.get(key)))
    return all(len(values) == 1 for values in held.values())


def label(cell: Cell, keys: Sequence[str]) -> str:
    """A cell's name in a figure."""
    return ", ".join(plain(cell.settings[k], k) for k in keys if cell.settings.get(k) is not None)


def plain(value: Any, key: str = "") -> str:
    """A setting as a reader would write it."""
    if isinstance(value, bool):
        return f"{key} {'yes' if value else 'no'}".strip()
    if isinstance(value, int | float):
        text = f"{value:.4g}".replace("-", MINUS) if number(value) is not None else str(value)
        return f"{key.replace('_', ' ')} {text}".strip()
    if isinstance(value, dict | list):
        return frozen(value)
    return str(value).replace("_", " ") if isinstance(value, str) and len(value) < 40 else str(value)


def show(value: float | None, digits: int = 3) -> str:
    """A number with a true minus sign; a dash where there is none."""
    return ABSENT if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def show_stat(value: Stat, digits: int = 3, factor: float = 1.0) -> str:
    """`mean ± sd`, the sd only where there are seeds for it."""
    if value.mean is None:
        return ABSENT
    text = show(value.mean * factor, digits)
    return text if value.sd is None else f"{text} ± {value.sd * factor:.{digits}f}"
