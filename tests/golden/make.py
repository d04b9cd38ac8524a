"""The `--json` of every command at small sizes, as files beside this one; `python tests/golden/make.py` makes them anew.

`tests/test_golden.py` makes the same documents and compares: keys and strings exactly, numbers within a tolerance.
What changes from run to run or from machine to machine (`VOLATILE`) is left out. Names given on the command line make
only those documents.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from viewspan import cli, records, report, testing
from viewspan.experiments import cifar10, dose, law, progressive, rho, table1, tagged
from viewspan.report import tables

sys.path.insert(0, str(Path(__file__).parents[1]))
import report_records

HERE = Path(__file__).parent
VOLATILE = {
    "ms", "seconds", "images_per_second", "record", "environment", "finished", "vector", "correlations", "versions",
    "peak_memory_gib",
}  # fmt: skip
DIGITS = 6  # significant, in the files


def command(*arguments: object) -> Any:
    """What a command prints with `--json`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            cli.main([*map(str, arguments), "--json"])
        except SystemExit as stop:
            if stop.code not in (0, 3):
                raise RuntimeError(f"{arguments}: exit code {stop.code}: {err.getvalue()}") from None
    return json.loads(out.getvalue(), parse_constant=lambda text: f"not JSON: {text}")


def predictions() -> Any:
    """Predictions across dimensions, laws and ρ, and the sweep."""
    many = [
        ("--convention", "ambient"), ("--convention", "subsphere"), ("--convention", "subsphere", "--rho", "1"),
        ("--convention", "ambient", "--rho", "1"), ("--convention", "subsphere", "--rho", ".5"), ("--n-fixed", "0"),
        ("--n-fixed", "3"), ("--dim", "10", "--n-fixed", "5", "--convention", "ambient"),
        ("--n-fixed", "2", "--convention", "subsphere", "--kappa", "2", "--temperature", ".5"),
        ("--n-fixed", "0", "--kappa", "1"),
    ]  # fmt: skip
    return {
        "one": [command("predict", *each) for each in many],
        "sweep": command("predict", "--convention", "subsphere", "--sweep", "rho"),
    }


def theory() -> Any:
    """Every certificate."""
    return command("theory")


def reproduced(module: Any, chosen: Callable[[dict[str, Any]], bool], **options: Any) -> Callable[[], Any]:
    """The document of a few cells of an experiment, with next to no training."""

    def make() -> Any:
        found = []
        for cell in module.cells("quick", **options):
            s = cell.settings
            if chosen(s):
                warm = {"warm_steps": 3, "warm_batch_size": 60} if s["warm_steps"] else {}
                group = {} if s["group_size"] is None else {"group_size": 20}
                small = {"steps": 4, "batch_size": 120, "hidden": [16, 16], "restarts": 0, **warm, **group}
                found.append(module.run({**s, **small})[0])
        return module.table(found)

    return make


def figure3() -> Any:
    """The image experiment on invented pictures, two encoders and two regimes."""
    pictures(Path("figure3"))
    small = {
        "data": "figure3", "n_train": 20, "epochs": 1, "batch_size": 10, "protocol": "published", "published_epochs": 1,
        "k": 3, "seed": 0, "profile": "quick",
    }  # fmt: skip
    vit = {"name": "vit", "width": 8, "layers": 1, "heads": 2, "hidden": 8}
    chosen = (({"name": "mlp"}, "all"), ({"name": "mlp"}, "crop"), (vit, "all"))
    return cifar10.table(
        [cifar10.run(cifar10.complete({**small, "encoder": e, "views": views}))[0] for e, views in chosen]
    )


def pictures(folder: Path) -> None:
    """Two classes that differ in colour, 12 training and 6 test images each, 8 × 8."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, n in (("train", 12), ("test", 6)):
        for c, colour in enumerate(("blue", "red")):
            (folder / split / colour).mkdir(parents=True, exist_ok=True)
            for i in range(n):
                pixels = rng.integers(0, 120, (8, 8, 3), dtype=np.uint8)
                pixels[..., 2 - 2 * c] += 100
                Image.fromarray(pixels).save(folder / split / colour / f"{i}.png")


def audits() -> Any:
    """Images with views, pairs, a recording, and files that are views of one thing."""
    from PIL import Image

    testing.write_shapes(Path("shapes"), 24)
    testing.write_visits(Path("visits.csv"))
    values, session = testing.recordings(6, 40)
    rows = [",".join([f"s{s}", *(f"{v:.5g}" for v in row)]) for s, row in zip(session, values, strict=True)]
    Path("recording.csv").write_text("\n".join(["session,ch0,ch1,ch2,ch3", *rows]) + "\n")
    Path("stems").mkdir()
    for i, views in enumerate(testing.shapes(8, n_views=2, moved=["hue"]).images):
        for j, image in enumerate(views):
            Image.fromarray(image.transpose(1, 2, 0)).save(Path("stems") / f"x{i}_{j}.png")
    held = testing.held_pairs(120, dim=3, n_held=1, kappa=3.0)
    np.savez("pairs.npz", a=held.views[:, 0], b=held.views[:, 1])
    sizes = (
        "--n-anchors", 20, "--n-views", 3, "--support-anchors", 2, "--support-views", 200, "--operation-anchors", 10,
    )  # fmt: skip
    return {
        "views": command("audit", "shapes", "--views", "all,crop", *sizes),
        "pairs": command("audit", "pairs.npz"),
        "table": command(
            "audit", "visits.csv", "--cluster", "patient", "--require-moved", "brightness", "--require-held", "side"
        ),
        "recording": command("audit", "recording.csv", "--lag", 1, "--session", "session"),
        "stems": command("audit", "stems", "--group", "stem", "--factors", "hue,brightness"),
        "lint": command("lint", "shapes", "--views", "all,crop"),
    }  # fmt: skip


ENCODER = """
from torch import nn

