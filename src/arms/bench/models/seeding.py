"""Random generators made from a run's seed: one per use, none of which share numbers."""

import numpy as np
import torch
from torch import Generator

from arms.arguments import as_count


def seeded_generator(seed: int, stream: str, index: int = 0, device: str = "cpu") -> Generator:
    """Return the generator for one use, named by `stream` and `index`, of a run's seed; uses never share numbers.

    >>> torch.rand(1, generator=seeded_generator(0, "init")) == torch.rand(1, generator=seeded_generator(0, "train"))
    tensor([False])
    """
    words = np.random.SeedSequence(
        [as_count(seed, 0, "seed"), index, *stream.encode()]
    ).generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))
