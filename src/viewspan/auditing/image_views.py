"""Audit view pipelines on images: factors, support dimension, which operation moves what, comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from viewspan import images, runtime
from viewspan.auditing import dimension, factors, icc
from viewspan.auditing.dimension import Support
from viewspan.auditing.verdict import MOVED, MOVED_FROM, Audit, Factor, Operation, decide
from viewspan.images.views import ViewPipeline

Floats = npt.NDArray[np.float64]

CHUNK_VALUES = 10_000_000  # float values worked on at a time: 40 MB, above what malloc keeps for itself
MAX_DATA = 2000  # images used for the data's dimension
_UNSEEN = 1 << 32  # positions no image set reaches: draws for the views of one anchor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How much of the data is looked at.

    Attributes:
        n_anchors, n_views: images, and views of each, for the factors.
        support_anchors, support_views: images, and views of each, for the support dimension; 0 anchors skips it.
        operation_anchors, operation_views: the same for the operation × factor matrix; 0 anchors skips it.
        resamples: bootstrap resamples.
        seed: of the choice of images, the views and the resampling.
        device: where views are made, as in `runtime.device`; factors are measured on the CPU.
    """

    n_anchors: int = 300
    n_views: int = 16
    support_anchors: int = 20
    support_views: int = 250
    operation_anchors: int = 100
    operation_views: int = 8
    resamples: int = 1000
    seed: int = 0
    device: str = "cpu"


def audit_images(
    data: images.ImageSet,
    pipelines: Sequence[ViewPipeline],
    *,
    names: Sequence[str] = factors.NAMES,
    own: Mapping[str, factors.Factor] | None = None,
    clusters: npt.NDArray[np.generic] | None = None,
    sampling: Sampling,
) -> list[Audit]:
    """One audit for each pipeline, on the same images and draws; copies of an image count once."""
    data, clusters = _without_copies(data, clusters)
    order = np.random.default_rng(sampling.seed).permutation(len(data))
    chosen = np.sort(order[: sampling.n_anchors])
    if len(chosen) < 2:
        raise ValueError(f"an audit needs at least 2 distinct images, got {len(chosen)}")
    cloud = _data_cloud(data, order[:MAX_DATA])
    found: list[Audit] = []
    for pipeline in pipelines:
        pipeline, notes = _unnormalised(pipeline)
        values = measure_views(
            data, pipeline, chosen, names=names, own=own, n_views=sampling.n_views, sampling=sampling
        )
        labels = None if clusters is None else clusters[chosen]
        measured = [
            Factor(
                name=name, kind="numeric",
                stability=icc.stability(x, clusters=labels, resamples=sampling.resamples, seed=sampling.seed),
            )
            for name, x in values.items()
        ]  # fmt: skip
        support = _support(data, pipeline, cloud, chosen, sampling)
        operations, more = _operations(data, pipeline, chosen, measured, names, own, sampling)
        verdict, sentence = decide(measured, support, None, content_held=True, say_content=not found)
        found.append(
            Audit(
                verdict=verdict, sentence=sentence, source=data.source, views=pipeline.name, factors=measured,
                support=support, held=None, coordinates=(), operations=operations, n_anchors=len(chosen),
                n_views=sampling.n_views, duplicates=data.duplicates,
                skipped=[{"name": name, "reason": reason} for name, reason in data.skipped], notes=notes + more,
                examples=examples(data, pipeline, chosen, sampling),
            )
        )  # fmt: skip
    return found


