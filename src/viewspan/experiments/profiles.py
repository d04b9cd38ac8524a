"""What the experiments share: the seeds of a profile, settings checked whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from viewspan import checks

SEEDS = {"quick": 1, "paper": 5}  # a profile's own number


def choose_seeds(profile: str, seeds: int | None, known: Mapping[str, int] = SEEDS) -> range:
    """The seeds 0, 1, … of a profile: as many as asked for, else the profile's own number."""
    checks.choice("profile", profile, tuple(known))
    return range(checks.integer("seeds", known[profile] if seeds is None else seeds, low=1))


def validated(model: type[pydantic.BaseModel], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings checked and filled in with every default, as JSON values; the error names the field and the rule."""
    try:
        return model.model_validate(settings).model_dump(mode="json")
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}, got {first['input']!r}") from None
