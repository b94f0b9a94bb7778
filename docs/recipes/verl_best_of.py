"""Pass@k for verl: an advantage estimator with the signature that verl asks for.

Import this file where the trainer starts, call `register()`, and set
`algorithm.adv_estimator=best_of_k` and `actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum`.
"""

from typing import Any

import numpy as np
import torch

import arms

K = 4


def best_of_k(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray[Any, Any],
    config: object = None,
    target: arms.Target | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns `[responses, tokens]`, as verl's own estimators do.

    Args:
        token_level_rewards: `[responses, tokens]`; their sum is the reward of a response.
        response_mask: `[responses, tokens]`.
        index: `[responses]`, the prompt of each; groups may differ in size.
        config: verl's, not used.
        target: `arms.BestOf(K)` by default.
        kwargs: Whatever else verl passes, not used.
    """
    scores = token_level_rewards.sum(-1)
    _, group, sizes = np.unique(index, return_inverse=True, return_counts=True)
    # The place of each response within its group, in order of appearance.
    order = np.argsort(group, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(sizes.cumsum() - sizes, sizes)
    rewards = scores.new_zeros((int(sizes.max()), len(sizes)))
    mask = torch.zeros_like(rewards, dtype=torch.bool)
    rewards[place, group], mask[place, group] = scores, True
    found = arms.weights(rewards, arms.BestOf(K) if target is None else target, mask=mask)
    # verl takes the mean over responses, so weights are multiplied by the size of the group.
    scale = torch.as_tensor(sizes[group]).to(found)
    advantages = (found[place, group] * scale).unsqueeze(-1) * response_mask
    return advantages, advantages


def register() -> None:
    """Make the estimator known to verl."""
    from verl.trainer.ppo.core_algos import register_adv_est

    register_adv_est("best_of_k")(best_of_k)
