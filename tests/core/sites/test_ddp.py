"""Sites in a model wrapped by DistributedDataParallel: two ranks average their own estimates."""

import sys
from pathlib import Path

from processes import completed

SCRIPT = """
import gc, torch, arms
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(9, 1)
        self.drawn = []

    def forward(self, x):
        b = arms.sample(self.first(x))
        c = arms.sample(arms.OneHot(self.second(b)))
        self.drawn = [b, c]
        return self.last(torch.cat([b, c], -1)).squeeze(-1).square()


def gradients(model, x):
    with arms.sampling("arms", 4, arms.rank_generator(0)) as s:
        loss = model(x)
    s.expectation(loss).mean().backward()
    return [p.grad for p in model.parameters()]


torch.manual_seed(0)
model = Two()
wrapped = DistributedDataParallel(Two())
wrapped.module.load_state_dict(model.state_dict())
x = torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))
alone, together = gradients(model, x), gradients(wrapped, x)
for own, mean in zip(alone, together, strict=True):
    dist.all_reduce(own)
    torch.testing.assert_close(own / 2, mean)
both = [torch.empty_like(model.drawn[0]) for _ in range(2)]
dist.all_gather(both, model.drawn[0])
assert not torch.equal(*both)
print("averaged", flush=True)
del wrapped, together
gc.collect()  # DDP keeps the group's threads alive, which abort at exit
dist.barrier()
dist.destroy_process_group()
"""


def test_ranks_average_their_own_estimates(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(SCRIPT)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = completed([sys.executable, *run, str(script)])
    assert done.stdout.count("averaged") == 2, done.stderr  # lines of two ranks may mix
