r"""Sampling sites: discrete choices anywhere in a model. The model needs no further changes.

$$ g = \sum_i J_i^\top \Big(\frac{f_i - \operatorname{mean} f}{n - 1}\, \nabla \log p(b_i)\Big) $$

This is the gradient that one site contributes. The batch is repeated n times, and every site draws
one choice b_i in each copy i. f_i is the loss of copy i, and J_i is the Jacobian of the site's
logits in copy i. The estimate is unbiased in two cases:

- The logits were computed from the repeated batch. Given everything before the site, the choices of
  different copies are independent. The losses of the other copies are therefore a valid baseline,
  as in `arms.layers`. The Jacobians may differ.
- The logits were computed once, before the batch was repeated. All copies share one Jacobian, so
  the estimator's design may couple their choices.

Coupled copies need a shared Jacobian, because with coupling only the sum over copies is unbiased.
Equal logits are not sufficient. For example, a layer that is initialized to zero gives equal logits
with different Jacobians. The number of rows therefore decides between the two cases. Values are
never compared.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, cast

import torch
from torch import Generator, Tensor
from torch._compile import _disable_dynamo

from arms.arguments import (
    FLOATS,
    as_count,
    at_least_float32,
    check_generator,
    in_function_transform,
    true_or_unreadable,
    version_of,
)
from arms.attachment import attach_gradient, needs_gradient
from arms.designs import Draw
from arms.estimate import check_fits, draw_points, gradient, takes
from arms.estimators import LOORF, Estimator, as_estimator
from arms.estimators.registry import BIASED_ESTIMATORS, ESTIMATORS, resolve
from arms.latents import Bits, Latent, Logits, OneHot, as_latent
from arms.layers import deeper_gradient, reason_not_first_layer
from arms.objective import Evaluation
from arms.random import (
    GlobalStates,
    global_states,
    restore_global_states,
    warn_if_ranks_share_noise,
)


def sampling(
    estimator: str | Estimator = "arms",
    num_samples: int | None = None,
    generator: Generator | None = None,
    *,
    evaluations: int | None = None,
    validate: bool = True,
) -> "Sampling":
    """Return a block for a `with` statement. In the block, `arms.sample` records discrete choices.

    Args:
        estimator: An unbiased estimator that needs values only, such as "arms" or "loorf". A site
            whose logits were computed after the batch was repeated uses leave-one-out instead.
        num_samples: The number of copies of the batch, n; 8 by default.
        generator: Source of all randomness; PyTorch's global generator by default.
        evaluations: The largest allowed number of copies. Pass this instead of `num_samples`.
        validate: Raise an error for NaN, and for batch normalization after a site. On a GPU, this
            waits for the device.

    >>> import arms
    >>> x, scores = torch.ones(5, 3), torch.nn.Linear(3, 2)
    >>> with arms.sampling(num_samples=4) as s:
    ...     loss = arms.sample(scores(s.repeat(x))).sum(-1)
    >>> s.expectation(loss).mean().backward()
    >>> loss.shape, scores.weight.grad.shape
    (torch.Size([20]), torch.Size([2, 3]))
    """
    chosen = as_estimator(estimator, num_samples, evaluations)
    reason = "needs derivatives" if chosen.design.needs.derivatives else ""
    if reason := reason or reason_not_first_layer(chosen):
        biased = "pass a biased estimator to arms.sample instead, as in arms.sample(l, 'reinmax')"
        what = f"{chosen} {reason}, so arms.sampling cannot use it"
        raise ValueError(f"{what}: use arms or loorf; {biased}")
    check_generator(generator)
    return Sampling(chosen, generator, validate)


def sample(
    logits: Logits,
    estimator: str | Estimator | None = None,
    generator: Generator | None = None,
    *,
    temperature: float | None = None,
    batch_dim: int = 0,
    tokens: int = 1,
    validate: bool = True,
) -> Any:
    """Return a hard sample of a choice inside a model, in the shape of the logits.

    In a block of `arms.sampling`, the choice is recorded, and the logits receive an unbiased
    gradient from the block. If the logits were computed before `repeat`, the result has n samples
    per row. With a biased estimator, no block is needed: the sample itself carries a
    straight-through gradient, as with `torch.nn.functional.gumbel_softmax`.

    Args:
        logits: `[rows, ..., d]` for bits; an `arms.OneHot` or a `OneHotCategorical`
            `[rows, ..., K]` for one choice over the last axis; a `Categorical` for the index of a
            choice; an `arms.Subset` for a k-hot mask; or any other latent.
        estimator: The name of a biased estimator (`arms.BIASED_ESTIMATORS`), or such an estimator.
        generator: Source of randomness. The default is the generator of the block or of PyTorch.
        temperature: The temperature of the biased estimator.
        batch_dim: The axis of the rows.
        tokens: If tokens were flattened into the batch: the number of consecutive entries on
            `batch_dim` that belong to one row. Always pass this number in that case. Otherwise, n
            tokens per row would look like n copies of the batch.
        validate: Check for NaN. On a GPU, this waits for the device.

    >>> from torch.distributions import OneHotCategorical
    >>> sample(OneHotCategorical(logits=torch.zeros(5, 4))).sum(-1)
    tensor([1., 1., 1., 1., 1.])
    >>> logits = torch.zeros(5, 4, requires_grad=True)
    >>> sample(OneHotCategorical(logits=logits), "reinmax").requires_grad
    True
    """
    check_generator(generator)
    if estimator is not None:
        form = _Form.of(as_latent(logits, validate=validate), batch_dim, tokens)
        return form.restore(_straight_through(form.latent, estimator, temperature, generator))
    if temperature is not None:
        what = "temperature is an argument of biased estimators, and no estimator was given"
        remedy = "remove the temperature, or write arms.sample(logits, 'st-gumbel', ...)"
        raise ValueError(f"{what}: {remedy}")
    at_site = _untraced if torch.compiler.is_compiling() else _at_site
    return at_site(logits, generator, batch_dim, tokens, validate)


def _at_site(
    logits: Logits, generator: Generator | None, batch_dim: int, tokens: int, validate: bool
) -> Any:
    """Return a hard sample, and record the site if an `arms.sampling` block is open."""
    block = _BLOCK.get()
    validate = validate and (block is None or block.validate)
    form = _Form.of(as_latent(logits, validate=validate), batch_dim, tokens)
    points = _taped(lambda: _drawn(form, generator), form.latent.logits.device)
    return form.restore(points.clone())  # the caller may modify the result in place


# torch.compile must not trace the recording. The public torch.compiler.disable would import the
# compiler together with this module, which takes longer than all other imports.
_untraced = _disable_dynamo(_at_site)


def _drawn(form: "_Form", generator: Generator | None) -> Tensor:
    _refuse_in_backward()
    if (block := _BLOCK.get()) is not None:
        return block.draw(form, generator)
    if needs_gradient(form.latent):
        raise ValueError(
            "the logits of arms.sample require a gradient, but no arms.sampling block is open: "
            "call arms.sample inside `with arms.sampling() as s:`, or pass a biased estimator, as "
            "in arms.sample(logits, 'reinmax'), or call arms.sample under torch.no_grad()"
        )
    return form.latent.detach().sample(1, generator)[0]


def _refuse_in_backward() -> None:
    """Raise if a backward pass is running. In it, a checkpoint may call part of the model again."""
    # This function is private (tried on PyTorch 2.8 to 2.13).
    if torch._C._current_graph_task_id() != -1:
        raise ValueError(
            "arms.sample was called again during the backward pass, where it would draw different "
            "samples: pass use_reentrant=False and context_fn=arms.same_samples to "
            "torch.utils.checkpoint"
        )


class Sampling:
    """A block of `arms.sampling`: it records samples, and estimates the expected loss.

    Args:
        estimator: The estimator for sites whose logits are computed before the batch is repeated.
        generator: Source of randomness for all sites.
        validate: Whether to check values.
    """

    def __init__(self, estimator: Estimator, generator: Generator | None, validate: bool) -> None:
        self.estimator, self.generator, self.validate = estimator, generator, validate
        self.copies = estimator.design.num_samples
        """The number of copies of the batch, n."""
        self.rows: int | None = None
        """The number of rows of the batch before it is repeated, B, or None if not yet known."""
        self._sites: list[_Site] = []
        self._costs: list[tuple[int, Tensor]] = []
        self._token: Token[Sampling | None] | None = None
        self._state = "new"
        self._asked = False  # whether `expectation` was called
        self._began = 0  # autograd's sequence number when the first site drew

    def __enter__(self) -> Self:
        if self._state != "new":
            what = "an arms.sampling block can be entered only once"
            raise ValueError(f"{what}: call arms.sampling again for a new block")
        if _BLOCK.get() is not None:
            what = "arms.sampling blocks cannot be nested"
            raise ValueError(f"{what}: use one block around all calls of arms.sample")
        self._token, self._state = _BLOCK.set(self), "open"
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._token is not None
        _BLOCK.reset(self._token)
        self._token = None
        if kind is not None:
            self._asked = True  # the error is enough

    def __del__(self) -> None:
        # `expectation` may be called after the block, so only the end of the object is late enough.
        if not getattr(self, "_asked", True) and self._sites:
            warnings.warn(
                "an arms.sampling block ended without s.expectation, so the logits of its sites "
                "got no gradient: call s.expectation(loss), or sample under torch.no_grad()",
                stacklevel=2,
            )

    def repeat(self, *tensors: Tensor, batch_dim: int = 0) -> Any:
        """Concatenate n copies of each tensor along the batch axis.

        The result contains all rows of copy 1, then all rows of copy 2, and so on. For several
        tensors, the result is a tuple.

        Args:
            tensors: One or more tensors `[B, ...]`.
            batch_dim: The batch axis.
        """
        self._require_entered("s.repeat")
        found = []
        for one in tensors:
            if not isinstance(one, Tensor) or not -one.ndim <= batch_dim < one.ndim:
                got = f"shape {list(one.shape)}" if isinstance(one, Tensor) else type(one).__name__
                raise ValueError(f"s.repeat expects tensors of shape [B, ...], got {got}")
            rows = one.shape[batch_dim]
            self.rows = rows if self.rows is None else self.rows
            if rows != self.rows:
                wanted = f"s.repeat expects tensors of {self.rows} rows, as seen before"
                hint = "if tokens were flattened into rows, pass tokens= to the first arms.sample"
                raise ValueError(f"{wanted}, got {rows}: {hint}")
            found.append(torch.cat([one] * self.copies, batch_dim))
        return found[0] if len(found) == 1 else tuple(found)

    def cost(self, term: Tensor) -> None:
        """Add a term to the loss. The term must not depend on samples of later sites.

        The gradient of later sites then ignores this term, which lowers the variance.

        Args:
            term: `[n * B]`, or `[B]` if the term depends on no sample. The term may depend on
                samples of earlier sites.
        """
        self._require_entered("s.cost")
        if self._state == "closed":
            what = "s.cost was called after s.expectation"
            raise ValueError(f"{what}: call s.cost before s.expectation")
        self._costs.append((len(self._sites), self._as_values(term, "a cost", once=True)))

    def expectation(self, loss: Tensor) -> Tensor:
        """Return the expected loss per row `[B]`, ready for `.backward()`.

        Args:
            loss: `[n * B]`, one value for each copy of each row, as with `reduction="none"` in
                PyTorch's losses. The terms that were passed to `cost` are added to this loss.
        """
        self._require_entered("s.expectation")
        self._asked = True
        if self._state == "closed" and self._costs:
            raise ValueError(
                "s.expectation was called twice in a block with s.cost, so the costs would count "
                "twice: call it once, with the sum of all losses"
            )
        values = self._as_values(loss, "the loss")
        if self.validate and self._sites:
            later = [site.latent.logits for site in self._sites[1:]]
            terms = [term for _, term in self._costs]
            _refuse_batch_norm([values, *terms, *later], self._began)
        for site in self._sites:
            site.require_unchanged()
        self._state = "closed"
        total, to_go, costs = values, [values] * len(self._sites), list(self._costs)
        for place, term in costs:
            total = total + term
            to_go = [one + term if at < place else one for at, one in enumerate(to_go)]
        value = self.estimator.target.value(total)
        for site, signal in zip(self._sites, to_go, strict=True):
            value = site.attach(value, signal.detach())
        return value

    def draw(self, form: "_Form", generator: Generator | None) -> Tensor:
        """Draw the samples of a site, and record the site.

        The result is `[n * B, ...]`, one sample for each row of every copy.
        """
        generator, wanted = generator or self.generator, needs_gradient(form.latent)
        if self._state == "closed" and wanted:
            what = "arms.sample was called after s.expectation in the same block"
            raise ValueError(f"{what}: draw all samples before s.expectation, or open a new block")
        if wanted and in_function_transform():
            what = "arms.sample cannot record choices inside torch.func.grad, vmap or jvp"
            raise ValueError(f"{what}: use arms.expectation there")
        count, copies = form.count, self.copies
        self.rows = count if self.rows is None else self.rows
        if count not in (self.rows, copies * self.rows):
            raise ValueError(
                f"logits must have {self.rows} rows (computed before s.repeat) or "
                f"{copies * self.rows} rows (computed after it), got {count}: pass tokens= if "
                "tokens were flattened into the batch axis, pass batch_dim= if the batch is not "
                "the first axis, and expand logits that all rows share"
            )
        latent = form.latent
        if wanted and not self._sites:
            self._began = _newest_node(latent.logits)
        if count != self.rows:
            points, drawn = self.draw_repeated(latent, generator), None
        else:
            # Latents that cannot be coupled get independent samples.
            chosen = self.estimator if takes(self.estimator, latent) else LOORF(copies)
            drawn = self.draw_once(chosen, latent, generator)
            points = drawn.points.flatten(0, 1)
            if wanted:
                self._sites.append(_Once(latent, points, copies, chosen, drawn))
        if wanted and drawn is None:
            self._sites.append(_Repeated(latent, points, copies))
        return points

    def draw_once(self, chosen: Estimator, latent: Latent, generator: Generator | None) -> Draw:
        """Draw n samples for each of the B rows of the latent.

        The logits were computed before the batch was repeated, so they have B rows.
        """
        return draw_points(chosen, latent, generator)

    def draw_repeated(self, latent: Latent, generator: Generator | None) -> Tensor:
        """Draw one sample for each of the n * B rows of the latent.

        The logits were computed from the repeated batch, so they have n * B rows.
        """
        if generator is None:
            warn_if_ranks_share_noise(latent.logits.device)
        return latent.detach().sample(1, generator)[0]

    def _require_entered(self, what: str) -> None:
        if self._state == "new":
            when = "must be called in or after the block"
            raise ValueError(f"{what} {when}: write `with arms.sampling() as s:` first")

    def _as_values(self, loss: object, what: str, once: bool = False) -> Tensor:
        """Check a loss `[n * B]`, and return it as floating-point numbers `[n, B]`.

        `what` is the name of the loss in error messages. If `once` is True, the loss may also have
        shape `[B]`.
        """
        if self.rows is None:
            before = "came before any call of s.repeat or arms.sample in the block"
            raise ValueError(f"{what} {before}: draw samples in the block first")
        try:
            values = loss if isinstance(loss, Tensor) else torch.as_tensor(loss)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"{what} must be a tensor or an array, got {loss!r:.40}") from None
        values = values if values.dtype in FLOATS else values.to(torch.get_default_dtype())
        n, rows = self.copies, self.rows
        if values.shape != (n * rows,) and not (once and values.shape == (rows,)):
            raise ValueError(
                f"{what} must have shape [{n * rows}], one value for each of the {rows} rows in "
                f"each of the {n} copies, got {list(values.shape)}: use reduction='none', reduce "
                "all other axes, and repeat the labels with s.repeat"
            )
        if self.validate and not true_or_unreadable(values.detach().isfinite().all()):
            raise ValueError(f"{what} must be finite, got NaN or infinity: check its operations")
        return values.expand(n, rows) if values.shape == (rows,) else values.view(n, rows)


@dataclass(frozen=True)
class _Site(ABC):
    """A recorded site: a latent with rows on its first axis, and samples for all n copies."""

    latent: Latent
    points: Tensor
    copies: int
    _version: int = field(init=False)  # the version of the logits when the samples were drawn

    def __post_init__(self) -> None:
        object.__setattr__(self, "_version", version_of(self.latent.logits))

    def require_unchanged(self) -> None:
        """Raise if the logits were modified in place after the draw."""
        if version_of(self.latent.logits) != self._version:
            raise ValueError(
                "the logits passed to arms.sample were modified in place afterwards: use an "
                "operation that returns a new tensor"
            )

    @abstractmethod
    def attach(self, value: Tensor, signal: Tensor) -> Tensor:
        """Return `value` `[B]` with an attached gradient for the logits of this site.

        `signal` `[n, B]` is the loss without the costs that were added before this site.
        """

    def per_row(self) -> Latent:
        """Return a latent whose logits are flattened to `[rows, entries]`.

        `attach_gradient` then takes one value per row.
        """
        return Bits(self.latent.logits.flatten(1))


class _Repeated(_Site):
    """A site whose logits come from the repeated batch, with n * B rows.

    The samples of different copies are independent, and their Jacobians may differ.
    """

    def attach(self, value: Tensor, signal: Tensor) -> Tensor:
        n, batch = self.copies, self.latent.batch_shape[1:]
        split = self.latent.with_logits(self.latent.logits.unflatten(0, (n, -1)))
        points = self.points.unflatten(0, (n, -1))
        grad = deeper_gradient(split, points, _like_batch(signal, batch), n)
        zero = torch.zeros_like(value.detach()).repeat(n)
        found = attach_gradient(zero, self.per_row(), grad.flatten(0, 1).flatten(1))
        return value + found.view(n, -1).sum(0)


@dataclass(frozen=True)
class _Once(_Site):
    """A site whose logits were computed before the batch was repeated, with B rows.

    All copies share one Jacobian, so their samples may be coupled.
    """

    estimator: Estimator
    drawn: Draw

    def attach(self, value: Tensor, signal: Tensor) -> Tensor:
        values = _like_batch(signal, self.latent.batch_shape[1:])
        grad = gradient(self.estimator, self.drawn, Evaluation(values)).detach()
        return attach_gradient(value, self.per_row(), grad.flatten(1))


def _like_batch(signal: Tensor, rest: Sequence[int]) -> Tensor:
    """Expand `signal` from `[n, B]` to `[n, B, *rest]`, with further batch axes `rest`."""
    return signal.view(*signal.shape, *[1] * len(rest)).expand(*signal.shape, *rest)


@dataclass(frozen=True)
class _Form:
    """A latent with rows on its first axis, and how its samples become those that the user gets."""

    latent: Latent
    batch_dim: int
    tokens: int
    single: bool  # whether an event axis was added, because each event is a single choice

    @classmethod
    def of(cls, latent: Latent, batch_dim: int, tokens: int) -> "_Form":
        single = isinstance(latent, OneHot)
        logits = latent.logits.unsqueeze(-2) if single else latent.logits
        batch = logits.ndim - latent.event_dims
        if batch < 1:
            shape = list(latent.logits.shape)
            raise ValueError(
                f"logits must have shape [rows, ..., {latent.event_axes}], got {shape}: call "
                "unsqueeze(-1) if each row has one bit, or expand(rows, -1) if all rows share "
                "the logits"
            )
        if isinstance(batch_dim, bool) or not isinstance(batch_dim, int):
            raise ValueError(f"batch_dim must be an integer, got {batch_dim!r}")
        if not 0 <= batch_dim < batch:
            limits = f"an integer from 0 to {batch - 1}"
            raise ValueError(f"batch_dim must be {limits}, got {batch_dim}")
        logits = logits.movedim(batch_dim, 0) if batch_dim else logits
        if (tokens := as_count(tokens, 1, "tokens")) > 1:
            if len(logits) % tokens:
                wanted = f"the length of the batch axis must be a multiple of tokens={tokens}"
                raise ValueError(f"{wanted}, got {len(logits)}")
            logits = logits.unflatten(0, (-1, tokens))
        same = logits is latent.logits
        return cls(latent if same else latent.with_logits(logits), batch_dim, tokens, single)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.latent.logits)

    def restore(self, points: Tensor) -> Any:
        """Convert samples of `latent` to the axes that the user's logits have."""
        found = self.latent.to_objective(points)
        if isinstance(found, dict):
            return {name: self._restore(one) for name, one in found.items()}
        if self.single:  # one-hot [..., 1, K], or indices [..., 1]
            found = found.squeeze(-1 if found.ndim < points.ndim else -2)
        return self._restore(found)

    def _restore(self, found: Tensor) -> Tensor:
        found = found.flatten(0, 1) if self.tokens > 1 else found
        return found.movedim(0, self.batch_dim) if self.batch_dim else found


