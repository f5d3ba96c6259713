"""The environment of verifiers: the root and every clone are agents, and each turn has the grant of the ledger."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from selfcest_agents.async_play import PlayTurn, play_episode
from selfcest_agents.openai_engine import read_generation
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError, RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord, Generation, build_record, cost_measures, from_json, to_json
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.structure import structure
from selfcest_env.text.markers import Markers, PlainTextProtocol
from selfcest_env.text.protocols import make_protocol
from selfcest_env.text.setup import resolve_counter
from selfcest_env.types import ROOT, AgentId, FinishReason, Limits, Message, MessageRole
from selfcest_env.views import Observation
from selfcest_verifiers.renderer import IMPORT_PATH, join_parts
from selfcest_verifiers.taskset import DelegationTask

RECORD = "selfcest_record"  # in `trace.info` of the root: the episode's record as JSON values
AGENT_ID = "selfcest_agent_id"  # in `trace.info` of every agent
LOCAL = {"type": "subprocess"}  # no program of the agents runs anywhere, so nothing needs a sandbox


class DelegationEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """Options of the environment.

    Attributes:
        root, clone: the two roles. Both play the run's model unless they name another one.
        limits: fields of `selfcest_env.types.Limits`.
        reward: preset of `selfcest_env.reward`.
        protocol: prompt format, a registered name or `package.module:Class`.
        counter: prices prompts for a chat server: `words`, `bytes`, or a folder or hub id with a tokenizer. Training
            prices them with the renderer.
        max_concurrent_agents: bound of the agents of one episode that generate at the same time; `None`: none. The
            default of verifiers is 1, with which the clones of a call would play one after the other.
    """

    root: vf.AgentConfig = vf.AgentConfig(runtime=LOCAL)
    clone: vf.AgentConfig = vf.AgentConfig(runtime=LOCAL)
    limits: dict[str, int | None] = Field(default_factory=dict)
    reward: str = "correct"
    protocol: str = "hermes"
    counter: str = "bytes"
    max_concurrent_agents: int | None = Field(None, ge=1)


class DelegationEnv(vf.Env[DelegationEnvConfig]):  # type: ignore[misc]
    """Plays one episode of the game for each task. A trace is one agent's context, and has the reward of the team."""

    def __init__(self, config: DelegationEnvConfig) -> None:
        super().__init__(config)
        self._limits = structure(config.limits, Limits, place="env.limits", error=ConfigError)
        self._protocol = make_protocol(config.protocol)
        self._reward = make_reward(config.reward)
        self._rules: dict[str | None, Rules] = {}

    async def run(self, task: DelegationTask, agents: vf.Agents) -> None:
        client = agents.root.ctx.client
        model = agents.root.ctx.model
        tokenizer = None
        if client.type == "train":
            if getattr(client.renderer, "import_path", None) != IMPORT_PATH:
                raise ConfigError(
                    f"the renderer of the training client is {client.renderer!r}; set name to 'custom' and "
                    f"import_path to '{IMPORT_PATH}', because the ledger prices prompts with it"
                )
            tokenizer = client.renderer_model_name or model
        if tokenizer not in self._rules:
            self._rules[tokenizer] = await asyncio.to_thread(self._make_rules, tokenizer)
        episode = _TracedEpisode(Kernel(task.game, self._rules[tokenizer]), agents, task, trains=tokenizer is not None)
        generations = await play_episode(episode.kernel, episode.open_agent)
        root_trace = episode.traces[ROOT]
        record = build_record(episode.kernel, generations, episode_id=root_trace.id, seed=0)
        scored = await asyncio.to_thread(self._reward.score, record)
        root_trace.info[RECORD] = to_json(scored)

    async def finalize(self, task: DelegationTask, episode: vf.Episode) -> None:
        """Give every trace the terms of the team's reward, and the root's trace the costs of the tree as metrics."""
        record = read_record(episode)
        for trace in episode.traces:
            for name, value in (record.reward_terms or {}).items():
                trace.record_reward(name, value, record.weights.get(name, 1.0))
            if trace.info[AGENT_ID] == str(ROOT):
                trace.record_metrics({name: measure.of(record) for name, measure in cost_measures().items()})

    def _make_rules(self, tokenizer: str | None) -> Rules:
        """Return the rules for a tokenizer whose codec encodes the contexts; `None`: a chat server encodes them."""
        if tokenizer is not None:
            return Rules(self._limits, self._protocol, _load_codec(tokenizer))
        counter = self.config.counter
        prices = resolve_counter(counter) if counter in ("words", "bytes") else _load_codec(counter)
        return Rules(self._limits, PlainTextProtocol(self._protocol), prices)


