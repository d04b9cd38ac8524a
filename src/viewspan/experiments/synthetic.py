"""One run on a synthetic process: draw g, train f on a pair law, measure recovery on fresh draws.

All experiments but the image one are lists of these runs. A run's settings are the whole of what decides it: equal
settings give equal bits on one machine, whatever the number of workers, since a run uses one thread unless told.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import pydantic
import torch
from torch import Tensor, nn

from viewspan import (
    checks,
    diagnosis,
    encoders,
    losses,
    metrics,
    pairs,
    processes,
    records,
    runtime,
    sphere,
    theory,
    training,
)
from viewspan.experiments import lifting
from viewspan.experiments.profiles import validated

ProcessName = Literal["identity", "linear", "spiral", "patches", "invertible_mlp", "monomial"]
PROCESSES: tuple[str, ...] = get_args(ProcessName)
N_SIDECAR = 1000  # anchors kept beside a record, the same in every run of one dimension
N_SCORED = 4096
FOLDED = 0.24  # nats above an isometry: u → |u| costs .275, trained folds .33 or more, a warm-up on patches .2 at most


class Settings(pydantic.BaseModel):
    """Everything that decides a run.

    Attributes:
        process: name of g.
        process_variant: ``code`` or ``text``, where the published code and text differ.
        dim: d.
        pairs: ``holds`` (full support), ``violated`` (held latents), ``mixture``, ``tagged`` or ``jittered``.
        n_fixed, kappa, convention: of the pair law.
        share: ε, share of full-support pairs in ``mixture`` and ``tagged``.
        sigma: angle of ``jittered``, radians.
        loss: ``standard``, ``mixed``, ``corrected``, ``uniformity`` (corrected plus a uniformity term) or ``tagged``.
        rho: share of negatives from the anchor's fibre; 0 standard, 1 corrected.
        beta: weight of the uniformity term.
        weight: w, weight of the moved term of ``tagged``.
        warm_steps: steps before the `steps`, with a schedule of their own; of ``tagged`` on the moved term alone.
        warm_batch_size: pairs encoded in each of those; `batch_size` if None.
        extra: further output coordinates of the MLP while it warms up; they fade over the first half of it.
        restarts: how often a tagged run may warm up again from new weights, where the loss on its moved pairs shows
            that the map has folded.
        drawn: pairs drawn a step for ``tagged``, a share `share` of them moved; every moved pair enters the batch (up
            to half of it) and as many held ones as there is room for. `batch_size` if None.
        temperature: τ.
        encoder: ``mlp`` or ``inverse``.
        hidden: widths of the MLP.
        norm_order: BatchNorm ``after`` or ``before`` the ReLU.
        steps, batch_size, group_size, lr, schedule: as in `training.fit`.
        device, precision, threads: where and how it computes; the number of threads can change the last bits.
        seed: seeds the process, the encoder, the batches and the evaluation.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    process: ProcessName
    process_variant: Literal["code", "text"] = "code"
    dim: int = 3
    pairs: Literal["holds", "violated", "mixture", "tagged", "jittered"]
    n_fixed: int = 1
    kappa: float = 1 / 0.3
    convention: Literal["ambient", "subsphere"] = "subsphere"
    share: float = 0.0
    sigma: float = 0.0
    loss: Literal["standard", "mixed", "corrected", "uniformity", "tagged"]
    rho: float = 0.0
    beta: float = 1.0
    weight: float = 1.0
    warm_steps: int = 0
    warm_batch_size: int | None = None
    extra: int = 0
    restarts: int = pydantic.Field(0, ge=0)
    drawn: int | None = None
    temperature: float = 0.3
    encoder: Literal["mlp", "inverse"] = "mlp"
    hidden: tuple[int, ...] = (128, 256, 256, 256, 128)
    norm_order: Literal["after", "before"] = "after"
    steps: int
    batch_size: int = 512
    group_size: int | None = None
    lr: float = 1e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu"
    threads: int = pydantic.Field(1, ge=1)
    seed: int
    profile: str = "quick"


