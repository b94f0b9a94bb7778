"""Gates, codes and routers: shapes, gradients, evaluation mode, state, and errors."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import arms

MODULES: dict[str, Callable[..., nn.Module]] = {
    "gates": lambda **options: arms.nn.Gates(8, **options),
    "bits": lambda **options: arms.nn.Codes(8, bits=5, **options),
    "categories": lambda **options: arms.nn.Codes(8, categories=6, **options),
    "top-1": lambda **options: arms.nn.Router(8, 4, **options),
    "top-2": lambda **options: arms.nn.Router(8, 4, k=2, **options),
}


def output(module: nn.Module, x: Tensor) -> Tensor:
    """Return the output that depends on the module's choices, `[rows, ...]`."""
    found = module(x)
    return found if isinstance(found, Tensor) else found[0]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 8, generator=seeded())


@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_trains_in_a_block(name: str, repeated: bool, x: Tensor) -> None:
    module = MODULES[name]()
    weights = torch.randn(1, 1, 50)[..., : output(module.eval(), x).shape[-1]].squeeze(0)
    module.train()
    with arms.sampling(num_samples=4) as s:
        out = output(module, s.repeat(x) if repeated else x)
        assert len(out) == 24
        loss = (out * weights).sum(-1).square()
    s.expectation(loss).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("name", MODULES)
def test_a_biased_estimator_needs_no_block(name: str, x: Tensor) -> None:
    estimator = "st" if name == "top-2" else "reinmax"
    module = MODULES[name](estimator=estimator)
    out = output(module, x)
    assert len(out) == 6
    out.square().sum(-1).exp().sum().backward()
    learned = dict(module.named_parameters())["logits" if name == "gates" else "to_logits.weight"]
    assert learned.grad is not None


@pytest.mark.parametrize("name", MODULES)
def test_without_a_block_a_module_in_training_raises(name: str, x: Tensor) -> None:
    with pytest.raises(
        ValueError,
        match=r"the logits of arms.sample require a gradient, but no arms.sampling block is",
    ):
        MODULES[name]()(x)


@pytest.mark.parametrize("name", MODULES)
def test_evaluation_is_not_random_and_the_state_is_clean(name: str, x: Tensor) -> None:
    module = MODULES[name]().eval()
    first, again = output(module, x), output(module, x)
    assert torch.equal(first, again)
    wanted = {"logits"} if name == "gates" else {"to_logits.weight", "to_logits.bias"}
    wanted |= {"codebook.weight"} if name in ("bits", "categories") else set()
    wanted |= {"codebook.bias"} if name == "bits" else set()
    assert set(module.state_dict()) == wanted
    other = MODULES[name]().eval()
    other.load_state_dict(module.state_dict())
    assert torch.equal(output(other, x), first)
    assert torch.equal(output(copy.deepcopy(module), x), first)
    assert all(str(part).isascii() for part in (module, other))


# --- Gates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "shape"), [(1, (5, 8)), (1, (5, 8, 3, 3)), (2, (5, 4, 8))])
def test_gates_multiply_their_axis(dim: int, shape: tuple[int, ...]) -> None:
    gates, x = arms.nn.Gates(8, dim), torch.rand(shape) + 1
    with torch.no_grad():
        gates.logits[:4], gates.logits[4:] = 50, -50
        found = gates(x)
    assert torch.equal(found, gates.eval()(x))
    open_part, shut = found.split(4, dim)
    assert torch.equal(open_part, x.split(4, dim)[0])
    assert not shut.any()
    assert gates.is_open().tolist() == [True] * 4 + [False] * 4
    torch.testing.assert_close(gates.price(), torch.tensor(4.0))


def test_rows_have_gates_of_their_own() -> None:
    with torch.no_grad():
        gates = arms.nn.Gates(8, initial=0.0)(torch.ones(500, 8))
    assert len(gates.unique(dim=0)) > 100
    assert abs(gates.mean() - 0.5) < 0.05


