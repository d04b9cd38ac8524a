"""Where the cells of a sweep run: worker processes of this machine, or a running Dask cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from viewspan import checks, records, runtime
from viewspan.sweeps.cells import Cell, Outcome, Task, one_line

if TYPE_CHECKING:
    from dask.distributed import Client, as_completed

WORKERLESS_SECONDS = 300.0  # how long a Dask cluster may be without any worker
POLL = 0.25  # seconds between looks at what a Dask cluster has ended
GATHER_SECONDS = 5.0  # how long a finished cell's answer may take to come from a Dask worker
RETRIES = 2  # a cell whose worker died is run again this often
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def on_loky(task: Task, cells: list[tuple[Cell, str]], jobs: int) -> Generator[Outcome]:
    """One process a slot and one cell a process at a time, so a death is laid at the right door."""
    queue: SimpleQueue[tuple[Cell, str]] = SimpleQueue()
    for item in cells:
        queue.put(item)
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    slots = [
        _Slot(task, queue, outcomes, max(1, runtime.cores() // jobs)) for _ in range(min(jobs, len(cells)))
    ]
    for slot in slots:
        slot.thread.start()
    try:
        for _ in cells:
            yield outcomes.get()
    finally:
        for slot in slots:
            slot.stop()


class _Slot:
    """A thread of this process that feeds one worker process and starts another when that one dies."""

    def __init__(
        self, task: Task, queue: SimpleQueue[tuple[Cell, str]], outcomes: SimpleQueue[Outcome], threads: int
    ) -> None:
        self.task, self.queue, self.outcomes, self.threads = task, queue, outcomes, threads
        self.lock = threading.Lock()
        self.stopped = False
        self.executor: Any = None
        self.running: Cell | None = None
        self.thread = threading.Thread(target=self.feed, daemon=True)

    def feed(self) -> None:
        while not self.stopped:
            try:
                cell, name = self.queue.get_nowait()
            except Empty:
                return
            self.running = cell
            outcome = self.attempt(cell, name)
            if not self.stopped:
                self.running = None
                self.outcomes.put(outcome)

    def attempt(self, cell: Cell, name: str) -> Outcome:
        """Run the cell, again if its worker dies, and say how that ended."""
        from joblib.externals.loky.process_executor import BrokenProcessPool

        why = ""
        for deaths in range(RETRIES + 1):
            try:
                outcome = self.submit(cell, name).result()
            except BrokenProcessPool as error:
                why = one_line(error.__cause__ or error)
                self.close(kill=True)
                self.free(cell)
            except Exception as error:  # e.g. a worker that cannot be pickled
                return Outcome(cell, name, "failed", error=one_line(error), deaths=deaths)
            else:
                return replace(outcome, deaths=deaths)
        died = f"its worker died {RETRIES + 1} times; the last time: {why}"
        return Outcome(cell, name, "failed", error=died, deaths=RETRIES + 1)

    def submit(self, cell: Cell, name: str) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        with self.lock:
            if self.stopped:
                raise RuntimeError("the sweep was stopped")
            if self.executor is None:
                self.executor = ProcessPoolExecutor(
                    max_workers=1,
                    initializer=_prepare_worker,
                    initargs=(self.threads,),
                    env=dict.fromkeys(THREAD_VARIABLES, str(self.threads)),
                )
            return self.executor.submit(self.task, cell, name)

    def close(self, *, kill: bool) -> None:
        with self.lock:
            executor, self.executor = self.executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=kill)

    def stop(self) -> None:
        """End the worker, at once if it is running a cell, and free the claim it may leave."""
        with self.lock:
            self.stopped = True
        cell = self.running
        self.close(kill=cell is not None)
        self.thread.join()
        if cell is not None:
            self.free(cell)

    def free(self, cell: Cell) -> None:
        """Remove the claim of a worker that is dead by now."""
        records.Store(self.task.folder).claimed(*cell)


def _prepare_worker(threads: int) -> None:
    """In a new worker: its share of the cores, interrupts left to the parent, and no life without it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_threads(threads)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def limit_threads(count: int) -> None:
    """Hold this process to `count` threads, in the libraries loaded by now and in those loaded later."""
    import threadpoolctl

    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count)))
    threadpoolctl.threadpool_limits(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def on_dask(task: Task, cells: list[tuple[Cell, str]], address: str) -> Generator[Outcome]:
    """The same task on a running cluster; a cell whose worker dies is run again by Dask on another."""
    from concurrent.futures import CancelledError

    from dask.distributed import Client, KilledWorker, as_completed

    try:
        client = Client(address, timeout=20)
    except (OSError, TimeoutError, ValueError) as error:
        raise ValueError(
            f"address must be that of a running Dask scheduler, got {address!r} ({error})"
        ) from None
    store = records.Store(task.folder)
    with client:
        futures = {client.submit(task, cell, name, pure=False): (cell, name) for cell, name in cells}
        ended = as_completed(futures)
        try:
            while futures:
                _wait_for_one(client, ended, address)
                future = next(ended)
                cell, name = futures.pop(future)
                try:
                    if future.status not in ("finished", "error"):
                        raise CancelledError
                    yield future.result(timeout=GATHER_SECONDS)
                except KilledWorker:
                    died = f"its worker died {RETRIES + 2} times"
                    yield Outcome(cell, name, "failed", error=died, deaths=RETRIES + 2)
                except (TimeoutError, CancelledError):  # the worker died with the answer in its memory
                    record = task.finished(store, cell)
                    if record is not None:
                        yield Outcome(cell, name, "ran", record, deaths=1)
                    else:
                        again = client.submit(task, cell, name, pure=False)
                        futures[again] = (cell, name)
                        ended.add(again)
                except Exception as error:  # e.g. a worker that cannot be unpickled there
                    yield Outcome(cell, name, "failed", error=one_line(error))
        finally:
            client.cancel(list(futures))


def _wait_for_one(client: Client, ended: as_completed, address: str) -> None:
    """Until a cell has ended; a cluster without scheduler, or that stays without workers, ends none."""
    alone_since = None
    why = ""
    while not why and not ended.has_ready():
        time.sleep(POLL)
        if client.scheduler_info(n_workers=1).get("workers"):
            alone_since = None
        elif alone_since is None:
            alone_since = time.monotonic()
        elif time.monotonic() - alone_since > WORKERLESS_SECONDS:
            why = f"has had no worker for {WORKERLESS_SECONDS:g} s"
    if client.status != "running":
        why = "has lost its scheduler"
    if why:
        raise checks.RunFailed(
            f"the Dask cluster at {address} {why}; finished records are kept: start it and run again"
        )
