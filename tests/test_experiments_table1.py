"""Table 1: which cells there are, what is published beside them, and that equal settings give equal records."""

import math

import numpy as np
import pytest

from viewspan import experiments, records
from viewspan.experiments import synthetic, table1
from viewspan.experiments.profiles import SEEDS


def tiny(**changes):
    """Settings of a run of a few steps."""
    first = table1.cells(processes=["identity"])[0].settings
    return synthetic.complete({**first, "steps": 6, "batch_size": 64, **changes})


def key(settings):
    return tuple(settings[name] for name in ("process", "pairs", "loss", "encoder"))


@pytest.fixture(scope="module")
def tiny_records():
    return [
        table1.run(tiny(pairs=pairs, loss=loss, encoder=encoder, group_size=group, seed=seed, rho=float(loss == "corrected")))[0]
        for pairs, loss, encoder, group in [
            ("holds", "standard", "mlp", None),
            ("violated", "standard", "mlp", None),
            ("violated", "corrected", "mlp", 16),
            ("violated", "standard", "inverse", None),
        ]
        for seed in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("profile", sorted(SEEDS))
def test_nineteen_cells_a_seed_and_every_one_valid(profile):
    cells = table1.cells(profile, seeds=2)
    assert len(cells) == 38
    assert len({records.settings_digest(cell.settings) for cell in cells}) == 38
    for cell in cells:
        assert synthetic.complete(cell.settings) == cell.settings
    paper = [c.settings for c in table1.cells("paper", seeds=1)]
    assert {(s["steps"], s["batch_size"]) for s in paper} == {(5000, 2000)}
    assert len(table1.cells("paper")) == 19 * 5


def test_the_invertible_mlp_has_no_inverse_cell():
    cells = table1.cells(processes=["invertible_mlp"])
    assert [c.settings["encoder"] for c in cells] == ["mlp"] * 3
    with pytest.raises(ValueError, match="'inverse' is not defined for process 'invertible_mlp'"):
        synthetic.encoder_of(synthetic.Settings(**tiny(process="invertible_mlp", encoder="inverse")), 3)


def test_published_numbers_are_those_of_the_cell():
    at = {key(c.settings): table1.published(c.settings) for c in table1.cells()}
    assert at["identity", "holds", "standard", "mlp"]["r2"] == 1.0
    assert at["identity", "holds", "standard", "mlp"]["loss"] == 7.388  # Table 3
    assert at["identity", "holds", "standard", "mlp"]["m"] == 4000
    assert at["patches", "violated", "standard", "inverse"]["r2"] == 0.88
    assert at["linear", "violated", "corrected", "mlp"]["mcc"] == 0.592  # Table 4
    assert at["linear", "violated", "corrected", "mlp"]["m"] == 2000
    assert at["spiral", "violated", "corrected", "mlp"]["m"] == 1000
    assert at["spiral", "violated", "corrected", "mlp"]["loss_minus_log_m"] == pytest.approx(
        6.011 - math.log(1000)
    )
    assert table1.published(tiny(convention="ambient", pairs="violated")) is None  # not what was run


def test_published_tables_are_shipped_whole():
    tables = experiments.published()
    assert len(tables["table8_rho_r2"]) == 11
    assert len(tables["table7_progressive_r2"]["rows"]) == 11


def test_equal_settings_give_equal_records():
    settings = tiny()
    (a, x), (b, y) = table1.run(settings), table1.run(settings)
    assert a.result == b.result
    assert a.history == b.history
    assert a.environment == b.environment
    for name in x:
        np.testing.assert_array_equal(x[name], y[name])
    other, _ = table1.run(tiny(seed=1))
    assert other.result["r2"] != a.result["r2"]


def test_a_record_holds_what_a_line_needs(tiny_records):
    for record in tiny_records:
        result = record.result
        assert result["m"] == 2000
        assert result["loss_minus_log_m"] == pytest.approx(result["loss"] - math.log(2000))
        assert (result["above_floor"] is None) == (record.settings["loss"] == "corrected")
        assert result["published"]["r2"] is not None
        assert len(record.history["step"]) == len(record.history["loss"])


def test_the_table_has_mean_spread_and_prediction(tiny_records):
    document = table1.table(tiny_records)
    assert len(document["cells"]) == 4
    first = document["cells"][0]
    values = [r.result["r2"] for r in tiny_records[:2]]
    assert first["seeds"] == 2
    assert first["r2"]["mean"] == pytest.approx(np.mean(values))
    assert first["r2"]["sd"] == pytest.approx(np.std(values, ddof=1))
    assert first["predicted"]["r2"] == 1.0
    inverse = document["cells"][3]
    assert inverse["predicted"]["r2"] == pytest.approx(0.99446, abs=1e-5)
    assert inverse["predicted"]["loss_minus_log_m"] == pytest.approx(-1.5488 + 3.997 / 2000, abs=2e-4)
    great = document["cells"][2]
    assert great["predicted"]["r2"] == pytest.approx((math.pi / 4) ** 2, abs=1e-4)
    pairs = {d["mlp_pairs"]: d for d in document["inverse_minus_mlp"]}
    assert pairs["violated"]["published"] == pytest.approx(0.99 - 0.06)
    records.jsonable(document)


def test_one_seed_has_no_spread(tiny_records):
    assert table1.table(tiny_records[:1])["cells"][0]["r2"]["sd"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"process": "spirl"}, "process: .*'spirl'"),
        ({"steps": "many"}, "steps: "),
        ({"unknown": 1}, "unknown: "),
        ({"threads": 0}, "threads: "),
    ],
)
def test_bad_settings_name_the_field_and_the_value(change, message):
    with pytest.raises(ValueError, match=message):
        synthetic.complete({**table1.cells()[0].settings, **change})


def test_a_named_stream_is_its_own():
    a, b = synthetic.stream(0, "encoder"), synthetic.stream(0, "batches")
    assert a.initial_seed() != b.initial_seed()
    assert a.initial_seed() == synthetic.stream(0, "encoder").initial_seed()


@pytest.mark.slow
def test_quick_profile_meets_its_quality(tmp_path):
    """One seed of the whole table; three seeds are what the published quality lines speak of."""
    from viewspan import sweeps

    result = sweeps.run(table1.cells(seeds=1), table1.run, records.Store(tmp_path), jobs=2)
    assert not result.failed
    at = {key(r.settings): r.result for r in result.records}
    least = {"identity": 0.99, "linear": 0.99, "invertible_mlp": 0.99, "spiral": 0.97, "patches": 0.93}
    for process, bar in least.items():
        assert at[process, "holds", "standard", "mlp"]["r2"] >= bar, process
    for process in ("identity", "linear"):
        cell = at[process, "violated", "standard", "mlp"]
        assert cell["above_floor"] <= 0.05
        assert cell["r2"] < 0.6
    corrected = [at[process, "violated", "corrected", "mlp"]["r2"] for process in least]
    assert sum(0.55 <= r2 <= 0.73 for r2 in corrected) >= 4
    for process, bar in {"identity": 0.98, "linear": 0.98, "spiral": 0.98, "patches": 0.85}.items():
        assert at[process, "violated", "standard", "inverse"]["r2"] >= bar, process
