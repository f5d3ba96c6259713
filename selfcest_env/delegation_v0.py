"""
# Delegation

A root agent gets a task and a hard budget of tokens. In each of its turns it may answer, or start clones of itself that
work in parallel, each in a fresh, short context. Their replies come back as one message. The team has one reward.

| Creation           | `make("parallel", "selfcest/delegation-v0")` or `delegation_v0.parallel_env()`             |
|--------------------|--------------------------------------------------------------------------------------------|
| Actions            | Text                                                                                       |
| Parallel API       | Yes; the AEC API is derived from it                                                        |
| Manual Control     | No                                                                                         |
| Agents             | `agents = ['agent_0', 'agent_1', ...]`; `agent_0` is the root, `agent_k` the k-th clone    |
| Agents             | 1 + `limits.max_clones` at most (17 by default); the number changes during an episode      |
| Action Shape       | text of at most `max_chars` characters                                                     |
| Action Values      | any Unicode                                                                                |
| Observation Shape  | `Dict(observation=Box(15,), text=FreeText)`                                                |
| Observation Values | [0, 1], and any Unicode                                                                    |
| State Shape        | (6 + 10 * number of possible agents,)                                                      |
| State Values       | [0, 1]                                                                                     |

The game is a finite Dec-POMDP. In a joint step every agent whose turn is open plays it. An agent that waits for its
clones **stays in `agents`**, and its action is ignored and costs nothing. Clones that are born in a step act from the
next step on. The game itself is deterministic: tasks are drawn from a stream keyed by (seed, episode). The order of
agents within a joint step does not matter, because every agent spends only its own account.

### Observation Space

`text` is the agent's transcript. Each message follows a line `<|system|>`, `<|user|>`, `<|assistant|>` or `<|tool|>`.
Texts of agents and tasks cannot contain such a line, or any marker of a chat template (`selfcest_env.text.markers`):
their `<|` is shown and priced as `‹|`. An agent's own calls stay as they are. No text is ever cut: the longest
transcript follows from the limits, `max_chars` and `max_task_chars`, and `reset` refuses a task that is longer than
`max_task_chars`. `observation` concerns only the agent's own account and turn:

| Index | Name           | Meaning                                                              |
|-------|----------------|----------------------------------------------------------------------|
| 0     | can_act        | its turn is open, so its text in this step counts                    |
| 1     | waiting        | it waits for its clones                                              |
| 2     | is_root        | it is the root                                                       |
| 3     | depth          | its depth, divided by `max_depth`                                    |
| 4     | turns          | turns played, divided by `max_turns`                                 |
| 5     | can_delegate   | a call could be granted now                                          |
| 6     | can_read       | a document could be read now                                         |
| 7     | is_last        | any action but an answer ends it                                     |
| 8     | tokens_left    | tokens left, divided by its own grant                                |
| 9     | grant          | its grant, divided by `total_tokens`                                 |
| 10    | generated_left | generated tokens left, divided by `generated_tokens`                 |
| 11    | clones_left    | clones that it may still start, divided by `max_clones`              |
| 12    | max_new_tokens | the grant of this turn, divided by `turn_tokens`                     |
| 13    | context        | tokens in its context, divided by `context_tokens`                   |
| 14    | faults         | its n turns and objectives without effect, as n / (n + 1)            |

An amount left is 1 without a limit. A count without a limit rises from 0 towards 1. There is no `action_mask`.

### Action Space

Any text. `HermesProtocol` reads `Answer: 42` as an answer and
`<tool_call>{"name": "spawn_clone", "arguments": {"objectives": ["..."], "shared_context": ["key"]}}</tool_call>` as a
call. Any other text, also an empty one or a missing action, is a malformed turn: it costs its tokens and a turn, and
one line tells the agent why. A text with more tokens than `max_new_tokens`, or with more than `max_chars` characters,
is charged the whole grant and dropped. No text raises an error (but `env()` asserts the length, as PettingZoo does).
These raise: an action that is neither a text nor `None`, an unknown name, and actions that are no mapping.
`action_space(agent).sample()` is printable ASCII, which is practically never a call, so random play does not delegate.

### Rewards

| Event                     | Reward of every live agent                            |
|---------------------------|-------------------------------------------------------|
| any step before the end   | 0                                                     |
| the root ends             | sum of the terms of `reward(record)`, the same to all |
| truncated by `max_cycles` | 0                                                     |

The default reward is 1 if the root's answer, stripped, is the task's answer or an alias, else 0. The sum over agents is
the team reward times the number of live agents. In the population `dynamic` clones have left when the reward arrives,
so learn from `env.unwrapped.team_return` or `record()`, not from sums per agent. A reward that raises or is not finite
stops the run.

### Termination and truncation

An episode terminates when the root ends: it has answered, or its turns or tokens are used up. Budgets are part of the
game, so running out of them is *termination*. Only `max_cycles` truncates. A truncated game has no record.

| Population          | In `agents`                                                    |
|---------------------|----------------------------------------------------------------|
| `dynamic` (default) | from birth until the agent itself ends                         |
| `persistent`        | from birth until the episode ends                              |
| `fixed`             | all possible agents; unborn and ended ones can only wait       |

### Infos

Whole numbers under the same keys for every agent and step: `can_act` (use it as loss mask), `depth`, `parent` (k of
`agent_k`, -1 for none), `tokens_left`, `status` (index in `selfcest_env.types.Status`, -1 unborn), `max_new_tokens` (-1
for unlimited, as in `tokens_left`), `faults`.

### Arguments

* `task_source`: an object with `draw(rng) -> Task`, or the name of a source in `selfcest_env.tasks`.
* `source_options`: options of a source given by name.
* `limits`: limits on tokens and on the tree; `max_clones` must be finite.
* `population`: "dynamic", "persistent" or "fixed".
* `reward`: a preset of `selfcest_env.reward.make_reward` by name, a `Reward`, or a callable from a finished
  `EpisodeRecord` to its named terms; their sum is the team reward.
* `protocol`: format of calls and answers: "hermes", "terse" or a `PromptFormat`.
* `counter`: counter of tokens: "words", "bytes" or a `TokenCounter`.
* `max_cycles`: joint steps before truncation; `None` never truncates, and the limits end every game.
* `max_chars`: most characters of one action.
* `max_task_chars`: most characters of a task's prompt and documents, with some overhead per document.
* `order`: for tests, the order in which the ready agents of a joint step play. The record does not depend on it.
* `render_mode`: "human" (a window, or printed text, after every step), "ansi", "rgb_array" or `None`.

### Usage

AEC:

```python
from selfcest_env import delegation_v0

env = delegation_v0.env(task_source="arithmetic")
env.reset(seed=42)
for agent in env.agent_iter():
    observation, reward, termination, truncation, info = env.last()
    env.step(None if termination or truncation else "Answer: 42")
print(env.unwrapped.record().cost)
```

Parallel:

```python
env = delegation_v0.parallel_env(task_source="arithmetic", render_mode="ansi")
observations, infos = env.reset(seed=42)
while env.agents:
    actions = {agent: "Answer: 42" for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(actions)
print(env.team_return, env.render(), sep="\\n")
```

### Version History

* v0: Initial release
"""

