"""The game as a task of Inspect, which plays it with any model under the ledger. docs/export.md has the commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from selfcest_agents.async_play import PlayTurn, play_episode
from selfcest_agents.openai_engine import read_generation
from selfcest_env.errors import ConfigError, RecordError, TaskError, install_hint
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord, Generation, build_record, cost_measures, from_json, to_json
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import structure, to_builtins
from selfcest_env.tasks import make_source
from selfcest_env.text.markers import Markers, PlainTextProtocol
from selfcest_env.text.protocols import make_protocol
from selfcest_env.text.setup import resolve_counter
from selfcest_env.types import ROOT, AgentId, Limits, Message, MessageRole, Task
from selfcest_env.views import Observation

try:
    # Inspect loads a file only if it finds the name `task` as a decorator in its text.
    from inspect_ai import Task as InspectTask
    from inspect_ai import task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageUser,
        GenerateConfig,
        ModelOutput,
        get_model,
    )
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.util import span
except ImportError as error:
    raise ConfigError(f"{error}; run: {install_hint('inspect')}") from error

GAME = "game"  # in the metadata of a sample: JSON values of the `Task`
RECORD = "selfcest_record"  # in the store of a sample: JSON values of the record
_FINISH_REASONS = {"stop": "stop", "max_tokens": "length", "model_length": "length"}


@task  # type: ignore[untyped-decorator]  # Inspect is not installed where types are checked
def delegation(
    source: str = "arithmetic",
    source_options: dict[str, Any] | None = None,
    num_tasks: int = 100,
    seed: int = 0,
    limits: dict[str, int | None] | None = None,
    reward: str = "correct",
    protocol: str = "hermes",
    counter: str = "bytes",
) -> InspectTask:
    """Return tasks of a source, played by `delegate` and scored by `team_return`.

    Args:
        source: task source, a registered name or `package.module:Class`.
        source_options: options of the source.
        num_tasks: number of tasks to draw.
        seed: random seed of the tasks.
        limits: fields of `selfcest_env.types.Limits`.
        reward: preset of `selfcest_env.reward`.
        protocol: prompt format, a registered name or `package.module:Class`.
        counter: prices of prompts, `words` or `bytes`.
    """
    tasks = make_source(source, **(source_options or {}))
    samples = []
    for index in range(num_tasks):
        game = tasks.draw(np.random.default_rng(stream_seed("inspect", seed, index)))
        samples.append(Sample(input=game.prompt, target=game.answer, metadata={GAME: to_builtins(game)}))
    return InspectTask(dataset=samples, solver=delegate(limits, protocol, counter), scorer=team_return(reward))


@solver  # type: ignore[untyped-decorator]
def delegate(limits: dict[str, int | None] | None = None, protocol: str = "hermes", counter: str = "bytes") -> Solver:
    """Play the game of a sample: a root and its clones, each turn with the grant of the ledger. See `delegation`."""
    bounds: Mapping[str, int | None] = limits or {}
    rules = Rules(
        structure(bounds, Limits, place="limits", error=ConfigError),
        PlainTextProtocol(make_protocol(protocol)),
        resolve_counter(counter),
    )

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        kernel = Kernel(structure(state.metadata[GAME], Task, place="metadata.game", error=TaskError), rules)

        @asynccontextmanager
        async def open_agent(agent_id: AgentId) -> AsyncIterator[PlayTurn]:
            async def play_turn(observation: Observation, grant: int) -> Generation:
                messages = [_make_message(message) for message in observation.messages]
                output = await get_model().generate(messages, config=GenerateConfig(max_tokens=grant))
                if agent_id == ROOT:
                    state.messages = [*messages, output.message]
                    state.output = output
                return _read_output(f"{agent_id}, turn {observation.turn}", grant, output)

            async with span(str(agent_id), type="agent"):
                yield play_turn

        generations = await play_episode(kernel, open_agent)
        record = build_record(kernel, generations, episode_id=f"{state.sample_id}.{state.epoch}", seed=0)
        state.store.set(RECORD, to_json(record))
        return state

    return solve


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]
def team_return(reward: str = "correct") -> Scorer:
    """Score a sample by the weighted sum of the reward's terms. The metadata has these and the costs of the tree."""
    judge = make_reward(reward)

    async def score(state: TaskState, target: Target) -> Score:
        record = judge.score(from_json(state.store.get(RECORD)))
        state.store.set(RECORD, to_json(record))
        costs = {name: measure.of(record) for name, measure in cost_measures().items()}
        return Score(value=record.team_return, answer=record.answer, metadata={**(record.reward_terms or {}), **costs})

    return score


def read_record(store: Mapping[str, Any]) -> EpisodeRecord:
    """Return the record in the store of a logged sample. It is scored if `team_return` was the scorer.

    Raises:
        RecordError: the store has none.
    """
    if RECORD not in store:
        raise RecordError(
            "the store of this sample has no record of selfcest; expected a sample that `delegate` played"
        )
    return from_json(store[RECORD])


def _make_message(message: Message) -> ChatMessage:
    text = Markers().clean(message).content
    if message.role is MessageRole.SYSTEM:
        return ChatMessageSystem(content=text)
    return (
        ChatMessageAssistant(content=text) if message.role is MessageRole.ASSISTANT else ChatMessageUser(content=text)
    )


def _read_output(label: str, grant: int, output: ModelOutput) -> Generation:
    """Read a turn. A missing or impossible usage is charged like that of any chat server."""
    usage = output.usage and {"completion_tokens": output.usage.output_tokens}
    choice = {
        "message": {"content": output.completion},
        "finish_reason": _FINISH_REASONS.get(output.stop_reason, output.stop_reason),
    }
    return read_generation(label, grant, {"choices": [choice], "usage": usage})
