"""Random numbers that belong to an image: a pure function of (seed, epoch, image index, view, operation).

Nothing is drawn in sequence, so neither the batch an image falls into, nor the order of images, nor the number of
workers can change what it gets; and no global generator is touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from viewspan import checks

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one view of some images.

    Args:
        seed: the run's seed.
        epoch: the pass over the data, ≥ 0.
        view: 0 or 1 for the two views of a pair; more for more.
        indices: uint64 (n,), each image's position in its set.
    """

    seed: int
    epoch: int
    view: int
    indices: np.ndarray

    @classmethod
    def of(cls, *, seed: int, epoch: int, view: int, indices: torch.Tensor | Sequence[int]) -> Draws:
        """Check the four and put them together."""
        at = np.asarray(torch.as_tensor(indices).cpu()).reshape(-1)
        if at.dtype.kind != "i" or (at.size and at.min() < 0):
            raise ValueError(f"indices must be integers ≥ 0, got dtype {at.dtype}")
        return cls(
            seed=checks.integer("seed", seed),
            epoch=checks.integer("epoch", epoch, low=0),
            view=checks.integer("view", view, low=0),
            indices=at.astype(np.uint64),
        )

    def rows(self, at: np.ndarray | slice) -> Draws:
        """The draws of some of the images."""
        return Draws(self.seed, self.epoch, self.view, self.indices[at])

    def uniform(self, operation: str, count: int) -> np.ndarray:
        """Independent uniform numbers in [0, 1), float64 (n, count), the same whatever else is in the batch."""
        bits = _mix(
            _mix(self.indices[:, None] ^ self._key(operation))
            + np.arange(1, count + 1).astype(np.uint64) * _GOLDEN
        )
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def seeds(self, operation: str) -> list[int]:
        """One 63-bit seed an image, for code that brings its own generator."""
        return [int(bits >> np.uint64(1)) for bits in _mix(_mix(self.indices ^ self._key(operation)))]

    def _key(self, operation: str) -> np.uint64:
        text = f"{self.seed}/{self.epoch}/{self.view}/{operation}"
        return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def _mix(x: np.ndarray) -> np.ndarray:
    """The 64-bit finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection whose output looks random."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@contextlib.contextmanager
def seeded_globals() -> Iterator[None]:
    """Put the global generators of Python, NumPy and torch (CPU) back as they were after the block."""
    python, numpy, default = random.getstate(), np.random.get_state(), torch.random.default_generator
    before = default.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        default.set_state(before)


def seed_globals(seed: int) -> None:
    """Seed the three global generators, inside `seeded_globals`."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.random.default_generator.manual_seed(seed)
