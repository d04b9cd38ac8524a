"""Shared by all tests: a generator per test and deterministic, unhurried property tests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("viewspan", derandomize=True, deadline=None, max_examples=15, database=None)
settings.load_profile("viewspan")


@pytest.fixture
def rng() -> torch.Generator:
    """A fresh generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