def _straight_through(
    latent: Latent,
    estimator: str | Estimator,
    temperature: float | None,
    generator: Generator | None,
) -> Tensor:
    """Draw one sample per row. The sample carries the gradient of a biased estimator.

    The gradient of a biased estimator is M df/db, with a matrix M that depends on the logits and
    the sample. The expression sample + M (logits - logits.detach()) passes this gradient to the
    logits, because M is symmetric.
    """
    chosen = drop_in(estimator, latent, temperature)
    if torch.compiler.is_compiling():
        drawn = draw_points(chosen, latent, generator)
    else:
        drawn = _taped(lambda: _drawn_ahead(chosen, latent, generator), latent.logits.device)
    points = drawn.points[0]
    if not needs_gradient(latent):
        return points.clone()
    still = at_least_float32(latent.logits).nan_to_num()  # inf - inf would be NaN
    step = (still - still.detach()).unsqueeze(0)
    with torch.autocast(points.device.type, enabled=False):
        path = chosen.combine(drawn, torch.zeros_like(step), step)
    return points + path.to(points.dtype)


def drop_in(
    estimator: str | Estimator, latent: Latent, temperature: float | None = None
) -> Estimator:
    """Return the biased estimator with the name `estimator`. An object is returned unchanged.

    Raise if the estimator is unbiased, or if it cannot draw `latent`.
    """
    named = isinstance(estimator, str) and resolve(estimator)[0] in ESTIMATORS
    if named or (isinstance(estimator, Estimator) and estimator.unbiased):
        raise ValueError(
            "arms.sample needs a biased estimator, whose gradient flows through the sample, got "
            f"{estimator}, which is unbiased: pass it to arms.sampling instead, or choose one of "
            f"{', '.join(BIASED_ESTIMATORS)}"
        )
    options: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    try:
        chosen = as_estimator(estimator, 1, **options)
    except TypeError:
        raise ValueError(
            f"{estimator} has no temperature: remove the temperature argument"
        ) from None
    check_fits(chosen, latent, any_latent="st")
    return chosen


