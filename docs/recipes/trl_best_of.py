"""Pass@k for TRL: the advantages of GRPOTrainer or RLOOTrainer, replaced by `arms.weights`.

class Trainer(WeightedAdvantages, GRPOTrainer):
    target = arms.BestOf(4)

Trainer(model=..., reward_funcs=..., args=GRPOConfig(loss_type="dr_grpo", beta=0.0), ...)
"""

from typing import Any

import torch

import arms


def advantages(
    rewards: torch.Tensor, num_generations: int, target: arms.Target | None = None
) -> torch.Tensor:
    """Return advantages in TRL's form: flat, completions of a prompt side by side.

    A reward that is NaN belongs to a completion that nothing could score. TRL takes the mean over
    completions, so that weights are multiplied by the size of the group.
    """
    groups = rewards.view(-1, num_generations).T  # [num_generations, prompts]
    found = arms.weights(groups, target, mask=~groups.isnan())
    return (found * num_generations).T.reshape(-1)


class WeightedAdvantages:
    """A base class to put before GRPOTrainer or RLOOTrainer."""

    target: arms.Target = arms.Expectation()

    def _calculate_rewards(self, *arguments: Any) -> torch.Tensor:
        self._found: torch.Tensor = super()._calculate_rewards(*arguments)  # type: ignore[misc]
        return self._found  # [completions, reward functions], of all processes

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        trainer: Any = self
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        in_training = trainer.model.training
        size = trainer.num_generations if in_training else trainer.num_generations_eval
        weighted = self._found * trainer.reward_weights.to(self._found.device)
        rewards = weighted.nansum(1).masked_fill(self._found.isnan().all(1), torch.nan)
        local = len(output["advantages"])
        start = trainer.accelerator.process_index * local
        output["advantages"] = advantages(rewards, size, self.target)[start : start + local]
        return output
