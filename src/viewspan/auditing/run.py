"""The audit's front door: from whatever the user has to an `Audit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from viewspan import checks
from viewspan.auditing import paired as paired_audit
from viewspan.auditing import sources, verdict
from viewspan.auditing.verdict import Audit


def audit(
    data: Any,
    *,
    pairs: tuple[str, str] = ("a", "b"),
    lag: int | None = None,
    session: str | None = None,
    factors: Sequence[str] | None = None,
    cluster: str | None = None,
    noise: float | Sequence[float] | None = None,
    require_moved: Sequence[str] = (),
    require_held: Sequence[str] = (),
    skip_bad: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> Audit:
    """Which factors do these pairs or views never move, and how far are they from the diversity condition?

    Example:
        >>> import numpy as np
        >>> report = audit({"side": np.array([["left", "left"], ["right", "right"]] * 20)})
        >>> report.factor("side").verdict
        'never seen to move'
    """
    checks.integer("resamples", resamples, low=100)
    if isinstance(data, str | Path):
        paired = sources.read(
            Path(data), pairs=pairs, lag=lag, session=session, cluster=cluster, skip_bad=skip_bad
        )
        source = str(data)
    else:
        arrays = data if isinstance(data, Mapping) else {"views": data}
        arrays = {name: np.asarray(a) for name, a in arrays.items()}
        source = "arrays in memory"
        if lag is not None:
            paired = sources.lagged(arrays, lag=lag, session=session, cluster=cluster, skip_bad=skip_bad)
        else:
            paired = sources.from_arrays(arrays, pairs=pairs, cluster=cluster, skip_bad=skip_bad)
    if factors is not None:
        sources.select(paired, factors)
    report = paired_audit.audit_paired(paired, source=source, noise=noise, resamples=resamples, seed=seed)
    report.settings = {
        "source": source, "pairs": list(pairs), "lag": lag, "session": session,
        "factors": None if factors is None else list(factors), "cluster": cluster, "noise": noise,
        "require_moved": list(require_moved), "require_held": list(require_held), "skip_bad": skip_bad,
        "resamples": resamples, "seed": seed,
    }  # fmt: skip
    report.gates = verdict.check_requirements(report.factors, moved=require_moved, held=require_held)
    return report
