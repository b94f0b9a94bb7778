"""Uniform noise from an explicit generator, and what turns it into bits."""

from typing import Any

import torch
from torch import Generator, Tensor

__all__ = ["generator_keyword", "indicator", "normal", "uniform"]


def uniform(n: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Draw `[n, *like.shape]` uniforms on [0, 1), in the dtype of `like`."""
    return torch.rand(n, *like.shape, **generator_keyword(generator), dtype=like.dtype, device=like.device)


def normal(n: int, like: Tensor, generator: Generator | None) -> Tensor:
    """Draw `[n, *like.shape]` standard normals, in the dtype of `like`."""
    return torch.randn(n, *like.shape, **generator_keyword(generator), dtype=like.dtype, device=like.device)


def generator_keyword(generator: Generator | None) -> dict[str, Any]:
    """Return the generator as a keyword, or none at all: a compiler that is told of None takes one batch size only."""
    return {} if generator is None else {"generator": generator}


def indicator(x: Tensor) -> Tensor:
    """Return 1 where x > 0 and 0 elsewhere, in the dtype of x: by way of bool it takes three times as long on a CPU."""
    if torch.compiler.is_compiling():
        return (x > 0).to(x.dtype)
    return x.sign().relu_()
