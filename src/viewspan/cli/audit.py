"""`viewspan audit` and `viewspan lint`."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from viewspan import checks, records
from viewspan.cli import terminal

if TYPE_CHECKING:
    from rich.console import Console

    from viewspan.auditing import Audit

_VIEWS_HELP = (
    "View pipelines, comma-separated: all, crop, all-without-crop, package.module:name or FILE.yaml."
)
_DATA_HELP = (
    "With --views: a folder of images, cifar10[:ROOT], .npz or package.module:name. Without: pairs or views made "
    "beforehand (.npz, .npy, .csv, .tsv, .parquet), or a folder with --group stem."
)


def audit(
    data: Annotated[str, Parameter(help=_DATA_HELP)],
    *,
    views: Annotated[str | None, Parameter(help=_VIEWS_HELP)] = None,
    pairs: Annotated[
        str, Parameter(help="Names of the two views: arrays (.npz) or column suffixes (tables).")
    ] = "a,b",
    lag: Annotated[int | None, Parameter(help="Pair rows of a recording this many steps apart.")] = None,
    session: Annotated[
        str | None, Parameter(help="Column naming a row's session; pairs stay inside one.")
    ] = None,
    group: Annotated[str | None, Parameter(help="stem: files NAME_VIEW.ext are views of NAME.")] = None,
    factors: Annotated[
        str | None,
        Parameter(help="Audit only these, comma-separated; package.module:name for your own. Default: all."),
    ] = None,
    cluster: Annotated[
        str | None, Parameter(help="Resample whole values of this column (patients); images: class.")
    ] = None,
    noise: Annotated[
        float | None, Parameter(help="Standard deviation of the measurement noise, in data units.")
    ] = None,
    require_moved: Annotated[
        list[str] | None, Parameter(help="F or F=S: exit with 3 unless 1 - ICC of F is surely >= S [0.1].")
    ] = None,
    require_held: Annotated[
        list[str] | None, Parameter(help="F or F=S: exit with 3 unless 1 - ICC of F is surely <= S [0.01].")
    ] = None,
    split: Annotated[str | None, Parameter(help="Subfolder, or CIFAR-10 split.")] = None,
    order: Annotated[str, Parameter(help="Order of a pipeline's operations: fixed or random.")] = "fixed",
    n_anchors: Annotated[int, Parameter(help="Images for the factors.")] = 300,
    n_views: Annotated[int, Parameter(help="Views of each of them.")] = 16,
    support_anchors: Annotated[int, Parameter(help="Images for the support dimension; 0 skips it.")] = 20,
    support_views: Annotated[
        int, Parameter(help="Views of each of them; fewer than 200 give no dimension.")
    ] = 250,
    operation_anchors: Annotated[
        int, Parameter(help="Images for the operation-by-factor matrix; 0 skips it.")
    ] = 100,
    skip_bad: Annotated[
        bool, Parameter(help="Leave out and count what cannot be read, instead of stopping.")
    ] = False,
    workers: Annotated[int, Parameter(help="Threads that decode image files.")] = 0,
    seed: Annotated[int, Parameter(help="Seed of the images, views and resamples.")] = 0,
    device: Annotated[str, Parameter(help="Where views are made: auto, cpu, cuda or mps.")] = "cpu",
    precision: Annotated[
        str, Parameter(help="float32, or auto, which is float32: factors are measured.")
    ] = "float32",
    threads: Annotated[int | None, Parameter(help="CPU threads; torch's own number by default.")] = None,
    out: Annotated[Path | None, Parameter(help="Folder for the record of the audit.")] = None,
    html: Annotated[Path | None, Parameter(help="File for the audit as one self-contained page.")] = None,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON document.")] = False,
) -> int:
    """Which factors does a view pipeline, or a set of pairs, never move?"""
    names = tuple(pairs.split(","))
    if len(names) != 2 or not all(names):
        raise ValueError(f"pairs must be two names, such as a,b, got {pairs!r}")
    checks.choice("precision", precision, ("auto", "float32"))
    store = records.Store(out) if out is not None else None
    from viewspan import auditing, runtime

    runtime.device(device)
    sampling = auditing.Sampling(
        n_anchors=n_anchors, n_views=n_views, support_anchors=support_anchors, support_views=support_views,
        operation_anchors=operation_anchors, seed=seed, device=device,
    )  # fmt: skip
    if views is None and sampling != auditing.Sampling(seed=seed):
        raise ValueError("numbers of anchors and views, and device, apply to images with views only")
    start = time.time()
    with (
        contextlib.redirect_stdout(sys.stderr),
        runtime.threads(threads) as used,
    ):  # the user's code may print
        report = auditing.audit(
            data, views=_listed(views), pairs=(names[0], names[1]), lag=lag, session=session, group=group,
            factors=_listed(factors), cluster=cluster, noise=noise, require_moved=require_moved or (),
            require_held=require_held or (), split=split, order=order, sampling=sampling, skip_bad=skip_bad, workers=workers,
        )  # fmt: skip
    document = report.to_json()
    if store is not None or html is not None:
        record = records.Record(
            experiment="audit", settings=document["settings"], result=document,
            environment=records.environment(device=device, precision="float32", threads=used),
            seconds=time.time() - start, finished=time.time(),
        )  # fmt: skip
        _keep(record, report, store, html)
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        _show(report)
    return 0 if report.met else 3


def _keep(record: records.Record, report: Audit, store: records.Store | None, html: Path | None) -> None:
    """Write the record with its example views, and the page."""
    arrays = None if report.examples is None else {"example_views": report.examples}
    with tempfile.TemporaryDirectory() as folder:
        path = (store or records.Store(folder)).write(record, arrays)
        if store is not None:
            print(f"record: {path}", file=sys.stderr)
        if html is not None:
            from viewspan.report import audit_page

            records.write_atomic(html, audit_page(records.read(path), path).encode())
            print(f"page: {html}", file=sys.stderr)


def lint(
    data: Annotated[str, Parameter(help="A folder of images, cifar10[:ROOT], .npz or package.module:name.")],
    *,
    views: Annotated[str, Parameter(help=_VIEWS_HELP)],
    split: Annotated[str | None, Parameter(help="Subfolder, or CIFAR-10 split.")] = None,
    skip_bad: Annotated[bool, Parameter(help="Leave out files that cannot be decoded.")] = False,
    seed: Annotated[int, Parameter(help="Seed of the views looked at.")] = 0,
    strict: Annotated[bool, Parameter(help="Exit with 3 if there is a finding.")] = False,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON document.")] = False,
) -> int:
    """Mechanical faults of a view pipeline, in seconds."""
    from viewspan import auditing, images

    with contextlib.redirect_stdout(sys.stderr):  # the user's code may print
        loaded = images.load(data, split=split, skip_bad=skip_bad)
        found = [
            {"views": name, "id": f.id, "operation": f.operation, "message": f.message, "fix": f.fix}
            for name in _listed(views) or []
            for f in auditing.lint(loaded, views=name, seed=seed)
        ]
    if as_json:
        print(
            json.dumps(
                {"lint": found, "rules": list(auditing.RULES), "n_images": len(loaded)}, allow_nan=False
            )
        )
    else:
        for f in found:
            where = f"{f['views']}, {f['operation']}" if f["operation"] else f["views"]
            print(f"{f['id']}: {where}: {f['message']}\n  fix: {f['fix']}")
        print(f"{len(found)} of {len(auditing.RULES)} rules found something" if found else "no fault found")
    return 3 if strict and found else 0


def _listed(text: str | None) -> list[str] | None:
    if text is None:
        return None
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise ValueError(f"a comma-separated list must not hold empty names, got {text!r}")
    twice = next((item for i, item in enumerate(items) if item in items[:i]), None)
    if twice is not None:
        raise ValueError(f"a comma-separated list must name each thing once, got {twice} twice")
    return items


def _show(report: Audit) -> None:
    console = terminal.console(highlight=False, soft_wrap=True, markup=False)
    for each in (report, *report.others):
        _show_one(console, each)
    if report.comparison is not None:
        console.print(f"comparison: {report.comparison['sentence']}")
    for gate in report.gates:
        status = "met" if gate.met else "NOT MET"
        console.print(f"{status}: {gate.factor} {gate.requires} (S = {gate.share:g}; {gate.reason})")


def _show_one(console: Console, report: Audit) -> None:
    from rich.table import Table

    title = f"{report.source}: {report.n_anchors} anchors × {report.n_views} views"
    table = Table(title=f"{title} by {report.views}" if report.views else title, title_justify="left")
    for column in ("factor", "ICC(1)", "95 % interval", "reach", "verdict"):
        table.add_column(column, no_wrap=True)
    for f in report.factors:
        s = f.stability
        table.add_row(f.name, _number(s.icc), _interval(s.interval), _number(s.reach), f.verdict)
    console.print(table)
    if report.operations:
        _show_operations(console, report)
    console.print(report.sentence)
    for fault in report.lint:
        where = f" ({fault.operation})" if fault.operation else ""
        console.print(f"lint {fault.id}{where}: {fault.message}; fix: {fault.fix}")
    for note in report.notes:
        console.print(f"note: {note}")
    for names in report.duplicates:
        console.print(f"copies, counted once: {', '.join(names)}")
    if report.skipped:
        first = ", ".join(f"{s['name']} ({s['reason']})" for s in report.skipped[:5])
        console.print(f"skipped {len(report.skipped)}: {first}")


def _show_operations(console: Console, report: Audit) -> None:
    from rich.table import Table

    table = Table(title="1 - ICC with each operation alone / without it", title_justify="left")
    table.add_column("factor", no_wrap=True)
    for operation in report.operations:
        table.add_column(f"{operation.name} ({operation.fired:.0%} of views)")
    for f in report.factors:
        cells: list[Any] = [
            f"{_number(o.alone[f.name], 2)} / {_number(o.without[f.name], 2)}" for o in report.operations
        ]
        table.add_row(f.name, *cells)
    console.print(table)
    for operation in report.operations:
        if operation.only_mover_of:
            console.print(f"only {operation.name} moves {', '.join(operation.only_mover_of)}")


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _interval(value: tuple[float, float] | None) -> str:
    return "–" if value is None else f"{value[0]:.3f} to {value[1]:.3f}"
