"""What an audit found: verdicts, the sentence, gates, and the JSON document."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from viewspan import checks, records
from viewspan.auditing.dimension import Support
from viewspan.auditing.held import HeldDirections
from viewspan.auditing.icc import Stability

SCHEMA = "viewspan-audit-1"

MOVED = "moved"
WEAKLY = "weakly"
NEVER = "never seen to move"
NOT_MEASURABLE = "not measurable here"

FAILS = "diversity fails"
UNDECIDED = "undecided"
NO_VIOLATION = "no violation seen"

MOVED_FROM = 0.1  # share moved whose interval must lie above for "moved"
NEVER_BELOW = 0.01  # share moved whose interval must lie below for "never seen to move"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Factor:
    """One audited factor.

    Attributes:
        name: the factor.
        kind: ``numeric`` or ``categorical``.
        stability: its ICC(1), or agreement against chance for categories, with interval and reach.
    """

    name: str
    kind: str
    stability: Stability

    @property
    def moved_share(self) -> float | None:
        """S = 1 − ICC: 0 = never moves."""
        return None if self.stability.icc is None else 1 - self.stability.icc

    @property
    def moved_interval(self) -> tuple[float, float] | None:
        """95 % interval of S; the point itself where no interval could be had."""
        if self.stability.interval is None:
            return None if self.moved_share is None else (self.moved_share, self.moved_share)
        low, high = self.stability.interval
        return 1 - high, 1 - low

    @property
    def verdict(self) -> str:
        """moved (S surely above .1), never seen to move (surely below .01), weakly, or not measurable here."""
        interval = self.moved_interval
        if interval is None:
            return NOT_MEASURABLE
        if interval[1] <= NEVER_BELOW:
            return NEVER
        return MOVED if interval[0] >= MOVED_FROM else WEAKLY

    def to_json(self) -> dict[str, Any]:
        s = self.stability
        return {
            "name": self.name,
            "kind": self.kind,
            "icc": s.icc,
            "interval": list(s.interval) if s.interval else None,
            "moved_share": self.moved_share,
            "reach": s.reach,
            "verdict": self.verdict,
            "n_anchors": s.n_anchors,
            "undefined": s.undefined,
            "form": s.form,
            "reason": s.reason,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """A requirement on one factor, and whether it is met.

    Attributes:
        requires: ``moved`` or ``held``.
        factor: its name.
        share: S: *moved* needs the whole interval of 1 − ICC at or above it, *held* at or below it.
        met: whether it is.
        reason: what was measured.
    """

    requires: str
    factor: str
    share: float
    met: bool
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """What one operation of a pipeline does to the factors.

    Attributes:
        name: the operation; its position if the name is not unique.
        alone: S = 1 − ICC of each factor when only this operation runs.
        without: S of each factor when everything but this operation runs.
        only_mover_of: factors that the pipeline moves and that nothing moves once this operation is gone.
        fired: share of views that it changes.
    """

    name: str
    alone: dict[str, float | None]
    without: dict[str, float | None]
    only_mover_of: tuple[str, ...]
    fired: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A mechanical fault of a view pipeline: which rule, what was seen, what to do."""

    id: str
    message: str
    fix: str
    operation: str | None = None


