"""The experiments of arXiv 2606.04280 and what lies beyond them: settings in, records out.

Each experiment is a module with the same three functions: `cells(...)` lists the runs of a profile, `run(settings)`
makes one record, and `table(records)` turns records into the document the command line prints.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from typing import Any


@functools.cache
def published() -> dict[str, Any]:
    """Every published number used here, by table, as printed in arXiv 2606.04280 (CC BY 4.0)."""
    return json.loads(importlib.resources.files(__package__).joinpath("published.json").read_text("utf-8"))
