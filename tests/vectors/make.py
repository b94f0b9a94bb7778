"""Write the float64 test vectors: `cd tests && python -m vectors.make`.

Other implementations can be compared with them, with a tolerance of 1e-13, relative and absolute.
latents.json is the place to begin. Arrays are nested lists in C order with all their
digits; "inf" and "-inf" are strings.

expectation.json, bound.json, relaxed.json and biased.json map the name of an estimator to a list of
cases. A case has
  num_samples  n, and `options`, the further arguments of `arms.as_estimator`
  latent       Bits (logits [batch, d]) or OneHot (logits [batch, d, K], softmax)
  points       [m, batch, ...]: the samples, then the points that are not samples
  values       [m, batch]: the objective at the points; for a bound, log-weights
  derivatives  [k, batch, ...]: its derivative at the last k points, or null
  noise        what the points were made from, or null. arm: uniform numbers u [n/2, batch, d].
               gumbel-softmax and st-gumbel: logits plus noise [n, batch, ...]. rebar and relax: z,
               then z~ given the bits, [n, batch, d], and the derivative of z~ with respect to the
               logits [n/2, batch, d]. flips and flips-ms: the weight of every flip [m, batch].
  control      relax: the free function r at z and z~, its `values` [n, batch] and `derivatives`
               [n, batch, d]. rodeo: the network's output for sample i next to sample i + s, for
               s = 1 to n - 1: `outputs` [n - 1, n, batch, 1 + d, 2], at the sample and after each
               bit is flipped. Otherwise null.
  gradient     [batch, ...]: what the estimator returns
  value        [batch]: the target as estimated from the samples
paths.json: bits, logistic noise [2, m, d] (for z, for z~) and logits; z and z~ as `points`, and
  d z~ / d logit as `path`.
couplings.json: `debias` 1/(1 - rho) at `logits` for n samples, and `count_distribution`
  P(b_1 + ... + b_n = s), [n + 1, logits], or null if it has no closed form.
latents.json: `mean`, and `score` and `log_prob` of `samples`, which are all states.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from instances import Wave, Wild
from seeds import seeded
from torch import Tensor

from arms import RELAX, RODEO, Bits, Estimator, Latent, OneHot, Relaxation, Subset, as_estimator
from arms.checks import random_table, table_objective
from arms.designs import COUPLINGS, BitCoupling, CorrelatedPair, Draw, as_coupling
from arms.designs.pairs import latent_points
from arms.estimate import draw_points, takes
from arms.latents import Enumerable, HasMean
from arms.objective import Options, evaluate

FOLDER = Path(__file__).parent
BITS = ((0.4, -1.3), (4.0, -6.0), (30.0, -200.0))
CATEGORIES = (((0.0, 0.5, -0.5), (1.0, 0.0, -1.0)), ((4.0, -1.0, 0.0), (-30.0, 0.3, 2.0)))
SUBSETS = ((0.4, -1.3, 2.0, 0.1), (30.0, -200.0, 0.0, -30.0), (torch.inf, 0.3, -torch.inf, 1.0))
FAR = (0.0, 1e-4, -0.1, 0.5, -1.7, 3.3, -5.0, 10.0, -17.0, 40.0, -60.0, 200.0)
Case = dict[str, Any]


def with_counts(*counts: int, **options: Any) -> list[Case]:
    return [{"num_samples": n, "options": options} for n in counts]


SOFT = {"temperature": 0.7, "scale": -0.6}
SETTINGS: dict[str, dict[str, list[Case]]] = {
    "expectation": {
        "reinforce": with_counts(1, 3),
        "loorf": with_counts(2, 3),
        "arm": with_counts(2, 4),
        "disarm": [
            *with_counts(2, 4),
            *with_counts(2, correlation=-0.3),
            *with_counts(4, correlation=0.4),
        ],
        "disarm-stick": with_counts(2, 4),
        "arms": with_counts(2, 3, 4),
        "arms-dirichlet": with_counts(2, 3, 4),
        "arms-gaussian": with_counts(2, 3, 4),
        "arms-stratified": with_counts(2, 3, 4),
        "unordered-set": with_counts(2, 3),
        "exact": with_counts(1),
        "flips": [
            *with_counts(1, 2, 4),
            *with_counts(2, 3, safe=True),
            *with_counts(3, flips=3, coupling="dirichlet"),
        ],
        "midpoint": [
            *with_counts(2, 4, 6, 8),
            *with_counts(2, 4, 8, coupling="systematic"),
            *with_counts(2, 4, coupling="dirichlet"),
            *with_counts(2, 4, coupling="gaussian"),
        ],
        "midpoint-single": [
            *with_counts(2, 4),
            *with_counts(4, coupling="systematic"),
            *with_counts(4, coupling="dirichlet"),
            *with_counts(4, coupling="gaussian"),
            *with_counts(4, own_bits=False),
        ],
        "cross-paired": [*with_counts(4, 6), *with_counts(4, 6, coupling="systematic")],
        "arms-taylor": with_counts(2, 3),
        "double-cv": [*with_counts(2, 3), *with_counts(4, coefficient=-0.7)],
        "rodeo": with_counts(2, 3),
    },
    "bound": {
        "reinforce-ms": with_counts(1, 2, 3),
        "vimco": [*with_counts(1, 2, 3), *with_counts(2, 3, baseline="arithmetic")],
        "disarm-ms": [*with_counts(2, 4, 6), *with_counts(2, 4, 6, folded=False)],
        **{
            name: [*with_counts(4, 6), *with_counts(4, 6, folded=False)]
            for name in ("loorf-ms", "arms-ms", "arms-ms-dirichlet", "arms-ms-gaussian")
        },
        "flips-ms": [*with_counts(1, 2, 4), *with_counts(3, flips=3)],
        "midpoint-ms": [*with_counts(2, 4, 6), *with_counts(4, 5, shared=1)],
        "midpoint-ms-shared": with_counts(3, 6, 8),
    },
    "relaxed": {
        "rebar": [*with_counts(2, 4), *with_counts(2, 4, relaxation=SOFT)],
        "relax": [*with_counts(2, 4, relaxation=SOFT), *with_counts(2, 4, relaxation=None)],
    },
    "biased": {
        "st": with_counts(1, 3),
        "st-sigmoid": with_counts(1, 3),
        "gumbel-softmax": [*with_counts(1), *with_counts(3, temperature=1.0)],
        "st-gumbel": [*with_counts(1), *with_counts(3, temperature=1.0)],
        "gapped-st": [*with_counts(1), *with_counts(3, temperature=0.5, gap=0.3)],
        "reinmax": [*with_counts(1), *with_counts(3, temperature=1.5)],
    },
}


def build(name: str, setting: Case, **modules: Any) -> Estimator:
    """Return the estimator of a case; couplings and relaxations are plain data in `options`."""
    options = setting["options"] | modules
    if "coupling" in options:
        options["coupling"] = as_coupling(options["coupling"])
    if options.get("relaxation"):
        options["relaxation"] = Relaxation(**options["relaxation"]).double()
    elif name == "rebar":
        options["relaxation"] = Relaxation().double()
    return as_estimator(name, setting["num_samples"], **options)


def estimator_cases(name: str, settings: list[Case]) -> Iterator[Case]:
    """One draw of an estimator for every setting and latent, and its gradient."""
    for kind, rows in ((Bits, BITS), (OneHot, CATEGORIES)):
        latent = kind(torch.tensor(rows, dtype=torch.float64))
        for setting in settings:
            modules = {"relax": Wave, "rodeo": Wild}.get(name)
            estimator = build(name, setting, **({} if modules is None else {"control": modules()}))
            if takes(estimator, latent):
                yield setting | estimator_case(estimator, latent)


def estimator_case(estimator: Estimator, latent: Latent) -> Case:
    one = latent.with_logits(latent.logits[0])
    assert isinstance(one, Enumerable)
    objective = table_objective(random_table(one.count_states(), seeded(1)), one)
    with torch.no_grad():
        draw = draw_points(estimator, latent, seeded(2))
        found = evaluate(estimator, objective, draw, Options(log_weights=True))
        values, derivatives = found.values.detach(), found.derivatives
        control = control_of(estimator, draw, values, derivatives)
        gradient = estimator.combine(draw, values, derivatives)
        value = estimator.target.value(values[: len(values) - draw.extra], draw.weights)
    return {
        "latent": type(latent).__name__,
        "logits": plain(latent.logits),
        "points": plain(draw.points),
        "values": plain(values),
        "derivatives": None if derivatives is None else plain(derivatives),
        "noise": noise_of(draw),
        "control": control,
        "gradient": plain(gradient),
        "value": plain(value),
    }


def noise_of(draw: Draw) -> Any:
    """Return the noise behind the points, unless the points tell all."""
    if isinstance(draw.memory, tuple):
        return [plain(one) for one in draw.memory]
    made_of_noise = isinstance(draw.memory, Tensor) and draw.weights is None
    return plain(draw.memory) if made_of_noise else None


def control_of(
    estimator: Estimator, draw: Draw, values: Tensor, derivatives: Tensor | None
) -> Case | None:
    """Return the free function of RELAX at z and z~, or all that RODEO's network returns."""
    match estimator:
        case RELAX(control=control) if control is not None:
            with torch.enable_grad():
                z = draw.memory[0].clone().requires_grad_()
                free = control(z)
                (derivative,) = torch.autograd.grad(free.sum(), z)
            return {"values": plain(free.detach()), "derivatives": plain(derivative)}
        case RODEO():
            outputs: list[Tensor] = []
            with estimator.control.register_forward_hook(lambda *call: outputs.append(call[-1])):
                estimator.combine(draw, values, derivatives)
            return {"outputs": plain(torch.stack(outputs))}
    return None


