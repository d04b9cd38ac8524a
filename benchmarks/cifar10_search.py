"""The search behind the `cpu` profile of the CIFAR-10 experiment: one cell, ResNet-18 under `all`, one change at a time.

    python benchmarks/cifar10_search.py --data FOLDER --out DIR [--epochs 5] [--jobs 2]

Every trial trains on all images for the same few epochs with the learning rate falling to 0, and is judged by the
linear probe on a fifth of the training images that it did not train on: the test set is not looked at. Each trial of a round
changes one thing about the best trial of the rounds before. Interrupted trials go on where they stopped; finished ones are reused.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from viewspan import images, records, runtime, sweeps, vision
from viewspan.experiments import cifar10
from viewspan.sweeps import Cell

START: dict[str, Any] = {
    "batch_size": 256, "lr": 1e-3, "temperature": 0.5, "pairs": "two-views", "head": "none", "weight_decay": 1e-4,
}  # fmt: skip
ROUNDS: list[list[dict[str, Any]]] = [
    [{}, {"temperature": 0.2}],
    [{"head": "mlp"}, {"lr": 3e-3}],
    [{"temperature": 0.1}, {"batch_size": 128}],
    [{"pairs": "clean-view"}, {"weight_decay": 0.0}],
]


def trial(
    settings: dict[str, Any], scratch: Path | None = None
) -> tuple[records.Record, dict[str, np.ndarray]]:
    """Train on four fifths of the training images, probe on the last fifth."""
    s = cifar10.Settings.model_validate(settings)
    whole = images.load(s.data, split="train")
    order = np.random.default_rng(0).permutation(len(whole))
    held, kept = (
        whole.subset(np.sort(order[: len(whole) // 5])),
        whole.subset(np.sort(order[len(whole) // 5 :])),
    )
    run = cifar10.train(s, kept, scratch)
    start = time.perf_counter()
    with runtime.threads(s.threads):
        read = vision.probe(run, kept, held, device=s.device)
    result = {key: getattr(read, key) for key in ("probe_accuracy", "knn_accuracy", "untrained_accuracy")}
    result |= {"training_loss": run.loss, "images_per_second": run.images_per_second}
    record = records.Record(
        experiment="cifar10_search", settings=settings, result=result, history=run.history,
        environment=records.environment(precision=run.settings["precision"], threads=s.threads),
        seconds=s.epochs * len(kept) / run.images_per_second + time.perf_counter() - start,
    )  # fmt: skip
    return record, {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    store = records.Store(given.out)
    best: dict[str, Any] = {}
    score = -1.0

    for number, changes in enumerate(ROUNDS, 1):
        trials = [START | best | change for change in changes]
        cells = [
            Cell("cifar10_search", cifar10.complete({
                "data": given.data, "encoder": {"name": "resnet18"}, "views": "all", "schedule": "cosine", "seed": 0,
                "epochs": given.epochs, "precision": "auto", "profile": "search", **chosen,
            }))
            for chosen in trials
        ]  # fmt: skip
        done = sweeps.run(cells, trial, store, jobs=given.jobs)
        for outcome in done.failed:
            print(f"failed: {outcome.name}: {outcome.error}", flush=True)
        for record in done.records:
            chosen = {key: record.settings[key] for key in START}
            r = record.result
            print(
                f"round {number}: {chosen}  probe {r['probe_accuracy']:.4f}  kNN {r['knn_accuracy']:.4f}  "
                f"untrained {r['untrained_accuracy']:.4f}  loss {r['training_loss']:.4f}  {record.seconds:.0f} s",
                flush=True,
            )
        for record in done.records:
            if record.result["probe_accuracy"] > score:
                best = {key: record.settings[key] for key in START}
                score = record.result["probe_accuracy"]
    print(f"best: {best}, probe {score:.4f} on held-out training images", flush=True)


if __name__ == "__main__":
    main()
