"""Contrastive losses on unit vectors, in nats.

For an anchor a, its positive p and M negatives n_j: L = −⟨a,p⟩/τ + log(e^{⟨a,p⟩/τ} + Σ_j e^{⟨a,n_j⟩/τ}).
A constant encoder scores log(M + 1); losses at different M compare through L − log M.

All losses are `torch.nn.Module`s that return a scalar, so they drop into any training loop; `.parts(...)` gives the
same number split into alignment and uniformity. Half precision is promoted to float32 inside. `Loss` is the contract
that `fit` reads; an own loss that is a plain function of anchors and positives works too.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from viewspan import checks
from viewspan.losses import scores

__all__ = ["InfoNCE", "Loss", "LossParts", "NTXent", "TaggedInfoNCE", "UniformityInfoNCE"]


class LossParts(NamedTuple):
    """A loss split in two. `total = alignment + uniformity`.

    Attributes:
        total: the loss, nats, scalar tensor; lower is better.
        alignment: −E⟨a, p⟩/τ, between −1/τ (positives coincide) and 1/τ.
        uniformity: E log of the denominator: low where negatives are far from the anchor.
        m: M, the number of negatives an anchor met (the smallest, where groups differ in size).
        log_m: log M, averaged as `total` is where anchors meet different numbers: `total − log_m` compares over M.
    """

    total: Tensor
    alignment: Tensor
    uniformity: Tensor
    m: int
    log_m: float


@runtime_checkable
class Loss(Protocol):
    """What `fit` reads of a loss; called with anchors, positives and its `fields` by name, it gives a scalar in nats."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a `pairs.PairBatch` it takes beside anchor and positive, and cannot do without: group, moved."""
        ...

    def __call__(self, anchor: Tensor, positive: Tensor, /) -> Tensor:
        """The loss, a scalar in nats."""
        ...

    def parts(self, anchor: Tensor, positive: Tensor, /) -> LossParts:
        """The same number, split."""
        ...