WITH_VECTORS = ("dirichlet", "gaussian", "systematic", "stratified")
"""Couplings that have test vectors."""


def coupling_cases() -> Iterator[Case]:
    """Couplings at ordinary and at extreme logits."""
    for name in WITH_VECTORS:
        for n in (2, 3, 4, 10):
            yield coupling_case(name, COUPLINGS[name](), n)
    for correlation in (-1.0, -0.3, 0.4):
        case = coupling_case("pair", CorrelatedPair(correlation), 2)
        yield case | {"correlation": correlation}


def coupling_case(name: str, coupling: object, n: int) -> Case:
    assert isinstance(coupling, BitCoupling)
    logits = torch.tensor([*FAR, torch.inf, -torch.inf], dtype=torch.float64)
    counts = coupling.count_distribution(logits, n)
    return {
        "coupling": name,
        "n": n,
        "logits": plain(logits),
        "debias": plain(coupling.debias(logits, n)),
        "count_distribution": None if counts is None else plain(counts),
    }


def latent_cases() -> Iterator[Case]:
    """Every state of a few latents."""
    logits = {
        "Bits": [torch.tensor(row, dtype=torch.float64) for row in BITS],
        "OneHot": [torch.tensor(rows, dtype=torch.float64) for rows in CATEGORIES],
        "Subset": [torch.tensor(row, dtype=torch.float64) for row in SUBSETS],
    }
    for kind, rows in logits.items():
        for row in rows:
            latent = latent_of(kind, row)
            assert isinstance(latent, Enumerable)
            states = latent.states()
            yield {
                "latent": kind,
                "logits": plain(row),
                "samples": plain(states),
                "mean": plain(latent.mean()),
                "score": plain(latent.score(states)),
                "log_prob": plain(latent.log_prob(states)),
            }


