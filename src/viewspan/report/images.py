"""Runs on images: accuracy by encoder and regime, always beside the untrained encoder and raw pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from viewspan.report import chart, gather
from viewspan.report.gather import Cell
from viewspan.report.synthetic import Value, losses, setting

ACCURACIES = (
    ("probe_accuracy", "linear probe"),
    ("knn_accuracy", "kNN"),
    ("untrained_accuracy", "untrained"),
    ("pixels_accuracy", "raw pixels"),
)
REGIMES = ("crop", "all-without-crop", "all")  # from the least to the most that a view may change


@dataclass
class ImageSection:
    """Everything the page shows of training or probing on images."""

    name: str
    title: str
    summary: list[str]
    header: list[str]
    rows: list[list[Value]]
    figures: list[chart.Figure] = field(default_factory=list)


def is_image(cells: Sequence[Cell]) -> bool:
    """Whether an experiment's runs are on images."""
    keys = ("probe_accuracy", "knn_accuracy", "images_per_second")
    return any(key in record.result for cell in cells for _, record in cell.runs for key in keys)


def section(name: str, cells: list[Cell], dimensions: Mapping[str, str]) -> ImageSection:
    """A table of accuracies, a chart of them, loss curves; `dimensions` is each regime's audited support dimension."""
    titles = {
        "train": "Training on images",
        "probe": "What the embeddings hold",
        "cifar10": "CIFAR-10: encoders and views",
    }
    keys = [
        k
        for k in gather.columns(cells)
        if not k.startswith("vit_") and (k != "data" or len({str(c.settings.get("data")) for c in cells}) > 1)
    ]
    cells = sorted(cells, key=lambda c: (str(c.settings.get("encoder")), _regime(c)))
    numbers = [
        *ACCURACIES, ("gain", "gain over untrained"), ("loss", "loss"), ("loss_minus_log_m", "loss − log M"), ("steps", "steps"),
        ("images_per_second", "images/s"), ("n_train", "training images"), ("n_test", "test images"),
    ]  # fmt: skip
    used = [(key, text) for key, text in numbers if any(c.stat(key).mean is not None for c in cells)]
    header = [k.replace("_", " ") for k in keys] + (["views' dimension"] if dimensions else []) + ["seeds"]
    header += [text for _, text in used]
    beside = [
        (key, text)
        for key, text in (("probe_accuracy", "published"), ("logged_accuracy", "authors' logged run"))
        if any(c.beside("published", key) is not None for c in cells)
    ]
    header += [text for _, text in beside]
    rows = []
    for cell in cells:
        row = [setting(cell.settings.get(k)) for k in keys]
        if dimensions:
            row.append(setting(dimensions.get(str(cell.settings.get("views")))))
        row.append(Value(str(len(cell.runs)), len(cell.runs)))
        for key, _ in used:
            found = cell.stat(key)
            digits = 0 if key in ("steps", "images_per_second", "n_train", "n_test") else 3
            if found.sd == 0 and digits == 0:
                found = gather.Stat(found.mean, None, found.values)
            row.append(
                Value(
                    gather.show_stat(found, digits), found.mean if found.mean is not None else float("-inf")
                )
            )
            row[-1].measured = key in ("probe_accuracy", "knn_accuracy")
            if key == "gain":
                row[-1].text += _gain_interval(cell)
        for key, _ in beside:
            value = cell.beside("published", key)
            row.append(Value(gather.show(value), value if value is not None else float("-inf")))
        rows.append(row)
    made = ImageSection(name, titles.get(name, name), _summary(cells), header, rows)
    drawn = accuracies(cells, dimensions)
    made.figures = ([drawn] if drawn is not None else []) + losses(cells, keys)
    return made


def _gain_interval(cell: Cell) -> str:
    """The 95 % interval of the gain, if the cell has one run; several runs show their spread."""
    ends = cell.runs[0][1].result.get("gain_interval")
    known = [gather.number(x) for x in ends] if isinstance(ends, list) else []
    if len(cell.runs) > 1 or len(known) != 2:
        return ""
    return f" ({gather.show(known[0])} to {gather.show(known[1])})"


def _regime(cell: Cell) -> tuple[int, str]:
    views = str(cell.settings.get("views"))
    return (REGIMES.index(views) if views in REGIMES else len(REGIMES), views)


