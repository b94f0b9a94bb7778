"""The fused likelihood for GPUs against plain operations in float64. Without a GPU, Triton's interpreter runs it."""

import pytest
import torch
from marks import needs_gpu
from torch import Tensor

kernels = pytest.importorskip("arms.bench.models.kernels", exc_type=ImportError)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(pixels: int = 150, scale: float = 1.0) -> list[Tensor]:
    """h, weight, bias of three samples, two replicas, five images, 21 inputs; and bits."""
    generator = torch.Generator().manual_seed(0)
    h, weight, bias = (
        torch.randn(shape, generator=generator)
        for shape in ((3, 2, 5, 21), (2, 21, pixels), (2, 1, pixels))
    )
    x = torch.randint(2, (2, 5, pixels), generator=generator).float()
    return [tensor.to(DEVICE) for tensor in (h, scale * weight, bias, x)]


def plain(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    z = torch.einsum("nrbi,rip->nrbp", h, weight) + bias
    return (x * z - torch.nn.functional.softplus(z)).sum(-1)


def close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return bool((one.double() - other).norm() <= tolerance * other.norm())


@pytest.fixture(params=["a row at a time", "many rows at a time"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty rows are few, and not a multiple of a tile's rows."""
    if request.param == "many rows at a time":
        monkeypatch.setattr(kernels, "ONE_ROW_PER_BLOCK_UP_TO", 0)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("pixels", [1, 150, 256, 16_500])
def test_value_and_gradients(pixels: int) -> None:
    h, weight, bias, x = inputs(pixels)
    learned = [tensor.requires_grad_() for tensor in (h, weight, bias)]
    exact = [tensor.detach().double().requires_grad_() for tensor in learned]
    value, truth = kernels.affine_log_prob(*learned, x, 3), plain(x.double(), *exact)
    assert close(value, truth, 1e-6)
    grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    ours = torch.autograd.grad(value, learned, grad)
    theirs = torch.autograd.grad(truth, exact, grad.double())
    assert all(close(one, other, 1e-6) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("attached", [0, 1, 2])
def test_gradients_of_the_first_samples_only(attached: int) -> None:
    h, weight, bias, x = inputs()
    learned = [tensor.requires_grad_() for tensor in (h, weight, bias)]
    exact = [tensor.detach().double().requires_grad_() for tensor in learned]
    value, truth = kernels.affine_log_prob(*learned, x, attached), plain(x.double(), *exact)
    assert close(value, truth, 1e-6)
    if not attached:
        return
    grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    ours = torch.autograd.grad(value, learned, grad)
    theirs = torch.autograd.grad(truth[:attached], exact, grad[:attached].double())
    assert all(close(one, other, 1e-6) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("tiles")
def test_gradients_towards_more_samples_than_are_learnt_from() -> None:
    h, weight, bias, x = inputs()
    learned = [tensor.requires_grad_() for tensor in (h, weight, bias)]
    exact = [tensor.detach().double().requires_grad_() for tensor in learned]
    value, truth = kernels.affine_log_prob(*learned, x, 1, inward=3), plain(x.double(), *exact)
    ours = torch.autograd.grad(value.sum(), learned)
    (of_h,) = torch.autograd.grad(truth.sum(), exact[:1], retain_graph=True)
    theirs = (of_h, *torch.autograd.grad(truth[:1].sum(), exact[1:]))
    assert all(close(one, other, 1e-6) for one, other in zip(ours, theirs, strict=True))


def test_nothing_is_kept_without_gradients() -> None:
    h, weight, bias, x = inputs()
    with torch.no_grad():
        assert close(
            kernels.affine_log_prob(h, weight, bias, x, 3), plain(x, h, weight, bias), 1e-6
        )


def test_far_logits_are_ordinary() -> None:
    h, weight, bias, x = inputs(scale=1e4)
    value = kernels.affine_log_prob(h, weight.requires_grad_(), bias, x, 3)
    truth = plain(*(tensor.double() for tensor in (x, h, weight, bias)))
    assert close(value, truth, 1e-6)
    assert torch.autograd.grad(value.sum(), weight)[0].isfinite().all()


def test_one_image_batch_may_serve_all_replicas() -> None:
    h, weight, bias, x = inputs()
    with torch.no_grad():
        value = kernels.affine_log_prob(h, weight, bias, x[:1], 3)
    assert close(value, plain(x[:1], h, weight, bias).double(), 1e-6)


@pytest.mark.parametrize(
    ("rough", "least", "most"),
    [
        pytest.param(False, 0, 2e-3, marks=needs_gpu, id="tf32"),
        pytest.param(True, 1e-6, 1e-2, id="rough"),
    ],
)
def test_less_precise_products(rough: bool, least: float, most: float) -> None:
    h, weight, bias, x = inputs()
    learned = [tensor.requires_grad_() for tensor in (h, weight, bias)]
    exact = [tensor.detach().double().requires_grad_() for tensor in learned]
    torch.set_float32_matmul_precision("high")
    try:
        value = kernels.affine_log_prob(*learned, x, 3, rough)
        ours = torch.autograd.grad(value.sum(), learned)
    finally:
        torch.set_float32_matmul_precision("highest")
    theirs = torch.autograd.grad(plain(x.double(), *exact).sum(), exact)
    for one, other in zip(ours, theirs, strict=True):
        assert least * other.norm() <= (one - other).norm() <= most * other.norm()


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_a_rough_product_is_exact_and_its_gradient_nearly_so(wanted: tuple[bool, bool]) -> None:
    h, weight, _, _ = inputs()
    factors = [
        tensor.requires_grad_(learns) for tensor, learns in zip((h[0], weight), wanted, strict=True)
    ]
    product, truth = kernels.rough_product(*factors), torch.bmm(*factors)
    assert torch.equal(product, truth)
    learned = [factor for factor in factors if factor.requires_grad]
    ours, theirs = (torch.autograd.grad(out.square().sum(), learned) for out in (product, truth))
    for one, other in zip(ours, theirs, strict=True):
        assert 1e-6 * other.norm() < (one - other).norm() <= 1e-2 * other.norm()