def latent_of(kind: str, logits: Tensor) -> HasMean:
    """Return a latent by the name of its class; subsets have two items."""
    if kind == "Subset":
        return Subset(logits, k=2)
    return Bits(logits) if kind == "Bits" else OneHot(logits)


def path_cases() -> Iterator[Case]:
    """Where the relaxed estimators place z and z~, given the bits."""
    noise = torch.tensor(
        [[-torch.inf, -30.0, -1.0, 0.3], [15.0, -0.2, 2.5, 36.0]], dtype=torch.float64
    ).unsqueeze(-1)
    for bit in (0.0, 1.0):
        for logit in (0.0, -1.3, 2.0, 40.0, -200.0, torch.inf):
            phi = torch.tensor([logit], dtype=torch.float64)
            samples = torch.full((4, 1), bit, dtype=torch.float64)
            points, path = latent_points(phi, samples, noise)
            yield {
                "logits": plain(phi),
                "samples": plain(samples),
                "noise": plain(noise),
                "points": plain(points),
                "path": plain(path),
            }


def plain(tensor: Tensor) -> Any:
    """Return nested lists: whole numbers without a point, infinities as strings."""

    def safe(value: Any) -> Any:
        if isinstance(value, list):
            return [safe(one) for one in value]
        if abs(value) == torch.inf:
            return str(value)
        return int(value) if value == int(value) else value

    return safe(tensor.double().tolist())


def write(name: str, cases: "list[Case] | dict[str, list[Case]]") -> None:
    """Write a file with one case per line."""

    def lines(of_one: list[Case]) -> str:
        return ",\n".join(json.dumps(case, allow_nan=False) for case in of_one)

    if isinstance(cases, dict):
        entries = ",\n".join(f'"{key}": [\n{lines(of_one)}\n]' for key, of_one in cases.items())
        text = f"{{\n{entries}\n}}\n"
    else:
        text = f"[\n{lines(cases)}\n]\n"
    (FOLDER / f"{name}.json").write_text(text)


if __name__ == "__main__":
    for group, settings in SETTINGS.items():
        write(group, {name: list(estimator_cases(name, own)) for name, own in settings.items()})
    write("couplings", list(coupling_cases()))
    write("latents", list(latent_cases()))
    write("paths", list(path_cases()))
