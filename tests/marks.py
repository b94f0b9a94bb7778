"""Marks that several test files share."""

import pytest
import torch

slow = pytest.mark.slow
"""A mark for some of many similar cases, which only `make slow` runs."""
signals = pytest.mark.signals
"""A mark for tests that send signals to themselves or to their child processes."""
needs_cluster = pytest.mark.cluster
"""A mark for tests that need the extra `cluster`, which `make cluster` runs in a separate environment."""
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
