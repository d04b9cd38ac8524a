"""The arithmetic of the losses: rows put on the sphere, scores in blocks, negatives by fibre and everywhere.

Every kind of negatives gives `Scores`: for each anchor its positive score s_p and the excess of the log-denominator
over it, which is the loss: exact also where both are large.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from viewspan import checks


class Scores(NamedTuple):
    """What the anchors of a batch score.

    Attributes:
        s_p: ⟨a, p⟩/τ of each anchor, shape (n,).
        excess: log of the denominator minus s_p, the loss of each anchor, nats, shape (n,), in the order of `s_p`.
        m: fewest negatives an anchor met.
        log_m: mean over anchors of the log of that number.
    """

    s_p: Tensor
    excess: Tensor
    m: int
    log_m: float


def similarity(a: Tensor, b: Tensor, tau: float) -> Tensor:
    """⟨a_i, b_j⟩/τ over the last two dimensions, never in the half precision of a surrounding autocast."""
    with torch.autocast(a.device.type, enabled=False):
        return (a / tau) @ b.transpose(-1, -2)


def excess(scores: Tensor, column: Tensor) -> Tensor:
    """log Σ_j e^{s_ij} − s_{i,column(i)} of each row, exact also where both are large."""
    return functional.cross_entropy(scores, column, reduction="none")


def on_sphere(name: str, x: Tensor, normalize: bool) -> Tensor:
    """Rows in at least float32 on the unit sphere; the first bad row is named."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}"
        )
    tolerance = 1e-3
    if x.dtype in (torch.float16, torch.bfloat16):
        x, tolerance = x.float(), 1e-2
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    good = (length > checks.SHORTEST_ROW) & (length < torch.inf)
    if not normalize:
        good &= (length - 1).abs() < tolerance
    if not bool(good.all()):
        row = int((~good).nonzero()[0, 0])
        value = float(length[row])
        if not math.isfinite(value):
            if bool(torch.isfinite(x[row]).all()):
                raise ValueError(f"{name} row {row} is too long: its squares overflow {x.dtype}")
            raise ValueError(f"{name} row {row} is not finite")
        rule = f"longer than {checks.SHORTEST_ROW:g}" if normalize else "of length 1 with normalize=False"
        raise ValueError(f"{name} row {row} must be {rule}, got length {value:.3g}")
    return x / length if normalize else x