def complete(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings checked and filled in with every default, as JSON values; the error names the field and the rule."""
    return validated(Settings, settings)


def stream(seed: int, name: str, device: str = "cpu") -> torch.Generator:
    """An independent generator for each named use of a run's seed."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def law_of(s: Settings) -> pairs.PairLaw:
    """The pair law of a run."""
    full = pairs.FullSupport(dim=s.dim, kappa=s.kappa)
    held = pairs.FixedLatents(dim=s.dim, kappa=s.kappa, n_fixed=s.n_fixed, convention=s.convention)
    match s.pairs:
        case "holds":
            return full
        case "violated":
            return held
        case "mixture":
            return pairs.Mixture(held=held, moved=full, share=s.share)
        case "tagged":
            return pairs.Tagged(held=held, moved=full, share=s.share)
        case "jittered":
            return pairs.Jittered(held=held, sigma=s.sigma)


def process_of(s: Settings) -> nn.Module:
    """The process g of a run, drawn from its seed where it is random."""
    g = stream(s.seed, "process")
    if s.process in ("spiral", "patches") and s.dim != 3:
        raise ValueError(f"dim must be 3 for process {s.process!r}, got {s.dim}")
    match s.process:
        case "identity":
            return processes.Identity(s.dim)
        case "linear":
            out = 7 if s.dim == 3 else 7 * s.dim
            return processes.Linear(s.dim, out, variant=s.process_variant, generator=g)
        case "spiral":
            return processes.Spiral()
        case "patches":
            return processes.Patches(variant=s.process_variant)
        case "invertible_mlp":
            return processes.InvertibleMLP(s.dim, variant=s.process_variant, generator=g)
        case "monomial":
            return processes.Monomial(s.dim)


def encoder_of(s: Settings, out_dim: int, attempt: int = 0) -> nn.Module:
    """The encoder f of a run, with its initial weights, other ones at each attempt."""
    g = stream(s.seed, f"encoder {attempt}" if attempt else "encoder")
    if s.encoder == "mlp":
        return encoders.MLP(out_dim, s.dim, hidden=s.hidden, norm_order=s.norm_order, generator=g)
    match s.process:
        case "identity" | "linear":
            return encoders.InverseLinear(out_dim, s.dim, generator=g)
        case "spiral":
            return encoders.InverseSpiral(generator=g)
        case "patches":
            return encoders.InversePatches(variant=s.process_variant, generator=g)
        case _:
            raise ValueError(f"encoder 'inverse' is not defined for process {s.process!r}")


def loss_of(s: Settings) -> nn.Module:
    """The loss of a run."""
    match s.loss:
        case "standard" | "mixed" | "corrected":
            return losses.InfoNCE(s.temperature, rho=share_on_fibre(s))
        case "uniformity":
            return losses.UniformityInfoNCE(s.temperature, beta=s.beta)
        case "tagged":
            return losses.TaggedInfoNCE(s.temperature, weight=s.weight)


def share_on_fibre(s: Settings) -> float:
    """ρ of the loss that a run is evaluated with."""
    return {"standard": 0.0, "mixed": s.rho, "corrected": 1.0, "uniformity": 1.0, "tagged": 0.0}[s.loss]


Fit = Callable[[nn.Module, nn.Module, int, int], training.Run]


def train(s: Settings) -> tuple[nn.Module, nn.Module, pairs.PairLaw, training.Run]:
    """f trained, g, the law and the run, which begins with the warm-up."""
    g, law = process_of(s), law_of(s)
    device = str(runtime.device(s.device).type)
    draws = stream(s.seed, "batches", device)

    def fit(f: nn.Module, loss: nn.Module, steps: int, batch_size: int) -> training.Run:
        return training.fit(
            f, g, batch_law(s, law, batch_size), loss,
            steps=steps, batch_size=batch_size, group_size=s.group_size, lr=s.lr, schedule=s.schedule,
            precision=s.precision, device=device, generator=draws,
        )  # fmt: skip

    f, runs = warmed_up(s, g, law, fit)
    return f, g, law, joined([*runs, fit(f, loss_of(s), s.steps, s.batch_size)])


def warmed_up(
    s: Settings, g: nn.Module, law: pairs.PairLaw, fit: Fit
) -> tuple[nn.Module, list[training.Run]]:
    """f after its warm-up, of a tagged run on the moved term alone, and the warm-ups that it took."""
    loss = losses.TaggedInfoNCE(s.temperature, weight=1.0) if s.loss == "tagged" else loss_of(s)
    runs: list[training.Run] = []
    while True:
        f = encoder_of(s, g.out_dim, len(runs))  # type: ignore[arg-type]
        if not s.warm_steps:
            return f, runs
        runs.append(fit(warming(s, f), loss, s.warm_steps, s.warm_batch_size or s.batch_size))
        if len(runs) > s.restarts or not folded(s, f, g, law):
            return f, runs


def folded(s: Settings, f: nn.Module, g: nn.Module, law: pairs.PairLaw) -> bool:
    """Is the standard loss on moved pairs too far above that of an isometry? No latents are needed to see it."""
    if not isinstance(law, pairs.Tagged):
        raise ValueError(f"restarts needs tagged pairs, got restarts={s.restarts} with pairs {s.pairs!r}")
    where = next(f.parameters()).device.type
    found = training.evaluate(
        f, g, law.moved, temperature=s.temperature, generator=stream(s.seed, "folded", where)
    )
    isometry = theory.predict(law.moved, temperature=s.temperature).orthogonal_loss
    return found.loss_minus_log_m - isometry > FOLDED


def joined(runs: list[training.Run]) -> training.Run:
    """Runs one after the other, as one."""
    history: dict[str, list[float]] = {key: [] for key in runs[0].history}
    done = 0
    for run in runs:
        for key, values in run.history.items():
            history[key] += [value + done for value in values] if key == "step" else values
        done += run.steps
    return training.Run(history, done, sum(run.seconds for run in runs), runs[-1].precision)


def moved_pairs(s: Settings, batch_size: int) -> int:
    """Moved pairs in a batch of a tagged run: all that were drawn, up to half of the batch."""
    return min(round(s.share * (s.drawn or s.batch_size)), batch_size // 2)


def batch_law(s: Settings, law: pairs.PairLaw, batch_size: int) -> pairs.PairLaw:
    """The law of what enters a batch: for tagged pairs the share of moved ones rises as held ones are left out."""
    if not isinstance(law, pairs.Tagged):
        return law
    return dataclasses.replace(law, share=moved_pairs(s, batch_size) / batch_size)


def warming(s: Settings, f: nn.Module) -> nn.Module:
    """The encoder to warm up: f, with further output coordinates that fade if `extra` asks for them."""
    if not s.extra:
        return f
    if not isinstance(f, encoders.MLP):
        raise ValueError(f"extra needs encoder 'mlp', got extra={s.extra} with encoder {s.encoder!r}")
    return lifting.Lifted(
        f, extra=s.extra, steps=max(1, s.warm_steps // 2), generator=stream(s.seed, "further")
    )


def run(
    experiment: str,
    settings: dict[str, Any],
    published: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None,
) -> tuple[records.Record, dict[str, np.ndarray]]:
    """Train, measure and describe one run.

    Args:
        experiment: the experiment the record belongs to.
        settings: the fields of `Settings`.
        published: gives the published numbers of a run's settings, kept beside the measured ones.

    Returns:
        The record, and the sidecar arrays ``z`` (1000 fixed anchors) and ``h`` (their images under h = f∘g).
    """
    s = Settings(**settings)
    start = time.perf_counter()
    with runtime.threads(s.threads):
        f, g, law, trained = train(s)
        result = measure(f, g, law, s)
        result["steps"] = trained.steps
        if published is not None:
            result["published"] = published(s.model_dump(mode="json"))
        z = sphere.uniform(N_SIDECAR, s.dim, generator=torch.Generator().manual_seed(0))
        arrays = {"z": z.numpy(), "h": embed(f, g, z).numpy()}
    record = records.Record(
        experiment=experiment,
        settings=s.model_dump(mode="json"),
        result=records.jsonable(result),
        history=trained.history,  # type: ignore[arg-type]
        environment=records.environment(device=s.device, precision=trained.precision, threads=s.threads),
        seconds=time.perf_counter() - start,
        finished=time.time(),
    )
    return record, arrays


@torch.no_grad()
def embed(f: nn.Module, g: nn.Module, z: Tensor) -> Tensor:
    """h(z) in eval mode, on the CPU."""
    where = next(f.parameters()).device
    f.eval()
    return f(g(z.to(where))).float().cpu()


def measure(f: nn.Module, g: nn.Module, law: pairs.PairLaw, s: Settings) -> dict[str, Any]:
    """Recovery on fresh anchors, the loss on fresh draws, the prediction, and what the map is."""
    z = sphere.uniform(N_SCORED, s.dim, generator=stream(s.seed, "score"))
    h = embed(f, g, z)
    score = metrics.score(z, h)
    on_law = law if s.pairs != "tagged" else pairs.Mixture(held=law.held, moved=law.moved, share=law.share)  # type: ignore[attr-defined]
    rho = share_on_fibre(s) if hasattr(on_law, "sample_support") else 0.0
    where = next(f.parameters()).device.type
    loss = training.evaluate(
        f, g, on_law, temperature=s.temperature, rho=rho, generator=stream(s.seed, "loss", where)
    )
    floor = theory.floor(s.dim, temperature=s.temperature)
    found = diagnosis.diagnose(z, h, law)
    return {
        "r2": score.r2,
        "r2_per_coordinate": score.r2_parts.per_coordinate,
        "r2_pooled": score.r2_parts.pooled,
        "mcc": score.mcc,
        "mcc_reference": score.mcc_parts.reference,
        "ape": score.ape,
        "undefined": score.undefined,
        "loss": loss.loss,
        "loss_minus_log_m": loss.loss_minus_log_m,
        "loss_standard_error": loss.standard_error,
        "m": loss.m,
        "above_floor": loss.loss_minus_log_m - floor if rho == 0 else None,
        "predicted": predicted(on_law, s, loss.m),
        "orthogonal_loss": isometry_loss(on_law, s),
        "diagnosis": found.kind,
        "evidence": found.evidence,
        "sentence": found.sentence,
    }


def predicted(law: pairs.PairLaw, s: Settings, m: int) -> dict[str, float | None] | None:
    """Where theory says this run ends, at M = m negatives; None where it does not say.

    Under full support with κ = 1/τ every minimiser is an isometry. A linear encoder on the identity or a linear
    process can represent the squeeze family and little else. An MLP goes on to the floor of the standard loss, where
    no readout is determined, or to great subspheres where those are the minimisers of the corrected loss.
    """
    if s.loss in ("uniformity", "tagged") or (
        s.encoder == "inverse" and s.process not in ("identity", "linear")
    ):
        return None
    try:
        p = theory.predict(law, temperature=s.temperature, rho=share_on_fibre(s))
    except (ValueError, TypeError):
        return None
    if s.pairs == "holds" and p.orthogonal_is_minimiser:
        return {"loss_minus_log_m": p.loss_minus_log_m("orthogonal", m=m), "r2": 1.0, "ape": 0.0}
    if s.encoder == "inverse" or p.squeeze.limit == "great_subspheres":
        return {
            "loss_minus_log_m": p.loss_minus_log_m("squeeze", m=m),
            "r2": p.squeeze.r2,
            "ape": p.squeeze.ape,
        }
    if s.pairs == "violated" and s.loss == "standard":
        return {"loss_minus_log_m": p.loss_minus_log_m("floor", m=m), "r2": None, "ape": None}
    if s.pairs == "violated" and s.loss == "corrected" and p.orthogonal_is_minimiser:
        return {"loss_minus_log_m": p.loss_minus_log_m("orthogonal", m=m), "r2": None, "ape": None}
    return None


def isometry_loss(law: pairs.PairLaw, s: Settings) -> float | None:
    """L∞ of an isometry under the run's law and loss; None where there is no closed form."""
    try:
        return theory.predict(law, temperature=s.temperature, rho=share_on_fibre(s)).orthogonal_loss
    except (ValueError, TypeError):
        return None


def choose_processes(names: list[str] | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The processes named on the command line, in the experiment's order."""
    for name in names or ():
        checks.choice("process", name, allowed)
    return tuple(name for name in allowed if not names or name in names)
