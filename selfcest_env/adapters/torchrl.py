"""TorchRL: the batch kernel as a batched `EnvBase` with one group of agents, `"agents"`.

Needs the extra `selfcest[torchrl]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import install_hint

try:
    import torch
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
except ModuleNotFoundError as error:
    raise ImportError(f"this adapter needs TorchRL ({error}); run: {install_hint('torchrl')}") from error

from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.vectors import observation_size, state_size

GROUP = "agents"


class SymbolicTorchEnv(EnvBase):  # type: ignore[misc]  # TorchRL ships no types
    """Many symbolic games in TorchRL's multi-agent layout, with the whole state for a centralised critic.

    With n = num_envs and m = num_agents (`batch_size` is (n,)):

    | key | shape | |
    |---|---|---|
    | `("agents", "observation")` | (n, m, features) | observation of each agent |
    | `("agents", "action_mask")` | (n, m, actions) | for TorchRL's `ActionMask`; WAIT (0) for agents that cannot act |
    | `("agents", "can_act")` | (n, m) | whether the agent can act: a mask for losses |
    | `("agents", "action")` | (n, m) | one number per agent; an illegal one is played as WAIT |
    | `("agents", "reward")` | (n, m, 1) | the team reward for every agent, so their sum is m times the team return |
    | `"state"` | (n, state features) | the whole game, the right answer included |
    | `"done"`, `"terminated"`, `"truncated"` | (n, 1) | of the game; only `max_cycles` truncates |

    A game that is over does not change until it is reset, by itself (`"_reset"`) or with all games.

    Args:
        rules: task, limits and prices (`make_rules`).
        num_envs: number of games.
        max_cycles: joint steps of a game before truncation; `None` never truncates, and the limits end every game.
        device: device of the returned tensors; the kernel itself runs in NumPy.
    """

    def __init__(
        self,
        rules: SymbolicRules,
        num_envs: int,
        *,
        max_cycles: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.kernel = BatchDelegation(rules, num_envs, max_cycles=max_cycles)
        self.rules = rules
        super().__init__(device=torch.device(device), batch_size=torch.Size([num_envs]))
        self._next_seed: int | None = None
        agents = (num_envs, rules.num_agents)
        self.observation_spec = self._composite(
            {
                "observation": Bounded(0.0, 1.0, shape=(*agents, observation_size(rules)), dtype=torch.float32),
                "action_mask": Binary(shape=(*agents, rules.num_actions), dtype=torch.bool),
                # TorchRL cannot index a `Binary` spec that has no axis of its own.
                "can_act": Categorical(2, shape=agents, dtype=torch.bool),
            },
            state=Bounded(0.0, 1.0, shape=(num_envs, state_size(rules)), dtype=torch.float32),
        )
        self.action_spec = self._composite({"action": Categorical(rules.num_actions, shape=agents, dtype=torch.int64)})
        self.reward_spec = self._composite({"reward": Unbounded(shape=(*agents, 1), dtype=torch.float32)})
        ends = ("done", "terminated", "truncated")
        self.done_spec = self._composite({}, **{key: Binary(shape=(num_envs, 1), dtype=torch.bool) for key in ends})

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        reset_mask = None if tensordict is None else tensordict.get("_reset", None)
        if reset_mask is None or reset_mask.all():
            self.kernel.reset(self._next_seed)
            self._next_seed = None
        else:
            self.kernel.restart(reset_mask.cpu().numpy().reshape(-1))
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        playing = ~self.kernel.done
        self.kernel.step(tensordict[GROUP, "action"].cpu().numpy())
        reward = (self.kernel.state.team_return * playing).astype(np.float32)[:, None, None]
        return self._observe().set((GROUP, "reward"), self._tensor(reward.repeat(self.rules.num_agents, axis=1)))

    def _set_seed(self, seed: int | None) -> None:
        """Let the next reset of all games start the first episodes of this seed."""
        self._next_seed = seed

    def _observe(self) -> TensorDict:
        kernel = self.kernel
        agents = {
            "observation": kernel.observations(),
            "action_mask": kernel.action_masks(),
            "can_act": kernel.can_act.copy(),
        }
        ends = {"done": kernel.done, "terminated": kernel.state.terminated, "truncated": kernel.state.truncated}
        return TensorDict(
            {
                GROUP: TensorDict(
                    {key: self._tensor(value) for key, value in agents.items()},
                    batch_size=(kernel.num_envs, kernel.num_agents),
                    device=self.device,
                ),
                "state": self._tensor(kernel.states()),
                **{key: self._tensor(value[:, None].copy()) for key, value in ends.items()},
            },
            batch_size=self.batch_size,
            device=self.device,
        )

    def _tensor(self, values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _composite(self, agents: dict[str, Any], **per_game: Any) -> Composite:
        """Return the specs of the group of agents and those of the games."""
        group = {GROUP: Composite(agents, shape=(*self.batch_size, self.rules.num_agents))} if agents else {}
        return Composite(**group, **per_game, shape=self.batch_size).to(self.device)