def _summary(cells: Sequence[Cell]) -> list[str]:
    found = [f"{sum(len(cell.runs) for cell in cells)} runs in {len(cells)} cells."]
    pairs = [(cell.stat("probe_accuracy").mean, cell.stat("untrained_accuracy").mean) for cell in cells]
    both = [(mine, base) for mine, base in pairs if mine is not None and base is not None]
    if both:
        above = sum(mine > base for mine, base in both)
        found.append(
            f"The trained encoder lies above the same encoder untrained in {above} of {len(both)} cells."
        )
    if any(cell.settings.get("profile") == "quick" for cell in cells):
        found.append(
            "The quick profile checks that everything runs; it is too short to reproduce the published figure."
        )
    return found + _gaps(cells)


def _gaps(cells: Sequence[Cell]) -> list[str]:
    """How far the convolutional encoder is ahead under each regime, beside the published gap."""
    at = {(str(c.settings.get("encoder")), str(c.settings.get("views"))): c for c in cells}
    found = []
    for other in ("mlp", "vit"):
        told = []
        for views in reversed(REGIMES):
            pair = at.get(("resnet18", views)), at.get((other, views))
            if pair[0] is None or pair[1] is None:
                continue
            a, b = pair[0].stat("probe_accuracy").mean, pair[1].stat("probe_accuracy").mean
            if a is not None and b is not None:
                x, y = (c.beside("published", "probe_accuracy") for c in (pair[0], pair[1]))
                theirs = "" if x is None or y is None else f" (published {_signed(x - y)})"
                told.append(f"{views} {_signed(a - b)}{theirs}")
        if len(told) > 1:
            found.append(f"Probe accuracy, resnet18 − {other}: " + ", ".join(told) + ".")
    return found


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", gather.MINUS)


def accuracies(cells: Sequence[Cell], dimensions: Mapping[str, str]) -> chart.Figure | None:
    """Probe accuracy against the views, one line an encoder; hollow marks are the encoder untrained, a line is pixels."""
    names, series, pixels = accuracy_series(cells, dimensions)
    if not series:
        return None
    caption = "From the views that change least to those that change most"
    caption += " (in brackets the dimension of one image's views)" if dimensions else ""
    caption += ". Filled: trained, ± one standard deviation over seeds; hollow: the same encoder untrained; thin lines: published."
    return chart.lines(
        series, title="Probe accuracy by views and encoder", x_label="views", y_label="accuracy", x_names=names,
        references=[] if pixels is None else [("raw pixels", pixels)], caption=caption,
    )  # fmt: skip


def accuracy_series(
    cells: Sequence[Cell], dimensions: Mapping[str, str]
) -> tuple[list[str], list[chart.Series], float | None]:
    """The views in order, a trained and an untrained line for each encoder, and the accuracy of raw pixels."""
    regimes = sorted({_regime(c) for c in cells if c.stat("probe_accuracy").mean is not None})
    place = {views: float(i) for i, (_, views) in enumerate(regimes)}
    series = []
    for i, encoder in enumerate(dict.fromkeys(str(c.settings.get("encoder")) for c in cells)):
        mine = sorted((c for c in cells if str(c.settings.get("encoder")) == encoder), key=_regime)
        for key, text, style in (
            ("probe_accuracy", "", "measured"),
            ("untrained_accuracy", ", untrained", "published"),
        ):
            points = [
                (place[str(c.settings.get("views"))], s.mean, s.sd)
                for c in mine
                if (s := c.stat(key)).mean is not None and str(c.settings.get("views")) in place
            ]
            if points:
                series.append(chart.Series(encoder + text, points, style, i))
        told = [
            (place[views], c.beside("published", "probe_accuracy"))
            for c in mine
            if (views := str(c.settings.get("views"))) in place
        ]
        theirs: list[tuple[float, float, float | None]] = [(x, v, None) for x, v in told if v is not None]
        if theirs:
            series.append(chart.Series(encoder + ", published", theirs, "predicted", i))
    names = [views + (f" ({dimensions[views]})" if views in dimensions else "") for _, views in regimes]
    return names, series, gather.stat(c.stat("pixels_accuracy").mean for c in cells).mean


def support_dimensions(audits: Sequence[dict[str, object]]) -> dict[str, str]:
    """The support dimension that audits found, by the name of the views."""
    found = {}
    for document in audits:
        views, support = document.get("views"), document.get("support")
        value = gather.number(support.get("views_dim")) if isinstance(support, dict) else None
        if isinstance(views, str) and value is not None:
            found[views] = gather.show(value, 1)
        others = document.get("pipelines")
        if isinstance(others, list):
            found.update(support_dimensions([o for o in others if isinstance(o, dict)]))
    return found
