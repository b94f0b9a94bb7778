"""Several latents drawn together: a mask and an action, bits and categories."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Generator, Tensor

from arms.latents.base import Couplable, Enumerable, ExchangeablePairs, HasMean, Latent, Relaxable
from arms.latents.convert import Logits, as_latent

if TYPE_CHECKING:
    from arms.designs.couplings import Coupling


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Joint(HasMean, Enumerable, ExchangeablePairs, Couplable, Relaxable):
    """Independent latents with names, drawn together.

    The objective is called with one argument per latent, as in `f(mask=..., action=...)`, and
    gradients are returned as a dictionary with the same keys. All latents share one batch shape.
    A joint latent offers the capabilities that all of its parts offer.

    Internally the events of all parts are flattened and joined: logits, samples and gradients are
    single tensors `[..., D]`.

    Args:
        parts: Latents by name; logits and torch distributions are accepted too.

    >>> from torch.distributions import OneHotCategorical
    >>> joint = Joint(mask=torch.zeros(5, 3), action=OneHotCategorical(logits=torch.zeros(5, 1, 4)))
    >>> {name: part.shape for name, part in joint.to_objective(joint.sample(2)).items()}
    {'mask': torch.Size([2, 5, 3]), 'action': torch.Size([2, 5, 1, 4])}
    """

    parts: Mapping[str, Latent]

    def __init__(self, /, **parts: Logits) -> None:
        latents = {name: as_latent(part) for name, part in parts.items()}
        _check_parts(latents)
        self._set(latents, None)

    def _set(self, parts: Mapping[str, Latent], logits: Tensor | None) -> None:
        object.__setattr__(self, "parts", parts)
        joined = self._join([one.logits for one in parts.values()]) if logits is None else logits
        object.__setattr__(self, "logits", joined)

    def __repr__(self) -> str:
        return f"Joint({', '.join(f'{name}={part!r}' for name, part in self.parts.items())})"

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        return all(part.differentiable for part in self.parts.values())

    def has(self, capability: type) -> bool:
        return all(part.has(capability) for part in self.parts.values())

    def with_logits(self, logits: Tensor) -> Self:
        parts = zip(self.parts.items(), self._split(logits), strict=True)
        found = object.__new__(type(self))  # the parts have been checked before
        found._set({name: part.with_logits(own) for (name, part), own in parts}, logits)
        return found

    def to_objective(self, points: Tensor) -> dict[str, Any]:
        parts = zip(self.parts.items(), self._split(points), strict=True)
        return {name: part.to_objective(own) for (name, part), own in parts}

    def split_gradient(self, grad: Tensor) -> dict[str, Any]:
        parts = zip(self.parts.items(), self._split(grad), strict=True)
        return {name: part.split_gradient(own) for (name, part), own in parts}

    def join_gradient(self, grad: Any) -> Any:
        if not isinstance(grad, dict):
            return grad
        if grad.keys() != self.parts.keys():
            raise ValueError(
                f"a dictionary for this joint latent must have the keys {', '.join(self.parts)}, "
                f"got {', '.join(map(str, grad)) or 'none'}"
            )
        return self._join([part.join_gradient(grad[name]) for name, part in self.parts.items()])

    def elements(self) -> list[Latent]:
        return [one for part in self.parts.values() for one in part.elements()]

    def map_parts(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        shares = zip(*map(self._split, tensors), strict=True) if tensors else [()] * len(self.parts)
        found = [
            part.map_parts(function, *own)
            for part, own in zip(self.parts.values(), shares, strict=True)
        ]
        return self._join(found)

    def variables(self) -> list[Latent]:
        return [one for part in self.parts.values() for one in part.variables()]

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        return self.map_parts(lambda part: part.sample(n, generator))

    def log_prob(self, samples: Tensor) -> Tensor:
        parts = zip(self.parts.values(), self._split(samples), strict=True)
        return torch.stack([part.log_prob(own) for part, own in parts]).sum(0)

    def score(self, samples: Tensor) -> Tensor:
        return self.map_parts(lambda part, own: part.score(own), samples)

    def undefined(self) -> Tensor:
        return self.map_parts(lambda part: part.undefined())

    def mean(self) -> Tensor:
        return self.map_parts(lambda part: part.mean())

    def covariance_matvec(self, vector: Tensor) -> Tensor:
        return self.map_parts(lambda part, own: part.covariance_matvec(own), vector)

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

    def exchange(
        self, first: Tensor, second: Tensor, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        exchanged = self.map_parts(
            lambda part, one, other: part.exchange(one, other, generator)[0], first, second
        )
        return exchanged, first + second - exchanged

    def exchanges(self, first: Tensor, second: Tensor) -> Tensor:
        raise AssertionError("a joint latent is not a single variable")

    def pair_covariance_matvec(self, step: Tensor, vector: Tensor) -> Tensor:
        return self.map_parts(
            lambda part, own, v: part.pair_covariance_matvec(own, v), step, vector
        )

    def is_coupled_by(self, coupling: "Coupling") -> bool:
        return all(
            isinstance(part, Couplable) and part.is_coupled_by(coupling)
            for part in self.parts.values()
        )

    def sample_coupled(self, coupling: "Coupling", n: int, generator: Generator | None) -> Tensor:
        return self.map_parts(lambda part: part.sample_coupled(coupling, n, generator))

    def coupled_outcomes(self, coupling: "Coupling", n: int) -> tuple[Tensor, Tensor] | None:
        raise AssertionError("a joint latent is not a single variable")

    def undo_coupling(self, coupling: "Coupling", n: int, grad: Tensor) -> Tensor:
        return self.map_parts(lambda part, own: part.undo_coupling(coupling, n, own), grad)

    def perturb(self, n: int, generator: Generator | None) -> Tensor:
        return self.map_parts(lambda part: part.perturb(n, generator))

    def harden(self, perturbed: Tensor) -> Tensor:
        return self.map_parts(lambda part, own: part.harden(own), perturbed)

    def _parts_with_states(self) -> list[Enumerable]:
        return [part for part in self.parts.values() if isinstance(part, Enumerable)]

    def _split(self, tensor: Tensor) -> list[Tensor]:
        """Return each part's share `[..., *event]` of a joined tensor `[..., D]`."""
        shapes = [part.event_shape for part in self.parts.values()]
        shares = tensor.split([shape.numel() for shape in shapes], -1)
        return [own.unflatten(-1, shape) for own, shape in zip(shares, shapes, strict=True)]

    def _join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors that end in each part's event axes as one joined tensor `[..., D]`."""
        parts = zip(self.parts.values(), tensors, strict=True)
        return torch.cat([own.flatten(own.ndim - part.event_dims) for part, own in parts], -1)


def _check_parts(parts: Mapping[str, Latent]) -> None:
    if not parts:
        raise ValueError(
            "a joint latent needs at least one part, as in Joint(mask=logits), got none"
        )
    (name, first), *others = parts.items()
    for other, part in others:
        if part.batch_shape != first.batch_shape:
            raise ValueError(
                "the parts of a joint latent must share one batch shape, got "
                f"{list(first.batch_shape)} for {name} and {list(part.batch_shape)} for {other}: "
                "expand the smaller one"
            )
        if part.logits.dtype != first.logits.dtype or part.logits.device != first.logits.device:
            raise ValueError(
                "the parts of a joint latent must share dtype and device, got "
                f"{first.logits.dtype} on {first.logits.device} for {name} and "
                f"{part.logits.dtype} on {part.logits.device} for {other}"
            )