def tiny(channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size[0] * size[1], 16), nn.Tanh(), nn.Linear(16, 8))
"""


def trained() -> Any:
    """Training on images and the probe of the run."""
    pictures(Path("pictures"))
    Path("golden_encoders.py").write_text(ENCODER)
    common = ("--encoder", "golden_encoders:tiny", "--views", "crop", "--epochs", 2, "--batch-size", 8)
    device = ("--device", "cpu", "--threads", 1)
    found = {
        name: command("train", "pictures/train", *common, *more, *device, "--out", name)
        for name, more in (
            ("ntxent", ()),
            ("standard", ("--loss", "standard", "--pairs", "clean-view", "--head", "mlp")),
            ("corrected", ("--loss", "corrected", "--base-views", 4)),
        )
    }
    found["probe"] = command("probe", "ntxent", "pictures", "--k", 3, *device)
    published = ("--protocol", "published", "--published-epochs", 1)
    found["published probe"] = command("probe", "standard", "pictures", "--k", 3, *published, *device)
    return found


class Told(HTMLParser):
    """What a page tells: each table's rows, and the texts of headings, list items, definitions and captions."""

    TEXTS = ("h1", "h2", "h3", "h4", "li", "p", "dt", "dd", "figcaption", "summary")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self.open: list[list[str]] = []
        self.quiet = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("script", "style", "title"):
            self.quiet += 1
        if tag in ("td", "th") or tag in self.TEXTS:
            self.open.append([])

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "title"):
            self.quiet -= 1
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(" ".join("".join(self.open.pop()).split()))
        elif tag in self.TEXTS:
            self.texts.append(" ".join("".join(self.open.pop()).split()))

    def handle_data(self, data: str) -> None:
        if self.open and not self.quiet:
            self.open[-1].append(data)


def reported() -> Any:
    """The data of the page and of the exported tables, from records of every kind; and a difference of two."""
    report_records.everything(Path("runs"))
    found, skipped = records.read_all([Path("runs")])
    told = Told(report.page(found, skipped))
    written = {p.name: p.read_text() for p in tables.save(found, Path("tables"))}
    for seed in (0, 1):  # two records that differ in their seed alone
        report_records.run(records.Store("two"), "table1", seed, {}, arrays=False)
    difference = command(
        "diff", *sorted(Path("two").glob("*.json"), key=lambda p: records.read(p).settings["seed"])
    )
    return {
        "texts": [text for text in told.texts if "viewspan" not in text],  # the version is there
        "tables": [
            [" | ".join(row) for row in table] for table in told.tables[:-1]
        ],  # the last is the provenance
        "files": {name: text.splitlines() for name, text in sorted(written.items())},
        "diff": {k: v for k, v in difference.items() if k not in ("first", "second")},
    }


DOCUMENTS: dict[str, Callable[[], Any]] = {
    "predict": predictions,
    "theory": theory,
    "table1": reproduced(
        table1, lambda s: s["seed"] == 0 or s["encoder"] == "inverse", seeds=2, processes=["spiral"]
    ),
    "rho": reproduced(
        rho, lambda s: s["rho"] in (0, 0.5) and s["encoder"] == "inverse", processes=["identity"]
    ),
    "progressive": reproduced(progressive, lambda s: s["n_fixed"] in (0, 9), processes=["monomial"]),
    "law": reproduced(law, lambda s: s["convention"] == "ambient", processes=["linear"]),
    "dose": reproduced(
        dose, lambda s: (s["share"], s["sigma"]) in ((0.2, 0), (0, 0.3)), convention="ambient"
    ),
    "tagged": reproduced(tagged, lambda s: s["share"] == 0.02, processes=["patches"]),
    "cifar10": figure3,
    "audit": audits,
    "train": trained,
    "report": reported,
}


def cleaned(value: Any) -> Any:
    """A document without what is volatile, its numbers to `DIGITS` significant digits."""
    if isinstance(value, dict):
        return {k: cleaned(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list | tuple):
        return [cleaned(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """An empty working folder, on the module search path as the command line's is."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as path:
        os.chdir(path)
        sys.path.insert(0, path)
        try:
            yield
        finally:
            sys.path.remove(path)
            os.chdir(before)


def make(name: str) -> Any:
    """One document."""
    with folder():
        return cleaned(records.jsonable(DOCUMENTS[name]()))


def main() -> None:
    """Write the named documents, or all."""
    import torch

    torch.set_num_threads(1)
    for name in sys.argv[1:] or DOCUMENTS:
        text = json.dumps(make(name), indent=1, ensure_ascii=False)
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(text) // 1024} kB")


if __name__ == "__main__":
    main()
