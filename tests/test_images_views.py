"""View pipelines: draws that belong to the image, and operations against values worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as torchvision_functional

from viewspan import images
from viewspan.images import draws, operations, views
from viewspan.images import pipeline as pipeline_module

N = 64
BATCH = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (N, 3, 16, 16), dtype=np.uint8))
INDICES = torch.arange(N)


def viewed(
    pipeline: object, batch: Tensor = BATCH, *, seed: int = 0, epoch: int = 0, view: int = 0
) -> Tensor:
    """One view of a batch of images numbered from 0."""
    resolved = views.resolve(pipeline)
    return resolved(batch, seed=seed, epoch=epoch, indices=torch.arange(len(batch)), view=view)


def only(**operation: object) -> views.ViewPipeline:
    """A pipeline of one operation."""
    return views.ViewPipeline("test", tuple(operation.items()))


def some(n: int = 4, *, seed: int = 0, view: int = 0) -> draws.Draws:
    return draws.Draws.of(seed=seed, epoch=0, view=view, indices=range(n))


# --- draws --------------------------------------------------------------------------------------------------------


class Eight(torch.utils.data.Dataset):
    """Eight images of which each item gives two views, as a user's loader would."""

    def __init__(self, seed: int, epoch: int) -> None:
        self.pipeline, self.seed, self.epoch = views.resolve("all"), seed, epoch

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Tensor:
        where = {"seed": self.seed, "epoch": self.epoch, "indices": [i]}
        return torch.stack([self.pipeline(BATCH[i : i + 1], view=v, **where)[0] for v in (0, 1)])


def through_loader(workers: int, seed: int) -> list[bytes]:
    out = []
    for epoch in range(2):
        for pair in torch.utils.data.DataLoader(Eight(seed, epoch), batch_size=1, num_workers=workers):
            out += [view.numpy().tobytes() for view in pair[0]]
    return out


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_views_never_repeat_and_workers_change_nothing() -> None:
    alone = through_loader(0, 0)
    assert len(set(alone)) == 32
    assert through_loader(2, 0) == alone
    assert through_loader(4, 0) == alone
    assert not set(through_loader(0, 1)) & set(alone)


