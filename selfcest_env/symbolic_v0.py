"""
# Symbolic delegation

The game of `delegation_v0` in numbers. A root agent holds a short segment of symbols and a hard budget of tokens. In
each of its turns it may answer, or hand parts of its segment to clones, which work in parallel and have the same
choices. Their replies become its new segment. The team has one reward. Small networks learn the game in seconds.

| Creation           | `make("parallel", "selfcest/symbolic-v0")` or `symbolic_v0.parallel_env()`                |
|--------------------|-------------------------------------------------------------------------------------------|
| Actions            | Discrete                                                                                  |
| Parallel API       | Yes; the AEC API is derived from it                                                       |
| Manual Control     | No                                                                                        |
| Agents             | `agents = ['agent_0', 'agent_1', ...]`; `agent_0` is the root, `agent_k` the k-th clone   |
| Agents             | 1 + `max_clones` (9 by default); the population `fixed` always contains all of them       |
| Action Shape       | ()                                                                                        |
| Action Values      | `Discrete(8)` in `chain`; the page of each task has its numbers                           |
| Observation Shape  | `Dict(observation=Box(87,), action_mask=Box(8,))` in `chain`                              |
| Observation Values | [0, 1]                                                                                    |
| State Shape        | (881,) in `chain`                                                                         |
| State Values       | [0, 1]                                                                                    |

The game is a finite Dec-POMDP. In a joint step every agent whose turn is open plays it. All other agents, for example
parents that wait for their clones, **stay in `agents`** and can only WAIT. Clones that are born in a step act from the
next step on. The environment is a batch of one on the batch kernel, `selfcest_env.symbolic.BatchDelegation`. Every
random number is a hash of (seed, episode, path in the tree, turn), so equal seeds give equal episodes.

There are five tasks; `docs/symbolic_rules.md` explains each.

| `task`   | The root holds           | Calls                   | The question                                       |
|----------|--------------------------|-------------------------|----------------------------------------------------|
| `chain`  | numbers to add, modulo m | SPLIT into 2 or 4 parts | only short segments can be answered: how to split? |
| `lookup` | a key                    | ASK for the fact of it  | serial delegation: ask again, or answer?           |
| `noisy`  | numbers to add, modulo m | SPLIT into 2 or 4 parts | long segments cause errors: accuracy against cost  |
| `cells`  | pairs to add, modulo m   | SPLIT into pairs        | one grade for many clones: which clone earned it?  |
| `deep`   | numbers to add, modulo m | SPLIT into 2 parts      | agents see two symbols: the whole tree must work   |

### Observation Space

`observation` is local to the agent. It is all zeros for agents that cannot act.

| Index            | Name           | Meaning                                                             |
|------------------|----------------|---------------------------------------------------------------------|
| 0                | can_act        | its turn is open, so its action in this step counts                 |
| 1                | depth          | its depth, divided by `max_depth`; 0 for the root                   |
| 2                | turns          | turns played, divided by `max_turns`                                |
| 3                | tokens_left    | tokens left, divided by `total_tokens`                              |
| 4                | generated_left | generated tokens left, divided by `generated_tokens`                |
| 5                | clones_left    | clones that it may still start, divided by `max_clones`             |
| 6                | length         | length of its segment, divided by the longest possible one          |
| 7 + S * p + v    | place_p_is_v   | place p of its segment holds symbol v of S                          |

An amount left is 1 without a limit. A place beyond the end of the segment, and the place of a missing reply, are 0 for
every symbol. `cells` and `deep` show only the first two places of a segment.
`selfcest_env.symbolic.vectors.observation_names(env.rules)` names every index.

### Legal Actions Mask

In `observation_mode="dict"` observations are a `Dict` of `observation` and `action_mask` (int8, one entry per action).
In "flat" they are only the `Box`, and the mask is `infos[agent]["action_mask"]`. An agent that can act may answer or
call, as its segment and budget allow. All other agents can only WAIT. Illegal actions never raise: they are played as
WAIT and counted in `infos[agent]["illegal"]` (but `env()` asserts that an action is in its space, as PettingZoo does).
WAIT is also illegal for an agent that has another legal action. An illegal action costs a turn and one prompt token,
the notice of the fault. It ends the agent if its turns or tokens are used up.

### Action Space

| Action        | Name     | Meaning                                                                           |
|---------------|----------|-----------------------------------------------------------------------------------|
| 0             | WAIT     | no action                                                                         |
| 1 + v         | ANSWER v | reply v and end; the root's reply is the answer of the episode                    |
| the rest      | calls    | SPLIT or ASK, depending on the task                                               |

A missing action, or `None`, is WAIT. 1.0 and `numpy.array([1])` are read as 1, and an action that is no whole number
raises. Actions of possible agents that are not in `agents` are ignored. An unknown name raises, and so do actions that
are no mapping.

### Rewards

| Event                     | Reward of every live agent                                                            |
|---------------------------|---------------------------------------------------------------------------------------|
| any step before the end   | 0                                                                                     |
| the root ends             | 1 for the right answer, else 0, minus `token_cost` times the tokens of the whole tree |
| the root ends in `cells`  | the joint score of the replies, from 0 to 1, minus the same cost                      |
| truncated by `max_cycles` | 0                                                                                     |

The sum over agents is the team reward times the number of live agents. In the population `dynamic` clones have left
when the reward arrives, so learn from `env.unwrapped.team_return`, not from sums per agent.

### Termination and truncation

An episode terminates when the root ends: it has answered, or its turns or tokens are used up. Budgets are part of the
game, so running out of them is *termination*. Only `max_cycles` truncates.

| Population        | In `agents`                                                     |
|-------------------|-----------------------------------------------------------------|
| `fixed` (default) | all possible agents; unborn and ended ones can only wait        |
| `persistent`      | from birth until the episode ends                               |
| `dynamic`         | from birth until the agent itself ends                          |

### Infos

Whole numbers under the same keys for every agent and step: `can_act` (use it as loss mask), `depth`, `parent` (k of
`agent_k`, -1 for none), `tokens_left` (-1 for unlimited), `status` (index in `selfcest_env.types.Status`, -1 unborn),
`illegal`; in "flat" also `action_mask`.

### Arguments

* `task`: "chain", "lookup", "noisy", "cells", "deep", `package.module:Class` or a `SymbolicTask`.
* `task_options`: options of a task given by name.
* `max_clones`: clones of one episode, at all depths together; it must be finite.
* `max_depth`: 0 switches delegation off, 1 lets the root delegate, 2 its clones too; by default 2, in `lookup` and
  `cells` 1.
* `max_turns`: turns of one agent.
* `total_tokens`: tree-wide limit on prompt and generated tokens of all agents; `None` is unlimited.
* `generated_tokens`: tree-wide limit on generated tokens; `None` is unlimited.
* `token_cost`: cost in team reward per token of the whole tree.
* `max_cycles`: joint steps before truncation; `None` never truncates, and the limits end every game.
* `population`: "fixed", "persistent" or "dynamic".
* `observation_mode`: "dict" or "flat".
* `render_mode`: "human" (a window, or printed text, after every step), "ansi", "rgb_array" or `None`.

### Usage

AEC:

```python
from selfcest_env import symbolic_v0

env = symbolic_v0.env(task="chain")
env.reset(seed=42)
for agent in env.agent_iter():
    observation, reward, termination, truncation, info = env.last()
    done = termination or truncation
    env.step(None if done else env.action_space(agent).sample(observation["action_mask"]))
print(env.unwrapped.team_return)
```

Parallel:

```python
env = symbolic_v0.parallel_env(task="chain", render_mode="ansi")
observations, infos = env.reset(seed=42)
while env.agents:
    actions = {agent: env.action_space(agent).sample(observations[agent]["action_mask"]) for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(actions)
print(env.team_return, env.render(), sep="\\n")
```

Named games with frozen rules, `selfcest/chain-8m5-v1` and others, are in the same registries (`docs/benchmark.md`). In
Gymnasium, `selfcest/SymbolicSerial-v0` plays the same game with one agent's action per step
(`selfcest_env.symbolic.serial`).

### Version History

* v0: Initial release
"""

