"""RLlib's PPO: masked shared policy; agents appear when they act, so that no idle row is trained on.

pip install -e ".[rllib]"    # in a checkout, in an environment of its own: RLlib pins Gymnasium
python docs/examples/marl/rllib_ppo.py [SEED]

requirements/rllib.txt has the versions this was run with.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule

from selfcest_baselines.learner import MarlLearner
from selfcest_baselines.progress import Examiner
from selfcest_env.adapters.rllib import SymbolicRLlib
from selfcest_env.structure import Checked, Count, NotNegative, Positive
from selfcest_env.symbolic.rules import SymbolicRules

# Up to four bits, and whether their number is odd; nobody may answer for more than two of them.
GAME = {"task_options": {"items": (2, 4), "window": 2, "modulus": 2, "splits": (2,)}, "max_clones": 2, "max_depth": 1}


def make_config(game: Mapping[str, Any], seed: int, **training: Any) -> PPOConfig:
    """PPO in one process on a game, given as arguments of `symbolic_v0.parallel_env`."""
    network = DefaultModelConfig(
        fcnet_hiddens=[128, 128], fcnet_activation="relu", head_fcnet_hiddens=[], vf_share_layers=False
    )
    return (
        PPOConfig()
        .environment(SymbolicRLlib, env_config=dict(game))
        # With NumPy episodes the runner goes through every finished game again at every step.
        .env_runners(num_env_runners=0, num_envs_per_env_runner=128, episodes_to_numpy=False)
        .learners(num_learners=0)
        .multi_agent(policies={"clone"}, policy_mapping_fn=lambda agent, episode, **_: "clone")
        .rl_module(rl_module_spec=RLModuleSpec(module_class=ActionMaskingTorchRLModule, model_config=network))
        .training(
            grad_clip=0.5,
            gamma=1.0,
            lambda_=0.95,
            clip_param=0.2,
            vf_loss_coeff=0.5,
            use_kl_loss=False,
            **training,
        )
        .reporting(metrics_num_episodes_for_smoothing=1000)
        .debugging(seed=seed)
    )


@dataclass(frozen=True)
class RllibPPO(Checked, MarlLearner):
    """A row of the benchmark: this recipe on any scenario, as `selfcest bench --learner rllib_ppo:RllibPPO`.

    All of it runs in one process, building the algorithm is on the clock. Processes that Ray starts beside it idle and
    are not. Turns with a single legal action are among its decisions, since RLlib samples them and trains on them too.

    Attributes:
        steps: joint steps between updates, of all 128 games together; with 128, RLlib was seen to fail.
        minibatch: turns of a gradient step.
    """

    learning_rate: Positive = 2e-3
    steps: Count = 512
    minibatch: Count = 512
    epochs: Count = 8
    entropy: NotNegative = 0.01

    def load(self) -> None:
        if not ray.is_initialized():
            ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        algorithm = make_config(
            {field.name: getattr(rules, field.name) for field in fields(rules)},
            seed,
            lr=self.learning_rate,
            train_batch_size_per_learner=self.steps,
            minibatch_size=self.minibatch,
            num_epochs=self.epochs,
            entropy_coeff=self.entropy,
        ).build_algo()

        def best(observations: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
            seen = {"observations": observations, "action_mask": masks.float()}
            with torch.no_grad():
                logits = algorithm.get_module("clone").forward_inference({Columns.OBS: seen})
            return logits[Columns.ACTION_DIST_INPUTS].argmax(-1)  # the module has masked them

        decisions = 0
        while not examiner(decisions, best):
            decisions = int(algorithm.train()["env_runners"]["num_module_steps_sampled_lifetime"]["clone"])
        algorithm.stop()


def main(seed: int = 0) -> float:
    """Train for about two minutes; returns the share of right answers among the last thousand games."""
    torch.set_num_threads(1)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    algorithm = make_config(
        GAME,
        seed,
        lr=[[0, 2e-3], [55_000, 2e-4]],  # by joint steps
        train_batch_size_per_learner=2048,
        minibatch_size=512,
        num_epochs=4,
        entropy_coeff=0.0,
    ).build_algo()
    success = 0.0
    for _ in range(26):
        # The sum over agents, `episode_return_mean`, counts the team reward once per agent; the root's is the team's.
        success = algorithm.train()["env_runners"]["agent_episode_returns_mean"]["agent_0"]
        print(f"{success:.3f}", end=" ", flush=True)
    print()
    algorithm.stop()
    ray.shutdown()
    return float(success)


if __name__ == "__main__":
    print(f"success {main(*map(int, sys.argv[1:])):.3f}")
