"""The experiments beside Table 1: their cells, their published numbers, their tables, and what they claim."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from viewspan import encoders, experiments, losses, metrics, pairs, records, sphere, sweeps
from viewspan.experiments import dose, law, lifting, progressive, rho, synthetic, tagged
from viewspan.sweeps import Cell
from viewspan.theory import maps

MODULES = (rho, progressive, law, dose, tagged)
COUNTS = {  # quick, paper: runs of one seed
    "rho": (44, 99),
    "progressive": (12, 22),
    "law": (20, 20),
    "dose": (40, 322),
    "tagged": (10, 55),
}


def tiny(cell: Cell) -> dict[str, Any]:
    """The cell's settings with next to no training."""
    warm = 2 if cell.settings["warm_steps"] else 0
    return {**cell.settings, "steps": 2, "warm_steps": warm, "batch_size": 200, "hidden": [16, 16]}


def settings_of(module: ModuleType, **wanted: Any) -> dict[str, Any]:
    """The settings of the one quick cell of seed 0 that agrees with `wanted`."""
    found = [
        cell.settings
        for cell in module.cells("quick", seeds=1)
        if all(cell.settings[key] == value for key, value in wanted.items())
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.NAME)
@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_cells_of_a_profile(module: ModuleType, profile: str) -> None:
    one, two = module.cells(profile, seeds=1), module.cells(profile, seeds=2)
    assert len(one) == COUNTS[module.NAME][profile == "paper"]
    assert two[: len(one)] == one  # all of one seed before the next
    assert len(two) == 2 * len(one)
    assert len({json.dumps(cell.settings, sort_keys=True) for cell in two}) == len(two)
    for cell in two:
        s = synthetic.Settings(**cell.settings)
        assert cell.experiment == module.NAME
        assert s.model_dump(mode="json") == cell.settings  # what is recorded is what runs
        assert (s.rho > 0 or s.loss in ("corrected", "uniformity", "tagged")) == (s.group_size is not None)
        assert s.batch_size % (s.group_size or 1) == 0
        built(s)


def built(s: synthetic.Settings) -> None:
    """The law and the loss of a run are what its settings say."""
    held = pairs.FixedLatents(dim=s.dim, kappa=s.kappa, n_fixed=s.n_fixed, convention=s.convention)
    full = pairs.FullSupport(dim=s.dim, kappa=s.kappa)
    mixed = {"held": held, "moved": full, "share": s.share}
    laws: dict[str, Callable[[], pairs.PairLaw]] = {
        "holds": lambda: full, "violated": lambda: held, "mixture": lambda: pairs.Mixture(**mixed),
        "tagged": lambda: pairs.Tagged(**mixed), "jittered": lambda: pairs.Jittered(held=held, sigma=s.sigma),
    }  # fmt: skip
    assert synthetic.law_of(s) == laws[s.pairs]()
    loss = synthetic.loss_of(s)
    assert loss.temperature == s.temperature
    own = {"uniformity": ("beta", s.beta), "tagged": ("weight", s.weight)}.get(s.loss, ("rho", s.rho))
    assert getattr(loss, own[0]) == own[1]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.NAME)
def test_bad_options_are_named(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="profile must be one of paper, quick, got 'fast'"):
        module.cells("fast")
    with pytest.raises(ValueError, match=r"process must be one of .*, got 'helix'"):
        module.cells("quick", processes=["helix"])
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        module.cells("quick", seeds=0)
    named = module.cells("quick", seeds=1, processes=["linear"])
    assert {cell.settings["process"] for cell in named} == {"linear"}


def test_published_numbers_of_the_rho_sweep() -> None:
    s = settings_of(rho, process="identity", encoder="inverse", rho=0.4)
    found = rho.published(s)
    assert found is not None
    assert (found["r2"], found["ape"], found["loss"], found["m"]) == (0.999, 0.014, 6.46, 2000)
    assert math.isclose(found["loss_minus_log_m"], 6.46 - math.log(2000))
    assert rho.published({**s, "convention": "ambient"}) is None
    assert rho.published({**s, "process": "patches", "encoder": "mlp"})["m"] == 1000  # type: ignore[index]
    for cell in rho.cells("paper", seeds=1):
        assert all(rho.published(cell.settings)[key] is not None for key in ("r2", "mcc", "ape", "loss"))  # type: ignore[index]


