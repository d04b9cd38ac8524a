"""The paper's figures from records, as SVG and PNG files (needs matplotlib, the `figures` extra)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viewspan import records
from viewspan.records import Record
from viewspan.report import gather, images, pictures, synthetic
from viewspan.report.gather import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0b5cad", "#c2410c", "#1a7f5a", "#8b3fa8", "#8a6d00", "#b0256f", "#4a5563")
MARKS = "os^DvPh"
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.hashsalt": "viewspan",
    "figure.constrained_layout.use": True,
}


def save(found: Sequence[tuple[Path, Record]], folder: Path) -> list[Path]:
    """Draw what the records allow: spheres, curves against each experiment's axis, accuracy by views.

    Returns:
        The files written, an SVG and a PNG of each figure; equal records give equal SVG files.
    """
    import matplotlib

    made: list[Path] = []
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(found):
            for suffix in ("svg", "png"):
                buffer = io.BytesIO()
                metadata: dict[str, Any] = {"Date": None} if suffix == "svg" else {"Software": None}
                figure.savefig(buffer, format=suffix, dpi=200, metadata=metadata)
                path = folder / f"{name}.{suffix}"
                records.write_atomic(path, buffer.getvalue())
                made.append(path)
    return made


def _figures(found: Sequence[tuple[Path, Record]]) -> list[tuple[str, Figure]]:
    experiments = gather.by_experiment(found)
    audits = [r.result for cell in experiments.get("audit", ()) for _, r in cell.runs]
    made: list[tuple[str, Figure | None]] = []
    for name, cells in experiments.items():
        if synthetic.is_synthetic(cells):
            cells = synthetic.in_order(name, cells)
            made += [(f"{name}-spheres-{group}", drawn) for group, drawn in _spheres(cells)]
            keys = gather.columns(cells)
            for key, text in synthetic.AXES.get(name, ()):
                if len({gather.number(c.settings.get(key)) for c in cells} - {None}) > 1:
                    made.append((f"{name}-{key}", _curves(name, cells, keys, key, text)))
        elif images.is_image(cells):
            made.append((f"{name}-accuracy", _accuracies(cells, images.support_dimensions(audits))))
    return [(name, drawn) for name, drawn in made if drawn is not None]


def _new(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _spheres(cells: Sequence[Cell]) -> list[tuple[str, Figure]]:
    """Latents, then what each cell of a process recovered, the points coloured by the first latent coordinate."""
    keys = [k for k in gather.columns(cells) if k != "process"]
    groups: dict[str, list[tuple[str, Any, Any]]] = {}
    for cell in cells:
        path, record = cell.runs[0]
        if record.sidecar is None:
            continue
        try:
            arrays = records.read_arrays(path, record)
            z, h, _ = pictures.aligned(arrays["z"], arrays["h"])
        except (records.RecordError, KeyError, ValueError):  # the page names these; there is nothing to draw
            pass
        else:
            groups.setdefault(str(cell.settings.get("process", "runs")), []).append(
                (gather.label(cell, keys), z, h)
            )
    made = []
    for group, drawn in groups.items():
        panels = [("latents", drawn[0][1], drawn[0][1]), *drawn[:5]]
        figure = _new(2.3 * len(panels), 2.6)
        for i, (label, z, h) in enumerate(panels):
            axes: Any = figure.add_subplot(1, len(panels), i + 1, projection="3d")
            axes.scatter(
                h[:, 1], h[:, 2], h[:, 0], c=z[:, 0], s=3, cmap="viridis", vmin=-1, vmax=1, depthshade=True
            )
            axes.set_box_aspect((1, 1, 1), zoom=1.45)
            axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
            axes.set_axis_off()
            axes.set_title(label, fontsize=8)
        made.append((group, figure))
    return made


def _curves(name: str, cells: Sequence[Cell], keys: Sequence[str], key: str, text: str) -> Figure | None:
    """R² and APE/2 side by side: measured ± sd, published (hollow), predicted (thin line)."""
    drawn = [
        (symbol, found)
        for measure, symbol, factor in synthetic.MEASURES
        if (found := synthetic.series(name, cells, keys, key, measure, factor))
    ]
    if not drawn:
        return None
    figure = _new(4.4 * len(drawn), 3.4)
    for i, (symbol, found) in enumerate(drawn):
        axes = figure.add_subplot(1, len(drawn), i + 1)
        _draw(axes, found)
        axes.set(xlabel=text, ylabel=symbol)
    axes.legend(fontsize=7)
    return figure


def _draw(axes: Any, found: Sequence[Any]) -> None:
    for s in found:
        x, y = [p[0] for p in s.points], [p[1] for p in s.points]
        colour, mark = COLOURS[s.colour % 7], MARKS[s.colour % 7]
        if s.style == "measured":
            axes.errorbar(
                x, y, [p[2] or 0 for p in s.points], color=colour, marker=mark, ms=4, capsize=2, label=s.label
            )
        elif s.style == "published":
            axes.plot(x, y, color=colour, marker=mark, ms=8, mfc="none", ls=":", lw=0.8, label=s.label)
        else:
            axes.plot(x, y, color=colour, lw=0.8, label=s.label)


def _accuracies(cells: Sequence[Cell], dimensions: dict[str, str]) -> Figure | None:
    """Probe accuracy by views and encoder, the untrained encoder hollow, raw pixels a dashed line."""
    names, found, pixels = images.accuracy_series(cells, dimensions)
    if not found:
        return None
    figure = _new(5.2, 3.6)
    axes = figure.add_subplot()
    _draw(axes, found)
    if pixels is not None:
        axes.axhline(pixels, color="0.4", ls="--", lw=1, label="raw pixels")
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="linear probe accuracy")
    axes.legend(fontsize=7)
    return figure
