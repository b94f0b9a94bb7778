"""A ResNet that decides for every image which of its five blocks run.

The blocks are torchvision's `BasicBlock`, with GroupNorm in place of batch normalization, and one
new line: the residual is multiplied by a gate, one bit whose logit is computed from the block's input.
Each gate depends on all earlier gates. An open gate has a price.

    python examples/resnet_gates.py
"""

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import arms

parser = argparse.ArgumentParser(description="Train a ResNet that skips blocks.")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--price", type=float, default=0.03, help="price of an open gate, in nats")
options = parser.parse_args()


def norm(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


class BasicBlock(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1, self.relu = norm(planes), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = norm(planes)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inplanes != planes:
            conv = nn.Conv2d(inplanes, planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, norm(planes))
        self.gate = nn.Linear(inplanes, 1)

    def forward(self, x: Tensor) -> Any:
        identity = self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        logits = self.gate(x.mean((-1, -2)))
        self.open = arms.sample(logits) if self.training else (logits > 0).float()
        out = out * self.open[..., None, None]
        return self.relu(out + identity)


torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
labels = torch.from_numpy(digits.target)
blocks = [BasicBlock(16, 16), BasicBlock(16, 16), BasicBlock(16, 32, 2), BasicBlock(32, 32)]
blocks.append(BasicBlock(32, 32))
stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), norm(16), nn.ReLU(inplace=True)]
head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
model = nn.Sequential(*stem, *blocks, *head)


def losses(x: Tensor, y: Tensor) -> Tensor:
    scores = model(x)
    count = torch.cat([block.open for block in blocks], -1).sum(-1)
    loss: Tensor = F.cross_entropy(scores, y, reduction="none") + options.price * count
    return loss


optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(options.steps):
    rows = torch.randint(1200, (32,))
    with arms.sampling(num_samples=4) as s:
        loss = losses(s.repeat(images[rows]), s.repeat(labels[rows]))
    optimizer.zero_grad()
    s.expectation(loss).mean().backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    right = (model(images[1200:]).argmax(-1) == labels[1200:]).float().mean().item()
used = torch.cat([block.open for block in blocks], -1)
print(f"accuracy {right:.3f} with {used.sum(-1).mean():.1f} of 5 blocks per image")
print("share of images that run each block:", *(f"{one:.2f}" for one in used.mean(0)))
