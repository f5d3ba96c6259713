"""What stands in a row of the benchmark: a learner with its settings, the same for every scenario.

An entry plays games until the examiner, called after every update, says that it is over. One's own is a class with
`learn`, given as `package.module:Class`; it may use any library, as long as it acts on observations and masks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from selfcest_baselines.credit import Broadcast, Coma, Credit, Difference, DiffLoo, Shapley, Value
from selfcest_baselines.games import KernelGames
from selfcest_baselines.learner import Learner
from selfcest_baselines.loss import Clipped, Loss, OnePass
from selfcest_baselines.progress import Examiner
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count, NotNegative, Positive
from selfcest_env.symbolic.rules import SymbolicRules


class Entry(ABC):
    """A learner of the benchmark."""

    def load(self) -> None:  # noqa: B027, most have nothing to do
        """Import what is slow to import, before the clock starts."""

    @abstractmethod
    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        """Learn until `examiner(decisions, act)` is true; call it before or after every update.

        `act` maps observations [B, F] and masks [B, A] of agents that may decide to actions [B], greedily. Decisions
        are those sampled so far, in replays too. CPU time counts from the making of the examiner on.
        """


@stored_as("OfTheGrid", credit="credit", loss="loss", learner="learner")
@dataclass(frozen=True)
class OfTheGrid(Entry):
    """A cell of the grid of credit and loss."""

    credit: Credit
    loss: Loss = field(default_factory=Clipped)
    learner: Learner = field(default_factory=Learner)

    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        games = KernelGames(rules, self.learner.episodes, seed, group_size=self.learner.group_size)
        for progress in self.learner.learn(games, self.credit, self.loss, seed):
            if examiner(progress.decisions, progress.actor.best):
                return


@stored_as(
    "MaskablePPO", games="games", steps="steps", learning_rate="learning_rate", entropy="entropy", hidden="hidden"
)
@dataclass(frozen=True)
class MaskablePPO(Checked, Entry):
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


_FAST, _SLOW = Learner(learning_rate=3e-3), Learner(learning_rate=1e-3)

# Networks have equal widths. The policies' rates were the better of two on one seed of `chain` modulo 2; COMA's floor,
# norm and small batches are as published, and PPO's division by decisions is that of most code.
ENTRIES: dict[str, Entry] = {
    "broadcast": OfTheGrid(Broadcast(), learner=_FAST),
    "value": OfTheGrid(Value(), learner=replace(_SLOW, group_size=1, per="decision")),
    "coma": OfTheGrid(
        Coma(critic_learning_rate=3e-3),
        OnePass(),
        replace(_FAST, episodes=64, group_size=1, max_gradient=10.0, floor=(0.1, 0.0)),
    ),
    "difference": OfTheGrid(Difference(), learner=_FAST),
    "diff_loo": OfTheGrid(DiffLoo(), learner=_FAST),
    "shapley": OfTheGrid(Shapley(), learner=_SLOW),
    "maskable_ppo": MaskablePPO(),
}
