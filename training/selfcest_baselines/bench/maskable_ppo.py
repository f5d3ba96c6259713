"""`maskable_ppo`: MaskablePPO of sb3-contrib, as a reference of another library."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfcest_baselines.learner import MarlLearner
from selfcest_baselines.progress import Examiner
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count, NotNegative, Positive
from selfcest_env.symbolic.rules import SymbolicRules


@stored_as(
    "MaskablePPO", games="games", steps="steps", learning_rate="learning_rate", entropy="entropy", hidden="hidden"
)
@dataclass(frozen=True)
class MaskablePPO(Checked, MarlLearner):
    """MaskablePPO of sb3-contrib, one decision per step; needs the extra `sb3`.

    Attributes:
        games: played side by side.
        steps: decisions of each between updates.
    """

    games: Count = 64
    steps: Count = 20
    learning_rate: Positive = 3e-3
    entropy: NotNegative = 0.01
    hidden: tuple[Count, ...] = (128, 128)

    def load(self) -> None:
        import sb3_contrib  # noqa: F401

    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        from sb3_contrib import MaskablePPO as Algorithm
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.logger import Logger

        from selfcest_env.adapters.sb3 import SymbolicVecEnv

        class Watch(BaseCallback):
            model: Algorithm
            over = False

            def _on_rollout_start(self) -> None:  # before the first update, then after each
                self.over = examiner(self.num_timesteps, self.best)

            def _on_step(self) -> bool:
                return not self.over

            def best(self, observations: Tensor, masks: Tensor) -> Tensor:
                actions = self.model.predict(observations.numpy(), action_masks=masks.numpy(), deterministic=True)[0]
                return torch.from_numpy(actions)

        algorithm = Algorithm(
            "MlpPolicy",
            SymbolicVecEnv(rules, self.games, per="decision"),
            n_steps=self.steps,
            batch_size=self.games * self.steps // 4,
            n_epochs=4,
            gamma=1.0,
            ent_coef=self.entropy,
            max_grad_norm=1.0,
            learning_rate=self.learning_rate,
            policy_kwargs={"net_arch": list(self.hidden), "activation_fn": torch.nn.ReLU},
            seed=seed,
            device="cpu",
        )
        algorithm.set_logger(Logger(None, []))  # its own leaves a folder behind
        algorithm.learn(1 << 40, callback=Watch())
