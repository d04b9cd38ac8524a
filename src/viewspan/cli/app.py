"""The `viewspan` command: its verbs, and one way of failing.

Exit codes: 0 done, 1 a run failed, 2 bad input, 3 a required gate was not met, 130 interrupted.
"""

from __future__ import annotations

import sys
import typing
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import cyclopts

import viewspan
from viewspan.cli import terminal


def converted(kind: Any, tokens: Any) -> Any:
    """Values as cyclopts reads them, but a fraction given for an integer is refused instead of rounded."""
    kinds = (kind, *typing.get_args(kind))
    if int in kinds and float not in kinds:
        for token in tokens:
            if "." in token.value:
                raise ValueError(f"must be an integer, got {token.value}")
    return cyclopts.convert(kind, tokens)


app = cyclopts.App(
    name="viewspan",
    help="Does the way positive pairs are drawn let contrastive learning recover the latent geometry, "
    "and if not, what will it learn instead?",
    version=viewspan.__version__,
    default_parameter=cyclopts.Parameter(negative=(), converter=converted),
    exit_on_error=False,
    print_error=False,
    console=terminal.console(),
    suppress_keyboard_interrupt=False,
)
for path, summary in {
    "predict:predict": "What the loss will prefer, by quadrature: no training.",
    "predict:theory": "Every certificate of the theory, with its numbers and its verdict.",
    "reproduce:reproduce": "Train a published experiment and print it beside the published numbers.",
    "reproduce:demo": "The short way round: one prediction, Table 1 at the quick profile, the report.",
    "audit:audit": "Which factors does a view pipeline, or a set of pairs, never move?",
    "audit:lint": "Mechanical faults of a view pipeline, in seconds.",
    "train:train": "Contrastive training on images.",
    "probe:probe": "Linear probe and kNN of a trained run, beside raw pixels and the untrained encoder.",
    "report:report": "One self-contained HTML page, figures and tables from records.",
    "report:diff": "What differs between two runs: settings and environment before numbers.",
}.items():
    app.command(f"viewspan.cli.{path}", name=path.split(":")[1], help=summary)


def fail(message: object, code: int) -> NoReturn:
    """One line on stderr, then exit."""
    print("viewspan: " + " ".join(str(message).split()), file=sys.stderr)
    raise SystemExit(code)


def told(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning in one line: this package's own without the place in its source."""
    from viewspan.checks import ViewspanWarning

    place = "" if issubclass(category, ViewspanWarning) else f" ({category.__name__}, {filename}:{lineno})"
    return f"viewspan: warning: {' '.join(str(message).split())}{place}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a caller's mistake is one line on stderr, never a traceback."""
    shown, warnings.formatwarning = warnings.formatwarning, told
    with terminal.readable_streams():
        try:
            code = run(arguments)
        finally:
            warnings.formatwarning = shown
    raise SystemExit(code)


def run(arguments: Sequence[str] | None) -> int:
    """The command's exit code, or `fail`."""
    from viewspan import records
    from viewspan.checks import RunFailed

    try:
        result = app(arguments, result_action="return_value")
        sys.stdout.flush()
    except cyclopts.CycloptsError as error:
        fail(error, 2)
    except KeyboardInterrupt:
        fail("interrupted; what had finished is kept", 130)
    except RunFailed as error:
        fail(error, 1)
    except BrokenPipeError:
        terminal.drop_output()
        raise SystemExit(0) from None
    except OSError as error:
        terminal.drop_output()
        if error.errno in records.FULL:  # whatever writes a file names it
            fail(f"{error.filename or 'standard output'}: {error.strerror}", 1)
        fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error, 2)
    except (ValueError, TypeError) as error:
        fail(error, 2)
    except ModuleNotFoundError as error:
        fail(f"{error}; the extras that bring it are named in the README (pip install 'viewspan[vision]')", 2)
    return result if isinstance(result, int) else 0
