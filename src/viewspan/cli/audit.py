"""`viewspan audit` and `viewspan lint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from viewspan import records

if TYPE_CHECKING:
    from viewspan.auditing import Audit


def audit(
    data: Annotated[str, Parameter(help=".npz, .npy, .csv, .tsv or .parquet with pairs.")],
    *,
    pairs: Annotated[
        str, Parameter(help="Names of the two views: arrays (.npz) or column suffixes (tables).")
    ] = "a,b",
    lag: Annotated[int | None, Parameter(help="Pair rows of a recording this many steps apart.")] = None,
    session: Annotated[str | None, Parameter(help="Column naming the session a row belongs to.")] = None,
    factors: Annotated[str | None, Parameter(help="Audit only these, comma-separated. Default: all.")] = None,
    cluster: Annotated[
        str | None, Parameter(help="Resample whole values of this column (patients, sessions).")
    ] = None,
    noise: Annotated[
        float | None, Parameter(help="Standard deviation of the measurement noise, in data units.")
    ] = None,
    require_moved: Annotated[
        list[str] | None, Parameter(help="F or F=S: exit with 3 unless 1 - ICC of F is surely >= S (0.1).")
    ] = None,
    require_held: Annotated[
        list[str] | None, Parameter(help="F or F=S: exit with 3 unless 1 - ICC of F is surely <= S (0.01).")
    ] = None,
    skip_bad: Annotated[
        bool, Parameter(help="Leave out and count what cannot be read, instead of stopping.")
    ] = False,
    seed: Annotated[int, Parameter(help="Seed of draws and resampling.")] = 0,
    out: Annotated[Path | None, Parameter(help="Folder for the record.")] = None,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON document.")] = False,
) -> int:
    """Which factors does a view pipeline, or a set of pairs, never move?"""
    import time

    from viewspan import auditing

    names = tuple(pairs.split(","))
    if len(names) != 2 or not all(names):
        raise ValueError(f"pairs must be two names, such as a,b, got {pairs!r}")
    store = records.Store(out) if out is not None else None
    start = time.time()
    report = auditing.audit(
        data, pairs=(names[0], names[1]), lag=lag, session=session, factors=factors.split(",") if factors else None,
        cluster=cluster, noise=noise, require_moved=require_moved or (), require_held=require_held or (),
        skip_bad=skip_bad, seed=seed,
    )  # fmt: skip
    document = report.to_json()
    if store is not None:
        record = records.Record(
            experiment="audit", settings=document["settings"], result=document,
            environment=records.environment(device="cpu"), seconds=time.time() - start, finished=time.time(),
        )  # fmt: skip
        store.write(record)
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        _show(report, document)
    return 0 if report.met else 3


def _show(report: Audit, document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    table = Table(
        title=f"{report.source}: {report.n_anchors} anchors × {report.n_views} views", title_justify="left"
    )
    for column in ("factor", "ICC(1)", "95 % interval", "reach", "verdict"):
        table.add_column(column)
    for factor in document["factors"]:
        table.add_row(
            factor["name"], _number(factor["icc"]), _interval(factor["interval"]), _number(factor["reach"]),
            factor["verdict"],
        )  # fmt: skip
    console.print(table)
    console.print(document["sentence"], markup=False)
    for note in report.notes:
        console.print(f"note: {note}", markup=False)
    for group in report.duplicates:
        console.print(f"copies, counted once: {', '.join(group)}", markup=False)
    if report.skipped:
        names = ", ".join(s["name"] for s in report.skipped[:5])
        console.print(f"skipped {len(report.skipped)}: {names}", markup=False)
    for gate in report.gates:
        status = "met" if gate.met else "NOT MET"
        console.print(
            f"{status}: {gate.factor} {gate.requires} ({gate.reason}; S = {gate.share:g})", markup=False
        )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(value: list[float] | None) -> str:
    return "–" if value is None else f"{value[0]:.3f} to {value[1]:.3f}"
