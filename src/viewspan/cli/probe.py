"""`viewspan probe`."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from viewspan import records
from viewspan.cli import terminal
from viewspan.cli import vision as vision_cli

if TYPE_CHECKING:
    from viewspan.images import ImageSet


def probe(
    run: Path,
    data: str,
    *,
    test: str | None = None,
    encoder: str | None = None,
    k: int = 200,
    protocol: Literal["standard", "published"] = "standard",
    published_epochs: int = 100,
    seed: int = 0,
    limit: int | None = None,
    skip_bad: bool = False,
    device: vision_cli.Device = "auto",
    threads: int | None = None,
    fresh: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Linear probe and kNN of a trained run, beside raw pixels and the untrained encoder.

    Args:
        run: folder written by train.
        data: labelled training images, as in train.
        test: labelled test images; without it the folders train and test in data (or CIFAR-10's own parts) are used.
        encoder: package.module:name, if the run's encoder cannot be imported by name.
        k: neighbours that vote, at most the number of training images.
        protocol: published runs the authors' kind of probe beside (SGD .1, raw features, encoder in train mode).
        published_epochs: protocol published only: epochs of its SGD.
        seed: of the held-out rows and the SGD order.
        limit: fit on so many training images, drawn by the seed (those that train takes with the same two numbers).
        skip_bad: leave out files that cannot be decoded instead of refusing.
        device: where to compute.
        threads: CPU threads.
        fresh: probe again even if the run's folder holds this probe's record.
        json_: print one JSON document.
    """
    from viewspan import runtime, vision
    from viewspan.vision import backbones, drawing

    if published_epochs != 100 and protocol != "published":
        raise ValueError(f"published_epochs applies to protocol published only, got protocol {protocol}")
    with contextlib.redirect_stdout(sys.stderr):  # the user's code may print
        given = None if encoder is None else vision_cli.encoder(encoder)
        trained, untrained, settings = vision.load_encoders(run, given)
        train_set, test_set = _labelled_sets(data, test, limit=limit, seed=seed, skip_bad=skip_bad)
        for held in (train_set, test_set):
            print(held.summary(), file=sys.stderr)
        decides = {
            "run": settings, "weights": backbones.weights_digest(trained),
            "train": drawing.labelled_digest(train_set), "test": drawing.labelled_digest(test_set), "k": k,
            "protocol": protocol, "published_epochs": published_epochs, "seed": seed,
        }  # fmt: skip
        store = records.Store(run)
        record = None if fresh else store.find("probe", decides)
        if record is None:
            start = time.perf_counter()
            with runtime.threads(threads) as n_threads:
                result = vision.probe(
                    trained, train_set, test_set, untrained=untrained, k=k, protocol=protocol,
                    published_epochs=published_epochs, seed=seed, device=device,
                    on_row=lambda name, row: print(
                        f"{name}: linear probe {row.probe_accuracy:.3f}, kNN {row.knn_accuracy:.3f} "
                        f"({time.perf_counter() - start:.0f} s)", file=sys.stderr,
                    ),
                )  # fmt: skip
            record = records.Record(
                experiment="probe", settings=records.jsonable(decides), result=records.jsonable(result.as_dict()),
                environment=records.environment(
                    device=runtime.device(device).type, threads=n_threads, data=Path(train_set.source).name
                ),
                seconds=time.perf_counter() - start, finished=time.time(),
            )  # fmt: skip
            store.write(record)
        else:
            print("reused 1 of 1 (--fresh probes again)", file=sys.stderr)
    if json_:
        vision_cli.print_json({**record.result, "record": str(store.path("probe", decides))})
    else:
        _print_probe(record.result)


def _labelled_sets(
    data: str, test: str | None, *, limit: int | None, seed: int, skip_bad: bool
) -> tuple[ImageSet, ImageSet]:
    """The images to fit on and those to score."""
    from viewspan import images

    parts = data.partition(":")[0] == "cifar10" or (Path(data) / "train").is_dir()
    chosen = test is None and parts
    train_set = images.load(data, split="train" if chosen else None, skip_bad=skip_bad)
    if train_set.labels is None:
        raise ValueError(f"data {data} holds no labels: a probe needs class folders or labels")
    if test is None and not parts:
        raise ValueError(
            f"test must be given (--test DATA): {data} has no parts train and test; with --test {data} "
            "kNN leaves each image out of its own neighbours"
        )
    if limit is not None:
        train_set = vision_cli.limited(train_set, limit, seed)
    where = data if test is None else test
    test_set = images.load(
        where, split="test" if chosen else None, skip_bad=skip_bad, classes=train_set.classes
    )
    return train_set, test_set


def _print_probe(result: dict[str, Any]) -> None:
    """The table of rows."""
    import rich.table

    table = rich.table.Table("features", "linear probe", f"kNN (k = {result['k']})")
    published = result["published"]
    if published:
        table.add_column("published probe, last (best) epoch")
    for name, linear, near in (
        ("trained", "probe_accuracy", "knn_accuracy"),
        ("untrained", "untrained_accuracy", "untrained_knn_accuracy"),
        ("pixels", "pixels_accuracy", "pixels_knn_accuracy"),
    ):
        cells = [name, f"{result[linear]:.3f}", f"{result[near]:.3f}"]
        if published:
            cells.append(f"{published[name]['last']:.3f} ({published[name]['best']:.3f})")
        table.add_row(*cells)
    terminal.console().print(table)
    low, high = result["gain_interval"]
    print(
        f"trained − untrained {result['gain']:+.3f}, 95 % interval [{low:+.3f}, {high:+.3f}] over test images"
    )
    aside = "; scored on itself: the linear probe has seen every image" if result["leave_one_out"] else ""
    print(
        f"{result['n_train']} training and {result['n_test']} test images, {result['overlap']} in both{aside}"
    )
