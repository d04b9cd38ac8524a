"""`fit`, the one training loop for encoders on pair laws, and `evaluate`, the loss on fresh draws afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch
from torch import Tensor, nn

from viewspan import checks, losses, pairs, runtime, sphere

__all__ = ["SCHEDULES", "SERIES", "Evaluation", "Run", "evaluate", "fit"]

SCHEDULES = ("constant", "cosine")
SERIES = ("step", "loss", "loss_minus_log_m", "alignment", "uniformity")
_RECORD_EVERY = 10
_CHUNK, _PER_FIBRE = 256, 32  # anchors evaluated at once, and on each fibre


@dataclass(frozen=True)
class Run:
    """What `fit` did.

    Attributes:
        history: series recorded every tenth step and at the last: step and, in nats, loss, loss_minus_log_m (log M
            as the loss itself counts its negatives), alignment and uniformity. The last three are empty where the
            loss has no `parts`.
        steps: optimiser steps taken.
        seconds: wall time.
        precision: ``float32`` or ``bfloat16``, as used.
    """

    history: dict[str, list[float]]
    steps: int
    seconds: float
    precision: str


@dataclass(frozen=True)
class Evaluation:
    """A loss on fresh draws.

    Attributes:
        loss: nats, at `m` negatives.
        loss_minus_log_m: loss − log M, comparable over M up to O(1/M).
        standard_error: of the mean over anchors, nats (fibres, where anchors share them).
        m: number of negatives an anchor met.
    """

    loss: float
    loss_minus_log_m: float
    standard_error: float
    m: int


def fit(
    f: nn.Module,
    g: Callable[[Tensor], Tensor],
    law: pairs.PairLaw,
    loss: losses.Loss | Callable[..., Tensor],
    *,
    steps: int,
    batch_size: int = 512,
    group_size: int | None = None,
    lr: float = 1e-3,
    schedule: Literal["constant", "cosine"] = "constant",
    precision: str = "float32",
    device: str = "cpu",
    generator: torch.Generator,
    on_step: Callable[[int, float], None] | None = None,
) -> Run:
    """Train f on pairs of `law` seen through g, with Adam; f is changed in place and left in training mode.

    Anchors and positives of a step are encoded in one pass: 2·batch_size rows whatever the loss. The loss is handed
    the `fields` of the batch that it says it takes (`group`, `moved`).

    Args:
        f: encoder, data (n, k) to embedding (n, d).
        g: process, latents (n, d) to data (n, k); not trained.
        law: how positives are drawn.
        loss: a `losses.Loss`, or any module or function of (anchor, positive).
        steps: optimiser steps, >= 1.
        batch_size: pairs a step, >= 2.
        group_size: pairs on each fibre, for losses that take `group`; None for independent anchors.
        lr: Adam's learning rate > 0.
        schedule: ``constant``, or ``cosine`` down to zero over the steps.
        precision: ``float32``, ``bfloat16`` (autocast) or ``auto``.
        device: ``cpu``, ``cuda``, ``mps`` or ``auto``.
        generator: draws the batches; it must lie on the device.
        on_step: called with (step, loss) where history is recorded.

    Returns:
        `Run`.

    Raises:
        ValueError: for a bad argument, or a loss and batches that do not fit: a field it needs and they lack, or
            groups that it does not take.
        RunFailed: if the embedding, the loss or its gradient is not finite; f is as it was before that step.

    Example:
        >>> from viewspan import encoders, processes
        >>> rng = torch.Generator().manual_seed(0)
        >>> law = pairs.FullSupport(dim=3, kappa=1 / 0.3)
        >>> f = encoders.InverseLinear(3, 3, generator=rng)
        >>> run = fit(f, processes.Identity(3), law, losses.InfoNCE(0.3), steps=20, generator=rng)
        >>> run.steps, run.history["step"]
        (20, [1.0, 11.0, 20.0])
    """
    checks.integer("steps", steps, low=1)
    checks.integer("batch_size", batch_size, low=2)
    checks.number("lr", lr, low=0, high=1e30, open_low=True)  # beyond it a weight overflows in one step
    checks.choice("schedule", schedule, SCHEDULES)
    where = runtime.device(device)
    precision = runtime.precision(precision, where)
    checks.generator(generator, where)
    _check_dims(f, g, law)
    takes = _fields_taken(loss, group_size)
    f.to(where).train()
    if isinstance(g, nn.Module):
        g.to(where).eval()
    optimiser = torch.optim.Adam(f.parameters(), lr=lr, fused=where.type != "mps")
    decay = (lambda s: (1 + math.cos(math.pi * s / steps)) / 2) if schedule == "cosine" else (lambda s: 1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, decay)
    history: dict[str, list[float]] = {name: [] for name in SERIES}
    split: Callable[..., losses.LossParts] | None = getattr(loss, "parts", None)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        batch = law.batch(batch_size, group_size=group_size, generator=generator)
        fields = _fields(loss, takes, batch)
        buffers = [b.clone() for b in f.buffers()]
        with torch.no_grad():
            x = g(torch.cat([batch.anchor, batch.positive]))
        with runtime.autocast(where, precision):
            h = f(x).float()
        if not bool(torch.isfinite(h).all()):
            _fail(f, buffers, f"the embedding became non-finite at step {step} of {steps} (lr={lr:g})")
        anchor, positive = h.split(len(batch))
        parts = split(anchor, positive, **fields) if split else None
        total: Tensor = parts.total if parts else loss(anchor, positive, **fields)
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        value = float(total.detach())
        slope = float(torch.nn.utils.get_total_norm([p.grad for p in f.parameters() if p.grad is not None]))
        if not (math.isfinite(value) and math.isfinite(slope)):
            what = f"the loss became {value}, its gradient {slope:g} long,"
            _fail(f, buffers, f"{what} at step {step} of {steps} (lr={lr:g})")
        optimiser.step()
        scheduler.step()
        if step % _RECORD_EVERY == 1 or step == steps:
            history["step"].append(float(step))
            history["loss"].append(value)
            if parts:
                history["loss_minus_log_m"].append(value - parts.log_m)
                history["alignment"].append(float(parts.alignment.detach()))
                history["uniformity"].append(float(parts.uniformity.detach()))
            if on_step:
                on_step(step, value)
    return Run(history, steps, time.perf_counter() - start, precision)


@torch.no_grad()
def evaluate(
    f: nn.Module,
    g: Callable[[Tensor], Tensor],
    law: pairs.PairLaw,
    *,
    temperature: float,
    rho: float = 0.0,
    n: int = 4096,
    m: int = 2000,
    generator: torch.Generator,
) -> Evaluation:
    """InfoNCE of f in eval mode on n fresh anchors, each against m fresh negatives of the loss's own law.

    Negatives from U are fresh for every 256 anchors. For ρ > 0 the anchors lie 32 to a fibre (fewer for n < 64), and a
    share ρ of the negatives is drawn afresh from that fibre; the fibres are spread evenly, which leaves the standard
    error reported an upper bound.

    Args:
        f: as in `fit`; left in the mode it came in.
        g: as in `fit`.
        law: as in `fit`.
        temperature: τ > 0.
        rho: share of negatives from the anchor's fibre, in [0, 1].
        n: anchors, >= 2.
        m: negatives M >= 1.
        generator: the source of randomness.

    Returns:
        `Evaluation`.
    """
    tau = checks.number("temperature", temperature, low=0, open_low=True)
    checks.integer("n", n, low=2)
    checks.integer("m", m, low=1)
    on_fibre = round(checks.number("rho", rho, low=0, high=1) * m)
    if (on_fibre == 0) != (rho == 0) or (on_fibre == m) != (rho == 1):
        raise ValueError(f"m must be large enough for a share rho={rho:g} of the negatives, got {m}")
    if on_fibre and not hasattr(law, "sample_support"):
        raise TypeError(
            f"rho={rho:g} needs a law with sample_support(z, n, generator), got {type(law).__name__}"
        )
    _check_dims(f, g, law)
    mode = f.training
    f.eval()
    per_fibre = min(_PER_FIBRE, n // 2)
    values = []
    for z, fibres in _grouped(law, n, per_fibre, generator) if on_fibre else _single(law, n, generator):
        anchor, positive = f(g(torch.cat([z, law.sample(z, generator)]))).split(len(z))
        shared = (
            f(g(sphere.uniform(m - on_fibre, law.dim, generator=generator))) if on_fibre < m else anchor[:0]
        )
        if not on_fibre:
            values.append(_each(anchor, positive, shared, tau))
            continue
        near = law.sample_support(fibres, on_fibre, generator)  # type: ignore[attr-defined]
        near = f(g(near.reshape(-1, law.dim))).reshape(len(fibres), on_fibre, -1)
        for own, a, p in zip(near, anchor.split(per_fibre), positive.split(per_fibre), strict=True):
            values.append(_each(a, p, torch.cat([own, shared]), tau).mean(0, keepdim=True))
    f.train(mode)
    each = torch.cat(values).double()
    mean = float(each.mean())
    return Evaluation(mean, mean - math.log(m), float(each.std() / math.sqrt(len(each))), m)


def _single(law: pairs.PairLaw, n: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Independent anchors, a chunk at a time, each its own fibre."""
    for i in range(0, n, _CHUNK):
        z = sphere.uniform(min(_CHUNK, n - i), law.dim, generator=generator)
        yield z, z


