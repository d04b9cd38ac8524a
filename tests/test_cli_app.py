"""The frame of the command line: how values are read, and how errors and warnings are told."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from viewspan import checks, records
from viewspan.cli import app


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        app.main(arguments)
    return int(stopped.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("option", ["--batch-size", "--seed", "--limit"])
def test_a_fraction_is_no_integer(capsys: pytest.CaptureFixture[str], option: str) -> None:
    needed = ("--encoder", "mlp", "--views", "crop", "--out", "run", "--epochs", "1")
    code, err = run(capsys, "train", "nowhere", *needed, option, "1.5")
    assert code == 2
    assert f"Invalid value for {option}: must be an integer, got 1.5" in err


def test_a_warning_is_one_line_without_our_source() -> None:
    text = app.told(checks.ViewspanWarning("no\nsignal"), checks.ViewspanWarning, "/a/b.py", 3)
    assert text == "viewspan: warning: no signal\n"
    assert "(UserWarning, /a/b.py:3)" in app.told(UserWarning("old"), UserWarning, "/a/b.py", 3)


def test_warnings_look_as_before_after_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    before = warnings.formatwarning
    run(capsys, "train", "nowhere")
    assert warnings.formatwarning is before


def test_a_file_that_cannot_be_written_is_the_one_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    records.Store(tmp_path).write(records.Record(experiment="train", settings={}, result={}))
    (tmp_path / "file").write_text("")
    page = tmp_path / "file" / "page.html"
    code, err = run(capsys, "report", str(tmp_path), "-o", str(page))
    assert code == 2
    assert err.startswith(f"viewspan: {page}: cannot be written (")
