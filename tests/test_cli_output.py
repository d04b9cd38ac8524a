"""What the commands print under encodings that lack its signs, and where their output cannot be written."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import viewspan
from report_records import everything
from viewspan import records, testing
from viewspan.cli import terminal
from viewspan.experiments import table1

ENCODINGS = {  # what makes Python write so
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
}
ENCODER = """
from torch import nn

def tiny(channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size[0] * size[1], 8))
"""
DRIVER = """
import json, sys
from viewspan.cli import main
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as stopped:
        sys.stdout.write(f"\\nexit {stopped.code}\\n")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything a command may be asked about; one of its names is not ASCII."""
    folder = tmp_path_factory.mktemp("größe")
    testing.write_shapes(folder / "bilder", 24)
    for i, path in enumerate(sorted((folder / "bilder").glob("*.png"))):
        for split in ("train", "test"):
            (folder / split / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            (folder / split / "ab"[i % 2] / path.name).write_bytes(path.read_bytes())
    testing.write_visits(folder / "visits.csv", n_patients=30)
    (folder / "encoders_of_test.py").write_text(ENCODER)
    everything(folder / "records")
    store = records.Store(folder / "reproduced")
    cells = table1.cells("quick", processes=["identity"])
    result = table1.run({**cells[-1].settings, "steps": 3, "batch_size": 100})[0].result
    for cell in cells:
        settings, environment = records.jsonable(cell.settings), records.environment()
        store.write(
            records.Record(experiment="table1", settings=settings, result=result, environment=environment)
        )
    return folder


IMAGES = (
    "bilder",
    "--n-views",
    "4",
    "--n-anchors",
    "12",
    "--support-anchors",
    "0",
    "--operation-anchors",
    "8",
)
COMMANDS = {
    "predict": ["predict", "--convention", "subsphere", "--sweep", "rho"],
    "predict one": ["predict", "--convention", "ambient"],
    "theory": ["theory"],
    "reproduce": ["reproduce", "table1", "--process", "identity", "--jobs", "1", "--out", "reproduced"],
    "audit": ["audit", *IMAGES, "--views", "all", "--out", "ergebnis", "--html", "größe.html"],
    "audit table": ["audit", "visits.csv", "--cluster", "patient", "--require-held", "side"],
    "lint": ["lint", "bilder", "--views", "all"],
    "train": ["train", "train", "--encoder", "encoders_of_test:tiny", "--views", "crop", "--epochs", "1", "--out", "run"],
    "probe": ["probe", "run", "train", "--test", "test", "--k", "3"],
    "report": ["report", "records", "-o", "bericht.html", "--tables", "tables"],
    "help": ["predict", "--help"],
    "refusal": ["audit", "größe-fehlt", "--views", "all"],
}  # fmt: skip


def environment(encoding: str, **more: str) -> dict[str, str]:
    """This process's environment, its output in another encoding."""
    mine = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("LC_", "LANG", "PYTHONIOENCODING", "PYTHONUTF8"))
    }
    return {**mine, **ENCODINGS[encoding], **more}


def diff_of(place: Path) -> list[str]:
    first, second = sorted((place / "records").rglob("table1-*.json"))[:2]
    return ["diff", str(first.relative_to(place)), str(second.relative_to(place))]


def test_every_command_prints_in_ascii(place: Path) -> None:
    check(place, "ascii", [*COMMANDS.values(), diff_of(place)])


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_signs_of_a_code_page_stay(place: Path, encoding: str) -> None:
    check(place, encoding, [COMMANDS[name] for name in ("predict one", "audit", "refusal", "lint")])


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_every_command_prints_in_a_code_page(place: Path, encoding: str) -> None:
    check(place, encoding, [*COMMANDS.values(), diff_of(place)])


def check(place: Path, encoding: str, commands: list[list[str]]) -> None:
    """Run the commands in one process; all but the refusal end well and say what they have to say."""
    asked = [
        [re.sub("^(run|ergebnis)$", f"\\g<0>-{encoding}", word) for word in command] for command in commands
    ]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(asked, ensure_ascii=False)], cwd=place,
        env=environment(encoding), capture_output=True, check=False,
    )  # fmt: skip
    out, err = done.stdout.decode(encoding), done.stderr.decode(encoding)
    assert done.returncode == 0, err
    codes = re.findall(r"^exit (\d+)$", out, re.MULTILINE)
    assert codes == ["2" if command == COMMANDS["refusal"] else "0" for command in commands], out + err
    assert "Traceback" not in err
    assert "lambda*" in out
    if COMMANDS["probe"] in commands:
        assert "trained - untrained" in out
        assert "charset" in (place / "bericht.html").read_text(encoding="utf-8")
    tau = "τ".encode(encoding, "viewspan.spelled").decode(encoding)
    assert f"{tau} = 0.3" in out
    assert "anchors x 4 views" in out or "anchors × 4 views" in out
    assert "charset" in (place / "größe.html").read_text(encoding="utf-8")
    for record in (place / f"ergebnis-{encoding}").glob("*.json"):
        assert json.loads(record.read_text(encoding="utf-8"))["experiment"] == "audit"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_command_alone(place: Path, encoding: str) -> None:
    for name, command in {**COMMANDS, "diff": diff_of(place)}.items():
        done = subprocess.run(
            [sys.executable, "-m", "viewspan", *command, *(["--fresh"] if name == "probe" else [])],
            cwd=place, env=environment(encoding), capture_output=True, check=False,
        )  # fmt: skip
        out, err = done.stdout.decode(encoding), done.stderr.decode(encoding)
        finished = name == "train" and "resume it, or choose another folder" in err
        assert done.returncode == (2 if name == "refusal" or finished else 0), (name, out, err)
        assert out or name == "refusal" or finished
        assert "Traceback" not in err


