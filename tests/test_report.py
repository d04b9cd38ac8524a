"""The page says what the records say, shows data as text, asks for nothing outside, and stays small."""

from __future__ import annotations

import json
import re
import resource
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from viewspan import records, report
from viewspan.cli import app
from viewspan.records import Record, Store
from viewspan.report import chart, differences, figures, gather, pictures, synthetic, tables

sys.path.insert(0, str(Path(__file__).parent))
import report_records as made


class Page(HTMLParser):
    """Tags, addresses, scripts and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.scripts: list[str] = []
        self.handlers: list[str] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append(dict(attrs).get("type") or "code")
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "data", "xlink:href")
        ]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["script"], ["style"]):
            self.text.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    made.everything(path)
    return path


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return report.page(*records.read_all([folder]))


def test_the_page_is_one_small_file_that_asks_for_nothing(html: str) -> None:
    assert len(html.encode()) < 1_500_000
    page = Page(html)
    assert {a for a in page.addresses if not a.startswith(("#", "data:"))} == set()
    assert page.scripts == ["application/json", "code"]
    assert page.handlers == []
    assert "@import" not in html
    assert not re.search(r"url\((?!data:)", html)
    assert "default-src 'none'" in html


def test_markup_in_data_is_text(html: str) -> None:
    page = Page(html)
    assert sum("<img src=x onerror" in text for text in page.text) >= 8
    assert "<script>document" not in html
    assert made.HOSTILE.split(" & ")[1] in html
    assert "own &lt;b&gt;other.json" in html.replace("own/", "own ")


def test_the_page_says_what_the_records_say(html: str, folder: Path) -> None:
    text = " ".join(Page(html).text)
    assert "140 finished runs" in text
    assert "38 runs in 19 cells, 2 seeds each." in text
    assert "Mean R² lies within 0.05 of the published value in 19 of 19 cells that have one." in text
    assert "The loss lies within 0.05 nats of its prediction in 4 of 4 cells that have one." in text
    assert "isometry × 10" in text
    assert "2 files skipped" in text
    assert "The map is squeezed" in text
    assert "never seen to move" in text
    assert "lies above the same encoder untrained in 5 of 9 cells" in text
    assert "raw pixels" in text
    assert "resnet18 − mlp: all +0.080 (published +0.080)" in text
    assert records.source_digest() in text


def test_values_behind_every_plot_are_in_a_table(html: str) -> None:
    assert html.count('<figure class="plot">') == html.count("<summary>Values</summary>") > 10


def test_an_equal_page_from_equal_records(folder: Path, html: str) -> None:
    assert report.page(*records.read_all([folder])) == html


def test_cells_hold_mean_sd_and_the_later_of_equal_runs(tmp_path: Path) -> None:
    for seed, r2 in ((0, 0.5), (1, 0.7)):
        record = Record(experiment="own", settings={"a": 1, "seed": seed}, result={"r2": r2}, finished=1.0)
        Store(tmp_path / "old").write(record)
    late = Record(experiment="own", settings={"a": 1, "seed": 1}, result={"r2": 0.9}, finished=2.0)
    Store(tmp_path / "new").write(late)
    (cell,) = gather.by_experiment(records.read_all([tmp_path])[0])["own"]
    s = cell.stat("r2")
    assert s.values == (0.5, 0.9)
    assert s.mean == pytest.approx(0.7)
    assert s.sd == pytest.approx(np.std([0.5, 0.9], ddof=1))
    assert "1 replaced by a later run" in report.page(records.read_all([tmp_path])[0])


def test_missing_and_odd_values_are_absent_not_errors(tmp_path: Path) -> None:
    store = Store(tmp_path)
    results: list[dict] = [
        {"r2": None}, {"r2": 0.5, "published": None, "predicted": 3}, {"r2": "high"}, {"r2": 1, "diagnosis": None},
        {"r2": 0.1, "published": {"r2": {"mean": 0.2, "sd": 0.1}}, "above_floor": True},
    ]  # fmt: skip
    for seed, result in enumerate(results):
        history = {"step": [0.0, 1.0], "loss": [None, 1.0], "other": []}
        store.write(
            Record(experiment="rho", settings={"seed": seed, "rho": seed / 4}, result=result, history=history)
        )
    for name in ("audit", "train", "probe", "table1", "x"):
        store.write(Record(experiment=name, settings={}, result={}))
    odd = {
        "factors": [{"name": None}, 3],
        "support": [],
        "operations": [{"alone": None}],
        "gates": [{}],
        "held": 1,
    }
    store.write(Record(experiment="audit", settings={"seed": 1}, result=odd))
    store.write(Record(experiment="probe", settings={"seed": 1}, result={"probe_accuracy": 0.5}))
    found = records.read_all([tmp_path])[0]
    page = report.page(found)
    assert "nan" not in " ".join(Page(page).text).lower().split()
    for path in tables.save(found, tmp_path / "tables"):
        assert path.read_text()


def test_a_trained_run_beside_a_probe_of_other_views_makes_a_page(tmp_path: Path) -> None:
    store = Store(tmp_path)
    views = {"encoder": "convnet", "views": "crop", "seed": 0}
    store.write(Record(experiment="train", settings=views, result={"loss": 1.0}))
    store.write(Record(experiment="probe", settings={"run": views}, result={"probe_accuracy": 0.5}))
    store.write(Record(experiment="probe", settings={"seed": 1}, result={"probe_accuracy": 0.5}))
    for n in (10, 20):
        settings = {**views, "data": {"n": n, "digest": str(n)}}
        store.write(Record(experiment="train", settings=settings, result={"loss": 1.0}))
        store.write(Record(experiment="probe", settings={"run": settings}, result={"probe_accuracy": 0.5}))
    found = records.read_all([tmp_path])[0]
    assert "crop" in report.page(found)
    assert tables.save(found, tmp_path / "tables")


def test_probes_are_told_apart_by_the_runs_they_read(tmp_path: Path) -> None:
    """A cell a run's settings, its seeds the runs'; of one run's earlier and later weights the later count."""
    store = Store(tmp_path)
    for encoder in ("viewspan.vision.backbones:mlp", "own:net"):
        for seed in (0, 1):
            for weights, accuracy in (("early", 0.1), ("late", 0.6 + 0.1 * seed)):
                run = {"encoder": encoder, "views": "crop", "seed": seed}
                settings = {
                    "run": run,
                    "weights": f"{weights}-{seed}",
                    "train": "a",
                    "test": "b",
                    "k": 5,
                    "seed": 0,
                }
                result = {"probe_accuracy": accuracy, "untrained_accuracy": 0.5, "pixels_accuracy": 0.3}
                finished = 2.0 if weights == "late" else 1.0
                store.write(Record(experiment="probe", settings=settings, result=result, finished=finished))
    found = records.read_all([tmp_path])[0]
    cells = gather.by_experiment(found)["probe"]
    assert sorted(c.settings["encoder"] for c in cells) == ["mlp", "own:net"]
    assert [c.stat("probe_accuracy").values for c in cells] == [(0.6, 0.7)] * 2
    page = report.page(found)
    assert "2 of 2 cells" in page
    assert "{'" not in " ".join(Page(page).text)


