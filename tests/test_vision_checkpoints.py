"""Checkpoints: what is read back, damage, and a kill in the middle of a write."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from viewspan.checks import RunFailed, ViewspanWarning
from viewspan.vision import checkpoints


def test_what_was_written_is_read_back_and_only_the_newest_is_kept(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path) is None
    for step in (1, 2):
        checkpoints.write(
            tmp_path, step, {"w": torch.full((3,), float(step))}, {"optimiser": {"lr": 0.1}, "step": step}
        )
    found = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.step == 2
    assert torch.equal(found.weights["w"], torch.full((3,), 2.0))
    assert found.resume == {"optimiser": {"lr": 0.1}, "step": 2}
    assert {p.name for p in tmp_path.iterdir()} == {
        "step-00000002.json", "step-00000002.safetensors", "step-00000002.resume"
    }  # fmt: skip


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    others = ["step-by-step.md", "step-1.json", "step-00000001.png", "step-00000001-notes.json"]
    for name in others:
        (tmp_path / name).write_text("mine")
    assert checkpoints.newest(tmp_path) is None
    checkpoints.write(tmp_path, 2, {"w": torch.ones(2)}, {})
    checkpoints.write(tmp_path, 3, {"w": torch.ones(2)}, {})
    found = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.step == 3
    assert [name for name in others if (tmp_path / name).read_text() != "mine"] == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_never_written(tmp_path: Path, value: float) -> None:
    checkpoints.write(tmp_path, 1, {"w": torch.ones(2)}, {})
    with pytest.raises(RunFailed, match="w holds"):
        checkpoints.write(tmp_path, 2, {"w": torch.tensor([1.0, value])}, {})
    with pytest.raises(RunFailed, match="moment"):
        checkpoints.write(tmp_path, 2, {"w": torch.ones(2)}, {"state": {0: {"moment": torch.tensor(value)}}})
    found = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.step == 1


def test_a_damaged_checkpoint_is_refused_and_an_older_whole_one_taken(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 1, {"w": torch.ones(2)}, {})
    saved = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    checkpoints.write(tmp_path, 2, {"w": torch.zeros(2)}, {})
    damaged = tmp_path / "step-00000002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"no checkpoint in .*step-00000002\.json: checksum.*empty it"):
        checkpoints.newest(tmp_path)
    for name, data in saved.items():
        (tmp_path / name).write_bytes(data)
    with pytest.warns(ViewspanWarning, match="checksum"):
        found = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.step == 1


def test_infinities_are_kept_where_they_are_meant_and_nan_nowhere(tmp_path: Path) -> None:
    mask = torch.tensor([0.0, -torch.inf])
    checkpoints.write(tmp_path, 1, {"mask": mask}, {}, constant=["mask"])
    found = checkpoints.newest(tmp_path)
    assert found is not None
    assert torch.equal(found.weights["mask"], mask)
    with pytest.raises(RunFailed, match="mask holds"):
        checkpoints.write(tmp_path, 2, {"mask": mask * 0}, {}, constant=["mask"])


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.safetensors cannot be read \(No such file"):
        checkpoints.read_weights(tmp_path / "none.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"cut\.safetensors is damaged"):
        checkpoints.read_weights(tmp_path / "cut.safetensors")


def test_a_run_under_way_can_be_read_at_any_moment(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 1, {"w": torch.ones(2)}, {})
    over = threading.Event()

    def write() -> None:
        for step in range(2, 120):
            checkpoints.write(tmp_path, step, {"w": torch.ones(2)}, {})
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not over.is_set():
        assert checkpoints.newest(tmp_path) is not None
        reads += 1
    writer.join()
    assert reads > 5


def write_for_ever(folder: Path, step: int, written: Any) -> None:
    """Write one checkpoint after another, saying which are done."""
    while True:
        weights = {"w": torch.full((400_000,), float(step))}
        checkpoints.write(folder, step, weights, {"moment": weights["w"] * 2})
        written.send(step)
        step += 1


def test_a_kill_during_a_write_never_loses_the_last_good_checkpoint(tmp_path: Path) -> None:
    """The writer does nothing but write, so a kill at any moment hits a write."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["viewspan.vision.checkpoints"])
    step = 0
    for round_ in range(4):
        said, written = context.Pipe(duplex=False)
        writer = context.Process(target=write_for_ever, args=(tmp_path, step + 1, written))
        writer.start()
        written.close()
        known = said.recv()
        time.sleep(0.011 * round_)
        writer.kill()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        with contextlib.suppress(EOFError):
            while True:
                known = said.recv()
        found = checkpoints.newest(tmp_path)
        assert found is not None
        assert found.step >= known
        assert torch.equal(found.weights["w"], torch.full((400_000,), float(found.step)))
        assert torch.equal(found.resume["moment"], 2 * found.weights["w"])
        step = found.step
    checkpoints.write(tmp_path, step + 1, {"w": torch.ones(2)}, {})
    assert len(list(tmp_path.iterdir())) == 3, "what the killed writers left behind is cleared away"
