"""Random generators made from a run's seed: one per use, none of which share numbers."""

import numpy as np
import torch
from torch import Generator

from arms.arguments import as_count


def seeded_generator(seed: int, stream: str, index: int = 0, device: str = "cpu") -> Generator:
    """Return the generator for one use of a run's seed, named by `stream` and `index`.

    >>> one, other = seeded_generator(0, "init"), seeded_generator(0, "train")
    >>> torch.rand(1, generator=one) == torch.rand(1, generator=other)
    tensor([False])
    """
    entropy = [as_count(seed, 0, "seed"), index, *stream.encode()]
    words = np.random.SeedSequence(entropy).generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))
