"""Joint latents: several latents that are drawn together, such as a mask and an action."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from arms.latents.base import Enumerable, ExchangeablePairs, Latent, Neighbors, Relaxable
from arms.latents.convert import Logits, as_latent


def _per_part(name: str) -> Callable[..., Tensor]:
    """Return a method for `Joint`. It calls the method with the name `name` on every part.

    Tensor arguments are split among the parts, and the results of the parts are joined.
    """

    def method(self: "Joint", *given: Any, **options: Any) -> Tensor:
        count = len(self.parts)
        shares = [self._split(one) if isinstance(one, Tensor) else [one] * count for one in given]
        calls = zip(self.parts.values(), *shares, strict=True)
        return self._join([getattr(part, name)(*own, **options) for part, *own in calls])

    return method


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Joint(Neighbors, Enumerable, ExchangeablePairs, Relaxable):
    """Several independent latents with names, drawn together.

    The objective is called with one argument per latent, as in `f(mask=..., action=...)`, and
    gradients are returned as a dictionary with the same keys. All latents share one batch shape.
    A joint latent has the capabilities that all of its parts have.

    Args:
        parts: Keyword arguments, one latent per name. Logits and torch distributions are also
            accepted.

    >>> from torch.distributions import OneHotCategorical
    >>> joint = Joint(mask=torch.zeros(5, 3), action=OneHotCategorical(logits=torch.zeros(5, 1, 4)))
    >>> {name: part.shape for name, part in joint.to_objective(joint.sample(2)).items()}
    {'mask': torch.Size([2, 5, 3]), 'action': torch.Size([2, 5, 1, 4])}
    """

    parts: Mapping[str, Latent]

    sample = _per_part("sample")
    score = _per_part("score")
    undefined = _per_part("undefined")
    mean = _per_part("mean")
    covariance_matvec = _per_part("covariance_matvec")
    exchange = _per_part("exchange")
    pair_covariance_matvec = _per_part("pair_covariance_matvec")
    rises = _per_part("rises")
    trapezoid = _per_part("trapezoid")
    perturb = _per_part("perturb")
    harden = _per_part("harden")

    def __init__(self, /, **parts: Logits) -> None:
        latents = {name: as_latent(part) for name, part in parts.items()}
        if not latents:
            raise ValueError("Joint needs at least one part, as in Joint(mask=logits), got none")
        kinds = {
            name: f"{list(part.batch_shape)} {part.logits.dtype} on {part.logits.device}"
            for name, part in latents.items()
        }
        if len(set(kinds.values())) > 1:
            wanted = "share one batch shape, dtype and device"
            got = ", ".join(f"{name} with {kind}" for name, kind in kinds.items())
            shapes = {part.batch_shape for part in latents.values()}
            # One part has two event axes and logits [B, K], and another part has logits [B, d].
            one_choice = any(
                len(part.event_shape) == 2 and part.event_shape[:1] in shapes
                for part in latents.values()
            )
            hint = ". If each row makes one choice, pass logits.unsqueeze(-2)" if one_choice else ""
            raise ValueError(f"the parts of a joint latent must {wanted}, got {got}{hint}")
        object.__setattr__(self, "parts", latents)
        object.__setattr__(self, "logits", self._join([one.logits for one in latents.values()]))

    def __repr__(self) -> str:
        return f"Joint({', '.join(f'{name}={part!r}' for name, part in self.parts.items())})"

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        return all(part.differentiable for part in self.parts.values())

    def has(self, capability: type) -> bool:
        return all(part.has(capability) for part in self.parts.values())

    def with_logits(self, logits: Tensor) -> Self:
        found = object.__new__(type(self))  # the parts have been checked before
        parts = {name: part.with_logits(own) for name, part, own in self._items(logits)}
        object.__setattr__(found, "parts", parts)
        object.__setattr__(found, "logits", logits)
        return found

    def detach(self) -> Self:
        found = super().detach()
        parts = {name: part.detach() for name, part in found.parts.items()}
        object.__setattr__(found, "parts", parts)
        return found

    def to_objective(self, points: Tensor) -> dict[str, Any]:
        return {name: part.to_objective(own) for name, part, own in self._items(points)}

    def split_gradient(self, grad: Tensor) -> dict[str, Any]:
        return {name: part.split_gradient(own) for name, part, own in self._items(grad)}

    def join_gradient(self, grad: Any) -> Any:
        if not isinstance(grad, dict):
            return grad
        if grad.keys() != self.parts.keys():
            wanted, got = ", ".join(self.parts), ", ".join(map(str, grad)) or "none"
            what = "a dictionary for a joint latent must have the names of its parts as keys"
            raise ValueError(f"{what}, {wanted}, got {got}")
        return self._join([part.join_gradient(grad[name]) for name, part in self.parts.items()])

    def elements(self) -> list[Latent]:
        return [one for part in self.parts.values() for one in part.elements()]

    def variables(self) -> list[Latent]:
        return [one for part in self.parts.values() for one in part.variables()]

    def map_parts(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        shares = [self._split(one) for one in tensors]
        calls = zip(self.parts.values(), *shares, strict=True)
        return self._join([part.map_parts(function, *own) for part, *own in calls])

    def map_parts_to_many(
        self, function: Callable[..., Sequence[Tensor]], *tensors: Tensor
    ) -> Sequence[Tensor]:
        shares = [self._split(one) for one in tensors]
        calls = zip(self.parts.values(), *shares, strict=True)
        found = [part.map_parts_to_many(function, *own) for part, *own in calls]
        return [self._join(one) for one in zip(*found, strict=True)]

    def log_prob(self, samples: Tensor) -> Tensor:
        found = [part.log_prob(own) for _, part, own in self._items(samples)]
        return torch.stack(found).sum(0)

    def states(self) -> Tensor:
        listed = [part.states().flatten(1) for part in self._parts_with_states()]
        which = torch.cartesian_prod(*[torch.arange(len(one)) for one in listed])
        chosen = which.view(-1, len(listed)).unbind(-1)
        return torch.cat([one[at] for one, at in zip(listed, chosen, strict=True)], -1)

    def count_states(self) -> int:
        return math.prod(part.count_states() for part in self._parts_with_states())

    def variable_log_probs(self) -> list[Tensor]:
        return [one for part in self._parts_with_states() for one in part.variable_log_probs()]

    def from_states(self, chosen: Sequence[Tensor]) -> Tensor:
        rest, found = list(chosen), []
        for part in self._parts_with_states():
            count = len(part.variable_log_probs())
            found.append(part.from_states(rest[:count]))
            rest = rest[count:]
        return self._join(found)

    def count_variables(self) -> int:
        return sum(part.count_variables() for part in self._parts_with_neighbors())

    def count_values(self) -> int:
        return max(part.count_values() for part in self._parts_with_neighbors())

    def uncertainty(self) -> Tensor:
        return torch.cat([part.uncertainty() for part in self._parts_with_neighbors()], -1)

    def evidence(self) -> Tensor:
        return torch.cat([part.evidence() for part in self._parts_with_neighbors()], -1)

    def probs_at(self, variable: Tensor) -> Tensor:
        found = [
            torch.where(inside.unsqueeze(-1), part.probs_at(at), 0.0)
            for part, _, at, inside in self._by_variable(variable, self.logits)
        ]
        widest = max(one.shape[-1] for one in found)
        return torch.stack([pad(one, (0, widest - one.shape[-1])) for one in found]).sum(0)

    def values_at(self, samples: Tensor, variable: Tensor) -> Tensor:
        shares = self._by_variable(variable, samples)
        found = [inside * part.values_at(own, at).long() for part, own, at, inside in shares]
        return torch.stack(found).sum(0)

    def change_(self, samples: Tensor, variable: Tensor, value: Tensor) -> None:
        for part, own, at, inside in self._by_variable(variable, samples):  # views of the samples
            part.change_(own, at, torch.where(inside, value, part.values_at(own, at)))

    def _by_variable(
        self, variable: Tensor, tensor: Tensor
    ) -> Iterator[tuple[Neighbors, Tensor, Tensor, Tensor]]:
        """Yield a tuple `(part, slice, index, inside)` for each part that has variables.

        `slice` is the part's slice of `tensor`. The mask `inside` is True where `variable` belongs
        to the part. There, `index` is the variable's index within the part. Elsewhere, `index` is
        any valid index.
        """
        first = 0
        for part, own in zip(self._parts_with_neighbors(), self._split(tensor), strict=True):
            if count := part.count_variables():
                at = variable - first
                yield part, own, at.clamp(0, count - 1), (at >= 0) & (at < count)
                first += count

    def _parts_with_neighbors(self) -> list[Neighbors]:
        return [part for part in self.parts.values() if isinstance(part, Neighbors)]

    def _parts_with_states(self) -> list[Enumerable]:
        return [part for part in self.parts.values() if isinstance(part, Enumerable)]

    def _items(self, tensor: Tensor) -> list[tuple[str, Latent, Tensor]]:
        """Return a list of `(name, part, slice)`, where `slice` is the part's slice of `tensor`."""
        return list(zip(self.parts, self.parts.values(), self._split(tensor), strict=True))

    def _split(self, tensor: Tensor) -> list[Tensor]:
        """Split a joined tensor `[..., D]` into one tensor `[..., *part.event_shape]` per part."""
        shapes = [part.event_shape for part in self.parts.values()]
        shares = tensor.split([shape.numel() for shape in shapes], -1)
        return [own.unflatten(-1, shape) for own, shape in zip(shares, shapes, strict=True)]

    def _join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join one tensor `[..., *part.event_shape]` per part into one tensor `[..., D]`."""
        parts = zip(self.parts.values(), tensors, strict=True)
        return torch.cat([own.flatten(own.ndim - part.event_dims) for part, own in parts], -1)


def _kind(part: Latent) -> str:
    return f"{list(part.batch_shape)} {part.logits.dtype} on {part.logits.device}"
