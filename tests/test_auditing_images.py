"""Auditing view pipelines on images: planted factors, operations, comparison, odd inputs."""

from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image

import viewspan as vs
from test_cli_audit import document, error, run, schema
from viewspan import images, testing
from viewspan.auditing import Sampling, factors
from viewspan.images import operations
from viewspan.images.views import ViewPipeline

SMALL = Sampling(
    n_anchors=60, n_views=6, support_anchors=0, operation_anchors=0, operation_views=4, resamples=200
)


def pipeline(**steps: object) -> ViewPipeline:
    return ViewPipeline("mine", tuple(steps.items()))


def save(folder: Path, pictures: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, pixels in pictures.items():
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


@pytest.fixture(scope="module")
def shapes() -> images.ImageSet:
    return images.load(testing.shapes(80, n_views=1).images[:, 0])


@pytest.mark.parametrize("frozen", [(), *[(name,) for name in testing.SHAPE_FACTORS], ("scale", "hue")])
def test_each_frozen_factor_of_rendered_shapes_is_named_and_no_other(frozen: tuple[str, ...]) -> None:
    moved = [name for name in testing.SHAPE_FACTORS if name not in frozen]
    data = testing.shapes(100, n_views=5, moved=moved)
    report = vs.audit(data.images, factors=list(data.expected), sampling=SMALL)
    assert {f.name: f.verdict for f in report.factors} == data.expected


def test_factors_see_what_they_are_named_for() -> None:
    x = torch.from_numpy(testing.render(0.2, 0.8, 0.5, 0.1, 0.25)).float()[None] / 255
    names = ["horizontal_centre", "vertical_centre", "left_right", "top_bottom", "orientation", "hue"]
    plain, flipped = factors.measure(x, names), factors.measure(x.flip(3), names)
    for name in ("horizontal_centre", "left_right"):
        assert flipped[name] == pytest.approx(-plain[name], abs=1e-5)
    for name in ("vertical_centre", "top_bottom", "hue"):
        assert flipped[name] == pytest.approx(plain[name], abs=1e-5)
    assert plain["horizontal_centre"][0] < 0 < plain["vertical_centre"][0]
    assert flipped["orientation"][0] == pytest.approx(plain["orientation"][0] * [1, -1], abs=1e-5)
    turned = factors.measure(operations.adjust_hue(x, 0.25), ["hue"])["hue"][0]
    assert abs(float(turned @ plain["hue"][0])) < 0.2  # a quarter turn


def test_geometry_does_not_see_gain_or_colour() -> None:
    x = torch.from_numpy(testing.render(0.2, 0.8, 0.5, 0.1, 0.25)).float()[None] / 255
    names = ["horizontal_centre", "vertical_centre", "spread", "left_right", "orientation", "sharpness"]
    plain, dim = factors.measure(x, names), factors.measure(0.4 * x, names)
    for name in names:
        assert dim[name] == pytest.approx(plain[name], abs=1e-4)


def test_crop_moves_position_and_jitter_moves_colour(shapes: images.ImageSet) -> None:
    crop, jitter = pipeline(crop=operations.Crop(area=(0.5, 1))), pipeline(jitter=operations.Jitter(p=1.0))
    moved = {
        name: {f.name: f.verdict for f in vs.audit(shapes, views=p, sampling=SMALL).factors}
        for name, p in (("crop", crop), ("jitter", jitter))
    }
    assert moved["crop"]["horizontal_centre"] == moved["jitter"]["hue"] == "moved"
    assert moved["crop"]["hue"] == "never seen to move"
    assert moved["jitter"]["horizontal_centre"] != "moved"


def test_operation_matrix_names_the_only_mover(shapes: images.ImageSet) -> None:
    both = pipeline(
        crop=operations.Crop(area=(0.5, 1)), jitter=operations.Jitter(p=1.0), flip=operations.Flip(p=0.0)
    )
    report = vs.audit(shapes, views=both, sampling=Sampling(**{**SMALL.__dict__, "operation_anchors": 30}))
    by_name = {o.name: o for o in report.operations}
    assert set(by_name) == {"crop", "jitter", "flip"}
    assert "hue" in by_name["jitter"].only_mover_of
    assert "horizontal_centre" in by_name["crop"].only_mover_of
    assert by_name["flip"].only_mover_of == ()
    assert by_name["flip"].fired == 0
    assert by_name["jitter"].fired > 0.9
    assert by_name["crop"].alone["hue"] == pytest.approx(0, abs=0.01)
    assert [f.operation for f in report.lint if f.id == "never-fires"] == ["flip"]
    jsonschema.validate(report.to_json(), schema())


def test_comparison_and_says_that_content_is_held_once(shapes: images.ImageSet) -> None:
    sampling = Sampling(**{**SMALL.__dict__, "support_anchors": 3, "support_views": 250})
    everything = ViewPipeline(
        "everything", (("crop", operations.Crop()), ("jitter", operations.Jitter(p=1.0)))
    )
    report = vs.audit(shapes, views=["crop", everything], sampling=sampling, require_moved=["hue"])
    (other,) = report.others
    assert report.sentence.count("same content") == 1
    assert "same content" not in other.sentence
    assert report.support.views_dim is not None
    assert other.support.views_dim is not None
    assert report.support.views_dim < other.support.views_dim
    assert report.comparison is not None
    (row,) = report.comparison["pipelines"]
    assert row["views"] == "everything"
    assert "hue" in row["moves_that_first_does_not"]
    assert "deficit" not in report.comparison["sentence"]  # which pipeline is better depends on the task
    assert [g.met for g in report.gates] == [False, True]
    jsonschema.validate(report.to_json(), schema())


def test_a_folder_with_a_copy_counts_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = testing.shapes(9, n_views=1).images[:, 0].transpose(0, 2, 3, 1)
    folder = save(tmp_path / "p", {name: drawn[i] for i, name in enumerate("acdefghij")})
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes())
    found = document(
        capsys, "audit", folder, "--views", "crop", "--operation-anchors", 0, "--support-views", 200
    )
    assert (found["duplicates"], found["n_anchors"]) == (1, 9)
    assert found["duplicate_groups"] == [["a.png", "b.png"]]
    assert found["support"]["data_dim"] is None
    assert "9 distinct anchors" in found["support"]["reason"]


