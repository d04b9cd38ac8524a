"""The probe's readouts beside scikit-learn's solver: accuracy and time on the same features.

    python benchmarks/probe.py --data FOLDER [--limit N] [--threads 2] [--json]

FOLDER holds train/ and test/ in class folders. For raw pixels and for the features of an untrained ResNet-18 it times
the logistic regression (with its search for the penalty), the nearest neighbours, and `LogisticRegression` of
scikit-learn at the penalty that the search chose, without a search of its own; times are of one run each.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from viewspan import images, runtime, vision
from viewspan.vision import backbones, readout
from viewspan.vision.probe import features

T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    out = call()
    return out, time.perf_counter() - start


def compare(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, n_classes: int) -> dict[str, Any]:
    fit, seconds = timed(lambda: readout.logistic(x, y, x_test, y_test, n_classes=n_classes, seed=0))
    votes, knn_seconds = timed(
        lambda: readout.knn(x, y, x_test, y_test, k=min(200, len(x)), n_classes=n_classes)
    )
    mean, scale = x.mean(0), x.std(0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    a, b = (((v - mean) / scale).numpy() for v in (x, x_test))
    model = LogisticRegression(C=1 / (fit.penalty * len(x)), max_iter=2000, tol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, theirs_seconds = timed(lambda: model.fit(a, y.numpy()))
    theirs = float(model.score(b, y_test.numpy()))
    return {
        "features": x.shape[1], "penalty": fit.penalty, "accuracy": float(fit.correct.mean()), "sklearn_accuracy": theirs,
        "difference": float(fit.correct.mean()) - theirs, "seconds": seconds, "knn_seconds": knn_seconds,
        "knn_accuracy": votes.accuracy, "sklearn_seconds": theirs_seconds, "ratio": theirs_seconds / seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--threads", type=int, default=runtime.cores())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    train = images.load(given.data / "train", limit=given.limit)
    test = images.load(given.data / "test", classes=train.classes, limit=given.limit)
    if train.labels is None or test.labels is None:
        raise SystemExit(f"{given.data} must hold class folders")
    encoder = backbones.build(vision.resnet18, (3, 32, 32), head="none", seed=0).eval()
    on = torch.device("cpu")
    found = {}
    with runtime.threads(given.threads):
        for name, feature in (("pixels", lambda x: x.flatten(1)), ("untrained resnet18", encoder.features)):
            x, x_test = (features(feature, held, encoder.shape, on) for held in (train, test))
            found[name] = compare(x, train.labels, x_test, test.labels, len(train.classes))
            if not given.json:
                r = found[name]
                print(
                    f"{name}: {len(x)} × {r['features']}, accuracy {r['accuracy']:.4f} (scikit-learn {r['difference']:+.4f} "
                    f"away), {r['ratio']:.1f} times scikit-learn's speed; {r['seconds']:.0f} s with the penalty's search, "
                    f"kNN {r['knn_seconds']:.0f} s",
                    flush=True,
                )
    if given.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
