"""`viewspan reproduce` and `viewspan demo`: run an experiment's cells, print them beside the published numbers."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from viewspan.cli import terminal

if TYPE_CHECKING:
    from rich.console import Console

    from viewspan.sweeps import Cell, Outcome, SweepResult

Experiment = Literal["table1", "rho", "progressive", "law", "dose", "tagged", "cifar10"]


def reproduce(
    experiment: Experiment = "table1",
    *,
    profile: Annotated[
        str,
        Parameter(
            help="quick (minutes on 2 cores), paper (the published sizes), or cpu (cifar10: hours on 2 cores)."
        ),
    ] = "quick",
    seeds: Annotated[
        int | None, Parameter(help="Number of seeds, counted from 0; default: the profile's own.")
    ] = None,
    process: Annotated[str | None, Parameter(help="Processes to run, comma-separated; default: all.")] = None,
    convention: Annotated[
        str | None,
        Parameter(
            help="Law of the held-latents pairs: subsphere (what was published, the default) or ambient (Eq. 6)."
        ),
    ] = None,
    data: Annotated[
        str | None, Parameter(help="cifar10 only: image folder with train/ and test/, or cifar10[:ROOT].")
    ] = None,
    jobs: Annotated[
        int | None, Parameter(help="Worker processes, one thread each; default: all cores.")
    ] = None,
    shard: Annotated[str | None, Parameter(help="i/n: run every n-th cell from the i-th (i from 1).")] = None,
    backend: Annotated[
        str, Parameter(help="loky (this machine) or dask (the cluster at --address).")
    ] = "loky",
    address: Annotated[str | None, Parameter(help="Address of a running Dask scheduler.")] = None,
    device: Annotated[str | None, Parameter(help="auto, cpu, cuda or mps; default cpu.")] = None,
    precision: Annotated[str | None, Parameter(help="auto, float32 or bfloat16; default float32.")] = None,
    threads: Annotated[int | None, Parameter(help="CPU threads of each run; default 1.")] = None,
    out: Annotated[Path | None, Parameter(help="Folder of the records; default runs/EXPERIMENT.")] = None,
    fresh: Annotated[bool, Parameter(help="Run again what has a record.")] = False,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON document on stdout.")] = False,
) -> int:
    """Train a published experiment and print it beside the published numbers.

    Losses are in nats. Finished cells are kept as records and reused; an interrupted cell leaves none.
    """
    from viewspan import runtime, sweeps

    module = importlib.import_module(f"viewspan.experiments.{experiment}")
    options: dict[str, Any] = {"seeds": seeds}
    given = {
        "processes": None if process is None else process.split(","),
        "convention": convention,
        "data": data,
    }
    options |= {key: value for key, value in given.items() if value is not None}
    where = {"device": device, "precision": precision, "threads": threads}
    cells = _cells(module, experiment, profile, options, {k: v for k, v in where.items() if v is not None})
    result = _sweep(
        module, cells, out or Path("runs") / experiment,
        jobs=(runtime.cores() if jobs is None else jobs) if backend == "loky" else 1,
        shard=None if shard is None else sweeps.parse_shard(shard),
        backend=backend, address=address, fresh=fresh,
    )  # fmt: skip
    _print(module.table(result.records), as_json)
    return 1 if result.failed else 0


def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder of the records and the report.")] = Path("runs/table1"),
    seeds: Annotated[int, Parameter(help="Number of seeds.")] = 1,
    jobs: Annotated[int | None, Parameter(help="Worker processes; default: all cores.")] = None,
) -> int:
    """What is installed, one prediction, Table 1 cell by cell at the quick profile, and the report of it."""
    from viewspan import pairs, records, runtime, theory
    from viewspan.cli.report import report
    from viewspan.experiments import table1

    console = terminal.console()
    versions = records.environment()["versions"]
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    console.print(f"Installed: {installed} ({_installed_size() / 2**30:.1f} GiB in this environment)")
    law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="subsphere")
    p = theory.predict(law, temperature=0.3)
    console.print(
        f"Predicted before training: with one coordinate held, the standard loss can fall to log M − "
        f"{-theory.floor(3, temperature=0.3):.4f} "
        f"nats, {p.incentive_nats:.4f} below every isometry: it will not recover the sphere.\n"
    )
    result = _sweep(
        table1, table1.cells("quick", seeds=seeds), out, jobs=runtime.cores() if jobs is None else jobs
    )
    _print(table1.table(result.records), as_json=False)
    console.print(f"\nRecords: {out}")
    if result.failed:
        return 1
    page = out / "report.html"
    report(out, output=page)
    return 0


def _cells(
    module: Any, experiment: str, profile: str, options: dict[str, Any], where: dict[str, Any]
) -> list[Cell]:
    """The experiment's cells, to be run where asked; an option it does not have is an error, not ignored."""
    import inspect

    from viewspan import checks, runtime
    from viewspan.sweeps import Cell

    known = inspect.signature(module.cells).parameters
    for name in options.keys() - known.keys():
        flag = {"processes": "process"}.get(name, name)
        raise ValueError(f"--{flag} has no meaning for {experiment!r}")
    for name, allowed in (("device", runtime.DEVICES), ("precision", runtime.PRECISIONS)):
        if name in where:
            checks.choice(name, where[name], allowed)
    checks.integer("threads", where.get("threads", 1), low=1)
    return [Cell(cell.experiment, {**cell.settings, **where}) for cell in module.cells(profile, **options)]


