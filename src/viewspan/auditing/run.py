"""The audit's front door: from whatever the user has to an `Audit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from viewspan import checks, images
from viewspan.auditing import factors as bank
from viewspan.auditing import faults, files, image_views, recordings, sources, stems, verdict
from viewspan.auditing import paired as paired_audit
from viewspan.auditing.image_views import Sampling
from viewspan.auditing.verdict import Audit, Fault
from viewspan.images import named

Factors = Sequence[str] | Mapping[str, bank.Factor]


def audit(
    data: Any,
    *,
    views: Any = None,
    pairs: tuple[str, str] = ("a", "b"),
    lag: int | None = None,
    session: str | None = None,
    group: str | None = None,
    factors: Factors | None = None,
    cluster: str | None = None,
    noise: float | Sequence[float] | None = None,
    require_moved: Sequence[str] = (),
    require_held: Sequence[str] = (),
    split: str | None = None,
    order: str = "fixed",
    sampling: Sampling | None = None,
    skip_bad: bool = False,
    workers: int = 0,
) -> Audit:
    """Which factors do these views never move, and how far are they from the diversity condition?

    For every factor: ICC(1) over the views of an anchor with a bootstrap interval; for the views as a whole their
    support dimension against the data's; for embeddings the linear directions that are held.

    Args:
        data: with `views`, images: a folder, ``cifar10``, an ``.npz`` file, ``package.module:name``, an array, a
            Dataset or an ImageSet. Without, what was made beforehand: a file (.npz, .npy, .csv, .tsv, .parquet), a
            DataFrame, an array (anchors, views, features…), or arrays by name.
        views: one view pipeline or a list of them: ``all``, ``crop``, ``all-without-crop``,
            ``package.module:name``, a YAML file, a callable or a ViewPipeline.
        pairs: names of the two views: arrays, or column suffixes (NAME_a, NAME_b).
        lag: pair rows of a recording (time, channels) this many steps apart.
        session: column that names each row's session; pairs stay inside one, and sessions are resampled.
        group: ``stem``: data is a folder of files NAME_VIEW.ext, views of NAME.
        factors: names to audit (default: all); for images also ``package.module:name`` of a map from float images
            (n, C, H, W) to (n,) numbers, or a mapping of names to such maps.
        cluster: column that names what to resample (patients); for images ``class``, the class folder.
        noise: standard deviation of measurement noise in each coordinate of an embedding, the floor for held
            directions; an array ``repeats`` in the data gives it from repeated measurement.
        require_moved: gates such as ``hue`` or ``hue=0.2``, a lower bound on S = 1 − ICC.
        require_held: gates in the same form, an upper bound on S.
        split: subfolder or CIFAR-10 split of images.
        order: ``fixed`` or ``random`` order of a pipeline's operations.
        sampling: how many anchors and views, resamples, the seed.
        skip_bad: leave out, and count, files that cannot be decoded and rows with missing values.
        workers: threads that decode image files.

    Returns:
        An `Audit`. "Never seen to move" is a statement at this sample size, and wide spread proves no full support.

    Example:
        >>> import numpy as np
        >>> report = audit({"side": np.array([["left", "left"], ["right", "right"]] * 20)})
        >>> report.factor("side").verdict
        'never seen to move'
    """
    sampling = sampling or Sampling()
    checks.integer("seed", sampling.seed, low=0)
    if len(pairs) != 2 or pairs[0] == pairs[1]:
        raise ValueError(f"pairs must be two different names, got {','.join(map(str, pairs))}")
    for name in ("n_anchors", "n_views", "support_views", "operation_views", "resamples"):
        checks.integer(name, getattr(sampling, name), low=2)
    for name in ("support_anchors", "operation_anchors"):
        checks.integer(name, getattr(sampling, name), low=0)
    if tuple(pairs) != ("a", "b"):
        for name, value in (("views", views), ("lag", lag), ("group", group)):
            _refuse(name, **({} if value is None else {"pairs": ",".join(pairs)}))
    settings = {
        "source": data if isinstance(data, str) else str(data) if isinstance(data, Path) else type(data).__name__,
        "views": [str(getattr(v, "name", v)) for v in _specs(views)], "pairs": list(pairs), "lag": lag,
        "session": session, "group": group, "factors": None if factors is None else list(factors),
        "cluster": cluster, "noise": noise, "require_moved": list(require_moved), "require_held": list(require_held),
        "split": split, "order": order, "skip_bad": skip_bad,
        "sampling": {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__},
    }  # fmt: skip
    if views is not None:
        _refuse("views", lag=lag, session=session, group=group, noise=noise)
        report = _images(
            data,
            views,
            factors,
            cluster,
            sampling,
            split=split,
            order=order,
            skip_bad=skip_bad,
            workers=workers,
        )
    else:
        if split is not None or order != "fixed" or workers:
            raise ValueError("split, order and workers apply to images with views only")
        wanted = None if factors is None else list(factors)
        paired, source = _paired(data, pairs, lag, session, group, cluster, wanted, skip_bad)
        if paired.pictures is not None:
            stems.measure_pictures(paired)
        if isinstance(factors, Mapping):
            raise TypeError("factors must be names: maps from images need views")
        if factors is not None:
            sources.select(paired, factors)
        report = paired_audit.audit_paired(
            paired, source=source, noise=noise, resamples=sampling.resamples, seed=sampling.seed
        )
    report.settings = settings
    report.gates = verdict.check_requirements(report.factors, moved=require_moved, held=require_held)
    for each in (report, *report.others):
        each.notes += verdict.without_interval(each.factors)
    for other in report.others:
        other.gates = verdict.check_requirements(other.factors, moved=require_moved, held=require_held)
        report.gates += [_named(gate, other) for gate in other.gates]
    return report


def lint(
    data: Any,
    *,
    views: Any,
    split: str | None = None,
    order: str = "fixed",
    skip_bad: bool = False,
    seed: int = 0,
) -> list[Fault]:
    """Mechanical faults of a view pipeline on the first images of a set, in seconds.

    Args:
        data: images, as for `audit`.
        views: one pipeline.
        split: as for `audit`.
        order: as for `audit`.
        skip_bad: as for `audit`.
        seed: of the views looked at.

    Returns:
        One `Fault` a finding, with the rule's id, what was seen and what to do; empty if there is none.
    """
    loaded = images.load(data, split=split, skip_bad=skip_bad)
    return faults.find(loaded, images.views.resolve(views, order=order), seed=seed)


def _images(
    data: Any,
    views: Any,
    factors: Factors | None,
    cluster: str | None,
    sampling: Sampling,
    *,
    split: str | None,
    order: str,
    skip_bad: bool,
    workers: int,
) -> Audit:
    pipelines = [images.views.resolve(spec, order=order) for spec in _specs(views)]
    if len({p.name for p in pipelines}) < len(pipelines):
        raise ValueError(f"views must be different pipelines, got {', '.join(p.name for p in pipelines)}")
    names, own = _image_factors(factors)
    loaded = images.load(data, split=split, skip_bad=skip_bad, workers=workers)
    clusters: npt.NDArray[Any] | None = None
    if cluster is not None:
        if cluster != "class" or loaded.labels is None:
            without = "" if loaded.labels is not None else ", and these images have no class folders"
            raise ValueError(
                f"cluster must be 'class' (the class folder) for images, got {cluster!r}{without}"
            )
        clusters = loaded.labels.numpy()
    audits = image_views.audit_images(
        loaded, pipelines, names=names, own=own, clusters=clusters, sampling=sampling
    )
    for report, pipeline in zip(audits, pipelines):
        report.lint = faults.find(loaded, pipeline, seed=sampling.seed)
    first = audits[0]
    first.others = audits[1:]
    first.comparison = image_views.compare(audits) if first.others else None
    return first


def _image_factors(factors: Factors | None) -> tuple[list[str], dict[str, bank.Factor]]:
    if factors is None:
        return list(bank.NAMES), {}
    if isinstance(factors, Mapping):
        return [], dict(factors)
    names, own = [], {}
    for name in factors:
        if named.is_named(name):
            own[name] = named.import_named(name, what="factors")
        else:
            names.append(checks.choice("factors", name, bank.NAMES))
    return names, own


def _paired(
    data: Any,
    pairs: tuple[str, str],
    lag: int | None,
    session: str | None,
    group: str | None,
    cluster: str | None,
    wanted: list[str] | None,
    skip_bad: bool,
) -> tuple[sources.Paired, str]:
    if group is not None:
        checks.choice("group", group, ("stem",))
        if not isinstance(data, str | Path):
            raise TypeError(f"group needs a folder, got {type(data).__name__}")
        _refuse("group", lag=lag, session=session, cluster=cluster)
        return stems.read_stems(Path(data), skip_bad=skip_bad), str(data)
    if isinstance(data, str | Path):
        path = Path(data)
        if not sources.is_paired_file(path):
            if not path.exists() and not str(data).startswith("cifar10") and not named.is_named(str(data)):
                raise FileNotFoundError(f"no such file or folder: {data}")
            raise ValueError(
                f"views must be given for images ({data}): all, crop, all-without-crop, package.module:name or "
                "FILE.yaml; group='stem' (--group stem) takes files NAME_VIEW.ext as views made beforehand"
            )
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {path}")
        table = path.suffix.lower() in sources.TABLES
        values, where, source = (files.read_table if table else files.read_arrays)(path), str(path), str(data)
    else:
        table = hasattr(data, "columns") and hasattr(data, "items")  # a DataFrame
        where, source = "data", "arrays in memory"
        values = {
            str(name): a.detach().cpu().numpy() if isinstance(a, torch.Tensor) else np.asarray(a)
            for name, a in (data if table or isinstance(data, Mapping) else {"views": data}).items()
        }
    if lag is not None:
        found = recordings.lagged(
            values, lag=lag, session=session, cluster=cluster, factors=wanted, skip_bad=skip_bad, where=where
        )
    elif session is not None:
        raise ValueError(
            f"session needs lag, got session={session!r} without it (to resample by it, use cluster)"
        )
    elif table:
        found = sources.from_columns(
            values, suffixes=pairs, cluster=cluster, wanted=wanted, skip_bad=skip_bad, where=where
        )
    else:
        found = sources.from_arrays(
            values, pairs=pairs, cluster=cluster, wanted=wanted, skip_bad=skip_bad, where=where
        )
    return found, source


def _specs(views: Any) -> list[Any]:
    if views is None:
        return []
    return list(views) if isinstance(views, list | tuple) else [views]


def _refuse(what: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} does not go with {what}, got {value!r}")


def _named(gate: verdict.Gate, other: Audit) -> verdict.Gate:
    return verdict.Gate(
        requires=gate.requires, factor=gate.factor, share=gate.share, met=gate.met,
        reason=f"{other.views}: {gate.reason}",
    )  # fmt: skip
