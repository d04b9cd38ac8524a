"""Records as the program writes them, made without training, for the report's tests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from viewspan import records
from viewspan.records import Record, Store

HOSTILE = '<script>document.title="run"</script><img src=x onerror="document.title=1"> & \u6f22\u5b57 \u0420\u0443\u0441 \u202eabc'
FLOOR = -1.8984


def anchors(dim: int = 3) -> np.ndarray:
    z = np.random.default_rng(0).normal(size=(1000, dim))
    return (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)


def recovered(kind: str, z: np.ndarray, seed: int) -> np.ndarray:
    """Maps of known kinds, each followed by a rotation."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    if kind == "isometry":
        h = z + 0.01 * rng.normal(size=z.shape)
    elif kind == "squeezed":
        h = z * [1, 0.73, 0.73]
    elif kind == "great subspheres":
        h = z * [0, 1, 1] + 1e-9
    else:  # spreading: a function of the held coordinate alone
        t, a = z[:, 0], 40 * z[:, 0]
        h = np.stack([t, np.sqrt(1 - t**2) * np.cos(a), np.sqrt(1 - t**2) * np.sin(a)], axis=1)
    h = h / np.linalg.norm(h, axis=1, keepdims=True)
    return (h @ turn).astype(np.float32)


KINDS = {
    ("holds", "standard", "mlp"): ("isometry", 0.998, 0.02, -0.905),
    ("violated", "standard", "mlp"): ("spreading", 0.1, 0.64, -1.86),
    ("violated", "corrected", "mlp"): ("great subspheres", 0.62, 0.31, -0.91),
    ("violated", "standard", "inverse"): ("squeezed", 0.994, 0.094, -1.549),
}


def run(store: Store, experiment: str, seed: int, settings: dict[str, Any], *, arrays: bool = True) -> None:
    """One synthetic run with plausible numbers."""
    s = {
        "process": "identity", "pairs": "violated", "loss": "standard", "encoder": "mlp", "convention": "subsphere",
        "dim": 3, "rho": 0.0, "n_fixed": 1, "share": 0.0, "steps": 400, "batch_size": 512, "group_size": None,
        "profile": "quick", **settings, "seed": seed,
    }  # fmt: skip
    kind, r2, ape, loss = KINDS.get((s["pairs"], s["loss"], s["encoder"]), ("unresolved", 0.5, 0.4, -1.2))
    noise = np.random.default_rng(seed).normal()
    r2 = float(np.clip(settings.pop("r2", r2) + 0.004 * noise, 0, 1))
    s.pop("r2", None)
    steps = [*range(0, 400, 10), 399]
    if s["loss"] == "corrected":
        s["group_size"] = 25
    offset = math.log(24 if s["loss"] == "corrected" else 511)
    relative = [loss + (0 - loss) * math.exp(-t / 60) + 0.01 * math.sin(t + seed) for t in steps]
    history = {
        "step": steps,
        "loss": [offset + value for value in relative],
        "loss_minus_log_m": relative,
        "alignment": [None] * len(steps),
    }
    result = {
        "r2": r2, "mcc": 0.8, "ape": ape, "loss_minus_log_m": loss, "m": 2000, "diagnosis": kind,
        "above_floor": loss - FLOOR if s["loss"] == "standard" else None,
        "sentence": f"The map is {kind}: R² {r2:.3f}.",
        "predicted": {"loss_minus_log_m": loss - 0.002, "r2": r2, "ape": ape} if s["process"] == "identity" else None,
        "published": {"r2": round(r2, 2), "mcc": 0.78, "ape": ape / 2, "loss": 5.7, "loss_minus_log_m": loss - 0.01},
    }  # fmt: skip
    z = anchors()
    store.write(
        Record(
            experiment=experiment, settings=s, result=result, history=history, seconds=2.0, finished=1.79e9 + seed,
            environment=records.environment(device="cpu", precision="float32", threads=1),
        ),
        {"z": z, "h": recovered(kind, z, seed)} if arrays else None,
    )  # fmt: skip


def table1(folder: Path, seeds: int = 2) -> None:
    store = Store(folder)
    for process in ("identity", "linear", "spiral", "patches", "invertible_mlp"):
        for pairs, loss, encoder in KINDS:
            if not (process == "invertible_mlp" and encoder == "inverse"):
                for seed in range(seeds):
                    run(
                        store,
                        "table1",
                        seed,
                        {"process": process, "pairs": pairs, "loss": loss, "encoder": encoder},
                    )


def curves(folder: Path) -> None:
    store = Store(folder)
    for seed in range(2):
        for rho in np.linspace(0, 1, 11).round(1).tolist():
            for encoder in ("mlp", "inverse"):
                loss = "standard" if rho == 0 else "corrected" if rho == 1 else "mixed"
                r2 = (0.05 + 0.6 * rho) if encoder == "mlp" else 1 - 0.4 * rho**6
                run(
                    store, "rho", seed, {"rho": rho, "encoder": encoder, "loss": loss, "r2": r2}, arrays=False
                )
        for held in (0, 1, 3, 5, 9, 10):
            s = {
                "n_fixed": held,
                "dim": 10,
                "process": "linear",
                "r2": 0.97 if held == 0 else 0.3 - 0.02 * held,
            }
            run(store, "progressive", seed, s, arrays=False)
        for share in (0.0, 0.02, 0.1):
            for loss in ("tagged", "standard"):
                s = {
                    "share": share,
                    "loss": loss,
                    "pairs": "tagged",
                    "r2": 0.99 if loss == "tagged" and share else 0.2,
                }
                run(store, "tagged", seed, s, arrays=False)
        for share in (0.0, 0.05, 0.1, 0.2, 0.4):
            run(
                store,
                "dose",
                seed,
                {"share": share, "sigma": 0.0, "pairs": "mixture", "r2": min(1, 3 * share)},
                arrays=False,
            )
        for sigma in (0.1, 0.4):
            run(
                store,
                "dose",
                seed,
                {"share": 0.0, "sigma": sigma, "pairs": "jittered", "r2": sigma},
                arrays=False,
            )


