"""The committed float64 vectors: the code reproduces their results from the numbers in the files."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vectors.make import FOLDER, SETTINGS, WITH_VECTORS, Case, build, latent_of

from arms import Estimator, Latent
from arms.designs import (
    COUPLINGS,
    AfterSamples,
    AntitheticNoise,
    BitCoupling,
    CorrelatedPair,
    Design,
    Draw,
    Perturbed,
    RelaxedPairs,
    WithFlips,
    WithMean,
)
from arms.designs.pairs import latent_points
from arms.estimators import ALL_ESTIMATORS, ENTRIES
from arms.latents import Enumerable


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


ESTIMATORS = [
    pytest.param(
        name, case, id=f"{name}, {case['num_samples']}, {case['options']}, {case['latent']}"
    )
    for group in SETTINGS
    for name, cases in read(group).items()
    for case in cases
]


def tensor(numbers: Any) -> Tensor:
    def value_of(one: Any) -> Any:
        return [value_of(entry) for entry in one] if isinstance(one, list) else float(one)

    return torch.tensor(value_of(numbers), dtype=torch.float64)


def close(found: Tensor, numbers: Any) -> None:
    torch.testing.assert_close(found, tensor(numbers), rtol=1e-13, atol=1e-13)


class Recorded(nn.Module):
    """Return a function with the values and derivatives from the file at its points."""

    def __init__(self, at: Tensor, values: Tensor, derivatives: Tensor) -> None:
        super().__init__()
        self.at, self.values, self.derivatives = at, values, derivatives

    def forward(self, z: Tensor) -> Tensor:
        return self.values + (self.derivatives * (z - self.at)).sum(-1)


class Replayed(nn.Module):
    """Return the outputs in the file one after the other, one per call."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.rest = iter(outputs)

    def forward(self, change: Tensor, value: Tensor) -> Tensor:
        output: Tensor = next(self.rest)
        return output


def estimator_of(name: str, case: Case) -> Estimator:
    control = case["control"]
    if control is None:
        return build(name, case)
    if "outputs" in control:
        return build(name, case, control=Replayed(tensor(control["outputs"])))
    recorded = (tensor(control[key]) for key in ("values", "derivatives"))
    return build(name, case, control=Recorded(tensor(case["noise"][0]), *recorded))


def draw_of(design: Design, latent: Latent, points: Tensor, noise: Any) -> Draw:
    """Return the draw with these points; nothing else is random."""
    match design:
        case WithMean():
            inner = draw_of(design.inner, latent, points[:-1], noise)
            return replace(inner, points=points, extra=1, memory=inner)
        case AfterSamples():
            inner = draw_of(design.inner, latent, points[design.first :], noise)
            return Draw(latent, points, inner.extra, memory=inner)
        case AntitheticNoise():
            return design.assemble(latent, tensor(noise))
        case Perturbed():
            return Draw(latent, points, memory=tensor(noise))
        case WithFlips():
            return Draw(latent, points, design.flips, memory=tensor(noise))
        case RelaxedPairs():
            extra = len(points) - design.num_samples
            return Draw(latent, points, extra, memory=tuple(map(tensor, noise)))
        case _:
            assert noise is None
            lists_all = design.needs.evaluations is None
            return design.assemble(latent, points if lists_all else points[: design.num_samples])


@pytest.mark.parametrize(("name", "case"), ESTIMATORS)
def test_estimator(name: str, case: Case) -> None:
    estimator, points = estimator_of(name, case), tensor(case["points"])
    latent = latent_of(case["latent"], tensor(case["logits"]))
    draw = draw_of(estimator.design, latent, points, case["noise"])
    assert torch.equal(draw.points, points)
    values = tensor(case["values"])
    derivatives = None if case["derivatives"] is None else tensor(case["derivatives"])
    close(estimator.combine(draw, values, derivatives).detach(), case["gradient"])
    of_samples = values[: len(values) - draw.extra]
    close(estimator.target.value(of_samples, draw.weights), case["value"])


@pytest.mark.parametrize(
    "case", read("couplings"), ids=lambda case: f"{case['coupling']}, {case['n']}"
)
def test_coupling(case: Case) -> None:
    coupling = (
        CorrelatedPair(case["correlation"])
        if case["coupling"] == "pair"
        else COUPLINGS[case["coupling"]]()
    )
    assert isinstance(coupling, BitCoupling)
    logits = tensor(case["logits"])
    close(coupling.debias(logits, case["n"]), case["debias"])
    counts = coupling.count_distribution(logits, case["n"])
    assert (counts is None) == (case["count_distribution"] is None)
    if counts is not None:
        close(counts, case["count_distribution"])


@pytest.mark.parametrize(
    "case", read("latents"), ids=lambda case: f"{case['latent']}, {case['logits']}"
)
def test_latent(case: Case) -> None:
    latent, samples = latent_of(case["latent"], tensor(case["logits"])), tensor(case["samples"])
    assert isinstance(latent, Enumerable)
    assert torch.equal(latent.states(), samples)
    close(latent.mean(), case["mean"])
    close(latent.score(samples), case["score"])
    close(latent.log_prob(samples), case["log_prob"])


@pytest.mark.parametrize(
    "case", read("paths"), ids=lambda case: f"{case['logits']}, {case['samples'][0]}"
)
def test_path(case: Case) -> None:
    points, path = latent_points(*(tensor(case[key]) for key in ("logits", "samples", "noise")))
    close(points, case["points"])
    close(path, case["path"])


def test_vectors_cover_every_estimator_and_coupling() -> None:
    covered = {name for own in SETTINGS.values() for name in own}
    assert covered <= set(ALL_ESTIMATORS)
    assert {entry.tier for name, entry in ENTRIES.items() if name not in covered} <= {
        "experimental"
    }
    for group, settings in SETTINGS.items():
        for name, cases in read(group).items():
            found = [{key: case[key] for key in ("num_samples", "options")} for case in cases]
            assert all(setting in found for setting in settings[name])
            assert all(one in settings[name] for one in found)
    couplings = {case["coupling"] for case in read("couplings")}
    assert {*WITH_VECTORS, "pair"} <= couplings <= {*COUPLINGS, "pair"}
    assert sum(file.stat().st_size for file in FOLDER.glob("*.json")) < 300_000