def pair(
    a: Tensor, p: Tensor, normalize: bool, names: tuple[str, str] = ("anchor", "positive")
) -> tuple[Tensor, Tensor]:
    for name, x in zip(names, (a, p)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if a.ndim != 2 or a.shape != p.shape or 0 in a.shape:
        raise ValueError(
            f"{names[0]} and {names[1]} must have one shape (n, d), got {tuple(a.shape)} and {tuple(p.shape)}"
        )
    a, p = on_sphere(names[0], a, normalize), on_sphere(names[1], p, normalize)
    dtype = torch.promote_types(a.dtype, p.dtype)
    return a.to(dtype), p.to(dtype)


def in_batch(a: Tensor, p: Tensor, tau: float) -> Scores:
    """Row i of p is the positive of anchor i, every other row of p a negative; p may have further rows."""
    if len(p) < 2:
        raise ValueError("anchor must have at least 2 rows: one pair has no negatives")
    s_p, excess = _AgainstAll.apply(a / tau, p)
    return Scores(s_p, excess, len(p) - 1, math.log(len(p) - 1))


class _AgainstAll(torch.autograd.Function):
    """Row by row s_ii and log Σ_j e^{s_ij} − s_ii of s = x pᵀ, in blocks of rows that are formed again for the gradient.

    Blocks stay in cache and no (n, M) array is kept: on a CPU this halves the time of the loss.
    """

    @staticmethod
    def forward(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        s_p, excess = torch.empty_like(x[:, 0]), torch.empty_like(x[:, 0])
        for rows in _blocks(x, p):
            s = similarity(x[rows], p, 1)
            s_p[rows] = s[:, rows].diagonal()
            excess[rows] = s.sub_(s_p[rows, None]).logsumexp(1)
        return s_p, excess

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, to_s_p: Tensor, to_excess: Tensor) -> tuple[Tensor, Tensor]:
        x, p, s_p, excess = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            if torch.is_grad_enabled():  # for a second derivative, through operations that have one
                own = functional.pad(torch.diag(to_s_p - to_excess), (0, len(p) - len(x)))
                to_s = similarity(x, p, 1).softmax(1) * to_excess[:, None] + own
                return to_s @ p, to_s.T @ x
            to_own = (to_s_p - to_excess)[:, None]
            to_x, to_p = to_own * p[: len(x)], torch.zeros_like(p)
            to_p[: len(x)] = to_own * x
            for rows in _blocks(x, p):
                # one after the other: their sum is rounded, and 1/τ can make that rounding large
                s = similarity(x[rows], p, 1).sub_(s_p[rows, None]).sub_(excess[rows, None])
                to_s = s.exp_().mul_(to_excess[rows, None])
                to_x[rows] += to_s @ p
                to_p += to_s.T @ x[rows]
        return to_x, to_p


def _blocks(x: Tensor, p: Tensor) -> list[slice]:
    """Slices of x with 2 MB of single-precision scores each on a CPU, 256 MB elsewhere."""
    size = max(1, 2 ** (19 if x.device.type == "cpu" else 26) // len(p))
    return [slice(i, min(i + size, len(x))) for i in range(0, len(x), size)]


def given(a: Tensor, p: Tensor, negatives: Tensor, tau: float) -> Scores:
    s_p = (a * p).sum(1) / tau
    s = similarity(a, negatives, tau) if negatives.ndim == 2 else similarity(a[:, None], negatives, tau)[:, 0]
    m = negatives.shape[-2]
    return Scores(s_p, _above_zero(s.logsumexp(1) - s_p), m, math.log(m))


def _above_zero(x: Tensor) -> Tensor:
    """log(1 + e^x); `softplus` gives up its last digits above 20."""
    return torch.logaddexp(x, torch.zeros_like(x))


class Groups:
    """Pairs sorted by fibre into a (G, k) table, padded where groups differ in size."""

    def __init__(self, group: Tensor, n: int) -> None:
        if not isinstance(group, Tensor):
            raise TypeError(f"group must be a torch.Tensor of integers, got {type(group).__name__}")
        if group.shape != (n,) or group.is_floating_point() or group.dtype == torch.bool:
            raise ValueError(
                f"group must be integers of shape ({n},), got {group.dtype} {tuple(group.shape)}"
            )
        ids, size = torch.unique(group, return_counts=True)
        if n and int(ids[0]) < 0:
            raise ValueError(
                f"group must be >= 0, got {int(ids[0])}: such pairs have no fibre (TaggedInfoNCE)"
            )
        if bool((size < 2).any()):
            raise ValueError(f"group {int(ids[size < 2][0])} has one member: its fibre has no negative")
        self.n, self.count, self.size, self.width = n, len(ids), size, int(size.max())
        self.smallest = int(size.min())
        self.order = torch.argsort(group, stable=True)
        self.even = self.smallest == self.width
        starts = size.cumsum(0) - size
        slot = torch.arange(n, device=group.device) - starts.repeat_interleave(size)
        self.cell = torch.arange(self.count, device=group.device).repeat_interleave(size) * self.width + slot
        self.filled = torch.zeros(self.count * self.width, dtype=torch.bool, device=group.device)
        self.filled[self.cell] = True

    def table(self, x: Tensor) -> Tensor:
        """(n, d) -> (G, k, d), zeros in the padding."""
        x = x[self.order]
        if not self.even:
            x = torch.zeros(self.count * self.width, x.shape[1], dtype=x.dtype, device=x.device).index_put(
                (self.cell,), x
            )
        return x.reshape(self.count, self.width, -1)

    def rows(self, table: Tensor) -> Tensor:
        """(G, k) -> (n,), sorted by group."""
        return table.reshape(-1)[self.cell]


def in_group(a: Tensor, p: Tensor, blocks: Groups, tau: float) -> Scores:
    """Negatives are the positives of the other members of the anchor's group."""
    s = similarity(blocks.table(a), blocks.table(p), tau)
    s_p = blocks.rows(s.diagonal(dim1=1, dim2=2))
    if not blocks.even:
        s = s.masked_fill(~blocks.filled.reshape(blocks.count, 1, blocks.width), -torch.inf)
    own = torch.arange(blocks.width, device=s.device).repeat(blocks.count)
    log_m = math.log(blocks.smallest - 1)
    if not blocks.even:
        log_m = sum(k * math.log(k - 1) for k in blocks.size.tolist()) / blocks.n
    return Scores(s_p, excess(s.flatten(0, 1), own)[blocks.cell], blocks.smallest - 1, log_m)


def _scores_everywhere(a: Tensor, p: Tensor, blocks: Groups, tau: float) -> tuple[Tensor, Tensor]:
    """All scores in group order, and the mask of the pairs that share a group."""
    if blocks.count < 2:
        raise ValueError("group must name at least 2 fibres: the others' positives are the uniform negatives")
    fibre = blocks.cell // blocks.width
    return similarity(a[blocks.order], p[blocks.order], tau), fibre[:, None] == fibre[None, :]


def elsewhere(a: Tensor, p: Tensor, blocks: Groups, tau: float) -> Tensor:
    """log mean exp of the scores against the other groups' positives, sorted by group."""
    s, same = _scores_everywhere(a, p, blocks, tau)
    return s.masked_fill(same, -torch.inf).logsumexp(1) - (~same).sum(1).to(s.dtype).log()


def mixed(a: Tensor, p: Tensor, blocks: Groups, tau: float, rho: float) -> Scores:
    """log(e^{s_p} + M·(ρ·mean_K e^s + (1−ρ)·mean_U e^s)) − s_p, M = n − 1: one weighted sum over each row."""
    s, same = _scores_everywhere(a, p, blocks, tau)
    m = blocks.n - 1
    near = same.sum(1, keepdim=True).to(s.dtype)
    log_weight = torch.where(same, (m * rho / (near - 1)).log(), (m * (1 - rho) / (blocks.n - near)).log())
    log_weight.fill_diagonal_(0)
    own = torch.arange(blocks.n, device=s.device)
    return Scores(s.diagonal(), excess(s + log_weight, own), m, math.log(m))
