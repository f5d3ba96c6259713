"""SuperSuit's wrappers and Stable-Baselines3's PPO on the PettingZoo environment: fixed population, flat observations.

    pip install -e ".[sb3]" supersuit    # in a checkout
    python docs/examples/marl/supersuit_ppo.py

Use `SymbolicVecEnv` (`sb3_ppo.py`) instead where you can: it is faster, knows masks and can be seeded.
"""

import sys

import supersuit
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from selfcest_env import symbolic_v0


def make_env(games: int, seed: int) -> VecEnv:
    """`games` copies of the environment, one row per agent."""
    env = symbolic_v0.parallel_env(
        task="lookup",
        task_options={"hops": 1, "keys": 3, "values": 3},
        max_clones=1,
        max_depth=1,
        population="fixed",
        observation_mode="flat",
    )
    rows = supersuit.pettingzoo_env_to_vec_env_v1(env)
    batch = supersuit.concat_vec_envs_v1(rows, games, num_cpus=0, base_class="stable_baselines3")
    batch.venv.reset(seed=seed)  # and seed + 1, ... for the next copies; SB3's own reset hands no seed on
    return batch


def main(seed: int = 0) -> float:
    """Train for about a minute; returns the mean reward of evaluation episodes: the share of right answers."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)  # `PPO(seed=...)` would ask SuperSuit's batch for a method that it lacks
    model = PPO(
        "MlpPolicy",
        make_env(64, seed),
        n_steps=32,
        batch_size=512,
        n_epochs=10,  # with 4 and SB3's gae_lambda one seed of ten was at 0.56 after 150,000 steps
        learning_rate=2e-3,
        gamma=1.0,
        gae_lambda=1.0,
        ent_coef=0.06,
        policy_kwargs={"net_arch": [128, 128], "activation_fn": torch.nn.ReLU},
        device="cpu",
    )
    model.learn(100_000)
    mean, _ = evaluate_policy(model, make_env(16, seed + 1000), n_eval_episodes=600, warn=False)
    return float(mean)


if __name__ == "__main__":
    print(f"success {main(*map(int, sys.argv[1:])):.3f}")
