"""Each rule finds its fault, and no rule finds one in the built-in regimes."""

import numpy as np
import pytest
import torch
from torch import Tensor

from viewspan import images, testing
from viewspan.auditing import RULES, lint
from viewspan.images import operations
from viewspan.images.views import REGIMES, ViewPipeline

ONCE = np.random.default_rng(0)


@pytest.fixture(scope="module")
def shapes() -> images.ImageSet:
    return images.load(testing.shapes(12, n_views=1).images[:, 0])


def ids(data: images.ImageSet, views: object) -> set[str]:
    found = lint(data, views=views)
    for fault in found:
        assert fault.id in RULES
        assert fault.fix
    return {fault.id for fault in found}


def noise(x: Tensor) -> Tensor:
    return (x + 0.05 * torch.rand(())).clamp(0, 1)


def raises(x: Tensor) -> Tensor:
    raise RuntimeError("out of luck")


def mutates(x: Tensor) -> Tensor:
    x.mul_(torch.rand(()))
    return x.clone()


def shapeless(x: Tensor) -> Tensor:
    return x[:, : int(torch.randint(8, 30, ()))]


def twice_divided(x: Tensor) -> Tensor:
    return noise(x) / 255


def thresholded(x: Tensor) -> Tensor:
    return (x > torch.rand(())).float()


def not_clamped(x: Tensor) -> Tensor:
    return 1.5 * x - torch.rand(())


def burnt(x: Tensor) -> Tensor:
    return (x + 0.9 + 0.5 * torch.rand(())).clamp(0, 1)


def own_generator(x: Tensor) -> Tensor:
    return (x * float(ONCE.random())).clamp(0, 1)


def constant(x: Tensor) -> Tensor:
    return 1 - x


def gray(x: Tensor) -> Tensor:
    return noise(x).mean(0, keepdim=True).expand(3, -1, -1).clone()


def one_channel(x: Tensor) -> Tensor:
    return noise(x).mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("views", "rule"),
    [
        (raises, "raises"),
        (mutates, "mutates-input"),
        (shapeless, "wrong-shape"),
        (twice_divided, "uint8-float"),
        (thresholded, "uint8-float"),
        (not_clamped, "out-of-range"),
        (burnt, "clipped"),
        (own_generator, "own-generator"),
        (constant, "views-equal"),
        (gray, "gray"),
        (one_channel, "channels"),
    ],
)
@pytest.mark.filterwarnings("ignore::viewspan.checks.ViewspanWarning")
def test_the_fault_is_found(shapes: images.ImageSet, views: object, rule: str) -> None:
    assert rule in ids(shapes, views)


@pytest.mark.parametrize(
    ("mean", "std", "told"),
    [
        ([125.3, 123.0, 113.9], [63.0, 62.1, 66.7], "a mean of 125.3 and a standard deviation of 66.7"),
        ([0.49, 0.48, 0.45], [63.0, 62.1, 66.7], "a mean of 0.49 and a standard deviation of 66.7"),
        ([125.3, 123.0, 113.9], [0.25, 0.25, 0.25], "returned floats up to 501"),
        ([0.49, 0.48, 0.45], [0.25, 0.24, 0.26], None),
    ],
)
@pytest.mark.parametrize("taken_apart", [True, False])
def test_statistics_of_another_scale(
    mean: list[float], std: list[float], told: str | None, taken_apart: bool
) -> None:
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(32),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean, std),
    ]
    composed = v2.Compose(steps)
    photographs = images.load(np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32)).astype(np.uint8))
    found = lint(photographs, views=composed if taken_apart else lambda image: composed(image))
    if told is None:
        assert [f.id for f in found] == ([] if taken_apart else ["out-of-range"])
        return
    assert [f.id for f in found] == ["uint8-float"]
    if taken_apart:
        assert told in found[0].message


class PerEpoch:
    """One draw for all images of a batch, new in every epoch."""

    def __call__(self, x: Tensor, draws: object, name: str) -> Tensor:
        return x * (1 - 0.1 * (1 + draws.epoch * 2 + draws.view) / 8)


class PerView(PerEpoch):
    """The same draw in every epoch."""

    def __call__(self, x: Tensor, draws: object, name: str) -> Tensor:
        return x * (1 - 0.1 * (1 + draws.view))


def test_draws_shared_by_a_batch_or_by_epochs(shapes: images.ImageSet) -> None:
    assert "one-draw-per-batch" in ids(shapes, ViewPipeline("mine", (("dim", PerEpoch()),)))
    assert "epochs-repeat" in ids(shapes, ViewPipeline("mine", (("dim", PerView()),)))


def test_a_kornia_transform_that_treats_a_batch_alike(shapes: images.ImageSet) -> None:
    import kornia.augmentation as K

    assert "one-draw-per-batch" in ids(shapes, K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0, same_on_batch=True))
    assert "one-draw-per-batch" not in ids(
        shapes, K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0, same_on_batch=False)
    )


def test_an_operation_that_never_fires(shapes: images.ImageSet) -> None:
    views = ViewPipeline("mine", (("crop", operations.Crop()), ("flip", operations.Flip(p=0.0))))
    (fault,) = lint(shapes, views=views)
    assert (fault.id, fault.operation) == ("never-fires", "flip")


def test_built_in_regimes_and_plain_noise_are_clean(shapes: images.ImageSet) -> None:
    photographs = images.load(np.random.default_rng(0).integers(30, 220, (12, 3, 32, 32)).astype(np.uint8))
    for views in (*REGIMES, noise):
        assert ids(photographs, views) == set()
    assert ids(shapes, "all") == set()
