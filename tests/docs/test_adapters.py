"""The adapters for TRL and verl, tested by their protocol, and with the packages if installed."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import arms

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- TRL


def test_the_advantages_of_trl_are_weights_times_the_size_of_the_group() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 2.0, 5.0, 1.0, 1.0, 4.0])  # two prompts of four
    found = load("trl_best_of").advantages(rewards, 4, arms.BestOf(2))
    for prompt in (slice(0, 4), slice(4, 8)):
        expected = 4 * arms.weights(rewards[prompt], arms.BestOf(2))
        torch.testing.assert_close(found[prompt], expected)


def test_completions_that_nothing_could_score_have_no_advantage() -> None:
    rewards = torch.tensor([1.0, torch.nan, 0.0, 2.0])
    found = load("trl_best_of").advantages(rewards, 4)
    torch.testing.assert_close(found[[0, 2, 3]], 4 * arms.weights(rewards[[0, 2, 3]]))
    assert found[1] == 0


class Base:
    """A stand-in for TRL's trainers, which offer rewards and advantages to a subclass."""

    def __init__(self, rewards: Tensor) -> None:
        self.rewards, self.reward_weights = rewards, torch.tensor([1.0, 2.0])
        self.num_generations, self.num_generations_eval = 3, 3
        self.model = torch.nn.Linear(1, 1)
        self.accelerator = type("Accelerator", (), {"process_index": 1})

    def _calculate_rewards(self, *_: object) -> Tensor:
        return self.rewards

    def _generate_and_score_completions(self, inputs: list[str]) -> dict[str, Any]:
        self._calculate_rewards(inputs)
        return {"advantages": torch.zeros(len(inputs))}


def test_the_second_process_gets_its_part_of_the_advantages() -> None:
    module = load("trl_best_of")
    trainer_class = type("Trainer", (module.WeightedAdvantages, Base), {"target": arms.BestOf(2)})
    rewards = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    output = trainer_class(rewards)._generate_and_score_completions(["a", "b", "c"])
    expected = module.advantages(rewards @ torch.tensor([1.0, 2.0]), 3, arms.BestOf(2))
    torch.testing.assert_close(output["advantages"], expected[3:])


# ---- verl


def test_the_estimator_of_verl_takes_groups_of_any_size_in_any_order() -> None:
    module = load("verl_best_of")
    rewards = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0])
    index = np.array(["a", "b", "a", "b", "a", "a", "b"], dtype=object)
    tokens = torch.zeros(7, 5)
    tokens[:, 2] = rewards
    mask = torch.ones(7, 5)
    mask[:, 3:] = 0
    advantages, returns = module.best_of_k(
        tokens, mask, index, config=None, target=arms.BestOf(3), old_log_probs=None
    )
    assert torch.equal(advantages, returns)
    assert (advantages[:, 3:] == 0).all()
    for name, size in (("a", 4), ("b", 3)):
        chosen = torch.as_tensor(index == name)
        expected = size * arms.weights(rewards[chosen], arms.BestOf(3))
        torch.testing.assert_close(advantages[chosen, 0], expected)


def test_by_default_it_is_the_best_of_four() -> None:
    module = load("verl_best_of")
    rewards = torch.randn(8, 1)
    found, _ = module.best_of_k(rewards, torch.ones(8, 1), np.zeros(8, dtype=int))
    torch.testing.assert_close(found, 8 * arms.weights(rewards, arms.BestOf(4)))


# ---- With the packages themselves


def test_verl_knows_the_estimator_and_its_own_agree_where_they_should() -> None:
    algorithms = pytest.importorskip("verl.trainer.ppo.core_algos")
    module = load("verl_best_of")
    module.register()
    found = algorithms.get_adv_estimator_fn("best_of_k")
    rewards, mask = torch.randn(12, 1), torch.ones(12, 1)
    index = np.array([0, 1, 2] * 4, dtype=object)
    own = algorithms.get_adv_estimator_fn("rloo")(rewards.clone(), mask, index)[0]
    torch.testing.assert_close(found(rewards, mask, index, target=arms.Expectation())[0], own)
    config = {"norm_adv_by_std_in_grpo": False}
    own = algorithms.get_adv_estimator_fn("grpo_passk")(rewards, mask, index, config=config)[0]
    torch.testing.assert_close(found(rewards, mask, index, target=arms.BestOf(4))[0], 4 * own)


@pytest.mark.parametrize("name", ["RLOO", "GRPO"])
def test_the_trainers_of_trl_take_the_advantages(name: str, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets, tokenizers = pytest.importorskip("datasets"), pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = ["<pad>", "<eos>", "say", "a", "b", "c"]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="a")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    small = transformers.GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=8, n_layer=1, n_head=1,
        bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    seen: list[tuple[Tensor, Tensor]] = []

    def reward(completions: list[str], **_: object) -> list[float]:
        return [float(text.count("b") - text.count("c")) for text in completions]

    module, audited = load("trl_best_of"), load("audited")
    own = getattr(trl, f"{name}Trainer")

    class Noting(own):  # type: ignore[misc, valid-type]
        def _calculate_rewards(self, *arguments: Any) -> Tensor:
            noted: Tensor = super()._calculate_rewards(*arguments)
            self.noted = noted
            return noted

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
            seen.append((self.noted[:, 0].clone(), output["advantages"].clone()))
            return output

    class Weighted(module.WeightedAdvantages, Noting):  # type: ignore[misc, name-defined]
        target = arms.BestOf(2)

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
            seen.append((self.noted[:, 0].clone(), output["advantages"].clone()))
            return output

    torch.manual_seed(0)
    arguments = getattr(trl, f"{name}Config")(
        output_dir=str(tmp_path), per_device_train_batch_size=8, num_generations=4, max_steps=1,
        max_completion_length=4, report_to="none", use_cpu=True, beta=0.0, save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = Weighted(
        model=transformers.GPT2LMHeadModel(small), reward_funcs=reward, args=arguments,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["say a", "say b"] * 4}),
        processing_class=fast,
    )  # fmt: skip
    trainer.train()
    (rewards, theirs), (again, ours) = seen
    assert torch.equal(rewards, again)
    assert rewards.unique().numel() > 1
    torch.testing.assert_close(ours, module.advantages(rewards, 4, arms.BestOf(2)))
    weigh = audited.trl_rloo if name == "RLOO" else audited.trl_grpo
    flat = 4 * weigh(rewards.view(-1, 4).T).T.reshape(-1)
    torch.testing.assert_close(theirs, flat)
