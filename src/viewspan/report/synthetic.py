"""Experiments on synthetic processes: tables, figures, spheres and words from their cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from viewspan import records
from viewspan.report import chart, gather, pictures
from viewspan.report.gather import Cell, Stat

TITLES = {
    "table1": "Recovery by process, pairs, loss and encoder",
    "rho": "Sharing negatives between fibre and sphere: ρ",
    "progressive": "Holding more and more coordinates",
    "law": "Two laws of the pair, and a separate uniformity term",
    "dose": "How much diversity is enough",
    "tagged": "A few pairs known to move everything",
}
# which setting is the axis of an experiment's curves, and what to call it
AXES = {
    "rho": (("rho", "ρ, share of negatives from the anchor's fibre"),),
    "progressive": (("n_fixed", "coordinates held"),),
    "dose": (
        ("share", "ε, share of pairs with full support"),
        ("dose", "ε, share of pairs with full support"),
        ("sigma", "σ, movement of the held coordinate (radians)"),
    ),
    "tagged": (
        ("share", "share of pairs that move everything"),
        ("dose", "share of pairs that move everything"),
    ),
}
MEASURES = (("r2", "R²", 1.0), ("ape", "APE / 2", 0.5))
LOSS = "loss_minus_log_m"
MOST_LINES = 12
MOST_CELLS = 300  # rows of a table on the page; the exported tables hold all


@dataclass
class Value:
    """One cell of a table: its text, what it sorts by, and whether it was measured rather than set or quoted."""

    text: str
    sort: float | str
    measured: bool = False


@dataclass
class Sphere:
    """One pair of point sets for the canvas: anchors are stored once and named by `latents`."""

    label: str
    group: str
    latents: str
    points: str
    how: str


@dataclass
class Section:
    """Everything the page shows of one experiment."""

    name: str
    title: str
    summary: list[str]
    header: list[str] = field(default_factory=list)
    rows: list[list[Value]] = field(default_factory=list)
    left_out: int = 0
    figures: list[chart.Figure] = field(default_factory=list)
    spheres: list[Sphere] = field(default_factory=list)
    latents: dict[str, str] = field(default_factory=dict)
    sentences: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def is_synthetic(cells: Sequence[Cell]) -> bool:
    """Whether an experiment's runs recover known latents."""
    return any("r2" in record.result for cell in cells for _, record in cell.runs)


def section(name: str, cells: list[Cell], room: int) -> Section:
    """The section of one experiment, with at most `room` pairs of spheres."""
    keys = gather.columns(cells)
    axis = [(k, text) for k, text in AXES.get(name, ()) if _varies(cells, k)]
    cells = in_order(name, cells)
    made = Section(name, TITLES.get(name, name.replace("_", " ")), summary(cells))
    _table(made, cells, keys)
    for key, text in axis:
        for measure, symbol, factor in MEASURES:
            drawn = curves(name, cells, keys, key, text, measure, symbol, factor)
            if drawn is not None:
                made.figures.append(drawn)
    if not axis:
        made.figures += _comparisons(cells[:MOST_CELLS], keys)
    made.figures += losses(cells, keys)
    made.problems += [text] if (text := without_curve(cells)) else []
    _spheres(made, cells, keys, room)
    for cell in cells[:MOST_CELLS]:
        for sentence in cell.words("sentence"):
            made.sentences.append((gather.label(cell, keys), sentence))
    return made


def in_order(name: str, cells: Sequence[Cell]) -> list[Cell]:
    """Cells by their settings, those along an experiment's axis last."""
    keys = gather.columns(cells)
    axes = [k for k, _ in AXES.get(name, ()) if k in keys]
    order = [k for k in keys if k not in axes and not any(gather.follows(cells, k, a) for a in axes)] + axes
    return sorted(cells, key=lambda cell: [_sortable(cell.settings.get(k)) for k in order])


def _varies(cells: Sequence[Cell], key: str) -> bool:
    return len({gather.number(cell.settings.get(key)) for cell in cells} - {None}) > 1


