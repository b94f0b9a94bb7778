"""The model against PyTorch's distributions, and the independence of replicas."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli
from torch.nn.functional import binary_cross_entropy_with_logits

from arms.bench.models import DiscreteVAE, ReplicaLinear, build_vae, perceptron, seeded_generator
from arms.bench.models.networks import affine_log_prob, apply_network, bernoulli_log_prob


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def bits(*shape: int, seed: int = 1) -> Tensor:
    return (normal(*shape, seed=seed) > 0.5).double()


def reference_log_prob(logits: Tensor, x: Tensor) -> Tensor:
    return -binary_cross_entropy_with_logits(logits, x.expand_as(logits), reduction="none").sum(-1)


@pytest.mark.parametrize("pixels", [1, 7, 64, 98, 784])
def test_log_prob_and_its_gradient(pixels: int) -> None:
    logits, x, weights = (
        normal(3, 2, 5, pixels, scale=4).requires_grad_(),
        bits(2, 5, pixels),
        normal(3, 2, 5),
    )
    value, expected = bernoulli_log_prob(logits, x), reference_log_prob(logits, x)
    assert torch.allclose(value, expected, rtol=1e-13, atol=1e-11)
    (derivative,) = torch.autograd.grad(value, logits, weights)
    (truth,) = torch.autograd.grad(expected, logits, weights)
    assert torch.allclose(derivative, truth, atol=1e-13)


def test_log_prob_at_any_logit_in_float32() -> None:
    logits = torch.tensor([-1e4, -90.0, -20.0, 0.0, 20.0, 90.0, 1e4]).repeat(2)
    x = torch.tensor([0.0, 1.0]).repeat_interleave(7)
    for i in range(14):
        value = bernoulli_log_prob(logits[i : i + 1], x[i : i + 1])
        truth = reference_log_prob(logits[i : i + 1].double(), x[i : i + 1].double())
        assert torch.allclose(value.double(), truth, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("samples", [0, 1, 3])
def test_affine_log_prob_is_the_layer_followed_by_the_log_prob(samples: int) -> None:
    layer = ReplicaLinear(2, 6, 16).double()
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(2))
    nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(3))
    h, x, weights = (
        normal(samples, 2, 5, 6).requires_grad_(),
        bits(2, 5, 16),
        normal(samples, 2, 5, seed=4),
    )
    fused, plain = affine_log_prob(h, layer, x), reference_log_prob(layer(h), x)
    assert torch.allclose(fused, plain, atol=1e-12)
    inputs = (h, layer.weight, layer.bias)
    for derivative, truth in zip(
        torch.autograd.grad(fused, inputs, weights),
        torch.autograd.grad(plain, inputs, weights),
        strict=True,
    ):
        assert torch.allclose(derivative, truth, atol=1e-12)


def nonlinear(replicas: int, cut: int | None) -> nn.Sequential:
    network = perceptron(9, 8)(replicas, 6, 7)
    assert isinstance(network, nn.Sequential)
    for seed, weight in enumerate(network.parameters()):
        nn.init.normal_(weight, generator=torch.Generator().manual_seed(seed))
    return nn.Sequential(*list(network)[:cut])


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("cut", [None, -1])
def test_a_perceptron_as_one_node_has_the_gradients_of_its_layers(
    replicas: int, cut: int | None
) -> None:
    network, x = nonlinear(replicas, cut), normal(3, replicas, 5, 6).float()
    inputs = (x.requires_grad_(), *network.parameters())
    fused, plain = apply_network(network, x), network(x)
    assert torch.equal(fused, plain)
    weights = normal(*fused.shape, seed=4).float()
    for derivative, truth in zip(
        torch.autograd.grad(fused, inputs, weights),
        torch.autograd.grad(plain, inputs, weights),
        strict=True,
    ):
        assert torch.allclose(derivative, truth, rtol=1e-4, atol=1e-4)

    def second(value: Tensor) -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(value.square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().mean(), inputs)

    pairs = zip(second(apply_network(network, x)), second(network(x)), strict=True)
    assert all((own - truth).abs().max() <= 1e-4 * truth.abs().max() for own, truth in pairs)


def test_the_output_of_a_perceptron_can_be_changed_in_place() -> None:
    network, x = nonlinear(2, None), normal(3, 2, 5, 6).float()
    weights = normal(3, 2, 5, 7, seed=4).float()
    derivatives = [
        torch.autograd.grad(apply(network, x).mul_(2), list(network.parameters()), weights)
        for apply in (apply_network, nn.Module.__call__)
    ]
    for fused, plain in zip(*derivatives, strict=True):
        assert torch.allclose(fused, plain, rtol=1e-4, atol=1e-4)


def test_a_perceptron_with_a_hook_is_called_layer_by_layer() -> None:
    network, seen = nonlinear(1, None), []
    network[1].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    apply_network(network, normal(1, 5, 6).float())
    assert seen == [(1, 5, 9)]


def test_second_derivatives_are_refused_rather_than_wrong() -> None:
    logits = normal(3, 4).requires_grad_()
    with pytest.raises(
        RuntimeError,
        match="this log-probability can be differentiated only once: pass twice=True for",
    ):
        torch.autograd.grad(bernoulli_log_prob(logits, bits(3, 4)).sum(), logits, create_graph=True)


@pytest.mark.parametrize("attached", [0, 1, 2, 3])
@pytest.mark.parametrize("network", ["linear", "nonlinear", "own"])
def test_only_the_first_samples_are_learnt_from(network: str, attached: int) -> None:
    if network == "own":
        vae = DiscreteVAE(
            nn.Linear(16, 6), nn.Sequential(nn.Linear(6, 16)), 6, torch.full((16,), 0.5), replicas=2
        )
    else:
        vae = build_vae(network, 6, torch.full((16,), 0.5), replicas=2, seed=3)
    vae.double()
    b, x, weights = bits(3, 2, 5, 6), bits(2, 5, 16), normal(3, 2, 5, seed=4)
    value = vae.log_weights(b, x, vae.encode(x), attached)
    assert torch.allclose(value, vae.log_weights(b, x, vae.encode(x)), atol=1e-12)
    part = vae.log_weights(b[:attached], x, vae.encode(x))
    parameters = list(vae.parameters())
    for derivative, truth in zip(
        torch.autograd.grad(value, parameters, weights, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(
            part, parameters, weights[:attached], allow_unused=True, materialize_grads=True
        ),
        strict=True,
    ):
        assert torch.allclose(derivative, truth, atol=1e-12)


@pytest.mark.parametrize(
    ("attached", "differentiated"), [(1, 4), (1, 3), (2, 3), (1, 2), (4, 4), (0, 4)]
)
@pytest.mark.parametrize("network", ["linear", "nonlinear"])
def test_points_pass_gradients_to_themselves_whether_learnt_from_or_not(
    network: str, attached: int, differentiated: int
) -> None:
    vae = build_vae(network, 6, torch.full((16,), 0.5), replicas=2, seed=3).double()
    b, x = bits(4, 2, 5, 6).requires_grad_(), bits(2, 5, 16)
    value = vae.log_weights(b, x, vae.encode(x), attached, differentiated)
    whole = vae.log_weights(b, x, vae.encode(x))
    assert torch.allclose(value, whole, atol=1e-12)
    found, truth = (torch.autograd.grad(f.sum(), b, retain_graph=True)[0] for f in (value, whole))
    assert torch.allclose(found[4 - differentiated :], truth[4 - differentiated :], atol=1e-12)
    parameters = list(vae.parameters())
    for derivative, expected in zip(
        torch.autograd.grad(value.sum(), parameters, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(
            whole[:attached].sum(), parameters, allow_unused=True, materialize_grads=True
        ),
        strict=True,
    ):
        assert torch.allclose(derivative, expected, atol=1e-11)


@pytest.mark.parametrize("network", ["linear", "nonlinear"])
@pytest.mark.parametrize("relaxed", [False, True])
def test_log_weights_are_those_of_the_distributions(network: str, relaxed: bool) -> None:
    vae = build_vae(network, 7, torch.full((12,), 0.3), replicas=2, seed=1).double()
    nn.init.normal_(vae.prior, generator=torch.Generator().manual_seed(5))
    x, b = bits(2, 5, 12), bits(3, 2, 5, 7, seed=6).requires_grad_(relaxed)
    logits = vae.encode(x)
    likelihood = Bernoulli(logits=vae.decode(b.detach())).log_prob(x.expand(3, -1, -1, -1)).sum(-1)
    prior = Bernoulli(logits=vae.prior.expand_as(b)).log_prob(b.detach()).sum(-1)
    posterior = Bernoulli(logits=logits.expand_as(b)).log_prob(b.detach()).sum(-1)
    assert torch.allclose(vae.log_weights(b, x, logits), likelihood + prior - posterior, atol=1e-10)


def test_networks_have_the_protocols_shape() -> None:
    mean = torch.tensor([0.0, 0.2, 1.0])
    vae = build_vae("nonlinear", 200, mean, replicas=4)
    parameters = vae.encoder.parameters()  # type: ignore[attr-defined]
    shapes = [tuple(one.shape) for one in parameters]
    assert shapes[::2] == [(4, 3, 200), (4, 200, 200), (4, 200, 200)]
    bias = vae.decoder[-1].bias  # type: ignore[index]
    assert torch.allclose(torch.sigmoid(bias[0, 0]), torch.tensor([0.001, 0.2, 0.999]), atol=1e-6)
    assert (vae.prior == 0).all()
    limit = (6 / 203) ** 0.5
    weight = vae.encoder[0].weight  # type: ignore[index]
    assert 0.9 * limit < weight.abs().max() <= limit
    layers = list(vae.encoder)  # type: ignore[call-overload]
    leaky = [layer for layer in layers if isinstance(layer, nn.LeakyReLU)]
    assert [layer.negative_slope for layer in leaky] == [0.3, 0.3]


def test_first_replica_starts_the_same_however_many_there_are() -> None:
    mean = torch.full((12,), 0.3)
    alone, among = (build_vae("nonlinear", 7, mean, replicas=r, seed=3) for r in (1, 5))
    for one, five in zip(alone.parameters(), among.parameters(), strict=True):
        assert torch.equal(one[0], five[0])
    weights = among.encoder[0].weight  # type: ignore[index]
    assert len({row.sum().item() for row in weights}) == 5
    other = build_vae("nonlinear", 7, mean, replicas=1, seed=4)
    assert not torch.equal(other.encoder[0].weight, alone.encoder[0].weight)  # type: ignore[index]


def test_replicas_do_not_see_each_other() -> None:
    vae = build_vae("nonlinear", 7, torch.full((12,), 0.3), replicas=3).double()
    x, b = bits(3, 5, 12), bits(2, 3, 5, 7, seed=2)
    value = vae.log_weights(b, x, vae.encode(x))
    value[:, 1].sum().backward()
    for parameter in vae.parameters():
        assert parameter.grad is not None
        assert (parameter.grad[[0, 2]] == 0).all()
        assert parameter.grad[1].abs().sum() > 0
    changed = x.clone()
    changed[0] = 1 - changed[0]
    assert torch.equal(vae.log_weights(b, changed, vae.encode(changed))[:, 1:], value[:, 1:])


def test_own_modules_serve_as_encoder_and_decoder() -> None:
    encoder = nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 7))
    vae = DiscreteVAE(
        encoder, nn.Linear(7, 12), latents=7, pixel_mean=torch.full((12,), 0.3)
    ).double()
    x, b = bits(1, 5, 12), bits(3, 1, 5, 7, seed=2)
    assert vae.log_weights(b, x, vae.encode(x)).shape == (3, 1, 5)
    with pytest.raises(
        ValueError, match=r"must have shape \[pixels\] or \[1, 1, pixels\], got \[2, 1, 12\]: pass"
    ):
        DiscreteVAE(encoder, nn.Linear(7, 12), latents=7, pixel_mean=torch.full((2, 1, 12), 0.3))


def test_streams_of_a_seed_differ() -> None:
    draws = {
        torch.rand(1, generator=seeded_generator(seed, stream, index)).item()
        for seed, stream, index in [
            (0, "init", 0),
            (0, "train", 0),
            (1, "init", 0),
            (0, "init", 1),
            (0, "evaluate", 0),
        ]
    }
    assert len(draws) == 5


@pytest.mark.parametrize(
    ("network", "replicas", "message"),
    [("deep", 1, "there is no network named 'deep'"), ("linear", 0, "replicas")],
)
def test_refusals(network: str, replicas: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_vae(network, 7, torch.zeros(3), replicas)