def test_one_audit_alone_makes_a_page(tmp_path: Path) -> None:
    made.audits(tmp_path)
    ((path, record),) = records.read_all([tmp_path])[0]
    assert report.audit_page(record, path).count("<img ") == 15
    without = report.audit_page(record)
    assert "<img " not in without
    next(tmp_path.glob("*.npz")).unlink()
    assert "sidecar is missing" in report.audit_page(record, path)
    assert without.count("never seen to move") >= 2
    assert "●" in without


def test_ten_thousand_records_within_a_gibibyte(tmp_path: Path) -> None:
    steps = list(range(60))
    record = Record(
        experiment="rho", settings={}, result={"r2": 0.5, "ape": 0.1, "loss_minus_log_m": -1.0, "diagnosis": "isometry"},
        history={"step": steps, "loss": [1.0] * 60}, environment=records.environment(),
    )  # fmt: skip
    text = json.dumps(records.jsonable(record.model_dump()))
    for i in range(10_000):
        settings = json.dumps(
            {"seed": i % 5, "rho": (i // 5) / 2000, "process": "identity", "encoder": "mlp"}
        )
        (tmp_path / f"rho-{i}.json").write_text(text.replace('"settings": {}', f'"settings": {settings}'))
    page = report.page(*records.read_all([tmp_path]))
    assert "10000 finished runs" in page
    assert "1700 more cells are in the exported tables" in page
    assert len(page.encode()) < 1_500_000
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2**20 * 2
    )  # KiB; other tests' libraries included


def test_recovered_points_are_turned_onto_the_latents() -> None:
    z = made.anchors()
    for kind, largest in (("isometry", 0.1), ("squeezed", 0.4)):
        shown, h, how = pictures.aligned(z, made.recovered(kind, z, 3))
        assert np.allclose(shown, z)
        assert np.allclose(np.linalg.norm(h, axis=1), 1, atol=1e-5)
        assert np.abs(h - z).max() < largest
        assert "rotation or reflection" in how
    ten = made.anchors(10)
    shown, h, how = pictures.aligned(
        ten, ten @ np.linalg.qr(np.random.default_rng(1).normal(size=(10, 10)))[0]
    )
    assert np.allclose(shown, ten[:, :3])
    assert np.allclose(h, ten[:, :3], atol=1e-5)
    assert "linear readout" in how
    with pytest.raises(ValueError, match="must be finite"):
        pictures.aligned(z, np.full_like(z, np.nan))


def test_packed_points_come_back() -> None:
    import base64

    z = made.anchors()
    back = np.frombuffer(base64.b64decode(pictures.packed(z)), "<i2").reshape(-1, 3) / 20_000
    assert np.abs(back - z).max() < 3e-5


def test_images_are_png_and_come_back() -> None:
    import base64
    import io

    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 256, (5, 7, 3)).astype(np.uint8)
    for given, right in [
        (colour, colour), (np.moveaxis(colour, 2, 0), colour), (colour[:, :, 0], colour[:, :, 0]),
        (colour[:, :, :1], colour[:, :, 0]), (colour / np.float32(255), colour),
    ]:  # fmt: skip
        data = base64.b64decode(pictures.png_uri(given).removeprefix("data:image/png;base64,"))
        assert np.array_equal(np.asarray(image.open(io.BytesIO(data))), right)
    with pytest.raises(ValueError, match="image must have shape"):
        pictures.png_uri(np.zeros((2, 2, 5)))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-1.9, 0.1), (3, 3), (1e-9, 2e-9), (-5e6, 7e6), (0.301, 0.302)]
)
def test_ticks_cover_their_range_with_round_numbers(low: float, high: float) -> None:
    found = chart.ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 13
    assert found == sorted(set(found))


