"""The image experiment: its cells, one real run of each encoder on small pictures, and what its table claims."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from viewspan import experiments, records
from viewspan.experiments import cifar10, claims


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that differ in colour, 24 training and 10 test images each, 8 × 8."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for split, n in (("train", 24), ("test", 10)):
        for c, colour in enumerate(("blue", "red")):
            (root / split / colour).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 120, (8, 8, 3), dtype=np.uint8)
                pixels[..., 2 - 2 * c] += 120
                Image.fromarray(pixels).save(root / split / colour / f"{i}.png")
    return root


def settings(data: Path, encoder: str, **changes: Any) -> dict[str, Any]:
    size = {"width": 12, "layers": 1, "heads": 2, "hidden": 12} if encoder == "vit" else {}
    small = {
        "data": str(data), "encoder": {"name": encoder, **size}, "views": "crop", "n_train": 40, "epochs": 2,
        "batch_size": 20, "protocol": "published", "published_epochs": 2, "k": 5, "device": "cpu", "seed": 0,
        "profile": "quick",
    }  # fmt: skip
    return cifar10.complete(small | changes)


@pytest.fixture(scope="module")
def runs(pictures: Path) -> list[records.Record]:
    return [cifar10.run(settings(pictures, encoder))[0] for encoder in ("vit", "mlp")]


def test_a_run_has_every_row_and_is_repeatable(pictures: Path, runs: list[records.Record]) -> None:
    for record in runs:
        result = record.result
        for key in ("probe_accuracy", "knn_accuracy", "untrained_accuracy", "pixels_accuracy", "retrieval"):
            assert 0 <= result[key] <= 1, key
        assert result["gain"] == pytest.approx(result["probe_accuracy"] - result["untrained_accuracy"])
        assert result["gain_interval"][0] <= result["gain"] <= result["gain_interval"][1]
        assert set(result["under_published_probe"]) == {"trained", "untrained", "pixels"}
        assert result["pixels_accuracy"] == 1.0  # the classes are colours
        assert (result["n_train"], result["n_test"], result["steps"]) == (40, 20, 4)
        records.jsonable(record.model_dump())
    again, arrays = cifar10.run(settings(pictures, "mlp"))
    for key in ("probe_accuracy", "knn_accuracy", "training_loss", "retrieval", "gain_interval"):
        assert again.result[key] == runs[1].result[key]
    assert arrays["correct_trained"].mean() == again.result["probe_accuracy"]


def test_the_table_of_real_runs(runs: list[records.Record]) -> None:
    document = cifar10.table(runs)
    assert "a check that everything runs" in document["title"]
    assert [cell["encoder"] for cell in document["cells"]] == ["vit", "mlp"]
    assert document["cells"][0]["published"] == {"probe_accuracy": 0.41, "logged_accuracy": None}
    assert document["cells"][1]["published"] == {"probe_accuracy": 0.43, "logged_accuracy": 0.399}
    assert document["gaps"] == []
    assert {claim["verdict"] for claim in document["claims"]} == {"cannot tell"}
    for cell in document["cells"]:
        assert "over untrained; retrieval " in cell["diagnosis"]
    assert "of 2 cells lie above their untrained encoder" in document["sentences"][0]
    records.jsonable(document)


def test_data_that_is_not_there_is_refused_before_any_cell() -> None:
    with pytest.raises(ValueError, match=r"data must be cifar10.* got 'nosuch'"):
        cifar10.cells(data="nosuch")


def test_cells_of_both_profiles(tmp_path: Path) -> None:
    quick, paper = cifar10.cells("quick", data=str(tmp_path)), cifar10.cells("paper", seeds=2)
    assert len(quick) == 9
    assert len(paper) == 18
    assert {c.settings["encoder"]["name"] for c in quick} == set(cifar10.ENCODERS)
    for c in paper:
        s = c.settings
        assert (s["epochs"], s["batch_size"], s["n_train"]) == (200, 2000, None)
        assert (s["temperature"], s["lr"], s["weight_decay"], s["pairs"]) == (0.5, 3e-4, 1e-4, "clean-view")
    assert [c.settings["seed"] for c in paper] == [0] * 9 + [1] * 9
    sizes = {
        name: next(c.settings["encoder"] for c in cells if c.settings["encoder"]["name"] == "vit")
        for name, cells in (("quick", quick), ("paper", paper), ("cpu", cifar10.cells("cpu", seeds=1)))
    }
    assert (sizes["paper"]["patch"], sizes["paper"]["width"]) == (4, 384)
    assert sizes["quick"]["width"] < sizes["cpu"]["width"] < sizes["paper"]["width"]
    with pytest.raises(ValueError, match=r"encoder.mlp.patch: "):
        cifar10.complete({"encoder": {"name": "mlp", "patch": 4}, "views": "all", "seed": 0})
    with pytest.raises(ValueError, match="profile must be one of"):
        cifar10.cells("long")
    with pytest.raises(ValueError, match="epochs: "):
        cifar10.complete({"encoder": {"name": "mlp"}, "views": "all", "seed": 0, "epochs": 0})


def test_one_recipe_serves_the_nine_cells_of_a_profile() -> None:
    for profile in ("quick", "cpu", "paper"):
        cells = cifar10.cells(profile, seeds=1)
        recipes = {
            tuple(sorted((k, str(v)) for k, v in c.settings.items() if k not in ("encoder", "views")))
            for c in cells
        }
        assert len(cells) == 9
        assert len(recipes) == 1


KILLED = """
import sys
from viewspan import records
from viewspan import sweeps
from viewspan.experiments import cifar10
import json
settings = json.loads(sys.argv[1])
done = sweeps.run([sweeps.Cell("cifar10", settings)], cifar10.run, records.Store(sys.argv[2]))
assert not done.failed, done.failed
"""


def test_a_cell_killed_at_any_moment_goes_on_and_ends_as_if_it_had_not_been(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(pictures, "mlp", epochs=30, protocol="standard")
    whole, _ = cifar10.run(chosen)
    # a checkpoint after every step, so that a kill falls between, before and inside their writing
    program = KILLED.replace(
        "settings = ",
        "from viewspan import vision\nimport functools\n"
        "vision.train = functools.partial(vision.train, save_seconds=0)\nsettings = ",
    )
    command = [sys.executable, "-c", program, json.dumps(chosen), str(tmp_path)]
    store = records.Store(tmp_path)
    scratch, kills = store.scratch("cifar10", chosen), 0
    steps = [0]
    while kills < 3:
        running = subprocess.Popen(command)
        while running.poll() is None:
            at = max((int(p.stem[5:]) for p in scratch.glob("step-*.json")), default=0)
            if at >= steps[-1] + 5:
                running.kill()
                steps.append(at)
                kills += 1
                break
            time.sleep(0.005)
        assert running.wait() != 0, "the run ended before it could be killed"
        assert store.find("cifar10", chosen) is None
    assert subprocess.run(command, check=False).returncode == 0
    record = store.find("cifar10", chosen)
    assert record is not None
    assert record.result["training_loss"] == pytest.approx(whole.result["training_loss"], abs=1e-6)
    assert record.result["probe_accuracy"] == whole.result["probe_accuracy"]
    assert record.history["loss"] == pytest.approx(whole.history["loss"], abs=1e-6)
    assert not scratch.exists()


# --- the claims -------------------------------------------------------------------------------------------------


def invented(
    accuracy: dict[tuple[str, str], float], *, seeds: int = 1, below: tuple[str, ...] = (), n_test: int = 2000
) -> list[Any]:
    """Records with known accuracies: seed k adds k / 100 to every ResNet cell."""
    found = []
    for (encoder, views), seed in itertools.product(accuracy, range(seeds)):
        p = accuracy[encoder, views] + (0.01 * seed if encoder == "resnet18" else 0)
        gain = -0.05 if encoder in below else 0.1
        result = dict.fromkeys(cifar10.MEASURED, 0.5) | {
            "probe_accuracy": p, "gain": gain, "gain_interval": [gain - 0.02, gain + 0.02], "n_test": n_test,
            "weights": 1000, "no_signal": False, "under_published_probe": None,
        }  # fmt: skip
        given = {"encoder": {"name": encoder}, "views": views, "seed": seed, "profile": "paper"}
        found.append(records.Record(experiment="cifar10", settings=cifar10.complete(given), result=result))
    return found


FIGURE = {
    (e, v): experiments.published()["figure3_cifar10_linear_probe_percent"][e][v.replace("-", "_")] / 100
    for e in cifar10.ENCODERS
    for v in cifar10.REGIMES
}


def judged(accuracy: dict[tuple[str, str], float], **how: Any) -> dict[str, dict[str, Any]]:
    return {claim["claim"]: claim for claim in cifar10.table(invented(accuracy, **how))["claims"]}


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_published_figure_gives_its_own_differences(seeds: int) -> None:
    document = cifar10.table(invented(FIGURE, seeds=seeds))
    gaps = {entry["name"]: entry for entry in document["gaps"]}
    offset = 0.01 * (seeds - 1) / 2
    for name, gap in {
        "resnet18 − mlp, all": 0.14, "resnet18 − mlp, crop": -0.06, "resnet18 − mlp, all-without-crop": 0.02,
        "resnet18 − vit, all": 0.02, "resnet18 − vit, crop": -0.04, "resnet18 − vit, all-without-crop": 0.01,
    }.items():  # fmt: skip
        assert gaps[name]["mean"] == pytest.approx(gap + offset)
        assert gaps[name]["published"]["figure"] == pytest.approx(gap)
        assert gaps[name]["runs"]["sd"] == (None if seeds == 1 else pytest.approx(0.01))
    widened = next(c for c in document["claims"] if c["claim"] == "gap_widens")["differences"]
    changes = {entry["name"]: entry for entry in widened}
    change = changes["resnet18 − mlp, crop against all"]
    assert change["mean"] == pytest.approx(-0.20)  # the offset of every seed drops out
    assert change["published"]["logged"] == pytest.approx(-0.158)
    assert changes["resnet18 − vit, crop against all"]["published"]["logged"] is None


def test_the_interval_of_one_seed_comes_from_the_test_images() -> None:
    document = cifar10.table(invented(FIGURE))
    entry = next(e for e in document["gaps"] if e["name"] == "resnet18 − mlp, crop")
    error = (0.37 * 0.63 / 2000 + 0.43 * 0.57 / 2000) ** 0.5
    assert entry["interval"] == pytest.approx([-0.06 - 1.95996 * error, -0.06 + 1.95996 * error], abs=1e-5)


def test_the_interval_of_several_seeds_pools_their_spread_over_the_cells() -> None:
    document = cifar10.table(invented(FIGURE, seeds=3))
    # three ResNet cells with sd .01 and six cells without: 2 degrees of freedom each
    sd, freedom = claims.pooled(document["cells"])
    assert (sd, freedom) == (pytest.approx((3 * 2 * 0.01**2 / 18) ** 0.5), 18)
    entry = next(e for e in document["gaps"] if e["name"] == "resnet18 − mlp, crop")
    images = 1.95996 * (0.38 * 0.62 / 2000 + 0.43 * 0.57 / 2000) ** 0.5
    half = np.hypot(images, 2.10092 * sd * (2 / 3) ** 0.5)
    assert entry["interval"][1] - entry["mean"] == pytest.approx(half, abs=1e-5)


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Planted accuracies, seeds that move them, binomial test images: 95 % intervals, and no more false verdicts than 5 %."""
    rng = np.random.default_rng(0)
    truth = {(e, v): 0.5 for e in cifar10.ENCODERS for v in cifar10.REGIMES}
    covered, refuted, n = [], 0, 400
    for _ in range(n):
        found = []
        for record in invented(truth, seeds=2, n_test=1000):
            p = 0.5 + 0.01 * rng.standard_normal()
            record.result["probe_accuracy"] = rng.binomial(1000, p) / 1000
            found.append(record)
        document = cifar10.table(found)
        covered += [e["interval"][0] <= 0 <= e["interval"][1] for e in document["gaps"]]
        refuted += any(c["verdict"] in ("holds", "not so") for c in document["claims"])
    assert np.mean(covered) > 0.94  # wider than need be: every seed here has test images of its own
    assert refuted / n < 0.05 + 3 * (0.05 * 0.95 / n) ** 0.5


