"""Generators made from a run's seed: one for each use, which never share numbers."""

import numpy as np
import torch
from torch import Generator

from arms.arguments import as_count


def seeded_generator(seed: int, stream: str, index: int = 0, device: str = "cpu") -> Generator:
    """Return a generator for one use of a run's seed; different uses never share numbers.

    >>> torch.rand(1, generator=seeded_generator(0, "init")) == torch.rand(1, generator=seeded_generator(0, "train"))
    tensor([False])
    """
    words = np.random.SeedSequence([as_count(seed, 0, "seed"), index, *stream.encode()]).generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))
