"""Train ddp.py with its parameters sharded across ranks: torchrun --nproc-per-node 2 fsdp.py."""

from ddp import main
from torch.distributed.fsdp import fully_shard

if __name__ == "__main__":
    # Parameters are only whole inside the model's forward, so the objective must be called there.
    main(fully_shard)
