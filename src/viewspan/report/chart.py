"""Charts as inline SVG: they follow the page's theme, print, and name every mark; markers differ, not colours alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from viewspan.report.gather import ABSENT, MINUS, show

WIDTH, HEIGHT = 500, 310
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 12, 46
SHAPES = 7


@dataclass
class Series:
    """One line of a chart: `(x, y, sd or None)` points.

    `style` is ``measured`` (filled marks, a line), ``published`` (hollow marks, dashes), ``predicted`` (a thin line)
    or ``curve`` (a line without marks).
    """

    label: str
    points: list[tuple[float, float, float | None]]
    style: str = "measured"
    colour: int = 0


@dataclass
class Figure:
    """A drawing, its caption and the values behind it."""

    title: str
    svg: Markup
    caption: str
    header: list[str]
    rows: list[list[str]]
    legend: list[tuple[str, Markup]] = field(default_factory=list)


def tick(value: float) -> str:
    """A tick's label."""
    return f"{value:.6g}".replace("-", MINUS)


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers covering [low, high]."""
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= raw)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def mark(x: float, y: float, shape: int, *, hollow: bool, title: str) -> Markup:
    """A marker; the shape, not only the colour, tells the series."""
    r = 4.2 if not hollow else 6.0
    paths = [
        f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z",
        f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}Z",
        f"M{x:.1f} {y - 1.2 * r:.1f}l{1.2 * r:.1f} {2 * r:.1f}h{-2.4 * r:.1f}Z",
        f"M{x:.1f} {y - 1.3 * r:.1f}l{1.3 * r:.1f} {1.3 * r:.1f}l{-1.3 * r:.1f} {1.3 * r:.1f}l{-1.3 * r:.1f} {-1.3 * r:.1f}Z",
        f"M{x:.1f} {y + 1.2 * r:.1f}l{1.2 * r:.1f} {-2 * r:.1f}h{-2.4 * r:.1f}Z",
        f"M{x - r:.1f} {y - r / 3:.1f}h{2 * r / 3:.1f}v{-2 * r / 3:.1f}h{2 * r / 3:.1f}v{2 * r / 3:.1f}h{2 * r / 3:.1f}"
        f"v{2 * r / 3:.1f}h{-2 * r / 3:.1f}v{2 * r / 3:.1f}h{-2 * r / 3:.1f}v{-2 * r / 3:.1f}h{-2 * r / 3:.1f}Z",
        f"M{x - 1.3 * r:.1f} {y:.1f}l{0.65 * r:.1f} {-1.1 * r:.1f}h{1.3 * r:.1f}l{0.65 * r:.1f} {1.1 * r:.1f}"
        f"l{-0.65 * r:.1f} {1.1 * r:.1f}h{-1.3 * r:.1f}Z",
    ]
    kind = "hollow" if hollow else "filled"
    return Markup('<path class="mark {}" d="{}"><title>{}</title></path>').format(
        kind, paths[shape % SHAPES], title
    )


def lines(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    caption: str = "",
    references: Sequence[tuple[str, float]] = (),
    y_span: tuple[float, float] | None = None,
    x_names: Sequence[str] = (),
) -> Figure:
    """Curves over a number (or over named places 0, 1, …), error bars of one sd, named horizontal lines."""
    series = [s for s in series if s.points]
    xs = [x for s in series for x, _, _ in s.points]
    ys = [y + k * (sd or 0) for s in series for _, y, sd in s.points for k in (-1, 1)]
    ys += [y for _, y in references]
    x_ticks = [float(i) for i in range(len(x_names))] or ticks(min(xs), max(xs))
    y_ticks = ticks(*(y_span or (min(ys), max(ys))))
    low, high = min([*xs, *x_ticks[1:-1]]), max([*xs, *x_ticks[1:-1]])
    if low == high:
        low, high = low - 0.5, high + 0.5
    pad = (0.12 if x_names else 0.02) * (high - low)

    def named(x: float) -> str:
        return x_names[round(x)] if x_names else tick(x)

    def px(x: float) -> float:
        return LEFT + (x - low + pad) / (high - low + 2 * pad) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (HEIGHT - TOP - BOTTOM)

    body = [
        _axes([(px(x), named(x)) for x in x_ticks if low <= x <= high], [(py(y), tick(y)) for y in y_ticks])
    ]
    body.append(_labels(x_label, y_label))
    rules = [(name, y, py(y)) for name, y in references]
    body += [
        Markup('<path class="reference" d="M{} {:.1f}H{}"/>').format(LEFT, at, WIDTH - RIGHT)
        for _, _, at in rules
    ]
    behind = ("published", "predicted", "curve", "measured")
    body += [_drawn(s, px, py) for s in sorted(series, key=lambda s: behind.index(s.style))]
    for i, (name, _, at) in enumerate(rules):  # above the curves, at either end in turn
        x, anchor = (LEFT + 6, "start") if i % 2 == 0 else (WIDTH - RIGHT - 4, "end")
        text = Markup('<text class="small" x="{}" y="{:.1f}" text-anchor="{}">{}</text>')
        body.append(text.format(x, at - 4, anchor, name))
    svg = frame(body, title)
    legend = [(s.label, sample(s)) for s in series]
    header, rows = _values(series, x_label, references)
    if x_names:
        rows = [[x_names[round(float(row[0]))], *row[1:]] for row in rows]
    return Figure(title, svg, caption, header, rows, legend)


def _axes(x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]]) -> Markup:
    parts = [
        Markup(
            '<path class="grid" d="M{} {y}H{}"/><text class="tick" x="{}" y="{t}" text-anchor="end">{}</text>'
        ).format(LEFT, WIDTH - RIGHT, LEFT - 8, text, y=f"{y:.1f}", t=f"{y + 4:.1f}")
        for y, text in y_ticks
    ]
    parts += [
        Markup(
            '<path class="axis" d="M{x} {}v5"/><text class="tick" x="{x}" y="{}" text-anchor="middle">{}</text>'
        ).format(HEIGHT - BOTTOM, HEIGHT - BOTTOM + 18, text, x=f"{x:.1f}")
        for x, text in x_ticks
    ]
    parts.append(Markup('<path class="axis" d="M{} {}H{}"/>').format(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT))
    return Markup("").join(parts)


def _labels(x_label: str, y_label: str) -> Markup:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return Markup(
        '<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>'
        '<text class="label" transform="rotate(-90)" x="{}" y="13" text-anchor="middle">{}</text>'
    ).format((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, -middle, y_label)


def _drawn(s: Series, px: Callable[[float], float], py: Callable[[float], float]) -> Markup:
    points = [(px(x), py(y), x, y, sd) for x, y, sd in s.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, *_ in points)
    parts = [Markup('<path class="line {}" d="{}"/>').format(s.style, path)]
    for x, y, at, value, sd in points:
        if s.style == "measured" and sd:
            top, bottom = py(value + sd), py(value - sd)
            parts.append(
                Markup('<path class="bar" d="M{x} {}V{}m-3 0h6M{} {}h6"/>').format(
                    f"{top:.1f}", f"{bottom:.1f}", f"{x - 3:.1f}", f"{top:.1f}", x=f"{x:.1f}"
                )
            )
        if s.style in ("measured", "published"):
            spread = "" if sd is None else f" ± {sd:.3g}"
            parts.append(
                mark(
                    x,
                    y,
                    s.colour,
                    hollow=s.style == "published",
                    title=f"{s.label}: {tick(at)}, {show(value)}{spread}",
                )
            )
    return Markup('<g class="s{}">{}</g>').format(s.colour % SHAPES, Markup("").join(parts))


def sample(s: Series) -> Markup:
    """The line and mark of a series, for the legend."""
    inside = Markup('<path class="line {}" d="M1 8H31"/>').format(s.style)
    if s.style in ("measured", "published"):
        inside += mark(16, 8, s.colour, hollow=s.style == "published", title=s.label)
    return Markup('<svg class="key s{}" viewBox="0 0 32 16" aria-hidden="true">{}</svg>').format(
        s.colour % SHAPES, inside
    )


def frame(body: Sequence[Markup], title: str, height: int = HEIGHT, kind: str = "") -> Markup:
    """The drawing as one element that screen readers announce by its title."""
    return Markup('<svg class="chart{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        kind, WIDTH, height, title, Markup("").join(body)
    )


def _values(
    series: Sequence[Series], x_label: str, references: Sequence[tuple[str, float]]
) -> tuple[list[str], list[list[str]]]:
    """The figure as a table: one row for each x, one column for each series; at most 60 rows of long curves."""
    xs = sorted({x for s in series for x, _, _ in s.points})
    if len(xs) > 60:
        step = math.ceil(len(xs) / 60)
        xs = [*xs[::step], *([] if (len(xs) - 1) % step == 0 else [xs[-1]])]
    at = [{x: (y, sd) for x, y, sd in s.points} for s in series]
    rows = []
    for x in xs:
        row = [tick(x)]
        for held in at:
            y, sd = held.get(x, (None, None))
            row.append(ABSENT if y is None else show(y, 4) + ("" if sd is None else f" ± {sd:.4f}"))
        rows.append(row + [show(y, 4) for _, y in references])
    return [x_label, *(s.label for s in series), *(name for name, _ in references)], rows


@dataclass(frozen=True)
class Row:
    """One line of a comparison chart."""

    label: str
    measured: float | None
    sd: float | None
    published: float | None
    predicted: float | None


def comparison(rows: Sequence[Row], *, title: str, x_label: str, top: float, caption: str = "") -> Figure:
    """One line a cell: measured with its spread, published and predicted on the same scale."""
    known = [v for r in rows for v in (r.measured, r.published, r.predicted) if v is not None]
    known += [r.measured + k * r.sd for r in rows if r.measured is not None and r.sd for k in (-1, 1)]
    scale = ticks(min(0.0, *known), max(top, *known), 5)
    left, step = 214, 20
    height = TOP + step * len(rows) + BOTTOM

    def px(x: float) -> float:
        return left + (x - scale[0]) / (scale[-1] - scale[0]) * (WIDTH - left - RIGHT - 6)

    body = [
        Markup(
            '<path class="grid" d="M{x} {}V{}"/><text class="tick" x="{x}" y="{}" text-anchor="middle">{}</text>'
        ).format(TOP, height - BOTTOM, height - BOTTOM + 18, tick(x), x=f"{px(x):.1f}")
        for x in scale
    ]
    body.append(
        Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            f"{(left + WIDTH - RIGHT) / 2:.0f}", height - 8, x_label
        )
    )
    for i, r in enumerate(rows):
        body.append(_comparison_row(r, TOP + step * (i + 0.5), px, left))
    keys = [
        (
            "measured, ± sd over seeds",
            Markup('<g class="s0">') + mark(16, 8, 0, hollow=False, title="measured") + Markup("</g>"),
        ),
        (
            "published",
            Markup('<g class="s1">') + mark(16, 8, 3, hollow=True, title="published") + Markup("</g>"),
        ),
        ("predicted", Markup('<path class="cross" d="M11 3l10 10m0 -10l-10 10"/>')),
    ]
    present = [True, any(r.published is not None for r in rows), any(r.predicted is not None for r in rows)]
    legend = [
        (name, Markup('<svg class="key" viewBox="0 0 32 16" aria-hidden="true">{}</svg>').format(drawn))
        for (name, drawn), there in zip(keys, present, strict=True)
        if there
    ]
    header = ["cell", "measured", "sd", "published", "predicted"]
    table = [[r.label, show(r.measured), show(r.sd), show(r.published), show(r.predicted)] for r in rows]
    return Figure(title, frame(body, title, height, " rows"), caption, header, table, legend)


def _comparison_row(r: Row, y: float, px: Callable[[float], float], left: int) -> Markup:
    short = r.label if len(r.label) <= 33 else r.label[:32] + "…"
    parts = [
        Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}<title>{}</title></text>').format(
            left - 10, f"{y + 4:.1f}", short, r.label
        ),
        Markup('<path class="grid faint" d="M{} {y}H{}"/>').format(left, WIDTH - RIGHT, y=f"{y:.1f}"),
    ]
    if r.measured is not None and r.published is not None:
        parts.append(
            Markup('<path class="link" d="M{} {y}H{}"/>').format(
                f"{px(r.measured):.1f}", f"{px(r.published):.1f}", y=f"{y:.1f}"
            )
        )
    if r.published is not None:
        drawn = mark(px(r.published), y, 3, hollow=True, title=f"{r.label}: published {show(r.published)}")
        parts.append(Markup('<g class="s1">{}</g>').format(drawn))
    if r.measured is not None:
        inside = mark(px(r.measured), y, 0, hollow=False, title=f"{r.label}: measured {show(r.measured)}")
        if r.sd:
            inside = (
                Markup('<path class="bar" d="M{} {y}H{}"/>').format(
                    f"{px(r.measured - r.sd):.1f}", f"{px(r.measured + r.sd):.1f}", y=f"{y:.1f}"
                )
                + inside
            )
        parts.append(Markup('<g class="s0">{}</g>').format(inside))
    if r.predicted is not None:
        x = px(r.predicted)
        parts.append(
            Markup('<path class="cross" d="M{} {}l8 8m0 -8l-8 8"><title>{}</title></path>').format(
                f"{x - 4:.1f}", f"{y - 4:.1f}", f"{r.label}: predicted {show(r.predicted)}"
            )
        )
    return Markup("").join(parts)


def interval(low: float | None, value: float | None, high: float | None, *, title: str) -> Markup:
    """A number in [0, 1] with its interval, small enough for a table's cell (values outside are drawn at the edge)."""
    if value is None:
        return Markup(escape(ABSENT))

    def px(x: float) -> float:
        return 6 + 108 * min(1.0, max(0.0, x))

    bar = Markup("")
    if low is not None and high is not None:
        bar = Markup('<path class="bar" d="M{} 9H{}"/>').format(f"{px(low):.1f}", f"{px(high):.1f}")
    return Markup(
        '<svg class="interval s0" viewBox="0 0 120 18" role="img" aria-label="{}">'
        '<path class="grid" d="M6 4v10M114 4v10M6 9H114"/>{}{}</svg>'
    ).format(title, bar, mark(px(value), 9, 0, hollow=False, title=title))