def _sweep(module: Any, cells: list[Cell], out: Path, **how: Any) -> SweepResult:
    """Run the cells, a line on stderr as each ends, and a closing count."""
    from viewspan import records, sweeps

    console = terminal.console(stderr=True, highlight=False)
    start = time.perf_counter()
    done = 0
    total = len(sweeps.take_shard(cells, how.get("shard")))

    def show(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        console.print(_progress(outcome, done, total), soft_wrap=True)

    result = sweeps.run(cells, module.run, records.Store(out), on_done=show, **how)
    console.print(
        f"reused {result.reused} of {total}, ran {result.ran}, failed {len(result.failed)} "
        f"in {time.perf_counter() - start:.0f} s; records in {out}"
    )
    for outcome in result.failed:
        console.print(f"failed: {outcome.name}: {outcome.error}", soft_wrap=True)
    return result


def _progress(outcome: Outcome, done: int, total: int) -> str:
    """One line for a cell that has ended."""
    line = f"{done:>4}/{total} {outcome.status:<6} {outcome.name}"
    if outcome.record is not None:
        measured = {
            key: outcome.record.result.get(key) for key in ("r2", "loss_minus_log_m", "probe_accuracy")
        }
        line += "  " + " ".join(
            f"{key} {value:.3f}" for key, value in measured.items() if isinstance(value, float)
        )
    return line


def _print(document: dict[str, Any], as_json: bool) -> None:
    from viewspan import records

    if as_json:
        json.dump(records.jsonable(document), sys.stdout, indent=1, allow_nan=False)
        print()
        return
    console = terminal.console(unattended_width=160)
    _cell_table(console, document)
    for line in document.get("inverse_minus_mlp", ()):
        theirs = "" if line["published"] is None else f" (published {line['published']:+.2f})"
        console.print(
            f"inverse − MLP ({line['mlp_pairs']}), {line['process']}: R² {line['r2_difference']:+.3f}{theirs}",
            highlight=False,
        )
    for note in [*document.get("sentences", ()), *document.get("notes", ())]:
        console.print(f"· {note}", highlight=False)


def _cell_table(console: Console, document: dict[str, Any]) -> None:
    """One row a cell: what tells cells apart, then measured | published | predicted."""
    from rich.table import Table

    cells = document["cells"]
    table = Table(
        title=document["title"], header_style="bold", caption="measured ± sd (published) [predicted]"
    )
    keys = [
        k
        for k in _KEYS
        if any(k in c for c in cells) and (len({repr(c.get(k)) for c in cells}) > 1 or k == "process")
    ]
    for key in keys:
        table.add_column(key.replace("_", " "))
    numbers = [n for n in _NUMBERS if any(_mean(c.get(n[0])) is not None for c in cells)]
    for _, label, _, _, _ in numbers:
        table.add_column(label, justify="right")
    table.add_column("diagnosis")
    for cell in cells:
        row = [
            "" if cell.get(k) is None else f"{cell[k]:g}" if isinstance(cell[k], float) else str(cell[k])
            for k in keys
        ]
        row += [_number(cell, *n) for n in numbers]
        found = cell.get("diagnoses") or {}
        row.append(
            ", ".join(f"{kind} ×{n}" if n > 1 else kind for kind, n in found.items())
            or cell.get("diagnosis")
            or ""
        )
        table.add_row(*row)
    console.print(table)


# key of the cell, label, factor on the printed value, key under `published`, digits
_NUMBERS = (
    ("r2", "R²", 1.0, "r2", 3),
    ("mcc", "mean corr.", 1.0, "mcc", 2),
    ("ape", "APE/2", 0.5, "ape", 3),
    ("loss_minus_log_m", "loss − log M", 1.0, "loss_minus_log_m", 3),
    ("above_floor", "above floor", 1.0, "above_floor", 3),
    ("probe_accuracy", "probe", 1.0, "probe_accuracy", 3),
    ("knn_accuracy", "kNN", 1.0, "knn_accuracy", 3),
    ("untrained_accuracy", "untrained", 1.0, "untrained_accuracy", 3),
    ("pixels_accuracy", "pixels", 1.0, "pixels_accuracy", 3),
)
_KEYS = (
    "process", "encoder", "views", "pairs", "loss", "convention", "rho", "n_fixed", "share", "dose", "sigma", "beta",
    "dim", "seeds",
)  # fmt: skip


def _mean(value: Any) -> float | None:
    return value.get("mean") if isinstance(value, dict) else value


def _number(cell: dict[str, Any], key: str, label: str, factor: float, theirs: str, digits: int) -> str:
    """`measured ± sd (published) [predicted]`, each only where it is known."""
    value = cell.get(key)
    mean = _mean(value)
    if mean is None:
        return "–"
    text = f"{mean * factor:.{digits}f}"
    if isinstance(value, dict) and value.get("sd") is not None:
        text += f" ± {value['sd'] * factor:.{digits}f}"
    published = (cell.get("published") or {}).get(theirs)
    if published is not None:
        text += f" ({published:.{digits}f})"
    predicted = (cell.get("predicted") or {}).get(key)
    if predicted is not None:
        text += f" \\[{predicted * factor:.{digits}f}]"
    return text


def _installed_size() -> int:
    """Bytes of the installed packages of this environment."""
    import sysconfig

    root = Path(sysconfig.get_paths()["purelib"])
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
