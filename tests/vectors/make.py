"""Write the float64 test vectors: `cd tests && python -m vectors.make`. Another implementation can be held to them.

All arrays are nested lists in C order, numbers with all their digits; "inf", "-inf" are strings.

expectation.json, bound.json, relaxed.json, biased.json hold one estimator's `combine` per line:
  name        the estimator, its settings and its latent; `estimator` is the class, `settings` its fields
  latent      Bernoulli (logits [batch, d], bits) or OneHot (logits [batch, d, K], softmax, one-hot samples)
  points      [m, batch, ...]: the samples, then `extra` points that are no samples (relaxed ones: sigmoid(z / tau))
  values      [m, batch]: the objective there; for a bound, log-weights
  slopes      [k, batch, d]: its derivative at the last k points (all of them, or those that are no samples), or null
  memory      what the draw remembers: for ARM the uniforms u [n/2, batch, d]; for REBAR and RELAX z and z~ given the
              bits [n, batch, d] (z first, then z~), and the slope of z~ in the logits [n/2, batch, d]; for Concrete and
              GumbelStraightThrough z, logits plus logistic noise [n, batch, d]
  control     for RELAX the free function r at z and z~: its values [n, batch] and slopes [n, batch, d]; for RODEO what
              its network says of sample i beside sample i + s, for s = 1 to n - 1: `found` [n - 1, n, batch, 1 + d, 2],
              at the sample and after the flip of each bit, (h_0, h_1); else null
  gradient    [batch, ...]: what `combine` must return (of a bound, what autograd does not add through log q)
  value       [batch]: the target as seen by the samples
paths.json: bits, logistic noise [2, m, d] (for z, for z~) and logits; z and z~ as `points`, d z~ / d logit as `path`.
couplings.json: `debias` 1/(1 - rho) at `logits` for n samples, and `count_law` P(b_1 + ... + b_n = s), [n + 1, logits],
  where it has a closed form, else null.
latents.json: `mean`, and `score` and `log_prob` of `samples`.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from instances import INSTANCES, Instance, Wave, Wild, parts
from torch import Tensor, nn

from arms import COUPLINGS, REBAR, RELAX, RODEO, Bernoulli, BinaryCoupling, Draw, Estimator, Latent, OneHot, Relaxation
from arms.checks import random_table, table_objective
from arms.couplings import CorrelatedPair
from arms.estimators.pipeline import Options, evaluate
from arms.estimators.rebar import latent_points

FOLDER = Path(__file__).parent
BITS = ((0.4, -1.3), (4.0, -6.0), (30.0, -200.0))
CATEGORIES = (((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((4.0, -1.0, 0.0), (-30.0, 0.3, 2.0)))
COUPLED = (0.0, 1e-4, -0.1, 0.5, -1.7, 3.3, -5.0, 10.0, -17.0, 40.0, -60.0, 200.0, torch.inf, -torch.inf)
Case = dict[str, Any]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def instances() -> Iterator[Instance]:
    """Every estimator that is no wrapper; those with parameters anew, in float64."""
    for one in INSTANCES:
        if parts(one.estimator) == [one.estimator] and not list(one.estimator.parameters()):
            yield one
    for n in (2, 4):
        soft = Relaxation(temperature=0.7, scale=-0.6).double()
        yield Instance(REBAR(n, Relaxation().double()), name=f"REBAR, n = {n}")
        yield Instance(REBAR(n, soft), name=f"REBAR, n = {n}, temperature 0.7, scale -0.6")
        yield Instance(RELAX(n, soft, Wave()), name=f"RELAX, n = {n}, temperature 0.7, scale -0.6")
        yield Instance(RELAX(n, None, Wave()), name=f"RELAX, n = {n}, no relaxation")
    for n in (2, 3):
        yield Instance(RODEO(n, Wild()), name=f"RODEO, n = {n}")


def estimator_case(instance: Instance) -> Case:
    """One draw of an estimator, what the objective says of it, and the gradient."""
    rows = BITS if instance.kind is Bernoulli else CATEGORIES
    latent: Latent = instance.kind(torch.tensor(rows, dtype=torch.float64))
    estimator, one = instance.estimator, instance.kind(latent.logits[0])
    objective = table_objective(random_table(one.count_states(), seeded(1)), one)
    with torch.no_grad():
        draw = estimator.draw(latent, seeded(2))
        values, slopes, _ = evaluate(objective, draw, Options())
        values = values.detach()
        control = control_of(estimator, draw, values, slopes)
        gradient = estimator.combine(draw, values, slopes)
        value = estimator.value(draw, values)
    return {
        "name": str(instance),
        "estimator": type(estimator).__name__,
        "settings": settings(estimator),
        "latent": instance.kind.__name__,
        "logits": plain(latent.logits),
        "points": plain(draw.points),
        "extra": draw.extra,
        "values": plain(values),
        "slopes": None if slopes is None else plain(slopes),
        "memory": [plain(kept) for kept in draw.memory],
        "control": control,
        "gradient": plain(gradient),
        "value": plain(value),
    }


def control_of(estimator: Estimator, draw: Draw, values: Tensor, slopes: Tensor | None) -> Case | None:
    """RELAX's free function and its slope at z and z~; all that RODEO's network says."""
    match estimator:
        case RELAX():
            with torch.enable_grad():
                z = draw.memory[0].clone().requires_grad_()
                free = estimator.control(z)
                (slope,) = torch.autograd.grad(free.sum(), z)
            return {"values": plain(free.detach()), "slopes": plain(slope)}
        case RODEO():
            said: list[Tensor] = []
            with estimator.control.register_forward_hook(lambda *call: said.append(call[-1])):
                estimator.combine(draw, values, slopes)
            return {"found": plain(torch.stack(said))}
    return None


def settings(estimator: Estimator) -> Case:
    """The fields of an estimator as plain data: couplings by class, a relaxation by its two numbers."""
    found: Case = {}
    for field in dataclasses.fields(estimator):
        value = getattr(estimator, field.name)
        if isinstance(value, Relaxation):
            found[field.name] = {"temperature": value.temperature.item(), "scale": value.scale.item()}
        elif not isinstance(value, nn.Module):
            found[field.name] = type(value).__name__ if isinstance(value, BinaryCoupling) else value
    return found


def coupling_cases() -> Iterator[Case]:
    """Every coupling at ordinary and at extreme logits."""
    logits = torch.tensor(COUPLED, dtype=torch.float64)
    for name, factory in COUPLINGS.items():
        for n in (2, 3, 4, 10):
            yield coupling_case(name, factory(), n, logits)
    for correlation in (-1.0, -0.3, 0.4):
        yield coupling_case("pair", CorrelatedPair(correlation), 2, logits) | {"correlation": correlation}


def coupling_case(name: str, coupling: BinaryCoupling, n: int, logits: Tensor) -> Case:
    law = coupling.count_law(logits, n)
    return {
        "coupling": name,
        "n": n,
        "logits": plain(logits),
        "debias": plain(coupling.debias(logits, n)),
        "count_law": None if law is None else plain(law),
    }


def latent_cases() -> Iterator[Case]:
    """What a latent says of every one of its states."""
    for kind, rows in ((Bernoulli, BITS), (OneHot, CATEGORIES)):
        for row in rows:
            latent = kind(torch.tensor(row, dtype=torch.float64))
            states = latent.states()
            yield {
                "latent": kind.__name__,
                "logits": plain(latent.logits),
                "samples": plain(states),
                "mean": plain(latent.mean()),
                "score": plain(latent.score(states)),
                "log_prob": plain(latent.log_prob(states)),
            }


def path_cases() -> Iterator[Case]:
    """Where the relaxed estimators put z and z~, given the bits."""
    noise = torch.tensor([[-torch.inf, -30.0, -1.0, 0.3], [15.0, -0.2, 2.5, 36.0]], dtype=torch.float64).unsqueeze(-1)
    for bit in (0.0, 1.0):
        for logit in (0.0, -1.3, 2.0, 40.0, -200.0, torch.inf):
            phi, samples = torch.tensor([logit], dtype=torch.float64), torch.full((4, 1), bit, dtype=torch.float64)
            points, path = latent_points(phi, samples, noise)
            yield {
                "logits": plain(phi),
                "samples": plain(samples),
                "noise": plain(noise),
                "points": plain(points),
                "path": plain(path),
            }


def plain(tensor: Tensor) -> Any:
    """Nested lists, infinities as strings, since JSON has none."""

    def safe(value: Any) -> Any:
        if isinstance(value, list):
            return [safe(one) for one in value]
        return value if abs(value) < torch.inf else str(value)

    return safe(tensor.double().tolist())


def groups() -> dict[str, list[Case]]:
    """All vectors by file."""
    found: dict[str, list[Case]] = {"expectation": [], "bound": [], "relaxed": [], "biased": []}
    for instance in instances():
        group = "relaxed" if isinstance(instance.estimator, REBAR) else "expectation"
        group = group if instance.estimator.unbiased else "biased"
        found["bound" if instance.estimator.target.direct else group].append(estimator_case(instance))
    return found | {
        "couplings": list(coupling_cases()),
        "latents": list(latent_cases()),
        "paths": list(path_cases()),
    }


if __name__ == "__main__":
    for group, cases in groups().items():
        lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
        (FOLDER / f"{group}.json").write_text(f"[\n{lines}\n]\n")
