"""ResNet-18 and MLP under `all` and `all-without-crop` on the full CIFAR-10, as many epochs as fit on one accelerator.

    python benchmarks/cifar10_gpu.py --data cifar10[:ROOT]|FOLDER --out DIR [--minutes 8.5] [--device cuda]

A trial of two epochs on a tenth of the images times each encoder; the minutes are then divided evenly over the four
runs. Each run is probed by both protocols and written as a record of the `cifar10` experiment, so `viewspan report DIR`
shows it; the table, images per second and peak memory are printed. Interrupted runs leave no record, finished ones stay.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from viewspan import records, runtime
from viewspan.experiments import cifar10

ENCODERS = ("resnet18", "mlp")
REGIMES = ("all", "all-without-crop")
PROBE_SHARE = 0.35  # of a run's time, for the two probes and the untrained and pixel rows


def settings(given: argparse.Namespace, encoder: str, views: str, **changes: Any) -> dict[str, Any]:
    base = {
        "data": given.data, "encoder": {"name": encoder}, "views": views, "device": given.device, "precision": given.precision,
        "threads": given.threads, "seed": 0, "profile": "paper", "batch_size": given.batch_size,
        "published_epochs": given.probe_epochs, "k": min(200, given.n_train or 200),
        "n_train": given.n_train, "n_test": given.n_test,
    }  # fmt: skip
    return cifar10.complete(base | changes)


def epochs_that_fit(given: argparse.Namespace, encoder: str, seconds: float) -> int:
    """Epochs in so many seconds, by a trial that includes what is done once, so a little fewer than could fit."""
    s = cifar10.Settings.model_validate(settings(given, encoder, "all", epochs=2))
    train_set, _ = cifar10.data(s.data, s.n_train, s.n_test)
    trial = cifar10.train(s, train_set.subset(range(0, len(train_set), 10)))
    return max(1, int(seconds * trial.images_per_second / len(train_set)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.5, help="of all runs together")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=runtime.cores())
    parser.add_argument("--batch-size", type=int, default=2000)
    parser.add_argument(
        "--probe-epochs", type=int, default=10, help="of the published kind of probe (there: 100)"
    )
    parser.add_argument("--n-train", type=int, help="fewer images, to try the script on a CPU")
    parser.add_argument("--n-test", type=int)
    given = parser.parse_args()
    start = time.monotonic()
    store = records.Store(given.out)
    fitting: dict[str, int] = {}
    runs = []
    todo = [(encoder, views) for encoder in ENCODERS for views in REGIMES]
    for i, (encoder, views) in enumerate(todo):
        left = 60 * given.minutes - (time.monotonic() - start)
        share = left / (len(todo) - i)
        if encoder not in fitting:
            fitting[encoder] = epochs_that_fit(given, encoder, share * (1 - PROBE_SHARE))
        record, arrays = cifar10.run(settings(given, encoder, views, epochs=fitting[encoder]))
        record = record.model_copy(update={"finished": time.time()})
        print(store.write(record, arrays), f"{record.seconds:.0f} s, {fitting[encoder]} epochs", flush=True)
        runs.append(record)
    document = cifar10.table(runs)
    document["peak_memory_gib"] = cifar10.peak(runs)
    print(json.dumps(records.jsonable(document), indent=1, allow_nan=False))


if __name__ == "__main__":
    main()
