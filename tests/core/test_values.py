"""Return values of an objective: accepted types, and one-sentence errors."""

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import arms

DERIVATIVES = (
    "midpoint",
    "midpoint-single",
    "cross-paired",
    "arms-taylor",
    "double-cv",
    "rodeo",
    "rebar",
)


class OnlyDLPack:
    """An array like CuPy's, which refuses conversion to NumPy."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __array__(self, *arguments: object, **options: object) -> object:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __dlpack__(self, **options: object) -> object:
        return self.tensor.__dlpack__()

    def __dlpack_device__(self) -> object:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("scale", [1e-5, 1e-4, 1e-3, 1.0, 1e3])
def test_half_precision_is_not_taken_for_a_dependence_between_rows(name: str, scale: float) -> None:
    logits = torch.zeros(6, 5, requires_grad=True)
    weights = torch.randn(5, generator=Generator().manual_seed(0)).half()
    value = arms.expectation(lambda b: scale * torch.sin(b.half() @ weights), logits, name, 4)
    value.sum().backward()
    assert logits.grad is not None


@pytest.mark.parametrize("name", DERIVATIVES)
def test_half_networks_with_float32_values_are_accepted(name: str) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    network = network.half()
    for scale in (1.0, 1e-2, 1e-4):
        arms.expectation(
            lambda b, scale=scale: (scale * network(b.half())).float().squeeze(-1),
            torch.zeros(40, 5, requires_grad=True),
            name,
            4,
        ).sum().backward()


@pytest.mark.parametrize("name", ["midpoint", "arms-taylor", "double-cv"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_dependent_rows_are_seen_beside_a_large_one(name: str, size: float) -> None:
    def objective(b: Tensor) -> Tensor:
        total = b.sum(-1)
        mixed = total + 0.5 * total.roll(1, -1).square()
        return torch.cat([size * total[..., :1], mixed[..., 1:]], -1)

    with pytest.raises(ValueError, match="must not depend on other samples or on other rows"):
        arms.expectation(objective, torch.zeros(6, 3, requires_grad=True), name, 4)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int64])
def test_integers_take_the_precision_of_float64_logits(dtype: torch.dtype) -> None:
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    generator = Generator().manual_seed(0)
    value = arms.expectation(lambda b: (b.sum(-1) > 1).to(dtype), logits, "loorf", 4, generator)
    value.backward()
    assert logits.grad is not None
    assert value.dtype == torch.float64
    assert torch.equal(logits.grad, (logits.grad * 12).round() / 12)


def test_arrays_by_dlpack_and_of_any_strides() -> None:
    def gradient(convert: object) -> Tensor:
        logits = torch.zeros(3, requires_grad=True)
        generator = Generator().manual_seed(0)
        objective = lambda b: convert(b.sum(-1))  # type: ignore[operator]  # noqa: E731
        arms.expectation(objective, logits, "loorf", 4, generator).backward()
        assert logits.grad is not None
        return logits.grad

    def read_only(values: Tensor) -> np.ndarray:
        array = values.numpy().copy()
        array.flags.writeable = False
        return array

    expected = gradient(lambda values: values)
    for convert in (OnlyDLPack, read_only, lambda v: v.numpy()[::-1][::-1], lambda v: v.tolist()):
        assert torch.allclose(gradient(convert), expected)
    assert torch.allclose(gradient(lambda v: v.flip(0).contiguous().numpy()[::-1]), expected), (
        "negative strides"
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            lambda b: torch.nested.nested_tensor([torch.ones(2)] * len(b)),
            "a nested tensor: convert it with .to_padded_tensor",
        ),
        (lambda b: torch.quantize_per_tensor(b.sum(-1), 0.1, 0, torch.qint8), "quantized"),
        (
            lambda b: np.asmatrix(b.sum(-1).numpy()),
            r"one value per sample, shape \[\d\], got \[1, ",
        ),
        (lambda b: b.sum(-1).long() + 2**60, r"integers of at most 2\^53"),
        (lambda b: [b.sum(-1)[0], *[1.0] * (len(b) - 1), 0.0], "got list|shape"),
        (lambda b: b.sum(-1).to_sparse(), "to_dense"),
        (lambda b: b.sum(-1).to("meta"), "meta device"),
    ],
)
def test_what_cannot_be_a_value(objective: object, message: str, chunk: int | None) -> None:
    with pytest.raises(ValueError, match=message):
        arms.expectation(
            objective,  # type: ignore[arg-type]
            torch.zeros(3, requires_grad=True),
            "loorf",
            4,
            chunk=chunk,
        )


def test_lists_that_mix_tensors_and_numbers_are_refused() -> None:
    scale = torch.ones((), requires_grad=True)
    with pytest.raises(ValueError, match=r"got list: combine them with torch\.stack"):
        arms.expectation(
            lambda b: [scale * b[0].sum(), 1.0], torch.zeros(3, requires_grad=True), "loorf", 2
        )


def test_draws_inside_function_transforms_are_refused_where_derivatives_are_needed() -> None:
    def loss(logits: Tensor) -> Tensor:
        drawn = arms.draw(logits, "midpoint", 4)
        return arms.attach(drawn, drawn.points.sum(-1)).sum()

    with pytest.raises(
        ValueError, match=r"not possible inside torch\.func\.grad, vmap or jvp: call it outside"
    ):
        torch.func.grad(loss)(torch.zeros(2, 3))


def test_bounds_inside_function_transforms_have_their_gradient() -> None:
    def loss(logits: Tensor) -> Tensor:
        generator = Generator().manual_seed(0)
        return arms.importance_bound(lambda b: b.sum(-1), logits, "vimco", 4, generator).sum()

    logits = torch.zeros(2, 3, requires_grad=True)
    loss(logits).backward()
    assert logits.grad is not None
    assert torch.equal(torch.func.grad(loss)(logits.detach()), logits.grad)
