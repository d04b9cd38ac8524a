"""`viewspan reproduce`: what it prints, what it reuses, and how it refuses."""

import json
import signal
import subprocess
import sys
import time

import pytest

from viewspan.cli import main
from viewspan.experiments import table1


def call(capsys, *arguments):
    """Exit code, stdout and stderr of the command."""
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


@pytest.fixture
def short(monkeypatch):
    """Table 1 with runs of a few steps."""
    plain = table1.schedule

    def schedule(*cell):
        return {**plain(*cell), "steps": 3, "batch_size": 100}

    monkeypatch.setattr(table1, "schedule", schedule)


def test_json_then_reuse(short, capsys, tmp_path):
    arguments = ("reproduce", "table1", "--process", "identity", "--jobs", 1, "--out", tmp_path, "--json")
    code, out, err = call(capsys, *arguments)
    assert code == 0
    document = json.loads(out)
    assert len(document["cells"]) == 4
    cell = document["cells"][0]
    assert {
        "process",
        "pairs",
        "loss",
        "encoder",
        "convention",
        "variant",
        "seeds",
        "m",
        "r2",
        "mcc",
        "ape",
    } <= cell.keys()
    assert {"loss_minus_log_m", "above_floor", "published", "predicted", "diagnosis"} <= cell.keys()
    assert "ran 4" in err
    code, again, err = call(capsys, *arguments)
    assert code == 0
    assert "reused 4 of 4" in err
    assert json.loads(again)["cells"] == document["cells"]
    code, _, err = call(capsys, *arguments, "--shard", "4/4", "--fresh")
    assert "reused 0 of 1, ran 1" in err


def test_the_printed_table_shows_published_beside_measured(short, capsys, tmp_path):
    code, out, _ = call(capsys, "reproduce", "--process", "linear", "--jobs", 1, "--out", tmp_path)
    assert code == 0
    assert "(0.650)" in out  # Table 1, corrected
    assert "[0.617]" in out  # great circles
    assert "inverse − MLP (violated), linear" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "tabel1"], "tabel1"),
        (["reproduce", "--process", "spirl"], "process must be one of identity, invertible_mlp, linear, patches, spiral, got 'spirl'"),
        (["reproduce", "--profile", "fast"], "profile must be one of paper, quick, got 'fast'"),
        (["reproduce", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["reproduce", "--convention", "eq6"], "convention"),
        (["reproduce", "--shard", "3/2"], "shard"),
        (["reproduce", "--shard", ""], "shard must be i/n with 1 <= i <= n, got ''"),
        (["reproduce", "--process", ""], "got ''"),
        (["reproduce", "--jobs", "-1"], "jobs"),
        (["reproduce", "--jobs", "0"], "jobs"),
        (["reproduce", "--device", "tpu"], "device must be one of auto, cpu, cuda, mps, got 'tpu'"),
        (["reproduce", "--threads", "0"], "threads"),
        (["reproduce", "--data", "somewhere"], "--data has no meaning for 'table1'"),
        (["reproduce", "--backend", "dask"], "address"),
        (["reproduce", "--sedes", "1"], "--sedes"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_is_a_file_is_refused(capsys, tmp_path):
    (tmp_path / "taken").write_text("not a folder")
    code, _, err = call(capsys, "reproduce", "--out", tmp_path / "taken")
    assert code == 2
    assert "taken" in err


@pytest.mark.slow
def test_interrupt_keeps_finished_cells_and_a_second_run_goes_on(tmp_path):
    command = [
        sys.executable,
        "-m",
        "viewspan",
        "reproduce",
        "--process",
        "identity",
        "--jobs",
        "1",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell has it ignored
    )
    deadline = time.time() + 300
    while not list(tmp_path.glob("table1-*.json")) and time.time() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    done = len(list(tmp_path.glob("*.json")))
    assert 1 <= done < 4
    assert not list(tmp_path.glob("*.claim"))
    again = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert f"reused {done} of 4, ran {4 - done}" in again.stderr
