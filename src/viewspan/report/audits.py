"""Audits of views: verdicts, factors with intervals, operations against factors, support, examples, faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from viewspan import records
from viewspan.records import Record
from viewspan.report import chart, gather, pictures

MOST_EXAMPLES = 6  # anchors
MOST_VIEWS = 8
LARGEST_EXAMPLE = 96  # pixels a side


@dataclass
class Factor:
    """One line of the table of factors."""

    name: str
    icc: float | None
    interval: str
    drawn: Markup
    reach: str
    verdict: str
    reason: str


@dataclass
class HeatMap:
    """How far each operation alone moves each factor: S = 1 − ICC, 0 to 1."""

    factors: list[str]
    rows: list[tuple[str, list[tuple[str, float | None]], list[str], str]]


@dataclass
class AuditView:
    """One audited pipeline, or one set of pairs."""

    title: str
    verdict: str
    sentence: str
    facts: list[tuple[str, str]]
    factors: list[Factor]
    operations: HeatMap | None
    support: list[tuple[str, str]]
    held: list[str]
    lint: list[dict[str, str]]
    gates: list[tuple[str, bool, str]]
    comparison: list[str]
    notes: list[str]
    skipped: list[tuple[str, str]]
    examples: list[list[str]] = field(default_factory=list)
    others: list[AuditView] = field(default_factory=list)


def view(path: Path, record: Record) -> AuditView:
    """What the page shows of an audit's record."""
    made = document(record.result)
    try:
        made.examples = _examples(records.read_arrays(path, record))
    except (records.RecordError, ValueError, OSError) as error:
        made.notes.append(str(error))
    return made


