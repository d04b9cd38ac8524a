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
from viewspan.experiments import cifar10, interaction


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
    assert document["interaction"] == []
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
from viewspan.experiments import cells, cifar10, sweep
import json
settings = json.loads(sys.argv[1])
done = sweep.run([cells.Cell("cifar10", settings)], cifar10.run, records.Store(sys.argv[2]))
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


# --- the interaction ----------------------------------------------------------------------------------------------


def invented(
    accuracy: dict[tuple[str, str], float], *, seeds: int = 1, below: tuple[str, ...] = ()
) -> list[Any]:
    """Records with known accuracies: seed k adds k / 100 to every ResNet cell."""
    found = []
    for (encoder, views), seed in itertools.product(accuracy, range(seeds)):
        p = accuracy[encoder, views] + (0.01 * seed if encoder == "resnet18" else 0)
        gain = -0.05 if encoder in below else 0.1
        result = dict.fromkeys(cifar10.MEASURED, 0.5) | {
            "probe_accuracy": p, "gain": gain, "gain_interval": [gain - 0.02, gain + 0.02], "n_test": 2000,
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


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_published_figure_gives_its_own_differences(seeds: int) -> None:
    found = cifar10.table(invented(FIGURE, seeds=seeds))["interaction"]
    mine = {(e["encoders"][1], e["views"]): e for e in found}
    offset = 0.01 * (seeds - 1) / 2
    for (other, views), (gap, change) in {
        ("mlp", "all"): (0.14, None), ("mlp", "crop"): (-0.06, -0.20), ("mlp", "all-without-crop"): (0.02, -0.12),
        ("vit", "all"): (0.02, None), ("vit", "crop"): (-0.04, -0.06), ("vit", "all-without-crop"): (0.01, -0.01),
    }.items():  # fmt: skip
        entry = mine[other, views]
        assert entry["gap"]["mean"] == pytest.approx(gap + offset)
        assert entry["gap"]["sd"] == (None if seeds == 1 else pytest.approx(0.01))
        assert entry["published"]["figure_gap"] == pytest.approx(gap)
        if change is None:
            assert entry["change"] is None
        else:
            assert entry["change"]["mean"] == pytest.approx(change)  # the offset of every seed drops out
            assert entry["published"]["figure_change"] == pytest.approx(change)
    assert mine["mlp", "crop"]["published"]["logged_change"] == pytest.approx(-0.158)
    assert mine["vit", "crop"]["published"]["logged_change"] is None


def test_error_of_one_seed_comes_from_the_test_images() -> None:
    found = cifar10.table(invented(FIGURE))["interaction"]
    entry = next(e for e in found if e["encoders"][1] == "mlp" and e["views"] == "crop")
    right = sum(p * (1 - p) / 2000 for p in (0.37, 0.43, 0.56, 0.42)) ** 0.5
    assert entry["change"]["error"] == pytest.approx(right)


def verdicts(accuracy: dict[tuple[str, str], float], **how: Any) -> dict[str, str]:
    found = cifar10.table(invented(accuracy, **how))["sentences"]
    lines = [text for text in found if "the gap resnet18 − mlp changes" in text]
    return dict(zip(("crop", "all-without-crop"), lines))


def test_sentences_say_holds_narrows_or_cannot_be_told() -> None:
    wider = FIGURE | {
        ("resnet18", "crop"): 0.75,
        ("mlp", "crop"): 0.30,
        ("resnet18", "all-without-crop"): 0.453,
    }
    said = verdicts(wider)
    assert "holds here" in said["crop"]
    assert "changes by +31.0" in said["crop"]
    assert "no interaction can be told from noise" in said["all-without-crop"]
    assert "does not hold here; the gap narrows" in verdicts(FIGURE)["crop"]
    assert all("not judged" in text for text in verdicts(FIGURE, below=("mlp",)).values())
    assert "holds in 3 of 4 changes" in cifar10.table(invented(wider))["sentences"][-2]
    assert "is not said" in cifar10.table(invented(FIGURE, below=("resnet18",)))["sentences"][-2]
    text = cifar10.table(invented(FIGURE))["sentences"][-1]
    assert "figure +14, -6, +2; logged runs +13.1, -2.7, +2.5" in text
    assert "± 0.0 (sd)" in verdicts(FIGURE, seeds=3)["crop"]


def test_interval_of_several_seeds_keeps_the_spread_over_images() -> None:
    one = interaction.mean_interval([0.1], np.array([[0.08, 0.12]]))
    assert one == [0.08, 0.12]
    same = interaction.mean_interval([0.1] * 4, np.array([[0.08, 0.12]] * 4))
    assert same == pytest.approx([0.08, 0.12])  # more seeds on the same test images do not narrow it
    apart = interaction.mean_interval([0.05, 0.15], np.array([[0.03, 0.07], [0.13, 0.17]]))
    assert apart[1] - apart[0] == pytest.approx(2 * np.hypot(0.02, 1.96 * 0.05))
