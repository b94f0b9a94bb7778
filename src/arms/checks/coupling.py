"""Tests of a coupling: marginals, correlation, counts, exchangeability, independent latents.

For categories: marginals, and whether the correction makes the leave-one-out sum unbiased.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations

import torch
from torch import Generator, Tensor

from arms.checks.bias import CATEGORICAL_LOGITS, FEWEST_EVENTS, bias_scores
from arms.checks.oracle import random_table, table_objective
from arms.checks.verdicts import FAILURE_RATE, Finding, Findings, attempt, judge_score
from arms.designs import BitCoupling, CategoryCoupling, Coupling
from arms.estimators import ARMS
from arms.latents import OneHot

LOGITS = (0.0, 0.6, -1.5, 2.5)


def coupling_findings(
    coupling: Coupling,
    counts: Sequence[int] | None = None,
    draws: int = 100_000,
    failure_rate: float = FAILURE_RATE,
    seed: int = 0,
) -> Findings:
    """Test whether a coupling is what ARMS needs, for every n in `counts`.

    Args:
        coupling: The coupling.
        counts: Numbers of samples n, each at most 12; by default 2, 3 and 5, or 2, 4 and 6 if the
            coupling needs an even number.
        draws: How often n samples are drawn.
        failure_rate: How often a correct coupling may fail by chance.
        seed: Of the draws.

    >>> from arms.designs import Systematic
    >>> coupling_findings(Systematic(), counts=[3], draws=1000).passed
    True
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    findings: list[Finding] = []
    if counts is None:
        counts = (2, 4, 6) if coupling.even_samples else (2, 3, 5)
    taken = [n for n in counts if not (coupling.even_samples and n % 2)]
    kinds = isinstance(coupling, BitCoupling) + isinstance(coupling, CategoryCoupling)
    rate = failure_rate / max(1, kinds * len(taken))
    for n in taken:
        if isinstance(coupling, BitCoupling):
            look = partial(_of_bits, coupling, logits, n, draws, rate, generator)
            findings += attempt(f"samples, n = {n}", look)
        if isinstance(coupling, CategoryCoupling):
            of_categories = partial(_of_categories, coupling, n, draws, rate, generator)
            findings += attempt(f"categories, n = {n}", of_categories)
    return Findings(repr(coupling), tuple(findings))


def _of_bits(
    coupling: BitCoupling,
    logits: Tensor,
    n: int,
    draws: int,
    failure_rate: float,
    generator: Generator,
) -> list[Finding]:
    samples = coupling.sample_bits(logits.expand(draws, -1), n, generator)
    shape = (n, draws, len(LOGITS))
    if samples.shape != shape or not bool(((samples == 0) | (samples == 1)).all()):
        got = f"{samples.dtype} {list(samples.shape)}"
        figure = f"expected zeros and ones of shape {list(shape)}, got {got}"
        return [Finding(f"samples, n = {n}", False, figure)]
    scores = {
        "marginals": _marginal_scores(samples, logits),
        "correlation": _pair_scores(samples, logits, coupling.debias(logits, n)),
        "counts": _count_scores(samples, coupling.count_distribution(logits, n)),
        "exchangeability": _pattern_scores(samples),
        "latents independent": _latent_scores(samples, logits),
    }
    rate = failure_rate / (len(scores) + 1)
    judged = [
        judge_score(
            f"{name}, n = {n}",
            score.abs().max().item() if score.numel() else 0.0,
            max(1, score.numel()),
            rate,
        )
        for name, score in scores.items()
    ]
    return [*judged, _extremes(coupling, n, generator)]


def _of_categories(
    coupling: CategoryCoupling, n: int, draws: int, failure_rate: float, generator: Generator
) -> list[Finding]:
    latent = OneHot(torch.tensor(CATEGORICAL_LOGITS[0], dtype=torch.float64))
    samples = coupling.sample_categories(latent.expand(draws).logits, n, generator)
    shape = (n, draws, *latent.logits.shape)
    one_hot = ((samples == 0) | (samples == 1)).all(-1) & (samples.sum(-1) == 1)
    if samples.shape != shape or not bool(one_hot.all()):
        got = f"{samples.dtype} {list(samples.shape)}"
        figure = f"expected one-hot samples of shape {list(shape)}, got {got}"
        return [Finding(f"categories, n = {n}", False, figure)]
    objective = table_objective(random_table(latent.count_states(), generator), latent)
    scores = {
        "marginals of categories": _scores(samples.sum(1), latent.mean(), draws),
        "correction": bias_scores(ARMS(n, coupling), objective, latent, draws, generator),
    }
    rate = failure_rate / len(scores)
    return [
        judge_score(f"{name}, n = {n}", score.abs().max().item(), score.numel(), rate)
        for name, score in scores.items()
    ]


