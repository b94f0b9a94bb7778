"""The same training with parameters shared out among ranks: torchrun --nproc-per-node 2 fsdp.py."""

import torch
import torch.distributed as dist
from ddp import Gates
from torch.distributed.fsdp import fully_shard

import arms


def main() -> None:
    """Train on this rank's share of the data, with this rank's share of the parameters."""
    dist.init_process_group("gloo")  # nccl on GPUs
    rank = dist.get_rank()
    torch.manual_seed(0)  # the same weights everywhere, before they are shared out
    model = fully_shard(Gates())  # its parameters are whole while its forward runs: the objective must be called there
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = arms.rank_generator(seed=0)
    data = torch.Generator().manual_seed(rank)  # stands for a DistributedSampler
    for _ in range(50):
        x = torch.randn(32, 6, generator=data)
        y = x[:, :3].sum(-1)
        optimizer.zero_grad()
        loss = model(x, y, generator)
        loss.backward()  # averages the gradients of all ranks, and leaves each its share
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
