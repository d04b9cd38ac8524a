"""The known-answer data are what they say."""

from pathlib import Path

import numpy as np
import pytest

from viewspan import testing


@pytest.mark.parametrize("n_held", [0, 1, 3, 4])
def test_held_pairs_hold_exactly_the_leading_coordinates(n_held: int) -> None:
    data = testing.held_pairs(50, dim=4, n_held=n_held, kappa=2.0, n_views=3)
    same = (data.latents == data.latents[:, :1]).all((0, 1))
    assert same.tolist() == [j < n_held for j in range(4)]
    assert np.linalg.norm(data.latents, axis=2) == pytest.approx(1)
    assert data.support_dim == max(3 - n_held, 0)


def test_noise_is_a_share_of_the_data() -> None:
    clean, noisy = (testing.held_pairs(4000, dim=3, n_held=0, kappa=1.0, noise=s) for s in (0.0, 0.05))
    ratio = (noisy.views - clean.views).std((0, 1)) / clean.views.std((0, 1))
    assert ratio == pytest.approx(0.05, rel=0.05)
    assert noisy.noise == pytest.approx(0.05 * clean.views.std((0, 1)), rel=0.01)


def test_shapes_move_what_they_say() -> None:
    data = testing.shapes(5, n_views=4, moved=["hue", "x"])
    for name, values in data.factors.items():
        assert bool((values == values[:, :1]).all()) == (name not in ("hue", "x"))
    assert data.images.dtype == np.uint8
    assert (testing.shapes(5, n_views=4, moved=["hue", "x"]).images == data.images).all()
    with pytest.raises(ValueError, match="moved must be one of"):
        testing.shapes(2, moved=["colour"])


def test_recordings_hold_a_channel_in_a_session() -> None:
    values, session = testing.recordings(3, 20, held=[1])
    for s in range(3):
        assert len(np.unique(values[session == s, 1])) == 1
        assert len(np.unique(values[session == s, 0])) == 20
    with pytest.raises(ValueError, match=r"held must be in 0\.\.3, got 4"):
        testing.recordings(held=[0, 4])


def test_examples_are_written(tmp_path: Path) -> None:
    testing.main(["shapes", str(tmp_path / "shapes"), "--n", "3"])
    assert len(list((tmp_path / "shapes").glob("*.png"))) == 3
    testing.main(["recordings", str(tmp_path / "r.csv"), "--n", "3"])
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert lines[0].startswith("session,ch0,ch1")
    assert len({line.split(",")[0] for line in lines[1:]}) == 3
    testing.main(["visits", str(tmp_path / "v.csv"), "--n", "7"])
    lines = (tmp_path / "v.csv").read_text().splitlines()
    assert lines[0].startswith("patient,side_a,side_b")
    assert len({line.split(",")[0] for line in lines[1:]}) == 7
    testing.main(["visits", str(tmp_path / "w.csv")])
    assert len((tmp_path / "w.csv").read_text().splitlines()) == 1 + 2 * 60
