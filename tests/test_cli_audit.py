"""The audit command on paired data: documents, gates, bad input."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from viewspan import records, testing
from viewspan.checks import ViewspanWarning
from viewspan.cli import main


def schema() -> dict[str, Any]:
    return json.loads(resources.files("viewspan.auditing").joinpath("schema.json").read_text("utf-8"))


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit_info:
        main([str(a) for a in arguments])
    return int(exit_info.value.code or 0)


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run(*arguments, "--json") in (0, 3)
    found = json.loads(capsys.readouterr().out, parse_constant=lambda c: pytest.fail(f"{c} in JSON"))
    jsonschema.validate(found, schema())
    return found


def error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    testing.write_visits(tmp_path / "visits.csv")
    return tmp_path / "visits.csv"


@pytest.mark.parametrize(
    ("factor", "icc", "verdict"),
    [
        ([[1, 2], [3, 4], [5, 6], [7, 8]], 0.927711, "weakly"),
        ([[1, 1], [3, 3], [5, 5], [7, 7]], 1.0, "never seen to move"),
        ([[2, 2]] * 4, None, "not measurable here"),
        ([[1, 7], [3, 5], [5, 3], [7, 1]], -1.0, "moved"),
        ([[1, 2], [3, 3], [5, 4], [7, 8]], 0.944444, "weakly"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "npz"])
def test_one_factor(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    factor: list[list[float]],
    icc: float | None,
    verdict: str,
    form: str,
) -> None:
    path = tmp_path / f"pairs.{form}"
    if form == "csv":
        path.write_text("f_a,f_b\n" + "\n".join(f"{a},{b}" for a, b in factor))
    else:
        rng = np.random.default_rng(0)
        np.savez(path, a=rng.normal(size=(4, 2)), b=rng.normal(size=(4, 2)), f=np.array(factor))
    found = document(capsys, "audit", path)
    (entry,) = found["factors"]
    assert entry["verdict"] == verdict
    assert entry["icc"] == (None if icc is None else pytest.approx(icc, abs=1e-6))
    assert "ICC(1)" in entry["form"]
    if icc is None:
        assert "does not vary" in entry["reason"]
    if icc == 1.0:
        assert found["verdict"] == "diversity fails"


def test_gates_both_ways(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("audit", visits, "--cluster", "patient")
    assert (
        run(
            *common,
            "--require-held",
            "side",
            "--require-held",
            "lesion_mm",
            "--require-moved",
            "brightness=0.5",
        )
        == 0
    )
    assert "met: side held" in capsys.readouterr().out
    assert run(*common, "--require-moved", "side") == 3
    assert "NOT MET: side moved" in capsys.readouterr().out
    assert run(*common, "--require-held", "brightness=0.3") == 3
    capsys.readouterr()
    assert "require_held must name one of side, lesion_mm, brightness" in error(
        capsys, *common, "--require-held", "size"
    )
    assert "number S" in error(capsys, *common, "--require-held", "side=x")
    assert "[0, 2]" in error(capsys, *common, "--require-held", "side=-1")
    assert "(0, 2]" in error(capsys, *common, "--require-moved", "side=0")


def test_a_column_of_patients_without_cluster_warns(visits: Path) -> None:
    with pytest.warns(ViewspanWarning, match="--cluster patient"):
        assert run("audit", visits) == 0


def test_categories_and_held_columns(visits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "audit", visits, "--cluster", "patient", "--factors", "side,brightness")
    assert [(f["name"], f["kind"], f["verdict"]) for f in found["factors"]] == [
        ("side", "categorical", "never seen to move"),
        ("brightness", "numeric", "moved"),
    ]
    assert found["held_directions"] == []  # of brightness alone
    found = document(capsys, "audit", visits, "--cluster", "patient")
    assert found["held_directions"][0]["correlations"]["lesion_mm"] == pytest.approx(1, abs=1e-6)


def test_lagged_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recordings.csv"
    testing.write_recordings(path)
    found = document(capsys, "audit", path, "--lag", 20, "--session", "session")
    verdicts = {f["name"]: f["verdict"] for f in found["factors"]}
    assert verdicts == {"ch0": "never seen to move", "ch1": "moved", "ch2": "moved", "ch3": "moved"}
    assert found["n_anchors"] == 12 * 180
    assert "longest has 200 rows" in error(capsys, "audit", path, "--lag", 200, "--session", "session")
    assert "no column animal" in error(capsys, "audit", path, "--lag", 5, "--session", "animal")
    assert "session needs lag" in error(capsys, "audit", path, "--session", "session")


def test_pairs_never_cross_a_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.repeat(np.arange(10.0), 5)[:, None] + np.zeros((50, 2))
    np.savez(tmp_path / "r.npz", x=x, run=np.repeat(np.arange(10), 5))
    found = document(capsys, "audit", tmp_path / "r.npz", "--lag", 2, "--session", "run")
    assert [f["icc"] for f in found["factors"]] == [1.0, 1.0]


def test_views_made_beforehand_and_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = testing.held_pairs(10, dim=3, n_held=1, kappa=10 / 3, n_views=300)
    np.save(tmp_path / "views.npy", data.views)
    found = document(capsys, "audit", tmp_path / "views.npy", "--out", tmp_path / "out")
    assert found["support"]["views_dim"] == pytest.approx(1, abs=0.3)
    assert found["support"]["data_dim"] is None
    assert [f["verdict"] for f in found["factors"]] == ["never seen to move", "moved", "moved"]
    (record,) = (tmp_path / "out").glob("audit-*.json")
    assert json.loads(record.read_text())["result"]["verdict"] == found["verdict"]


def test_copies_are_named_and_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = testing.held_pairs(100, dim=3, n_held=1, kappa=10 / 3).views
    np.savez(
        tmp_path / "p.npz",
        a=np.concatenate([data[:, 0], data[:1, 0]]),
        b=np.concatenate([data[:, 1], data[:1, 1]]),
    )
    found = document(capsys, "audit", tmp_path / "p.npz")
    assert (found["duplicates"], found["n_anchors"]) == (1, 100)
    assert found["duplicate_groups"] == [["row 0", "row 100"]]


def test_bad_rows_are_named_or_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(64, 4)), rng.normal(size=(64, 4))
    a[17, 2] = np.nan
    np.savez(tmp_path / "p.npz", a=a, b=b)
    assert "row 17" in error(capsys, "audit", tmp_path / "p.npz")
    found = document(capsys, "audit", tmp_path / "p.npz", "--skip-bad")
    assert found["n_anchors"] == 63
    assert found["skipped"] == [{"name": "row 17", "reason": "views is missing or not finite"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"f_a,g_b\n1,2\n", "column f_a has no partner"),
        ("x.csv", b"f,g\n1,2\n", "no columns NAME_a and NAME_b; found f, g"),
        ("x.csv", b"f_a,f_b\n\xe9,1\n", "not UTF-8"),
        ("x.csv", b"f_a,f_b\n", "no rows"),
        ("x.csv", b"", "not a readable table"),
        ("x.csv", b"f_a,f_b\n1,2\n", "at least 2 anchors"),
        ("x.csv", b"f_a,f_b\n1,2\n2,\n3,4\n", "row 1: f is missing"),
        ("x.csv", b"f_a,f_b\n1,2\n2,high\n3,4\n5,6\n", "column f_b row 1 is not a number: 'high'"),
        ("x.npz", b"hello", "not a readable NumPy file"),
        ("x.npy", b"", "not a readable NumPy file"),
    ],
)
def test_bad_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in error(capsys, "audit", tmp_path / name, "--out", tmp_path / "out")
    assert list((tmp_path / "out").glob("*")) == []


def test_missing_file_and_bad_arguments(
    tmp_path: Path, visits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere.csv" in error(capsys, "audit", tmp_path / "nowhere.csv")
    assert "two names" in error(capsys, "audit", visits, "--pairs", "a")
    assert "no column hospital" in error(capsys, "audit", visits, "--cluster", "hospital")
    assert "factors must be one of brightness, lesion_mm, side, got 'hue'" in error(
        capsys, "audit", visits, "--cluster", "patient", "--factors", "hue"
    )
    assert "lag must be" in error(capsys, "audit", visits, "--lag", 0)


def test_help_is_quick_and_names_the_gates(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", "--help") == 0
    assert "--require-held" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("x_a,x_b\n1,2,3\n4,5,6\n7,8,9\n", "more cells than its header"),
        ("x_a,x_a,x_b\n1,2,3\n4,5,6\n", "two columns are named x_a"),
        ('x_a,x_b\n"1,5","2,5"\n"3,5","4,0"\n', "column x_a holds decimal commas, such as '1,5'"),
        ("x_a,x_b\n1,2\n", "at least 2 anchors (rows) are needed, got 1"),
    ],
)
def test_tables_that_would_be_misread_are_refused(tmp_path, capsys, text, rule):
    table = tmp_path / "t.csv"
    table.write_text(text)
    assert rule in error(capsys, "audit", table)


def test_a_missing_session_is_named_and_a_byte_order_mark_is_not_part_of_a_name(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("v,s\n1,A\n2,A\n3,\n4,B\n5,B\n")
    assert "column s row 2 is missing" in error(capsys, "audit", table, "--lag", 1, "--session", "s")
    assert "column s row 2 is missing" in error(capsys, "audit", table, "--lag", 1, "--cluster", "s")
    table.write_text("x_a,x_b\n1,2\n3,4\n5,6\n7,8\n", encoding="utf-8-sig")
    (factor,) = document(capsys, "audit", table)["factors"]
    assert factor["name"] == "x"
    assert factor["icc"] == pytest.approx(0.927711, abs=1e-6)


def test_pairs_of_one_name_and_options_without_effect_are_refused(tmp_path, capsys):
    file = tmp_path / "v.npz"
    np.savez(file, a=np.eye(4), b=np.eye(4))
    assert "pairs must be two different names, got a,a" in error(capsys, "audit", file, "--pairs", "a,a")
    assert "workers apply to images" in error(capsys, "audit", file, "--workers", 2)
    assert "seed must be at least 0, got -1" in error(capsys, "audit", file, "--seed", -1)


def test_a_broken_array_among_stems_is_named(tmp_path, capsys):
    for name in ("a_1", "a_2", "b_1", "b_2"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0))
    (tmp_path / "a_2.npy").write_bytes(b"")
    assert "a_2.npy is not a readable NumPy file" in error(capsys, "audit", tmp_path, "--group", "stem")
    np.save(tmp_path / "a_2.npy", np.array([1.0, np.nan, 2.0]))
    assert "a_2.npy must hold finite numbers" in error(capsys, "audit", tmp_path, "--group", "stem")


def test_a_page_and_a_record_with_views_to_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testing.main(["shapes", str(tmp_path / "shapes")])
    small = ["--n-anchors", "8", "--n-views", "4", "--support-anchors", "0", "--operation-anchors", "0"]
    page = tmp_path / "audit.html"
    code = run(
        "audit",
        str(tmp_path / "shapes"),
        "--views",
        "crop",
        *small,
        "--out",
        str(tmp_path / "out"),
        "--html",
        str(page),
    )
    assert code == 0
    text = page.read_text()
    assert "data:image/png;base64," in text
    (record,) = (tmp_path / "out").glob("audit-*.json")
    arrays = records.read_arrays(record, records.read(record))
    assert arrays["example_views"].shape[:3] == (6, 6, 3)
    assert arrays["example_views"].std() > 5


@pytest.mark.parametrize("flags", [["--n-views", "8"], ["--device", "cpu", "--support-views", "300"]])
def test_options_of_images_are_refused_for_pairs(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "p.npz", a=np.random.default_rng(0).normal(size=(40, 2)), b=np.zeros((40, 2)))
    assert run("audit", str(tmp_path / "p.npz"), *flags) == 2
    assert "apply to images with views only" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "value"), [("--precision", "bfloat16"), ("--device", "tpu")])
def test_where_an_audit_computes(
    flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("audit", str(tmp_path), "--views", "crop", flag, value) == 2
    assert value in capsys.readouterr().err
