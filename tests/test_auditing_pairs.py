"""Pairs from arrays, tables and recordings: copies, missing values, labels, clocks; none of it silently wrong."""

import numpy as np
import pandas
import pytest

import viewspan as vs
from viewspan import testing
from viewspan.auditing import factors as bank
from viewspan.checks import ViewspanWarning


def table(tmp_path, **columns):
    path = tmp_path / "t.csv"
    pandas.DataFrame(columns).to_csv(path, index=False)
    return str(path)


@pytest.fixture
def walk():
    """Two channels of ten sessions of twenty rows."""
    x = np.random.default_rng(0).normal(size=(200, 2)).cumsum(0)
    return {"session": np.repeat(np.arange(10), 20), "c0": x[:, 0], "c1": x[:, 1]}


def names(report):
    return [f.name for f in report.factors]


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("columns", [1, 2])
def test_repeated_rows_of_a_table_count_once(tmp_path, times, columns):
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(60, columns)), rng.normal(size=(60, columns))
    pairs = {f"f{j}_a": x[:, j] for j in range(columns)} | {
        f"f{j}_b": (x + noise)[:, j] for j in range(columns)
    }
    once = vs.audit(table(tmp_path, **pairs))
    again = vs.audit(table(tmp_path, **{name: np.tile(v, times) for name, v in pairs.items()}))
    assert (once.n_anchors, again.n_anchors) == (60, 60)
    assert again.to_json()["duplicates"] == 60 * (times - 1)
    assert again.factors[0].stability.interval == once.factors[0].stability.interval


def test_rows_of_a_table_equal_up_to_rounding_count_once(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)) + 10
    rounded = x.astype(np.float32).astype(float)
    columns = dict(zip(("f_a", "f_b", "g_a", "g_b"), np.concatenate([x, rounded]).T))
    report = vs.audit(table(tmp_path, **columns))
    assert (report.n_anchors, report.to_json()["duplicates"]) == (60, 60)


@pytest.mark.parametrize("kind", ["codes", "ages", "counts", "grades"])
def test_rows_of_coarse_values_are_equal_by_chance_and_stay(tmp_path, kind):
    rng = np.random.default_rng(0)
    side, grade = rng.choice(["left", "right"], 200), rng.integers(0, 5, 200)
    columns = {
        "codes": {"f_a": grade, "f_b": grade},
        "ages": {"f_a": (age := rng.normal(50, 12, 200).round()), "f_b": age},
        "counts": {"f_a": (count := rng.geometric(0.05, 200) * rng.integers(0, 2, 200)), "f_b": count},
        "grades": {"side_a": side, "side_b": side, "f_a": grade, "f_b": rng.integers(0, 5, 200)},
    }[kind]
    report = vs.audit(table(tmp_path, **columns))
    assert (report.n_anchors, report.duplicates) == (200, [])


def test_names_of_copies_are_rows_of_the_file(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 4))
    x[3, 0], x[40] = np.nan, x[20]
    columns = dict(zip(("f_a", "f_b", "g_a", "g_b"), x.T))
    report = vs.audit(table(tmp_path, **columns), skip_bad=True)
    assert report.duplicates == [["row 20", "row 40"]]


def test_only_named_factors_of_a_table_are_read(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 2))
    empty = np.full(50, np.nan)
    path = table(tmp_path, f_a=x[:, 0], f_b=x[:, 1], g_a=empty, g_b=empty)
    with pytest.raises(ValueError, match="g is missing"):
        vs.audit(path)
    assert vs.audit(path, factors=["f"]).n_anchors == 50


def test_data_that_do_not_vary_are_not_measurable(tmp_path):
    report = vs.audit(table(tmp_path, f_a=np.ones(30), f_b=np.ones(30)), require_held=["f"])
    assert (report.verdict, report.met) == ("not measurable here", False)


def test_embeddings_without_an_axis_of_views_are_refused():
    with pytest.raises(ValueError, match=r"at least 3 axes .* got \(50, 8\)"):
        vs.audit(np.zeros((50, 8)))
    with pytest.raises(ValueError, match="at least 1 feature"):
        vs.audit(np.zeros((50, 2, 0)))


