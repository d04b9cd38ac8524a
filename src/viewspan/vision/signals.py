"""SIGINT and SIGTERM end a run after the step under way, with a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

CAUGHT = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run stopped by a signal after its checkpoint was written.

    Attributes:
        signum: 2 (SIGINT) or 15 (SIGTERM).
        step: optimiser steps taken.
    """

    def __init__(self, signum: int, step: int, folder: object) -> None:
        super().__init__(
            f"stopped by {signal.Signals(signum).name} after step {step}; checkpoint in {folder}"
        )
        self.signum, self.step = signum, step


class Pending:
    """The signal that came, 0 if none."""

    signum = 0
    count = 0

    def take(self, signum: int, frame: FrameType | None) -> None:
        """Remember the signal; the third one (someone is in a hurry) acts at once."""
        self.signum = self.signum or signum
        self.count += 1
        if self.count >= 3:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)


@contextlib.contextmanager
def pending() -> Iterator[Pending]:
    """Collect signals inside the block (in the main thread; elsewhere Python lets none be caught)."""
    state = Pending()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return
    before = {s: signal.signal(s, state.take) for s in CAUGHT}
    try:
        yield state
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


@contextlib.contextmanager
def unwatched() -> Iterator[Pending]:
    """No signal is caught."""
    yield Pending()
