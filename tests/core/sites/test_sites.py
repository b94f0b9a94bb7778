"""Sampling sites: draws against enumeration, recorded choices, and one-sentence errors."""

import math
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from seeds import seeded
from torch import Tensor, nn
from torch.distributions import Categorical, OneHotCategorical
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import arms
from arms.checks import score_limit


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


class Gated(nn.Module):
    """Bits, a choice given the bits, and two of four given both, with GroupNorm and dropout in between."""

    def __init__(self, coupled: bool = False, late: type[nn.Module] = nn.Identity) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
            self.third, self.last = nn.Linear(9, 4), nn.Linear(13, 5)
        self.late, self.coupled = late(), coupled
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        gates = arms.sample(self.first(x))
        choice = arms.sample(arms.OneHot(self.second(gates)))
        both = torch.cat([gates, choice], -1)
        mask = arms.sample(arms.Subset(self.third(both), 2))
        found: Tensor = self.last(torch.cat([both, mask], -1))
        return found


def step(
    model: Callable[[Tensor], Tensor], *, coupled: bool, seed: int = 0, name: str = "arms"
) -> Tensor:
    x, y = random(6, 4), torch.arange(6) % 5
    with arms.sampling(name, 4, seeded(seed)) as s:
        scores = model(x if coupled else s.repeat(x))
        loss = cross_entropy(scores, s.repeat(y), reduction="none")
    value = s.expectation(loss)
    assert loss.shape == (24,)
    assert value.shape == (6,)
    value.mean().backward()
    return value


# --- Draws -------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("name", ["arms", "loorf", "disarm", "arms-dirichlet"])
def test_draws_agree_with_enumeration(name: str, coupled: bool) -> None:
    """Many rows with the same input are many independent estimates of one gradient."""
    rows, x = 60_000, torch.ones(1, dtype=torch.float64)
    first, second, shift = random(2, seed=1), random(2, 3, seed=2), random(3, seed=3)
    at = [one.expand(rows, -1).clone().requires_grad_() for one in (first, shift)]
    table = random(2, 3, seed=4)

    def loss(b: Tensor, c: Tensor) -> Tensor:
        return 2 * torch.sin((b @ table * c).sum(-1)) + b.prod(-1)

    with arms.sampling(name, 4, seeded(5)) as s:
        rows_of = x.expand(rows, 1) if coupled else s.repeat(x.expand(rows, 1))
        given = at[0] if coupled else s.repeat(at[0])
        b = arms.sample(rows_of * given)
        c = arms.sample(OneHotCategorical(logits=b @ second + s.repeat(at[1])))
        values = loss(b, c)
    found = torch.autograd.grad(s.expectation(values).sum(), at)
    own = [one.clone().requires_grad_() for one in (first, shift)]
    states = arms.Bits(first).states()
    total = torch.zeros((), dtype=torch.float64)
    for b in states:
        for k, c in enumerate(torch.eye(3, dtype=torch.float64)):
            log_prob = arms.Bits(own[0]).log_prob(b)
            log_prob = log_prob + (b @ second + own[1]).log_softmax(-1)[k]
            total = total + log_prob.exp() * loss(b, c)
    scores = [
        (one.mean(0) - exact) / (one.std(0) / math.sqrt(rows))
        for one, exact in zip(found, torch.autograd.grad(total, own), strict=True)
    ]
    every = torch.cat(scores)
    assert every.abs().max() < score_limit(every.numel())


@pytest.mark.parametrize("coupled", [True, False])
def test_a_model_of_three_sites_trains_all_of_its_parameters(coupled: bool) -> None:
    model = Gated()
    step(model, coupled=coupled)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("coupled", [True, False])
