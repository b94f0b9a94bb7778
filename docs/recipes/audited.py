"""Estimators of other packages in the form that `arms audit` calls: docs/audit.md has the verdicts.

Each function imports its package itself, so that one missing package does not disturb the others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import arms

Objective = Callable[[Tensor], Tensor]

# ---- Differentiable samples: logits [rows, d, K] -> samples [rows, d, K]


def hard_gumbel_softmax(logits: Tensor) -> Tensor:
    """Return PyTorch's straight-through Gumbel-softmax."""
    return torch.nn.functional.gumbel_softmax(logits, hard=True)


def reinmax(logits: Tensor) -> Tensor:
    """Return the sample of the package reinmax, by the authors of the estimator."""
    from reinmax import reinmax

    sample: Tensor = reinmax(logits, tau=1.0)[0]
    return sample


def vq_straight_through(logits: Tensor) -> Tensor:
    """Return the stochastic code of vector-quantize-pytorch, with its straight-through gradient."""
    from vector_quantize_pytorch.vector_quantize_pytorch import gumbel_sample

    sample: Tensor = gumbel_sample(logits, stochastic=True, straight_through=True)[1]
    return sample


# ---- Gradients: objective, logits [d] of bits -> gradient [d]; storchastic takes one row at a time


def storch_reinforce(objective: Objective, logits: Tensor) -> Tensor:
    """Return storchastic's score function with the mean of the other samples as its baseline."""
    import storch.method

    method = storch.method.ScoreFunction("b", n_samples=4, baseline_factory="batch_average")
    return _storch(method, objective, logits)


def storch_arm(objective: Objective, logits: Tensor) -> Tensor:
    """Return storchastic's ARM on two pairs."""
    import storch.method

    return _storch(storch.method.ARM("b", n_samples=2), objective, logits)


def storch_disarm(objective: Objective, logits: Tensor) -> Tensor:
    """Return storchastic's DisARM on two pairs."""
    import storch.method

    return _storch(storch.method.DisARM("b", n_samples=2), objective, logits)


def _storch(method: Any, objective: Objective, logits: Tensor) -> Tensor:
    import storch

    storch.reset()
    leaf = logits.detach().requires_grad_()
    b = method(torch.distributions.Bernoulli(logits=leaf))
    storch.add_cost(storch.deterministic(lambda b: objective(b.float()))(b), "objective")
    storch.backward()
    assert leaf.grad is not None
    return leaf.grad


# ---- Gradients for subsets, logits [rows, N]: SFESS, written from the released code's formulas

ITEMS, CHOSEN, SAMPLES = 6, 3, 4


def subset() -> arms.Subset:
    """Return the latent that SFESS is audited on: 3 of 6 items."""
    return arms.Subset(torch.tensor([0.8, -0.5, 0.3, -1.2, 0.0, 0.6]), CHOSEN)


def sfess_reinforce(objective: Objective, logits: Tensor) -> Tensor:
    """Samples are from Gumbel top-k, log-probabilities are those of the conditional Bernoulli."""
    latent, b, f = _sfess(objective, logits)
    return (f.unsqueeze(-1) * latent.score(b)).mean(0)


def sfess_control_variate(objective: Objective, logits: Tensor) -> Tensor:
    """The same with its baseline: `loss[~i]` reverses the samples, and their mean includes i."""
    latent, b, f = _sfess(objective, logits)
    return ((f - f.mean(0)).unsqueeze(-1) * latent.score(b)).mean(0)


def sfess_repaired(objective: Objective, logits: Tensor) -> Tensor:
    """One distribution for samples and log-probabilities, and the mean of the other samples."""
    latent = arms.Subset(logits.detach(), CHOSEN)
    b = latent.sample(SAMPLES)
    f = objective(b).detach()
    return ((f - f.mean(0)).unsqueeze(-1) * latent.score(b)).sum(0) / (SAMPLES - 1)


def _sfess(objective: Objective, logits: Tensor) -> tuple[arms.Subset, Tensor, Tensor]:
    latent = arms.Subset(logits.detach(), CHOSEN)
    noise = -torch.empty(SAMPLES, *logits.shape).exponential_().log()
    top = (latent.logits + noise).topk(CHOSEN, -1).indices
    b = torch.zeros_like(noise).scatter_(-1, top, 1.0)
    return latent, b, objective(b).detach()


# ---- Weights: rewards [n, groups] -> weights [n, groups], with the mean over n included


def trl_rloo(rewards: Tensor) -> Tensor:
    """Return TRL's RLOO; a test compares it with RLOOTrainer."""
    others = (rewards.sum(0) - rewards) / (len(rewards) - 1)
    return (rewards - others) / len(rewards)


def trl_grpo(rewards: Tensor) -> Tensor:
    """Return TRL's GRPO as it is by default; a test compares it with GRPOTrainer."""
    return (rewards - rewards.mean(0)) / (rewards.std(0) + 1e-4) / len(rewards)


def trl_grpo_unscaled(rewards: Tensor) -> Tensor:
    """Return TRL's GRPO with scale_rewards="none"."""
    return (rewards - rewards.mean(0)) / len(rewards)


def verl_rloo(rewards: Tensor) -> Tensor:
    """Return verl's RLOO."""
    return _verl("rloo", rewards)


def verl_grpo(rewards: Tensor) -> Tensor:
    """Return verl's GRPO."""
    return _verl("grpo", rewards)


def verl_passk(rewards: Tensor) -> Tensor:
    """Return verl's GRPO for pass@n, which divides by the standard deviation."""
    return _verl("grpo_passk", rewards, {"norm_adv_by_std_in_grpo": True}, over=1)


def verl_passk_unscaled(rewards: Tensor) -> Tensor:
    """Return verl's GRPO for pass@n without the division."""
    return _verl("grpo_passk", rewards, {"norm_adv_by_std_in_grpo": False}, over=1)


def _verl(
    name: str, rewards: Tensor, config: dict[str, bool] | None = None, over: int | None = None
) -> Tensor:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    n, groups = rewards.shape
    flat = rewards.reshape(-1, 1)  # one token per response
    index = torch.arange(groups).repeat(n).numpy()
    found: Tensor = get_adv_estimator_fn(name)(
        token_level_rewards=flat, response_mask=torch.ones_like(flat), index=index, config=config
    )[0]
    return found.view(n, groups) / (n if over is None else over)