def test_complex_factors_are_refused():
    with pytest.raises(TypeError, match="factor k must be numbers or text, got dtype complex128"):
        vs.audit({"a": np.eye(9), "b": np.eye(9), "k": np.ones((9, 2)) * 1j})


def test_noise_above_everything_is_said():
    report = vs.audit(testing.held_pairs(100, dim=3, n_held=1, kappa=3.0).views, noise=1e9)
    assert "nothing varies above the noise floor" in report.sentence


def test_a_clock_is_no_channel(tmp_path, walk):
    stamp = pandas.date_range("2026-01-01", periods=200, freq="s").astype(str)
    report = vs.audit(table(tmp_path, time=np.arange(200.0), stamp=stamp, **walk), lag=2, session="session")
    assert names(report) == ["c0", "c1"]
    assert [n.split(" increases")[0] for n in report.notes] == ["not audited: time", "not audited: stamp"]
    asked = vs.audit(str(tmp_path / "t.csv"), lag=2, session="session", factors=["time", "c0"])
    assert names(asked) == ["time", "c0"]
    assert len(asked.coordinates) == 2


def test_rows_out_of_order_are_warned_of(tmp_path, walk):
    shuffled = np.random.default_rng(1).permutation(200)
    path = table(tmp_path, time=shuffled, **walk)
    with pytest.warns(ViewspanWarning, match="time does not increase within a session"):
        vs.audit(path, lag=2, session="session")


def test_text_columns_of_a_recording_are_categories(tmp_path, walk):
    state = np.random.default_rng(1).choice(["run", "rest"], 200)
    report = vs.audit(table(tmp_path, state=state, on=walk["session"] < 5, **walk), lag=2, session="session")
    assert [(f.name, f.kind, f.verdict) for f in report.factors if f.kind == "categorical"] == [
        ("state", "categorical", "moved"),
        ("on", "categorical", "never seen to move"),
    ]


def test_a_session_column_left_unused_is_warned_of(tmp_path, walk):
    with pytest.warns(ViewspanWarning, match="pairs cross them: pass session=session"):
        report = vs.audit(table(tmp_path, **walk), lag=2)
    assert names(report) == ["c0", "c1"]


def test_labels_beside_a_recording_are_factors(walk):
    x = np.stack([walk["c0"], walk["c1"]], 1)
    report = vs.audit({"x": x, "run": walk["session"], "position": walk["c0"] ** 2}, lag=3, session="run")
    assert names(report) == ["x[0]", "x[1]", "position"]
    assert report.coordinates == ("x[0]", "x[1]")


def test_bad_cells_of_a_recording_are_named(tmp_path, walk):
    walk["c1"][7] = np.nan
    path = table(tmp_path, **walk)
    with pytest.raises(ValueError, match="column c1 row 7 is missing or not finite"):
        vs.audit(path, lag=2, session="session")
    report = vs.audit(path, lag=2, session="session", skip_bad=True)
    assert report.n_anchors == 180 - 2
    assert report.skipped == [{"name": "row 7", "reason": "c1 is missing or not finite"}]
    text = [str(v) for v in walk["c0"]]
    text[5] = "bad"
    with pytest.raises(ValueError, match="column c0 row 5 is not a number: 'bad'"):
        vs.audit(table(tmp_path, **{**walk, "c0": text}), lag=2, session="session")


def test_an_own_factor_cannot_change_the_next_ones_images():
    import torch

    images = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def spoil(x):
        return x.zero_().mean((1, 2, 3))

    found = bank.measure(images, [], {"spoil": spoil, "mean": lambda x: x.mean((1, 2, 3))})
    assert found["mean"].min() > 0.4
    with pytest.raises(ValueError, match="factor label failed"):
        bank.measure(images, [], {"label": lambda x: ["a"] * len(x)})


