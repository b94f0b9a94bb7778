"""The committed float64 vectors: what they say is what the code gives, from the file's own numbers alone."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vectors.make import FOLDER, Case, instances

import arms
from arms import COUPLINGS, Bernoulli, BinaryCoupling, Draw, Latent, OneHot, Relaxation
from arms.couplings import CorrelatedPair
from arms.estimators import ALL_ESTIMATORS
from arms.estimators.rebar import latent_points

KINDS: dict[str, type[Latent]] = {"Bernoulli": Bernoulli, "OneHot": OneHot}
BY_CLASS = {type(factory()).__name__: factory() for factory in COUPLINGS.values()}


def cases(*groups: str) -> list[Case]:
    return [case for group in groups for case in json.loads((FOLDER / f"{group}.json").read_text())]


ESTIMATORS = cases("expectation", "bound", "relaxed", "biased")


def tensor(numbers: Any) -> Tensor:
    def read(value: Any) -> Any:
        return [read(one) for one in value] if isinstance(value, list) else float(value)

    return torch.tensor(read(numbers), dtype=torch.float64)


def close(found: Tensor, numbers: Any) -> None:
    torch.testing.assert_close(found, tensor(numbers), rtol=1e-13, atol=1e-13)


class Recorded(nn.Module):
    """The function whose values and slopes at certain points are those of the file."""

    def __init__(self, at: Tensor, values: Tensor, slopes: Tensor) -> None:
        super().__init__()
        self.at, self.values, self.slopes = at, values, slopes

    def forward(self, z: Tensor) -> Tensor:
        return self.values + (self.slopes * (z - self.at)).sum(-1)


class Replayed(nn.Module):
    """What the file says, one call after the other."""

    def __init__(self, found: Tensor) -> None:
        super().__init__()
        self.rest = iter(found)

    def forward(self, change: Tensor, value: Tensor) -> Tensor:
        said: Tensor = next(self.rest)
        return said


def estimator_of(case: Case) -> arms.Estimator:
    settings = dict(case["settings"])
    if "coupling" in settings:
        settings["coupling"] = BY_CLASS[settings["coupling"]]
    if settings.get("relaxation"):
        settings["relaxation"] = Relaxation(**settings["relaxation"]).double()
    if case["control"] and "found" in case["control"]:
        settings["control"] = Replayed(tensor(case["control"]["found"]))
    elif case["control"]:
        recorded = (tensor(case["control"][key]) for key in ("values", "slopes"))
        settings["control"] = Recorded(tensor(case["memory"][0]), *recorded)
    estimator = getattr(arms, case["estimator"])(**settings)
    assert isinstance(estimator, arms.Estimator)
    return estimator


@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda case: case["name"])
def test_estimator(case: Case) -> None:
    estimator = estimator_of(case)
    memory = tuple(map(tensor, case["memory"]))
    draw = Draw(estimator, KINDS[case["latent"]](tensor(case["logits"])), tensor(case["points"]), case["extra"], memory)
    values, slopes = tensor(case["values"]), None if case["slopes"] is None else tensor(case["slopes"])
    close(estimator.combine(draw, values, slopes).detach(), case["gradient"])
    close(estimator.value(draw, values), case["value"])


@pytest.mark.parametrize("case", cases("couplings"), ids=lambda case: f"{case['coupling']}, {case['n']}")
def test_coupling(case: Case) -> None:
    paired = case["coupling"] == "pair"
    coupling: BinaryCoupling = CorrelatedPair(case["correlation"]) if paired else COUPLINGS[case["coupling"]]()
    logits = tensor(case["logits"])
    close(coupling.debias(logits, case["n"]), case["debias"])
    law = coupling.count_law(logits, case["n"])
    assert (law is None) == (case["count_law"] is None)
    if law is not None:
        close(law, case["count_law"])


@pytest.mark.parametrize("case", cases("latents"), ids=lambda case: f"{case['latent']}, {case['logits']}")
def test_latent(case: Case) -> None:
    latent, samples = KINDS[case["latent"]](tensor(case["logits"])), tensor(case["samples"])
    assert torch.equal(latent.states(), samples)
    close(latent.mean(), case["mean"])
    close(latent.score(samples), case["score"])
    close(latent.log_prob(samples), case["log_prob"])


@pytest.mark.parametrize("case", cases("paths"), ids=lambda case: f"{case['logits']}, {case['samples'][0]}")
def test_path(case: Case) -> None:
    points, path = latent_points(*(tensor(case[key]) for key in ("logits", "samples", "noise")))
    close(points, case["points"])
    close(path, case["path"])


def test_vectors_cover_every_estimator_and_coupling() -> None:
    assert [case["name"] for case in ESTIMATORS] != []
    assert {case["name"] for case in ESTIMATORS} == {str(instance) for instance in instances()}
    made = {type(factory(4)).__name__ for factory in ALL_ESTIMATORS.values()}
    assert {case["estimator"] for case in ESTIMATORS} == made
    assert {case["coupling"] for case in cases("couplings")} == {*COUPLINGS, "pair"}
    assert {case["latent"] for case in ESTIMATORS} == set(KINDS)
    assert sum(file.stat().st_size for file in FOLDER.glob("*.json")) < 300_000
