"""What a frozen encoder's features are worth: a linear probe, beside raw pixels and the untrained encoder.

Trained cells of published tables can lie below an untrained encoder under the same readout, so both rows are always
there. Features are those of the backbone in eval mode on clean images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from viewspan import checks, runtime
from viewspan.images import ImageSet
from viewspan.vision import backbones, drawing, readout, run_folder
from viewspan.vision.simclr import TrainRun

CHUNK = 512  # images encoded at a time


class Row(NamedTuple):
    """One kind of features: trained, untrained or pixels.

    Attributes:
        probe_accuracy: share of test images the logistic regression classifies rightly, in [0, 1].
        knn_accuracy: the same for k nearest neighbours.
        knn_top5_accuracy: truth among the five classes with most votes; None with five classes or fewer.
        penalty: L2 penalty chosen on held-out training rows.
        correct: which test images the probe got right, bool (n_test,).
    """

    probe_accuracy: float
    knn_accuracy: float
    knn_top5_accuracy: float | None
    penalty: float
    correct: np.ndarray


@dataclass
class ProbeResult:
    """The rows of a probe, and what they rest on.

    Attributes:
        rows: `Row` for ``trained``, ``untrained``, ``pixels``.
        n_train, n_test: images.
        k: neighbours that voted (at most n_train).
        leave_one_out: the set was scored on itself, so each image was left out of its own neighbours.
        overlap: test images whose pixels are also in the training set.
        classes: class names.
        gain: trained − untrained probe accuracy, with `gain_interval`, its paired bootstrap 95 % interval.
        published: accuracies of the authors' kind of probe, last and best test epoch, for each row; or None.
    """

    rows: dict[str, Row]
    n_train: int
    n_test: int
    k: int
    leave_one_out: bool
    overlap: int
    classes: tuple[str, ...]
    gain: float = field(init=False)
    gain_interval: tuple[float, float] = field(init=False)
    published: dict[str, dict[str, float]] | None = None

    def __post_init__(self) -> None:
        trained, untrained = self.rows["trained"].correct, self.rows["untrained"].correct
        self.gain = float(trained.mean() - untrained.mean())
        self.gain_interval = readout.paired_interval(trained, untrained)

    @property
    def probe_accuracy(self) -> float:
        """Linear probe of the trained encoder, in [0, 1]."""
        return self.rows["trained"].probe_accuracy

    @property
    def knn_accuracy(self) -> float:
        """k nearest neighbours of the trained encoder, in [0, 1]."""
        return self.rows["trained"].knn_accuracy

    @property
    def untrained_accuracy(self) -> float:
        """Linear probe of the encoder before training, in [0, 1]."""
        return self.rows["untrained"].probe_accuracy

    @property
    def pixels_accuracy(self) -> float:
        """Linear probe of raw pixels, in [0, 1]."""
        return self.rows["pixels"].probe_accuracy

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "probe_accuracy": self.probe_accuracy,
            "knn_accuracy": self.knn_accuracy,
            "knn_top5_accuracy": self.rows["trained"].knn_top5_accuracy,
            "untrained_accuracy": self.untrained_accuracy,
            "pixels_accuracy": self.pixels_accuracy,
            "untrained_knn_accuracy": self.rows["untrained"].knn_accuracy,
            "pixels_knn_accuracy": self.rows["pixels"].knn_accuracy,
            "gain": self.gain,
            "gain_interval": list(self.gain_interval),
            "n_train": self.n_train,
            "n_test": self.n_test,
            "k": self.k,
            "leave_one_out": self.leave_one_out,
            "overlap": self.overlap,
            "classes": list(self.classes),
            "penalty": {name: row.penalty for name, row in self.rows.items()},
            "published": self.published,
        }


def probe(
    run: str | Path | TrainRun | backbones.Encoder,
    train_set: ImageSet,
    test_set: ImageSet,
    *,
    untrained: backbones.Encoder | None = None,
    k: int = 200,
    protocol: str = "standard",
    published_epochs: int = 100,
    seed: int = 0,
    device: str = "auto",
    on_row: Callable[[str, Row], None] | None = None,
) -> ProbeResult:
    """Probe a trained encoder, its untrained twin and raw pixels on labelled images.

    Args:
        run: a run's folder, what `train` returned, or an `Encoder` (then `untrained` is needed).
        train_set: labelled images to fit on.
        test_set: labelled images to score, numbered by the training set's classes
            (``images.load(..., classes=train_set.classes)``). The training set itself may be given.
        untrained: the encoder with its first weights, for a bare `Encoder`.
        k: neighbours; capped at the number of training images, with a warning.
        protocol: ``standard``, or ``published``: the authors' probe is run beside it (SGD .1, momentum .9,
            batch 256, raw unit embeddings, encoder in train mode).
        published_epochs: of the published protocol.
        seed: of the held-out rows and the SGD order.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        on_row: called with the name and the `Row` of each kind of features as it is done.

    Raises:
        ValueError: without labels, with one class only, for classes that differ, for k < 1, for images whose
            channels do not fit the encoder.
    """
    checks.choice("protocol", protocol, ("standard", "published"))
    checks.integer("published_epochs", published_epochs, low=1)
    checks.integer("k", k, low=1)
    y, y_test = _labels(train_set, test_set)
    trained, first = _encoders(run, untrained)
    modes = trained.training, first.training
    on = runtime.device(device)
    digests = drawing.row_digests(train_set), drawing.row_digests(test_set)
    itself = digests[0] == digests[1]
    overlap = _overlap(*digests, itself)
    k = _capped(k, len(train_set) - int(itself))
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "trained": trained.to(on).eval().features,
        "untrained": first.to(on).eval().features,
        "pixels": lambda x: x.flatten(1),
    }
    rows = {}
    for name, feature in kinds.items():
        x = features(feature, train_set, trained.shape, on)
        x_test = x if itself else features(feature, test_set, trained.shape, on)
        fit = readout.logistic(
            x, y.to(on), x_test, y_test.to(on), n_classes=len(train_set.classes), seed=seed
        )
        votes = readout.knn(
            x, y.to(on), None if itself else x_test, y_test.to(on), k=k, n_classes=len(train_set.classes)
        )
        rows[name] = Row(
            float(fit.correct.mean()), votes.accuracy, votes.top5_accuracy, fit.penalty, fit.correct
        )
        if on_row is not None:
            on_row(name, rows[name])
    result = ProbeResult(rows, len(train_set), len(test_set), k, itself, overlap, train_set.classes)
    if protocol == "published":
        result.published = _published(
            kinds, (trained, first), train_set, test_set, y, y_test, published_epochs, seed
        )
    trained.cpu().train(modes[0])
    first.cpu().train(modes[1])
    return result


def features(
    feature: Callable[[Tensor], Tensor], images: ImageSet, shape: tuple[int, int, int], on: torch.device
) -> Tensor:
    """Features of clean images at the size of the training views, float32 (n, d) on the device."""
    out = []
    with torch.no_grad():
        for start in range(0, len(images), CHUNK):
            out.append(feature(clean(images, slice(start, start + CHUNK), shape, on)).float())
    x = torch.cat(out)
    bad = ~torch.isfinite(x).all(dim=1)
    if bool(bad.any()):
        raise ValueError(f"features of image {images.names[int(bad.nonzero()[0, 0])]} are not finite")
    return x


def clean(images: ImageSet, rows: slice, shape: tuple[int, int, int], on: torch.device) -> Tensor:
    """Images of a slice in [0, 1] at the size of the views."""
    batch = images.images[rows]
    if isinstance(batch, Tensor):
        return drawing.fitted(batch.to(on), shape)
    return torch.cat([drawing.fitted(image[None].to(on), shape) for image in batch])


class ViewStatistics(NamedTuple):
    """How an encoder places the views of held-out images, without a label.

    Attributes:
        retrieval: share of images whose second view is nearest to their first among n images: 1/n by chance, 1 at best.
        alignment: mean cosine of the two views of an image, in [−1, 1]; 1 where views coincide.
        uniformity: log E exp(−2‖x − y‖²) over embeddings of different images (Wang and Isola 2020): 0 for a constant
            encoder, about −4 for embeddings spread evenly over a sphere of many dimensions; lower is more even.
    """

    retrieval: float
    alignment: float
    uniformity: float


def view_statistics(
    encoder: backbones.Encoder,
    images: ImageSet,
    pipeline: Any,
    *,
    n: int = 500,
    seed: int = 0,
    device: str = "auto",
) -> ViewStatistics:
    """Retrieval, alignment and uniformity: the direct signs that training works; an untrained encoder has its own level.

    Args:
        encoder: in eval mode inside; embeddings are the ones trained on (with the head).
        images: held out from training.
        pipeline: a `ViewPipeline`.
        n: images compared (all, if there are fewer).
        seed: of the choice of images and their views.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
    """
    checks.integer("n", n, low=2)
    on = runtime.device(device)
    at = drawing.order_of(len(images), seed=seed, epoch=0)[:n]
    source = drawing.Source(images, pipeline, seed=seed, on=on)
    was = encoder.training
    encoder.to(on).eval()
    both = []
    with torch.no_grad():
        for view in (0, 1):
            parts = [
                encoder(source.draw(at[i : i + CHUNK], epoch=0, view=view)) for i in range(0, len(at), CHUNK)
            ]
            both.append(torch.cat(parts))
    encoder.cpu().train(was)
    nearest = (both[0] @ both[1].T).argmax(1).cpu()
    cosines = (both[0] @ both[0].T).double()
    others = ~torch.eye(len(at), dtype=torch.bool, device=on)
    return ViewStatistics(
        retrieval=float((nearest == torch.arange(len(at))).double().mean()),
        alignment=float((both[0] * both[1]).sum(1).double().mean()),
        uniformity=float((4 * cosines - 4)[others].exp().mean().log()),
    )


def _labels(train_set: ImageSet, test_set: ImageSet) -> tuple[Tensor, Tensor]:
    for name, held in (("train_set", train_set), ("test_set", test_set)):
        if held.labels is None:
            raise ValueError(f"{name} {held.source} holds no labels: a probe needs class folders or labels")
    if test_set.classes != train_set.classes:
        raise ValueError(
            f"test_set must be numbered by the training set's classes {list(train_set.classes)}, "
            f"got {list(test_set.classes)}: load it with classes=train_set.classes"
        )
    assert train_set.labels is not None
    assert test_set.labels is not None
    seen = set(train_set.labels.unique().tolist())
    unseen = [test_set.classes[i] for i in test_set.labels.unique().tolist() if i not in seen]
    if unseen:
        raise ValueError(f"test_set holds classes without a training image: {', '.join(unseen)}")
    if len(seen) < 2:
        raise ValueError("train_set must hold at least 2 classes, got 1")
    return train_set.labels, test_set.labels


def _encoders(
    run: str | Path | TrainRun | backbones.Encoder, untrained: backbones.Encoder | None
) -> tuple[backbones.Encoder, backbones.Encoder]:
    if isinstance(run, backbones.Encoder):
        if untrained is None:
            raise ValueError("untrained must be given with an encoder: its row is always shown")
        return run, untrained
    if untrained is not None:
        raise ValueError("untrained applies to a bare encoder only: a run has its own")
    if isinstance(run, TrainRun):
        return run.encoder, run.untrained
    trained, first, _ = run_folder.load_encoders(run)
    return trained, first


def _overlap(train: list[bytes], test: list[bytes], itself: bool) -> int:
    known = set(train)
    count = sum(d in known for d in test)
    if itself:
        warnings.warn(
            "the set is scored on itself: kNN leaves each image out, the linear probe has seen every image",
            checks.ViewspanWarning, stacklevel=3,
        )  # fmt: skip
    elif count:
        warnings.warn(
            f"{count} of {len(test)} test images are also in the training set",
            checks.ViewspanWarning,
            stacklevel=3,
        )
    return count


def _capped(k: int, n: int) -> int:
    if k > n:
        warnings.warn(
            f"k={k} is more than the {n} training images: k={n} is used", checks.ViewspanWarning, stacklevel=3
        )
    return min(k, n)


def _published(
    kinds: Mapping[str, Callable[[Tensor], Tensor]],
    encoders: tuple[backbones.Encoder, backbones.Encoder],
    train_set: ImageSet,
    test_set: ImageSet,
    y: Tensor,
    y_test: Tensor,
    epochs: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """The authors' kind of probe for each row: unit embeddings for encoders (in train mode), pixels as they are."""
    shape, on = encoders[0].shape, next(encoders[0].parameters()).device

    def batch(held: ImageSet) -> Callable[[Tensor], Tensor]:
        def get(rows: Tensor) -> Tensor:
            images = held.images
            chosen = images[rows] if isinstance(images, Tensor) else [images[int(i)] for i in rows]
            return clean(ImageSet(chosen), slice(None), shape, on)

        return get

    out = {}
    for name, feature in kinds.items():
        modes = [e.training for e in encoders]
        buffers = [{k: v.clone() for k, v in e.state_dict().items()} for e in encoders]
        for e in encoders:
            e.train()
        norm = (lambda x, f=feature: nn.functional.normalize(f(x), dim=1)) if name != "pixels" else feature
        last, best = readout.published(
            norm, batch(train_set), y.to(on), batch(test_set), y_test.to(on),
            n_classes=len(train_set.classes), epochs=epochs, seed=seed,
        )  # fmt: skip
        for e, mode, state in zip(encoders, modes, buffers):
            e.load_state_dict(state)
            e.train(mode)
        out[name] = {"last": last, "best": best}
    return out
