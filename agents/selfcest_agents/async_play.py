"""Plays one episode with asyncio, for libraries that keep a conversation of their own for each agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from selfcest_env.errors import PolicyError
from selfcest_env.kernel import Kernel
from selfcest_env.record import Generation
from selfcest_env.types import ROOT, AgentId, Usage
from selfcest_env.views import Observation, observe

PlayTurn = Callable[[Observation, int], Awaitable[Generation]]
"""Generates a turn from an observation and its grant in tokens."""
OpenAgent = Callable[[AgentId], AbstractAsyncContextManager[PlayTurn]]
"""Opens the conversation of an agent. It stays open while the clones of the agent play."""


async def play_episode(kernel: Kernel, open_agent: OpenAgent) -> dict[tuple[AgentId, int], Generation]:
    """Play a game to its end. The clones of a call play at the same time.

    Args:
        kernel: the game, in which no turn has been played.
        open_agent: opens the conversation of the root, and that of each clone that plays. The root has no turn if its
            prompt is over its limit.

    Returns:
        The generation of each turn.

    Raises:
        PolicyError: a turn has no finite grant.
    """
    generations: dict[tuple[AgentId, int], Generation] = {}

    async def play_agent(agent_id: AgentId) -> None:
        async with open_agent(agent_id) as play_turn:
            while agent_id in kernel.ready():
                observation = observe(kernel, agent_id)
                grant = observation.max_new_tokens
                if grant is None:
                    raise PolicyError(f"{agent_id} has no max_new_tokens; set limits.turn_tokens to play with a model")
                generation = await play_turn(observation, grant)
                generated_tokens = len(generation.token_ids) or generation.charged_tokens
                generations[agent_id, observation.turn] = generation
                kernel.play(agent_id, generation.text, Usage(generated_tokens, generation.finish_reason))
                await _gather(play_agent(clone) for clone in kernel.ready() if clone.parent == agent_id)

    await play_agent(ROOT)
    return generations


async def _gather(plays: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all coroutines. The first error cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for play in plays:
                group.create_task(play)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