def test_a_data_frame_is_a_table(walk):
    frame = pandas.DataFrame(
        {"f_a": walk["c0"], "f_b": walk["c0"], "side_a": "x", "side_b": ["x", "y"] * 100}
    )
    report = vs.audit(frame)
    assert [(f.name, f.kind) for f in report.factors] == [("f", "numeric"), ("side", "categorical")]
    assert names(vs.audit(pandas.DataFrame(walk), lag=2, session="session")) == ["c0", "c1"]


def test_verdicts_without_an_interval_are_noted():
    x = np.random.default_rng(0).normal(size=(40, 2))
    report = vs.audit(
        {"f": x, "clinic": np.repeat(["a", "b"], 20)}, cluster="clinic", require_moved=["f=0.01"]
    )
    assert not report.met
    assert any("no interval" in note and "at least 3 clusters, there are 2" in note for note in report.notes)


def test_names_of_pairs_apply_to_arrays_and_tables_only(walk):
    with pytest.raises(ValueError, match="pairs does not go with lag, got 'x,y'"):
        vs.audit(walk, lag=2, pairs=("x", "y"))


@pytest.mark.parametrize("wide", [False, True])
def test_an_embedding_wider_than_the_sample_is_reduced(wide):
    rng = np.random.default_rng(0)
    latents = rng.normal(size=(60, 2, 3))
    latents[:, 1, 0] = latents[:, 0, 0]
    views = latents @ rng.normal(size=(3, 200 if wide else 40)) * 1e200
    report = vs.audit(views + 0.0)
    assert report.held.rank == 3
    assert [d.status for d in report.held.directions] == ["held"]
    full = vs.audit(views + 1e197 * rng.normal(size=views.shape))
    assert full.held.rank == 15
    assert any("15 leading principal components" in note for note in full.notes)


def test_pictures_are_pooled_and_their_scale_is_noted():
    data = testing.shapes(40, n_views=2, moved=["x"], size=64)
    plain = vs.audit(data.images)
    assert len(plain.coordinates) in (10, 3 * 16 * 16)
    assert not any("values run" in note for note in plain.notes)
    scaled = vs.audit((data.images / 255 - 0.5) / 0.25)
    assert any("values run from -2 to 2" in note for note in scaled.notes)


def test_a_copied_stem_counts_once(tmp_path):
    from PIL import Image

    pictures = testing.shapes(5, n_views=2, size=16).images
    for i, stem in enumerate("abcde"):
        for v in range(2):
            copied = pictures[0 if stem == "e" else i, v].transpose(1, 2, 0)
            Image.fromarray(copied).save(tmp_path / f"{stem}_{v}.png")
    report = vs.audit(tmp_path, group="stem")
    assert (report.n_anchors, report.duplicates) == (4, [["a", "e"]])


@pytest.mark.parametrize("other", [["left", "right"], ["Y", "N"], ["0", "1"]])
def test_categories_coded_unlike_in_the_two_views_are_warned_of(tmp_path, other):
    sides = np.random.default_rng(0).integers(0, 2, 60)
    path = table(tmp_path, side_a=np.array(["Left", "Right"])[sides], side_b=np.array(other)[sides])
    with pytest.warns(
        ViewspanWarning, match="side: no value of side_a occurs in side_b: are they coded alike"
    ):
        vs.audit(path)


def test_spaces_around_names_and_categories_do_not_count(tmp_path):
    rows = "\n".join(f"{side}, {side} " for side in np.random.default_rng(0).choice(["L", "R"], 60))
    (tmp_path / "t.csv").write_text(f"side_a , side_b\n{rows}\n")
    assert vs.audit(tmp_path / "t.csv").factor("side").verdict == "never seen to move"


def test_the_index_of_a_parquet_file_is_a_column(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    index = pandas.Index(np.repeat(np.arange(20), 3), name="patient")
    pandas.DataFrame({"f_a": x[:, 0], "f_b": x[:, 1]}, index=index).to_parquet(tmp_path / "t.parquet")
    assert vs.audit(tmp_path / "t.parquet", cluster="patient").factor("f").stability.interval is not None