def measure_views(
    data: images.ImageSet,
    pipeline: ViewPipeline,
    anchors: npt.NDArray[np.integer],
    *,
    names: Sequence[str],
    own: Mapping[str, factors.Factor] | None = None,
    n_views: int,
    sampling: Sampling,
) -> dict[str, Floats]:
    """Factors of n_views views of each anchor, shape (n, k) or (n, k, c) each; images stream through in chunks.

    Views 2e and 2e + 1 are the two views of epoch e, as in training.
    """
    out: dict[str, Floats] = {}
    for rows, batch in _chunks(data, anchors):
        called = [data.names[i] for i in anchors[rows]]
        for v in range(n_views):
            key = {"seed": sampling.seed, "epoch": v // 2, "view": v % 2}
            x = _views(pipeline, batch, sampling.device, key, anchors[rows].tolist(), called)
            for name, value in factors.measure(x, names, own).items():
                shape = (len(anchors), n_views, *value.shape[1:])
                out.setdefault(name, np.full(shape, np.nan))[rows, v] = value
    return out


def _views(
    pipeline: ViewPipeline,
    batch: Tensor,
    device: str,
    key: Mapping[str, int],
    indices: Sequence[int],
    names: Sequence[str] | None,
) -> Tensor:
    """Views made on the device, back on the CPU."""
    return pipeline(batch.to(runtime.device(device)), **key, indices=indices, names=names).cpu()


def examples(
    data: images.ImageSet, pipeline: ViewPipeline, chosen: npt.NDArray[np.integer], sampling: Sampling
) -> npt.NDArray[np.uint8] | None:
    """Views to look at, uint8 (anchors, views, C, H, W) of at most 96 pixels a side; None if channels are no colours."""
    shape = tuple(data.images[int(chosen[0])].shape)
    rows = np.array([i for i in chosen if tuple(data.images[int(i)].shape) == shape][:6])
    if shape[0] not in (1, 3):
        return None
    batch = torch.stack([data.images[int(i)] for i in rows])
    called = [data.names[int(i)] for i in rows]
    shown = []
    for v in range(6):
        key = {"seed": sampling.seed, "epoch": v // 2, "view": v % 2}
        x = _views(pipeline, batch, sampling.device, key, rows.tolist(), called)
        if max(x.shape[2:]) > 96:
            scale = 96 / max(x.shape[2:])
            x = torch.nn.functional.interpolate(x, scale_factor=scale, mode="bilinear", antialias=True)
        shown.append((x.clamp(0, 1) * 255).round().to(torch.uint8))
    return torch.stack(shown, 1).numpy()


def compare(audits: Sequence[Audit]) -> dict[str, object]:
    """What each further pipeline moves that the first does not, and misses; no order of merit: that needs a task."""
    first = {f.name: f for f in audits[0].factors}
    rows, parts = [], []
    for audit in audits[1:]:
        both = [(f, first[f.name]) for f in audit.factors if f.name in first]
        more = [f.name for f, other in both if f.verdict == MOVED != other.verdict]
        less = [f.name for f, other in both if f.verdict != MOVED == other.verdict]
        rows.append(
            {"views": audit.views, "moves_that_first_does_not": more, "first_moves_that_it_does_not": less}
        )
        parts.append(
            f"{audit.views} moves {', '.join(more) or 'nothing'} that {audits[0].views} does not and misses "
            f"{', '.join(less) or 'nothing'} that {audits[0].views} moves"
        )
    return {"pipelines": rows, "sentence": "; ".join(parts)}


def _without_copies(
    data: images.ImageSet, clusters: npt.NDArray[np.generic] | None
) -> tuple[images.ImageSet, npt.NDArray[np.generic] | None]:
    """The set with the first image of each group of copies; the groups stay listed."""
    drop = {name for group in data.duplicates for name in group[1:]}
    if not drop:
        return data, clusters
    keep = [i for i, name in enumerate(data.names) if name not in drop]
    kept = dataclasses.replace(data.subset(keep), duplicates=data.duplicates)
    return kept, None if clusters is None else clusters[keep]


def _unnormalised(pipeline: ViewPipeline) -> tuple[ViewPipeline, list[str]]:
    """The pipeline without steps that only rescale values, which would change the meaning of colour."""
    scaling = [name for name in pipeline.names if name.split("-")[0] == "Normalize"]
    if not scaling or len(scaling) == len(pipeline.names):
        return pipeline, []
    kept = dataclasses.replace(pipeline.without(*scaling), name=pipeline.name)
    return kept, [f"{', '.join(scaling)} left out: it only rescales, and colours are measured in [0, 1]"]


def _chunks(
    data: images.ImageSet, rows: npt.NDArray[np.integer], *, copies: int = 1
) -> Iterator[tuple[npt.NDArray[np.integer], Tensor]]:
    """Positions in `rows` and their images, in stacks of one size that fit the memory bound."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for at, i in enumerate(rows):
        by_shape.setdefault(tuple(data.images[int(i)].shape), []).append(at)
    for shape, positions in by_shape.items():
        size = max(1, CHUNK_VALUES // (int(np.prod(shape)) * copies))
        for start in range(0, len(positions), size):
            part = np.array(positions[start : start + size])
            yield part, torch.stack([data.images[int(i)] for i in rows[part]])


def _data_cloud(data: images.ImageSet, rows: npt.NDArray[np.integer]) -> Floats:
    out: list[Floats] = [np.zeros(0)] * len(rows)
    for part, batch in _chunks(data, rows):
        small = _flat(images.views.as_float(batch))
        for at, row in zip(part, small):
            out[at] = row
    widest = max(len(row) for row in out)
    return np.stack([row for row in out if len(row) == widest])  # images smaller than the rest are left out


def _flat(x: Tensor) -> npt.NDArray[np.float32]:
    return factors.pooled(x, factors.SUPPORT_SIZE).flatten(1).numpy()


def _support(
    data: images.ImageSet,
    pipeline: ViewPipeline,
    cloud: Floats,
    chosen: npt.NDArray[np.integer],
    sampling: Sampling,
) -> Support:
    clouds = []
    step = max(len(chosen) // max(sampling.support_anchors, 1), 1)
    for a, i in enumerate(chosen[::step][: sampling.support_anchors]):
        image = data.images[int(i)]
        size = max(1, CHUNK_VALUES // image.numel())
        parts = []
        for start in range(0, sampling.support_views, size):
            n = min(size, sampling.support_views - start)
            at = range(_UNSEEN * (a + 1) + start, _UNSEEN * (a + 1) + start + n)
            key = {"seed": sampling.seed, "epoch": 0, "view": 0}
            called = [data.names[int(i)]] * n
            batch = image.expand(n, *image.shape)
            parts.append(_flat(_views(pipeline, batch, sampling.device, key, list(at), called)))
        clouds.append(np.concatenate(parts))
    return dimension.support(cloud, clouds, None)


def _operations(
    data: images.ImageSet,
    pipeline: ViewPipeline,
    chosen: npt.NDArray[np.integer],
    whole: Sequence[Factor],
    names: Sequence[str],
    own: Mapping[str, factors.Factor] | None,
    sampling: Sampling,
) -> tuple[list[Operation], list[str]]:
    """Each operation alone, and the pipeline without it."""
    steps = [
        name
        for name in pipeline.names
        if pipeline.only(name).names == (name,) or not _converts(pipeline, name)
    ]
    anchors = chosen[:: max(len(chosen) // max(sampling.operation_anchors, 1), 1)][
        : sampling.operation_anchors
    ]
    if len(steps) < 2 or len(anchors) < 2 or sampling.operation_views < 2:
        return [], []
    moved = [f.name for f in whole if f.verdict == MOVED]
    found, notes = [], []

    def shares(part: ViewPipeline) -> dict[str, float | None]:
        values = measure_views(
            data, part, anchors, names=names, own=own, n_views=sampling.operation_views, sampling=sampling
        )
        return {name: _share(x) for name, x in values.items()}

    for name in steps:
        try:
            alone, without = shares(pipeline.only(name)), shares(pipeline.without(name))
            fired = _fired(data, pipeline.only(name), anchors, sampling)
        except ValueError as error:
            notes.append(f"operation {name} cannot be taken apart from the others: {error}")
            continue
        only = tuple(f for f in moved if (without[f] or 0.0) < MOVED_FROM)
        found.append(Operation(name=name, alone=alone, without=without, only_mover_of=only, fired=fired))
    return found, notes


def _converts(pipeline: ViewPipeline, name: str) -> bool:
    """Whether a step stays when others are asked for alone: a conversion, not an operation."""
    others = [n for n in pipeline.names if n != name]
    return bool(others) and name in pipeline.only(others[0]).names


def _share(x: Floats) -> float | None:
    share = icc.stability(x, resamples=0).icc
    return None if share is None else 1 - share


def _fired(
    data: images.ImageSet,
    pipeline: ViewPipeline,
    anchors: npt.NDArray[np.integer],
    sampling: Sampling,
    views: int = 4,
) -> float:
    """Share of views that differ from their image by more than rounding."""
    changed = total = 0
    for rows, batch in _chunks(data, anchors):
        plain = images.views.as_float(batch)
        for v in range(views):
            key = {"seed": sampling.seed, "epoch": v, "view": 0}
            x = _views(pipeline, batch, sampling.device, key, anchors[rows].tolist(), None)
            total += len(x)
            if x.shape != plain.shape:
                changed += len(x)
            else:
                changed += int(((x - plain).abs().flatten(1).amax(1) > 0.6 / 255).sum())
    return changed / total
