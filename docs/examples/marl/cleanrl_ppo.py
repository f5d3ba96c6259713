"""PPO in one file, in CleanRL's manner: the Gymnasium vector environment, masks, PyTorch and nothing else.

pip install -e . torch    # in a checkout
python docs/examples/marl/cleanrl_ppo.py [SEED]
"""

import sys

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from selfcest_env import symbolic_v0  # noqa: F401  # registers the id

NUM_ENVS, NUM_STEPS, ITERATIONS = 128, 16, 75
EPOCHS, MINIBATCHES, LEARNING_RATE = 4, 4, 2e-3
GAMMA, GAE_LAMBDA = 1.0, 0.95  # the reward comes with the last step, and the game does not discount it
CLIP, ENTROPY, VALUE, MAX_GRAD_NORM = 0.2, 0.01, 0.5, 0.5


class Agent(nn.Module):
    """One policy and one value for every clone; illegal actions have probability 0."""

    def __init__(self, num_features: int, num_actions: int) -> None:
        super().__init__()
        self.actor = self._network(num_features, num_actions, 0.01)
        self.critic = self._network(num_features, 1, 1.0)

    @staticmethod
    def _network(num_in: int, num_out: int, gain: float) -> nn.Sequential:
        layers = [nn.Linear(num_in, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, num_out)]
        for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)

    def policy(self, observations: torch.Tensor, masks: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(observations).masked_fill(~masks, -1e8))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(observations).squeeze(-1)


def main(seed: int = 0) -> float:
    """Train for about 15 s; returns the share of right answers among the last episodes."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    # Up to four numbers modulo three; nobody may answer for more than two of them.
    game = {"items": (2, 4), "window": 2, "modulus": 3, "splits": (2,)}
    envs = gymnasium.make_vec(
        "selfcest/SymbolicSerial-v0", NUM_ENVS, task="chain", task_options=game, max_clones=2, max_depth=1
    )
    assert envs.single_observation_space.shape is not None
    num_features, num_actions = envs.single_observation_space.shape[0], envs.single_action_space.n
    agent = Agent(num_features, num_actions)
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)

    # A row is what one agent saw and did. Where `over`, the game had ended before: the environment ignores the action
    # and starts the next game (NEXT_STEP), so nothing was decided there and the row must not be trained on.
    rows = (NUM_STEPS, NUM_ENVS)
    observations, masks = torch.zeros(*rows, num_features), torch.zeros(*rows, num_actions, dtype=torch.bool)
    actions, log_probs = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows)
    rewards, values = torch.zeros(rows), torch.zeros(rows)
    over = torch.zeros(rows[0] + 1, rows[1], dtype=torch.bool)

    returns: list[float] = []
    seen, infos = envs.reset(seed=seed)
    for _ in range(ITERATIONS):
        over[0] = over[-1].clone()
        for step in range(NUM_STEPS):
            observations[step], masks[step] = torch.from_numpy(seen), torch.from_numpy(infos["action_mask"] > 0)
            with torch.no_grad():
                policy = agent.policy(observations[step], masks[step])
                actions[step] = policy.sample()
                log_probs[step] = policy.log_prob(actions[step])
                values[step] = agent.value(observations[step])
            seen, reward, terminated, truncated, infos = envs.step(actions[step].numpy())
            rewards[step] = torch.from_numpy(reward)
            over[step + 1] = torch.from_numpy(terminated | truncated)  # nothing is truncated without `max_cycles`
            returns += reward[terminated].tolist()

        advantages = torch.zeros(rows)
        with torch.no_grad():
            next_value, following = agent.value(torch.from_numpy(seen)), torch.zeros(NUM_ENVS)
        for step in reversed(range(NUM_STEPS)):
            goes_on = ~over[step + 1]
            delta = rewards[step] + GAMMA * next_value * goes_on - values[step]
            advantages[step] = following = delta + GAMMA * GAE_LAMBDA * following * goes_on
            next_value = values[step]
        targets = advantages + values

        decided = ~over[:-1]
        batch = [x[decided] for x in (observations, masks, actions, log_probs, advantages, targets)]
        for _ in range(EPOCHS):
            for part in torch.randperm(len(batch[0])).chunk(MINIBATCHES):
                loss = ppo_loss(agent, *(x[part] for x in batch))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
                optimizer.step()
    envs.close()
    # Without a price on tokens the team return of an episode is 1 for a right answer.
    return float(np.mean(returns[-2000:]))


def ppo_loss(
    agent: Agent,
    observations: torch.Tensor,
    masks: torch.Tensor,
    actions: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """The clipped surrogate with an entropy bonus and a squared value error."""
    policy = agent.policy(observations, masks)
    ratio = (policy.log_prob(actions) - old_log_probs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    surrogate = torch.min(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    value_error = (agent.value(observations) - targets).square().mean()
    return VALUE * value_error - surrogate - ENTROPY * policy.entropy().mean()


if __name__ == "__main__":
    print(f"success {main(*map(int, sys.argv[1:])):.3f}")
