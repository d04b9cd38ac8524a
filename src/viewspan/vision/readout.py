"""Readouts of fixed features: logistic regression, k nearest neighbours, the published SGD probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from viewspan import checks

PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # from strong to weak: each fit starts from the one before
HELD_OUT = 0.2
CHUNK = 1024
WIDEST = 8192  # features up to which their products are formed


class Fit(NamedTuple):
    """A logistic regression's outcome.

    Attributes:
        correct: bool (n_test,).
        penalty: the L2 penalty chosen.
    """

    correct: np.ndarray
    penalty: float


class Votes(NamedTuple):
    """A kNN's outcome.

    Attributes:
        accuracy: in [0, 1].
        top5_accuracy: truth among the five classes with most votes, classes without a vote never counted; None with
            five classes or fewer.
        predicted: class of each row, (n,).
    """

    accuracy: float
    top5_accuracy: float | None
    predicted: Tensor


def logistic(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, *, n_classes: int, seed: int) -> Fit:
    """Multinomial logistic regression on standardised features.

    Minimises mean cross-entropy + (penalty / 2)·‖W‖² (the intercept is free) by L-BFGS. Mean and standard deviation
    are the training rows'; the penalty with the best accuracy on a fifth of the training rows, held out class by
    class, is refitted on all of them (ties: the stronger).

    Args:
        x, x_test: features (n, d), (n_test, d).
        y, y_test: classes, int64.
        n_classes: how many there are.
        seed: of the held-out rows.
    """
    mean, scale = x.mean(0), x.std(0)
    scale = torch.where(scale > 1e-8 * (1 + mean.abs()), scale, torch.ones_like(scale))
    x, x_test = (x - mean) / scale, (x_test - mean) / scale
    out = held_out(y, seed=seed)
    kept, y_kept = x[~out], y[~out]
    grams = gram(kept), gram(x[out])
    best, penalty, worse = -1.0, PENALTIES[0], 0
    weights: Tensor | None = None
    for candidate in PENALTIES:
        weights = fit_logistic(
            kept, y_kept, n_classes=n_classes, penalty=candidate, start=weights, products=grams[0]
        )
        score = float((predict(weights, x[out]) == y[out]).double().mean()) if bool(out.any()) else 0.0
        worse = 0 if score > best else worse + 1
        if score > best:
            best, penalty = score, candidate
        if worse == 2:
            break
    whole = None if grams[0] is None or grams[1] is None else grams[0] + grams[1]
    weights = fit_logistic(x, y, n_classes=n_classes, penalty=penalty, start=None, products=whole)
    return Fit((predict(weights, x_test) == y_test).cpu().numpy(), penalty)


def gram(x: Tensor) -> Tensor | None:
    """xᵀx, (d, d), or None where it would be larger than it is worth."""
    return x.T @ x if x.shape[1] <= WIDEST else None


def held_out(y: Tensor, *, seed: int) -> Tensor:
    """A fifth of the rows of each class that has at least two, bool (n,)."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(y.device)
    out = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    for c in y.unique():
        rows = order[y[order] == c]
        if len(rows) >= 2:
            out[rows[: max(1, round(HELD_OUT * len(rows)))]] = True
    return out


