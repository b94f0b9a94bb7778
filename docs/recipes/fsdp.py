"""The training of ddp.py with parameters shared out among ranks: torchrun --nproc-per-node 2 fsdp.py."""

from ddp import main
from torch.distributed.fsdp import fully_shard

if __name__ == "__main__":
    main(
        fully_shard
    )  # parameters are whole while the model's forward runs: the objective must be called there