def test_signs_are_spelled_out() -> None:
    text = "κ ≥ 0, λ* = .73 ± .01, 3 × 4 − 1 · R² … Φ ü ┃━┏ 中 \udcff"
    plain = text.encode("ascii", "viewspan.spelled").decode()
    assert plain == "kappa >= 0, lambda* = .73 +/- .01, 3 x 4 - 1 * R^2 ... Phi u |-+ \\u4e2d \\xff"
    assert (
        text.encode("latin-1", "viewspan.spelled")
        .decode("latin-1")
        .startswith("kappa >= 0, lambda* = .73 ± .01")
    )
    assert "ü".encode("utf-8", "viewspan.spelled").decode() == "ü"


def test_every_sign_that_the_package_prints_has_a_spelling() -> None:
    """Escapes are for names of the user's; what the package says itself is readable."""
    signs: set[str] = set()
    for path in Path(viewspan.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        pages = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        signs |= {s for n in texts if id(n) not in pages for s in n.value if ord(s) > 127}
    assert len(signs) > 20
    assert [s for s in sorted(signs) if terminal.spelled(s).startswith("\\")] == []


def test_columns_stay_aligned_where_signs_grow() -> None:
    from rich.table import Table

    table = Table("λ*", "R²")
    table.add_row("1 ± 2", "3")
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminal.console(file=file).print(table)
    file.flush()
    lines = file.buffer.getvalue().decode("ascii").splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "lambda*" in lines[1]


def limited() -> None:
    """In the child: no file larger than a few bytes, which is what a full disk looks like to a writer."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))


@pytest.mark.parametrize("name", ["report", "audit", "audit table", "train", "reproduce"])
def test_a_full_disk_is_told_with_the_file(place: Path, name: str, tmp_path: Path) -> None:
    command = {
        "report": ["report", str(place / "records"), "-o", "full.html"],
        "audit": ["audit", str(place / "visits.csv"), "--cluster", "patient", "--html", "full.html"],
        "audit table": ["audit", str(place / "visits.csv"), "--cluster", "patient", "--out", "full"],
        "train": [*COMMANDS["train"][:-1], "full"],
        "reproduce": ["reproduce", "law", "--process", "identity", "--jobs", "1", "--out", "full"],
    }[name]
    if name == "train":
        command[1] = str(place / "train")
    (tmp_path / "encoders_of_test.py").write_text(ENCODER)
    done = subprocess.run(
        [sys.executable, "-m", "viewspan", *command], cwd=tmp_path, preexec_fn=limited, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "cannot be written (File too large); free some space there, or choose a folder" in done.stderr
    assert (
        "full" in done.stderr or name == "audit"
    )  # whose page is made from a record in the temporary folder
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("full*/*.json"))
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.claim"))


def test_output_that_cannot_be_written_is_a_failed_run(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    for more in ({}, {"PYTHONUNBUFFERED": "1"}):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "viewspan", "predict", "--convention", "ambient", "--json"],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, **more},
            )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr == "viewspan: standard output: No space left on device\n"


def test_a_reader_that_goes_away_is_no_fault() -> None:
    for command in ("predict --convention ambient", "--help"):
        text = f"set -o pipefail; {sys.executable} -m viewspan {command} | true"
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_claim_that_cannot_be_written_is_not_left_empty(tmp_path: Path) -> None:
    script = (
        "import resource, sys\nfrom viewspan import records\nstore = records.Store(sys.argv[1])\n"
        "store.claimed('a', {})\nresource.setrlimit(resource.RLIMIT_FSIZE, (8, -1))\n"
        "with store.claim('a', {}):\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "free some space there" in done.stderr
    assert not list(tmp_path.glob("*.claim"))


def test_a_refused_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    records.write_atomic(path, b"old")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, old[1]))
    try:
        with pytest.raises(OSError, match=r"cannot be written \(File too large\); free some space") as caught:
            records.write_atomic(path, np.zeros(100).tobytes())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_long_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250 + ".json")
    records.write_atomic(path, b"{}")
    assert path.read_bytes() == b"{}"
