"""Statistical tests of couplings of bits or categories."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import torch
from torch import Generator, Tensor

from arms.checks.bias import CATEGORIES, FEWEST_EVENTS, make_problem, problem_scores
from arms.checks.verdicts import Finding, Findings, Found, attempt, judge_scores
from arms.designs import BitCoupling, CategoryCoupling, Coupling
from arms.estimators import ARMS
from arms.latents import OneHot

LOGITS = (0.0, 0.6, -1.5, 2.5)


def coupling_findings(
    coupling: Coupling, draws: int, failure_rate: float, counts: Sequence[int], seed: int
) -> Findings:
    """Test whether a coupling has the properties that ARMS needs.

    The test is repeated for each number of samples in `counts`. If `counts` is empty, it is
    repeated for three small numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    usual = (2, 4, 6) if coupling.even_samples else (2, 3, 5)
    taken = [n for n in counts or usual if not (coupling.even_samples and n % 2)]
    tests: list[tuple[str, Callable[..., Found]]] = []
    tests += [("samples", _test_bits)] if isinstance(coupling, BitCoupling) else []
    tests += [("categories", _test_categories)] if isinstance(coupling, CategoryCoupling) else []
    rate = failure_rate / max(1, len(tests) * len(taken))
    findings: list[Finding] = []
    for n in taken:
        for name, test in tests:
            findings += attempt(f"{name}, n = {n}", test, coupling, n, draws, rate, generator)
    return Findings(repr(coupling), tuple(findings))


def _test_bits(
    coupling: BitCoupling, n: int, draws: int, failure_rate: float, generator: Generator
) -> Found:
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    samples = coupling.sample_bits(logits.expand(draws, -1), n, generator)
    if wrong := _wrong_samples(samples, (n, draws, *logits.shape), _are_bits(samples)):
        return False, wrong
    scores = {
        "marginals": _scores(samples.sum(1), torch.sigmoid(logits), draws),
        "correlation": _pair_scores(samples, logits, coupling.debias(logits, n)),
        "counts": _count_scores(samples, coupling.count_distribution(logits, n)),
        "exchangeability": _pattern_scores(samples),
        "latents independent": _latent_scores(samples, logits),
    }
    rate = failure_rate / (len(scores) + 1)
    return [*_judge_all(scores, n, rate), _test_extremes(coupling, n, generator)]


def _test_categories(
    coupling: CategoryCoupling, n: int, draws: int, failure_rate: float, generator: Generator
) -> Found:
    latent = OneHot(torch.tensor(CATEGORIES.moderate[0], dtype=torch.float64))
    samples = coupling.sample_categories(latent.expand(draws).logits, n, generator)
    one_hot = _are_bits(samples).all(-1) & (samples.sum(-1) == 1)
    if wrong := _wrong_samples(samples, (n, draws, *latent.logits.shape), one_hot):
        return False, wrong
    problem = make_problem("correction", CATEGORIES, CATEGORIES.moderate[0], generator)
    correction = problem_scores(ARMS(n, coupling), problem, draws, generator)
    scores = {
        "marginals of categories": _scores(samples.sum(1), latent.mean(), draws),
        "correction": correction[: latent.logits.numel()],  # scores of the gradient only
    }
    return _judge_all(scores, n, failure_rate / len(scores))


def _are_bits(samples: Tensor) -> Tensor:
    return (samples == 0) | (samples == 1)


def _wrong_samples(samples: Tensor, shape: Sequence[int], valid: Tensor) -> str:
    if samples.shape == shape and bool(valid.all()):
        return ""
    got = f"{samples.dtype} {list(samples.shape)}"
    return f"expected bits, or one-hot samples, of shape {list(shape)}, got {got}"


def _judge_all(scores: Mapping[str, Tensor], n: int, rate: float) -> list[Finding]:
    return [Finding(f"{name}, n = {n}", *judge_scores([one], rate)) for name, one in scores.items()]