def _sortable(value: Any) -> tuple[int, float, str]:
    """Numbers before texts, and the paper's order where it has one."""
    order = (
        "identity",
        "linear",
        "spiral",
        "patches",
        "invertible_mlp",
        "monomial",
        "holds",
        "violated",
        "mlp",
        "inverse",
    )
    known = gather.number(value)
    if known is not None:
        return (0, known, "")
    return (1, float(order.index(value)) if value in order else 99.0, str(value))


def summary(cells: Sequence[Cell]) -> list[str]:
    """What was run and what came out, counted."""
    seeds = [len(cell.runs) for cell in cells]
    each = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    found = [f"{sum(seeds)} runs in {len(cells)} cells, {each} seed{'' if each == '1' else 's'} each."]
    pairs = [(cell.stat("r2").mean, cell.beside("published", "r2")) for cell in cells]
    both = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    if both:
        near = sum(abs(mine - theirs) <= 0.05 for mine, theirs in both)
        found.append(
            f"Mean R² lies within 0.05 of the published value in {near} of {len(both)} cells that have one."
        )
    predicted = [
        (cell.stat("loss_minus_log_m").mean, cell.beside("predicted", "loss_minus_log_m")) for cell in cells
    ]
    told = [abs(mine - theirs) for mine, theirs in predicted if mine is not None and theirs is not None]
    if told:
        near = sum(distance <= 0.05 for distance in told)
        found.append(
            f"The loss lies within 0.05 nats of its prediction in {near} of {len(told)} cells that have one."
        )
    kinds: dict[str, int] = {}
    for cell in cells:
        for kind, count in cell.words("diagnosis").items():
            kinds[kind] = kinds.get(kind, 0) + count
    if kinds:
        ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
        found.append("Diagnoses: " + ", ".join(f"{kind} × {count}" for kind, count in ordered) + ".")
    return found


COLUMNS = (
    ("R²", "r2", 1.0, 3),
    ("mean corr.", "mcc", 1.0, 2),
    ("APE / 2", "ape", 0.5, 3),
    ("loss − log M", "loss_minus_log_m", 1.0, 3),
    ("above floor", "above_floor", 1.0, 3),
)


def _table(made: Section, cells: Sequence[Cell], keys: Sequence[str]) -> None:
    """Measured, published and predicted in columns of their own, so that each sorts."""
    used: list[tuple[str, str, str, float, int]] = []
    for title, key, factor, digits in COLUMNS:
        if any(cell.stat(key).mean is not None for cell in cells):
            used.append((title, "", key, factor, digits))
        # the published APE is half of the definition already; predictions follow the definition
        for what, scale in (("published", 1.0), ("predicted", factor)):
            if any(cell.beside(what, key) is not None for cell in cells):
                used.append((f"{title}, {what[:4]}.", what, key, scale, digits))
    words = any(cell.words("diagnosis") for cell in cells)
    made.header = [k.replace("_", " ") for k in keys] + ["seeds"] + [column[0] for column in used]
    made.header += ["diagnosis"] if words else []
    made.left_out = max(0, len(cells) - MOST_CELLS)
    for cell in cells[:MOST_CELLS]:
        row = [setting(cell.settings.get(k)) for k in keys]
        row.append(Value(str(len(cell.runs)), len(cell.runs)))
        for _, what, key, factor, digits in used:
            found = Stat(cell.beside(what, key), None, ()) if what else cell.stat(key)
            text = gather.show_stat(found, digits, factor)
            row.append(Value(text, -math.inf if found.mean is None else found.mean * factor, not what))
        if words:
            kinds = cell.words("diagnosis")
            text = ", ".join(
                kind if count == len(cell.runs) else f"{kind} × {count}" for kind, count in kinds.items()
            )
            row.append(Value(text or gather.ABSENT, text))
        made.rows.append(row)


def setting(value: Any) -> Value:
    """A setting in a table."""
    known = gather.number(value)
    if value is None:
        return Value(gather.ABSENT, "")
    return Value(gather.plain(value), known if known is not None else str(value))


