"""One self-contained HTML page from records: no other file, no request, no script but its own."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from viewspan.records import Record
from viewspan.report import audits, gather, images, synthetic
from viewspan.report.gather import Cell
from viewspan.report.synthetic import Value

MOST_SPHERES = 70  # about 8 kB each
MOST_OF_ONE = 40
MOST_AUDITS = 20
MOST_SKIPPED = 50
MOST_OTHERS = 300


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["show"] = gather.show
    return environment


def _asset(name: str) -> str:
    return Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8").strip()


def page(
    found: Sequence[tuple[Path, Record]],
    skipped: Sequence[tuple[Path, str]] = (),
    *,
    title: str = "viewspan report",
) -> str:
    """The page of some records.

    Args:
        found: each record with the path it was read from (its sidecar lies beside it).
        skipped: files that were no readable records, each with the reason.
        title: the page's heading.

    Returns:
        HTML. Whatever the records hold is shown as text.
    """
    experiments = gather.by_experiment(found)
    experiments = dict(sorted(experiments.items(), key=lambda item: _place(item[0])))
    held = [
        (path, record)
        for name in ("audit",)
        for cell in experiments.get(name, ())
        for path, record in cell.runs
    ]
    dimensions = images.support_dimensions([record.result for _, record in held])
    made, pictures, others, room = [], [], [], MOST_SPHERES
    for name, cells in experiments.items():
        if name == "audit":
            continue
        if synthetic.is_synthetic(cells):
            made.append(synthetic.section(name, cells, min(MOST_OF_ONE, room)))
            room -= len(made[-1].spheres)
        elif images.is_image(cells):
            pictures.append(images.section(name, cells, dimensions))
        else:
            others.append(_plain(name, cells))
    header, rows = provenance(found)
    script = _asset("page.js")
    kept = sum(len(cell.runs) for cells in experiments.values() for cell in cells)
    return _environment().get_template("page.html.j2").render(
        title=title,
        lead=_lead(found, experiments),
        synthetic=made,
        audits=[audits.view(path, record) for path, record in held[:MOST_AUDITS]],
        images=pictures,
        others=others,
        n_records=len(found),
        replaced=len(found) - kept,
        provenance_header=header,
        provenance=rows,
        skipped=[reason for _, reason in skipped[:MOST_SKIPPED]],
        n_skipped=len(skipped),
        data={"sections": [{"latents": s.latents, "spheres": [vars(x) for x in s.spheres]} for s in made]},
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=importlib.metadata.version("viewspan"),
    )  # fmt: skip


def audit_page(record: Record, path: Path | None = None) -> str:
    """The page of one audit; `path` is the record's file, if its example views are to be shown."""
    if path is None:
        record = record.model_copy(update={"sidecar": None})
    return page([(path or Path(), record)], title="viewspan audit")


def _place(name: str) -> int:
    order = ("table1", "rho", "progressive", "law", "dose", "tagged", "audit", "cifar10", "train", "probe")
    return order.index(name) if name in order else len(order)


def _lead(found: Sequence[tuple[Path, Record]], experiments: dict[str, list[Cell]]) -> str:
    names = ", ".join(
        f"{name} ({sum(len(cell.runs) for cell in cells)})" for name, cells in experiments.items()
    )
    hours = sum(record.seconds for _, record in found) / 3600
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    return f"{len(found)} finished runs: {names}. They took {spent} of computing."


def provenance(found: Sequence[tuple[Path, Record]]) -> tuple[list[str], list[list[Value]]]:
    """One row for each program, machine and folder that made records."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for path, record in found:
        e = record.environment
        versions = e.get("versions")
        packages = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else ""
        known = [
            e.get(k) for k in ("commit", "source", "python", "platform", "device", "precision", "threads")
        ]
        key = (record.experiment, str(path.parent), packages, *("" if v is None else str(v) for v in known))
        groups.setdefault(key, []).append(record)
    header = [
        "experiment",
        "folder",
        "packages",
        "commit",
        "source",
        "python",
        "platform",
        "device",
        "precision",
    ]
    header += ["threads", "records", "seconds", "finished (UTC)"]
    rows = []
    for key, group in list(groups.items())[:100]:
        ends = [r.finished for r in group if r.finished > 0]
        seconds = sum(r.seconds for r in group)
        when = f"{_day(min(ends))} to {_day(max(ends))}" if ends else gather.ABSENT
        row = [Value(text or gather.ABSENT, text) for text in key]
        row[3] = Value(key[3][:12] + ("+changes" if "+" in key[3] else "") or gather.ABSENT, key[3])
        row += [
            Value(str(len(group)), len(group)),
            Value(f"{seconds:.0f}", seconds),
            Value(when, max(ends, default=0.0)),
        ]
        rows.append(row)
    return header, rows


def _day(moment: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))
    except (OverflowError, ValueError, OSError):
        return gather.ABSENT


def _plain(name: str, cells: list[Cell]) -> synthetic.Section:
    """Results of an experiment of one's own: settings and numbers, as they are."""
    made = synthetic.Section(name, name.replace("_", " "), [])
    keys = gather.columns(cells)
    numbers = list(dict.fromkeys(
        key for cell in cells for _, r in cell.runs for key, value in r.result.items() if gather.number(value) is not None
    ))[:20]  # fmt: skip
    made.header = [*keys, "seeds", *numbers]
    for cell in cells[:MOST_OTHERS]:
        row: list[Value] = [synthetic.setting(cell.settings.get(k)) for k in keys]
        row.append(Value(str(len(cell.runs)), len(cell.runs)))
        for key in numbers:
            found: Any = cell.stat(key)
            row.append(
                Value(gather.show_stat(found, 4), found.mean if found.mean is not None else float("-inf"))
            )
        made.rows.append(row)
    return made
