"""Tables for papers and spreadsheets: CSV and LaTeX, mean and standard deviation with the number of seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from viewspan.records import Record, write_atomic
from viewspan.report import audits, gather, synthetic
from viewspan.report.gather import Cell

# key, its name in print, factor on the measured and predicted value in print, digits
MEASURES = (
    ("r2", "$R^2$", 1.0, 3),
    ("mcc", "mean corr.", 1.0, 2),
    ("ape", "APE/2", 0.5, 3),
    ("loss_minus_log_m", r"$L - \log M$", 1.0, 3),
    ("above_floor", "above floor", 1.0, 3),
    ("probe_accuracy", "probe", 1.0, 3),
    ("knn_accuracy", "kNN", 1.0, 3),
    ("untrained_accuracy", "untrained", 1.0, 3),
    ("pixels_accuracy", "pixels", 1.0, 3),
)
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {c: "\\" + c for c in "&%$#_{}"}


def save(found: Sequence[tuple[Path, Record]], folder: Path) -> list[Path]:
    """Write ``EXPERIMENT.csv`` and ``EXPERIMENT.tex`` for every experiment, and ``audit-factors`` for audits.

    The CSV holds every number as it is (APE in [0, 2]); the LaTeX table is for print (APE halved, and says so).
    """
    made = []
    for name, cells in gather.by_experiment(found).items():
        if name == "audit":
            text, latex = _factors(cells)
            name = "audit-factors"
        else:
            cells = synthetic.in_order(name, cells)
            text, latex = as_csv(cells), as_latex(name, cells)
        for suffix, content in ((".csv", text), (".tex", latex)):
            path = folder / f"{name}{suffix}"
            write_atomic(path, content.encode())
            made.append(path)
    return made


def as_csv(cells: Sequence[Cell]) -> str:
    """One line a cell: settings, seeds, then mean, sd, published and predicted of every number."""
    keys = gather.columns(cells)
    numbers = _numbers(cells)
    beside = [
        (what, key)
        for key in numbers
        for what in ("published", "predicted")
        if any(c.beside(what, key) is not None for c in cells)
    ]
    header = [
        *keys,
        "seeds",
        *(f"{key}{end}" for key in numbers for end in ("", "_sd")),
        *(f"{key}_{what}" for what, key in beside),
    ]
    rows = []
    for cell in cells:
        values = [v for key in numbers for v in (cell.stat(key).mean, cell.stat(key).sd)]
        values += [cell.beside(what, key) for what, key in beside]
        row = [_plain(cell.settings.get(k)) for k in keys] + [str(len(cell.runs))]
        rows.append([*row, *("" if v is None else repr(v) for v in values), _words(cell)])
    return _csv([*header, "diagnosis"], rows)


def _numbers(cells: Sequence[Cell]) -> list[str]:
    """The numbers of the results: the known ones in their order, then all others."""
    present = dict.fromkeys(
        key
        for cell in cells
        for _, r in cell.runs
        for key, v in r.result.items()
        if gather.number(v) is not None
    )
    known = [key for key, *_ in MEASURES if key in present]
    return known + [key for key in present if key not in known]


def _plain(value: object) -> str:
    return "" if value is None else str(value)


def _words(cell: Cell) -> str:
    return "; ".join(f"{kind} x {count}" for kind, count in cell.words("diagnosis").items())


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(SPECIAL.get(c, c) for c in text)


def as_latex(name: str, cells: Sequence[Cell]) -> str:
    r"""A ``tabular`` (needs ``\usepackage{booktabs}``): mean ± sd, the published value in brackets."""
    keys = gather.columns(cells)
    measures = [m for m in MEASURES if any(cell.stat(m[0]).mean is not None for cell in cells)]
    header = [escape(k.replace("_", " ")) for k in keys] + ["seeds"] + [title for _, title, _, _ in measures]
    lines = [
        f"% {escape(name)}: mean $\\pm$ standard deviation over seeds (published value). APE is halved, as published.",
        rf"\begin{{tabular}}{{{'l' * len(keys)}{'r' * (1 + len(measures))}}}",
        r"\toprule",
        " & ".join(header) + r" \\",
        r"\midrule",
    ]
    for cell in cells:
        row = ["--" if cell.settings.get(k) is None else _setting(cell.settings[k]) for k in keys]
        row.append(str(len(cell.runs)))
        row += [_printed(cell, *m) for m in measures]
        lines.append(" & ".join(row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _setting(value: object) -> str:
    return escape(gather.plain(value).replace(gather.MINUS, "-"))


def _printed(cell: Cell, key: str, _: str, factor: float, digits: int) -> str:
    s = cell.stat(key)
    if s.mean is None:
        return "--"
    inside = f"{s.mean * factor:.{digits}f}"
    if s.sd is not None:
        inside += rf" \pm {s.sd * factor:.{digits}f}"
    published = cell.beside("published", key)
    return f"${inside}$" + ("" if published is None else f" (${published:.{digits}f}$)")


def _factors(cells: Sequence[Cell]) -> tuple[str, str]:
    """Factors of every audited pipeline."""
    rows = []
    for cell in cells:
        for _, record in cell.runs:
            for d in _documents(record.result):
                for f in audits.dicts(d.get("factors")):
                    ends = f.get("interval")
                    low, high = ends if isinstance(ends, list) and len(ends) == 2 else (None, None)
                    numbers = [gather.number(x) for x in (f.get("icc"), low, high, f.get("reach"))]
                    texts = [_plain(d.get("source")), _plain(d.get("views")), _plain(f.get("name"))]
                    rows.append((texts, numbers, _plain(f.get("verdict"))))
    header = ["source", "views", "factor", "icc", "icc_low", "icc_high", "reach", "verdict"]
    text = _csv(header, [[*t, *("" if n is None else repr(n) for n in ns), v] for t, ns, v in rows])
    lines = [r"\begin{tabular}{lllrrrrl}", r"\toprule"]
    lines += [" & ".join(escape(h.replace("_", " ")) for h in header) + r" \\", r"\midrule"]
    for texts, numbers, verdict in rows:
        values = ["--" if n is None else f"${n:.3f}$" for n in numbers]
        lines.append(" & ".join([*map(escape, texts), *values, escape(verdict)]) + r" \\")
    return text, "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _documents(document: dict[str, Any]) -> list[dict[str, Any]]:
    """An audit and the audits of its further pipelines."""
    return [document, *audits.dicts(document.get("pipelines"))]