def test_the_loss_curve_is_what_training_recorded(tmp_path: Path) -> None:
    """A tagged run counts its negatives per term and warms up at another batch size: no setting tells its M."""
    settings = {"loss": "tagged", "batch_size": 500, "group_size": 20, "process": "identity"}
    told = {"step": [1, 11, 21], "loss": [5.3, 4.9, 4.2], "loss_minus_log_m": [0.1, -0.4, -1.1]}
    store = Store(tmp_path)
    for seed in (0, 1):
        run = Record(
            experiment="tagged", settings={**settings, "seed": seed}, result={"r2": 0.5}, history=told
        )
        store.write(run)
    found = records.read_all([tmp_path])[0]
    (cell,) = gather.by_experiment(found)["tagged"]
    assert synthetic.mean_loss(cell) == [(1, 0.1, None), (11, -0.4, None), (21, -1.1, None)]
    assert "No loss curve" not in report.page(found)
    store.write(
        Record(
            experiment="tagged", settings={**settings, "seed": 2}, result={"r2": 0.5}, history={"step": [1], "loss": [5.0]}
        )
    )  # fmt: skip
    found = records.read_all([tmp_path])[0]
    (cell,) = gather.by_experiment(found)["tagged"]
    assert synthetic.mean_loss(cell)[0] == (1, 0.1, None)
    assert "No loss curve for 1 of 3 runs" in report.page(found)


def test_the_gain_over_untrained_is_in_the_table_of_images(html: str) -> None:
    page = Page(html)
    assert "gain over untrained" in page.text
    assert "0.005 ± 0.007" in page.text  # mlp, all: 0 and .01 in two seeds


def test_the_gain_of_one_run_has_its_interval(tmp_path: Path) -> None:
    result = {"probe_accuracy": 0.5, "untrained_accuracy": 0.4, "gain": 0.1, "gain_interval": [0.08, 0.12]}
    Store(tmp_path).write(
        Record(experiment="cifar10", settings={"encoder": "mlp", "views": "all"}, result=result)
    )
    assert "0.100 (0.080 to 0.120)" in report.page(records.read_all([tmp_path])[0])


