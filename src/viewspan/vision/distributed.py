"""One run on several processes, started by `torchrun` or `accelerate launch`.

Each process encodes its share of a batch; the embeddings are gathered with their gradient and every process computes
the whole loss, so loss and gradients are those of one process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class World(NamedTuple):
    """Who this process is among how many."""

    rank: int = 0
    size: int = 1

    def share(self, n: int) -> slice:
        """This process's contiguous part of n rows; parts differ by one row at most."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def gather(self, rows: Tensor, n: int) -> Tensor:
        """All n rows in order, with gradient to this process's own."""
        return rows if self.size == 1 else _Gather.apply(rows, n, self)

    def any(self, flag: int, on: torch.device) -> int:
        """The largest flag of all processes."""
        if self.size == 1:
            return flag
        value = torch.tensor([flag], device=on)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return int(value)

    def agree(self, precision: str, on: torch.device) -> str:
        """bfloat16 if any process found it faster."""
        return "bfloat16" if self.any(int(precision == "bfloat16"), on) else "float32"

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def world(device: torch.device) -> Iterator[World]:
    """The processes of a launcher (RANK, WORLD_SIZE in the environment), or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    mine = not dist.is_initialized()
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if mine:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        if mine:
            dist.destroy_process_group()


class _Gather(torch.autograd.Function):
    """Rows of all processes. Every process has the same loss, so its own part of the gradient is already here;
    it is scaled by the number of processes because DistributedDataParallel averages over them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, n: int, whole: World) -> Tensor:
        ctx.whole, ctx.n = whole, n
        parts = [World(r, whole.size).share(n) for r in range(whole.size)]
        most = max(p.stop - p.start for p in parts)
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in parts]
        dist.all_gather(received, padded)
        return torch.cat([r[: p.stop - p.start] for r, p in zip(received, parts)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.whole.share(ctx.n)] * ctx.whole.size, None, None