def _grouped(
    law: pairs.PairLaw, n: int, per_fibre: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Anchors that share evenly spread fibres, a chunk at a time, and those fibres; the last fibre may have fewer."""
    for fibres in sphere.spread(math.ceil(n / per_fibre), law.dim, generator=generator).split(
        _CHUNK // per_fibre
    ):
        z = law.sample_support(fibres, per_fibre, generator).reshape(-1, law.dim)  # type: ignore[attr-defined]
        yield z[:n], fibres
        n -= len(z)


def _each(anchor: Tensor, positive: Tensor, negatives: Tensor, tau: float) -> Tensor:
    """The loss of each anchor against shared negatives, shape (n,)."""
    s_p = (anchor * positive).sum(1) / tau
    return torch.logaddexp(s_p, (anchor @ negatives.T / tau).logsumexp(1)) - s_p


def _check_dims(f: nn.Module, g: Callable[[Tensor], Tensor], law: pairs.PairLaw) -> None:
    """Where law, process and encoder say their dimensions, they must agree."""
    g_in, g_out, f_in = (
        getattr(part, name, None) for part, name in ((g, "dim"), (g, "out_dim"), (f, "in_dim"))
    )
    if isinstance(g_in, int) and g_in != law.dim:
        raise ValueError(f"g must take latents of dimension {law.dim}, as the law draws, got dim={g_in}")
    if isinstance(g_out, int) and isinstance(f_in, int) and g_out != f_in:
        raise ValueError(f"f must take data of dimension {g_out}, as g makes, got in_dim={f_in}")


def _fail(f: nn.Module, buffers: list[Tensor], message: str) -> NoReturn:
    """Put the buffers back (batch statistics follow the data before any step is taken) and stop."""
    with torch.no_grad():
        for buffer, before in zip(f.buffers(), buffers):
            buffer.copy_(before)
    raise checks.RunFailed(message)


def _fields_taken(loss: Callable[..., Tensor], group_size: int | None) -> tuple[str, ...]:
    """The fields of a batch that the loss says it takes; groups are drawn for a loss that takes them and no other."""
    name, takes = type(loss).__name__, tuple(getattr(loss, "fields", ()))
    for field in takes:
        checks.choice(f"fields of {name}", field, ("group", "moved"))
    if "group" in takes and group_size is None:
        raise ValueError(f"group_size must be given: {name} needs the group of every pair")
    if "group" not in takes and group_size is not None:
        raise ValueError(f"group_size must be left out: {name} takes no group, got {group_size}")
    return takes


def _fields(loss: Callable[..., Tensor], takes: tuple[str, ...], batch: pairs.PairBatch) -> dict[str, Tensor]:
    """The fields of the batch that the loss takes."""
    fields = {name: getattr(batch, name) for name in takes}
    if fields.get("moved", batch) is None:
        raise ValueError(
            f"law must tag its pairs (pairs.Tagged): {type(loss).__name__} needs moved for every pair"
        )
    return fields
