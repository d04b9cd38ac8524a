"""Contrastive losses on unit vectors, in nats.

For an anchor a, its positive p and M negatives n_j: L = −⟨a,p⟩/τ + log(e^{⟨a,p⟩/τ} + Σ_j e^{⟨a,n_j⟩/τ}).
A constant encoder scores log(M + 1); losses at different M compare through L − log M.

All losses are `torch.nn.Module`s that return a scalar, so they drop into any training loop; `.parts(...)` gives the
same number split into alignment and uniformity. Half precision is promoted to float32 inside.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from viewspan import checks


class LossParts(NamedTuple):
    """A loss split in two. `total = alignment + uniformity`.

    Attributes:
        total: the loss, nats, scalar tensor; lower is better.
        alignment: −E⟨a, p⟩/τ, between −1/τ (positives coincide) and 1/τ.
        uniformity: E log of the denominator: low where negatives are far from the anchor.
        m: M, the number of negatives an anchor met (the smallest, where groups differ in size).
    """

    total: Tensor
    alignment: Tensor
    uniformity: Tensor
    m: int


class InfoNCE(nn.Module):
    """InfoNCE with a share ρ of its negatives from the anchor's own fibre K(z).

    - ρ = 0, the *standard* loss: the other anchors' positives of the batch are the negatives.
    - ρ = 1, the *support-corrected* loss (Theorem 4.6 of arXiv 2606.04280): the positives of the other members of the
      anchor's group are. The similarity is block-diagonal, and an anchor costs two encoder rows whatever M.
    - 0 < ρ < 1, *mixed*: the denominator is M·(e^{s_p}/M + ρ·mean_K e^{s} + (1−ρ)·mean_U e^{s}), with the K mean over
      the other members of the group, the U mean over the other groups and M = N − 1.

    Negatives may be given instead: shared by all anchors, (M, d), or one set for each, (n, M, d). They are then
    the whole negative sample, drawn by the caller with whatever share on the fibre.

    Args:
        temperature: τ >= 1e-30.
        rho: ρ in [0, 1].
        normalize: put rows on the sphere first. If False they must already be of length 1.

    Shapes: anchor, positive (n, d); negatives (M, d) or (n, M, d); group (n,), integers >= 0. Returns a scalar.

    Raises:
        ValueError: for rows that are zero, not finite or (with ``normalize=False``) not of length 1, named by argument
            and row; for shapes that disagree; for ρ > 0 without `group` or `negatives`; for a group of one.

    Example:
        >>> a = torch.eye(2)
        >>> round(InfoNCE(0.5)(a, a).item(), 6)   # log(1 + e^-2)
        0.126928
    """

    def __init__(self, temperature: float, *, rho: float = 0.0, normalize: bool = True) -> None:
        super().__init__()
        self.temperature = _temperature(temperature)
        self.rho = checks.number("rho", rho, low=0, high=1)
        self.normalize = normalize

    def forward(
        self,
        anchor: Tensor,
        positive: Tensor,
        negatives: Tensor | None = None,
        *,
        group: Tensor | None = None,
    ) -> Tensor:
        """The loss, a scalar in nats."""
        return self.parts(anchor, positive, negatives, group=group).total

    def parts(
        self,
        anchor: Tensor,
        positive: Tensor,
        negatives: Tensor | None = None,
        *,
        group: Tensor | None = None,
    ) -> LossParts:
        """The loss as `LossParts(total, alignment, uniformity, m)`."""
        a, p = _pair(anchor, positive, self.normalize)
        if negatives is not None:
            if group is not None:
                raise ValueError(
                    "group and negatives must not both be given: each says where the negatives come from"
                )
            return _parts(*_given(a, p, self._negatives(negatives, a), self.temperature))
        if group is None:
            if self.rho > 0:
                raise ValueError(
                    f"rho={self.rho:g} needs group (fibre of each pair) or negatives; neither was given"
                )
            return _parts(*_in_batch(a, p, self.temperature))
        if self.rho == 0:
            raise ValueError("group must not be given for rho=0: the standard loss has no use for fibres")
        blocks = _Groups(group, len(a))
        if self.rho == 1:
            return _parts(*_in_group(a, p, blocks, self.temperature))
        return _parts(*_mixed(a, p, blocks, self.temperature, self.rho))

    def _negatives(self, negatives: Tensor, a: Tensor) -> Tensor:
        if not isinstance(negatives, Tensor):
            raise TypeError(f"negatives must be a torch.Tensor, got {type(negatives).__name__}")
        n, d = a.shape
        shape = tuple(negatives.shape)
        if not (shape[-1:] == (d,) and (negatives.ndim == 2 or (negatives.ndim == 3 and shape[0] == n))):
            raise ValueError(f"negatives must have shape (M, {d}) or ({n}, M, {d}), got {shape}")
        if shape[-2] == 0:
            raise ValueError(f"negatives must have at least one row, got shape {shape}")
        flat = _on_sphere("negatives", negatives.reshape(-1, d), self.normalize)
        return flat.reshape(shape).to(a.dtype)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature:g}, rho={self.rho:g}"


class UniformityInfoNCE(nn.Module):
    """The support-corrected loss plus a separate uniformity term over the whole sphere.

    L = InfoNCE(ρ = 1) + β·E log E_U e^{⟨h, h'⟩/τ}; the U mean runs over the positives of the other groups.
    Under the ``ambient`` law with κ = 1/τ orthogonal maps stay minimisers for every β >= 0 and folds are excluded:
    inside the logarithm (0 < ρ < 1) they do not.

    Args:
        temperature: τ >= 1e-30.
        beta: weight β >= 0 of the uniformity term.
        normalize: as in `InfoNCE`.
    """

    def __init__(self, temperature: float, *, beta: float = 1.0, normalize: bool = True) -> None:
        super().__init__()
        self.temperature = _temperature(temperature)
        self.beta = checks.number("beta", beta, low=0)
        self.normalize = normalize

    def forward(self, anchor: Tensor, positive: Tensor, *, group: Tensor) -> Tensor:
        """The loss, a scalar in nats; shapes as in `InfoNCE`."""
        return self.parts(anchor, positive, group=group).total

    def parts(self, anchor: Tensor, positive: Tensor, *, group: Tensor) -> LossParts:
        """The loss as `LossParts`; the β term is counted under uniformity."""
        a, p = _pair(anchor, positive, self.normalize)
        blocks = _Groups(group, len(a))
        s_p, excess, m = _in_group(a, p, blocks, self.temperature)
        spread = _elsewhere(a, p, blocks, self.temperature)
        return _parts(s_p, excess + self.beta * spread, m)


class TaggedInfoNCE(nn.Module):
    """For pairs known to be held or moved: (1−w)·corrected(held) + w·standard(moved).

    Under the ``ambient`` law with κ = 1/τ isometries are the unique minimisers for every 0 < w <= 1 and every share
    of moved pairs. A moved anchor is contrasted with every other pair's positive, held ones included: each is
    uniform over the sphere, so few moved pairs still meet many negatives.

    Train with w = 1 first: folding is a local minimum that the corrected term falls into.

    Args:
        temperature: τ >= 1e-30.
        weight: w in (0, 1], the weight of the moved term. At 1 held pairs serve as negatives only.
        normalize: as in `InfoNCE`.
    """

    def __init__(self, temperature: float, *, weight: float = 0.1, normalize: bool = True) -> None:
        super().__init__()
        self.temperature = _temperature(temperature)
        self.weight = checks.number("weight", weight, low=0, high=1, open_low=True)
        self.normalize = normalize

    def forward(self, anchor: Tensor, positive: Tensor, *, group: Tensor, moved: Tensor) -> Tensor:
        """The loss, a scalar in nats.

        Args:
            anchor, positive: shape (n, d).
            group: fibre of each held pair, shape (n,); the entries of moved pairs are not read.
            moved: True for moved pairs, shape (n,).
        """
        return self.parts(anchor, positive, group=group, moved=moved).total

    def parts(self, anchor: Tensor, positive: Tensor, *, group: Tensor, moved: Tensor) -> LossParts:
        """The loss as `LossParts`; m is that of the moved term."""
        a, p = _pair(anchor, positive, self.normalize)
        for name, x in (("group", group), ("moved", moved)):
            if not isinstance(x, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
            if x.shape != (len(a),):
                raise ValueError(f"{name} must have shape ({len(a)},), got {tuple(x.shape)}")
        if moved.dtype != torch.bool:
            raise ValueError(f"moved must be boolean, got {moved.dtype}")
        if not bool(moved.any()):
            raise ValueError("moved must mark at least one pair: without any the moved term is undefined")
        order = torch.cat([moved.nonzero()[:, 0], (~moved).nonzero()[:, 0]])
        far = _parts(*_in_batch(a[moved], p[order], self.temperature))
        w = self.weight
        if w == 1 or bool(moved.all()):
            return LossParts(w * far.total, w * far.alignment, w * far.uniformity, far.m)
        near = _parts(
            *_in_group(a[~moved], p[~moved], _Groups(group[~moved], int((~moved).sum())), self.temperature)
        )
        alignment = (1 - w) * near.alignment + w * far.alignment
        uniformity = (1 - w) * near.uniformity + w * far.uniformity
        return LossParts((1 - w) * near.total + w * far.total, alignment, uniformity, far.m)


class NTXent(nn.Module):
    """NT-Xent of SimCLR: both views are anchors in turn; the other 2N − 2 rows of the batch are negatives.

    The mean over 2N anchors (not a sum over directions). Copies of an image in one batch count as negatives.

    Reference: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", Eq. (1).

    Args:
        temperature: τ >= 1e-30.
        normalize: as in `InfoNCE`.

    Shapes: view0, view1 (N, d), N >= 2; row i of one is the positive of row i of the other. Returns a scalar.

    Example:
        >>> a = torch.eye(2)
        >>> round(NTXent(0.5)(a, a).item(), 6)   # log(1 + 2 e^-2)
        0.239545
    """

    def __init__(self, temperature: float, *, normalize: bool = True) -> None:
        super().__init__()
        self.temperature = _temperature(temperature)
        self.normalize = normalize

    def forward(self, view0: Tensor, view1: Tensor) -> Tensor:
        """The loss, a scalar in nats."""
        return self.parts(view0, view1).total

    def parts(self, view0: Tensor, view1: Tensor) -> LossParts:
        """The loss as `LossParts`, m = 2N − 2."""
        a, b = _pair(view0, view1, self.normalize, names=("view0", "view1"))
        n = len(a)
        if n < 2:
            raise ValueError(f"view0 must have at least 2 rows (one pair has no negatives), got {n}")
        rows = torch.cat([a, b])
        s = _scores(rows, rows, self.temperature)
        s = s.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=s.device), -torch.inf)
        s_p = (a * b).sum(1).repeat(2) / self.temperature
        other = torch.arange(2 * n, device=s.device).roll(n)
        return _parts(s_p, _excess(s, other), 2 * n - 2)


def _temperature(value: float) -> float:
    """τ > 0, and not so small that 1/τ leaves single precision."""
    return checks.number("temperature", value, low=1e-30)


def _parts(s_p: Tensor, excess: Tensor, m: int) -> LossParts:
    """Means over anchors of −s_p and of the excess of the log-denominator over s_p, which is the loss."""
    return LossParts(excess.mean(), -s_p.mean(), (excess + s_p).mean(), m)


def _scores(a: Tensor, b: Tensor, tau: float) -> Tensor:
    """⟨a_i, b_j⟩/τ over the last two dimensions, never in the half precision of a surrounding autocast."""
    with torch.autocast(a.device.type, enabled=False):
        return (a / tau) @ b.transpose(-1, -2)


def _excess(scores: Tensor, column: Tensor) -> Tensor:
    """log Σ_j e^{s_ij} − s_{i,column(i)} of each row, exact also where both are large."""
    return functional.cross_entropy(scores, column, reduction="none")


def _on_sphere(name: str, x: Tensor, normalize: bool) -> Tensor:
    """Rows in at least float32 on the unit sphere; the first bad row is named."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor, got {getattr(x, 'dtype', type(x).__name__)}"
        )
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    good = (length > checks.SHORTEST_ROW) & (length < torch.inf)
    if not normalize:
        good &= (length - 1).abs() < 1e-3
    if not bool(good.all()):
        row = int((~good).nonzero()[0, 0])
        value = float(length[row])
        if not math.isfinite(value):
            raise ValueError(f"{name} row {row} is not finite")
        rule = f"longer than {checks.SHORTEST_ROW:g}" if normalize else "of length 1 with normalize=False"
        raise ValueError(f"{name} row {row} must be {rule}, got length {value:.3g}")
    return x / length if normalize else x


