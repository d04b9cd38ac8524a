"""`viewspan train` and `viewspan probe` from folders of pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from viewspan import records
from viewspan.cli.app import main

ENCODERS = """
import os, signal
from torch import nn

def tiny(channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size[0] * size[1], 16), nn.Tanh(), nn.Linear(16, 8))

class Terminated(nn.Module):
    calls = 0
    def __init__(self, channels, size):
        super().__init__()
        self.net = tiny(channels, size)
    def forward(self, x):
        Terminated.calls += 1
        if Terminated.calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.net(x)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Class folders train/ and test/, whose classes differ in colour, and a module of encoders."""
    rng = np.random.default_rng(0)
    for split, per_class in (("train", 10), ("test", 5)):
        for channel, name in enumerate(("blue", "green", "red")[:2]):
            path = tmp_path / split / name
            path.mkdir(parents=True)
            for i in range(per_class):
                pixels = rng.integers(0, 120, (8, 8, 3), dtype=np.uint8)
                pixels[:, :, channel] += 120
                Image.fromarray(pixels).save(path / f"{i}.png")
    (tmp_path / "encoders_of_test.py").write_text(ENCODERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


TRAIN = (
    "train",
    "train",
    "--encoder",
    "encoders_of_test:tiny",
    "--views",
    "crop",
    "--epochs",
    "2",
    "--out",
    "run",
)


def test_train_then_probe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *TRAIN, "--batch-size", "8", "--json")
    assert code == 0, err
    trained = json.loads(out)
    assert trained["steps"] == 6
    assert {"run", "loss", "images_per_second", "no_signal", "record"} <= set(trained)
    assert "images/s" in err
    assert "left" in err
    assert records.read(trained["record"]).settings["encoder"] == "encoders_of_test:tiny"
    again = json.loads(run(capsys, *TRAIN, "--batch-size", "8", "--json")[1])
    assert again["reused"]
    assert again["loss"] == trained["loss"]

    code, out, err = run(capsys, "probe", "run", "train", "--test", "test", "--k", "5", "--json")
    assert code == 0, err
    probed = json.loads(out)
    assert (probed["n_train"], probed["n_test"], probed["k"], probed["overlap"]) == (20, 10, 5, 0)
    done = [line.partition(":")[0] for line in err.splitlines() if "linear probe" in line]
    assert done == ["trained", "untrained", "pixels"]
    assert probed["pixels_accuracy"] == 1.0
    for key in ("probe_accuracy", "knn_accuracy", "untrained_accuracy", "gain", "gain_interval"):
        assert key in probed
    code, out, _ = run(capsys, "probe", "run", ".", "--k", "5", "--limit", "16")
    assert code == 0
    assert "untrained" in out
    assert "pixels" in out
    assert "16 training and 10 test images" in out

    code, out, err = run(capsys, "report", "run", "-o", "page.html")
    assert (code, err) == (0, "")
    assert out == "Report: page.html (3 runs)\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "1"), "limit must be at least 2"),
        (("--encoder", "resnet19"), "encoder must be one of"),
        (("--encoder", "encoders_of_test:none"), "has no none"),
        (("--base-views", "4"), "base_views applies to loss corrected only"),
        (("--negatives", "4"), "negatives applies to loss same-anchor only"),
        (("--loss", "corrected", "--pairs", "clean-view"), "does not apply to loss corrected"),
        (("--temperature", "0"), "temperature must be"),
        (("--epochs", "0"), "epochs must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    options = dict(zip(TRAIN[2::2], TRAIN[3::2]))
    options.update(zip(arguments[::2], arguments[1::2]))
    code, out, err = run(capsys, *TRAIN[:2], *(x for pair in options.items() for x in pair))
    assert code == 2
    assert out == ""
    assert message in err.splitlines()[-1]
    assert not (folder / "run").exists()


def test_terminated_runs_exit_143_and_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "train",
        "train",
        "--encoder",
        "encoders_of_test:Terminated",
        "--views",
        "crop",
        "--epochs",
        "2",
    ]
    command += ["--batch-size", "8", "--out", "run"]
    code, _, err = run(capsys, *command)
    assert code == 143
    assert "--resume" in err
    assert not list((folder / "run").glob("train-*.json"))
    code, out, err = run(capsys, *command, "--resume", "--json")
    assert code == 0, err
    assert json.loads(out)["steps"] == 6


def test_a_flat_folder_trains_but_has_no_labels_to_probe(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "flat").mkdir()
    for i, path in enumerate(sorted((folder / "train").rglob("*.png"))[:12]):
        path.rename(folder / "flat" / f"{i}.png")
    arguments = ["train", "flat", *TRAIN[2:]]
    code, out, err = run(
        capsys, *arguments, "--limit", "9", "--loss", "corrected", "--base-views", "2", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["n_train"] == 9
    for more in (["--test", "test"], []):
        code, _, err = run(capsys, "probe", "run", "flat", *more)
        assert code == 2
        assert "no labels" in err
    code, _, err = run(capsys, "probe", "run", "test")
    assert code == 2
    assert "test must be given" in err


@pytest.mark.filterwarnings("ignore:the set is scored on itself")
def test_a_probe_of_arrays_needs_a_test_set_and_sees_changed_labels(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, *TRAIN)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8)
    found = []
    for labels in (np.arange(12) % 2, np.arange(12) // 6):
        np.savez(folder / "own.npz", x=pixels, y=labels)
        code, _, err = run(capsys, "probe", "run", "own.npz", "--k", "3")
        assert code == 2
        assert "test must be given (--test DATA): own.npz has no parts" in err
        code, out, err = run(capsys, "probe", "run", "own.npz", "--test", "own.npz", "--k", "3")
        assert code == 0
        assert "reused" not in err
        assert "12 in both; scored on itself" in out
        found.append(out)
    code, out, err = run(capsys, "probe", "run", "own.npz", "--test", "own.npz", "--k", "3")
    assert "reused" in err
    assert out == found[1] != found[0]
    code, _, err = run(capsys, "probe", "run", "own.npz", "--test", "own.npz", "--published-epochs", "3")
    assert code == 2
    assert "published_epochs applies to protocol published only" in err


def test_what_the_users_code_prints_leaves_one_json_document(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "loud_views_of_test.py").write_text(
        "print('imported')\n\ndef loud(image):\n    print('viewed')\n    return image\n"
    )
    options = [x if x != "crop" else "loud_views_of_test:loud" for x in TRAIN]
    code, out, err = run(capsys, *options, "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 2
    assert "imported" in err
    assert "viewed" in err
    code, out, err = run(capsys, "lint", "train", "--views", "loud_views_of_test:loud", "--json")
    assert code == 0
    assert "lint" in json.loads(out)
    assert "viewed" in err


def test_code_that_ends_the_program_is_no_finished_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "leaving_views_of_test.py").write_text(
        "import sys\ncalls = 0\n\ndef leave(image):\n    global calls\n    calls += 1\n"
        "    if calls > 30:\n        sys.exit(0)\n    return image\n"
    )
    options = [x if x != "crop" else "leaving_views_of_test:leave" for x in TRAIN]
    code, out, err = run(capsys, *options)
    assert (code, out) == (2, "")
    assert "ended the program (exit code 0) (leaving_views_of_test.py, line 8)" in err.splitlines()[-1]
    assert not list((folder / "run").glob("train-*.json"))


def test_a_test_class_that_was_never_seen_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, *TRAIN)
    (folder / "test" / "blue").rename(folder / "test" / "violet")
    code, _, err = run(capsys, "probe", "run", "train", "--test", "test")
    assert code == 2
    assert "violet" in err
    code, _, err = run(capsys, "probe", "nowhere", "train", "--test", "test")
    assert code == 2
    assert "written by train" in err
