"""Checkpoints that survive a kill: weights, resume state, and a manifest that is written last.

A checkpoint at step s is three files: ``step-s.safetensors`` (the encoder), ``step-s.resume`` (optimiser, schedule,
position; read with `weights_only`) and ``step-s.json``, the manifest with the SHA-256 of both. Each is written under
a temporary name, flushed to disk and renamed; the manifest comes last and older checkpoints are dropped only after
it, so at every instant a whole checkpoint is there. Random numbers need no state: they follow from (seed, step).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from viewspan import checks, records

TRIES = 10


class Checkpoint(NamedTuple):
    """What was read back.

    Attributes:
        step: optimiser steps taken.
        weights: the encoder's state.
        resume: optimiser, schedule and position.
    """

    step: int
    weights: dict[str, Tensor]
    resume: dict[str, Any]


def write(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    resume: Mapping[str, Any],
    *,
    constant: Collection[str] = (),
) -> None:
    """Write the checkpoint of a step, then drop the older ones.

    Args:
        folder: of the run.
        step: optimiser steps taken.
        weights: the encoder's state.
        resume: optimiser and position.
        constant: names of weights that may hold infinity, such as the mask of an attention.

    Raises:
        checks.RunFailed: if a tensor holds NaN or infinity; nothing is written and the last good one stays.
    """
    finite("weights", {k: v.nan_to_num(nan=torch.nan) if k in constant else v for k, v in weights.items()})
    finite("state of the", resume)
    buffer = io.BytesIO()
    torch.save(dict(resume), buffer)
    parts = {f"step-{step:08d}.safetensors": _pack(weights), f"step-{step:08d}.resume": buffer.getvalue()}
    for file, data in parts.items():
        records.write_atomic(folder / file, data)
    manifest = {
        "step": step,
        "sha256": {file: hashlib.sha256(data).hexdigest() for file, data in parts.items()},
    }
    records.write_atomic(folder / f"step-{step:08d}.json", json.dumps(manifest, indent=1).encode() + b"\n")
    _drop_others(folder, step)


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a folder, or None if none was ever written.

    A run that is under way may drop a checkpoint while it is read; then its successor is there already.

    Raises:
        ValueError: if there are manifests but no checkpoint agrees with its checksums.
    """
    for _ in range(TRIES):
        faults: dict[Path, Exception] = {}
        manifests = [path for path in _files(folder) if path.suffix == ".json"]
        for manifest in sorted(manifests, reverse=True):
            try:
                found = _read(manifest)
            except (OSError, ValueError, KeyError, TypeError) as error:
                faults[manifest] = error
                continue
            for path, fault in faults.items():
                warnings.warn(f"checkpoint {path} is damaged: {fault}", checks.ViewspanWarning, stacklevel=2)
            return found
        if not any(isinstance(fault, FileNotFoundError) for fault in faults.values()):
            break
    if not faults:
        return None
    path, fault = next(iter(faults.items()))
    raise ValueError(
        f"no checkpoint in {folder} can be used ({path.name}: {fault}); copy the folder again if it was copied, or "
        "empty it and train anew"
    )


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Weights alone, as safetensors."""
    records.write_atomic(path, _pack(weights))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Weights from a safetensors file.

    Raises:
        ValueError: if the file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def finite(name: str, state: Any) -> None:
    """Refuse a state that holds a value which is not finite."""
    for key, value in state.items() if isinstance(state, Mapping) else ():
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise checks.RunFailed(
                f"{name} {key} holds a value that is not finite; no checkpoint is written of it"
            )
        if isinstance(value, Mapping):
            finite(f"{name} {key}", value)


def _pack(weights: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({key: value.detach().cpu().contiguous().clone() for key, value in weights.items()})


def _read(manifest: Path) -> Checkpoint:
    facts = json.loads(manifest.read_bytes())
    data = {}
    for file, digest in facts["sha256"].items():
        data[file] = manifest.with_name(Path(file).name).read_bytes()
        if hashlib.sha256(data[file]).hexdigest() != digest:
            raise ValueError(f"checksum of {file} differs from the manifest's")
    from safetensors.torch import load

    weights = load(data[f"{manifest.stem}.safetensors"])
    resume = torch.load(io.BytesIO(data[f"{manifest.stem}.resume"]), weights_only=True, map_location="cpu")
    return Checkpoint(int(facts["step"]), weights, resume)


def _files(folder: Path) -> list[Path]:
    """The files of all checkpoints, and nothing else that may lie in the folder."""
    return [
        p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8}\.(json|safetensors|resume)", p.name)
    ]


def _drop_others(folder: Path, step: int) -> None:
    """Everything of other steps, and what a killed write left behind; manifests first."""
    keep = f"step-{step:08d}"
    stale = [p for p in _files(folder) if p.stem != keep]
    for path in sorted(stale, key=lambda p: p.suffix != ".json"):
        path.unlink(missing_ok=True)
    for path in folder.glob(".step-*.part"):
        path.unlink(missing_ok=True)