@pytest.mark.parametrize("name", views.REGIMES)
@pytest.mark.parametrize("order", ["fixed", "random"])
def test_a_view_does_not_depend_on_its_batch(name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = views.resolve(name, order=order)
    together = pipeline(BATCH, seed=3, epoch=2, indices=INDICES, view=1)
    assert together.shape == BATCH.shape
    assert together.dtype == torch.float32
    assert 0 <= float(together.min()) <= float(together.max()) <= 1
    shuffled = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    parts = [pipeline(BATCH[i], seed=3, epoch=2, indices=i, view=1) for i in shuffled.split(7)]
    assert torch.equal(torch.cat(parts), together[shuffled])
    monkeypatch.setattr(pipeline_module, "CHUNK", 5)
    assert torch.equal(pipeline(BATCH, seed=3, epoch=2, indices=INDICES, view=1), together)


def test_global_generators_are_left_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(5)
    np.random.seed(5)
    viewed("all")
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


def test_uniform_draws_are_uniform_and_independent() -> None:
    n = 20_000
    a, b = some(n).uniform("crop", 3), some(n, view=1).uniform("crop", 3)
    columns = np.concatenate([a, b, some(n).uniform("flip", 1), some(n, seed=1).uniform("crop", 1)], axis=1)
    assert columns.min() >= 0
    assert columns.max() < 1
    assert np.abs(columns.mean(0) - 0.5).max() < 4.5 / math.sqrt(12 * n)
    counts = np.stack([np.histogram(c, 20, (0, 1))[0] for c in columns.T])
    assert (((counts - n / 20) ** 2) / (n / 20)).sum(1).max() < 19 + 4.5 * math.sqrt(2 * 19)
    correlation = np.corrcoef(columns.T) - np.eye(columns.shape[1])
    assert np.abs(correlation).max() < 4.5 / math.sqrt(n)
    steps = np.corrcoef(a[:-1, 0], a[1:, 0])[0, 1]  # neighbouring images
    assert abs(steps) < 4.5 / math.sqrt(n)


def test_draws_refuse_what_numbers_no_image() -> None:
    for indices in ([-1], [0.5]):
        with pytest.raises(ValueError, match="indices must be integers"):
            draws.Draws.of(seed=0, epoch=0, view=0, indices=indices)
    with pytest.raises(ValueError, match="epoch must be at least 0"):
        draws.Draws.of(seed=0, epoch=-1, view=0, indices=[0])
    with pytest.raises(ValueError, match="one an image"):
        views.resolve("all")(BATCH, seed=0, epoch=0, indices=[0], view=0)


# --- hue on gray --------------------------------------------------------------------------------------------------


def pixel(*rgb: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.tensor(rgb) / 255).to(dtype).reshape(1, 3, 1, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("level", [0, 128, 255])
@pytest.mark.parametrize("turns", [-0.5, 0.0, 0.1, 0.5])
def test_hue_leaves_gray_alone(dtype: torch.dtype, level: int, turns: float) -> None:
    gray = pixel(level, level, level, dtype=dtype)
    assert torch.equal(operations.adjust_hue(gray, turns), gray)


@pytest.mark.parametrize(
    ("turns", "right"),
    [(0.25, (128, 255, 0)), (1 / 3, (0, 255, 0)), (-1 / 3, (0, 0, 255)), (1.0, (255, 0, 0))],
)
def test_hue_turns_red(turns: float, right: tuple[int, int, int]) -> None:
    out = operations.adjust_hue(pixel(255, 0, 0), turns).flatten() * 255
    assert out.tolist() == pytest.approx(right, abs=0.6)


@pytest.mark.parametrize("channels", [1, 3])
def test_hue_alone_moves_no_gray_image(channels: int) -> None:
    levels = torch.arange(32, dtype=torch.uint8).mul(8).reshape(-1, 1, 1, 1).expand(32, channels, 8, 8)
    pipeline = only(jitter=operations.Jitter(brightness=0, contrast=0, saturation=0, hue=0.5, p=1))
    first, second = (viewed(pipeline, levels, view=v) for v in (0, 1))
    assert torch.equal(first, second)
    assert torch.equal(first, levels.float() / 255)
    assert not torch.equal(viewed(pipeline, view=0), viewed(pipeline, view=1))


@pytest.mark.parametrize("channels", [1, 3])
def test_every_regime_takes_gray_images(channels: int) -> None:
    gray = BATCH[:, :1].expand(-1, channels, -1, -1)
    for name in views.REGIMES:
        out = viewed(name, gray)
        assert out.shape == gray.shape
        assert bool(torch.isfinite(out).all())
        assert float((out - out[:, :1]).abs().max()) <= 1 / 255  # gray stays gray


def test_colour_operations_refuse_four_channels_and_others_take_them() -> None:
    four = BATCH[:, :1].expand(-1, 4, -1, -1)
    with pytest.raises(ValueError, match=r"operation jitter: .*defined for 1 or 3 channels, got 4"):
        viewed("all", four)
    assert viewed("crop", four).shape == four.shape
    assert viewed(views.resolve("all").only("crop", "flip", "blur", "erase"), four).shape == four.shape


# --- operations ---------------------------------------------------------------------------------------------------


def test_crop_agrees_with_torchvision_box_by_box() -> None:
    x = BATCH.float() / 255
    boxes = np.floor(operations.Crop().boxes(some(N), "crop", 16, 16))  # torchvision takes whole pixels
    theirs = [
        torchvision_functional.resized_crop(image, *map(int, box), [16, 16], antialias=False)
        for image, box in zip(x, boxes)
    ]
    assert float((operations.resample(x, boxes, (16, 16)) - torch.stack(theirs)).abs().max()) < 1e-5


def test_crop_of_a_ramp_is_the_ramp_between_the_edges_of_its_box() -> None:
    """A picture that is linear in its coordinates: a view is linear too, and says where its box lies."""
    side = 64
    ramp = (torch.arange(side) + 0.5).expand(1, 1, side, side)
    x = torch.cat([ramp, ramp.transpose(2, 3)], 1).expand(N, 2, side, side)
    crop = operations.Crop(area=(0.3, 0.9))
    top, left, h, w = crop.boxes(some(N), "crop", side, side).T
    view = crop(x, some(N), "crop")
    middle = (slice(None), 0, side // 2, slice(side // 2 - 1, side // 2 + 1))
    assert np.allclose(view[middle].mean(1), left + w / 2, atol=1e-3)
    assert np.allclose(view[:, 1, side // 2 - 1 : side // 2 + 1, 0].mean(1), top + h / 2, atol=1e-3)
    assert np.allclose(view[middle].diff(dim=1)[:, 0], w / side, atol=1e-3)
    assert (np.abs(left - np.rint(left)) > 1e-6).all()


def test_crop_boxes_follow_torchvisions_law() -> None:
    torch.manual_seed(0)
    n, side = 4000, 256
    top, left, h, w = operations.Crop().boxes(some(n), "crop", side, side).T
    assert (top.min() >= 0) & ((top + h).max() <= side) & ((left + w).max() <= side) & (left.min() >= 0)
    shape = w / h
    assert 0.74 < shape.min() < 0.77
    assert 1.30 < shape.max() < 1.35
    share = h * w / side**2
    image = torch.empty(3, side, side)
    theirs = np.array([RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(n)])
    expected = theirs[:, 2] * theirs[:, 3] / side**2
    for ours, reference in ((share, expected), (top, theirs[:, 0]), (left, theirs[:, 1])):
        error = math.sqrt((ours.var() + reference.var()) / n)
        assert abs(ours.mean() - reference.mean()) < 4.5 * error


def test_crop_with_no_box_that_fits_takes_the_largest_in_the_middle() -> None:
    narrow = operations.Crop(area=(1.0, 1.0), ratio=(1.0, 1.0))
    assert narrow.boxes(some(), "crop", 8, 32).tolist() == [[0, 12, 8, 8]] * 4
    assert narrow.boxes(some(), "crop", 32, 8).tolist() == [[12, 0, 8, 8]] * 4


def test_smaller_views_average_over_what_they_leave_out() -> None:
    fine = torch.zeros(1, 1, 32, 32)
    fine[..., ::2] = 1.0  # stripes one pixel wide: sampling every fourth would see one colour
    out = operations.resample(fine, np.array([[0, 0, 32, 32]]), (8, 8))
    assert out.shape == (1, 1, 8, 8)
    assert float((out - 0.5).abs().max()) < 1e-6
    assert viewed(views.resolve("crop", size=8)).shape == (N, 3, 8, 8)


def test_flip_grayscale_erase_and_shift_do_what_they_say() -> None:
    x = BATCH.float() / 255
    flipped = operations.Flip(p=1)(x, some(N), "flip")
    assert torch.equal(flipped, x.flip(3))
    share = (operations.Flip()(x, some(N), "flip") == x).flatten(1).all(1).double().mean()
    assert abs(float(share) - 0.5) < 4.5 * 0.5 / math.sqrt(N)
    gray = operations.Grayscale(p=1)(pixel(255, 0, 0), some(1), "grayscale").flatten()
    assert gray.tolist() == pytest.approx([0.299] * 3)
    erased = operations.Erase(value=0.0)(torch.ones(2000, 1, 32, 32), some(2000), "erase")
    share = (1 - erased).mean((1, 2, 3)).double()
    assert float(share.min()) > 0.015
    assert float(share.max()) < 0.36
    assert abs(float(share.mean()) - 0.175) < 0.01
    for image in 1 - erased[:20, 0]:  # one rectangle each
        rows, columns = image.any(1).sum(), image.any(0).sum()
        assert int(image.sum()) == int(rows * columns)
    moved = operations.Shift(pixels=1)(x, some(N), "shift")
    assert torch.equal(operations.Shift(pixels=0)(x, some(N), "shift"), x)
    for before, after in zip(x, moved):
        padded = torch.nn.functional.pad(before[None], (1, 1, 1, 1), mode="replicate")[0]
        assert any(torch.equal(after, padded[:, i : i + 16, j : j + 16]) for i in range(3) for j in range(3))


def test_jitter_agrees_with_torchvision_factor_by_factor() -> None:
    x = BATCH.float() / 255
    for kind, (name, theirs) in enumerate({
        "brightness": torchvision_functional.adjust_brightness,
        "contrast": torchvision_functional.adjust_contrast,
        "saturation": torchvision_functional.adjust_saturation,
        "hue": torchvision_functional.adjust_hue,
    }.items()):  # fmt: skip
        strengths = dict.fromkeys(("brightness", "contrast", "saturation", "hue"), 0.0)
        strengths[name] = 0.4
        out = operations.Jitter(**strengths, p=1)(x, some(N), "jitter")
        u = some(N).uniform("jitter", 9)[:, 1 + kind]
        factors = 0.8 * u - 0.4 if name == "hue" else 0.6 + 0.8 * u
        expected = torch.stack([theirs(image, float(f)) for image, f in zip(x, factors)])
        assert float((out - expected).abs().max()) < 1e-3, name


def test_jitter_leaves_a_fifth_alone_and_draws_its_own_order() -> None:
    n = 2000
    x = BATCH[:1].expand(n, -1, -1, -1).float() / 255
    out = operations.Jitter()(x, some(n), "jitter")
    same = (out == x).flatten(1).all(1).double().mean()
    assert abs(float(same) - 0.2) < 4.5 * 0.4 / math.sqrt(n)
    order = np.argsort(some(n).uniform("jitter", 9)[:, 5:9], axis=1)
    assert len(np.unique(order, axis=0)) == 24


def test_blur_agrees_with_torchvision() -> None:
    x = BATCH.float() / 255
    out = operations.Blur()(x, some(N), "blur")
    sigma = 0.1 + 1.9 * some(N).uniform("blur", 2)[:, 1]
    theirs = [torchvision_functional.gaussian_blur(image, 3, float(s)) for image, s in zip(x, sigma)]
    assert float((out - torch.stack(theirs)).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: operations.Jitter(hue=0.6), "hue must be"), (lambda: operations.Jitter(p=2), "p must be"),
        (lambda: operations.Crop(area=(0.5, 0.1)), "area must be"), (lambda: operations.Crop(size=0), "size must be"),
        (lambda: operations.Blur(kernel=4), "kernel must be odd"), (lambda: operations.Erase(value=3), "value must be"),
        (lambda: operations.Flip(p=-1), "p must be"), (lambda: operations.Grayscale(p=-1), "p must be"),
        (lambda: operations.Shift(pixels=-1), "pixels must be"), (lambda: operations.Blur(sigma=(0, 1)), "sigma must"),
        (lambda: operations.Crop(ratio=(1, 1, 1)), "ratio must be two numbers"),
    ],
)  # fmt: skip
def test_strengths_out_of_range_are_refused(made: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


# --- pipelines ----------------------------------------------------------------------------------------------------


def test_the_regimes_hold_the_published_operations() -> None:
    assert views.resolve("all").names == ("jitter", "crop", "flip", "grayscale", "blur", "erase")
    assert views.resolve("crop").names == ("crop",)
    assert views.resolve("all-without-crop").names == ("jitter", "flip", "grayscale", "blur", "erase")
    with pytest.raises(ValueError, match="views must be one of all, crop, all-without-crop"):
        views.resolve("some")


def test_only_and_without_keep_each_operations_draws() -> None:
    pipeline = views.resolve("all")
    assert torch.equal(viewed(pipeline.only("crop")), viewed("crop"))
    assert torch.equal(viewed(pipeline.without("crop")), viewed("all-without-crop"))
    assert pipeline.only("crop", "flip").names == ("crop", "flip")
    assert torch.equal(viewed(pipeline.without(*pipeline.names)), BATCH.float() / 255)
    with pytest.raises(ValueError, match=r"operation must be one of .*, got 'cut'"):
        pipeline.only("cut")


def test_random_order_permutes_once_a_run() -> None:
    pipeline = views.resolve("all", order="random")
    orders = {tuple(name for name, _ in pipeline._ordered(seed)) for seed in range(200)}
    assert len(orders) > 150
    assert not torch.equal(viewed(pipeline), viewed("all"))


def test_perturbation_is_small() -> None:
    x = views.as_float(BATCH)
    near = viewed(views.resolve("all").perturbation(strength=0.1, shift=0), x)
    assert 0.0 < float((near - x).abs().mean()) < 0.05
    assert torch.equal(viewed(views.resolve("crop").perturbation(shift=0), x), x)
    assert views.resolve("crop").perturbation().names == ("shift",)


def test_images_of_several_sizes(tmp_path: Path) -> None:
    several = [BATCH[0], BATCH[1][:, :12, :9], BATCH[2]]
    out = views.resolve("crop", size=16)(several, seed=0, epoch=0, indices=[0, 1, 2], view=0)
    assert out.shape == (3, 3, 16, 16)
    assert torch.equal(
        out[[0, 2]], views.resolve("crop", size=16)(BATCH[[0, 2]], seed=0, epoch=0, indices=[0, 2], view=0)
    )
    with pytest.raises(ValueError, match=r"must be of one shape.*a and .*b; give a crop its size"):
        views.resolve("all-without-crop")(
            several, seed=0, epoch=0, indices=[0, 1, 2], view=0, names=["a", "b", "c"]
        )


def test_a_yaml_file_lists_operations(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("- flip: {p: 1}\n- crop\n- crop: {area: [0.5, 1], size: 8}\n- torch.nn:Identity\n")
    pipeline = views.resolve(path)
    assert pipeline.names == ("flip", "crop", "crop-2", "Identity")
    assert pipeline.operations[2][1] == operations.Crop(area=(0.5, 1), size=8)
    assert viewed(pipeline).shape == (N, 3, 8, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- cut", "item 1 must be one of blur, crop, .*, got 'cut'"),
        ("- crop\n- flip: {q: 1}", "item 2, flip must be one of p, got 'q'"),
        ("- flip: {p: 7}", "item 1, flip: p must be finite"),
        ("- flip: 7", "parameters of flip must be names"),
        ("- {flip: {}, crop: {}}", "must be an operation's name"),
        ("- no_such_module:X", "cannot import no_such_module"),
        ("crop", "must hold a list of operations, got str"),
        ("", "must hold a list of operations, got an empty file"),
        ("[]", "must hold a list of operations, got an empty list"),
        ("- crop: {area: 0.5}", r"item 1, crop: area must be two numbers, got 0\.5"),
        ("- crop: {ratio: }", "item 1, crop: ratio must be two numbers, got None"),
        ("- jitter: {hue: '0.1'}", "item 1, jitter: hue must be a number, got '0.1'"),
        ("- builtins:len: {obj: []}", "item 1, builtins:len: TypeError: len"),
        ("- builtins:int: {}", "item 1, builtins:int: must give a callable, got int"),
        ("- sys:exit: {}\n- builtins:exit: {code: 0}", r"builtins:exit: ended the program \(exit code 0\)"),
        ("- [", "not YAML"),
    ],
)
def test_yaml_errors_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        views.resolve(str(tmp_path / "own.yaml"))


def test_a_blur_wider_than_the_image_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"operation blur: kernel must be less than twice the sides \(16, 16\)"
    ):
        viewed(views.ViewPipeline("wide", (("blur", operations.Blur(kernel=33)),)), BATCH[:1, :, :16, :16])


def test_a_missing_yaml_file_and_a_needless_size(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a file that can be read"):
        views.resolve(str(tmp_path / "no.yaml"))
    with pytest.raises(ValueError, match="size applies to the views all and crop"):
        views.resolve("a.b:c", size=3)
    with pytest.raises(ValueError, match="size applies to views that crop"):
        views.resolve("all-without-crop", size=3)


def test_regimes_load_and_view_a_whole_set() -> None:
    held = images.load(BATCH)
    out = views.resolve("all")(held.images, seed=0, epoch=0, indices=INDICES, view=0, names=held.names)
    assert torch.equal(out, viewed("all"))
