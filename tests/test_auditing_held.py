"""Held directions and intrinsic dimension on data whose answer is known."""

import numpy as np
import pytest
import torch

import viewspan as vs
from viewspan import processes, sphere, testing
from viewspan.auditing import dimension, held_directions, intrinsic_dimension


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
@pytest.mark.parametrize(("dim", "n_held"), [(3, 0), (3, 1), (3, 2), (5, 3), (10, 5), (10, 9)])
@pytest.mark.parametrize("through", ["identity", "linear"])
def test_planted_directions_are_found(dim: int, n_held: int, noise: float, through: str) -> None:
    generator = torch.Generator().manual_seed(dim)
    process = processes.Linear(dim, 2 * dim + 1, generator=generator) if through == "linear" else None
    data = testing.held_pairs(
        1500, dim=dim, n_held=n_held, kappa=10 / 3, noise=noise, process=process, seed=n_held
    )
    found = held_directions(data.views, noise=data.noise)
    assert len(found.directions) == n_held
    assert all(d.status == "held" for d in found.directions)
    for direction in found.directions:  # a combination of the planted coordinates and nothing else
        w = data.views[:, 0] @ np.array(direction.vector)
        z = data.latents[:, 0, :n_held]
        rest = w - w.mean() - z @ np.linalg.lstsq(z, w - w.mean(), rcond=None)[0]
        assert rest.var() < 0.2 * w.var()


@pytest.mark.parametrize("name", ["spiral", "invertible_mlp"])
def test_a_nonlinear_process_yields_no_false_name(name: str) -> None:
    process = (
        processes.Spiral()
        if name == "spiral"
        else processes.InvertibleMLP(3, generator=torch.Generator().manual_seed(0))
    )
    data = testing.held_pairs(1500, dim=3, n_held=1, kappa=10 / 3, noise=0.02, process=process)
    found = held_directions(data.views, noise=data.noise)
    assert found.directions == ()
    assert "no linear held direction" in found.sentence


def test_without_a_floor_noise_is_not_told_from_movement() -> None:
    data = testing.held_pairs(1500, dim=3, n_held=1, kappa=10 / 3, noise=0.05)
    (direction,) = held_directions(data.views).directions
    assert direction.status == "held or below sigma"
    assert direction.sigma == pytest.approx(0.05, abs=0.01)
    assert "noise floor" in held_directions(data.views).sentence


def test_repeated_measurement_gives_the_floor() -> None:
    data = testing.held_pairs(1500, dim=3, n_held=1, kappa=10 / 3, noise=0.05)
    rng = np.random.default_rng(0)
    repeats = rng.normal(size=(300, 1, 3)) + data.noise * rng.normal(size=(300, 4, 3))
    found = held_directions(data.views, repeats=repeats)
    assert [d.status for d in found.directions] == ["held"]
    assert found.floor == "repeated measurement"
    with pytest.raises(ValueError, match="pass one of them"):
        held_directions(data.views, repeats=repeats, noise=0.1)


def test_scale_of_a_coordinate_does_not_matter() -> None:
    data = testing.held_pairs(800, dim=3, n_held=1, kappa=10 / 3)
    scaled = held_directions(data.views * np.array([1e-3, 1.0, 1e4]))
    assert len(scaled.directions) == 1
    assert abs(scaled.directions[0].vector[0]) == pytest.approx(1, abs=1e-6)


def test_a_constant_coordinate_is_not_a_held_direction() -> None:
    data = testing.held_pairs(500, dim=3, n_held=0, kappa=10 / 3)
    views = np.concatenate([data.views, np.full((500, 2, 1), 7.0)], axis=2)
    assert held_directions(views).directions == ()
    assert held_directions(views).rank == 3


def test_bad_views_are_refused() -> None:
    views = testing.held_pairs(50, dim=3, n_held=1, kappa=1.0).views
    views[17, 1, 0] = np.inf
    with pytest.raises(ValueError, match="row 17"):
        held_directions(views)
    with pytest.raises(ValueError, match="more than twice as many"):
        held_directions(np.random.default_rng(0).normal(size=(10, 2, 8)))