RIGHT = {
    ("resnet18", "all"): 0.60, ("vit", "all"): 0.55, ("mlp", "all"): 0.50,
    ("resnet18", "crop"): 0.50, ("vit", "crop"): 0.40, ("mlp", "crop"): 0.30,
    ("resnet18", "all-without-crop"): 0.50, ("vit", "all-without-crop"): 0.40, ("mlp", "all-without-crop"): 0.30,
}  # fmt: skip


def test_claims_hold_are_refuted_or_are_left_open() -> None:
    assert {name: c["verdict"] for name, c in judged(RIGHT, n_test=10_000).items()} == {
        "diverse_best": "holds", "order": "holds", "gap_widens": "holds",
    }  # fmt: skip
    few = judged(RIGHT, n_test=100)
    assert {c["verdict"] for c in few.values()} == {"not decided"}
    assert "not told from zero: resnet18: all − crop +10.0 [-3.7, +23.7]" in few["diverse_best"]["reason"]
    figure = judged(FIGURE, n_test=10_000)
    # the MLP's bar is higher under crop, but not beyond its error
    assert figure["diverse_best"]["verdict"] == "not decided"
    assert figure["gap_widens"]["verdict"] == "not so"
    assert "against it: resnet18 − mlp, crop against all -20.0 [" in figure["gap_widens"]["reason"]