def test_one_seed_gives_the_same_numbers(coupled: bool) -> None:
    values = [step(Gated(), coupled=coupled, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_a_single_site_is_the_estimator_itself() -> None:
    logits = random(5, 3).requires_grad_()
    for name in ("arms", "loorf", "disarm", "reinforce", "arm"):
        with arms.sampling(name, 4, seeded()) as s:
            loss = arms.sample(logits).sum(-1).square()
        (found,) = torch.autograd.grad(s.expectation(loss).sum(), logits)
        value = arms.expectation(lambda b: b.sum(-1).square(), logits, name, 4, seeded())
        torch.testing.assert_close(found, torch.autograd.grad(value.sum(), logits)[0])


def test_the_value_is_the_mean_over_copies_and_costs_belong_to_it() -> None:
    logits = random(5, 3).requires_grad_()
    with arms.sampling(num_samples=4) as s:
        b = arms.sample(logits)
        s.cost(b.sum(-1))
        s.cost(torch.arange(5))
        loss = b.prod(-1)
    expected = (b.sum(-1) + b.prod(-1)).view(4, 5).mean(0) + torch.arange(5)
    torch.testing.assert_close(s.expectation(loss), expected)


def test_a_cost_is_no_noise_for_later_sites() -> None:
    late = torch.zeros(5, 3, requires_grad=True)
    with arms.sampling(num_samples=4) as s:
        s.cost(1e6 * arms.sample(torch.zeros(5, 3, requires_grad=True)).sum(-1))
        loss = 0 * arms.sample(s.repeat(late)).sum(-1)
    s.expectation(loss).sum().backward()
    assert late.grad is not None
    assert late.grad.abs().max() == 0


# --- Forms of choices --------------------------------------------------------------------------


def test_shapes_of_all_kinds_of_choices() -> None:
    bits, choice = torch.zeros(6, 2, 4), torch.zeros(6, 2, 4)
    for block in (False, True):
        for logits in (bits, bits.clone().requires_grad_()):
            if not block and logits.requires_grad:
                continue
            with arms.sampling("arms", 3) if block else torch.no_grad() as s:
                rows = 18 if block else 6
                assert arms.sample(logits).shape == (rows, 2, 4)
                for one_hot in (arms.OneHot(logits), OneHotCategorical(logits=logits)):
                    hot = arms.sample(one_hot)
                    assert hot.shape == (rows, 2, 4)
                    assert torch.equal(hot.sum(-1), torch.ones(rows, 2))
                index = arms.sample(Categorical(logits=logits))
                assert index.shape == (rows, 2)
                assert index.dtype == torch.int64
                mask = arms.sample(arms.Subset(logits, 3))
                assert torch.equal(mask.sum(-1), torch.full((rows, 2), 3.0))
                joint = arms.sample(arms.Joint(a=logits[:, 0], c=arms.OneHot(logits)))
                assert joint["a"].shape == (rows, 4)
                assert joint["c"].shape == (rows, 2, 4)
                if s is not None:
                    s.expectation(torch.zeros(rows))
    del choice


def test_rows_on_another_axis_and_tokens_in_the_batch() -> None:
    """The same seed gives the same choices in a different layout."""
    logits = random(6, 5, 4)
    found = []
    for form in ("rows first", "rows second", "flattened"):
        own = logits.clone().requires_grad_()
        with arms.sampling("loorf", 3, seeded()) as s:
            if form == "rows first":
                b = arms.sample(arms.OneHot(s.repeat(own)))
            elif form == "rows second":
                given = s.repeat(own.transpose(0, 1), batch_dim=1)
                b = arms.sample(arms.OneHot(given), batch_dim=1).transpose(0, 1)
            else:
                given = s.repeat(own).flatten(0, 1)
                b = arms.sample(arms.OneHot(given), tokens=5).unflatten(0, (18, 5))
            loss = (b * torch.arange(4)).sum(-1).prod(-1)
        found.append((b, *torch.autograd.grad(s.expectation(loss).sum(), own)))
    for b, grad in found[1:]:
        assert torch.equal(b, found[0][0])
        assert torch.equal(grad, found[0][1])


def test_certain_choices_stay_certain() -> None:
    logits = torch.tensor([[math.inf, -math.inf, 40.0, -800.0]]).repeat(5, 1).requires_grad_()
    with arms.sampling(num_samples=4) as s:
        b = arms.sample(logits)
        c = arms.sample(s.repeat(logits))
    assert torch.equal(b, torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(20, -1))
    assert torch.equal(b, c)
    (grad,) = torch.autograd.grad(s.expectation((b + c).sum(-1)).sum(), logits)
    assert grad.isfinite().all()


# --- Where samples come from --------------------------------------------------------------------


def test_a_site_without_a_block_raises_where_its_gradient_would_be_lost() -> None:
    logits = torch.zeros(5, 3, requires_grad=True)
    with pytest.raises(
        ValueError,
        match=r"the logits of arms.sample require a gradient, but no arms.sampling block is",
    ):
        arms.sample(logits)
    with torch.no_grad():
        assert arms.sample(logits).shape == (5, 3)
    assert arms.sample(logits.detach()).shape == (5, 3)
    with arms.sampling(num_samples=2):
        pass
    with pytest.raises(
        ValueError,
        match=r"the logits of arms.sample require a gradient, but no arms.sampling block is",
    ):
        arms.sample(logits)


def test_a_frozen_site_is_drawn_like_the_others_and_learns_nothing() -> None:
    model = Gated()
    model.second.requires_grad_(False)
    model.first.requires_grad_(False)
    step(model, coupled=True)
    assert model.first.weight.grad is None
    assert model.third.weight.grad is not None


def test_the_number_of_sites_may_vary() -> None:
    logits = random(3, 5, 2).requires_grad_()
    for count in (3, 1, 0):
        with arms.sampling(num_samples=4) as s:
            h = s.repeat(torch.ones(5, 2))
            for turn in range(count):
                h = h * arms.sample(s.repeat(logits[turn]))
            loss = (h + 0 * s.repeat(logits[0])).sum(-1)
        (grad,) = torch.autograd.grad(s.expectation(loss).sum(), logits)
        assert [one.abs().sum().item() > 0 for one in grad] == [at < count for at in range(3)]


def test_an_error_in_a_block_leaves_nothing_behind() -> None:
    with pytest.raises(KeyError, match="mine"), arms.sampling(num_samples=2):
        raise KeyError("mine")
    step(Gated(), coupled=False)


def test_blocks_are_neither_nested_nor_used_twice() -> None:
    with arms.sampling() as s:
        with pytest.raises(ValueError, match="cannot be nested"), arms.sampling():
            pass
        s.repeat(torch.zeros(2))
    with (
        pytest.raises(
            ValueError,
            match=r"an arms.sampling block can be entered only once: call arms.sampling again for a",
        ),
        s,
    ):
        pass
    step(Gated(), coupled=True)


def test_another_thread_is_outside_of_the_block() -> None:
    logits, said = torch.zeros(5, 3, requires_grad=True), []

    def other() -> None:
        try:
            arms.sample(logits)
        except ValueError as error:
            said.append(str(error))

    with arms.sampling(num_samples=2) as s:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        s.expectation(arms.sample(logits).sum(-1)).sum().backward()
    assert "no arms.sampling block is open" in said[0]


def test_sites_after_the_expectation_are_refused() -> None:
    logits = torch.zeros(5, 3, requires_grad=True)
    with arms.sampling(num_samples=2) as s:
        s.expectation(arms.sample(logits).sum(-1))
        with pytest.raises(
            ValueError,
            match=r"arms.sample was called after s.expectation in the same block: draw all samples",
        ):
            arms.sample(logits)
        assert arms.sample(logits.detach()).shape == (10, 3)


# --- Rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s, x: arms.sample(x[:3]), r"must have 5 rows \(computed before s.repeat\) or 10"),
        (lambda s, x: arms.sample(x.repeat(4, 1)), r"must have 5 rows .* got 20"),
        (
            lambda s, x: arms.sample(x[0]),
            r"logits must have shape \[rows, ..., d\], got \[3\]: call unsqueeze\(-1\) if each",
        ),
        (
            lambda s, x: arms.sample(x, batch_dim=1),
            "batch_dim must be an integer from 0 to 0, got 1",
        ),
        (lambda s, x: arms.sample(x, batch_dim=True), "batch_dim must be an integer"),
        (
            lambda s, x: arms.sample(x, tokens=2),
            "the length of the batch axis must be a multiple of tokens=2, got 5",
        ),
        (lambda s, x: arms.sample(x, tokens=0), "tokens must be an integer >= 1, got 0"),
        (
            lambda s, x: s.repeat(s.repeat(x)),
            "expects tensors of 5 rows, as seen before, got 10: if tokens were flattened into",
        ),
        (lambda s, x: s.repeat([1, 2]), r"s.repeat expects tensors of shape \[B, ...\], got list"),
        (
            lambda s, x: s.repeat(torch.tensor(1.0)),
            r"s.repeat expects tensors of shape \[B, ...\], got shape \[\]",
        ),
        (
            lambda s, x: s.expectation(x.sum(-1)),
            r"each of the 5 rows in each of the 2 copies, got \[5\]: use reduction='none', reduce",
        ),
        (lambda s, x: s.expectation(x.sum()), r"got \[\]: use reduction='none'"),
        (lambda s, x: s.expectation(s.repeat(x)), r"got \[10, 3\]"),
        (
            lambda s, x: s.expectation(s.repeat(x[:, 0]) / 0),
            "the loss must be finite, got NaN or infinity: check its operations",
        ),
        (lambda s, x: s.cost(x), r"a cost must have .* got \[5, 3\]"),
        (
            lambda s, x: arms.sample(x, temperature=0.5),
            "temperature is an argument of biased estimators, and no estimator was given:",
        ),
        (lambda s, x: arms.sample(x, None, s), "generator must be a torch.Generator"),
        (lambda s, x: arms.sample(x / 0 - x / 0), "logits contain NaN"),
    ],
)
def test_wrong_rows_are_refused(use: Callable[[Any, Tensor], object], message: str) -> None:
    x = torch.ones(5, 3, requires_grad=True)
    with arms.sampling(num_samples=2) as s:
        s.repeat(x)
        with pytest.raises(ValueError, match=message) as caught:
            use(s, x)
    assert "\n" not in str(caught.value)