def document(d: dict[str, Any]) -> AuditView:
    """The parts of one audit document; what is not there is left out."""
    views = _text(d.get("views"))
    source = _text(d.get("source")) or "data"
    return AuditView(
        title=f"{views} on {source}" if views else source,
        verdict=_text(d.get("verdict")) or "no verdict",
        sentence=_text(d.get("sentence")),
        facts=_facts(d),
        factors=[_factor(f) for f in dicts(d.get("factors"))],
        operations=_operations(d),
        support=_support(d.get("support")),
        held=_held(d),
        lint=[
            {k: _text(f.get(k)) for k in ("id", "message", "fix", "operation")} for f in dicts(d.get("lint"))
        ],
        gates=[
            (
                f"{_text(g.get('factor'))} must be {_text(g.get('requires'))}",
                g.get("met") is True,
                _text(g.get("reason")),
            )
            for g in dicts(d.get("gates"))
        ],
        comparison=_sentences(d.get("comparison")),
        notes=[_text(n) for n in _list(d.get("notes"))],
        skipped=[(_text(s.get("name")), _text(s.get("reason"))) for s in dicts(d.get("skipped"))],
        others=[document(other) for other in dicts(d.get("pipelines"))],
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def dicts(value: Any) -> list[dict[str, Any]]:
    """The dictionaries of a list; nothing of anything else."""
    return [item for item in _list(value) if isinstance(item, dict)]


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else gather.plain(value)


def _facts(d: dict[str, Any]) -> list[tuple[str, str]]:
    found = [
        ("anchors", d.get("n_anchors")),
        ("views each", d.get("n_views")),
        ("copies left out", d.get("duplicates")),
    ]
    return [(name, _text(value)) for name, value in found if gather.number(value) is not None]


def _factor(f: dict[str, Any]) -> Factor:
    icc = gather.number(f.get("icc"))
    ends = [gather.number(x) for x in _list(f.get("interval"))]
    low, high = ends if len(ends) == 2 else (None, None)
    text = gather.ABSENT if low is None or high is None else f"{gather.show(low)} to {gather.show(high)}"
    name = _text(f.get("name"))
    drawn = chart.interval(low, icc, high, title=f"{name}: ICC {gather.show(icc)}, {text}")
    reach = gather.show(gather.number(f.get("reach")), 2)
    return Factor(name, icc, text, drawn, reach, _text(f.get("verdict")), _text(f.get("reason")))


def _operations(d: dict[str, Any]) -> HeatMap | None:
    operations = dicts(d.get("operations"))
    alone: list[Any] = [o.get("alone") if isinstance(o.get("alone"), dict) else {} for o in operations]
    names = list(dict.fromkeys(str(name) for shares in alone for name in shares or {}))
    if not operations or not names:
        return None
    rows = []
    for operation, shares in zip(operations, alone, strict=True):
        values = [(gather.show(v, 2), v) for v in (gather.number((shares or {}).get(n)) for n in names)]
        only = [_text(n) for n in _list(operation.get("only_mover_of"))]
        fired = gather.number(operation.get("fired"))
        rows.append(
            (
                _text(operation.get("name")),
                values,
                only,
                gather.ABSENT if fired is None else f"{100 * fired:.0f} %",
            )
        )
    return HeatMap(names, rows)


def _support(support: Any) -> list[tuple[str, str]]:
    if not isinstance(support, dict):
        return []
    found = []
    for name, key, interval in (
        ("dimension of one anchor's views", "views_dim", "views_interval"),
        ("dimension of the data", "data_dim", "data_interval"),
        ("deficit", "deficit", ""),
        ("rank of the displacements", "displacement_rank", ""),
        ("rank of the local tangent", "tangent_rank", ""),
    ):
        value = gather.number(support.get(key))
        if value is not None:
            ends = [gather.number(x) for x in _list(support.get(interval))]
            span = f" ({gather.show(ends[0], 1)} to {gather.show(ends[1], 1)})" if len(ends) == 2 else ""
            found.append((name, (f"{round(value, 2):g}") + span))
    if support.get("reason"):
        found.append(("remark", _text(support["reason"])))
    return found


def _held(d: dict[str, Any]) -> list[str]:
    summary = d.get("held")
    found = [_text(summary.get("sentence"))] if isinstance(summary, dict) else []
    for direction in dicts(d.get("held_directions")):
        shares = direction.get("correlations")
        pairs = shares.items() if isinstance(shares, dict) else []
        known = [(str(k), gather.number(v)) for k, v in pairs]
        best = sorted(((abs(v), k, v) for k, v in known if v is not None), reverse=True)[:3]
        told = ", ".join(f"{k} {gather.show(v, 2)}" for _, k, v in best)
        share = gather.show(gather.number(direction.get("share")), 4)
        found.append(
            f"{_text(direction.get('status'))}: share moved {share}"
            + (f"; correlates with {told}" if told else "")
        )
    return [text for text in found if text]


def _sentences(value: Any) -> list[str]:
    """The sentences of a comparison, or its entries one a line."""
    if not isinstance(value, dict):
        return []
    told = [_text(value[k]) for k in ("sentence", "note") if isinstance(value.get(k), str)]
    told += [_text(s) for s in _list(value.get("sentences"))]
    return told or [f"{k.replace('_', ' ')}: {_text(v)}" for k, v in value.items() if v is not None]


def _examples(arrays: dict[str, NDArray[Any]]) -> list[list[str]]:
    """Rows of views, one row an anchor, from (anchors, views, …image); larger images are thinned."""
    images = arrays.get("example_views")
    if images is None or images.ndim not in (4, 5):
        return []
    made = []
    for row in images[:MOST_EXAMPLES, :MOST_VIEWS]:
        made.append([pictures.png_uri(_thinned(np.asarray(image))) for image in row])
    return made


def _thinned(image: NDArray[Any]) -> NDArray[Any]:
    first = 1 if image.ndim == 3 and image.shape[0] in (1, 3) and image.shape[2] not in (1, 3) else 0
    step = max(1, -(-max(image.shape[first : first + 2]) // LARGEST_EXAMPLE))
    return image[:, ::step, ::step] if first else image[::step, ::step]