def audit_document(views: str = "crop", **more: Any) -> dict[str, Any]:
    names = ["hue", "saturation", "brightness", "vertical centre", HOSTILE]
    iccs = [1.0, 0.92, 0.43, 0.01, None]
    verdicts = ["never seen to move", "weakly", "moved", "moved", "not measurable here"]
    factors = [
        {
            "name": n, "kind": "numeric", "icc": i, "interval": None if i is None else [i - 0.03, min(1.0, i + 0.02)],
            "moved_share": None if i is None else 1 - i, "reach": 0.3, "verdict": v, "n_anchors": 300, "undefined": 0,
            "form": "ICC(1)", "reason": "the factor does not vary in the data" if i is None else "",
        }
        for n, i, v in zip(names, iccs, verdicts, strict=True)
    ]  # fmt: skip
    return {
        "schema": "viewspan-audit-1", "verdict": "diversity fails", "sentence": f"diversity fails: {HOSTILE}",
        "source": "photos", "views": views, "factors": factors,
        "support": {
            "views_dim": 4.1, "views_interval": [3.8, 4.4], "data_dim": 26.3, "data_interval": [25.0, 27.5], "deficit": 22.2,
            "copies": 0, "displacement_rank": None, "tangent_rank": None, "reason": "",
        },
        "held_directions": [
            {"status": "held", "share": 0.0004, "sigma": 0.01, "correlations": {"hue": 0.98, "x": None}, "vector": [1.0]}
        ],
        "held": {"sentence": "one direction is held", "shares": [0.0], "floor": "given", "detectable": 0.01, "rank": 8},
        "operations": [
            {
                "name": name, "alone": dict(zip(names, shares, strict=True)), "without": {},
                "only_mover_of": only, "fired": fired,
            }
            for name, shares, only, fired in [
                ("RandomResizedCrop", [0.0, 0.08, 0.17, 0.9, None], ["vertical centre"], 1.0),
                ("ColorJitter", [0.3, 0.5, 0.6, 0.0, None], ["hue", "saturation"], 0.8),
                (HOSTILE, [0.0, 0.0, 0.0, 0.0, None], [], 0.0),
            ]
        ],
        "lint": [{"id": "never-fires", "message": HOSTILE, "fix": "Raise p.", "operation": "Blur"}],
        "n_anchors": 300, "n_views": 16, "duplicates": 1, "duplicate_groups": [["a.png", "b.png"]],
        "skipped": [{"name": "d.png", "reason": "not an image"}], "notes": ["Linear directions only."],
        "gates": [{"requires": "moved", "factor": "hue", "share": 0.1, "met": False, "reason": "1 - ICC is 0"}],
        "pipelines": [], "comparison": {"sentence": "all moves hue, crop does not."}, "theory": None, "settings": {},
        **more,
    }  # fmt: skip


def audits(folder: Path) -> None:
    document = audit_document(pipelines=[audit_document("all")])
    views = np.random.default_rng(0).integers(0, 256, size=(3, 5, 3, 32, 32)).astype(np.uint8)
    record = Record(
        experiment="audit", settings={"data": "photos", "views": "crop", "seed": 0}, result=document, seconds=20.0,
        finished=1.79e9, environment=records.environment(device="cpu"),
    )  # fmt: skip
    Store(folder).write(record, {"example_views": views})


def images(folder: Path) -> None:
    store = Store(folder)
    base = {"resnet18": 0.5, "mlp": 0.42, "vit": 0.47}
    for encoder, high in base.items():
        for i, views in enumerate(("crop", "all-without-crop", "all")):
            for seed in range(2):
                settings = {
                    "encoder": {"name": encoder, **({"width": 64} if encoder == "vit" else {})},
                    "views": views,
                    "data": "cifar10",
                    "profile": "quick",
                    "seed": seed,
                }
                probe = high - 0.1 + 0.05 * i + 0.01 * seed
                result = {
                    "probe_accuracy": probe, "knn_accuracy": probe - 0.05, "untrained_accuracy": 0.42,
                    "pixels_accuracy": 0.39, "n_train": 10000, "n_test": 2000, "gain": probe - 0.42,
                    "gain_interval": [probe - 0.44, probe - 0.4], "published": {"probe_accuracy": high + 0.05 * i},
                }  # fmt: skip
                store.write(
                    Record(
                        experiment="cifar10", settings=settings, result=result, seconds=60.0, finished=1.79e9,
                        environment=records.environment(device="cpu"),
                        history={"epoch": [0, 1, 2], "loss": [5.0, 4.5, 4.2], "loss_minus_log_m": [-0.2, -0.7, -1.0]},
                    )
                )  # fmt: skip


def everything(folder: Path) -> None:
    table1(folder / "table1")
    curves(folder / "curves")
    audits(folder / "audit")
    images(folder / "images")
    own = Record(
        experiment="own", settings={"name": HOSTILE, "seed": 0}, result={"score": 0.5, "text": HOSTILE}
    )
    Store(folder / "own").write(own)
    (folder / "own" / "broken.json").write_text("{")
    (folder / "own" / "<b>other.json").write_text('{"a": 1}')