from __future__ import annotations

from typing import Any

import pettingzoo  # type: ignore[import-untyped, unused-ignore]
from pettingzoo.utils import wrappers  # type: ignore[import-untyped, unused-ignore]

from selfcest_env.aec import DelegationAEC
from selfcest_env.tasks import TaskSource
from selfcest_env.text.parallel import DelegationEnv, DelegationSnapshot

__all__ = ["DelegationSnapshot", "TaskSource", "env", "parallel_env", "raw_env"]

parallel_env = DelegationEnv


def raw_env(*args: Any, **kwargs: Any) -> Any:
    """Return the game as an AEC environment, derived from `parallel_env`. It accepts texts of any length."""
    return wrappers.OrderEnforcingWrapper(DelegationAEC(parallel_env(*args, **kwargs)))


def env(*args: Any, **kwargs: Any) -> Any:
    """Return `raw_env` with PettingZoo's guards: actions must lie in their space, and calls must come in order.

    An action outside of its space, also `None` of a live agent, raises the guard's `AssertionError`.
    """
    aec = DelegationAEC(parallel_env(*args, **kwargs))
    # `raw_env` has a guard of the order too, and every call and attribute would pass through both.
    return wrappers.OrderEnforcingWrapper(wrappers.AssertOutOfBoundsWrapper(aec))


def _register() -> None:
    """Register the game with PettingZoo 1.27 or later."""
    register = getattr(pettingzoo, "register", None)
    if register is not None:
        register("aec", "selfcest/delegation-v0", entry_point="selfcest_env.delegation_v0:env")
        register("parallel", "selfcest/delegation-v0", entry_point="selfcest_env.delegation_v0:parallel_env")


_register()
