"""Images of what a model has learnt, as one PNG."""

from pathlib import Path

import torch
from torch import Generator, Tensor

from arms.bench.data import Dataset, binarize
from arms.bench.models import BinaryVAE
from arms.latents import Bernoulli

GAP = 1
ZOOM = 3


def write_samples(path: Path, model: BinaryVAE, dataset: Dataset, count: int, generator: Generator) -> None:
    """Write rows of `count` images: the test images once, then for each replica their reconstructions and samples."""
    from matplotlib.image import imsave

    path.parent.mkdir(parents=True, exist_ok=True)
    grid = sample_grid(model, dataset, count, generator)
    imsave(path, grid.numpy(), cmap="gray", vmin=0, vmax=1, format="png")


def sample_grid(model: BinaryVAE, dataset: Dataset, count: int, generator: Generator) -> Tensor:
    """Return the picture `[height, width]` of `write_samples`, values from 0 to 1."""
    with torch.no_grad():
        x = binarize(dataset.test[:count], dataset.levels, generator).expand(model.replicas, -1, -1)
        posterior = Bernoulli(model.encode(x)).sample(1, generator)[0]
        prior = Bernoulli(model.prior.expand(-1, len(x[0]), -1)).sample(1, generator)[0]
        means = [torch.sigmoid(model.decode(b.unsqueeze(0)))[0] for b in (posterior, prior)]
    rows = [x[0], *(mean[replica] for replica in range(model.replicas) for mean in means)]
    return _tile(torch.stack(rows), dataset.height, dataset.width)


def _tile(rows: Tensor, height: int, width: int) -> Tensor:
    """Lay images `[rows, columns, pixels]` out with a gap, each pixel as a small square."""
    images = rows.unflatten(-1, (height, width)).repeat_interleave(ZOOM, -2).repeat_interleave(ZOOM, -1)
    framed = torch.nn.functional.pad(images, (0, GAP * ZOOM, 0, GAP * ZOOM), value=0.5)
    return framed.movedim(2, 1).flatten(0, 1).flatten(1, 2)