def _drawn_ahead(chosen: Estimator, latent: Latent, generator: Generator | None) -> Draw:
    if generator is not None:  # a checkpoint only restores PyTorch's own generators
        _refuse_in_backward()
    return draw_points(chosen, latent, generator)


_BLOCK: ContextVar[Sampling | None] = ContextVar("arms.sampling", default=None)


_T = TypeVar("_T")


class _Tape:
    """Records the samples that are drawn in a checkpointed part of a model.

    A checkpointed part runs twice. Its second forward pass takes the samples from the tape, without
    drawing random numbers. The tape also stores the state of PyTorch's generators after each
    sample, so that later random operations, such as dropout, get the same numbers in both passes.
    """

    def __init__(self, draws: list[tuple[Any, GlobalStates]], replaying: bool) -> None:
        self.draws, self.replaying, self.position = draws, replaying, 0
        self.outer: _Tape | None = None
        self.entered: list[tuple[Token[_Tape | None], list[GlobalStates]]] = []

    def __enter__(self) -> None:
        self.outer, self.position = _TAPE.get(), 0
        devices = {one for _, states in self.draws for one in states} if self.replaying else set()
        self.entered.append((_TAPE.set(self), [global_states(one) for one in devices]))

    def __exit__(self, *_: object) -> None:
        token, before = self.entered.pop()
        _TAPE.reset(token)
        for states in before:
            restore_global_states(states)

    def take(self, draw: Callable[[], _T], device: torch.device) -> _T:
        """Call `draw`, record its result and return it.

        In the second forward pass, return the recorded result without calling `draw`.
        """
        if self.replaying:
            if self.position == len(self.draws):
                raise ValueError(
                    "the second forward pass of a checkpoint called arms.sample more often than "
                    "the first: make the number of calls the same in both"
                )
            found, states = self.draws[self.position]
            self.position += 1
            restore_global_states(states)
            return cast(_T, found)
        outer = self.outer  # an enclosing checkpoint, which may also run again
        made = draw() if outer is None else outer.take(draw, device)
        self.draws.append((made, global_states(device)))
        return made