def curves(
    name: str,
    cells: Sequence[Cell],
    keys: Sequence[str],
    key: str,
    text: str,
    measure: str,
    symbol: str,
    factor: float,
) -> chart.Figure | None:
    """A measure against the experiment's axis."""
    drawn = series(name, cells, keys, key, measure, factor)
    if not drawn:
        return None
    top = max(y + (sd or 0) for s in drawn for _, y, sd in s.points)
    low = min(y - (sd or 0) for s in drawn for _, y, sd in s.points)
    span = (min(0.0, low), max(1.0, top) if measure == "r2" else max(0.1, top))
    caption = "Filled marks: mean over seeds, bars ± one standard deviation. Hollow: published. Thin line: predicted."
    return chart.lines(
        drawn, title=f"{symbol} against {text}", x_label=text, y_label=symbol, caption=caption, y_span=span
    )


def series(
    name: str, cells: Sequence[Cell], keys: Sequence[str], key: str, measure: str, factor: float
) -> list[chart.Series]:
    """A measure against the axis `key`: a line for each other combination of settings (twelve at most)."""
    cells = [
        c
        for c in cells
        if gather.number(c.settings.get(key)) is not None and c.stat(measure).mean is not None
    ]
    if name == "dose":  # two doses in one experiment: each drawn where the other is zero
        other = "share" if key == "sigma" else "sigma"
        cells = [c for c in cells if not gather.number(c.settings.get(other))]
    others = [k for k in keys if k != key and not gather.follows(cells, k, key)]
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(gather.label(cell, others) or "measured", []).append(cell)
    groups = {label: group for label, group in groups.items() if len(group) > 1}
    found: list[chart.Series] = []
    for i, (label, group) in enumerate(list(groups.items())[:MOST_LINES]):
        at = sorted(((gather.number(c.settings[key]) or 0.0, c) for c in group), key=lambda pair: pair[0])
        stats = [(x, c.stat(measure)) for x, c in at]
        points = [
            (x, s.mean * factor, None if s.sd is None else s.sd * factor)
            for x, s in stats
            if s.mean is not None
        ]
        found.append(chart.Series(label, points, "measured", i))
        for what, scale in (("published", 1.0), ("predicted", factor)):
            beside = [(x, c.beside(what, measure)) for x, c in at]
            theirs: list[tuple[float, float, float | None]] = [
                (x, v * scale, None) for x, v in beside if v is not None
            ]
            if theirs:
                found.append(
                    chart.Series(what if label == "measured" else f"{label}, {what}", theirs, what, i)
                )
    return found


def _comparisons(cells: Sequence[Cell], keys: Sequence[str]) -> list[chart.Figure]:
    made = []
    for measure, symbol, factor in MEASURES:
        rows = []
        for cell in cells[:60]:
            s = cell.stat(measure)
            if s.mean is None:
                continue
            predicted = cell.beside("predicted", measure)
            rows.append(
                chart.Row(
                    gather.label(cell, keys), s.mean * factor, None if s.sd is None else s.sd * factor,
                    cell.beside("published", measure), None if predicted is None else predicted * factor,
                )
            )  # fmt: skip
        if rows:
            made.append(
                chart.comparison(
                    rows,
                    title=f"{symbol} beside what was published and predicted",
                    x_label=symbol,
                    top=1.0 if measure == "r2" else 0.1,
                )
            )
    return made


