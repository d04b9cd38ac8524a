"""How fast are the batched views, and a whole training step, against a per-image torchvision loader?

    python benchmarks/vision.py [--images 1000] [--repeats 5] [--threads 1] [--device cpu] [--json FILE]

Views alone: the regime `all` on random 32 × 32 images, ours on a batch against a loop of torchvision transforms with
the same strengths on PIL images (as a lightly or torchvision loader runs them in each worker). End to end: one epoch
of two views an image, forward, NT-Xent, backward and Adam at equal precision, ours against that loader. Medians are
printed; only ratios mean anything on another machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms

from viewspan import images, losses, vision


def per_image_pipeline() -> transforms.Compose:
    """The regime `all` in torchvision's transforms."""
    return transforms.Compose([
        transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        transforms.RandomResizedCrop(32, scale=(0.08, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.RandomGrayscale(0.2),
        transforms.GaussianBlur(3, (0.1, 2.0)),
        transforms.ToTensor(),
        transforms.RandomErasing(p=1.0, scale=(0.02, 0.33), ratio=(0.3, 3.3)),
    ])  # fmt: skip


def seconds(work: Callable[[], Any], repeats: int, device: str) -> float:
    """Median time of some repeats after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


class TwoViews(torch.utils.data.Dataset):
    """What a lightly-style loader holds: PIL images and a transform called twice."""

    def __init__(self, pictures: list[Image.Image]) -> None:
        self.pictures, self.transform = pictures, per_image_pipeline()

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.pictures[i]), self.transform(self.pictures[i])


def loader_epoch(
    encoder: nn.Module, pictures: list[Image.Image], *, batch_size: int, workers: int, device: str
) -> None:
    """One epoch as other libraries run it."""
    loss = losses.NTXent(0.5)
    optimiser = torch.optim.Adam(encoder.parameters(), lr=3e-4)
    loader = torch.utils.data.DataLoader(
        TwoViews(pictures), batch_size=batch_size, shuffle=True, num_workers=workers, drop_last=True
    )
    for first, second in loader:
        embeddings = encoder(torch.cat([first, second]).to(device))
        value = loss(*embeddings.float().chunk(2))
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1, help="epochs of each timed training run")
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the per-image loader")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (given.images, 3, 32, 32), dtype=torch.uint8, generator=generator)
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
    held = images.load(pixels)
    pipeline, loop = images.views.resolve("all"), per_image_pipeline()
    where = pixels.to(given.device)
    indices = torch.arange(given.images)
    batched = seconds(
        lambda: pipeline(where, seed=0, epoch=0, indices=indices, view=0), given.repeats, given.device
    )
    one_by_one = seconds(lambda: [loop(p) for p in pictures], given.repeats, given.device)
    found: dict[str, Any] = {
        "images": given.images, "threads": given.threads, "device": given.device, "workers": given.workers,
        "views_ratio": one_by_one / batched,
        "views_batched_microseconds": 1e6 * batched / given.images,
        "views_per_image_microseconds": 1e6 * one_by_one / given.images,
    }  # fmt: skip
    print(f"views alone: batched {found['views_ratio']:.1f} times as fast as the per-image loop")
    for name, backbone in (("resnet18", vision.resnet18), ("mlp", vision.mlp)):
        run = vision.train(
            held, encoder=backbone, views="all", epochs=1 + given.epochs, batch_size=given.batch_size, seed=0,
            device=given.device, threads=given.threads,
        )  # fmt: skip
        ours = given.images / run.images_per_second  # seconds an epoch, the first one included
        encoder = run.encoder.to(given.device).train()
        theirs = seconds(
            lambda e=encoder: loader_epoch(
                e, pictures, batch_size=given.batch_size, workers=given.workers, device=given.device
            ),
            given.epochs, given.device,
        )  # fmt: skip
        found[f"{name}_ratio"] = theirs / ours
        print(f"end to end, {name}, float32: {theirs / ours:.2f} times as fast as the per-image loader")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
