"""Latents: the discrete random variables, such as bits, categories and subsets."""

from arms.latents.base import (
    Binary,
    Choices,
    Couplable,
    Enumerable,
    ExchangeablePairs,
    HasMean,
    Latent,
    Neighbors,
    Relaxable,
)
from arms.latents.bits import Bits
from arms.latents.categories import Indices, OneHot
from arms.latents.convert import Logits, as_latent
from arms.latents.joint import Joint
from arms.latents.subset import Subset

__all__ = ["Bits", "Indices", "Joint", "Latent", "Logits", "OneHot", "Subset", "as_latent"]
__all__ += ["Binary", "Choices", "Couplable", "Enumerable", "ExchangeablePairs", "HasMean"]
__all__ += ["Neighbors", "Relaxable"]
