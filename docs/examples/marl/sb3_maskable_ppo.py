"""sb3-contrib's MaskablePPO: shared weights as plain single-agent RL, one agent's decision per step.

pip install -e ".[sb3]"    # in a checkout
python docs/examples/marl/sb3_maskable_ppo.py [SEED]
"""

import sys

import numpy as np
import torch
from sb3_contrib import MaskablePPO

from selfcest_env.adapters.sb3 import SymbolicVecEnv
from selfcest_env.symbolic import make_rules


def main(seed: int = 0) -> float:
    """Train for about 10 s; returns the share of right answers among the last episodes."""
    torch.set_num_threads(1)
    # Up to four numbers modulo three; nobody may answer for more than two of them.
    game = {"items": (2, 4), "window": 2, "modulus": 3, "splits": (2,)}
    rules = make_rules("chain", game, max_clones=2, max_depth=1)
    env = SymbolicVecEnv(rules, num_envs=128, per="decision")
    model = MaskablePPO(
        "MlpPolicy",
        env,
        n_steps=16,
        batch_size=512,
        n_epochs=4,
        learning_rate=2e-3,
        gamma=1.0,
        ent_coef=0.01,
        policy_kwargs={"net_arch": [128, 128], "activation_fn": torch.nn.ReLU},
        stats_window_size=2000,
        seed=seed,
        device="cpu",
    )
    model.learn(150_000)
    return float(np.mean(model.ep_success_buffer))


if __name__ == "__main__":
    print(f"success {main(*map(int, sys.argv[1:])):.3f}")