def _scores(hits: Tensor, probability: Tensor, draws: Tensor | int) -> Tensor:
    """Return binomial z-scores; an event of probability 0 or 1 must never, or always, happen."""
    spread = (probability * (1 - probability) * draws).clamp(min=1e-12).sqrt()
    return (hits - probability * draws) / spread


def _marginal_scores(samples: Tensor, logits: Tensor) -> Tensor:
    return _scores(samples.sum(1), torch.sigmoid(logits), samples.shape[1])


def _pair_scores(samples: Tensor, logits: Tensor, debias: Tensor) -> Tensor:
    """P(b_i = 1, b_j = 0) of every ordered pair against p(1-p)/debias."""
    claimed = torch.sigmoid(logits) * torch.sigmoid(-logits) / debias
    hits = torch.einsum("ird,jrd->ijd", samples, 1 - samples)
    ordered = ~torch.eye(len(samples), dtype=torch.bool)
    return _scores(hits[ordered], claimed, samples.shape[1])


def _count_scores(samples: Tensor, claimed: Tensor | None) -> Tensor:
    """How often so many samples are ones, against the distribution that the coupling states."""
    if claimed is None:
        return torch.zeros(0)
    ones = samples.sum(0)
    hits = torch.stack([(ones == count).sum(0) for count in range(len(samples) + 1)])
    often = claimed * samples.shape[1]  # rarer events are too far from normal
    judged = (often >= FEWEST_EVENTS) | (claimed <= 0)
    return torch.where(judged, _scores(hits, claimed, samples.shape[1]), 0.0)


def _pattern_scores(samples: Tensor) -> Tensor:
    """Given how many are ones, every arrangement of them must be as likely as any other."""
    n, _, d = samples.shape
    weights = (2 ** torch.arange(n)).view(-1, 1, 1)
    patterns = (samples.long() * weights).sum(0)
    counts = torch.stack(
        [torch.bincount(patterns[:, k], minlength=2**n) for k in range(d)]
    ).double()
    ones = torch.tensor([bin(pattern).count("1") for pattern in range(2**n)])
    scores = []
    for s in range(1, n):
        arrangements = counts[:, ones == s]
        total = arrangements.sum(1, keepdim=True)
        # Fewer than 30 expected hits and a binomial is no longer close to normal that far out.
        enough = total.squeeze(1) > 30 * math.comb(n, s)
        scores.append(
            _scores(arrangements, torch.tensor(1 / math.comb(n, s)).double(), total)[
                enough
            ].flatten()
        )
    return torch.cat(scores) if scores else torch.zeros(0)


def _latent_scores(samples: Tensor, logits: Tensor) -> Tensor:
    """Sample i of one latent against sample j of another: uncorrelated."""
    centred = (samples - torch.sigmoid(logits)) / (
        torch.sigmoid(logits) * torch.sigmoid(-logits)
    ).sqrt()
    pairs = [
        torch.einsum("ir,jr->ij", centred[..., k], centred[..., m])
        for k, m in combinations(range(len(logits)), 2)
    ]
    return torch.stack(pairs) / math.sqrt(samples.shape[1])


def _extremes(coupling: BitCoupling, n: int, generator: Generator) -> Finding:
    far = torch.tensor([200.0, torch.inf])
    logits = torch.cat([far, -far])
    samples, debias = coupling.sample_bits(logits, n, generator), coupling.debias(logits, n)
    certain = bool((samples == (logits > 0).to(samples.dtype)).all())
    passed = certain and bool(debias.isfinite().all())
    figure = "samples certain, debias finite"
    if not passed:
        figure = f"samples {samples.tolist()}, debias {debias.tolist()}"
    return Finding(f"p = 0 and p = 1, n = {n}", passed, figure)
