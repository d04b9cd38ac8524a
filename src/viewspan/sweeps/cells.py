"""One cell of a sweep, and what it takes to bring it to an end exactly once."""

from __future__ import annotations

import inspect
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from viewspan import records

if TYPE_CHECKING:
    import numpy as np

# settings -> record and arrays; one with an argument `scratch` is given a folder for what it needs to go on after a kill
Worker: TypeAlias = "Callable[..., tuple[records.Record, Mapping[str, np.ndarray] | None]]"


class Cell(NamedTuple):
    """One run to be made: which experiment, with which settings."""

    experiment: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How one cell ended.

    Attributes:
        cell: the cell.
        name: its experiment and the settings that tell it from the sweep's other cells.
        status: ``reused``, ``ran``, ``failed``, or, inside a sweep, ``busy``: another is running it.
        record: the record, unless the cell failed.
        error: what went wrong, on one line, if it failed.
        deaths: how many workers died under this cell.
    """

    cell: Cell
    name: str
    status: str
    record: records.Record | None = None
    error: str | None = None
    deaths: int = 0


def names(cells: Sequence[Cell]) -> list[str]:
    """What to call each cell: its experiment and the first settings that tell it from all others of the sweep.

    Example:
        >>> names([Cell("rho", {"rho": 0.0, "loss": "standard"}), Cell("rho", {"rho": 0.5, "loss": "mixed"})])
        ['rho rho=0.0', 'rho rho=0.5']
    """
    found = [cell.experiment for cell in cells]
    for key in dict.fromkeys(key for cell in cells for key in cell.settings):
        longer = [
            f"{name} {key}={cell.settings[key]}" if key in cell.settings else name
            for name, cell in zip(found, cells)
        ]
        if len(set(longer)) > len(set(found)):
            found = longer
    return found


@dataclass(frozen=True)
class Task:
    """What a worker needs to know to bring one cell to an end; travels to it by pickle."""

    worker: Worker
    folder: str
    since: float  # records that ended before this moment do not count

    def finished(self, store: records.Store, cell: Cell) -> records.Record | None:
        """The cell's record, if it is there and recent enough."""
        record = store.find(cell.experiment, cell.settings)
        return record if record is not None and record.finished >= self.since else None

    def __call__(self, cell: Cell, name: str) -> Outcome:
        """Reuse, or claim and run and write; in the process that will have run it."""
        try:
            store = records.Store(self.folder)
            with store.claim(*cell) as claim:
                record = self.finished(store, cell)  # looked up inside the claim: no one can end it meanwhile
                if record is not None:
                    return Outcome(cell, name, "reused", record)
                if claim is None:
                    return Outcome(cell, name, "busy")
                start = time.perf_counter()
                scratch = store.scratch(*cell)
                known = inspect.signature(self.worker).parameters
                record, arrays = self.worker(
                    dict(cell.settings), **({"scratch": scratch} if "scratch" in known else {})
                )
                record = _complete(record, cell, time.perf_counter() - start)
                if not claim.mine():  # suspended for so long that another worker took over: its record counts
                    return Outcome(cell, name, "busy")
                record = records.read(store.write(record, arrays))
                shutil.rmtree(scratch, ignore_errors=True)
                return Outcome(cell, name, "ran", record)
        except (Exception, SystemExit) as error:
            return Outcome(cell, name, "failed", error=one_line(error))


def one_line(error: BaseException) -> str:
    """An exception's type and message, and where it was raised."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        place = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


def _complete(record: records.Record, cell: Cell, seconds: float) -> records.Record:
    """Fill in what every record holds; a record of another cell is the worker's fault."""
    if record.experiment != cell.experiment or records.jsonable(record.settings) != records.jsonable(
        cell.settings
    ):
        raise ValueError(
            f"worker must return the record of its cell, got {record.experiment} {record.settings}"
        )
    return record.model_copy(
        update={
            "environment": record.environment or records.environment(),
            "seconds": record.seconds or seconds,
            "finished": time.time(),
        }
    )