class InfoNCE(nn.Module):
    """InfoNCE with a share ρ of its negatives from the anchor's own fibre K(z).

    - ρ = 0, the *standard* loss: the other anchors' positives of the batch are the negatives.
    - ρ = 1, the *support-corrected* loss (Theorem 4.6 of arXiv 2606.04280): the positives of the other members of the
      anchor's group are. The similarity is block-diagonal, and an anchor costs two encoder rows whatever M.
    - 0 < ρ < 1, *mixed*: the denominator is M·(e^{s_p}/M + ρ·mean_K e^{s} + (1−ρ)·mean_U e^{s}), with the K mean over
      the other members of the group, the U mean over the other groups and M = N − 1.

    Negatives may be given instead: shared by all anchors, (M, d), or one set for each, (n, M, d). They are then
    the whole negative sample, drawn by the caller: for ρ > 0 a share ρ of them on each anchor's own fibre, so that
    one set for all anchors will not do.

    Args:
        temperature: τ >= 1e-30.
        rho: ρ in [0, 1].
        normalize: put rows on the sphere first. If False they must already be of length 1.

    Shapes: anchor, positive (n, d); negatives (M, d) or (n, M, d); group (n,), integers >= 0. Returns a scalar.

    Raises:
        ValueError: for rows that are zero, not finite or (with ``normalize=False``) not of length 1, named by argument
            and row; for shapes that disagree; for ρ > 0 without `group` or negatives of each anchor; for `group` with
            ρ = 0; for a group of one.

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

    @property
    def fields(self) -> tuple[str, ...]:
        """``group`` where negatives lie on the fibre."""
        return ("group",) if self.rho > 0 else ()

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
        a, p = scores.pair(anchor, positive, self.normalize)
        if negatives is not None:
            if group is not None:
                raise ValueError(
                    "group and negatives must not both be given: each says where the negatives come from"
                )
            return _parts(scores.given(a, p, self._negatives(negatives, a), self.temperature))
        if group is None:
            if self.rho > 0:
                raise ValueError(
                    f"rho={self.rho:g} needs group (fibre of each pair) or negatives; neither was given"
                )
            return _parts(scores.in_batch(a, p, self.temperature))
        if self.rho == 0:
            raise ValueError("group must not be given for rho=0: the standard loss has no use for fibres")
        blocks = scores.Groups(group, len(a))
        if self.rho == 1:
            return _parts(scores.in_group(a, p, blocks, self.temperature))
        return _parts(scores.mixed(a, p, blocks, self.temperature, self.rho))

    def _negatives(self, negatives: Tensor, a: Tensor) -> Tensor:
        if not isinstance(negatives, Tensor):
            raise TypeError(f"negatives must be a torch.Tensor, got {type(negatives).__name__}")
        n, d = a.shape
        shape = tuple(negatives.shape)
        if not (shape[-1:] == (d,) and (negatives.ndim == 2 or (negatives.ndim == 3 and shape[0] == n))):
            raise ValueError(f"negatives must have shape (M, {d}) or ({n}, M, {d}), got {shape}")
        if negatives.ndim == 2 and self.rho > 0:
            raise ValueError(
                f"negatives must be of each anchor's own fibre for rho={self.rho:g}, shape ({n}, M, {d}), got {shape}"
            )
        if shape[-2] == 0:
            raise ValueError(f"negatives must have at least one row, got shape {shape}")
        flat = scores.on_sphere("negatives", negatives.reshape(-1, d), self.normalize)
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

    @property
    def fields(self) -> tuple[str, ...]:
        """``group``."""
        return ("group",)

    def forward(self, anchor: Tensor, positive: Tensor, *, group: Tensor) -> Tensor:
        """The loss, a scalar in nats; shapes as in `InfoNCE`."""
        return self.parts(anchor, positive, group=group).total

    def parts(self, anchor: Tensor, positive: Tensor, *, group: Tensor) -> LossParts:
        """The loss as `LossParts`; the β term is counted under uniformity."""
        a, p = scores.pair(anchor, positive, self.normalize)
        blocks = scores.Groups(group, len(a))
        near = scores.in_group(a, p, blocks, self.temperature)
        spread = scores.elsewhere(a, p, blocks, self.temperature)
        return _parts(near._replace(excess=near.excess + self.beta * spread))


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

    @property
    def fields(self) -> tuple[str, ...]:
        """``group`` and ``moved``."""
        return ("group", "moved")

    def forward(self, anchor: Tensor, positive: Tensor, *, group: Tensor, moved: Tensor) -> Tensor:
        """The loss, a scalar in nats.

        Args:
            anchor: shape (n, d).
            positive: shape (n, d).
            group: fibre of each held pair, shape (n,); the entries of moved pairs are not read.
            moved: True for moved pairs, shape (n,).
        """
        return self.parts(anchor, positive, group=group, moved=moved).total

    def parts(self, anchor: Tensor, positive: Tensor, *, group: Tensor, moved: Tensor) -> LossParts:
        """The loss as `LossParts`; m is that of the moved term."""
        a, p = scores.pair(anchor, positive, self.normalize)
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
        far = _parts(scores.in_batch(a[moved], p[order], self.temperature))
        w = self.weight
        if w == 1 or bool(moved.all()):
            return LossParts(w * far.total, w * far.alignment, w * far.uniformity, far.m, w * far.log_m)
        blocks = scores.Groups(group[~moved], int((~moved).sum()))
        near = _parts(scores.in_group(a[~moved], p[~moved], blocks, self.temperature))
        total, alignment, uniformity, log_m = (
            (1 - w) * getattr(near, name) + w * getattr(far, name)
            for name in ("total", "alignment", "uniformity", "log_m")
        )
        return LossParts(total, alignment, uniformity, far.m, log_m)


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

    @property
    def fields(self) -> tuple[str, ...]:
        """None: the two views are all it takes."""
        return ()

    def forward(self, view0: Tensor, view1: Tensor) -> Tensor:
        """The loss, a scalar in nats."""
        return self.parts(view0, view1).total

    def parts(self, view0: Tensor, view1: Tensor) -> LossParts:
        """The loss as `LossParts`, m = 2N − 2."""
        a, b = scores.pair(view0, view1, self.normalize, names=("view0", "view1"))
        n = len(a)
        if n < 2:
            raise ValueError(f"view0 must have at least 2 rows (one pair has no negatives), got {n}")
        rows = torch.cat([a, b])
        s = scores.similarity(rows, rows, self.temperature)
        s = s.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=s.device), -torch.inf)
        s_p = (a * b).sum(1).repeat(2) / self.temperature
        other = torch.arange(2 * n, device=s.device).roll(n)
        return _parts(scores.Scores(s_p, scores.excess(s, other), 2 * n - 2, math.log(2 * n - 2)))


def _temperature(value: float) -> float:
    """τ > 0, and not so small that 1/τ leaves single precision."""
    return checks.number("temperature", value, low=1e-30)


def _parts(found: scores.Scores) -> LossParts:
    """Means over anchors of −s_p and of the excess of the log-denominator over s_p, which is the loss."""
    s_p, excess, m, log_m = found
    return LossParts(excess.mean(), -s_p.mean(), (excess + s_p).mean(), m, log_m)
