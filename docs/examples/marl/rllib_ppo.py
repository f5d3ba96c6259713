"""RLlib's PPO: masked shared policy; agents appear when they act, so that no idle row is trained on.

pip install -e ".[rllib]"    # in a checkout, in an environment of its own: RLlib pins Gymnasium
python docs/examples/marl/rllib_ppo.py [SEED]

requirements/rllib.txt has the versions this was run with.
"""

import sys

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule

from selfcest_env.adapters.rllib import SymbolicRLlib


def make_config(seed: int) -> PPOConfig:
    # Up to four bits, and whether their number is odd; nobody may answer for more than two of them.
    game = {"items": (2, 4), "window": 2, "modulus": 2, "splits": (2,)}
    network = DefaultModelConfig(
        fcnet_hiddens=[128, 128], fcnet_activation="relu", head_fcnet_hiddens=[], vf_share_layers=False
    )
    return (
        PPOConfig()
        .environment(SymbolicRLlib, env_config={"task_options": game, "max_clones": 2, "max_depth": 1})
        # With NumPy episodes the runner goes through every finished game again at every step.
        .env_runners(num_env_runners=0, num_envs_per_env_runner=128, episodes_to_numpy=False)
        .multi_agent(policies={"clone"}, policy_mapping_fn=lambda agent, episode, **_: "clone")
        .rl_module(rl_module_spec=RLModuleSpec(module_class=ActionMaskingTorchRLModule, model_config=network))
        .training(
            train_batch_size_per_learner=2048,
            minibatch_size=512,
            num_epochs=4,
            lr=[[0, 2e-3], [55_000, 2e-4]],  # by joint steps
            grad_clip=0.5,
            gamma=1.0,
            lambda_=0.95,
            clip_param=0.2,
            vf_loss_coeff=0.5,
            entropy_coeff=0.0,
            use_kl_loss=False,
        )
        .reporting(metrics_num_episodes_for_smoothing=1000)
        .debugging(seed=seed)
    )


def main(seed: int = 0) -> float:
    """Train for about two minutes; returns the share of right answers among the last thousand games."""
    torch.set_num_threads(1)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    algorithm = make_config(seed).build_algo()
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
