"""The RLlib adapter, against the batch kernel and in RLlib's own episodes. Ray needs an environment of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic import BatchDelegation, make_rules

pytest.importorskip("ray")

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from selfcest_env.adapters.rllib import SymbolicRLlib

TASKS: list[dict[str, Any]] = [
    {"task": "chain", "max_clones": 4, "total_tokens": 70},
    {"task": "noisy", "max_clones": 3, "token_cost": 0.01},
    {"task": "lookup", "max_depth": 1},
    {"task": "cells", "task_options": {"cells": 4, "coupling": "max"}},
    {"task": "deep", "task_options": {"items": (2, 4)}},
]


def sample(observations: dict[str, Any], rng: np.random.Generator) -> dict[str, int]:
    return {agent: int(rng.choice(np.flatnonzero(seen["action_mask"]))) for agent, seen in observations.items()}


@pytest.mark.parametrize("max_cycles", [None, 3])
@pytest.mark.parametrize("options", TASKS, ids=lambda options: options["task"])
def test_only_who_can_act_is_shown_and_all_who_acted_are_paid(options: dict[str, Any], max_cycles: int | None) -> None:
    env, rng = SymbolicRLlib({**options, "max_cycles": max_cycles}), np.random.default_rng(0)
    kernel = BatchDelegation(make_rules(**options), 1, max_cycles=max_cycles)
    kernel.reset(5)
    for episode in range(20):
        seen, infos = env.reset(seed=5 if episode == 0 else None)
        over, acted = False, set[int]()
        while not over:
            able = np.flatnonzero(kernel.can_act[0])
            assert [*seen] == [*infos] == [f"agent_{k}" for k in able]
            for k in able:
                agent = f"agent_{k}"
                assert env.get_observation_space(agent).contains(seen[agent])
                np.testing.assert_array_equal(seen[agent]["observations"], kernel.observations()[0, k])
                np.testing.assert_array_equal(seen[agent]["action_mask"], kernel.action_masks()[0, k])
            acted |= {*able.tolist()}
            chosen = sample(seen, rng)
            kernel.step(np.array([[chosen.get(agent, 0) for agent in env.possible_agents]]))
            seen, rewards, terminations, truncations, infos = env.step(chosen)
            over = bool(kernel.done[0])
            assert terminations == {"__all__": bool(kernel.state.terminated[0])}
            assert truncations == {"__all__": bool(kernel.state.truncated[0])}
            assert rewards == dict.fromkeys(seen, float(kernel.state.team_return[0]))
        assert [*seen] == [f"agent_{k}" for k in sorted(acted)]
        kernel.restart()


def test_rllib_books_the_team_reward_for_every_agent_that_acted() -> None:
    """RLlib's own episodes: as many rows as decisions, and the reward in everybody's last row."""
    env = SymbolicRLlib({"task_options": {"items": (2, 4), "window": 2, "modulus": 3}})
    rng, paid = np.random.default_rng(1), set()
    for seed in range(60):
        episode = MultiAgentEpisode(
            agent_to_module_mapping_fn=lambda agent, _: "clone",
            observation_space=env.observation_spaces,
            action_space=env.action_spaces,
        )
        seen, infos = env.reset(seed=seed)
        episode.add_env_reset(observations=seen, infos=infos)
        decisions = 0
        while not episode.is_done:
            assert set(episode.get_agents_to_act()) == set(seen)
            chosen = sample(seen, rng)
            decisions += len(chosen)
            seen, rewards, terminations, truncations, infos = env.step(chosen)
            episode.add_env_step(
                seen, chosen, rewards, infos, terminateds=terminations, truncateds=truncations, extra_model_outputs={}
            )
        paid.add(env.game.team_return)
        assert episode.is_terminated
        assert sum(len(single) for single in episode.agent_episodes.values()) == decisions
        for single in episode.agent_episodes.values():
            rewards = list(single.get_rewards())
            assert rewards == [0.0] * (len(single) - 1) + [env.game.team_return]
    assert paid == {0.0, 1.0}


def test_a_seed_starts_the_series_anew() -> None:
    env = SymbolicRLlib({"max_clones": 2})
    first, second, again = (env.reset(seed=seed)[0]["agent_0"]["observations"] for seed in (3, None, 3))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="population is 'dynamic'; expected to be left out"):
        SymbolicRLlib({"population": "dynamic"})
    with pytest.raises(ConfigError, match="expected"):
        SymbolicRLlib({"max_clones": None})
