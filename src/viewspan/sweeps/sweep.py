"""Run many cells once each, on any number of workers and machines that share one folder of records.

A cell is an experiment's name and the settings of one run. One whose record is there is reused; any other is
claimed, run, and its record written by the process that ran it, so nothing is lost with a machine and nothing
has to be sent back. The same folder may be worked on by other sweeps at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from viewspan import checks, records
from viewspan.sweeps import engines
from viewspan.sweeps.cells import Cell, Outcome, Task, Worker, names

POLL = 0.25  # seconds between looks at cells that another sweep is running


@dataclass
class SweepResult:
    """What a sweep brought.

    Attributes:
        records: the records of the cells that ended well, in the order of the cells.
        reused: how many were finished before, or by another sweep in the meantime.
        ran: how many this sweep ran.
        failed: the outcomes of the cells that failed, each with its name and error.
        waiting: how many cells another sweep was running, and were waited for.
        died: names of the cells under which a worker died, whether or not a later try succeeded.
    """

    records: list[records.Record] = field(default_factory=list)
    reused: int = 0
    ran: int = 0
    failed: list[Outcome] = field(default_factory=list)
    waiting: int = 0
    died: list[str] = field(default_factory=list)


def run(
    cells: Sequence[Cell],
    worker: Worker,
    store: records.Store,
    *,
    jobs: int = 1,
    shard: tuple[int, int] | None = None,
    backend: str = "loky",
    address: str | None = None,
    fresh: bool = False,
    on_done: Callable[[Outcome], None] | None = None,
) -> SweepResult:
    """Bring every cell to an end: reuse its record, run it, or wait for the sweep that is running it.

    Args:
        cells: ``(experiment, settings)`` pairs; equal ones are run once.
        worker: maps settings to a record and its arrays. It must be importable (or picklable) where it runs.
        store: the folder of records, shared by all workers.
        jobs: worker processes on this machine; 1 runs in this process. Cores are divided among them.
        shard: ``(i, n)`` takes the cells i, i + n, … only, i from 1 to n.
        backend: ``loky`` for this machine, ``dask`` for the running cluster at `address`.
        address: the Dask scheduler's address.
        fresh: run cells again though their record is there.
        on_done: called in this process as each cell ends.

    Returns:
        The records in the order of the cells, and what failed, by name. A failed cell stops no other.

    Raises:
        ValueError: for options that do not fit together.
        KeyboardInterrupt: after ending its workers and giving up its claims; finished records stay.
    """
    checks.integer("jobs", jobs, low=1)
    checks.choice("backend", backend, ("loky", "dask"))
    if (backend == "dask") != (address is not None):
        raise ValueError(
            f"address must be given with backend 'dask' and only then, got {address!r} with {backend!r}"
        )
    if backend == "dask" and jobs != 1:
        raise ValueError(f"jobs must be left out with backend 'dask' (the cluster decides), got {jobs}")
    chosen = [Cell(*cell) for cell in take_shard(cells, shard)]
    task = Task(worker, str(store.folder.resolve()), time.time() if fresh else 0.0)
    result = SweepResult()
    ended: dict[Path, Outcome] = {}

    def end(outcome: Outcome) -> None:
        ended[store.path(*outcome.cell)] = outcome
        if outcome.deaths:
            result.died.append(outcome.name)
        if outcome.status == "failed":
            result.failed.append(outcome)
        elif outcome.status == "ran":
            result.ran += 1
        else:
            result.reused += 1
        if on_done is not None:
            on_done(outcome)

    todo: dict[Path, tuple[Cell, str]] = {}
    for cell, name in zip(chosen, names(chosen), strict=True):
        path = store.path(*cell)
        if path in ended or path in todo:
            continue
        record = task.finished(store, cell)
        if record is None:
            todo[path] = (cell, name)
        else:
            store.claimed(*cell)  # removes the claim of a worker that died between its record and its end
            end(Outcome(cell, name, "reused", record))
    ready = list(todo.values())
    while ready:
        busy = []
        with closing(_dispatch(task, ready, jobs, address)) as outcomes:
            for outcome in outcomes:
                if outcome.status == "busy":
                    busy.append((outcome.cell, outcome.name))
                else:
                    end(outcome)
        result.waiting += len(busy)
        ready = _wait(task, store, busy, end)
    in_order = [ended[store.path(*cell)] for cell in chosen]
    result.records = [outcome.record for outcome in in_order if outcome.record is not None]
    result.reused += len(in_order) - len(ended)
    return result


def take_shard(cells: Sequence[Cell], shard: tuple[int, int] | None) -> Sequence[Cell]:
    """Every n-th cell from the i-th on, i counted from 1; all cells without a shard."""
    if shard is None:
        return cells
    i, n = shard
    checks.integer("shard n", n, low=1)
    checks.integer("shard i", i, low=1, high=n)
    return cells[i - 1 :: n]


def parse_shard(text: str) -> tuple[int, int]:
    """`i/n` as written on the command line.

    Example:
        >>> parse_shard("2/8")
        (2, 8)
    """
    i, _, n = text.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise ValueError(f"shard must be i/n with 1 <= i <= n, got {text!r}")
    return int(i), int(n)


def _wait(
    task: Task, store: records.Store, busy: list[tuple[Cell, str]], end: Callable[[Outcome], None]
) -> list[tuple[Cell, str]]:
    """Until all cells that others run have ended; returns those whose claim went without a record."""
    free: list[tuple[Cell, str]] = []
    while busy and not free:
        left = []
        for cell, name in busy:
            held = store.claimed(*cell)  # before the look-up: the record is written before the claim goes
            record = task.finished(store, cell)
            if record is not None:
                end(Outcome(cell, name, "reused", record))
            elif held:
                left.append((cell, name))
            else:
                free.append((cell, name))
        busy = left
        if busy and not free:
            time.sleep(POLL)
    return free + busy


def _dispatch(
    task: Task, cells: list[tuple[Cell, str]], jobs: int, address: str | None
) -> Generator[Outcome]:
    if address is not None:
        return engines.on_dask(task, cells, address)
    if min(jobs, len(cells)) > 1:
        return engines.on_loky(task, cells, jobs)
    return _serially(task, cells)


def _serially(task: Task, cells: list[tuple[Cell, str]]) -> Generator[Outcome]:
    """In this process; an interrupt may fall on the very lines that take or give up a claim, so look again."""
    for cell, name in cells:
        try:
            outcome = task(cell, name)
        except KeyboardInterrupt:
            records.Store(task.folder).abandon(*cell)
            raise
        yield outcome