def test_a_price_shuts_gates_that_do_nothing() -> None:
    torch.manual_seed(0)
    gates, linear = arms.nn.Gates(8, initial=1.0), nn.Linear(8, 1)
    x = torch.randn(64, 8)
    optimizer = torch.optim.Adam([*gates.parameters(), *linear.parameters()], lr=0.1)
    for _ in range(150):
        with arms.sampling(num_samples=4, generator=None) as s:
            loss = (linear(gates(x)).squeeze(-1) - s.repeat(x[:, 0])).square()
        optimizer.zero_grad()
        (s.expectation(loss).mean() + 0.05 * gates.price()).backward()
        optimizer.step()
    assert gates.is_open().tolist() == [True] + [False] * 7


# --- Codes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"bits": 5}, {"categories": 6}])
def test_indices_stand_for_the_code_vectors(given: dict[str, Any]) -> None:
    codes, x = arms.nn.Codes(8, **given), torch.randn(6, 3, 8)
    with torch.no_grad():
        for mode in (True, False):
            vectors, indices, loss = codes.train(mode)(x)
            assert vectors.shape == (6, 3, 8)
            assert indices.shape == (6, 3)
            assert loss.shape == (6,)
            torch.testing.assert_close(codes.vectors(indices), vectors)


@pytest.mark.parametrize(
    ("given", "nats"), [({"bits": 5}, 5 * math.log(2)), ({"categories": 6}, math.log(6))]
)
def test_the_loss_is_what_codes_say(given: dict[str, Any], nats: float) -> None:
    codes = arms.nn.Codes(8, **given).eval()
    with torch.no_grad():
        codes.to_logits.weight.zero_()
        codes.to_logits.bias.zero_()
        torch.testing.assert_close(codes(torch.ones(2, 3, 8))[2], torch.zeros(2))
        codes.to_logits.bias.fill_(-200.0)
        codes.to_logits.bias[0] = 200.0
        torch.testing.assert_close(codes(torch.ones(2, 3, 8))[2], torch.full((2,), 3 * nats))


# --- Routers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_router_chooses_k_experts_and_counts_them(k: int) -> None:
    router = arms.nn.Router(8, 4, k)
    for mode in (True, False):
        with torch.no_grad():
            mask, balance = router.train(mode)(torch.randn(60, 8))
        assert torch.equal(mask.sum(-1), torch.full((60,), float(k)))
        torch.testing.assert_close(router.load, mask.mean(0) / k)
        assert balance.shape == ()
        assert k == 4 or balance > 0.9


@pytest.mark.parametrize("given", ["mask", "mask with a gradient"])
def test_a_mixture_is_the_mean_over_chosen_experts(given: str) -> None:
    router, experts = arms.nn.Router(8, 4, 2), nn.ModuleList(nn.Linear(8, 3) for _ in range(4))
    x = torch.randn(10, 8)
    with torch.no_grad():
        mask, _ = router(x)
    mask.requires_grad_(given != "mask")
    every = torch.stack([expert(x) for expert in experts], 1)
    expected = (every * mask.unsqueeze(-1)).sum(1) / 2
    torch.testing.assert_close(router.mix(mask, x, list(experts)), expected)


def test_experts_see_their_own_rows_only() -> None:
    seen: list[int] = []

    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    router = arms.nn.Router(8, 4)
    with arms.sampling(num_samples=4) as s:
        mask, _ = router(x := torch.randn(10, 8))
        scores = router.mix(mask, x, [Counting(8, 3) for _ in range(4)])
        loss = cross_entropy(scores, s.repeat(torch.zeros(10, dtype=torch.long)), reduction="none")
    s.expectation(loss).sum().backward()
    assert sum(seen) == 40
    assert router.to_logits.weight.grad is not None


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("copies", [1, 3])
def test_tokens_are_mixed_as_rows_are(copies: int, k: int) -> None:
    router, experts = arms.nn.Router(8, 4, k), [nn.Linear(8, 3) for _ in range(4)]
    x = torch.randn(5, 6, 8)
    with torch.no_grad():
        mask, _ = router(torch.cat([x] * copies))
        found = router.mix(mask, x, experts)
    assert found.shape == (5 * copies, 6, 3)
    every = torch.stack([expert(torch.cat([x] * copies)) for expert in experts], -2)
    torch.testing.assert_close(found, (every * mask.unsqueeze(-1)).sum(-2) / k)