def test_what_needs_an_open_block_says_so() -> None:
    s = arms.sampling()
    for use in (s.repeat, s.cost, s.expectation):
        with pytest.raises(
            ValueError,
            match=r"must be called in or after the block: write `with arms\.sampling\(\) as s:` first",
        ):
            use(torch.zeros(2))
    with (
        s,
        pytest.raises(
            ValueError, match=r"came before any call of s\.repeat or arms\.sample in the block"
        ),
    ):
        s.expectation(torch.zeros(2))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("midpoint", "needs derivatives"),
        ("reinmax", "needs derivatives"),
        ("vimco", "estimates the"),
        ("exact", "enumerates all states"),
        ("unordered-set", "weights its samples"),
    ],
)
def test_estimators_that_cannot_serve_sites_are_refused(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*, so arms.sampling cannot use it: use arms"):
        arms.sampling(name)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_batch_normalization_after_a_site_is_refused_in_training(kind: type[nn.Module]) -> None:
    norm, linear = kind(3).double(), nn.Linear(3, 3).double()
    x = random(6, 3)

    def value(before: bool, after: bool, validate: bool = True) -> Tensor:
        with arms.sampling(num_samples=2, validate=validate) as s:
            h = norm(x) if before else x
            h = s.repeat(h) * arms.sample(linear(h))
            return s.expectation((norm(h) if after else linear(h)).sum(-1))

    if kind is nn.SyncBatchNorm:  # outside of a process group it is BatchNorm
        norm = nn.BatchNorm1d(3).double()
    value(before=True, after=False)  # nothing has been drawn where it is computed
    with pytest.raises(
        ValueError,
        match=re.escape(
            "batch normalization in training mode follows a call of arms.sample, so the loss"
        ),
    ):
        value(before=False, after=True)
    value(before=False, after=True, validate=False)
    norm.eval()
    value(before=False, after=True)


def test_instance_normalization_is_allowed() -> None:
    norm, logits = nn.InstanceNorm1d(3), torch.zeros(6, 3, requires_grad=True)
    scale = torch.ones(3, 1, requires_grad=True)
    with arms.sampling(num_samples=2) as s:
        b = arms.sample(logits).unsqueeze(-1) * torch.randn(12, 3, 5) * scale
        loss = norm(b).square()[..., 0].sum(-1)
    s.expectation(loss).sum().backward()


def test_values_are_not_looked_at_where_that_is_not_wanted() -> None:
    logits = torch.full((6, 3), torch.nan, requires_grad=True)
    with arms.sampling(num_samples=2, validate=False) as s:
        loss = arms.sample(logits).sum(-1)
    s.expectation(loss).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isnan().all()


# --- What PyTorch adds --------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """A model whose forward pass runs twice, in parts if `nested`."""

    def __init__(self, nested: bool = False, **options: Any) -> None:
        super().__init__()
        self.inside, self.options, self.nested = Gated(), options, nested

    def forward(self, x: Tensor) -> Tensor:
        if not self.nested:
            found: Tensor = checkpoint(self.inside, x, **self.options)
            return found

        def outer(x: Tensor) -> Tensor:
            gates = arms.sample(self.inside.first(x))
            found: Tensor = checkpoint(self.rest, gates, **self.options)
            return found

        twice: Tensor = checkpoint(outer, x, **self.options)
        return twice

    def rest(self, gates: Tensor) -> Tensor:
        choice = arms.sample(arms.OneHot(self.inside.second(gates)))
        both = torch.cat([gates, choice], -1)
        mask = arms.sample(arms.Subset(self.inside.third(both), 2))
        found: Tensor = self.inside.last(torch.cat([both, mask], -1))
        return found


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("coupled", [True, False])
def test_a_checkpointed_model_makes_the_same_choices_twice(coupled: bool, nested: bool) -> None:
    plain = Gated()
    model = Checkpointed(nested, use_reentrant=False, context_fn=arms.same_samples)
    assert torch.equal(step(plain, coupled=coupled), step(model, coupled=coupled))
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_would_draw_anew_is_refused(reentrant: bool) -> None:
    model = Checkpointed(use_reentrant=reentrant)
    x = random(6, 4).requires_grad_()
    with arms.sampling(num_samples=4) as s:
        loss = model(s.repeat(x)).sum(-1)
    with pytest.raises(ValueError, match=r"use_reentrant=False and context_fn=arms.same_samples"):
        s.expectation(loss).sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_has_the_same_gradient() -> None:
    torch._dynamo.reset()
    plain, model = Gated(), Gated()
    compiled = torch.compile(model, backend="aot_eager")
    for coupled in (True, False):
        torch.testing.assert_close(step(plain, coupled=coupled), step(compiled, coupled=coupled))
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    model = Gated().float()
    x, y = random(6, 4).float(), torch.arange(6) % 5
    with arms.sampling(num_samples=4) as s, torch.autocast("cpu", dtype):
        loss = cross_entropy(model(s.repeat(x)), s.repeat(y), reduction="none")
    s.expectation(loss).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_function_transforms_are_refused() -> None:
    def value(logits: Tensor) -> Tensor:
        with arms.sampling(num_samples=2) as s:
            loss = arms.sample(logits).sum(-1)
        return s.expectation(loss).sum()

    with pytest.raises(
        ValueError,
        match=r"arms.sample cannot record choices inside torch.func.grad, vmap or jvp: use",
    ):
        torch.func.grad(value)(torch.zeros(5, 3))


def test_rewards_of_a_simulator_are_values_too() -> None:
    logits = torch.zeros(5, 3, requires_grad=True)
    with arms.sampling(num_samples=4) as s:
        actions = arms.sample(Categorical(logits=logits))
    s.expectation((actions.numpy() == 1).astype(int)).sum().backward()
    assert logits.grad is not None
    assert logits.grad[:, 1].sum() > 0