@pytest.mark.parametrize(("dim", "n_held"), [(3, 2), (3, 1), (4, 0), (6, 0)])
def test_support_dimension_of_a_fibre(dim: int, n_held: int) -> None:
    data = testing.held_pairs(
        5,
        dim=dim,
        n_held=n_held,
        kappa=30.0,
        n_views=1000,
        convention="subsphere" if dim - n_held == 1 else "ambient",
    )
    found = dimension.views_dimension(list(data.views))
    assert found.value == pytest.approx(data.support_dim, abs=0.3)
    assert found.interval is not None
    if dim - n_held == 1:
        assert found.value == 0


def test_copies_are_removed_and_counted() -> None:
    rng = np.random.default_rng(0)
    plane = np.concatenate([rng.random((600, 2)), np.zeros((400, 2))])
    found = intrinsic_dimension(plane)
    assert found.copies == 399
    assert found.value == pytest.approx(2, abs=0.3)


def test_points_and_finite_sets_have_dimension_zero() -> None:
    assert intrinsic_dimension(np.ones((300, 4))).value == 0
    grid = np.random.default_rng(0).integers(0, 9, (1000, 2)).astype(float)
    assert intrinsic_dimension(grid).value == 0
    assert intrinsic_dimension(np.random.default_rng(0).random((5, 2))).value is None


def test_few_views_give_the_rank_of_displacements_instead() -> None:
    data = testing.held_pairs(1000, dim=6, n_held=3, kappa=300.0)
    found = dimension.support(data.views[:, 0], list(data.views[:5]), data.views[:, 1] - data.views[:, 0])
    assert found.views_dim is None
    assert "2 views an anchor, at least 200" in found.reason
    assert found.tangent_rank == 5
    assert found.displacement_rank is not None
    assert 2 <= found.displacement_rank < 5


def test_data_dimension_of_a_sphere() -> None:
    z = sphere.uniform(3000, 4, generator=torch.Generator().manual_seed(0))
    assert intrinsic_dimension(z.numpy()).value == pytest.approx(3, abs=0.3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300, np.array([1e-200, 1.0, 1e200])])
def test_the_size_of_the_numbers_does_not_matter(size: float) -> None:
    views = testing.held_pairs(400, dim=3, n_held=1, kappa=10 / 3).views
    plain, scaled = held_directions(views), held_directions(views * size)
    assert len(scaled.directions) == len(plain.directions) == 1
    assert scaled.shares == pytest.approx(plain.shares, abs=1e-9)
    floors = held_directions(views * size, noise=1.0)  # may hide everything, and must not fail
    assert floors.rank <= 3
    if np.ndim(size) == 0:
        assert scaled.directions[0].vector == pytest.approx(plain.directions[0].vector, abs=1e-6)
        cloud = views[:, 1] * size
        assert intrinsic_dimension(cloud).value == pytest.approx(
            intrinsic_dimension(views[:, 1]).value, abs=1e-6
        )


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("dim", [2, 6])
@pytest.mark.parametrize("repeated", ["one row", "five rows"])
def test_rows_equal_up_to_rounding_are_merged(repeated: str, dim: int, offset: float) -> None:
    rng = np.random.default_rng(0)
    plane = rng.random((45, 2)) @ rng.normal(size=(2, dim)) + offset
    again = plane[rng.integers(0, 1 if repeated == "one row" else 5, 305)]
    rows = np.concatenate([plane, again * (1 + 6e-8 * rng.normal(size=again.shape))]).astype(np.float32)
    for points in (
        rows,
        *([] if offset else [rows - rows.mean(0, dtype=float)]),
    ):  # these are no float32 any more
        found = intrinsic_dimension(points)
        assert found.copies == 305
        assert found.value == pytest.approx(intrinsic_dimension(plane).value, abs=1e-3)


def test_an_outlier_does_not_make_the_other_points_copies() -> None:
    plane = np.random.default_rng(0).random((600, 2))
    plane[0] = 1e9
    found = intrinsic_dimension(plane)
    assert found.copies == 0
    assert found.value == pytest.approx(2, abs=0.3)


def test_merged_rows_are_counted_in_the_sentence() -> None:
    views = testing.held_pairs(60, dim=4, n_held=1, kappa=10 / 3, n_views=300).views
    views[:, 250:] = views[:, :50] * (1 + 1e-8)
    assert "(1000 views that equal others up to rounding merged)" in vs.audit(views).sentence