@pytest.mark.parametrize("channels", [3, 1])
def test_hue_of_gray_images(tmp_path: Path, capsys: pytest.CaptureFixture[str], channels: int) -> None:
    shape = (16, 16, 3) if channels == 3 else (16, 16)
    folder = save(tmp_path / "gray", {f"{i:02d}": np.full(shape, 8 * i, np.uint8) for i in range(32)})
    (tmp_path / "hue.yaml").write_text(
        "- jitter: {brightness: 0, contrast: 0, saturation: 0, hue: 0.5, p: 1}\n"
    )
    found = document(capsys, "audit", folder, "--views", tmp_path / "hue.yaml", "--support-views", 200)
    verdicts = {f["name"]: f["verdict"] for f in found["factors"]}
    assert verdicts["brightness"] == "never seen to move"
    assert "moved" not in verdicts.values()
    assert verdicts["hue"] == "not measurable here"
    assert found["verdict"] == "diversity fails"
    assert found["support"]["views_dim"] == 0
    assert {"gray", "never-fires"} <= {f["id"] for f in found["lint"]}
    arguments = ("audit", folder, "--views", tmp_path / "hue.yaml", "--support-anchors", 0)
    assert run(*arguments, "--require-moved", "hue") == 3
    assert run(*arguments, "--require-held", "brightness") == 0
    capsys.readouterr()
    assert "require_moved must name one of" in error(capsys, *arguments, "--require-moved", "colour")


def test_sixteen_bit_ramps_are_scaled_by_the_full_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ramps"
    folder.mkdir()
    ramp = np.linspace(0, 65535, 16 * 256).round().astype(np.uint16).reshape(16, 256)
    for i in range(10):
        Image.fromarray(np.roll(ramp, i, axis=0)).save(folder / f"{i}.png")
    found = document(
        capsys, "audit", folder, "--views", "crop", "--factors", "brightness,contrast", "--support-anchors", 0
    )
    assert found["n_anchors"] == 10
    assert {f["name"]: f["verdict"] for f in found["factors"]}["brightness"] == "moved"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ZeroDivisionError('no')", "ZeroDivisionError: no"),
        ("return x[:, : int(torch.randint(3, 30, ()))]", "one shape"),
        ("x.fill_(0); return x.clone()", "in place"),
        ("return 255 * x", "floats up to"),
    ],
)
def test_a_broken_pipeline_is_reported_with_the_file(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    message: str,
) -> None:
    name = f"broken_{abs(hash(body))}"
    code = f"import torch\nfrom torch import Tensor\ndef views(x: Tensor) -> Tensor:\n    {body}\n"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    drawn = testing.shapes(6, n_views=1).images[:, 0].transpose(0, 2, 3, 1)
    folder = save(tmp_path / "p", {f"im{i}": drawn[i] for i in range(6)})
    found = error(capsys, "audit", folder, "--views", f"{name}:views")
    assert message in found
    assert f"{name}:views" in found
    assert ".png" in found
    assert run("lint", folder, "--views", f"{name}:views") == 0
    assert f"{name}:views" in capsys.readouterr().out
    assert run("lint", folder, "--views", f"{name}:views", "--strict") == 3


