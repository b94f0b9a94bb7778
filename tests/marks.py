"""Marks that several test files share."""

import pytest
import torch

slow = pytest.mark.slow
"""Of a long list of alike cases those that `make slow` runs; `make test` runs the others."""
signals = pytest.mark.signals
"""Of tests that send signals to themselves or to their child processes."""
needs_cluster = pytest.mark.cluster
"""Of what needs the packages of the extra `cluster`: `make cluster` runs it, in an environment of its own."""
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