def test_csv_holds_every_number_and_latex_compiles_by_eye(folder: Path, tmp_path: Path) -> None:
    import csv

    found = records.read_all([folder])[0]
    paths = tables.save(found, tmp_path)
    assert {p.name for p in paths} >= {
        "table1.csv",
        "table1.tex",
        "rho.csv",
        "audit-factors.csv",
        "cifar10.tex",
    }
    with (tmp_path / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 19
    first = rows[0]
    assert (first["process"], first["pairs"], first["seeds"]) == ("identity", "holds", "2")
    cell = next(
        c for c in gather.by_experiment(found)["table1"]
        if c.settings["process"] == "identity" and c.settings["pairs"] == "holds"
    )  # fmt: skip
    assert float(first["r2"]) == cell.stat("r2").mean
    assert float(first["r2_sd"]) == cell.stat("r2").sd
    assert float(first["r2_published"]) == 1.0
    latex = (tmp_path / "table1.tex").read_text()
    assert latex.count(r"\\") == 20
    assert r"\pm" in latex
    assert tables.escape(r"50 % of a_b & {c} \d #1 $x^2~") == (
        r"50 \% of a\_b \& \{c\} \textbackslash{}d \#1 \$x\textasciicircum{}2\textasciitilde{}"
    )
    with (tmp_path / "audit-factors.csv").open() as file:
        assert [r["factor"] for r in csv.DictReader(file)][4] == made.HOSTILE


def test_figures_are_drawn_and_repeat(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = [
        (p, r) for p, r in records.read_all([folder])[0]
        if r.experiment in ("rho", "cifar10") or r.settings.get("process") == "spiral"
    ]  # fmt: skip
    paths = figures.save(found, tmp_path / "a")
    assert {p.stem for p in paths} == {"rho-rho", "cifar10-accuracy", "table1-spheres-spiral"}
    assert len(paths) == 6
    figures.save([(p, r) for p, r in found if r.experiment == "rho"], tmp_path / "b")
    assert (tmp_path / "a" / "rho-rho.svg").read_bytes() == (tmp_path / "b" / "rho-rho.svg").read_bytes()


def test_differences_name_settings_before_numbers(folder: Path) -> None:
    found = {
        (r.settings["process"], r.settings["pairs"], r.settings["seed"]): r
        for _, r in records.read_all([folder / "table1"])[0]
    }
    first, second = found["identity", "holds", 0], found["linear", "holds", 1]
    difference = differences.compare(first, second)
    assert list(difference)[:4] == ["same_settings", "settings", "environment", "protocol"]
    assert {d["name"]: (d["first"], d["second"]) for d in difference["settings"]} == {
        "process": ("identity", "linear"), "seed": (0, 1),
    }  # fmt: skip
    assert difference["environment"] == difference["protocol"] == []
    r2 = next(d for d in difference["numbers"] if d["name"] == "r2")
    assert r2["difference"] == pytest.approx(second.result["r2"] - first.result["r2"])
    other = first.model_copy(update={"environment": {**first.environment, "device": "cuda"}})
    assert differences.compare(first, other)["environment"] == [
        {"name": "device", "first": "cpu", "second": "cuda"}
    ]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app.main(list(arguments))
    return int(ended.value.code or 0)


def test_the_command_writes_page_tables_and_says_what_it_skipped(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "report.html"
    assert (
        run(
            "report",
            str(folder / "own"),
            str(folder / "audit"),
            "-o",
            str(out),
            "--tables",
            str(tmp_path / "t"),
        )
        == 0
    )
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == f"Report: {out} (2 runs, 2 files skipped)"
    assert "skipped: " in printed.err
    assert "broken.json: not JSON" in printed.err
    assert out.read_text().startswith("<!doctype html>")
    assert (tmp_path / "t" / "own.csv").exists()


def test_the_command_refuses_what_holds_no_record(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.json").write_text("{}")
    out = tmp_path / "report.html"
    for arguments, message in [
        ((), "runs must name at least one folder"),
        ((str(tmp_path / "none"),), "no such file"),
        ((str(tmp_path / "empty"),), "found none"),
        ((str(tmp_path / "x.json"),), "1 file skipped"),
        ((str(folder / "own"), "-o", str(tmp_path / "empty")), "output must be a file"),
    ]:
        assert run("report", *arguments, *(() if "-o" in arguments else ("-o", str(out)))) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
        assert not out.exists()


def test_the_diff_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sorted((folder / "table1").glob("*.json"))[:2]
    assert run("diff", str(first), str(second)) == 0
    printed = capsys.readouterr().out
    assert printed.index("settings that differ") < printed.index("numbers")
    assert run("diff", str(first), str(second), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() >= {"settings", "environment", "protocol", "numbers"}
    assert run("diff", str(first), str(folder / "table1")) == 2
    assert f"holds 38: name one of {first.name}, " in capsys.readouterr().err
