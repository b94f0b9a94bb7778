"""torch.compile and torch.func: supported uses give the same numbers, and others raise helpful errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import arms


def quadratic(b: Tensor) -> Tensor:
    return (b @ torch.linspace(-1, 1, 3) - 0.3).square()


def value_of(name: str, generator: Generator | None = None) -> Callable[[Tensor], Tensor]:
    return lambda phi: arms.expectation(quadratic, phi, name, 4, generator)


# ---- torch.compile

WITH_DERIVATIVES = ["midpoint", "flips", "cross-paired"]


@pytest.mark.parametrize("name", ["arms", "loorf"])
def test_a_generator_in_one_graph_is_refused_in_our_words(name: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(value_of(name, Generator()), fullgraph=True, backend="eager")
    with pytest.raises(
        Exception, match=r"cannot trace a torch\.Generator: remove the generator argument"
    ):
        compiled(torch.zeros(5, 3))


def test_what_that_message_advises_works() -> None:
    """The global generator, seeded: the same numbers as without a compiler."""
    torch.compiler.reset()
    compiled = torch.compile(value_of("arms"), fullgraph=True, backend="eager")
    torch.manual_seed(7)
    expected = value_of("arms")(torch.zeros(5, 3))
    torch.manual_seed(7)
    assert torch.equal(compiled(torch.zeros(5, 3)), expected)


@pytest.mark.parametrize("name", WITH_DERIVATIVES)
def test_derivatives_in_one_graph_are_refused_in_our_words(name: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(value_of(name), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="differentiates the objective: use arms or loorf"):
        compiled(torch.zeros(5, 3, requires_grad=True))
    assert compiled(torch.zeros(5, 3)).shape == (5,), "a value without a gradient needs none"


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of the compiler's own
@pytest.mark.parametrize("name", ["arms", *WITH_DERIVATIVES])
def test_without_fullgraph_both_work(name: str) -> None:
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        value = value_of(name, Generator().manual_seed(3))
        call: Any = torch.compile(value, backend="eager") if compiled else value
        logits = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
        call(logits).sum().backward()
        found.append(logits.grad)
    torch.testing.assert_close(*found)


# ---- torch.func


@pytest.mark.parametrize("name", ["arms", "flips"])
@pytest.mark.parametrize("transform", [vmap, jacfwd, hessian])
def test_randomness_under_vmap_is_refused_in_our_words(transform: Any, name: str) -> None:
    advice = 'pass randomness="different" to vmap or jacfwd; hessian cannot work'
    with pytest.raises(ValueError, match=advice):
        transform(value_of(name))(torch.zeros(5, 3))


# PyTorch's vmap writes the flipped values of one row after the other, and warns that this takes longer.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_what_that_message_advises_works_too() -> None:
    logits = torch.zeros(5, 3)
    assert vmap(value_of("flips"), randomness="different")(logits).shape == (5,)
    of_rows = vmap(grad(value_of("arms")), randomness="different")(logits)
    assert of_rows.shape == (5, 3)
    assert jacfwd(value_of("arms"), randomness="different")(logits).shape == (5, 5, 3)
    assert jacrev(value_of("arms"))(logits).shape == (5, 5, 3)


@pytest.mark.parametrize("transform", [grad, jacrev])
def test_derivatives_inside_a_transform_are_refused_in_our_words(transform: Any) -> None:
    with pytest.raises(ValueError, match=r"not possible inside torch\.func\.grad"):
        transform(lambda phi: value_of("midpoint")(phi).sum())(torch.zeros(5, 3))


def test_an_error_of_the_objective_about_randomness_is_left_alone() -> None:
    def objective(b: Tensor) -> Tensor:
        raise RuntimeError("my own randomness")

    with pytest.raises(RuntimeError, match="my own randomness"):
        arms.expectation(objective, torch.zeros(5, 3), "arms", 4)