@dataclasses.dataclass(kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        verdict: ``diversity fails`` (something is held), ``undecided`` (held or moved less than can be told),
            ``no violation seen`` (which is not a proof), or ``not measurable here``.
        sentence: the finding in words.
        source, views: what was audited.
        factors: one entry a factor.
        support: support dimension of the views against the data's.
        held: held linear directions, or None where there is no embedding to look at.
        coordinates: names of the embedding's coordinates.
        operations: operation × factor matrix of a view pipeline.
        lint: mechanical faults.
        n_anchors, n_views: sample size.
        duplicates: groups of anchors that are copies of one another, counted once.
        skipped: inputs left out, with the reason.
        notes: what the reader must know.
        gates: requirements and whether they are met.
        others: audits of the other pipelines, where several were given.
        comparison: what each further pipeline moves that the first does not, and misses.
        settings: everything that decides the result.
        examples: some views to look at, uint8 (anchors, views, C, H, W); kept beside a record, not in the JSON.
    """

    verdict: str
    sentence: str
    source: str
    views: str | None
    factors: list[Factor]
    support: Support
    held: HeldDirections | None
    coordinates: tuple[str, ...]
    n_anchors: int
    n_views: int
    operations: list[Operation] = dataclasses.field(default_factory=list)
    lint: list[Fault] = dataclasses.field(default_factory=list)
    duplicates: list[list[str]] = dataclasses.field(default_factory=list)
    skipped: list[dict[str, str]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    gates: list[Gate] = dataclasses.field(default_factory=list)
    others: list[Audit] = dataclasses.field(default_factory=list)
    comparison: dict[str, Any] | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    examples: npt.NDArray[np.uint8] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def met(self) -> bool:
        """Whether every gate is met."""
        return all(gate.met for gate in self.gates)

    def factor(self, name: str) -> Factor:
        """The factor of this name."""
        for factor in self.factors:
            if factor.name == name:
                return factor
        raise ValueError(f"factor must be one of {', '.join(f.name for f in self.factors)}, got {name!r}")

    def to_json(self) -> dict[str, Any]:
        """The document that `schema.json` describes; no Infinity or NaN: null and a reason."""
        s = self.support
        support = {
            "views_dim": s.views_dim,
            "views_interval": s.views_interval,
            "data_dim": s.data_dim,
            "data_interval": s.data_interval,
            "deficit": s.deficit,
            "copies": s.copies,
            "data_copies": s.data_copies,
            "displacement_rank": s.displacement_rank,
            "tangent_rank": s.tangent_rank,
            "reason": s.reason,
        }
        document = {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "source": self.source,
            "views": self.views,
            "factors": [factor.to_json() for factor in self.factors],
            "support": support,
            "held_directions": [] if self.held is None else _held_json(self.held, self.coordinates),
            "held": None if self.held is None else _held_summary(self.held),
            "operations": [dataclasses.asdict(o) for o in self.operations],
            "lint": [dataclasses.asdict(f) for f in self.lint],
            "n_anchors": self.n_anchors,
            "n_views": self.n_views,
            "duplicates": sum(len(group) - 1 for group in self.duplicates),
            "duplicate_groups": self.duplicates,
            "skipped": self.skipped,
            "notes": self.notes,
            "gates": [dataclasses.asdict(g) for g in self.gates],
            "pipelines": [other.to_json() for other in self.others],
            "comparison": self.comparison,
            "settings": self.settings,
        }
        plain = records.jsonable(document)
        assert isinstance(plain, dict)
        return plain


def decide(
    factors: Sequence[Factor],
    support: Support,
    held: HeldDirections | None,
    *,
    content_held: bool,
    say_content: bool = True,
) -> tuple[str, str]:
    """The verdict and its sentence.

    Args:
        factors, support, held: what was measured.
        content_held: True for views of images, where what is shown never changes.
        say_content: False leaves that out of the sentence: the first of several pipelines says it for all.
    """
    never = [f.name for f in factors if f.verdict == NEVER]
    weakly = [f.name for f in factors if f.verdict == WEAKLY]
    moved = [f.name for f in factors if f.verdict == MOVED]
    unseen = [f.name for f in factors if f.verdict == NOT_MEASURABLE]
    exact = [d for d in held.directions if d.status == "held"] if held else []
    unsure = [d for d in held.directions if d.status != "held"] if held else []
    deficit = _has_deficit(support)
    parts = []
    if content_held and not say_content:
        parts.append("content is held, as above")
    if content_held and say_content:
        parts.append(
            "views of one image all show the same content, so the condition fails for every such pipeline"
        )
    if never:
        parts.append(f"never seen to move: {', '.join(never)}")
    if weakly:
        parts.append(f"weakly moved: {', '.join(weakly)}")
    if moved:
        parts.append(f"moved: {', '.join(moved)}")
    if unseen:
        parts.append(f"not measurable here: {', '.join(unseen)}")
    if held and (held.directions or not factors or (not held.rank and held.floor != "unknown")):
        parts.append(held.sentence)
    parts.append(_support_sentence(support))
    if never or exact or deficit or content_held:
        verdict = FAILS
    elif unsure:
        verdict = UNDECIDED
    elif not (weakly or moved) and not support.data_dim and not (held and held.rank):
        verdict = NOT_MEASURABLE
    else:
        verdict = NO_VIOLATION
        parts.append("which does not prove that the condition holds")
    sentence = "; ".join(p for p in parts if p)
    return verdict, f"{verdict}: {sentence}"


def without_interval(factors: Sequence[Factor]) -> list[str]:
    """A note on the factors whose verdict rests on the value alone."""
    names = [f.name for f in factors if f.stability.icc is not None and f.stability.interval is None]
    if not names:
        return []
    reason = next(f.stability.reason for f in factors if f.name == names[0])
    return [
        f"no interval, so verdicts are those of the values seen and no gate is met: {', '.join(names)} ({reason})"
    ]


def check_requirements(
    factors: Sequence[Factor], *, moved: Sequence[str] = (), held: Sequence[str] = ()
) -> list[Gate]:
    """Gates from requirements such as ``hue`` or ``hue=0.2``.

    Without a share, *moved* needs the verdict "moved" and *held* the verdict "never seen to move". A factor that
    cannot be measured meets neither.
    """
    gates = []
    by_name = {f.name: f for f in factors}
    for kind, items, default in (("moved", moved, MOVED_FROM), ("held", held, NEVER_BELOW)):
        for item in items:
            name, share = parse_requirement(f"require_{kind}", item, default)
            if name not in by_name:
                raise ValueError(
                    f"require_{kind} must name one of {', '.join(by_name) or 'no factor'}, got {name!r}"
                )
            gates.append(_gate(kind, by_name[name], share))
    return gates


def parse_requirement(argument: str, item: str, default: float) -> tuple[str, float]:
    """``NAME`` or ``NAME=S`` with S in [0, 2], above 0 for `require_moved`."""
    name, equals, text = item.rpartition("=")
    if not equals:
        return item, default
    try:
        share = float(text)
    except ValueError:
        raise ValueError(f"{argument} must be NAME or NAME=S with a number S, got {item!r}") from None
    never_fails = argument == "require_moved"  # S = 0 would be met by a factor that never moves
    return name, checks.number(f"{argument} {name}", share, low=0, high=2, open_low=never_fails)


def _gate(kind: str, factor: Factor, share: float) -> Gate:
    interval = factor.moved_interval
    if interval is None:
        met, reason = False, f"{factor.name} is not measurable here: {factor.stability.reason}"
    else:
        met = interval[0] >= share if kind == "moved" else interval[1] <= share
        reason = f"1 - ICC is {factor.moved_share:.3g}, 95 % interval {interval[0]:.3g} to {interval[1]:.3g}"
        if factor.stability.interval is None:
            reason = f"1 - ICC is {factor.moved_share:.3g}, without an interval ({factor.stability.reason})"
            met = False
    return Gate(requires=kind, factor=factor.name, share=share, met=met, reason=reason)


def _has_deficit(support: Support) -> bool:
    if support.displacement_rank is not None and support.tangent_rank is not None:
        return support.displacement_rank < support.tangent_rank
    if support.views_interval is None or support.data_interval is None:
        return False
    return support.views_interval[1] < support.data_interval[0]


def _support_sentence(support: Support) -> str:
    if support.views_dim == 0 and support.data_dim:
        return f"the views of one anchor do not move or take a few values (dimension 0, data {support.data_dim:.1f})"
    if support.views_dim is not None and support.data_dim is not None:
        merged = [
            f"{count} {what}"
            for count, what in ((support.copies, "views"), (support.data_copies, "rows of the data"))
            if count
        ]
        equal = f" ({' and '.join(merged)} that equal others up to rounding merged)" if merged else ""
        return f"views of one anchor have dimension {support.views_dim:.1f}, the data {support.data_dim:.1f}{equal}"
    if support.displacement_rank is not None:
        reached = f"{support.displacement_rank} of {support.tangent_rank}"
        return f"displacements reach at most {reached} local directions of the data"
    return ""


def _held_json(held: HeldDirections, coordinates: tuple[str, ...]) -> list[dict[str, Any]]:
    out = []
    for d in held.directions:
        strongest = sorted(zip(coordinates, d.correlations), key=lambda pair: -abs(pair[1]))[:5]
        out.append(
            {
                "status": d.status,
                "share": d.share,
                "sigma": d.sigma,
                "correlations": dict(strongest),
                "vector": d.vector,
            }
        )
    return out


def _held_summary(held: HeldDirections) -> dict[str, Any]:
    return {
        "sentence": held.sentence,
        "shares": held.shares,
        "floor": held.floor,
        "detectable": held.detectable,
        "rank": held.rank,
    }
