"""Any callable as a view pipeline: every style of it, and every way it can go wrong."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import kornia
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import v2

from viewspan import checks
from viewspan.images import views

BATCH = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8))
FLOAT = BATCH.float() / 255


def viewed(
    function: Callable[..., Any], batch: Tensor = BATCH, *, indices: Any = None, view: int = 0
) -> Tensor:
    at = torch.arange(len(batch)) if indices is None else indices
    return views.resolve(function)(batch, seed=0, epoch=0, indices=at, view=view)


def crop_and_flip(image: Image.Image) -> Image.Image:
    """A plain function on PIL images that draws from three libraries."""
    top, left = random.randrange(3), int(np.random.randint(3))
    image = image.crop((left, top, left + 6, top + 6))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < 0.5 else image


def brighter(image: Tensor) -> Tensor:
    return (image * (0.5 + 0.5 * torch.rand(()))).clamp(0, 1)


def as_array(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image[:, ::-1])


class Dictionary:
    """The style of albumentations: arrays (H, W, C) by name, a seed of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def set_random_seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *, image: np.ndarray) -> dict[str, np.ndarray]:
        return {"image": np.roll(image, self.rng.integers(8), axis=0)}


Dictionary.__module__ = "albumentations.test"  # what tells its style


class Several:
    """The style of lightly: a list of views of different law."""

    def __call__(self, image: Image.Image) -> list[Tensor]:
        turned = image.rotate(90 * random.randrange(4))
        return [v2.functional.pil_to_tensor(turned), v2.functional.pil_to_tensor(turned.transpose(5))]


def strong() -> transforms.Compose:
    return transforms.Compose([
        transforms.RandomResizedCrop(8), transforms.ColorJitter(0.8, 0.8, 0.8, 0.2), transforms.ToTensor(),
        transforms.Normalize([0.5] * 3, [0.25] * 3),
    ])  # fmt: skip


STYLES = {
    "function on PIL": crop_and_flip,
    "function on tensors": brighter,
    "torchvision": strong(),
    "torchvision v2": v2.Compose(
        [v2.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    ),
    "kornia": kornia.augmentation.AugmentationSequential(kornia.augmentation.RandomResizedCrop((8, 8))),
    "dictionary": Dictionary(),
    "list of views": Several(),
}


@pytest.mark.parametrize("style", STYLES)
def test_every_style_draws_by_image_alone(style: str) -> None:
    function = STYLES[style]
    together = viewed(function)
    assert together.dtype == torch.float32
    backwards = torch.cat([viewed(function, BATCH[[i]], indices=[i]) for i in reversed(range(6))]).flip(0)
    assert torch.equal(together, backwards)
    assert torch.equal(viewed(function), together)
    assert not torch.equal(viewed(function, view=1), together)
    copies = viewed(function, BATCH[:1].expand(6, -1, -1, -1).contiguous())
    assert len({view.numpy().tobytes() for view in copies}) > 1  # each image its own draw


def test_worker_processes_change_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_views_for_workers.py").write_text(
        "import random\n\ndef turn(image):\n    return image.rotate(random.choice([0, 90, 180, 270]))\n\n"
        "def fail(image):\n    if image.getpixel((0, 0)) == THIRD:\n        raise KeyError('no box')\n    return image\n"
        f"\nTHIRD = {tuple(BATCH[2, :, 0, 0].tolist())}\n"
    )
    monkeypatch.chdir(tmp_path)
    pipeline = views.resolve("own_views_for_workers:turn", workers=2)
    alone = views.resolve("own_views_for_workers:turn")
    where = {"seed": 3, "epoch": 1, "indices": range(6), "view": 1}
    assert torch.equal(pipeline(BATCH, **where), alone(BATCH, **where))
    with pytest.raises(ValueError, match="own_views_for_workers:fail, failed on image 2: KeyError: 'no box'"):
        views.resolve("own_views_for_workers:fail", workers=2)(BATCH, **where)
    with pytest.raises(ValueError, match="workers must be at least 0"):
        views.resolve(crop_and_flip, workers=-1)


def test_global_generators_are_put_back() -> None:
    def state() -> tuple[Any, ...]:
        return random.random(), np.random.rand(), float(torch.rand(()))

    seeded = []
    for run in (False, True):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        if run:
            viewed(crop_and_flip)
        seeded.append(state())
    assert seeded[0] == seeded[1]


def test_values_come_through_unchanged() -> None:
    assert torch.equal(viewed(lambda image: image), FLOAT)
    assert torch.equal(viewed(as_array), FLOAT.flip(-1))
    assert torch.equal(viewed(lambda x: x.flip(-1)), FLOAT.flip(-1))
    assert torch.equal(viewed(lambda image: image, BATCH[:, :1]), FLOAT[:, :1])
    five = BATCH[:, :1].expand(-1, 5, -1, -1)
    assert torch.equal(viewed(lambda x: x, five), five.float() / 255)
    normal = viewed(transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)]))
    assert float((normal - (FLOAT - 0.5) / 0.25).abs().max()) < 1e-6


