import os
from dataclasses import replace

import pytest
import torch
from hypothesis import settings

from arms.bench.data import Dataset, load

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its interpreter runs the kernels on a CPU

# Two test processes on two cores; more threads each would only fight. Examples are the same in every run.
torch.set_num_threads(1)
settings.register_profile("arms", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("arms")


@pytest.fixture(scope="session")
def all_digits() -> Dataset:
    return load("digits")


@pytest.fixture(scope="session")
def digits(all_digits: Dataset) -> Dataset:
    """Few images: most tests are not about what is learnt."""
    train, valid, test = all_digits.train[:100], all_digits.valid[:20], all_digits.test[:20]
    return replace(all_digits, train=train, valid=valid, test=test)
