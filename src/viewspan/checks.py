"""Argument checks with one voice: every error names the argument, its value and the rule."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SHORTEST_ROW = 1e-8  # below this a direction is rounding noise and its gradient explodes


class ViewspanWarning(UserWarning):
    """Something the caller should know; the result is still right as documented."""


class RunFailed(RuntimeError):
    """A run that started could not be finished (the command line exits with code 1)."""


def number(
    name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> float:
    """A finite real number in [low, high], or (low, high] with `open_low`."""
    if isinstance(value, bool | str | bytes):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        x = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    except OverflowError:
        x = math.inf
    inside = math.isfinite(x) and (low < x if open_low else low <= x) and x <= high
    if not inside:
        left = "(" if open_low or low == -math.inf else "["
        right = ")" if high == math.inf else "]"
        raise ValueError(f"{name} must be finite and in {left}{low:g}, {high:g}{right}, got {value!r}")
    return x


def integer(name: str, value: Any, *, low: int | None = None, high: int | None = None) -> int:
    """An integer in [low, high]; integral floats and booleans are refused."""
    try:
        n = operator.index(value)
    except TypeError:
        n = None
    if n is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if (low is not None and n < low) or (high is not None and n > high):
        span = (
            f"at least {low}" if high is None else f"at most {high}" if low is None else f"in {low}..{high}"
        )
        raise ValueError(f"{name} must be {span}, got {n}")
    return n


def choice(name: str, value: Any, options: Collection[str]) -> str:
    """One of a few names."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(sorted(options))}, got {value!r}")
    return str(value)


def generator(value: Any, on: torch.device | None = None) -> torch.Generator:
    """A torch.Generator, on the device of the data if there are any; None would draw from the global state."""
    import torch

    if not isinstance(value, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(value).__name__}")
    if on is not None and value.device.type != on.type:
        raise ValueError(f"generator must lie on the device {on}, got {value.device}")
    return value


def rows(name: str, x: Tensor, *, dim: int | None = None, min_rows: int = 1) -> Tensor:
    """A finite floating tensor of shape (n, d); the first row that is not finite is named."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got dtype {x.dtype}")
    if x.ndim != 2 or x.shape[1] == 0 or (dim is not None and x.shape[1] != dim):
        raise ValueError(
            f"{name} must have shape (n, {dim if dim is not None else 'd'}), got {tuple(x.shape)}"
        )
    if x.shape[0] < min_rows:
        raise ValueError(f"{name} must have at least {min_rows} rows, got {x.shape[0]}")
    finite = torch.isfinite(x.detach()).all(dim=1)
    if not bool(finite.all()):
        raise ValueError(f"{name} row {int((~finite).nonzero()[0, 0])} is not finite")
    return x


def unit_rows(name: str, x: Tensor) -> Tensor:
    """Rows of length 1 in the last dimension, up to the rounding of their dtype; returned renormalised.

    Half precision is promoted to float32. Shape (..., d) is kept.
    """
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got dtype {x.dtype}")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (..., d) with d >= 1, got {tuple(x.shape)}")
    tolerance = 1e-2 if x.dtype in (torch.float16, torch.bfloat16) else 1e-4
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    good = ((length - 1).abs() <= tolerance).squeeze(-1)  # False for NaN
    if not bool(good.all()):
        where = (~good).reshape(-1).nonzero()[0, 0]
        value = float(length.reshape(-1)[where])
        at = f" row {int(where)}" if good.numel() > 1 else ""
        raise ValueError(f"{name}{at} must have length 1, got length {value:.6g}")
    return x / length
