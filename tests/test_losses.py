"""Losses: known values, slow loop twins, and the laws every loss obeys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from viewspan import losses, pairs, sphere
from viewspan.losses import InfoNCE, NTXent, TaggedInfoNCE, UniformityInfoNCE

E = torch.eye(2)
SWAPPED = E.flip(0)
EXACT = {torch.float32: 1e-5, torch.float64: 1e-9}


def points(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return sphere.uniform(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- loop twins: one anchor, one term at a time, in Python floats


def dot(a, b) -> float:
    return sum(x * y for x, y in zip(a, b))


def twin_weighted(a, p, weight, tau: float) -> float:
    """Mean of log(Σ_j w_ij e^{(s_ij − s_ii)})."""
    total = 0.0
    for i in range(len(a)):
        own = dot(a[i], p[i]) / tau
        total += math.log(sum(weight(i, j) * math.exp(dot(a[i], p[j]) / tau - own) for j in range(len(p))))
    return total / len(a)


def twin_info_nce(a, p, tau: float, group=None, rho: float = 0.0) -> float:
    n = len(a)
    if rho == 0:
        return twin_weighted(a, p, lambda i, j: 1, tau)
    if rho == 1:
        return twin_weighted(a, p, lambda i, j: float(group[i] == group[j]), tau)
    size = [group.count(g) for g in group]

    def weight(i, j):
        if i == j:
            return 1
        return (n - 1) * (rho / (size[i] - 1) if group[i] == group[j] else (1 - rho) / (n - size[i]))

    return twin_weighted(a, p, weight, tau)


def twin_uniformity(a, p, tau, group, beta) -> float:
    spread = 0.0
    for i in range(len(a)):
        away = [math.exp(dot(a[i], p[j]) / tau) for j in range(len(a)) if group[j] != group[i]]
        spread += math.log(sum(away) / len(away)) / len(a)
    return twin_info_nce(a, p, tau, group, 1.0) + beta * spread


def twin_tagged(a, p, tau, group, moved, w) -> float:
    held = [i for i in range(len(a)) if not moved[i]]
    far, n_far = 0.0, 0
    for i in range(len(a)):
        if moved[i]:
            own = dot(a[i], p[i]) / tau
            far += math.log(sum(math.exp(dot(a[i], q) / tau - own) for q in p))
            n_far += 1
    near = 0.0
    if w < 1:
        near = twin_info_nce([a[i] for i in held], [p[i] for i in held], tau, [group[i] for i in held], 1.0)
    return (1 - w) * near + w * far / n_far


def twin_nt_xent(a, b, tau) -> float:
    rows, n = [*a, *b], len(a)
    total = 0.0
    for i in range(2 * n):
        own = dot(rows[i], rows[(i + n) % (2 * n)]) / tau
        total += math.log(sum(math.exp(dot(rows[i], rows[j]) / tau - own) for j in range(2 * n) if j != i))
    return total / (2 * n)


# --- one list of losses

EVEN = [2, 0, 1, 1, 0, 2, 2, 0, 1, 0, 1, 2]  # unsorted ids, four members each
UNEVEN = [7, 7, 3, 7, 3, 9, 9, 7, 9, 9, 3, 7]
MOVED = [False] * 9 + [True] * 3
TAGS = [0, 5, 0, 5, 5, 0, 0, 5, 5, -1, -1, -1]


@dataclass
class Case:
    name: str
    make: Callable[[float], losses.InfoNCE]
    twin: Callable[..., float]
    fields: dict[str, list[Any]]
    offset: float = 0.0  # above log(M + 1) at a constant encoder, times τ

    def tensors(self) -> dict[str, torch.Tensor]:
        return {k: torch.tensor(v) for k, v in self.fields.items()}


CASES = [
    Case("standard", lambda t: InfoNCE(t), lambda a, p, t: twin_info_nce(a, p, t), {}),
    Case("standard given unit rows", lambda t: InfoNCE(t, normalize=False), twin_info_nce, {}),
    *[
        Case(
            f"{kind}, {name} groups",
            lambda t, rho=rho: InfoNCE(t, rho=rho),
            lambda a, p, t, group, rho=rho: twin_info_nce(a, p, t, group, rho),
            {"group": ids},
        )
        for kind, rho in (("corrected", 1.0), ("mixed .3", 0.3), ("mixed 1e-6", 1e-6), ("mixed .99", 0.99))
        for name, ids in (("even", EVEN), ("uneven", UNEVEN))
    ],
    *[
        Case(
            f"uniformity {beta:g}, {name} groups",
            lambda t, beta=beta: UniformityInfoNCE(t, beta=beta),
            lambda a, p, t, group, beta=beta: twin_uniformity(a, p, t, group, beta),
            {"group": ids},
            beta,
        )
        for beta in (0.0, 1.0, 2.5)
        for name, ids in (("even", EVEN), ("uneven", UNEVEN))
    ],
    *[
        Case(
            f"tagged {w:g}",
            lambda t, w=w: TaggedInfoNCE(t, weight=w),
            lambda a, p, t, group, moved, w=w: twin_tagged(a, p, t, group, moved, w),
            {"group": TAGS, "moved": MOVED},
        )
        for w in (0.1, 0.5, 1.0)
    ],
    Case("NT-Xent", lambda t: NTXent(t), twin_nt_xent, {}),
]
every_loss = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.05, 0.3, 2.0])
def test_equals_the_loop_twin(case, tau, dtype):
    a, p = points(12, 3, 1), points(12, 3, 2)
    expected = case.twin(a.tolist(), p.tolist(), tau, **case.fields)
    got = case.make(tau)(a.to(dtype), p.to(dtype), **case.tensors())
    assert got.shape == ()
    assert got.dtype == dtype
    assert float(got) == pytest.approx(expected, rel=EXACT[dtype], abs=EXACT[dtype])


@every_loss
def test_a_loss_says_which_fields_it_takes(case):
    loss = case.make(0.3)
    assert isinstance(loss, losses.Loss)
    assert loss.fields == tuple(case.fields)


@every_loss
def test_parts_sum_to_the_total(case):
    a, p = points(12, 3, 1), points(12, 3, 2)
    loss, tau = case.make(0.3), 0.3
    parts = loss.parts(a, p, **case.tensors())
    assert float(parts.total) == float(loss(a, p, **case.tensors()))
    assert float(parts.alignment + parts.uniformity) == pytest.approx(float(parts.total), abs=1e-12)
    assert isinstance(parts.m, int)
    if "moved" not in case.fields:
        assert float(parts.alignment) == pytest.approx(float(-(a * p).sum(1).mean() / tau), abs=1e-12)


@every_loss
def test_reordering_the_pairs_changes_nothing(case):
    a, p = points(12, 4, 3), points(12, 4, 4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5))
    fields = case.tensors()
    moved = {k: v[order] for k, v in fields.items()}
    loss = case.make(0.3)
    assert float(loss(a[order], p[order], **moved)) == pytest.approx(float(loss(a, p, **fields)), abs=1e-12)


@every_loss
def test_renaming_the_groups_changes_nothing(case):
    fields = case.tensors()
    if "group" not in fields:
        pytest.skip("takes no groups")
    a, p = points(12, 4, 3), points(12, 4, 4)
    new = torch.where(fields["group"] < 0, fields["group"], 10**12 - 7 * fields["group"])
    loss = case.make(0.3)
    assert float(loss(a, p, **{**fields, "group": new})) == pytest.approx(
        float(loss(a, p, **fields)), abs=1e-12
    )


@every_loss
def test_rotating_everything_changes_nothing(case):
    a, p = points(12, 4, 3), points(12, 4, 4)
    q, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64))
    loss, fields = case.make(0.3), case.tensors()
    assert float(loss(a @ q, p @ q, **fields)) == pytest.approx(float(loss(a, p, **fields)), abs=1e-10)


def negatives_met(case) -> list[tuple[float, int]]:
    """Weight of each anchor in the mean and how many negatives it meets, counted row by row."""
    if "NT-Xent" in case.name:
        return [(1 / 24, 22)] * 24  # 24 rows but for itself and its positive
    if "standard" in case.name or "mixed" in case.name:
        return [(1 / 12, 11)] * 12
    group = case.fields["group"]
    if "tagged" in case.name:  # held pairs meet the others of their fibre, moved ones all pairs
        w, held = float(case.name.split()[1]), TAGS[:9]
        return [((1 - w) / 9, held.count(g) - 1) for g in held] + [(w / 3, 11)] * 3
    return [(1 / 12, group.count(g) - 1) for g in group]


@every_loss
def test_a_constant_encoder_scores_log_of_all_candidates(case):
    a = points(1, 3).repeat(12, 1)
    expected = sum(weight * math.log(m + 1) for weight, m in negatives_met(case)) + case.offset / 0.3
    assert float(case.make(0.3)(a, a, **case.tensors())) == pytest.approx(expected, abs=1e-10)


@every_loss
def test_the_parts_count_the_negatives(case):
    parts = case.make(0.3).parts(points(12, 3, 1), points(12, 3, 2), **case.tensors())
    met = [(weight, m) for weight, m in negatives_met(case) if weight > 0]
    assert parts.log_m == pytest.approx(sum(weight * math.log(m) for weight, m in met), abs=1e-12)
    assert parts.m == (11 if "tagged" in case.name else min(m for _, m in met))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["random", "aligned", "opposite", "constant"])
def test_value_and_gradient_stay_finite_at_tiny_temperatures(case, dtype, kind):
    if "given unit rows" in case.name and dtype != torch.float32:
        pytest.skip("rounded rows are not of length 1")
    first = points(1 if kind == "constant" else 12, 3, 1, torch.float32).expand(12, 3)
    second = points(12, 3, 2, torch.float32) if kind == "random" else -first if kind == "opposite" else first
    for tau in (0.1, 1e-2, 1e-4, 1e-20):
        a, p = (x.to(dtype).clone().requires_grad_() for x in (first, second))
        value = case.make(tau)(a, p, **case.tensors())
        assert torch.isfinite(value)
        if dtype != torch.float16 or tau >= 1e-4:  # a gradient of 1/τ may not fit half precision
            value.backward()
            assert torch.isfinite(a.grad).all()
            assert torch.isfinite(p.grad).all()


def differentiated(case):
    """A loss of two arguments, and where its derivatives are compared with differences."""
    if "given unit rows" in case.name:
        pytest.skip("finite differences leave the sphere")
    loss, fields = case.make(0.4), case.tensors()
    at = points(12, 3, 1).requires_grad_(), points(12, 3, 2).requires_grad_()
    return (lambda x, y: loss(x, y, **fields)), at


@every_loss
def test_gradients_are_those_of_the_number(case):
    assert torch.autograd.gradcheck(*differentiated(case))


@every_loss
def test_second_derivatives_are_those_of_the_number(case):
    loss, (a, p) = differentiated(case)
    assert torch.autograd.gradgradcheck(loss, (a, p))
    by_transform = torch.func.grad(loss)(a.detach(), p.detach())
    torch.testing.assert_close(by_transform, torch.autograd.grad(loss(a, p), a)[0])


@every_loss
def test_length_does_not_matter_and_layout_does_not_matter(case):
    a, p = points(12, 3, 1), points(12, 3, 2)
    loss, fields = case.make(0.3), case.tensors()
    expected = float(loss(a, p, **fields))
    strided = torch.stack([a, p], dim=2)
    assert float(loss(strided[..., 0], strided[..., 1], **fields)) == pytest.approx(expected, abs=1e-12)
    assert float(loss(a.T.contiguous().T, p, **fields)) == pytest.approx(expected, abs=1e-12)
    if loss.normalize:
        assert float(loss(7 * a, 1e-3 * p, **fields)) == pytest.approx(expected, abs=1e-12)
        assert float(loss(a, p.float(), **fields)) == pytest.approx(expected, abs=1e-6)


@every_loss
def test_bad_rows_are_named(case):
    a, p = points(12, 3, 1), points(12, 3, 2)
    loss, fields = case.make(0.3), case.tensors()
    for row, value, rule in ((7, math.nan, "not finite"), (4, math.inf, "not finite"), (5, 0.0, "length 0")):
        bad = a.clone()
        bad[row] = value
        with pytest.raises(ValueError, match=f"(anchor|view0) row {row} .*{rule}"):
            loss(bad, p, **fields)
        with pytest.raises(ValueError, match=f"(positive|view1) row {row} .*{rule}"):
            loss(a, bad, **fields)


@every_loss
def test_bad_shapes_and_types_are_refused(case):
    a, p = points(12, 3, 1), points(12, 3, 2)
    loss, fields = case.make(0.3), case.tensors()
    for x, y in ((a[:11], p), (a[:, :2], p), (a[0], p[0]), (a[None], p[None]), (a[:, :0], p[:, :0])):
        with pytest.raises(ValueError, match=r"must have one shape \(n, d\), got \(") as caught:
            loss(x, y, **fields)
        assert str(tuple(x.shape)) in str(caught.value)
    for x in (a.numpy(), a.tolist(), None, (10 * a).long()):
        with pytest.raises(TypeError, match=r"anchor|view0"):
            loss(x, p, **fields)
        with pytest.raises(TypeError, match=r"positive|view1"):
            loss(a, x, **fields)


@every_loss
def test_inside_autocast_the_scores_keep_their_precision(case):
    a, p = points(12, 3, 1, torch.float32), points(12, 3, 2, torch.float32)
    loss, fields = case.make(0.01), case.tensors()
    outside = float(loss(a, p, **fields))
    with torch.autocast("cpu", torch.bfloat16):
        assert float(loss(a, p, **fields)) == pytest.approx(outside, rel=1e-6)


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", [InfoNCE, UniformityInfoNCE, TaggedInfoNCE, NTXent])
def test_bad_temperatures_are_refused(kind, tau):
    with pytest.raises(ValueError, match=r"temperature must be finite and in .*, got"):
        kind(tau)
    for value in ("0.3", None, True):
        with pytest.raises(TypeError, match=r"temperature must be a number"):
            kind(value)


@pytest.mark.parametrize("rho", [-0.1, 1.1, math.nan])
def test_bad_weights_are_refused(rho):
    for make in (
        lambda: InfoNCE(0.3, rho=rho),
        lambda: UniformityInfoNCE(0.3, beta=-rho if rho > 0 else rho),
        lambda: TaggedInfoNCE(0.3, weight=rho),
    ):
        with pytest.raises(ValueError, match=r"(rho|beta|weight) must be finite and in"):
            make()
    with pytest.raises(ValueError, match=r"weight"):
        TaggedInfoNCE(0.3, weight=0.0)


# --- known values


@pytest.mark.parametrize(("tau", "swapped"), [(0.1, 10.000091), (0.01, 100), (1e-3, 1000), (1e-4, 10000)])
def test_tiny_temperatures_have_their_exact_values(tau, swapped):
    assert float(NTXent(tau)(E, E)) == pytest.approx(9.0796e-5 if tau == 0.1 else 0, abs=1e-6)
    assert float(NTXent(tau)(E, SWAPPED)) == pytest.approx(swapped, rel=1e-5)
    one_way = 10.000045 if tau == 0.1 else swapped
    assert float(InfoNCE(tau)(E, SWAPPED)) == pytest.approx(one_way, rel=1e-5)


def test_values_far_from_rounding():
    double = E.double()
    assert float(InfoNCE(0.1)(double, double)) == pytest.approx(math.log1p(math.exp(-10)), rel=1e-12)
    assert float(InfoNCE(0.02)(E, E)) == pytest.approx(math.log1p(math.exp(-50)), abs=1e-7)
    given = InfoNCE(0.025)(double, double, double.flip(0)[:, None, :])
    assert float(given) == pytest.approx(math.log1p(math.exp(-40)), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype):
    for loss in (InfoNCE(0.08), NTXent(0.08)):
        assert float(loss(E.to(dtype), SWAPPED.to(dtype))) == pytest.approx(12.5, abs=0.05)


def test_large_batches_go_in_blocks_and_give_the_same_number_and_gradient():
    a, p = (points(1500, 3, seed).requires_grad_() for seed in (1, 2))
    parts = InfoNCE(0.3).parts(a, p)
    plain = torch.nn.functional.cross_entropy(a @ p.T / 0.3, torch.arange(1500))
    assert float(parts.total.detach()) == pytest.approx(float(plain.detach()), abs=1e-12)
    for mine, theirs in ((parts.total, plain), (parts.alignment, -(a * p).sum(1).mean() / 0.3)):
        got = torch.autograd.grad(mine, (a, p), retain_graph=True)
        want = torch.autograd.grad(theirs, (a, p), retain_graph=True)
        for x, y, rows in zip(got, want, (a, p)):  # normalising takes the radial part away
            y = y - (y * rows).sum(1, keepdim=True) * rows
            torch.testing.assert_close(x, y, atol=1e-12, rtol=1e-9)


def test_the_positive_of_row_i_is_row_i():
    assert float(NTXent(0.5)(E, E)) == pytest.approx(math.log(1 + 2 * math.exp(-2)), abs=1e-6)
    assert float(NTXent(0.5)(E, E)) == pytest.approx(0.239545, abs=1e-6)


def test_any_batch_size_will_do():
    loss = NTXent(0.5)
    for n, expected in ((100, 5.293305), (256, math.log(511)), (2, math.log(3))):
        a = E[:1].repeat(n, 1)
        assert float(loss(a, a)) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match=r"\(4, 2\) and \(3, 2\)"):
        loss(E.repeat(2, 1), E.repeat(2, 1)[:3])


@pytest.mark.parametrize("loss", [NTXent(0.5), InfoNCE(0.5)], ids=["NT-Xent", "InfoNCE"])
def test_one_pair_has_no_negatives(loss):
    with pytest.raises(ValueError, match=r"at least 2 rows"):
        loss(E[:1], E[:1])


def test_copies_count_as_negatives():
    rows = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    assert float(NTXent(0.5)(rows, rows)) == pytest.approx(0.934214, abs=1e-5)
    assert float(NTXent(0.01)(rows, rows)) == pytest.approx(2 / 3 * math.log(3), abs=1e-5)


def test_zero_rows_are_refused_before_they_reach_a_gradient():
    ordinary = torch.tensor([[1.0, 0], [0, 1]])
    for loss in (InfoNCE(0.3), NTXent(0.3)):
        with pytest.raises(ValueError, match=r"row 0 must be longer than 1e-08, got length 0"):
            loss(torch.tensor([[0.0, 0], [0, 1]]), ordinary)
        with pytest.raises(ValueError, match=r"row 0 .*length 0"):
            loss(torch.zeros(2, 4, dtype=torch.float16), torch.eye(4)[:2])
        with pytest.raises(ValueError, match=r"row 1 .*length 1e-20"):
            loss(ordinary, torch.tensor([[1.0, 0], [0, 1e-20]]))
        for bad in (math.nan, math.inf):
            batch = points(64, 128, 1, torch.float32)
            batch[17, 3] = bad
            with pytest.raises(ValueError, match=r"row 17 is not finite"):
                loss(batch, points(64, 128, 2, torch.float32))


def test_rows_must_have_length_one_if_they_are_not_normalised():
    with pytest.raises(
        ValueError, match=r"anchor row 1 must be of length 1 with normalize=False, got length 2"
    ):
        InfoNCE(0.3, normalize=False)(torch.tensor([[1.0, 0], [0, 2]]), E)
    with pytest.raises(ValueError, match=r"negatives row 0 must be of length 1"):
        InfoNCE(0.3, normalize=False)(E, E, 2 * E)


# --- negatives given by the caller


def test_unit_rows_in_half_precision_have_length_one_up_to_its_rounding():
    x = points(50, 7).bfloat16()
    assert float((x.float().norm(dim=1) - 1).abs().max()) > 1e-3
    assert torch.isfinite(NTXent(0.5, normalize=False)(x, x))


def test_rows_too_long_for_their_dtype_are_named_as_such():
    with pytest.raises(ValueError, match="view1 row 0 is too long: its squares overflow"):
        NTXent(0.5)(E, 1e30 * E)


def test_shared_negatives_are_per_anchor_negatives_repeated():
    a, p, negatives = points(7, 3, 1), points(7, 3, 2), points(11, 3, 3)
    loss = InfoNCE(0.2)
    shared = loss.parts(a, p, negatives)
    each = loss.parts(a, p, negatives.expand(7, 11, 3))
    assert float(shared.total) == pytest.approx(float(each.total), abs=1e-12)
    assert shared.m == each.m == 11
    expected = 0.0
    for i in range(7):
        own = float(a[i] @ p[i]) / 0.2
        expected += math.log(1 + sum(math.exp(float(a[i] @ x) / 0.2 - own) for x in negatives)) / 7
    assert float(shared.total) == pytest.approx(expected, abs=1e-12)


def test_given_negatives_equal_the_batch_where_they_are_the_same():
    a, p = points(6, 3, 1), points(6, 3, 2)
    others = torch.stack([p[[j for j in range(6) if j != i]] for i in range(6)])
    assert float(InfoNCE(0.3)(a, p, others)) == pytest.approx(float(InfoNCE(0.3)(a, p)), abs=1e-12)
    group = torch.tensor([0, 1, 0, 1, 1, 0])
    fibre = torch.stack([p[[j for j in range(6) if j != i and group[j] == group[i]]] for i in range(6)])
    corrected = InfoNCE(0.3, rho=1.0)
    assert float(corrected(a, p, fibre)) == pytest.approx(float(corrected(a, p, group=group)), abs=1e-12)
    with pytest.raises(
        ValueError, match=r"negatives must be of each anchor's own fibre for rho=1.*got \(6, 3\)"
    ):
        corrected(a, p, p)


def test_given_negatives_in_other_dtypes_layouts_and_numbers():
    a, p, negatives = points(4, 3, 1), points(4, 3, 2), points(8, 3, 3)
    loss = InfoNCE(0.2)
    expected = float(loss(a, p, negatives))
    assert float(loss(a, p, negatives.T.contiguous().T)) == pytest.approx(expected, abs=1e-12)
    assert float(loss(a, p, negatives.float())) == pytest.approx(expected, abs=1e-6)
    half = loss(a.float(), p.float(), negatives.half())
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(expected, abs=2e-2)
    one = loss.parts(a[:1], p[:1], negatives[:1])  # a single pair and a single negative are enough
    assert one.m == 1
    x = negatives.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: loss(a, p, v), (x,))


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        ((8, 4), r"must have shape \(M, 3\) or \(4, M, 3\), got \(8, 4\)"),
        ((3, 8, 3), r"got \(3, 8, 3\)"),
        ((3,), r"got \(3,\)"),
        ((0, 3), "at least one row"),
        ((4, 0, 3), "at least one row"),
        ((1, 4, 8, 3), "must have shape"),
    ],
)
def test_bad_negatives_are_refused(shape, rule):
    a = points(4, 3, 1)
    with pytest.raises(ValueError, match=f"negatives .*{rule}"):
        InfoNCE(0.3)(a, a, torch.ones(shape, dtype=torch.float64))


def test_bad_negative_rows_and_types_are_refused():
    a, negatives = points(4, 3, 1), points(20, 3, 2)
    negatives[13, 1] = math.nan
    with pytest.raises(ValueError, match=r"negatives row 13 is not finite"):
        InfoNCE(0.3)(a, a, negatives)
    for bad in (negatives.numpy(), [[1.0, 0, 0]], torch.ones(5, 3, dtype=torch.long)):
        with pytest.raises(TypeError, match=r"negatives must be a"):
            InfoNCE(0.3)(a, a, bad)


# --- groups


def test_what_the_groups_must_be():
    a = points(6, 3, 1)
    group = torch.tensor([0, 0, 1, 1, 2, 2])
    corrected, mixed = InfoNCE(0.3, rho=1.0), InfoNCE(0.3, rho=0.5)
    for loss in (corrected, mixed):
        with pytest.raises(ValueError, match=r"needs group .* or negatives; neither was given"):
            loss(a, a)
        with pytest.raises(ValueError, match=r"group and negatives must not both be given"):
            loss(a, a, a, group=group)
        for bad in (group[:5], group.float(), group[:, None], group > 0):
            with pytest.raises(ValueError, match=r"group must be integers of shape \(6,\), got"):
                loss(a, a, group=bad)
        for bad in (group.tolist(), group.numpy()):
            with pytest.raises(TypeError, match=r"group must be a torch\.Tensor of integers"):
                loss(a, a, group=bad)
        with pytest.raises(ValueError, match=r"group 5 has one member"):
            loss(a, a, group=torch.tensor([0, 0, 1, 1, 1, 5]))
        with pytest.raises(ValueError, match=r"group must be >= 0, got -1"):
            loss(a, a, group=torch.tensor([0, 0, 1, 1, -1, -1]))
    with pytest.raises(ValueError, match=r"rho=0"):
        InfoNCE(0.3)(a, a, group=group)
    one = torch.zeros(6, dtype=torch.long)
    assert torch.isfinite(corrected(a, a, group=one))
    for loss in (mixed, UniformityInfoNCE(0.3)):
        with pytest.raises(ValueError, match=r"group must name at least 2 fibres"):
            loss(a, a, group=one)
    int32 = corrected(a, a, group=group.int())
    assert float(int32) == float(corrected(a, a, group=group))


def test_what_the_tags_must_be():
    a = points(6, 3, 1)
    group, moved = torch.tensor([0, 0, 1, 1, -1, -1]), torch.tensor([False] * 4 + [True] * 2)
    loss = TaggedInfoNCE(0.3)
    with pytest.raises(ValueError, match=r"moved must mark at least one pair"):
        loss(a, a, group=group.abs(), moved=torch.zeros(6, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"moved must be boolean, got torch\.int64"):
        loss(a, a, group=group, moved=moved.long())
    with pytest.raises(ValueError, match=r"moved must have shape \(6,\), got \(5,\)"):
        loss(a, a, group=group, moved=moved[:5])
    with pytest.raises(ValueError, match=r"group -1|group must be >= 0"):
        loss(a, a, group=group, moved=torch.tensor([False] * 5 + [True]))
    with pytest.raises(TypeError, match=r"moved must be"):
        loss(a, a, group=group, moved=moved.numpy())
    everything = TaggedInfoNCE(0.3, weight=0.4)(a, a, group=group, moved=torch.ones(6, dtype=torch.bool))
    assert float(everything) == pytest.approx(0.4 * float(InfoNCE(0.3)(a, a)), abs=1e-12)


def test_the_mixed_loss_tends_to_the_two_ends():
    a, p = points(40, 3, 1), points(40, 3, 2)
    group = torch.arange(40) // 10
    at = [float(InfoNCE(0.3, rho=r).parts(a, p, group=group).total) for r in (1e-9, 0.5, 1 - 1e-9)]
    # at the ends: M = 39 negatives' weight, spread over the 30 of other groups or the 9 of the own one
    assert at[0] == pytest.approx(twin_weighted(a.tolist(), p.tolist(), ends(group, 10, 39 / 30, 0), 0.3))
    assert at[2] == pytest.approx(twin_weighted(a.tolist(), p.tolist(), ends(group, 10, 0, 39 / 9), 0.3))


def ends(group, size, away, near):
    g = group.tolist()
    return lambda i, j: 1 if i == j else near if g[i] == g[j] else away


def test_grouped_mixed_loss_agrees_with_fresh_negatives():
    """Grouped batches stand in for fresh negatives of the mixture ρ·U(K(z)) + (1−ρ)·U, for one fixed map."""
    law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="subsphere")
    rng = torch.Generator().manual_seed(0)
    rho, tau, squeeze = 0.3, 0.3, torch.tensor([1.0, 0.6, 0.6])

    def h(z):
        return torch.nn.functional.normalize(z * squeeze, dim=-1)

    grouped = []
    for _ in range(8):
        batch = law.batch(2000, group_size=20, generator=rng)
        value = InfoNCE(tau, rho=rho)(h(batch.anchor), h(batch.positive), group=batch.group)
        grouped.append(float(value) - math.log(1999))
    fresh = []
    for _ in range(8):
        batch = law.batch(2000, generator=rng)
        near = (torch.rand(2000, 300, 1, generator=rng) < rho).float()
        negatives = near * law.sample_support(batch.anchor, 300, rng) + (1 - near) * sphere.uniform(
            2000 * 300, 3, generator=rng
        ).reshape(2000, 300, 3)
        value = InfoNCE(tau, rho=rho)(h(batch.anchor), h(batch.positive), h(negatives))
        fresh.append(float(value) - math.log(300))
    # finite-M offsets are about c/M: 4/300 on one side, a within-group term of the same size on the other
    error = math.sqrt(np.var(grouped) / 8 + np.var(fresh) / 8)
    assert abs(np.mean(grouped) - np.mean(fresh)) < 4.5 * error + 0.02
    wrong = [float(InfoNCE(tau, rho=0.6)(h(b.anchor), h(b.positive), group=b.group)) - math.log(1999)
             for b in (law.batch(2000, group_size=20, generator=rng) for _ in range(2))]  # fmt: skip
    assert abs(np.mean(wrong) - np.mean(fresh)) > 0.05


@pytest.mark.parametrize("convention", ["ambient", "subsphere"])
def test_grouped_corrected_loss_agrees_with_fresh_negatives_of_the_same_number(convention):
    law = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention=convention)
    rng = torch.Generator().manual_seed(1)
    loss = InfoNCE(0.3, rho=1.0)
    grouped, fresh = [], []
    for _ in range(10):
        batch = law.batch(2000, group_size=20, generator=rng)
        grouped.append(float(loss(batch.anchor, batch.positive, group=batch.group)))
        single = law.batch(2000, generator=rng)
        negatives = law.sample_support(single.anchor, 19, rng)
        fresh.append(float(loss(single.anchor, single.positive, negatives)))
    error = math.sqrt((np.var(grouped, ddof=1) + np.var(fresh, ddof=1)) / 10)
    assert abs(np.mean(grouped) - np.mean(fresh)) < 4.5 * error


def test_no_memory_beyond_the_batch_and_the_blocks():
    """A corrected step of many groups scores within groups only: G·k² numbers, not N²."""
    n, k = 60_000, 10  # N² doubles would be 28 GB
    a = points(n, 3, 1, torch.float32)
    value = InfoNCE(0.3, rho=1.0)(a, a, group=torch.arange(n) // k)
    assert torch.isfinite(value)


# --- laws on random input


@given(
    n=st.integers(2, 9),
    d=st.integers(1, 6),
    tau=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**20),
)
def test_info_nce_lies_between_its_bounds(n, d, tau, seed):
    a, p = points(n, d, seed), points(n, d, seed + 1)
    for loss in (InfoNCE(tau), NTXent(tau)):
        parts = loss.parts(a, p)
        low = math.log1p(parts.m * math.exp(max(-2 / tau, -700)))
        high = math.log1p(parts.m * math.exp(min(2 / tau, 700))) if 2 / tau < 700 else 2 / tau + 10
        assert low - 1e-9 <= float(parts.total) <= high + 1e-9
        assert -1 / tau - 1e-9 <= float(parts.alignment) <= 1 / tau + 1e-9


@given(
    sizes=st.lists(st.integers(2, 5), min_size=2, max_size=5),
    rho=st.floats(0.01, 1),
    seed=st.integers(0, 999),
)
def test_mixed_equals_its_twin_for_any_groups(sizes, rho, seed):
    group = [g for g, s in enumerate(sizes) for _ in range(s)]
    order = torch.randperm(len(group), generator=torch.Generator().manual_seed(seed)).tolist()
    group = [group[i] for i in order]
    a, p = points(len(group), 3, seed), points(len(group), 3, seed + 1)
    got = InfoNCE(0.3, rho=rho)(a, p, group=torch.tensor(group))
    assert float(got) == pytest.approx(twin_info_nce(a.tolist(), p.tolist(), 0.3, group, rho), abs=1e-9)


@given(seed=st.integers(0, 999), m=st.integers(1, 6))
def test_more_negatives_never_lower_the_loss(seed, m):
    a, p, negatives = points(4, 3, seed), points(4, 3, seed + 1), points(m + 1, 3, seed + 2)
    assert float(InfoNCE(0.3)(a, p, negatives)) >= float(InfoNCE(0.3)(a, p, negatives[:m]))
