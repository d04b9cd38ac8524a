"""Training on images: batches, losses, interruption and resume, failures, several processes."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from viewspan import images, losses, records, vision
from viewspan.checks import RunFailed, ViewspanWarning
from viewspan.vision import checkpoints, drawing
from viewspan.vision.distributed import World
from viewspan.vision.loop import Plan, no_signal


class Tiny(nn.Module):
    """A small encoder; with dropout it draws random numbers of its own."""

    def __init__(self, channels: int, size: tuple[int, int], dropout: float = 0.2) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * size[0] * size[1], 24),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(24, 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def some(n: int = 20, size: int = 8, channels: int = 3, seed: int = 0) -> images.ImageSet:
    rng = torch.Generator().manual_seed(seed)
    return images.load(torch.randint(0, 256, (n, channels, size, size), generator=rng, dtype=torch.uint8))


def state(run: vision.TrainRun) -> Tensor:
    return torch.cat([v.flatten() for v in run.encoder.state_dict().values()])


@pytest.mark.parametrize(
    ("n", "size", "least", "lengths"),
    [
        (20, 32, 2, [20]),
        (33, 32, 2, [33]),
        (34, 32, 2, [32, 2]),
        (64, 32, 2, [32, 32]),
        (65, 32, 4, [32, 33]),
    ],
)
def test_every_image_is_in_one_batch_and_no_batch_is_too_small(
    n: int, size: int, least: int, lengths: list[int]
) -> None:
    slices = drawing.batches(n, size, least)
    assert [s.stop - s.start for s in slices] == lengths
    assert [i for s in slices for i in range(n)[s]] == list(range(n))


def test_one_image_cannot_be_trained_on() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        vision.train(some(1), encoder=Tiny, views="all", epochs=1, seed=0)


@pytest.mark.parametrize("n", [20, 33])
def test_short_and_odd_batches_take_a_step_each_epoch(n: int) -> None:
    run = vision.train(some(n), encoder=Tiny, views="crop", epochs=2, batch_size=32, seed=0)
    assert run.steps == 2
    assert run.m == 2 * n - 2
    assert run.loss > 0.1
    assert not torch.equal(state(run), torch.cat([v.flatten() for v in run.untrained.state_dict().values()]))


def test_the_loss_is_that_of_embeddings_of_the_views() -> None:
    held = some(6)
    run = vision.train(
        held, encoder=lambda channels, size: Tiny(channels, size, 0.0), views="all", epochs=1, seed=3
    )
    order = drawing.order_of(6, seed=3, epoch=0)
    pipeline = images.views.resolve("all")
    views = [pipeline(held.images[order], seed=3, epoch=0, indices=order, view=j) for j in (0, 1)]
    with torch.no_grad():
        expected = losses.NTXent(0.5)(run.untrained(views[0]), run.untrained(views[1]))
    assert run.history["loss"][0] == pytest.approx(float(expected), abs=1e-6)


def test_clean_view_leaves_the_first_view_as_it_is() -> None:
    pairs = vision.TwoViews(clean=True)
    rows = pairs.views(lambda j: torch.full((2, 1, 3, 3), float(j)), lambda: torch.zeros(2, 1, 3, 3), None)
    assert rows.shape == (2, 2, 1, 3, 3)
    assert rows[:, 0].abs().max() == 0
    assert (rows[:, 1] == 1).all()


def test_training_raises_the_retrieval_of_the_positive() -> None:
    held = some(64, size=8)
    run = vision.train(held, encoder=Tiny, views="crop", epochs=30, batch_size=32, lr=3e-3, seed=0)
    pipeline = images.views.resolve("crop")
    before = vision.view_statistics(run.untrained, held, pipeline, n=64).retrieval
    assert vision.view_statistics(run.encoder, held, pipeline, n=64).retrieval > before + 0.05
    assert run.no_signal is False


def test_two_levels_pair_each_base_view_with_a_near_copy_and_learn() -> None:
    pairs = vision.TwoLevel(base_views=4)
    run = vision.train(
        some(16), encoder=Tiny, views="all", loss=losses.InfoNCE(0.1, rho=1), pairs=pairs, epochs=20, batch_size=32,
        lr=3e-3, seed=0,
    )  # fmt: skip
    assert run.steps == 20 * 2
    assert run.m == 3
    assert run.loss < math.log(4) - 0.1
    assert run.no_signal is False


def test_the_positive_of_two_levels_is_near_its_base_view_and_not_equal() -> None:
    source = drawing.Source(some(8), images.views.resolve("all"), seed=0, on=torch.device("cpu"))
    at = torch.arange(8)
    base = source.draw(at, epoch=0, view=0)
    near = source.near(base, at, epoch=0, view=4, strength=0.1, shift=1)
    other = source.draw(at, epoch=0, view=1)
    assert 0 < (near - base).abs().mean() < (other - base).abs().mean()


def test_two_levels_need_a_perturbation() -> None:
    pairs = vision.TwoLevel(base_views=2, shift=0)
    with pytest.raises(ValueError, match="every positive would equal its anchor"):
        vision.train(
            some(), encoder=Tiny, views="crop", loss=losses.InfoNCE(0.1, rho=1), pairs=pairs, epochs=1, seed=0
        )


def test_a_loss_that_does_not_fit_its_pairs_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for loss, pairs in ((losses.InfoNCE(0.5, rho=1), None), (losses.NTXent(0.5), vision.TwoLevel())):
        with pytest.raises((ValueError, TypeError)):
            vision.train(
                some(),
                encoder=Tiny,
                views="all",
                loss=loss,
                pairs=pairs,
                epochs=1,
                seed=0,
                out=tmp_path / "r",
            )
    assert not (tmp_path / "r").exists()


def test_same_anchor_warns_and_shows_no_signal() -> None:
    with pytest.warns(ViewspanWarning, match="cannot fall below"):
        pairs = vision.SameAnchor(negatives=8)
    with pytest.warns(ViewspanWarning, match="no signal"):
        run = vision.train(
            some(16),
            encoder=Tiny,
            views="all",
            loss=losses.InfoNCE(0.5),
            pairs=pairs,
            epochs=10,
            batch_size=8,
            seed=0,
        )
    assert run.no_signal is True
    assert run.m == 8


def test_the_verdict_on_the_signal_needs_enough_steps() -> None:
    assert no_signal([-1.0] * 19) is None
    assert no_signal([-0.5, -0.4, -0.6, -0.5] * 5) is False
    assert no_signal([0.5, 0.4, 0.6, 0.5] * 5) is True
    assert no_signal([0.5, -0.5] * 10) is True


def test_a_batch_too_small_for_its_pairs_is_refused() -> None:
    loss, pairs = losses.InfoNCE(0.1, rho=1), vision.TwoLevel(base_views=8)
    with pytest.raises(ValueError, match="batch_size must be at least 8"):
        vision.train(
            some(), encoder=Tiny, views="all", loss=loss, pairs=pairs, epochs=1, batch_size=7, seed=0
        )


def test_equal_seeds_give_equal_weights_and_others_do_not() -> None:
    a, b, c = (
        vision.train(some(), encoder=Tiny, views="all", epochs=1, batch_size=8, seed=s) for s in (0, 0, 1)
    )
    assert torch.equal(state(a), state(b))
    assert not torch.allclose(state(a), state(c))


def test_training_leaves_the_callers_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    vision.train(some(), encoder=Tiny, views="all", epochs=1, seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_cosine_schedule_rises_then_falls_to_nothing() -> None:
    plan = Plan(10, 8, 1.0, "cosine", 0.0, 0)
    rates = [plan.rate(s, 100) for s in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] < 0.001


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_with_a_checkpoint_and_resume_ends_at_the_same_weights(
    tmp_path: Path, signum: signal.Signals
) -> None:
    def train(out: Path | None, *, stop_at: int = -1, resume: bool = False) -> vision.TrainRun:
        return vision.train(
            some(), encoder=Tiny, views="all", epochs=3, batch_size=8, schedule="cosine", seed=0, out=out,
            resume=resume, head="mlp", save_seconds=1e9,
            progress=lambda p: os.kill(os.getpid(), signum) if p.step == stop_at else None,
        )  # fmt: skip

    whole = train(None)
    with pytest.raises(vision.Interrupted) as stopped:
        train(tmp_path, stop_at=4)
    assert (stopped.value.signum, stopped.value.step) == (signum, 4)
    assert not list(tmp_path.glob("train-*.json"))
    with pytest.raises(ValueError, match="step 4"):
        train(tmp_path)
    with pytest.warns(ViewspanWarning, match="not finished: its checkpoint of step 4"):
        vision.load_encoders(tmp_path, Tiny)
    resumed = train(tmp_path, resume=True)
    assert (state(resumed) - state(whole)).abs().max() <= 1e-6
    assert resumed.history["loss"] == pytest.approx(whole.history["loss"], abs=1e-6)
    record = records.read(resumed.record)
    assert record.result["steps"] == 9
    assert train(tmp_path).reused


class Wrapped(nn.Module):
    """A small encoder whose output goes through a function."""

    def __init__(self, after: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.net = Tiny(3, (8, 8), 0.0)
        self.after = after

    def forward(self, x: Tensor) -> object:
        return self.after(self.net(x))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda h: h.sum(1), r"must map \(4, C, H, W\) to \(4, d\), got \(4,\)"),
        (lambda h: {"features": h}, r"to \(4, d\), got dict"),
        (lambda h: h * torch.nan, "before the first step the embedding of image 0 .* has length nan, not 1"),
        (lambda h: h * 0, "has length 0, not 1"),
        (lambda h: h.detach(), "embeddings that hang on its weights"),
        (lambda h: h.to(torch.complex64), "floating-point features, got torch.complex64"),
        (lambda h: {}["depth"], r"encoder Wrapped failed on images \(4, 3, 8, 8\): KeyError: 'depth' \(test_vision_train.py"),
        (lambda h: h @ h, r"encoder Wrapped failed .*: RuntimeError: .*shapes.* \(test_vision_train.py"),
        (lambda h: sys.exit(0), r"failed .*: ended the program \(exit code 0\)"),
    ],
)  # fmt: skip
def test_an_encoder_that_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, after: Callable[[Tensor], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        vision.train(some(), encoder=Wrapped(after), views="crop", epochs=1, seed=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_views_too_few_for_a_pair_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="returned 1 views, view 2 was asked for"):
        vision.train(some(), encoder=Tiny, views=lambda x: [x], epochs=1, seed=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_maker_of_encoders_that_fails_is_named() -> None:
    def maker(channels: int) -> nn.Module:
        raise KeyError("depth")

    with pytest.raises(ValueError, match=r"maker cannot be built: KeyError: 'depth' \(test_vision_train.py"):
        vision.train(some(), encoder=maker, views="crop", epochs=1, seed=0)


def test_a_mask_of_infinities_is_no_divergence(tmp_path: Path) -> None:
    class Masked(Tiny):
        def __init__(self, channels: int, size: tuple[int, int]) -> None:
            super().__init__(channels, size)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    run = vision.train(some(), encoder=Masked, views="crop", epochs=1, seed=0, out=tmp_path)
    assert torch.equal(run.encoder.state_dict()["backbone.mask"], torch.tensor([0.0, -torch.inf]))


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        records.Store(tmp_path).claim("run", {}),
        pytest.raises(ValueError, match="another run is writing to this folder"),
    ):
        vision.train(some(), encoder=Tiny, views="crop", epochs=1, seed=0, out=tmp_path)
    assert not (tmp_path / "settings.json").exists()
    vision.train(some(), encoder=Tiny, views="crop", epochs=1, seed=0, out=tmp_path)
    assert not list(tmp_path.glob("*.claim"))


def test_a_damaged_checkpoint_alone_is_told_with_what_to_do(tmp_path: Path) -> None:
    def train() -> vision.TrainRun:
        return vision.train(
            some(), encoder=Tiny, views="crop", epochs=2, seed=0, out=tmp_path, resume=True, save_seconds=0
        )

    train()
    for path in [*tmp_path.glob("train-*.json"), *tmp_path.glob("step-*.resume")]:
        path.unlink() if path.suffix == ".json" else path.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be used .*empty it and train anew"):
        train()
    for path in tmp_path.iterdir():
        path.unlink()
    assert train().steps == 2


def test_settings_tell_the_weights_a_module_came_with() -> None:
    torch.manual_seed(0)
    one, other = Tiny(3, (8, 8)), Tiny(3, (8, 8))
    first, second, again = (
        vision.train(some(4), encoder=e, views="crop", epochs=1, seed=0).settings["encoder"]
        for e in (one, other, one)
    )
    assert first == again != second


def test_a_run_of_ones_own_code_is_not_taken_for_that_of_an_edited_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(views: Any) -> vision.TrainRun:
        return vision.train(some(4), encoder=vision.convnet, views=views, epochs=1, seed=0, out=tmp_path)

    file = tmp_path / "own_views_edited.py"
    file.write_text("def darker(image):\n    return image\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_views_edited")
    train(own.darker)
    file.write_text("def darker(image):\n    return image.point(lambda v: v // 2)\n\n\nother = 1\n")
    own = importlib.reload(own)
    with pytest.raises(ValueError, match="holds a run with other settings: code "):
        train(own.darker)
    file.write_text("other = 3\n\n\ndef darker(image):\n    return image\n")
    assert train(importlib.reload(own).darker).reused
    assert (
        "code" not in vision.train(some(4), encoder=vision.convnet, views="crop", epochs=1, seed=0).settings
    )


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be in 0"):
        vision.train(some(), encoder=Tiny, views="crop", epochs=1, seed=seed)


def test_resume_refuses_other_settings_and_names_them(tmp_path: Path) -> None:
    vision.train(some(), encoder=Tiny, views="all", epochs=1, seed=0, out=tmp_path)
    with pytest.raises(ValueError, match=r"lr 0\.0003 there, 0\.1 here"):
        vision.train(some(), encoder=Tiny, views="all", epochs=1, seed=0, lr=0.1, out=tmp_path, resume=True)


def test_a_run_that_diverges_stops_within_the_epoch_and_keeps_finite_weights(tmp_path: Path) -> None:
    class Deep(nn.Module):
        def __init__(self, channels: int, size: tuple[int, int]) -> None:
            super().__init__()
            n = channels * size[0] * size[1]
            self.net = nn.Sequential(nn.Flatten(), *(nn.Linear(n, n) for _ in range(8)))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    with pytest.raises(RunFailed, match="last good checkpoint"):
        vision.train(
            some(),
            encoder=Deep,
            views="all",
            epochs=9,
            batch_size=8,
            lr=1e6,
            seed=0,
            out=tmp_path,
            save_seconds=0,
        )
    with pytest.raises(RunFailed, match=r"step 1: weights .* not finite.*last good checkpoint is kept in"):
        vision.train(some(), encoder=Tiny, views="all", epochs=1, lr=1e38, seed=0, out=tmp_path / "more")
    found = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.step < 3 * 3
    assert all(torch.isfinite(v).all() for v in found.weights.values())
    assert not list(tmp_path.glob("train-*.json"))


def test_images_of_mixed_sizes_train_with_views_of_one_size(tmp_path: Path) -> None:
    mixed = images.load([torch.randint(0, 256, (3, s, 8), dtype=torch.uint8) for s in (8, 9, 8, 12)])
    run = vision.train(mixed, encoder=Tiny, views=images.views.resolve("crop", size=8), epochs=1, seed=0)
    assert run.steps == 1
    with pytest.raises(ValueError, match="one shape"):
        vision.train(mixed, encoder=Tiny, views="crop", epochs=1, seed=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bfloat16_trains_with_a_float32_loss() -> None:
    run = vision.train(some(), encoder=Tiny, views="all", epochs=2, seed=0, precision="bfloat16")
    assert run.settings["precision"] == "bfloat16"
    assert math.isfinite(run.loss)
    assert state(run).dtype == torch.float32


def test_an_encoder_that_views_its_input_trains_in_half_precision_too() -> None:
    class Viewing(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.view(len(x), -1))

    run = vision.train(some(), encoder=Viewing, views="all", epochs=1, seed=0, precision="bfloat16")
    assert run.steps == 1


def test_scalars_go_to_tensorboard(tmp_path: Path) -> None:
    vision.train(some(), encoder=Tiny, views="all", epochs=1, seed=0, track=tmp_path)
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize(("n", "size"), [(7, 1), (7, 2), (8, 3), (3, 3)])
def test_processes_share_a_batch_without_gap_or_overlap(n: int, size: int) -> None:
    rows = [i for r in range(size) for i in range(n)[World(r, size).share(n)]]
    assert rows == list(range(n))


ENCODER = """
from torch import nn

def tiny(channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size[0] * size[1], 16), nn.Tanh(), nn.Linear(16, 8))
"""


@pytest.mark.slow
def test_two_processes_have_the_loss_and_the_weights_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_encoder.py").write_text(ENCODER)
    monkeypatch.syspath_prepend(tmp_path)
    import numpy as np
    import own_encoder  # type: ignore[import-not-found]

    held = some(15)
    np.savez(tmp_path / "data.npz", images=held.images.numpy())
    alone = vision.train(
        held,
        encoder=own_encoder.tiny,
        views="all",
        epochs=2,
        batch_size=6,
        seed=0,
        weight_decay=0.1,
        device="cpu",
    )
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0",
        "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "-m", "viewspan", "train", "data.npz",
        "--encoder", "own_encoder:tiny", "--views", "all", "--epochs", "2", "--batch-size", "6", "--weight-decay", "0.1", "--device", "cpu",
        "--out", "run", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == alone.steps == 6
    assert result["loss"] == pytest.approx(alone.loss, abs=1e-5)
    together = vision.load_encoders(tmp_path / "run")[0]
    for name, value in alone.encoder.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value, rtol=0, atol=1e-5)
    assert records.read(tmp_path / result["record"]).environment["processes"] == 2