def fit_logistic(
    x: Tensor,
    y: Tensor,
    *,
    n_classes: int,
    penalty: float,
    start: Tensor | None,
    products: Tensor | None = None,
) -> Tensor:
    """Weights (d + 1, n_classes), the last row the intercept.

    L-BFGS sees the weights in the coordinates in which the Hessian at zero, xᵀx / (n·K) + penalty, is the identity:
    a few dozen steps where features are correlated, several hundred without.

    Args:
        x: features (n, d), centred.
        y: classes, int64 (n,).
        n_classes: K.
        penalty: of ‖W‖² / 2, > 0.
        start: weights to begin at, or None for zero.
        products: `gram(x)`, or None for plain coordinates.
    """
    factor = None if products is None else _factor(products / (len(x) * n_classes), penalty)
    w = torch.zeros(x.shape[1] + 1, n_classes, device=x.device) if start is None else start
    at = w[:-1].clone() if factor is None else factor.T @ w[:-1]
    intercept = w[-1].clone()
    at.requires_grad_()
    intercept.requires_grad_()
    search = torch.optim.LBFGS(
        [at, intercept],
        max_iter=150,
        tolerance_grad=1e-5,
        tolerance_change=1e-8,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def weights() -> Tensor:
        return at if factor is None else torch.linalg.solve_triangular(factor.T, at, upper=True)

    def objective() -> Tensor:
        search.zero_grad()
        slopes = weights()
        loss = nn.functional.cross_entropy(x @ slopes + intercept, y) + penalty / 2 * slopes.square().sum()
        loss.backward()
        return loss

    search.step(objective)
    return torch.cat([weights(), intercept[None]]).detach()


def _factor(curvature: Tensor, penalty: float) -> Tensor:
    """L with L·Lᵀ = curvature + penalty, lower triangular."""
    damped = curvature.clone()
    # rounding of a sum in float32 can leave a tiny negative eigenvalue behind
    damped.diagonal().add_(penalty + 1e-6 * float(curvature.diagonal().mean()))
    return torch.linalg.cholesky(damped)


def predict(w: Tensor, x: Tensor) -> Tensor:
    """Most likely class of each row."""
    return (x @ w[:-1] + w[-1]).argmax(1)


def knn(x: Tensor, y: Tensor, x_test: Tensor | None, y_test: Tensor, *, k: int, n_classes: int) -> Votes:
    """k nearest neighbours by cosine, one vote each; ties go to the class with the larger sum of cosines.

    Args:
        x: training features (n, d).
        y: their classes.
        x_test: features to classify, or None: the training rows themselves, each left out of its own vote.
        y_test: their classes.
        k: neighbours, at most n (n − 1 with each row left out).
        n_classes: how many there are.
    """
    most = len(x) - (x_test is None)
    checks.integer("k", k, low=1, high=most)
    a = nn.functional.normalize(x, dim=1)
    b = a if x_test is None else nn.functional.normalize(x_test, dim=1)
    predicted, ranks = [], []
    for start in range(0, len(b), CHUNK):
        part = b[start : start + CHUNK]
        s = part @ a.T
        if x_test is None:
            own = torch.arange(len(part), device=s.device)
            s[own, own + start] = -torch.inf
        near, at = s.topk(k, dim=1)
        votes = torch.zeros(len(part), n_classes, device=s.device)
        votes.scatter_add_(1, y[at], torch.ones_like(near))
        cosines = torch.zeros_like(votes).scatter_add_(1, y[at], near)
        # cosine sums lie within ±k, so this never outweighs a vote
        score = torch.where(votes > 0, votes.double() + cosines.double() / (4 * k), -1.0)
        order = score.argsort(dim=1, descending=True, stable=True)
        predicted.append(order[:, 0])
        truth = y_test[start : start + CHUNK, None]
        hit = (order[:, :5] == truth) & (score.gather(1, order[:, :5]) >= 0)
        ranks.append(hit.any(1))
    found = torch.cat(predicted)
    top5 = float(torch.cat(ranks).double().mean()) if n_classes > 5 else None
    return Votes(float((found == y_test).double().mean()), top5, found)


def published(
    feature: Callable[[Tensor], Tensor],
    batch: Callable[[Tensor], Tensor],
    y: Tensor,
    batch_test: Callable[[Tensor], Tensor],
    y_test: Tensor,
    *,
    n_classes: int,
    epochs: int,
    seed: int,
) -> tuple[float, float]:
    """A linear layer by SGD (.1, momentum .9, batch 256) on features as they come; accuracy of last and best epoch.

    Args:
        feature: images -> features; an encoder in train mode makes them depend on the batch, as published.
        batch, batch_test: rows -> images.
        y, y_test: classes.
        n_classes: how many there are.
        epochs: 100 as published.
        seed: of the layer and of the order.
    """
    scores = []
    devices = [y.device] if y.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        with torch.no_grad():
            width = feature(batch(torch.arange(min(2, len(y))))).shape[1]
        layer = nn.Linear(width, n_classes).to(y.device)
        sgd = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        for _ in range(epochs):
            order = torch.randperm(len(y))
            for rows in _parts(order):
                with torch.no_grad():
                    x = feature(batch(rows))
                sgd.zero_grad()
                nn.functional.cross_entropy(layer(x), y[rows.to(y.device)]).backward()
                sgd.step()
            with torch.no_grad():
                right = [
                    (layer(feature(batch_test(rows))).argmax(1) == y_test[rows.to(y.device)]).double()
                    for rows in _parts(torch.arange(len(y_test)))
                ]
            scores.append(float(torch.cat(right).mean()))
    return scores[-1], max(scores)


def _parts(order: Tensor) -> list[Tensor]:
    """Batches of 256; a single left-over row joins the batch before it (BatchNorm cannot take it)."""
    parts = list(order.split(256))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def paired_interval(a: np.ndarray, b: np.ndarray, *, resamples: int = 20_000) -> tuple[float, float]:
    """95 % bootstrap interval of mean(a) − mean(b) over the same rows.

    The differences take three values, so resampling rows is resampling their counts.

    Args:
        a, b: bool (n,).
        resamples: bootstrap samples.
    """
    d = a.astype(int) - b.astype(int)
    shares = [(d == v).mean() for v in (-1, 0, 1)]
    counts = np.random.default_rng(0).multinomial(len(d), shares, size=resamples)
    means = (counts[:, 2] - counts[:, 0]) / len(d)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
