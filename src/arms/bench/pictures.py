"""Pictures of a trained model: test images, reconstructions, and samples from the prior."""

import io
from pathlib import Path

import torch
from torch import Generator, Tensor

from arms.bench.data import Dataset, observe
from arms.bench.models import DiscreteVAE
from arms.bench.runs.files import make_folder, replace_file

PIXEL_SIZE = 3  # picture's pixels per image pixel, and per gap between images


def write_samples(
    path: Path | str, model: DiscreteVAE, dataset: Dataset, count: int, generator: Generator
) -> None:
    """Write a PNG file with test images, their reconstructions, and samples from the prior.

    The first row shows test images. Below it, each replica has two rows: reconstructions of the
    test images, and samples from the prior. Each row has `count` images. The model must be on the
    CPU.
    """
    from matplotlib.image import imsave

    target, picture = Path(path), io.BytesIO()
    make_folder(target.parent)
    grid = sample_grid(model, dataset, count, generator)
    imsave(picture, grid.numpy(), cmap="gray", vmin=0, vmax=1, format="png")
    replace_file(target, picture.getvalue())


def sample_grid(model: DiscreteVAE, dataset: Dataset, count: int, generator: Generator) -> Tensor:
    """Return the picture that `write_samples` writes.

    The picture is a tensor `[height, width]` of brightness from 0 to 1.
    """
    with torch.no_grad():
        bits = model.likelihood.binarizes_input
        x = observe(dataset.test[:count], dataset.levels, generator, bits=bits)
        x = x.expand(model.replicas, -1, -1)
        posterior = model.latent(model.encode(x)).sample(1, generator)[0]
        prior = model.sample_prior(len(x[0]), generator)
        means = [model.mean_image(b.unsqueeze(0))[0] for b in (posterior, prior)]
    rows = [x[0], *(mean[replica] for replica in range(model.replicas) for mean in means)]
    images = torch.stack(rows).unflatten(-1, (dataset.height, dataset.width))
    squares = images.repeat_interleave(PIXEL_SIZE, -2).repeat_interleave(PIXEL_SIZE, -1)
    framed = torch.nn.functional.pad(squares, (0, PIXEL_SIZE, 0, PIXEL_SIZE), value=0.5)
    return framed.movedim(2, 1).flatten(0, 1).flatten(1, 2)
