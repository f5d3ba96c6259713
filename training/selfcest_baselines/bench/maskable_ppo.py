"""`maskable_ppo`: MaskablePPO of sb3-contrib, as a reference from another library."""

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
    """MaskablePPO of sb3-contrib, where each environment step is one decision; needs the extra `sb3`.

    Attributes:
        games: number of parallel environments.
        steps: decisions per environment and update.
        learning_rate: learning rate of Adam.
        entropy: coefficient of the entropy bonus.
        hidden: widths of the hidden layers of policy and critic.
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

        class ExaminerCallback(BaseCallback):
            model: Algorithm
            stop = False

            # A rollout starts before the first update and after each later one.
            def _on_rollout_start(self) -> None:
                self.stop = examiner(self.num_timesteps, self.greedy)

            def _on_step(self) -> bool:
                return not self.stop

            def greedy(self, observations: Tensor, masks: Tensor) -> Tensor:
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
        algorithm.set_logger(Logger(None, []))  # the default logger leaves a temporary folder behind
        algorithm.learn(1 << 40, callback=ExaminerCallback())  # the callback ends it, not the number of steps
