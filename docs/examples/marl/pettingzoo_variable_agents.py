"""PettingZoo without a library: a number of agents that changes, action masks, and one shared policy.

pip install -e . torch    # in a checkout
python docs/examples/marl/pettingzoo_variable_agents.py [SEED]
"""

import sys

import torch
from torch import nn
from torch.distributions import Categorical

from selfcest_env import symbolic_v0

EPISODES, ITERATIONS = 128, 60  # episodes of one iteration
EPOCHS, CLIP, ENTROPY, LEARNING_RATE = 4, 0.2, 0.01, 3e-3

Decision = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # observation, mask, action, log-probability


def make_env():
    """Up to four numbers modulo two, of which no agent may answer for more than two.

    In `dynamic` an agent is in `env.agents` from its birth to its own end, so the list changes from step to step.
    """
    game = {"items": (2, 4), "window": 2, "modulus": 2, "splits": (2,)}
    return symbolic_v0.parallel_env(task="chain", task_options=game, max_clones=2, max_depth=1, population="dynamic")


def distribution(network: nn.Module, observations: torch.Tensor, masks: torch.Tensor) -> Categorical:
    """One policy for root and clones; illegal actions have probability 0."""
    return Categorical(logits=network(observations).masked_fill(~masks, -1e8))


def play(env, network: nn.Module) -> tuple[list[Decision], float]:
    """Play one episode; returns the decisions of all agents that were ever alive, and the team return."""
    decisions: list[Decision] = []
    observations, infos = env.reset()
    while env.agents:
        # A parent that waits for its clones stays in `agents`, and WAIT is its only action: it decides nothing.
        acting = [agent for agent in env.agents if infos[agent]["can_act"]]
        seen = torch.stack([torch.from_numpy(observations[agent]["observation"]) for agent in acting])
        masks = torch.stack([torch.from_numpy(observations[agent]["action_mask"]) for agent in acting]).bool()
        with torch.no_grad():
            policy = distribution(network, seen, masks)
            actions = policy.sample()
            log_probs = policy.log_prob(actions)
        decisions += zip(seen, masks, actions, log_probs, strict=True)
        # Agents without an action WAIT.
        observations, _, _, _, infos = env.step(dict(zip(acting, actions.tolist(), strict=True)))
    # Clones have left before the reward arrives, so rewards per agent would miss it.
    return decisions, env.team_return


def main(seed: int = 0) -> float:
    """Train for about 20 s; returns the share of right answers in the last iterations."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    env = make_env()
    env.reset(seed=seed)  # each later `reset()` plays the next problem of this series
    space = env.observation_space("agent_0")["observation"]
    network = nn.Sequential(nn.Linear(space.shape[0], 64), nn.ReLU(), nn.Linear(64, env.action_space("agent_0").n))
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)

    success = []
    for _ in range(ITERATIONS):
        decisions: list[Decision] = []
        credit: list[float] = []
        team_returns = []
        for _ in range(EPISODES):
            taken, team_return = play(env, network)
            decisions += taken
            credit += [team_return] * len(taken)  # every agent's decisions get the team's return
            team_returns.append(team_return)
        seen, masks, actions, old_log_probs = map(torch.stack, zip(*decisions, strict=True))
        advantages = torch.tensor(credit) - torch.tensor(team_returns).mean()
        advantages = advantages / advantages.std().clamp_min(0.1)
        for _ in range(EPOCHS):
            policy = distribution(network, seen, masks)
            ratio = (policy.log_prob(actions) - old_log_probs).exp()
            surrogate = torch.min(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            optimizer.zero_grad()
            (-surrogate - ENTROPY * policy.entropy().mean()).backward()
            optimizer.step()
        # Without a price on tokens the team return of an episode is 1 for a right answer.
        success.append(sum(team_returns) / EPISODES)
    return sum(success[-5:]) / 5


if __name__ == "__main__":
    print(f"success {main(*map(int, sys.argv[1:])):.3f}")