@pytest.mark.parametrize(
    ("mask", "x", "count"),
    [
        ((4, 6, 3), (4, 6, 8), 2),  # too few experts
        ((4, 6, 3), (4, 5, 8), 3),  # other tokens
        ((5, 3), (4, 8), 3),  # neither the rows nor copies of them
        ((2, 3), (4, 8), 3),
        ((4, 3), (0, 8), 3),
        ((0, 3), (4, 8), 3),
        ((3,), (4, 8), 3),
        ((4, 3), (), 3),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(
    mask: tuple[int, ...], x: tuple[int, ...], count: int
) -> None:
    experts = [nn.Linear(8, 2) for _ in range(count)]
    with pytest.raises(
        ValueError, match=r"..., \*shape\] with the same leading axes, got a mask \["
    ):
        arms.nn.Router(8, 3).mix(torch.ones(mask), torch.ones(x), experts)


@pytest.mark.parametrize("estimator", [None, "st"])
def test_a_router_without_rows_is_balanced(estimator: str | None) -> None:
    router, x = arms.nn.Router(8, 3, estimator=estimator), torch.zeros(0, 8)
    with arms.sampling(num_samples=2) as block:
        mask, balance = router(x)
        if estimator is None:  # the choices of others are not recorded
            block.expectation(torch.zeros(0))
    assert mask.shape == (0, 3)
    assert balance.item() == 1
    assert torch.equal(router.load, torch.full((3,), 1 / 3))
    assert router.mix(mask, x, [nn.Linear(8, 2) for _ in range(3)]).shape == (0, 2)


@pytest.mark.parametrize("indices", [[9], [-1], [0.5], [True]])
@pytest.mark.parametrize("given", [{"bits": 3}, {"categories": 8}])
def test_indices_outside_of_the_codebook_are_refused(
    given: dict[str, Any], indices: list[Any]
) -> None:
    with pytest.raises(ValueError, match="indices must be integers from 0 to 7, got"):
        arms.nn.Codes(4, **given).vectors(torch.tensor(indices))


@pytest.mark.parametrize("name", [name for name in MODULES if name != "gates"])
@pytest.mark.parametrize("shape", [(8,), (6, 7), ()])
def test_an_input_without_rows_or_of_another_size_is_refused(
    name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"x must have shape \[rows, ..., 8\], got \["):
        MODULES[name]().eval()(torch.zeros(shape))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("estimator", ["nonsense", "arms"])
def test_an_estimator_that_cannot_serve_is_refused_at_once(name: str, estimator: str) -> None:
    with pytest.raises(
        ValueError, match=r"there is no estimator named|which is unbiased: pass it to"
    ):
        MODULES[name](estimator=estimator)


def test_the_advice_for_subsets_works() -> None:
    with pytest.raises(
        ValueError,
        match=r"GumbelSoftmax\(hard=True\) needs a latent with the capability Relaxable, and",
    ):
        arms.nn.Router(8, 3, k=2, estimator="st-gumbel")
    router = arms.nn.Router(8, 3, k=2, estimator="st")
    router(torch.randn(5, 8))[0].sum().backward()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: arms.nn.Gates(0), "size must be an integer >= 1, got 0"),
        (
            lambda: arms.nn.Gates(4)(torch.zeros(2, 5)),
            r"Gates\(4, dim=1\) needs an input of length 4 on axis 1, got shape \[2, 5\]",
        ),
        (
            lambda: arms.nn.Codes(4),
            "Codes needs exactly one of bits and categories, got bits=None and categories=None",
        ),
        (
            lambda: arms.nn.Codes(4, bits=2, categories=3),
            "Codes needs exactly one of bits and categories, got bits=2 and categories=3",
        ),
        (lambda: arms.nn.Codes(4, bits=63), "bits must be at most 62, got 63"),
        (lambda: arms.nn.Codes(4, categories=1), "categories must be an integer >= 2"),
        (lambda: arms.nn.Router(4, 3, k=4), "k must be at most 3, the number of experts, got 4"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", [{"bits": 3}, {"categories": 5}], ids=str)
def test_codes_compile_whole(kind: dict[str, int]) -> None:
    codes, x = arms.nn.Codes(8, kind.get("bits"), kind.get("categories")).eval(), torch.randn(4, 8)
    compiled = torch.compile(codes, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x)[1], codes(x)[1])
