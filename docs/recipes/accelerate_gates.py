"""The same training with Accelerate, on two GPUs: accelerate launch --num_processes 2 accelerate_gates.py.

On CPUs: ACCELERATE_USE_CPU=true torchrun --nproc-per-node 2 accelerate_gates.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from ddp import Gates
from torch.utils.data import DataLoader, TensorDataset

import arms


def main() -> None:
    """Train on this rank's share of the data."""
    accelerator = Accelerator()
    set_seed(0)  # the same weights everywhere
    model = Gates()
    x = torch.randn(1600, 6)
    data = DataLoader(TensorDataset(x, x[:, :3].sum(-1)), batch_size=32, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    # After `Accelerator()`, which knows the rank, and on its device.
    generator = arms.rank_generator(seed=0, device=accelerator.device)
    for _ in range(3):
        for inputs, targets in data:
            optimizer.zero_grad()
            loss = model(inputs, targets, generator)
            accelerator.backward(loss)
            optimizer.step()
    accelerator.print(f"loss {loss.item():.3f} on {accelerator.num_processes} ranks")
    # Threads of a process group that something still refers to abort the process at its exit.
    del loss
    model, optimizer, data = accelerator.free_memory(model, optimizer, data)
    accelerator.end_training()


if __name__ == "__main__":
    main()