_TAPE: ContextVar[_Tape | None] = ContextVar("arms.same_samples", default=None)


def _taped(draw: Callable[[], _T], device: torch.device) -> _T:
    tape = _TAPE.get()
    return draw() if tape is None else tape.take(draw, device)


def same_samples() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return two contexts, one for each forward pass of a checkpoint.

    In these contexts, both passes get the same samples. Pass this function as the argument
    `context_fn`: `checkpoint(module, x, use_reentrant=False, context_fn=arms.same_samples)`.
    """
    draws: list[tuple[Any, GlobalStates]] = []
    return _Tape(draws, replaying=False), _Tape(draws, replaying=True)


def _newest_node(tensor: Tensor) -> int:
    """Create an autograd node after `tensor`, and return the node's sequence number.

    Return 0 if `tensor` has no graph. Sequence numbers increase with every node of a thread.
    """
    node = tensor.view_as(tensor).grad_fn  # None in forward-mode differentiation
    return 0 if node is None else int(node._sequence_nr())


def _refuse_batch_norm(ends: list[Tensor], began: int) -> None:
    """Raise if the graphs of the tensors `ends` contain batch normalization after the first site.

    `began` is the sequence number of the first site. Batch normalization would mix rows.
    """
    waiting: list[Any] = [end.grad_fn for end in ends]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        # Nodes are newer than their inputs, so the inputs of an older node need no search.
        if node is None or node in seen or node._sequence_nr() < began:
            continue
        seen.add(node)
        waiting.extend(parent for parent, _ in node.next_functions)
        if "BatchNorm" not in type(node).__name__ or not getattr(node, "_saved_training", True):
            continue
        # Instance normalization calls batch normalization with a single row and more channels.
        if len(getattr(node, "_saved_input", ends[0])) > 1:
            raise ValueError(
                "batch normalization in training mode follows a call of arms.sample, so the loss "
                "of a row depends on other rows, which biases the gradient: use GroupNorm or "
                "LayerNorm, or call .eval() on the module. If the module's input depends on no "
                "sample, call the module before arms.sample (validate=False skips this check)"
            )
