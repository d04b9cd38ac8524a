"""`viewspan report` and `viewspan diff`: read records, write or print what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from viewspan.cli import terminal

if TYPE_CHECKING:
    from rich.console import Console


def report(
    *runs: Annotated[Path, Parameter(help="Folders of records (with the folders inside), or record files.")],
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The page to write.")] = Path(
        "report.html"
    ),
    figures: Annotated[Path | None, Parameter(help="Folder for figures as SVG and PNG.")] = None,
    tables: Annotated[Path | None, Parameter(help="Folder for tables as CSV and LaTeX.")] = None,
    title: Annotated[str, Parameter(help="Heading of the page.")] = "viewspan report",
) -> int:
    """One self-contained HTML page from records: no network needed to read it; figures and tables on request.

    Files that are no readable records are named, counted and skipped.
    """
    import sys

    from viewspan import records
    from viewspan.report import page

    if not runs:
        raise ValueError("runs must name at least one folder or record")
    for path in runs:
        if not path.exists():
            raise ValueError(f"runs must be folders or records, got {path} (no such file)")
    if output.is_dir():
        raise ValueError(f"output must be a file to write, got the folder {output}")
    found, skipped = records.read_all(runs)
    for _, reason in skipped[:20]:
        print(f"skipped: {reason}", file=sys.stderr)
    if len(skipped) > 20:
        print(f"skipped: {len(skipped) - 20} more files", file=sys.stderr)
    aside = f", {len(skipped)} file{'s' if len(skipped) != 1 else ''} skipped" if skipped else ""
    if not found:
        places = ", ".join(map(str, runs))
        raise ValueError(f"runs must hold at least one record, found none in {places}{aside}")
    records.write_atomic(output, page(found, skipped, title=title).encode())
    print(f"Report: {output} ({len(found)} run{'s' if len(found) != 1 else ''}{aside})")
    if figures is not None:
        from viewspan.report import figures as drawing

        print(f"Figures: {len(drawing.save(found, figures))} files in {figures}")
    if tables is not None:
        from viewspan.report import tables as writing

        print(f"Tables: {len(writing.save(found, tables))} files in {tables}")
    return 0


def diff(
    first: Annotated[Path, Parameter(help="A record, or a folder that holds one.")],
    second: Annotated[Path, Parameter(help="Another.")],
    *,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON document.")] = False,
) -> int:
    """What differs between two runs: settings, environment and protocol before the numbers."""
    from viewspan import records
    from viewspan.report import differences

    found = differences.compare(differences.read_one(first), differences.read_one(second))
    if as_json:
        print(
            json.dumps(
                records.jsonable({"first": str(first), "second": str(second), **found}), allow_nan=False
            )
        )
        return 0
    console = terminal.console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"first:  {first}\nsecond: {second}\n")
    for part in ("settings", "environment", "protocol"):
        if found[part]:
            _table(console, f"{part} that differ", found[part], ("first", "second"))
        else:
            console.print(f"{part}: the same")
    _table(console, "numbers", found["numbers"], ("first", "second", "difference"))
    return 0


def _table(console: Console, title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("name", *columns):
        table.add_column(column)
    for row in rows:
        table.add_row(row["name"], *(_shown(row[column]) for column in columns))
    console.print(table)


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