def _pair(
    a: Tensor, p: Tensor, normalize: bool, names: tuple[str, str] = ("anchor", "positive")
) -> tuple[Tensor, Tensor]:
    for name, x in zip(names, (a, p)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if a.ndim != 2 or a.shape != p.shape or 0 in a.shape:
        raise ValueError(
            f"{names[0]} and {names[1]} must have one shape (n, d), got {tuple(a.shape)} and {tuple(p.shape)}"
        )
    a, p = _on_sphere(names[0], a, normalize), _on_sphere(names[1], p, normalize)
    dtype = torch.promote_types(a.dtype, p.dtype)
    return a.to(dtype), p.to(dtype)


def _in_batch(a: Tensor, p: Tensor, tau: float) -> tuple[Tensor, Tensor, int]:
    """Row i of p is the positive of anchor i, every other row of p a negative; p may have further rows."""
    if len(p) < 2:
        raise ValueError("anchor must have at least 2 rows: one pair has no negatives")
    s_p, excess = _AgainstAll.apply(a / tau, p)
    return s_p, excess, len(p) - 1


class _AgainstAll(torch.autograd.Function):
    """Row by row s_ii and log Σ_j e^{s_ij} − s_ii of s = x pᵀ, in blocks of rows that are formed again for the gradient.

    Blocks stay in cache and no (n, M) array is kept: on a CPU this halves the time of the loss.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        s_p, excess = torch.empty_like(x[:, 0]), torch.empty_like(x[:, 0])
        for rows in _blocks(x, p):
            s = _scores(x[rows], p, 1)
            s_p[rows] = s[:, rows].diagonal()
            excess[rows] = s.sub_(s_p[rows, None]).logsumexp(1)
        ctx.save_for_backward(x, p, s_p, excess)
        return s_p, excess

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_s_p: Tensor, to_excess: Tensor) -> tuple[Tensor, Tensor]:
        x, p, s_p, excess = ctx.saved_tensors
        to_own = (to_s_p - to_excess)[:, None]
        to_x, to_p = to_own * p[: len(x)], torch.zeros_like(p)
        to_p[: len(x)] = to_own * x
        with torch.autocast(x.device.type, enabled=False):
            for rows in _blocks(x, p):
                # one after the other: their sum is rounded, and 1/τ can make that rounding large
                s = _scores(x[rows], p, 1).sub_(s_p[rows, None]).sub_(excess[rows, None])
                to_s = s.exp_().mul_(to_excess[rows, None])
                to_x[rows] += to_s @ p
                to_p += to_s.T @ x[rows]
        return to_x, to_p


def _blocks(x: Tensor, p: Tensor) -> list[slice]:
    """Slices of x with 2 MB of single-precision scores each on a CPU, 256 MB elsewhere."""
    size = max(1, 2 ** (19 if x.device.type == "cpu" else 26) // len(p))
    return [slice(i, min(i + size, len(x))) for i in range(0, len(x), size)]


def _given(a: Tensor, p: Tensor, negatives: Tensor, tau: float) -> tuple[Tensor, Tensor, int]:
    s_p = (a * p).sum(1) / tau
    s = _scores(a, negatives, tau) if negatives.ndim == 2 else _scores(a[:, None], negatives, tau)[:, 0]
    return s_p, _above_zero(s.logsumexp(1) - s_p), negatives.shape[-2]


def _above_zero(x: Tensor) -> Tensor:
    """log(1 + e^x); `softplus` gives up its last digits above 20."""
    return torch.logaddexp(x, torch.zeros_like(x))


class _Groups:
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
        self.n, self.count, self.width = n, len(ids), int(size.max())
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


def _in_group(a: Tensor, p: Tensor, blocks: _Groups, tau: float) -> tuple[Tensor, Tensor, int]:
    """Negatives are the positives of the other members of the anchor's group."""
    s = _scores(blocks.table(a), blocks.table(p), tau)
    s_p = blocks.rows(s.diagonal(dim1=1, dim2=2))
    if not blocks.even:
        s = s.masked_fill(~blocks.filled.reshape(blocks.count, 1, blocks.width), -torch.inf)
    own = torch.arange(blocks.width, device=s.device).repeat(blocks.count)
    return s_p, _excess(s.flatten(0, 1), own)[blocks.cell], blocks.smallest - 1


def _scores_everywhere(a: Tensor, p: Tensor, blocks: _Groups, tau: float) -> tuple[Tensor, Tensor]:
    """All scores in group order, and the mask of the pairs that share a group."""
    if blocks.count < 2:
        raise ValueError("group must name at least 2 fibres: the others' positives are the uniform negatives")
    fibre = blocks.cell // blocks.width
    return _scores(a[blocks.order], p[blocks.order], tau), fibre[:, None] == fibre[None, :]


def _elsewhere(a: Tensor, p: Tensor, blocks: _Groups, tau: float) -> Tensor:
    """log mean exp of the scores against the other groups' positives, sorted by group."""
    s, same = _scores_everywhere(a, p, blocks, tau)
    return s.masked_fill(same, -torch.inf).logsumexp(1) - (~same).sum(1).to(s.dtype).log()


def _mixed(a: Tensor, p: Tensor, blocks: _Groups, tau: float, rho: float) -> tuple[Tensor, Tensor, int]:
    """log(e^{s_p} + M·(ρ·mean_K e^s + (1−ρ)·mean_U e^s)) − s_p, M = n − 1: one weighted sum over each row."""
    s, same = _scores_everywhere(a, p, blocks, tau)
    m = blocks.n - 1
    near = same.sum(1, keepdim=True).to(s.dtype)
    log_weight = torch.where(same, (m * rho / (near - 1)).log(), (m * (1 - rho) / (blocks.n - near)).log())
    log_weight.fill_diagonal_(0)
    return s.diagonal(), _excess(s + log_weight, torch.arange(blocks.n, device=s.device)), m
