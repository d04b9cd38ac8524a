"""Views of a batch, drawn on the device of the run; every number follows from (seed, epoch, image, view)."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor, nn

from viewspan.images import ImageSet, views

ON_DEVICE = 4 << 30  # bytes of images that are kept in accelerator memory


class Source:
    """Images with the pipeline that draws their views.

    Args:
        images: what `images.load` gives.
        pipeline: a `ViewPipeline`.
        seed: of the draws.
        on: device on which views are drawn.

    Attributes:
        shape: (C, h, w) of a view.
        pipeline: draws the views.
    """

    def __init__(
        self, images: ImageSet, pipeline: views.ViewPipeline, *, seed: int, on: torch.device
    ) -> None:
        if len(images) < 2:
            raise ValueError(f"images must be at least 2 (one has no negatives), got {len(images)}")
        self.pipeline, self.seed, self.on = pipeline, seed, on
        self.images, self.names = images.images, images.names
        if isinstance(self.images, Tensor) and self.images.numel() <= ON_DEVICE:
            self.images = self.images.to(on)
        # one image of each size: views of unlike shapes are refused before a run begins
        sizes: list[tuple[int, ...]] = [()]
        if isinstance(self.images, list):
            sizes = [tuple(image.shape) for image in self.images]
        first = self.draw(torch.tensor([sizes.index(s) for s in dict.fromkeys(sizes)]), epoch=0, view=0)
        self.shape: tuple[int, int, int] = (int(first.shape[1]), int(first.shape[2]), int(first.shape[3]))

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, indices: Tensor, *, epoch: int, view: int) -> Tensor:
        """View number `view` of some images, (n, C, h, w)."""
        return self.pipeline(
            self._batch(indices), seed=self.seed, epoch=epoch, indices=indices, view=view,
            names=[self.names[i] for i in indices.tolist()],
        ).to(self.on)  # fmt: skip

    def clean(self, indices: Tensor) -> Tensor:
        """The images themselves in [0, 1] at the size of the views, (n, C, h, w)."""
        batch = self._batch(indices)
        if isinstance(batch, Tensor):
            return fitted(batch, self.shape)
        return torch.cat([fitted(image[None], self.shape) for image in batch])

    def near(
        self, views: Tensor, indices: Tensor, *, epoch: int, view: int, strength: float, shift: int
    ) -> Tensor:
        """Views moved a little: the pipeline's colour jitter at a share of its strength, and a shift of few pixels."""
        small = self.pipeline.perturbation(strength=strength, shift=shift)
        if shift == 0 and (strength == 0 or len(small.operations) == 1):
            raise ValueError(
                f"shift must be at least 1 where views {self.pipeline.name} give no colour jitter to scale down: "
                "every positive would equal its anchor"
            )
        return small(views, seed=self.seed, epoch=epoch, indices=indices, view=view)

    def _batch(self, indices: Tensor) -> Tensor | list[Tensor]:
        if isinstance(self.images, Tensor):
            return self.images[indices.to(self.images.device)].to(self.on)
        return [self.images[i].to(self.on) for i in indices.tolist()]


def fitted(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """uint8 images (n, C, H, W) as floats in [0, 1] at the size (C, h, w)."""
    if images.shape[1] != shape[0]:
        raise ValueError(f"images must have {shape[0]} channels for this encoder, got {images.shape[1]}")
    out = images.float() / 255
    if tuple(out.shape[2:]) != shape[1:]:
        out = nn.functional.interpolate(out, shape[1:], mode="bilinear", antialias=True, align_corners=False)
    return out.clamp(0, 1)


def row_digests(images: ImageSet) -> list[bytes]:
    """One content hash an image, over shape and pixels."""
    return [
        hashlib.blake2b(
            repr(tuple(x.shape)).encode() + x.cpu().contiguous().numpy().tobytes(), digest_size=16
        ).digest()
        for x in images.images
    ]


def digest(images: ImageSet) -> str:
    """One content hash for a set of images, in their order."""
    return hashlib.sha256(b"".join(row_digests(images))).hexdigest()[:16]


def labelled_digest(images: ImageSet) -> str:
    """One content hash for a set of labelled images: pixels, labels and class names."""
    labels = [] if images.labels is None else images.labels.tolist()
    return hashlib.sha256(repr((digest(images), labels, images.classes)).encode()).hexdigest()[:16]


def order_of(n: int, *, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch visits n images."""
    state = np.random.SeedSequence([seed, epoch, n]).generate_state(1, np.uint64)[0]
    return torch.randperm(n, generator=torch.Generator().manual_seed(int(state >> 1)))


def step_seed(seed: int, step: int, rank: int) -> int:
    """Seed of what an encoder draws for itself in a step (dropout)."""
    return int(np.random.SeedSequence([seed, step, rank, 1]).generate_state(1, np.uint64)[0] >> 1)


def batches(n: int, size: int, least: int) -> list[slice]:
    """Slices of an epoch: `size` each; a left-over below `least` joins the batch before it, so n <= size is one batch.

    Raises:
        ValueError: if n is below `least`.
    """
    if n < least:
        raise ValueError(f"images must be at least {least} for this batch and number of processes, got {n}")
    ends = list(range(size, n, size))
    if ends and n - ends[-1] < least:
        ends.pop()
    return [slice(a, b) for a, b in zip([0, *ends], [*ends, n])]
