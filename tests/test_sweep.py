"""Sweeps with real processes: nothing lost, nothing twice, whatever runs them and whatever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from viewspan import checks, records, runtime, sweeps
from viewspan.sweeps import engines

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import sweep_workers as workers  # noqa: E402


@pytest.fixture(autouse=True)
def _processes_find_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    monkeypatch.setenv("SWEEP_LOG", str(tmp_path / "log"))


def log(folder: Path) -> list[int]:
    path = folder / "log"
    return sorted(map(int, path.read_text().split())) if path.exists() else []


def content(folder: Path) -> list[tuple[dict, dict, dict, dict]]:
    """Settings, results, histories and arrays of a folder: all but timings."""
    found, skipped = records.read_all([folder])
    assert not skipped
    assert not list(folder.glob("*.claim"))
    assert not list(folder.glob(".*.part"))
    return [
        (r.settings, r.result, r.history, {k: v.tolist() for k, v in records.read_arrays(path, r).items()})
        for path, r in found
    ]


def start(folder: Path, jobs: int, count: int, seconds: float, parties: int = 1) -> subprocess.Popen[str]:
    arguments = [
        sys.executable,
        str(HERE / "sweep_workers.py"),
        str(folder),
        str(jobs),
        str(count),
        str(seconds),
        str(parties),
    ]
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell has it ignored
    )


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_loky_shards_and_dask_write_the_same_records(tmp_path: Path) -> None:
    from dask.distributed import LocalCluster

    cells = workers.cells(40)
    for shard in (None, (1, 2), (2, 2)):
        folder = "serial" if shard is None else "shards"
        sweeps.run(cells, workers.walk, records.Store(tmp_path / folder), shard=shard)
    ended: list[str] = []
    store = records.Store(tmp_path / "loky")
    result = sweeps.run(
        cells, workers.walk, store, jobs=2, on_done=lambda outcome: ended.append(outcome.name)
    )
    assert (result.ran, result.reused, result.failed) == (40, 0, [])
    assert sorted(ended) == sorted(f"walk seed={seed}" for seed in range(40))
    assert [record.settings["seed"] for record in result.records] == list(range(40))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        result = sweeps.run(
            cells, workers.walk, records.Store(tmp_path / "dask"), backend="dask", address=address
        )
        assert (result.ran, len(result.records)) == (40, 40)
    serial = content(tmp_path / "serial")
    assert len(serial) == 40
    for folder in ("loky", "shards", "dask"):
        assert content(tmp_path / folder) == serial
    assert log(tmp_path) == sorted(list(range(40)) * 4)


def test_what_is_finished_is_reused_unless_fresh(tmp_path: Path) -> None:
    store = records.Store(tmp_path / "runs")
    cells = workers.cells(3)
    assert sweeps.run(cells[:2], workers.walk, store).ran == 2
    result = sweeps.run([*cells, cells[0]], workers.walk, store)  # the last is asked for twice
    assert (result.ran, result.reused, len(result.records)) == (1, 3, 4)
    assert log(tmp_path) == [0, 1, 2]
    assert sweeps.run(cells, workers.walk, store, fresh=True).ran == 3
    assert log(tmp_path) == [0, 0, 1, 1, 2, 2]
    record = store.find(*cells[0])
    assert record is not None
    assert record.environment["source"] == records.source_digest()
    assert record.finished > 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_fails_is_named_and_stops_no_other(tmp_path: Path, jobs: int) -> None:
    store = records.Store(tmp_path / "runs")
    result = sweeps.run(workers.cells(5), workers.sometimes_fails, store, jobs=jobs)
    failed = sorted(result.failed, key=lambda outcome: outcome.name)
    assert [outcome.name for outcome in failed] == ["walk seed=1", "walk seed=4"]
    assert failed[0].error is not None
    assert failed[0].error.startswith("ValueError: seed 1 does not converge (sweep_workers.py:")
    assert [record.settings["seed"] for record in result.records] == [0, 2, 3]
    assert len(content(tmp_path / "runs")) == 3


def test_a_killed_worker_is_replaced_and_its_cell_run_again(tmp_path: Path) -> None:
    store = records.Store(tmp_path / "runs")
    seeds = [0, 1, 2, 3, 99, 4, 5]
    cells = [sweeps.Cell("walk", {"seed": seed, "steps": 50}) for seed in seeds]
    result = sweeps.run(cells, workers.dies_once, store, jobs=2)
    assert [record.settings["seed"] for record in result.records] == [0, 1, 2, 3, 4, 5]
    assert sorted(result.died) == ["walk seed=3", "walk seed=99"]
    assert [outcome.name for outcome in result.failed] == ["walk seed=99"]
    assert "worker died 3 times" in str(result.failed[0].error)
    assert log(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert len(content(tmp_path / "runs")) == 6


def test_two_sweeps_on_one_folder_run_each_cell_once(tmp_path: Path) -> None:
    both = [start(tmp_path / "runs", jobs=jobs, count=12, seconds=0.1, parties=2) for jobs in (1, 2)]
    ended = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    counts = [json.loads(out) for out, _ in ended]
    assert sum(count["ran"] for count in counts) == 12
    assert [count["records"] for count in counts] == [12, 12]
    assert log(tmp_path) == list(range(12))
    assert len(content(tmp_path / "runs")) == 12


@pytest.mark.parametrize(("jobs", "sign"), [(1, signal.SIGINT), (2, signal.SIGINT), (1, signal.SIGKILL)])
def test_an_interrupted_sweep_keeps_what_had_finished(
    tmp_path: Path, jobs: int, sign: signal.Signals
) -> None:
    runs = tmp_path / "runs"
    process = start(runs, jobs=jobs, count=6, seconds=0.4)
    until(lambda: len(list(runs.glob("*.json"))) >= 2 and list(runs.glob("*.claim")))
    process.send_signal(sign)
    _, errors = process.communicate(timeout=60)
    if sign == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
        assert not list(runs.glob("*.claim"))
    kept = len(list(runs.glob("*.json")))
    assert 2 <= kept < 6
    store = records.Store(runs)
    result = sweeps.run(workers.cells(6, seconds=0.4), workers.walk, store)  # a dead claim is no hindrance
    assert (result.ran, result.reused, result.waiting) == (6 - kept, kept, 0)
    assert log(tmp_path) == list(range(6))
    assert len(content(runs)) == 6


@pytest.mark.slow
def test_workers_end_with_a_killed_sweep_and_their_cells_are_run_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    process = start(runs, jobs=2, count=6, seconds=2.0)
    until(lambda: len(list(runs.glob("*.claim"))) == 2)
    process.kill()
    process.communicate(timeout=60)
    result = sweeps.run(workers.cells(6, seconds=2.0), workers.walk, records.Store(runs))
    assert (len(result.records), result.failed) == (6, [])
    assert len(content(runs)) == 6


@pytest.mark.slow
def test_dask_runs_a_dead_workers_cell_on_another(tmp_path: Path) -> None:
    from dask.distributed import LocalCluster

    store = records.Store(tmp_path / "runs")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        result = sweeps.run(workers.cells(6), workers.dies_once, store, backend="dask", address=address)
    assert result.failed == []
    assert [record.settings["seed"] for record in result.records] == [0, 1, 2, 3, 4, 5]
    assert log(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert len(content(tmp_path / "runs")) == 6


def test_a_dask_cluster_without_workers_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask.distributed import LocalCluster

    monkeypatch.setattr(engines, "WORKERLESS_SECONDS", 0.5)
    store = records.Store(tmp_path / "runs")
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        pytest.raises(checks.RunFailed, match=r"has had no worker for .* s; finished records are kept"),
    ):
        sweeps.run(workers.cells(2), workers.walk, store, backend="dask", address=cluster.scheduler_address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("torch", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_cores_are_divided_among_the_workers(tmp_path: Path, torch: bool) -> None:
    cells = [sweeps.Cell("threads", {"seed": seed, "torch": torch}) for seed in range(2)]
    found = sweeps.run(cells, workers.threads, records.Store(tmp_path), jobs=2).records
    share = max(1, runtime.cores() // 2)
    for record in found:
        assert record.result["omp"] == str(share)
        assert set(record.result["pools"]) <= {share}
        assert record.result.get("torch", share) == share
        assert record.result["pid"] != os.getpid()
        assert record.settings.keys() == {"seed", "torch"}


def test_a_worker_that_answers_for_another_cell_is_refused(tmp_path: Path) -> None:
    store = records.Store(tmp_path)
    wrong = records.Record(experiment="walk", settings={"seed": 7}, result={})
    result = sweeps.run(workers.cells(1), lambda settings: (wrong, None), store)
    assert "must return the record of its cell" in str(result.failed[0].error)
    assert records.read_all([tmp_path]) == ([], [])


def test_nan_in_a_result_becomes_null(tmp_path: Path) -> None:
    def undefined(settings: dict) -> tuple[records.Record, None]:
        return records.Record(experiment="walk", settings=settings, result={"r2": np.float64("nan")}), None

    (record,) = sweeps.run(workers.cells(1), undefined, records.Store(tmp_path)).records
    assert record.result == {"r2": None}


def test_options_that_do_not_fit_are_named(tmp_path: Path) -> None:
    store = records.Store(tmp_path)
    for options, message in [
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"shard": (0, 2)}, "shard i must be in 1..2, got 0"),
        ({"shard": (3, 2)}, "shard i must be in 1..2, got 3"),
        ({"backend": "threads"}, "backend must be one of dask, loky, got 'threads'"),
        ({"backend": "dask"}, "address must be given with backend 'dask'"),
        ({"address": "tcp://localhost:1"}, "address must be given with backend 'dask'"),
        ({"backend": "dask", "address": "tcp://localhost:1", "jobs": 2}, "jobs must be left out"),
        ({"backend": "dask", "address": "nonsense://"}, "address must be that of a running Dask scheduler"),
    ]:
        with pytest.raises(ValueError, match=message.replace("(", r"\(")):
            sweeps.run(workers.cells(2), workers.walk, store, **options)
    for text in ("0/2", "3/2", "1", "a/b", "-1/2", "1/2/3"):
        with pytest.raises(ValueError, match="shard must be i/n"):
            sweeps.parse_shard(text)