def test_cells_that_are_not_above_untrained_or_were_not_run_judge_nothing() -> None:
    below = judged(RIGHT, n_test=10_000, below=("mlp",))
    assert {c["verdict"] for c in below.values()} == {"cannot tell"}
    assert "not above their untrained encoder: mlp all, mlp all-without-crop" in below["order"]["reason"]
    part = judged({key: p for key, p in RIGHT.items() if key[1] != "crop"}, n_test=10_000)
    assert part["order"]["verdict"] == "cannot tell"
    assert part["order"]["reason"] == "cells not run: 2 of 6 differences lack one"


def test_sentences_give_gaps_claims_and_what_the_figure_says_itself() -> None:
    said = cifar10.table(invented(FIGURE, n_test=10_000))["sentences"]
    assert any(s.startswith("resnet18 − mlp: all +14.0 [") and "figure +14, logged +13.1" in s for s in said)
    assert any(s.startswith("the gap between encoders widens as diversity shrinks: not so (") for s in said)
    assert "figure +14, -6, +2; logged runs +13.1, -2.7, +2.5" in said[-1]


def test_interval_of_several_seeds_keeps_the_spread_over_images() -> None:
    one = claims.gain_interval(np.array([[0.08, 0.12]]), 0.1, (0.0, 0))
    assert one == [0.08, 0.12]
    same = claims.gain_interval(np.array([[0.08, 0.12]] * 4), 0.1, (0.0, 27))
    assert same == pytest.approx([0.08, 0.12])  # more seeds on the same test images do not narrow it
    apart = claims.gain_interval(np.array([[0.03, 0.07], [0.13, 0.17]]), 0.1, (0.05, 9))
    assert apart[1] - apart[0] == pytest.approx(2 * np.hypot(0.02, 2.26216 * 0.05 / 2**0.5), abs=1e-5)