from __future__ import annotations

from typing import Any

import gymnasium
import pettingzoo  # type: ignore[import-untyped, unused-ignore]
from pettingzoo.utils import wrappers  # type: ignore[import-untyped, unused-ignore]

from selfcest_env.aec import DelegationAEC
from selfcest_env.symbolic.parallel import SymbolicEnv, SymbolicSnapshot
from selfcest_env.symbolic.scenarios import SCENARIOS

__all__ = ["SymbolicSnapshot", "env", "parallel_env", "raw_env"]

parallel_env = SymbolicEnv


def raw_env(*args: Any, **kwargs: Any) -> Any:
    """Return the game as an AEC environment, derived from `parallel_env`, without PettingZoo's guards."""
    return DelegationAEC(parallel_env(*args, **kwargs))


def env(*args: Any, **kwargs: Any) -> Any:
    """Return `raw_env` with PettingZoo's guards: actions must lie in their space, and calls must come in order.

    An action outside of its space, also `None` of a live agent, raises the guard's `AssertionError`. `parallel_env`
    takes `None` for WAIT.
    """
    return wrappers.OrderEnforcingWrapper(wrappers.AssertOutOfBoundsWrapper(raw_env(*args, **kwargs)))


def _register() -> None:
    """Register the game and its scenarios with Gymnasium, and with PettingZoo 1.27 or later."""
    games = {"symbolic-v0": {}, **{name: scenario.env_kwargs for name, scenario in SCENARIOS.items()}}
    for name, arguments in games.items():
        register = getattr(pettingzoo, "register", None)
        if register is not None:
            for interface, constructor in (("aec", "env"), ("parallel", "parallel_env")):
                entry_point = f"selfcest_env.symbolic_v0:{constructor}"
                register(interface, f"selfcest/{name}", entry_point=entry_point, kwargs=arguments)
        gymnasium.register(
            f"selfcest/{name}" if arguments else "selfcest/SymbolicSerial-v0",
            entry_point="selfcest_env.symbolic.serial:SymbolicSerialEnv",
            vector_entry_point="selfcest_env.symbolic.serial:SymbolicSerialVectorEnv",
            reward_threshold=SCENARIOS[name].threshold if arguments else None,
            kwargs=arguments,
        )


_register()