def test_published_numbers_of_the_others() -> None:
    assert progressive.published(settings_of(progressive, process="monomial", n_fixed=9)) == {
        "r2": 0.425,
        "r2_sd": 0.056,
    }
    corrected = settings_of(law, process="linear", convention="subsphere", loss="corrected")
    assert law.published(corrected)["r2"] == 0.65  # type: ignore[index]
    assert law.published({**corrected, "convention": "ambient"}) is None
    assert law.published({**corrected, "loss": "uniformity"}) is None
    assert tagged.published({"process": "patches"}) == {
        "r2_standard": 0.25,
        "r2_corrected": 0.63,
        "r2_inverse": 0.88,
    }
    assert tagged.published({"process": "invertible_mlp"})["r2_inverse"] is None


KEYS = {"process", "pairs", "loss", "encoder", "convention", "seeds", "m", "r2", "mcc", "ape", "loss_minus_log_m",
        "above_floor", "published", "predicted", "diagnosis"}  # fmt: skip
OWN = {"rho": "rho", "progressive": "n_fixed", "law": "recovered", "dose": "dose", "tagged": "share"}


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.NAME)
def test_a_table_reruns_from_records_without_training(module: ModuleType, tmp_path: Path) -> None:
    cells = [Cell(module.NAME, tiny(cell)) for cell in module.cells("quick", seeds=2)]
    standard = [
        cell for cell in cells if cell.settings["loss"] in ("standard", "tagged")
    ]  # cheap to evaluate
    few = [cell for cell in (standard or cells) if cell.settings["process"] != "patches"]
    few = [few[1], few[len(few) // 2 + 1]] if module is not law else [cells[0]]
    store = records.Store(tmp_path)
    first = sweeps.run(few, module.run, store)
    assert (first.ran, first.failed) == (len(few), [])

    def never(settings: dict[str, Any]) -> Any:
        raise AssertionError("trained again")

    again = sweeps.run(few, never, store)
    assert (again.reused, again.ran, again.failed) == (len(few), 0, [])
    table = module.table(again.records)
    assert json.loads(json.dumps(records.jsonable(table), allow_nan=False)) == records.jsonable(
        module.table(first.records)
    )
    assert sum(line["seeds"] for line in table["cells"]) == len(few)
    for line in table["cells"]:
        assert line.keys() >= KEYS | {OWN[module.NAME]}
        assert (line["r2"]["sd"] is None) == (line["seeds"] == 1)
    assert table["experiment"] == module.NAME
    assert all(isinstance(text, str) for text in [*table["sentences"], *table["notes"]])


def record(settings: dict[str, Any], **result: Any) -> records.Record:
    """A record as a run would leave it, with these results."""
    known = dict.fromkeys(
        ("r2", "mcc", "ape", "loss_minus_log_m", "above_floor", "mcc_reference", "predicted")
    )
    return records.Record(
        experiment="x", settings=settings, result={**known, "m": 2000, "diagnosis": "isometry", **result}
    )


def test_sentences_count_and_compare() -> None:
    runs = [
        record({**cell.settings, "seed": seed}, r2=r2, diagnosis=kind)
        for cell in law.cells("quick", seeds=1, processes=["identity"])
        for seed, r2, kind in ((0, 0.99, "isometry"), (1, 0.66, "folded"))
        if (cell.settings["convention"], cell.settings["loss"]) == ("ambient", "uniformity")
    ]
    table = law.table(runs)
    assert table["cells"][0]["recovered"] == 1
    assert table["sentences"] == [
        "ambient, uniformity: R² ≥ 0.95 in 1 of 2 runs; diagnosed as folded 1, isometry 1."
    ]
    doses = [
        record(cell.settings, r2=0.1 if cell.settings["share"] < 0.3 else 0.99)
        for cell in dose.cells("quick", seeds=1, convention="ambient")
        if cell.settings["pairs"] == "mixture" and cell.settings["encoder"] == "mlp"
    ]
    assert dose.table(doses)["sentences"] == [
        "identity, mlp, mixture, ambient: mean R² ≥ 0.95 from ε = 0.3 on; break-even at ε ≥ 0.258."
    ]
    ratios = [
        record(cell.settings, r2=1 - abs(cell.settings["rho"] - 0.3))
        for cell in rho.cells("quick", seeds=1, processes=["identity"])
        if cell.settings["encoder"] == "inverse"
    ]
    assert rho.table(ratios)["sentences"] == ["identity, inverse: best R² 1.000 at ρ = 0.3"]
    held = [
        record(cell.settings, r2=0.99 if cell.settings["n_fixed"] == 0 else cell.settings["n_fixed"] / 50)
        for cell in progressive.cells("quick", seeds=1, processes=["linear"])
    ]
    assert progressive.table(held)["sentences"] == [
        "linear: R² 0.990 with no latent held, at most 0.200 (n_fixed = 10) with any."
    ]


def test_break_even_doses() -> None:
    assert dose.break_even("ambient") == pytest.approx(0.258, abs=5e-4)
    assert dose.break_even("subsphere") == pytest.approx(0.193, abs=5e-4)


def test_nine_held_latents_flip_a_fair_coin() -> None:
    for cell in progressive.cells("paper", seeds=1):
        assert (cell.settings["kappa"] == 0) == (cell.settings["n_fixed"] == 9)
    rng = torch.Generator().manual_seed(0)
    z = sphere.uniform(20_000, 10, generator=rng)
    coins = []
    for convention in ("ambient", "subsphere"):
        s = synthetic.Settings(**settings_of(progressive, process="linear", n_fixed=9))
        p = synthetic.law_of(s.model_copy(update={"convention": convention})).sample(
            z, torch.Generator().manual_seed(1)
        )
        assert torch.equal(p[:, :9], z[:, :9])
        assert torch.allclose(p[:, 9].abs(), z[:, 9].abs(), rtol=1e-6)
        flipped = p[:, 9].sign() != z[:, 9].sign()
        assert abs(float(flipped.float().mean()) - 0.5) < 4.5 * 0.5 / math.sqrt(len(z))
        assert abs(float(flipped[z[:, 9] > 0].float().mean()) - 0.5) < 4.5 * 0.5 / math.sqrt(len(z) / 2.1)
        coins.append(flipped)
    assert torch.equal(*coins)  # at κ = 0 the two conventions are one law


def test_all_held_means_the_positive_is_the_anchor() -> None:
    s = synthetic.Settings(**settings_of(progressive, process="linear", n_fixed=10))
    batch = synthetic.law_of(s).batch(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(batch.anchor, batch.positive)


def test_every_moved_pair_drawn_enters_the_batch() -> None:
    s = synthetic.Settings(**settings_of(tagged, process="identity", loss="tagged", share=0.02))
    full = synthetic.law_of(s)
    assert full.share == 0.02  # type: ignore[attr-defined]
    for size in (s.batch_size, s.warm_batch_size):
        assert size is not None
        wanted = min(round(0.02 * (s.drawn or s.batch_size)), size // 2)
        assert synthetic.moved_pairs(s, size) == wanted
        batch = synthetic.batch_law(s, full, size).batch(
            size, group_size=s.group_size, generator=torch.Generator().manual_seed(0)
        )
        assert batch.moved is not None
        assert int(batch.moved.sum()) == wanted
        assert size - (s.group_size or 1) < len(batch) <= size
    held = synthetic.law_of(s.model_copy(update={"pairs": "violated"}))
    assert synthetic.batch_law(s, held, 100) is held


def test_lifted_encoder_ends_as_the_plain_one() -> None:
    rng = torch.Generator().manual_seed(0)
    f = encoders.MLP(3, 3, hidden=(8,), generator=rng)
    lifted = lifting.Lifted(f, extra=2, steps=4, generator=rng)
    x = torch.randn(32, 3, generator=rng)
    scales = []
    for _ in range(4):
        scales.append(lifted.scale)
        h = lifted(x)
        assert h.shape == (32, 5)
        assert torch.allclose(h.norm(dim=1), torch.ones(32), atol=1e-6)
    assert scales == [1.0, 0.75, 0.5, 0.25]
    assert torch.equal(lifted(x), f(x))
    assert lifted(x).shape == (32, 3)
    fresh = lifting.Lifted(f, extra=2, steps=4, generator=rng).eval()
    assert torch.equal(fresh(x), f(x))
    assert fresh.scale == 1.0  # evaluation does not count
    shared = {id(p) for p in f.parameters()}
    assert shared < {id(p) for p in fresh.parameters()}


def test_extra_coordinates_need_an_mlp() -> None:
    s = settings_of(tagged, process="identity", loss="tagged", share=0.02)
    with pytest.raises(ValueError, match="extra needs encoder 'mlp', got extra=3 with encoder 'inverse'"):
        synthetic.train(synthetic.Settings(**{**s, "encoder": "inverse"}))


def test_rho_sweep_agrees_with_theory_and_with_the_paper() -> None:
    s = settings_of(rho, process="identity", encoder="inverse", rho=0.2)
    result = rho.run(s)[0].result
    assert abs(result["r2"] - result["predicted"]["r2"]) < 0.005
    assert abs(result["ape"] - result["predicted"]["ape"]) / 2 < 0.01
    assert abs(result["r2"] - result["published"]["r2"]) < 0.01
    assert abs(result["ape"] / 2 - result["published"]["ape"]) < 0.01


def test_tagged_pairs_recover_what_untagged_ones_do_not() -> None:
    short = {"hidden": [64, 64, 64], "warm_steps": 250, "steps": 60}
    run = tagged.run({**settings_of(tagged, process="identity", share=0.02, loss="tagged"), **short})[0]
    assert run.result["r2"] > 0.95
    assert run.result["moved_pairs"] == 310 * synthetic.moved_pairs(synthetic.Settings(**run.settings), 200)
    settings = settings_of(tagged, process="identity", share=0.02, loss="standard")
    without = tagged.run({**settings, "hidden": [64, 64, 64]})[0]
    assert without.result["r2"] < 0.6


def test_warm_steps_of_an_untagged_run_use_its_own_loss() -> None:
    s = synthetic.Settings(**settings_of(progressive, process="linear", n_fixed=0))
    assert (s.warm_steps, s.steps, s.extra) == (150, 150, 3)
    s = s.model_copy(update={"warm_steps": 30, "steps": 20, "hidden": (32,)})
    run = synthetic.train(s)[3]
    assert run.steps == 50
    assert run.history["step"] == sorted(set(run.history["step"]))
    assert run.history["step"][-1] > 30
    assert run.history["loss"][-1] < run.history["loss"][0] - 0.1


class Fixed(nn.Module):
    """A known map as an encoder."""

    def __init__(self, h: maps.Map) -> None:
        super().__init__()
        self.h, self.unused = h, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.h(x)


def test_a_fold_is_seen_in_the_moved_pairs_alone() -> None:
    s = synthetic.Settings(**settings_of(tagged, process="identity", loss="tagged", share=0.02))
    g, law = synthetic.process_of(s), synthetic.law_of(s)
    assert not synthetic.folded(s, Fixed(maps.identity()), g, law)
    assert not synthetic.folded(s, Fixed(maps.squeezed(0.6)), g, law)
    assert synthetic.folded(s, Fixed(maps.folded()), g, law)
    held = s.model_copy(update={"pairs": "violated"})
    with pytest.raises(ValueError, match="restarts needs tagged pairs, got restarts=3 with pairs 'violated'"):
        synthetic.folded(held, Fixed(maps.identity()), g, synthetic.law_of(held))


def test_folded_warm_ups_start_again_from_new_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    s = synthetic.Settings(**settings_of(tagged, process="identity", loss="tagged", share=0.02))
    s = s.model_copy(update={"warm_steps": 3, "steps": 2, "hidden": (16,), "restarts": 2})
    monkeypatch.setattr(synthetic, "FOLDED", math.inf)  # the first will do
    assert synthetic.train(s)[3].steps == 3 + 2
    monkeypatch.setattr(synthetic, "FOLDED", -10.0)  # nothing is good enough
    run = synthetic.train(s)[3]
    assert run.steps == 3 * 3 + 2
    assert run.history["step"] == sorted(set(run.history["step"]))
    first, second = (next(synthetic.encoder_of(s, 3, attempt).parameters()) for attempt in (0, 1))
    assert not torch.equal(first, second)
    assert synthetic.run("tagged", s.model_dump(mode="json"))[0].result["steps"] == 11


def twist(z: Tensor) -> Tensor:
    """Every fibre turned by its own angle."""
    angle = 3 * z[:, 0]
    c, s = angle.cos(), angle.sin()
    return torch.stack([z[:, 0], c * z[:, 1] - s * z[:, 2], s * z[:, 1] + c * z[:, 2]], dim=1)


def swap(z: Tensor) -> Tensor:
    """Fibres nearer the equator than 30° change places with their mirror images: a measure-preserving tear."""
    u = torch.where(z[:, 0].abs() < 0.5, -z[:, 0], z[:, 0])
    return torch.cat([u[:, None], z[:, 1:]], dim=1)


@pytest.mark.parametrize("move", [twist, swap])
@pytest.mark.parametrize("convention", ["ambient", "subsphere"])
def test_pairs_that_hold_u_cannot_tell_latents_from_moved_ones(
    move: Callable[[Tensor], Tensor], convention: pairs.Convention
) -> None:
    """z and m(z) have one law, and so have their pairs: the data g(z) is also (g∘m⁻¹)(m(z))."""
    held = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention=convention)
    rng = torch.Generator().manual_seed(0)
    z = sphere.uniform(20_000, 3, generator=rng, dtype=torch.float64)
    p = held.sample(z, rng)
    assert torch.allclose(held.log_prob(move(p), move(z)), held.log_prob(p, z), atol=1e-9)
    moved = move(z)
    error = 4.5 / math.sqrt(len(z))
    # still uniform: first and second moments, and quarters of u
    assert float(moved.mean(0).abs().max()) < error
    assert float((moved.T @ moved / len(z) - torch.eye(3) / 3).abs().max()) < error
    quarters = torch.histc(moved[:, 0], bins=4, min=-1, max=1) / len(z)
    assert float((quarters - 0.25).abs().max()) < error
    assert metrics.angle_preservation_error(z[:2000], moved[:2000]) > 0.15  # and yet far from an isometry


@pytest.mark.parametrize("move", [twist, swap])
def test_the_corrected_loss_is_the_same_for_moved_latents(move: Callable[[Tensor], Tensor]) -> None:
    held = pairs.FixedLatents(dim=3, kappa=1 / 0.3, n_fixed=1, convention="ambient")
    batch = held.batch(400, group_size=20, generator=torch.Generator().manual_seed(0))
    loss = losses.InfoNCE(0.3, rho=1.0)
    plain = loss(batch.anchor.double(), batch.positive.double(), group=batch.group)
    other = loss(move(batch.anchor.double()), move(batch.positive.double()), group=batch.group)
    assert float(plain) == pytest.approx(float(other), abs=1e-9)


def test_moved_pairs_can_tell() -> None:
    """A pair that moves u has another density after the twist: this is what a few tagged pairs add."""
    full = pairs.FullSupport(dim=3, kappa=1 / 0.3)
    rng = torch.Generator().manual_seed(0)
    z = sphere.uniform(5000, 3, generator=rng)
    p = full.sample(z, rng)
    gap = full.log_prob(p, z).mean() - full.log_prob(twist(p), twist(z)).mean()
    assert float(gap) > 0.5


def test_published_tables_hold_what_the_experiments_read() -> None:
    tables = experiments.published()
    assert [row["rho"] for row in tables["table8_rho_r2"]] == list(rho.RATIOS)
    assert [row["n_fixed"] for row in tables["table7_progressive_r2"]["rows"]] == list(range(11))


@pytest.mark.slow
def test_room_to_unfold_saves_the_spiral() -> None:
    s = settings_of_process("spiral")
    folded, lifted = (tagged.run({**s, "extra": extra, "restarts": 0})[0].result for extra in (0, 3))
    assert folded["r2"] < 0.8
    assert folded["diagnosis"] == "folded"
    assert lifted["r2"] > 0.98
    assert lifted["diagnosis"] == "isometry"


def settings_of_process(process: str) -> dict[str, Any]:
    """The settings of the quick tagged cell at 2 percent."""
    cells = tagged.cells("quick", seeds=1, processes=[process])
    return next(c.settings for c in cells if c.settings["loss"] == "tagged" and c.settings["share"] == 0.02)
