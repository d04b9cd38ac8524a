"""Records are whole or absent, found by their settings, and unreadable files are named."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from viewspan import records
from viewspan.records import Record, RecordError, Store, claims


def record(seed: int = 0, **result: object) -> Record:
    return Record(
        experiment="table1",
        settings={"process": "spiral", "seed": seed},
        result=result or {"r2": 0.5},
        history={"step": [0, 1], "loss": [1.0, None]},
        environment=records.environment(threads=1),
    )


def test_what_is_written_is_read_and_found(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    path = store.write(record(), {"z": np.eye(3), "h": np.arange(3)})
    back = records.read(path)
    assert back.model_dump(exclude={"sidecar"}) == record().model_dump(exclude={"sidecar"})
    arrays = records.read_arrays(path, back)
    assert np.array_equal(arrays["z"], np.eye(3))
    assert arrays["h"].dtype == np.arange(3).dtype
    found = store.find("table1", {"seed": 0, "process": "spiral"})  # whatever the order of the keys
    assert found == back
    assert store.find("table1", {"seed": 1, "process": "spiral"}) is None
    assert store.find("rho", {"seed": 0, "process": "spiral"}) is None


def test_a_run_of_another_program_is_not_reused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = record()
    old.environment["source"] = "0" * 16
    store.write(old)
    assert store.find("table1", old.settings) is None


def test_a_new_record_replaces_the_old_arrays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(record(), {"z": np.zeros(3)})
    old = records.read(path)
    store.write(record(r2=1.0), {"z": np.ones(3)})
    assert np.array_equal(records.read_arrays(path, records.read(path))["z"], np.ones(3))
    with pytest.raises(RecordError, match="sidecar is missing"):
        records.read_arrays(path, old)
    store.write(record(r2=1.0))
    assert records.read_arrays(path, records.read(path)) == {}
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]


def test_damaged_arrays_are_named(tmp_path: Path) -> None:
    path = Store(tmp_path).write(record(), {"z": np.zeros(3)})
    side = next(tmp_path.glob("*.npz"))
    side.write_bytes(side.read_bytes()[:-5])
    with pytest.raises(RecordError, match=f"{side.name}: checksum differs"):
        records.read_arrays(path, records.read(path))


def test_unreadable_files_are_named_with_the_reason_and_skipped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good = store.write(record())
    whole = good.read_bytes()
    contents = {
        "truncated": (whole[: len(whole) // 2], "not JSON (truncated?)"),
        "empty": (b"", "not JSON (empty)"),
        "binary": (b"\x89PNG\r\n\xff\xfe", "not JSON"),
        "deep": (b"[" * 100_000, "not JSON"),
        "list": (b"[1, 2]", "not a viewspan record"),
        "foreign": (b'{"name": "package", "version": 3}', "not a viewspan record"),
        "newer": (whole.replace(b'"schema_version": 1', b'"schema_version": 99'), "schema 99 is newer"),
        "version": (whole.replace(b'"schema_version": 1', b'"schema_version": true'), "is not a version"),
        "typed": (whole.replace(b'"result": {', b'"result": 3, "x": {'), "result: Input should be"),
    }
    for name, (data, _) in contents.items():
        (tmp_path / f"{name}.json").write_bytes(data)
    (tmp_path / "folder.json").mkdir()
    found, skipped = records.read_all([tmp_path, good])
    assert [path for path, _ in found] == [good]
    reasons = {path.stem: reason for path, reason in skipped}
    assert reasons.keys() == {*contents, "folder"}
    for name, (_, reason) in contents.items():
        assert reason in reasons[name], name
        assert f"{name}.json" in reasons[name]
    for name in contents:
        (tmp_path / f"{name}.json").replace(good)  # damage where a record belongs: run it again
        assert store.find("table1", record().settings) is None


def test_folders_are_read_with_the_folders_inside(tmp_path: Path) -> None:
    Store(tmp_path / "a").write(record(0))
    Store(tmp_path / "a" / "b").write(record(1))
    Store(tmp_path / ".cache").write(record(2))
    found, skipped = records.read_all([tmp_path, tmp_path / "a"])
    assert [r.settings["seed"] for _, r in found] == [0, 1] or [r.settings["seed"] for _, r in found] == [
        1,
        0,
    ]
    assert skipped == []


def test_ten_thousand_records_are_read(tmp_path: Path) -> None:
    text = json.dumps(records.jsonable(record().model_dump()))
    for seed in range(10_000):
        (tmp_path / f"table1-{seed}.json").write_text(text.replace('"seed": 0', f'"seed": {seed}'))
    found, skipped = records.read_all([tmp_path])
    assert len({r.settings["seed"] for _, r in found}) == 10_000
    assert not skipped


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.write(record(), {"z": np.zeros(3)})
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_only_looked_into_leaves_no_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    assert store.find("table1", {}) is None
    assert not store.claimed("table1", {})
    assert list(tmp_path.iterdir()) == []
    with store.claim("table1", {}) as claim:
        assert claim is not None
    assert store.folder.is_dir()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/viewspan")):
        with pytest.raises(ValueError, match="out must be a folder that can be written"):
            Store(folder)


def test_a_record_name_stays_inside_the_folder(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "", ".hidden"):
        with pytest.raises(ValueError, match="experiment must be made of"):
            Store(tmp_path).path(name, {})


def test_one_claim_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.claim("table1", {}) as first:
        assert first is not None
        assert store.claimed("table1", {})
        with Store(tmp_path).claim("table1", {}) as second:
            assert second is None
        with store.claim("table1", {"seed": 1}) as other:
            assert other is not None
        assert first.mine()
    assert not store.claimed("table1", {})
    with store.claim("table1", {}) as again:
        assert again is not None
    assert not list(tmp_path.glob("*.claim"))


def test_an_interrupted_process_gives_up_its_own_claim_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.path("table1", {}).with_suffix(".claim")
    assert claims.Claim.take(path) is not None
    store.abandon("table1", {})
    assert not path.exists()
    store.abandon("table1", {})
    path.write_text(json.dumps({"host": "elsewhere", "pid": os.getpid(), "token": "x"}))
    store.abandon("table1", {})
    assert path.exists()


def test_a_live_claim_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIM_EXPIRES", 0.4)
    store = Store(tmp_path)
    with store.claim("table1", {}):
        time.sleep(1.0)
        assert store.claimed("table1", {})


def test_a_claim_no_longer_renewed_is_taken_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.path("table1", {}).with_suffix(".claim")
    with store.claim("table1", {}) as suspended:
        assert suspended is not None
        old = time.time() - 2 * claims.CLAIM_EXPIRES
        os.utime(path, (old, old))
        with store.claim("table1", {}) as heir:
            assert heir is not None
            assert heir.mine()
            assert not suspended.mine()
        assert not path.exists()


@pytest.mark.parametrize(
    ("owner", "held"),
    [
        ({"pid": 2**22 + 1, "born": "1"}, False),  # no such process on this host
        ({"pid": 1, "born": "another life"}, False),  # its number was given to another
        ({"pid": 2**22 + 1, "host": "elsewhere"}, True),  # cannot be known from here
        (None, True),  # just created, not yet filled in
    ],
)
def test_a_dead_process_holds_no_claim(tmp_path: Path, owner: dict | None, held: bool) -> None:
    store = Store(tmp_path)
    path = store.path("table1", {}).with_suffix(".claim")
    path.write_text("" if owner is None else json.dumps({"host": claims.host(), "token": "x", **owner}))
    assert store.claimed("table1", {}) is held
    with store.claim("table1", {}) as claim:
        assert (claim is None) is held


def test_jsonable_has_no_infinity_and_no_foreign_types() -> None:
    value = {"a": (np.float32(0.5), float("inf")), 1: np.array([1, 2]), "n": np.float64("nan"), "t": True}
    assert records.jsonable(value) == {"a": [0.5, None], "1": [1, 2], "n": None, "t": True}
    with pytest.raises(TypeError, match="not a JSON value"):
        records.jsonable({"x": object()})