def _scores(hits: Tensor, probability: Tensor, draws: Tensor | int) -> Tensor:
    """Return z-scores for events that occurred `hits` times in `draws` draws.

    `probability` is the expected probability of each event. A score is huge if this probability is
    0 but the event occurred, or if it is 1 but the event did not always occur.
    """
    spread = (probability * (1 - probability) * draws).clamp(min=1e-12).sqrt()
    return (hits - probability * draws) / spread


def _pair_scores(samples: Tensor, logits: Tensor, debias: Tensor) -> Tensor:
    """Return z-scores of how often sample i of a bit is 1 and sample j is 0.

    There is a score for each bit and each ordered pair of samples. The expected probability is
    p(1-p)/debias.
    """
    claimed = torch.sigmoid(logits) * torch.sigmoid(-logits) / debias
    hits = torch.einsum("ird,jrd->ijd", samples, 1 - samples)
    ordered = ~torch.eye(len(samples), dtype=torch.bool)
    return _scores(hits[ordered], claimed, samples.shape[1])


def _count_scores(samples: Tensor, claimed: Tensor | None) -> Tensor:
    """Return z-scores of how often each number of ones occurs among the n samples of a bit.

    `claimed` are the expected probabilities, which are the result of `count_distribution`. If this
    is None, there are no scores.
    """
    if claimed is None:
        return torch.zeros(0)
    ones = samples.sum(0)
    hits = torch.stack([(ones == count).sum(0) for count in range(len(samples) + 1)])
    often = claimed * samples.shape[1]  # the scores of rare events are too far from normal
    judged = (often >= FEWEST_EVENTS) | (claimed <= 0)
    return torch.where(judged, _scores(hits, claimed, samples.shape[1]), 0.0)


def _pattern_scores(samples: Tensor) -> Tensor:
    """Return z-scores of how often each pattern of n bits occurs.

    Patterns with the same number of ones are expected to be equally likely.
    """
    n = len(samples)
    patterns = (samples.long() * (2 ** torch.arange(n)).view(-1, 1, 1)).sum(0)
    hits = [torch.bincount(column, minlength=2**n) for column in patterns.unbind(-1)]
    counts = torch.stack(hits).double()
    ones = torch.tensor([pattern.bit_count() for pattern in range(2**n)])
    scores = [torch.zeros(0, dtype=torch.float64)]
    for s in range(1, n):
        arrangements, ways = counts[:, ones == s], math.comb(n, s)
        total = arrangements.sum(1, keepdim=True)
        # With fewer than 30 expected hits, the tails of a binomial are too far from normal.
        enough = total.squeeze(1) > 30 * ways
        found = _scores(arrangements, torch.tensor(1 / ways).double(), total)
        scores.append(found[enough].flatten())
    return torch.cat(scores)


def _latent_scores(samples: Tensor, logits: Tensor) -> Tensor:
    """Return z-scores of the correlations between samples of different bits.

    The expected correlation is 0.
    """
    spread = (torch.sigmoid(logits) * torch.sigmoid(-logits)).sqrt()
    centered = ((samples - torch.sigmoid(logits)) / spread).unbind(-1)
    pairs = [torch.einsum("ir,jr->ij", one, other) for one, other in combinations(centered, 2)]
    return torch.stack(pairs) / math.sqrt(samples.shape[1])


def _test_extremes(coupling: BitCoupling, n: int, generator: Generator) -> Finding:
    logits = torch.tensor([200.0, torch.inf, -200.0, -torch.inf])
    samples, debias = coupling.sample_bits(logits, n, generator), coupling.debias(logits, n)
    certain = samples == (logits > 0).to(samples.dtype)
    passed = bool(certain.all()) and bool(debias.isfinite().all())
    wrong = f"samples {samples.tolist()}, debias {debias.tolist()}"
    figure = "samples certain, debias finite" if passed else wrong
    return Finding(f"p = 0 and p = 1, n = {n}", passed, figure)
