"""Pair laws: how a positive z⁺ is drawn for an anchor z on the sphere, and what that leaves unmoved.

A law satisfies the diversity condition iff the uniform law of the latents is absolutely continuous with respect to
P(z⁺|z) for almost every z: then positives reach everything (arXiv 2606.04280, section 4).

An own law is a subclass of `PairLaw` with three members::

    class Antipodal(PairLaw):
        dim = 3
        diversity = Diversity(False, 0, 2, "z⁺ is ±z: two points")

        def sample(self, z, generator):
            flip = torch.rand(z.shape[:-1], generator=generator, device=z.device) < 0.5
            return torch.where(flip[..., None], -z, z)

It can be trained on and measured. To be predicted and diagnosed it also writes `describe`, which says in numbers what
it holds and what it moves; a law that does is a subclass of `DescribedLaw`, and its diversity follows.
"""

from viewspan.pairs.law import (
    CONVENTIONS,
    Convention,
    DescribedLaw,
    Description,
    Diversity,
    PairBatch,
    PairLaw,
    described,
)
from viewspan.pairs.laws import FixedLatents, FullSupport, Jittered, Mixture, Tagged

__all__ = [
    "CONVENTIONS",
    "Convention",
    "DescribedLaw",
    "Description",
    "Diversity",
    "FixedLatents",
    "FullSupport",
    "Jittered",
    "Mixture",
    "PairBatch",
    "PairLaw",
    "Tagged",
    "described",
]
