"""Statistics of the codes, compared with PyTorch's distributions, and for models with useless codes."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical

from arms.bench.config import TrainConfig
from arms.bench.data import Dataset
from arms.bench.models import DiscreteVAE, build_vae, code_statistics
from arms.bench.training.trainer import Trainer

IMAGES = torch.rand(2, 30, 16, generator=torch.Generator().manual_seed(0)).round()


def model_of(categories: int = 2, layers: tuple[int, ...] = (5,)) -> DiscreteVAE:
    mean = torch.full((16,), 0.5)
    return build_vae("linear", layers, mean, 2, 3, categories=categories, encoder_scale=20.0)


@pytest.mark.parametrize("categories", [2, 3])
@pytest.mark.parametrize("layers", [(5,), (5, 4)])
def test_statistics_are_those_of_the_distribution(categories: int, layers: tuple[int, ...]) -> None:
    model = model_of(categories, layers)
    found = code_statistics(model, IMAGES)
    logits = model.encode(IMAGES).detach()
    if categories == 2:
        entropy, centered = Bernoulli(logits=logits).entropy(), logits
        varies = logits.sigmoid().var(1, correction=0) > 0.01
    else:
        entropy, centered = Categorical(logits=logits).entropy(), logits - logits.mean(-1, True)
        varies = (logits.softmax(-1).var(1, correction=0) > 0.01).any(-1)
    assert torch.allclose(found["code_entropy"], entropy.sum(-1).mean(-1), atol=1e-5)
    assert torch.equal(found["active_latents"], varies.float().sum(-1))
    for replica in range(2):
        expected = centered[replica].std(correction=0)
        assert torch.isclose(found["logit_spread"][replica], expected)


@pytest.mark.parametrize("categories", [2, 3])
def test_an_encoder_that_ignores_the_image_has_no_active_latents(categories: int) -> None:
    model = model_of(categories)
    for weight in model.encoder_modules()[0].parameters():
        nn.init.zeros_(weight)
    found = code_statistics(model, IMAGES)
    assert found["active_latents"].tolist() == [0, 0]
    assert found["logit_spread"].tolist() == [0, 0]
    assert torch.allclose(found["code_entropy"], torch.tensor(float(categories)).log() * 5)


def test_decided_bits_have_no_entropy() -> None:
    model = model_of()
    with torch.no_grad():
        for weight in model.encoder_modules()[0].parameters():
            weight.mul_(1e4)
    found = code_statistics(model, IMAGES)
    assert (found["code_entropy"] < 0.1).all()
    assert found["active_latents"].tolist() == [5, 5]


def test_dropout_is_off_during_the_statistics_and_on_afterwards() -> None:
    seen: list[bool] = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(self.training)
            return x

    model = model_of()
    model.encoder = nn.Sequential(Watched(), *model.encoder_modules())
    code_statistics(model, IMAGES)
    assert seen == [False]
    assert model.training


def test_a_record_has_the_statistics_of_the_same_images_every_time(digits: Dataset) -> None:
    trainer = Trainer(TrainConfig(latents=8, replicas=2), digits, "cpu")
    one, other = trainer.record(), trainer.record()
    for key in ("active_latents", "code_entropy", "logit_spread"):
        assert len(one[key]) == 2
        assert one[key] == other[key]


@pytest.mark.parametrize("network", ["linear", "nonlinear"])
def test_the_encoder_scale_multiplies_the_last_weights_and_nothing_else(network: str) -> None:
    mean = torch.full((16,), 0.5)
    plain, sharp = (
        dict(build_vae(network, 6, mean, 2, 3, encoder_scale=scale).named_parameters())
        for scale in (1.0, 8.0)
    )
    (last,) = (name for name in plain if not torch.equal(plain[name], sharp[name]))
    assert last.startswith("encoder")
    assert torch.equal(sharp[last], 8 * plain[last])


def test_the_encoder_scale_is_for_built_in_networks() -> None:
    with pytest.raises(
        ValueError,
        match=r"networks, and this run has your own model, got 2.0: scale the weights of your",
    ):
        TrainConfig(network="mine", structure="abc", encoder_scale=2.0)
    with pytest.raises(ValueError, match="encoder_scale must be"):
        TrainConfig(encoder_scale=0.0)
