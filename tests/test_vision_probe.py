"""Readouts: logistic regression, kNN, the published probe, and the rows that are always there."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from viewspan import images, vision
from viewspan.checks import ViewspanWarning
from viewspan.vision import backbones, readout


def labelled(n: int, *, seed: int, classes: int = 2) -> images.ImageSet:
    """Images whose mean brightness is their class."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    level = (y.float() + 0.5) / classes * 255
    x = level[:, None, None, None] + 20 * torch.randn(n, 3, 6, 6, generator=rng)
    names = [str(i) for i in range(n)]
    return images.ImageSet(x.clamp(0, 255).to(torch.uint8), y, tuple("abcdefgh"[:classes]), names)


class Narrow(nn.Module):
    """Two features with BatchNorm, so that train and eval mode differ."""

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(channels * size[0] * size[1], 2), nn.BatchNorm1d(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def encoders() -> tuple[backbones.Encoder, backbones.Encoder]:
    return tuple(backbones.build(Narrow, (3, 6, 6), head="none", seed=s) for s in (0, 1))


def clusters() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    centre = torch.eye(2)
    y = torch.tensor([0] * 30 + [1] * 20)
    y_test = torch.tensor([0] * 10 + [1] * 10)
    return (
        centre[y] + 0.1 * torch.randn(50, 2, generator=rng), y,
        centre[y_test] + 0.1 * torch.randn(20, 2, generator=rng), y_test,
    )  # fmt: skip


@pytest.mark.parametrize("conditioned", [False, True])
def test_logistic_regression_agrees_with_scikit_learn(conditioned: bool) -> None:
    from sklearn.linear_model import LogisticRegression

    rng = torch.Generator().manual_seed(0)
    x = torch.randn(300, 5, generator=rng)
    y = (x @ torch.randn(5, 3, generator=rng) + torch.randn(300, 3, generator=rng)).argmax(1)
    penalty = 1e-2
    products = readout.gram(x) if conditioned else None
    ours = readout.fit_logistic(x, y, n_classes=3, penalty=penalty, start=None, products=products)
    theirs = LogisticRegression(C=1 / (penalty * 300), tol=1e-8, max_iter=1000).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(ours[:-1].T.numpy(), theirs.coef_, atol=2e-3)


@pytest.mark.parametrize("penalty", [1e-1, 1e-4])
def test_correlated_features_are_fitted_to_the_end(penalty: float) -> None:
    """Neighbouring pixels are nearly equal: plain coordinates stop far above the minimum."""
    from sklearn.linear_model import LogisticRegression

    rng = torch.Generator().manual_seed(0)
    x = torch.randn(600, 60, generator=rng).cumsum(1)
    y = (x @ torch.randn(60, 3, generator=rng) + torch.randn(600, 3, generator=rng)).argmax(1)
    x = (x - x.mean(0)) / x.std(0)

    def objective(w: Tensor) -> float:
        fit = nn.functional.cross_entropy(x.double() @ w[:-1] + w[-1], y)
        return float(fit + penalty / 2 * w[:-1].square().sum())

    ours = readout.fit_logistic(x, y, n_classes=3, penalty=penalty, start=None, products=readout.gram(x))
    model = LogisticRegression(C=1 / (penalty * 600), tol=1e-10, max_iter=20_000)
    theirs = model.fit(x.double().numpy(), y.numpy())
    best = torch.from_numpy(np.vstack([theirs.coef_.T, theirs.intercept_]))
    assert objective(ours.double()) == pytest.approx(objective(best), abs=1e-5)
    again = readout.fit_logistic(x, y, n_classes=3, penalty=penalty, start=ours, products=readout.gram(x))
    assert objective(again.double()) == pytest.approx(objective(best), abs=1e-5)


def test_the_penalty_is_chosen_on_rows_that_were_held_out() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    noise = torch.randn(60, 200, generator=rng)
    x = noise.clone()
    x[:, 0] += 4 * y
    fit = readout.logistic(x, y, x[:10], y[:10], n_classes=2, seed=0)
    assert fit.penalty in readout.PENALTIES
    out = readout.held_out(y, seed=0)
    assert out.sum() == 12
    assert [int((out & (y == c)).sum()) for c in (0, 1)] == [6, 6]


def test_standardising_makes_the_probe_blind_to_the_scale_of_a_feature() -> None:
    x, y, x_test, y_test = clusters()
    scale = torch.tensor([1e-4, 1e3])
    plain = readout.logistic(x, y, x_test, y_test, n_classes=2, seed=0)
    scaled = readout.logistic(x * scale + 7, y, x_test * scale + 7, y_test, n_classes=2, seed=0)
    assert plain.correct.mean() == 1
    assert scaled.correct.mean() == pytest.approx(1, abs=0.06)


def test_a_constant_feature_does_no_harm() -> None:
    x, y, x_test, y_test = clusters()
    x, x_test = (torch.cat([v, torch.full((len(v), 1), 3.0)], 1) for v in (x, x_test))
    assert readout.logistic(x, y, x_test, y_test, n_classes=2, seed=0).correct.mean() == 1


def test_all_neighbours_elect_the_larger_class_and_few_the_right_one() -> None:
    x, y, x_test, y_test = clusters()
    assert readout.knn(x, y, x_test, y_test, k=50, n_classes=2).accuracy == 0.5
    assert readout.knn(x, y, x_test, y_test, k=5, n_classes=2).accuracy == 1.0
    for k in (0, 51):
        with pytest.raises(ValueError, match="k must be"):
            readout.knn(x, y, x_test, y_test, k=k, n_classes=2)


def test_classes_without_a_vote_are_never_among_the_five() -> None:
    x = torch.eye(10)
    y = torch.arange(10)
    votes = readout.knn(x, y, x[:1], torch.tensor([1]), k=1, n_classes=10)
    assert (votes.accuracy, votes.top5_accuracy) == (0.0, 0.0)
    assert readout.knn(x, y, x[:1], torch.tensor([0]), k=1, n_classes=10).top5_accuracy == 1.0


def test_a_set_scored_on_itself_leaves_each_row_out() -> None:
    angle = torch.arange(10) * math.radians(36)
    x = torch.stack([angle.cos(), angle.sin()], 1)
    y = torch.arange(10) % 2
    assert readout.knn(x, y, None, y, k=1, n_classes=2).accuracy == 0.0
    twice = torch.cat([x, x])
    assert readout.knn(twice, y.repeat(2), None, y.repeat(2), k=1, n_classes=2).accuracy == 1.0


def test_a_tie_goes_to_the_nearer_class() -> None:
    x = torch.tensor([[1.0, 0.1], [1.0, 0.2], [1.0, -0.3], [1.0, -0.4]])
    y = torch.tensor([1, 1, 0, 0])
    assert readout.knn(x, y, torch.tensor([[1.0, 0.0]]), torch.tensor([1]), k=4, n_classes=2).accuracy == 1.0
    assert (
        readout.knn(x, 1 - y, torch.tensor([[1.0, 0.0]]), torch.tensor([0]), k=4, n_classes=2).accuracy == 1.0
    )


def test_the_probe_prints_trained_untrained_and_pixels() -> None:
    a, b = encoders()
    train_set, test_set = labelled(40, seed=0), labelled(20, seed=1)
    with pytest.warns(ViewspanWarning, match="k=200 is more than the 40"):
        result = vision.probe(a, train_set, test_set, untrained=b)
    assert set(result.rows) == {"trained", "untrained", "pixels"}
    assert result.pixels_accuracy == 1.0
    out = result.as_dict()
    assert (out["n_train"], out["n_test"], out["k"], out["overlap"]) == (40, 20, 40, 0)
    low, high = result.gain_interval
    assert low <= result.gain <= high
    assert a.training


def test_the_probe_reads_features_in_eval_mode() -> None:
    """In train mode BatchNorm would make a row's features depend on the rows beside it."""
    a, b = encoders()
    a.train()
    train_set, test_set = labelled(40, seed=0), labelled(20, seed=1)
    before = {k: v.clone() for k, v in a.state_dict().items()}
    whole = vision.probe(a, train_set, test_set, untrained=b, k=5)
    part = vision.probe(a, train_set, test_set.subset(range(7)), untrained=b, k=5)
    assert (whole.rows["trained"].correct[:7] == part.rows["trained"].correct).all()
    assert all(torch.equal(v, before[k]) for k, v in a.state_dict().items())


def test_the_published_probe_is_run_beside_and_leaves_the_encoder_as_it_was() -> None:
    a, b = encoders()
    before = {k: v.clone() for k, v in a.state_dict().items()}
    result = vision.probe(
        a,
        labelled(40, seed=0),
        labelled(20, seed=1),
        untrained=b,
        k=5,
        protocol="published",
        published_epochs=30,
    )
    assert result.published is not None
    assert set(result.published) == {"trained", "untrained", "pixels"}
    assert all(0 <= row["last"] <= row["best"] <= 1 for row in result.published.values())
    assert result.published["pixels"]["best"] == 1.0
    assert all(torch.equal(v, before[k]) for k, v in a.state_dict().items())


def test_overlap_is_counted_by_content_and_the_whole_set_is_left_one_out() -> None:
    a, b = encoders()
    train_set, test_set = labelled(40, seed=0), labelled(20, seed=1)
    mixed = images.ImageSet(
        torch.cat([test_set.images[:18], train_set.images[:2]]),
        test_set.labels,
        test_set.classes,
        test_set.names,
    )
    with pytest.warns(ViewspanWarning, match="2 of 20 test images"):
        assert vision.probe(a, train_set, mixed, untrained=b, k=5).overlap == 2
    with pytest.warns(ViewspanWarning, match="scored on itself"):
        result = vision.probe(a, train_set, train_set, untrained=b, k=1)
    assert result.leave_one_out
    assert result.rows["pixels"].knn_accuracy < 1.0, "1.0 means that images counted themselves"


def test_what_cannot_be_probed_is_refused() -> None:
    a, b = encoders()
    train_set, test_set = labelled(40, seed=0), labelled(20, seed=1)
    flat = images.load(train_set.images)
    with pytest.raises(ValueError, match="no labels"):
        vision.probe(a, flat, test_set, untrained=b)
    with pytest.raises(ValueError, match="no labels"):
        vision.probe(a, train_set, flat, untrained=b)
    with pytest.raises(ValueError, match="classes"):
        vision.probe(a, train_set, labelled(21, seed=1, classes=3), untrained=b)
    with pytest.raises(ValueError, match="without a training image: b"):
        vision.probe(a, train_set.subset(range(0, 40, 2)), test_set, untrained=b)
    with pytest.raises(ValueError, match="k must be at least 1"):
        vision.probe(a, train_set, test_set, untrained=b, k=0)
    with pytest.raises(ValueError, match="untrained must be given"):
        vision.probe(a, train_set, test_set)
    gray, gray_test = (
        images.ImageSet(held.images[:, :1], held.labels, held.classes, held.names)
        for held in (train_set, test_set)
    )
    with pytest.raises(ValueError, match="3 channels"):
        vision.probe(a, gray, gray_test, untrained=b, k=5)


def test_the_paired_interval_is_that_of_resampled_rows() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(400) < 0.6, rng.random(400) < 0.4
    low, high = readout.paired_interval(a, b)
    d = a.astype(float) - b.astype(float)
    means = [d[rng.integers(0, 400, 400)].mean() for _ in range(4000)]
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.01)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.01)
    assert readout.paired_interval(a, a) == (0.0, 0.0)


def test_retrieval_is_one_for_views_that_do_not_move_and_chance_for_a_blind_encoder() -> None:
    held = images.load(
        torch.randint(0, 256, (30, 3, 6, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    )

    def still(image: Tensor) -> Tensor:
        return image

    flat = backbones.build(nn.Flatten(), (3, 6, 6), head="none", seed=0)
    assert vision.view_statistics(flat, held, images.views.resolve(still), n=30).retrieval == 1.0

    def blind(image: Tensor) -> Tensor:
        return torch.rand(image.shape)

    chance, n = 1 / 30, 30
    found = vision.view_statistics(flat, held, images.views.resolve(blind), n=30).retrieval
    assert found <= chance + 4.5 * math.sqrt(chance / n)
