"""A run's folder: its settings, first weights, checkpoints, and at the end its record.

``settings.json`` and ``untrained.safetensors`` are written at the start, ``train-….json`` (a record) at the end only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from viewspan import checks, records
from viewspan.images import callables, named, views
from viewspan.vision import backbones, checkpoints
from viewspan.vision.distributed import World

SETTINGS = "settings.json"
UNTRAINED = "untrained.safetensors"


def described(part: Any) -> dict[str, Any]:
    """A loss or a pairing as JSON values: its class and its numbers."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        values = dataclasses.asdict(part)
    else:
        values = {
            k: v for k, v in vars(part).items() if not k.startswith("_") and isinstance(v, int | float | str)
        }
        values.pop("training", None)
    return {"name": type(part).__name__, **values}


def described_views(pipeline: views.ViewPipeline) -> dict[str, Any]:
    """A pipeline as JSON values: its name (a file's without its folder), the order rule, every operation's strengths."""
    name = Path(pipeline.name).name if pipeline.name.endswith((".yaml", ".yml")) else pipeline.name
    parts = [op.function if isinstance(op, callables.UserOperation) else op for _, op in pipeline.operations]
    steps = [callables.describe(part) if " at 0x" in repr(part) else repr(part) for part in parts]
    return {"views": name, "order": pipeline.order, "operations": steps}


def read_settings(folder: str | Path) -> dict[str, Any]:
    """The settings of a run's folder.

    Raises:
        ValueError: if the folder holds no run.
    """
    try:
        settings = json.loads((Path(folder) / SETTINGS).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"run must be a folder written by train, got {folder} (no {SETTINGS})") from None
    except ValueError:
        raise ValueError(f"{Path(folder) / SETTINGS} is not JSON") from None
    if not isinstance(settings, dict) or not {"encoder", "shape", "head", "seed", "precision"} <= set(
        settings
    ):
        raise ValueError(f"{Path(folder) / SETTINGS} does not hold the settings of a run")
    return settings


@contextlib.contextmanager
def scalars(folder: str | Path | None) -> Iterator[Callable[[str, float, int], None]]:
    """A function (name, value, step) that writes TensorBoard scalars, or does nothing without a folder."""
    if folder is None:
        yield lambda name, value, step: None
        return
    from torch.utils.tensorboard import SummaryWriter

    try:
        writer = SummaryWriter(str(folder))
    except OSError as error:
        raise ValueError(f"track must be a folder that can be written, got {folder} ({error})") from error
    try:
        yield writer.add_scalar
        writer.flush()
    finally:
        with contextlib.suppress(OSError):
            writer.close()


class RunFolder:
    """The folder of one run; only the first process writes."""

    def __init__(self, path: str | Path, settings: dict[str, Any], whole: World) -> None:
        self.path, self.settings, self.whole = Path(path), records.jsonable(settings), whole
        self.store = records.Store(path)

    def finished(self) -> records.Record | None:
        """The record, if this very run has finished here."""
        return self.store.find("train", self.settings)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other run writes here inside the block; a killed run's hold on the folder is taken over.

        Raises:
            ValueError: if another run is under way in the folder.
        """
        if self.whole.rank != 0:
            yield
            return
        with self.store.claim("run", {}) as claim:
            if claim is None:
                raise ValueError(
                    f"out {self.path}: another run is writing to this folder; let it end, or choose another folder"
                )
            yield

    def open(self, untrained: nn.Module, resume: bool) -> checkpoints.Checkpoint | None:
        """Begin, or find the checkpoint to go on from.

        Raises:
            ValueError: if the folder holds another run, or this one and `resume` is not set.
        """
        if (self.path / SETTINGS).exists():
            held = read_settings(self.path)
            differ = sorted(k for k in {*held, *self.settings} if held.get(k) != self.settings.get(k))
            if differ:
                was = ", ".join(f"{k} {held.get(k)!r} there, {self.settings.get(k)!r} here" for k in differ)
                raise ValueError(f"out {self.path} holds a run with other settings: {was}")
            found = checkpoints.newest(self.path)
            if found is not None and not resume:
                raise ValueError(
                    f"out {self.path} holds this run at step {found.step}: resume it, or choose another folder"
                )
            if found is not None:
                return found
        self.whole.wait()  # nobody looks after the first process has begun to write
        if self.whole.rank == 0:
            checkpoints.write_weights(self.path / UNTRAINED, untrained.state_dict())
            records.write_atomic(self.path / SETTINGS, json.dumps(self.settings, indent=1).encode() + b"\n")
        return None

    def save(
        self, step: int, weights: dict[str, Any], resume: dict[str, Any], *, constant: Collection[str]
    ) -> None:
        """Write a checkpoint (first process)."""
        if self.whole.rank == 0:
            checkpoints.write(self.path, step, weights, resume, constant=constant)

    def finish(self, result: dict[str, Any], history: dict[str, Any], environment: dict[str, Any],
               seconds: float) -> Path | None:  # fmt: skip
        """Write the record (first process)."""
        if self.whole.rank != 0:
            return None
        return self.store.write(
            records.Record(
                experiment="train",
                settings=self.settings,
                result=records.jsonable(result),
                history=history,
                environment=environment,
                seconds=seconds,
                finished=time.time(),
            )
        )


def load_encoders(
    folder: str | Path, backbone: backbones.Backbone | nn.Module | None = None
) -> tuple[backbones.Encoder, backbones.Encoder, dict[str, Any]]:
    """The trained and the untrained encoder of a run's folder, in eval mode, and its settings.

    Args:
        folder: written by `train`.
        backbone: needed if the run's encoder has no importable name.

    Raises:
        ValueError: if the folder holds no run, no checkpoint, or weights of another encoder.
    """
    settings = read_settings(folder)
    spec = settings["encoder"]
    if backbone is None:
        if not named.is_named(spec):
            raise ValueError(
                f"encoder {spec!r} of {folder} cannot be imported by name: give it as encoder (--encoder)"
            )
        backbone = named.import_named(spec, what="encoder")
    shape: tuple[int, int, int] = tuple(settings["shape"])
    found = checkpoints.newest(Path(folder))
    if found is None:
        raise ValueError(f"run {folder} holds no checkpoint yet")
    if not any(Path(folder).glob("train-*.json")):
        warnings.warn(
            f"run {folder} has not finished: its checkpoint of step {found.step} is read",
            checks.ViewspanWarning, stacklevel=2,
        )  # fmt: skip
    both = []
    for weights in (found.weights, checkpoints.read_weights(Path(folder) / UNTRAINED)):
        encoder = backbones.build(backbone, shape, head=settings["head"], seed=settings["seed"])
        try:
            encoder.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"weights in {folder} do not fit encoder {spec}: {error}") from None
        both.append(encoder.eval())
    return both[0], both[1], settings
