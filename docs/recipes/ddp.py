"""Distributed data-parallel training with a discrete layer: torchrun --nproc-per-node 2 ddp.py."""

import gc
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import arms


class Gates(nn.Module):
    """Features behind hard gates; the loss is an expectation over the gates."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(6))
        self.readout = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        def objective(gates: torch.Tensor) -> torch.Tensor:  # [n, batch, 6] to [n, batch]
            return (self.readout(gates * x).squeeze(-1) - y).square()

        logits = self.logits.expand(len(x), 6)
        return arms.expectation(objective, logits, num_samples=4, generator=generator).mean()


def train(wrap: Callable[[Gates], nn.Module]) -> float:
    """Train on this rank's data, with a model that averages the gradients of all ranks."""
    rank = dist.get_rank()
    torch.manual_seed(0)  # the same weights everywhere
    model = wrap(Gates())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # Each rank draws its own noise: the same noise on all ranks would not average out.
    generator = arms.rank_generator(seed=0)
    data = torch.Generator().manual_seed(rank)  # stands for a DistributedSampler
    for _ in range(50):
        x = torch.randn(32, 6, generator=data)
        y = x[:, :3].sum(-1)
        optimizer.zero_grad()
        loss = model(x, y, generator)
        loss.backward()  # averages the gradients of all ranks
        optimizer.step()
    return loss.item()


def main(wrap: Callable[[Gates], nn.Module] = DistributedDataParallel) -> None:
    """Train in the process group that torchrun describes."""
    dist.init_process_group("gloo")  # nccl on GPUs
    loss = train(wrap)
    if dist.get_rank() == 0:
        print(f"loss {loss:.4f}")
    gc.collect()  # sharded models keep the group's threads alive, which abort at exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
