"""TorchRL: PPO with a shared masked policy and a centralised critic that sees the whole state (MAPPO).

pip install -e ".[torchrl]"    # in a checkout
python docs/examples/marl/torchrl_ppo.py [SEED]
"""

import sys

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.modules import MLP, MaskedCategorical, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, ValueEstimators

from selfcest_env.adapters.torchrl import SymbolicTorchEnv
from selfcest_env.symbolic import make_rules

GAMES, STEPS, ROLLOUTS, EPOCHS, MINIBATCHES = 128, 16, 90, 4, 4


def make_policy(env: SymbolicTorchEnv) -> ProbabilisticActor:
    """One network for all agents; illegal actions have probability 0."""
    sizes = env.observation_spec["agents", "observation"].shape[-1], env.rules.num_actions
    network = MLP(*sizes, num_cells=[128, 128], activation_class=torch.nn.Tanh)
    logits = TensorDictModule(network, in_keys=[("agents", "observation")], out_keys=[("agents", "logits")])
    return ProbabilisticActor(
        logits,
        spec=env.full_action_spec,
        in_keys={"logits": ("agents", "logits"), "mask": ("agents", "action_mask")},
        out_keys=[("agents", "action")],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
        log_prob_key=("agents", "sample_log_prob"),
    )


def make_critic(env: SymbolicTorchEnv) -> TensorDictModule:
    """One value of the whole state, handed to every agent."""
    network = MLP(env.observation_spec["state"].shape[-1], 1, num_cells=[128, 128], activation_class=torch.nn.Tanh)
    agents = env.rules.num_agents

    def value(state: torch.Tensor) -> torch.Tensor:
        return network(state).unsqueeze(-2).expand(*state.shape[:-1], agents, 1)

    critic = TensorDictModule(value, in_keys=["state"], out_keys=[("agents", "state_value")])
    critic.network = network  # a function has no parameters that a module could find
    return critic


def make_loss(policy: ProbabilisticActor, critic: TensorDictModule) -> ClipPPOLoss:
    loss = ClipPPOLoss(policy, critic, entropy_coeff=0.01)
    loss.set_keys(
        action=("agents", "action"),
        sample_log_prob=("agents", "sample_log_prob"),
        value=("agents", "state_value"),
        reward=("agents", "reward"),
        done=("agents", "done"),
        terminated=("agents", "terminated"),
    )
    loss.make_value_estimator(ValueEstimators.GAE, gamma=1.0, lmbda=0.95)
    return loss


def normalise_advantages(batch: TensorDictBase) -> None:
    """Give the advantages of agents that can act mean 0 and standard deviation 1.

    `normalize_advantage=True` of the loss counts all possible agents, of which most are unborn, wait or have ended.
    These have no gradient, but they would move the mean and the scale of the advantages of agents that act.
    """
    advantages = batch["advantage"]
    acting = advantages[batch["agents", "can_act"]]
    batch["advantage"] = (advantages - acting.mean()) / acting.std().clamp_min(1e-6)


def main(seed: int = 0) -> float:
    """Train for about 30 s; returns the share of right answers in the last rollouts."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    # Facts behind three keys; only a clone that is given a key reads its fact, which may name the next key.
    game = {"hops": (1, 2), "keys": 3, "values": 3}
    env = SymbolicTorchEnv(make_rules("lookup", game, max_clones=2, max_depth=1), GAMES)
    env.set_seed(seed)
    policy, critic = make_policy(env), make_critic(env)
    loss = make_loss(policy, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 2e-3)
    frames = GAMES * STEPS
    success = []
    for batch in Collector(env, policy, frames_per_batch=frames, total_frames=frames * ROLLOUTS):
        shape = batch["next", "agents", "reward"].shape
        for key in ("done", "terminated"):  # of the game: of all its agents
            batch["next", "agents", key] = batch["next", key].unsqueeze(-2).expand(shape)
        with torch.no_grad():
            loss.value_estimator(batch)
            normalise_advantages(batch)
        rows = batch.reshape(-1)
        for _ in range(EPOCHS):
            for part in torch.randperm(frames).chunk(MINIBATCHES):
                losses = loss(rows[part])
                optimizer.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                optimizer.step()
        # Without a price on tokens the team return of an episode is 1 for a right answer.
        success.append(float(batch["next", "agents", "reward"][..., 0, 0][batch["next", "done"][..., 0]].mean()))
    return sum(success[-5:]) / 5


if __name__ == "__main__":
    print(f"success {main(*map(int, sys.argv[1:])):.3f}")
