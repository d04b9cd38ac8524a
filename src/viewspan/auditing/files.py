"""Read arrays and tables from files, and tell numbers from categories; every error names the file."""

from __future__ import annotations

import csv
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an `.npz` by name, or the one array of an `.npy` as `views`."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"views": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, KeyError) as error:
        raise ValueError(f"{path} is not a readable NumPy file ({error})") from None
    except Exception as error:  # zipfile's own errors: a truncated or fake .npz
        raise ValueError(f"{path} is not a readable NumPy file ({type(error).__name__}: {error})") from None


def read_table(path: Path) -> dict[str, Array]:
    """The columns of a `.csv`, `.tsv` or `.parquet` by name."""
    import pandas

    try:
        if path.suffix.lower() == ".parquet":
            frame = pandas.read_parquet(path)
        else:
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            _check_header(path, separator)
            with warnings.catch_warnings():
                warnings.simplefilter("error", pandas.errors.ParserWarning)
                # without index_col=False a first column beyond the header's would silently become the index
                frame = pandas.read_csv(path, sep=separator, index_col=False)
    except pandas.errors.ParserWarning:
        raise ValueError(f"{path} has rows with more cells than its header") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {error.object[error.start]:#04x} at {error.start})"
        ) from None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a readable table ({error})") from None
    if not len(frame):
        raise ValueError(f"{path} has no rows")
    if any(name is not None for name in frame.index.names):  # a parquet file's own index
        frame = frame.reset_index()
    frame.columns = frame.columns.map(lambda name: str(name).strip())
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise ValueError(f"{path} has two columns named {repeated[0]}")
    return {name: frame[name].to_numpy() for name in frame.columns}


def _check_header(path: Path, separator: str) -> None:
    """Every column has a name of its own; pandas would number the later ones."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        names = next((row for row in csv.reader(file, delimiter=separator) if row), [])
    twice = next((name for i, name in enumerate(names) if name and name in names[:i]), None)
    if twice is not None:
        raise ValueError(f"two columns are named {twice}")


def column(values: Array, name: str, where: str) -> Array:
    """Numbers as float64, everything else as text with None for missing; mixtures are named."""
    if values.dtype.kind in "fiu":
        return values.astype(np.float64)
    if values.dtype.kind == "b":
        return values.astype(str).astype(object)
    text = np.array([None if missing(v) else str(v).strip() for v in values], dtype=object)
    present = [v for v in text if v is not None]
    numeric = [_is_number(v) for v in present]
    if numeric and all(numeric):
        return np.array([np.nan if v is None else float(v) for v in text])
    if present and all(re.fullmatch(r"\s*[+-]?\d+,\d+\s*", v) for v in present):
        raise ValueError(f"{where}: column {name} holds decimal commas, such as {present[0]!r}; write points")
    if sum(numeric) > len(numeric) / 2:
        row = next(i for i, v in enumerate(text) if v is not None and not _is_number(v))
        raise ValueError(f"{where}: column {name} row {row} is not a number: {text[row]!r}")
    return text


def missing(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return (
        value is None
        or (isinstance(value, float) and np.isnan(value))
        or str(value) in ("", "nan", "<NA>", "NaT")
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
