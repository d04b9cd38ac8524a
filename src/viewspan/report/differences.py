"""What differs between two runs: settings, environment and protocol first, since they explain the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from viewspan import records
from viewspan.records import Record
from viewspan.report import gather

MISSING = "(absent)"


def read_one(path: Path) -> Record:
    """The record in a file, or the only one in a folder."""
    if not path.exists():
        raise ValueError(f"run must be a record or a folder with one, got {path} (no such file)")
    if path.is_file():
        return records.read(path)
    found, skipped = records.read_all([path])
    if len(found) != 1:
        if not found:
            raise ValueError(f"run must be one record; {path} holds none ({len(skipped)} files skipped)")
        names = ", ".join(str(file.relative_to(path)) for file, _ in found[:3]) + (
            ", …" if len(found) > 3 else ""
        )
        raise ValueError(f"run must be one record; {path} holds {len(found)}: name one of {names}")
    return found[0][1]


def compare(first: Record, second: Record) -> dict[str, Any]:
    """The differences of two records.

    Returns:
        ``{"settings", "environment", "protocol", "numbers"}``: lists of ``{"name", "first", "second"}`` for what
        differs (numbers: all that either holds, with ``"difference"``), and ``"same_settings"``.
    """
    protocol: list[tuple[str, Any, Any]] = [("experiment", first.experiment, second.experiment)]
    protocol += [("schema version", first.schema_version, second.schema_version)]
    names = ("m", "n_train", "n_test", "n_anchors", "n_views", "protocol")
    protocol += [(name, first.result.get(name), second.result.get(name)) for name in names]
    numbers = []
    a, b = dict(leaves(first.result)), dict(leaves(second.result))
    for name in dict.fromkeys([*a, *b]):
        x, y = gather.number(a.get(name)), gather.number(b.get(name))
        if x is not None or y is not None:
            difference = y - x if x is not None and y is not None else None
            numbers.append({"name": name, "first": x, "second": y, "difference": difference})
        elif a.get(name, MISSING) != b.get(name, MISSING):
            numbers.append({"name": name, "first": a.get(name), "second": b.get(name), "difference": None})
    return {
        "same_settings": first.settings == second.settings,
        "settings": changed(first.settings, second.settings),
        "environment": changed(first.environment, second.environment),
        "protocol": [{"name": n, "first": x, "second": y} for n, x, y in protocol if x != y],
        "numbers": numbers,
        "seconds": {"first": first.seconds, "second": second.seconds},
    }


def changed(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of two (nested) dictionaries that are not equal."""
    a, b = dict(leaves(first)), dict(leaves(second))
    return [
        {"name": name, "first": a.get(name, MISSING), "second": b.get(name, MISSING)}
        for name in dict.fromkeys([*a, *b])
        if a.get(name, MISSING) != b.get(name, MISSING)
    ]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside dictionaries and lists, under its path.

    Example:
        >>> dict(leaves({"a": {"b": 1}, "c": [2, 3]}))
        {'a.b': 1, 'c[0]': 2, 'c[1]': 3}
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{i}]")
    else:
        yield name, value