def losses(cells: Sequence[Cell], keys: Sequence[str]) -> list[chart.Figure]:
    """Loss over training, less the log of its own number of negatives; one drawing a process, six at most."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(str(cell.settings.get("process", "runs")), []).append(cell)
    made = []
    for process, group in list(groups.items())[:6]:
        others = [k for k in keys if k != "process"]
        series = []
        for i, cell in enumerate(_spread_out(group, chart.SHAPES)):
            points = mean_loss(cell)
            if len(points) > 1:
                series.append(chart.Series(gather.label(cell, others) or process, points, "curve", i))
        if not series:
            continue
        title = "Loss during training" + (f": {process.replace('_', ' ')}" if len(groups) > 1 else "")
        unit = (
            "step" if any("step" in record.history for cell in group for _, record in cell.runs) else "epoch"
        )
        shown = "" if len(group) <= chart.SHAPES else f" {chart.SHAPES} of {len(group)} cells, evenly chosen."
        made.append(
            chart.lines(
                series, title=title, x_label=unit, y_label="loss − log M (nats)", references=_references(group),
                caption=f"Mean over seeds of the training batches' loss, less log M of the same batch.{shown}",
            )
        )  # fmt: skip
    return made


def _spread_out(cells: Sequence[Cell], most: int) -> list[Cell]:
    if len(cells) <= most:
        return list(cells)
    return [cells[round(i * (len(cells) - 1) / (most - 1))] for i in range(most)]


def mean_loss(cell: Cell) -> list[tuple[float, float, float | None]]:
    """The mean over seeds of loss − log M, as training recorded it, at up to 120 steps; empty where it did not."""
    at: dict[float, list[float]] = {}
    for _, record in cell.runs:
        steps = record.history.get("step") or record.history.get("epoch") or []
        for step, value in zip(steps, record.history.get(LOSS) or [], strict=False):
            if step is not None and value is not None and math.isfinite(value):
                at.setdefault(step, []).append(value)
    xs = sorted(x for x, values in at.items() if len(values) == max(map(len, at.values())))
    stride = max(1, len(xs) // 120)
    return [(x, sum(at[x]) / len(at[x]), None) for x in xs[::stride]]


def without_curve(cells: Sequence[Cell]) -> str:
    """How many runs kept a loss but not loss − log M, which cannot be told afterwards; empty if none."""
    kept = [record.history for cell in cells for _, record in cell.runs if record.history.get("loss")]
    missing = sum(not history.get(LOSS) for history in kept)
    if not missing:
        return ""
    return f"No loss curve for {missing} of {len(kept)} runs: their records hold no loss − log M."


def _references(cells: Sequence[Cell]) -> list[tuple[str, float]]:
    """The floor of the standard loss, and the loss of an isometry where the runs agree on it."""
    floors, isometries = set(), set()
    for cell in cells:
        for _, record in cell.runs:
            loss, above = (gather.number(record.result.get(k)) for k in ("loss_minus_log_m", "above_floor"))
            if loss is not None and above is not None:
                floors.add(round(loss - above, 4))
            isometry = gather.number(record.result.get("orthogonal_loss"))
            if isometry is not None:
                of = ", ".join(str(cell.settings[k]) for k in ("pairs", "loss") if k in cell.settings)
                isometries.add((of, round(isometry, 4)))
    found = [("floor of the standard loss", floors.pop())] if len(floors) == 1 else []
    if len({name for name, _ in isometries}) == len(isometries) <= 3:
        found += [(f"isometry, {name}", value) for name, value in sorted(isometries)]
    return found


def _spheres(made: Section, cells: Sequence[Cell], keys: Sequence[str], room: int) -> None:
    """The first seed of each cell, grouped by process."""
    others = [k for k in keys if k != "process"]
    kept = [cell for cell in cells if cell.runs[0][1].sidecar is not None]
    for cell in _spread_out(kept, room) if room > 1 else []:
        path, record = cell.runs[0]
        try:
            arrays = records.read_arrays(path, record)
            if not {"z", "h"} <= arrays.keys():
                continue
            z, h, how = pictures.aligned(arrays["z"], arrays["h"])
        except (records.RecordError, ValueError, OSError) as error:
            made.problems.append(str(error))
            continue
        packed = pictures.packed(z)
        name = next((n for n, held in made.latents.items() if held == packed), f"z{len(made.latents)}")
        made.latents[name] = packed
        group = str(cell.settings.get("process", "runs"))
        made.spheres.append(Sphere(gather.label(cell, others) or group, group, name, pictures.packed(h), how))