def read_record(episode: vf.Episode) -> EpisodeRecord:
    """Return the record of an episode of `DelegationEnv`. Raises `RecordError` if it has none."""
    for trace in episode.traces:
        if RECORD in trace.info:
            return from_json(trace.info[RECORD])
    raise RecordError(
        f"episode {episode.id} has no record of selfcest; expected an episode that DelegationEnv finished"
    )


def _load_codec(tokenizer: str) -> Any:
    from renderers.base import load_tokenizer

    from selfcest_agents.chat import ChatCodec

    return ChatCodec(load_tokenizer(tokenizer))


class _TracedEpisode:
    """State of one episode.

    Attributes:
        kernel: the game.
        traces: the trace of each agent that has played.
    """

    def __init__(self, kernel: Kernel, agents: vf.Agents, task: DelegationTask, *, trains: bool) -> None:
        self.kernel = kernel
        self.traces: dict[AgentId, vf.Trace] = {}
        self._agents = agents
        # The first turn sends the opening messages, so the task itself must not open the conversation.
        self._task = task.with_data(prompt=None)
        self._trains = trains
        self._contexts: dict[AgentId, list[int]] = {}  # all ids of the agents that play, if they are known

    @asynccontextmanager
    async def open_agent(self, agent_id: AgentId) -> AsyncIterator[PlayTurn]:
        """Open the interaction of an agent."""
        seat = self._agents.root if agent_id == ROOT else self._agents.clone
        # The server reads these options at every request of the interaction. So a copy of its own gives the agent a
        # grant for each turn.
        sampling = seat.ctx.sampling.model_copy()
        seat.ctx = dataclasses.replace(seat.ctx, sampling=sampling)
        async with seat.interaction(self._task) as interaction:
            trace = interaction.trace
            self.traces[agent_id] = trace
            trace.info[AGENT_ID] = str(agent_id)

            async def play_turn(observation: Observation, grant: int) -> Generation:
                label = f"{agent_id}, turn {observation.turn}"
                sampling.max_tokens = grant
                segment = await interaction.turn(self._make_messages(observation))
                if segment.terminated:
                    cause = trace.last_error.message if trace.last_error else trace.stop_condition
                    raise InfrastructureError(f"{label} got no answer: {cause}")
                if self._trains:
                    generation = self._read_tokens(agent_id, label, trace, sampling.temperature)
                else:
                    generation = _read_text(label, grant, trace)
                if (len(generation.token_ids) or generation.charged_tokens or 0) > grant:
                    trace.agent.trainable = False  # the game drops this text, so it must not be trained
                return generation

            yield play_turn

    def _make_messages(self, observation: Observation) -> list[dict[str, Any]]:
        return [self._make_message(message) for message in observation.messages]

    def _make_message(self, message: Message) -> dict[str, Any]:
        role = MessageRole.USER if message.role is MessageRole.TOOL else message.role
        content: Any = message.content
        if self._trains and role is not MessageRole.ASSISTANT:
            content = join_parts(message)
        elif not self._trains:
            content = Markers().clean(message).content
        return {"role": str(role), "content": content}

    def _read_tokens(self, agent_id: AgentId, label: str, trace: vf.Trace, temperature: float | None) -> Generation:
        """Read the last turn of a trace with its ids.

        Raises:
            PolicyError: the context is not the earlier one with a block appended, or has another length than the
                ledger charged.
        """
        call = trace.calls[-1]
        node = trace.nodes[call.node]
        num_sampled = sum(node.mask)
        context: list[int] = []
        index: int | None = call.node
        while index is not None:
            context = trace.nodes[index].token_ids + context
            index = trace.nodes[index].parent
        sampled = context[len(context) - num_sampled :]
        prompt = context[: len(context) - num_sampled]
        earlier = self._contexts.get(agent_id, [])
        charged = self.kernel.agents[agent_id].context_tokens
        if trace.agent.trainable and (prompt[: len(earlier)] != earlier or len(prompt) != charged):
            raise PolicyError(
                f"{label}: the prompt has {len(prompt)} ids after {len(earlier)} earlier ones, the ledger charged "
                f"{charged}; the tokenizer of the training client must be that of the environment"
            )
        self._contexts[agent_id] = context
        return Generation(
            node.message.content or "",
            FinishReason.LENGTH if call.finish_reason == "length" else FinishReason.STOP,
            prompt_ids=tuple(prompt[len(earlier) :]),
            token_ids=tuple(sampled),
            behavior_logprobs=tuple(node.logprobs),
            temperature=1.0 if temperature is None else temperature,
        )


def _read_text(label: str, grant: int, trace: vf.Trace) -> Generation:
    """Read the last turn of a trace of a chat server, with the usage that it reports."""
    call = trace.calls[-1]
    usage = call.usage and {"completion_tokens": call.usage.completion_tokens}
    choice = {"message": {"content": trace.nodes[call.node].message.content}, "finish_reason": call.finish_reason}
    return read_generation(label, grant, {"choices": [choice], "usage": usage})