def test_views_of_one_call_belong_together() -> None:
    first, second = viewed(Several()), viewed(Several(), view=1)
    assert torch.equal(second, first.transpose(2, 3).contiguous())
    with pytest.raises(ValueError, match="returned 2 views, view 3 was asked for"):
        viewed(Several(), view=2)


def test_a_compose_is_taken_apart() -> None:
    pipeline = views.resolve(strong())
    assert pipeline.names == ("RandomResizedCrop", "ColorJitter", "ToTensor", "Normalize")
    crop = pipeline.only("RandomResizedCrop")
    assert crop.names == ("RandomResizedCrop", "ToTensor", "Normalize")
    kept = pipeline.without("RandomResizedCrop", "ColorJitter")
    out = kept(BATCH, seed=0, epoch=0, indices=range(6), view=0)
    assert float((out - (FLOAT - 0.5) / 0.25).abs().max()) < 1e-6
    full = pipeline(BATCH, seed=0, epoch=0, indices=range(6), view=0)
    moved = crop(BATCH, seed=0, epoch=0, indices=range(6), view=0)
    assert float((full.mean((2, 3)) - moved.mean((2, 3))).abs().min()) > 0
    assert views.resolve(v2.Compose([v2.RandomHorizontalFlip(), v2.RandomHorizontalFlip()])).names == (
        "RandomHorizontalFlip",
        "RandomHorizontalFlip-2",
    )


def test_conversions_keep_their_place() -> None:
    with pytest.raises(ValueError, match="order must be fixed for views Compose, where ToTensor, Normalize"):
        views.resolve(strong(), order="random")
    both = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])
    assert views.resolve(both, order="random").order == "random"


class OwnGenerator:
    """The bug behind repeated views: a generator kept on the object, copied into every worker."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.rotate(float(self.rng.uniform(0, 360)))


def test_a_generator_of_its_own_is_pointed_out() -> None:
    with pytest.warns(checks.ViewspanWarning, match="OwnGenerator gives another view under the same seed"):
        viewed(OwnGenerator())


def paints(image: Image.Image) -> Image.Image:
    ImageDraw.Draw(image).rectangle((0, 0, 3, 3), fill=(1, 2, 3))
    return image


def zeroes(image: Tensor) -> Tensor:
    image[:, 0] = 2.0
    return image


def fails_on_third(image: Tensor) -> Tensor:
    if float(image[0, 0, 0]) == float(FLOAT[2, 0, 0, 0]):
        raise KeyError("no box")
    return image


def two_sizes(image: Tensor) -> Tensor:
    return image[:, :4] if float(image[0, 0, 0]) == float(FLOAT[3, 0, 0, 0]) else image


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (paints, "paints.*failed on cat-0.*changed the image it was given in place"),
        (zeroes, "zeroes.*failed on cat-0.*changed the image"),
        (fails_on_third, "fails_on_third, failed on cat-2: KeyError: 'no box'"),
        (two_sizes, r"must give one shape, got \(3, 8, 8\) for cat-0 and \(3, 4, 8\) for cat-3"),
        (lambda image: None, "on cat-0 must return an image, got NoneType"),
        (lambda image: "x", "on cat-0 must return an image, got str"),
        (lambda image: {"image": image}, "on cat-0 must return an image, got dict"),
        (
            lambda image: sys.exit(0),
            r"failed on cat-0: ended the program \(exit code 0\) \(test_images_callables.py",
        ),
        (lambda x: x.mean(0), r"must return \(C, h, w\), got shape \(8, 8\)"),
        (lambda x: x * torch.nan, "on cat-0 returned NaN"),
        (lambda x: x * 255.0, "returned floats up to .*; return uint8, or floats in"),
    ],
)
def test_faults_name_the_pipeline_and_the_image(function: Callable[..., Any], message: str) -> None:
    names = [f"cat-{i}" for i in range(6)]
    with pytest.raises((ValueError, TypeError), match=message):
        views.resolve(function)(BATCH, seed=0, epoch=0, indices=range(6), view=0, names=names)


def test_an_error_is_told_with_the_line_it_came_from() -> None:
    line = fails_on_third.__code__.co_firstlineno + 2
    with pytest.raises(ValueError, match=rf"KeyError: 'no box' \(test_images_callables.py, line {line}\)"):
        viewed(fails_on_third)


def test_views_that_hang_on_a_gradient_are_taken_as_they_are() -> None:
    weight = torch.full((1,), 0.5, requires_grad=True)
    assert torch.equal(viewed(lambda x: weight * x), FLOAT / 2)


def test_an_operation_of_a_compose_is_named() -> None:
    broken = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 2, [0.5] * 2)])
    with pytest.raises(ValueError, match="views Compose, operation Normalize, failed on image 0"):
        viewed(broken)


def test_what_is_no_callable_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="views must be a name, a file or a callable"):
        views.resolve(3)
    (tmp_path / "own_views_here.py").write_text(
        "class Flip:\n    pass\n\ndef same(image):\n    return image\n"
    )
    monkeypatch.chdir(tmp_path)
    assert views.resolve("own_views_here:same").name == "own_views_here:same"
    with pytest.raises(ValueError, match="is a class"):
        views.resolve("own_views_here:Flip")