def test_views_of_one_anchor_or_one_view_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(tmp_path / "one", {"a": testing.shapes(1).images[0, 0].transpose(1, 2, 0)})
    assert "at least 2 distinct images" in error(capsys, "audit", folder, "--views", "crop")
    folder = save(tmp_path / "one", {"b": testing.shapes(2).images[1, 0].transpose(1, 2, 0)})
    assert "n_views must be at least 2" in error(capsys, "audit", folder, "--views", "crop", "--n-views", 1)
    assert "views must be given" in error(capsys, "audit", folder)
    assert "no such file" in error(capsys, "audit", tmp_path / "nowhere")
    assert "lag does not go with views" in error(capsys, "audit", folder, "--views", "crop", "--lag", 1)


def test_own_factors_and_clusters(shapes: images.ImageSet) -> None:
    def corner(x: torch.Tensor) -> torch.Tensor:
        return x[:, :, :4, :4].mean((1, 2, 3))

    report = vs.audit(shapes, views="crop", factors={"corner": corner}, sampling=SMALL)
    assert [f.name for f in report.factors] == ["corner"]
    with pytest.raises(ValueError, match=r"factor corner must return \(60,\)"):
        vs.audit(shapes, views="crop", factors={"corner": lambda x: x[:3, 0, 0, 0]}, sampling=SMALL)
    with pytest.raises(ValueError, match="cluster must be 'class'"):
        vs.audit(shapes, views="crop", cluster="patient", sampling=SMALL)


def test_files_grouped_by_stem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = testing.shapes(12, n_views=2, moved=["x"]).images.transpose(0, 1, 3, 4, 2)
    pictures = {f"scan{i:02d}_{'ab'[j]}": drawn[i, j] for i in range(12) for j in range(2)}
    folder = save(tmp_path / "p", {**pictures, "lonely_a": 255 - drawn[0, 0]})
    found = document(
        capsys, "audit", folder, "--group", "stem", "--factors", "horizontal_centre,vertical_centre,hue"
    )
    assert {f["name"]: f["verdict"] for f in found["factors"]} == {
        "horizontal_centre": "moved",
        "vertical_centre": "never seen to move",
        "hue": "never seen to move",
    }
    assert {"name": "lonely", "reason": "one view only"} in found["skipped"]


def test_a_mix_of_sizes_is_audited(shapes: images.ImageSet) -> None:
    mixed = [shapes.images[i][:, : 32 - i % 2] for i in range(40)]
    report = vs.audit(mixed, views=pipeline(crop=operations.Crop(size=24)), sampling=SMALL)
    assert report.n_anchors == 40
    assert report.factor("horizontal_centre").verdict == "moved"


def test_torchvision_pipeline_without_its_normalisation(shapes: images.ImageSet) -> None:
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    mine = v2.Compose([*steps, v2.Normalize([0.5] * 3, [0.25] * 3)])
    report = vs.audit(shapes, views=mine, sampling=SMALL)
    assert report.lint == []
    assert any("Normalize" in note for note in report.notes)
    assert report.factor("hue").verdict == "never seen to move"
    assert report.factor("horizontal_centre").verdict == "moved"


def test_equal_seeds_give_equal_audits(shapes: images.ImageSet) -> None:
    one, two = (vs.audit(shapes, views="all", sampling=SMALL).to_json() for _ in range(2))
    assert one == two
    other = vs.audit(shapes, views="all", sampling=Sampling(**{**SMALL.__dict__, "seed": 1})).to_json()
    assert other["factors"] != one["factors"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_images_of_a_few_pixels_have_no_geometry_and_no_warning(size):
    x = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    found = factors.measure(x, factors.NAMES)
    assert np.isfinite(found["brightness"]).all()
    assert np.isnan(found["sharpness"]).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("support_anchors", -1), ("support_views", 0), ("operation_anchors", -3), ("operation_views", 1)],
)
def test_numbers_of_anchors_and_views_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        vs.audit(np.zeros((4, 3, 8, 8), np.uint8), views="crop", sampling=Sampling(**{name: value}))
