import os

import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its interpreter runs the kernels on a CPU

# Two test processes on two cores; more threads each would only fight. Examples are the same in every run.
torch.set_num_threads(1)
settings.register_profile("arms", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("arms")
