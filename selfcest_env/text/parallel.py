"""The text game as a PettingZoo environment on the kernel; import it from `delegation_v0`, which documents it."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pettingzoo  # type: ignore[import-untyped, unused-ignore]
from gymnasium import spaces

from selfcest_env.checks import check_agent, check_seed, check_snapshot, check_text
from selfcest_env.draw import Image, draw
from selfcest_env.errors import ConfigError, GameError, TaskError, is_integer_within
from selfcest_env.plugin import check_choice
from selfcest_env.protocol import PromptFormat
from selfcest_env.record import EpisodeRecord
from selfcest_env.render import nodes_of_kernel, render_kernel
from selfcest_env.reward import Reward
from selfcest_env.roster import Population
from selfcest_env.rules import Rules
from selfcest_env.screen import Screen
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import TaskSource
from selfcest_env.text.game import Order, RewardFunction, TextGame, exact_match, score_record
from selfcest_env.text.markers import PlainTextProtocol
from selfcest_env.text.setup import (
    check_callable,
    check_task,
    get_task_option,
    resolve_counter,
    resolve_protocol,
    resolve_reward,
    resolve_source,
)
from selfcest_env.text.spaces import FreeText, bound_transcript, count_task_chars, format_transcript
from selfcest_env.text.vectors import (
    OBSERVATION_FEATURES,
    Vector,
    agent_info,
    observation_vector,
    state_size,
    state_vector,
)
from selfcest_env.types import AgentId, Limits, Message, TokenCounter


@dataclass(frozen=True)
class DelegationSnapshot:
    """The changeable state of an environment. It can be pickled, and set on any environment with the same arguments."""

    agents: tuple[str, ...]
    game: TextGame | None
    record: EpisodeRecord | None
    truncated: bool
    base_seed: int | None
    num_episodes: int
    streams: Mapping[str, Any]


class DelegationEnv(pettingzoo.ParallelEnv):  # type: ignore[misc, name-defined, unused-ignore]
    """The text game as a PettingZoo `ParallelEnv`; see `delegation_v0`.

    Args:
        task_source: an object with `draw(rng) -> Task`, or the name of a source in `selfcest_env.tasks`.
        source_options: options of a source given by name.
        limits: limits on tokens and on the tree; `max_clones` must be finite.
        population: "dynamic", "persistent" or "fixed".
        reward: the name of a preset of `make_reward`, a `Reward`, or a function from a finished record to named terms,
            whose sum is the team reward.
        protocol: format of calls and answers: "hermes", "terse", "package.module:Class" or a `PromptFormat`.
        counter: counter of tokens: "words", "bytes" or a `TokenCounter`.
        max_cycles: joint steps before truncation; `None` never truncates, and the limits end every episode.
        max_chars: most characters of one action.
        max_task_chars: most characters of a task's prompt and documents, with some overhead per document.
        order: for tests, the order in which the ready agents of a joint step play. The record does not depend on it.
        render_mode: "human", "ansi", "rgb_array" or `None`.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "delegation_v0",
        "render_modes": ["human", "ansi", "rgb_array"],
        "render_fps": 2,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        task_source: TaskSource | str = "arithmetic",
        *,
        source_options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        population: str = "dynamic",
        reward: Reward | RewardFunction | str = exact_match,
        protocol: PromptFormat | str = "hermes",
        counter: TokenCounter | str = "words",
        max_cycles: int | None = None,
        max_chars: int = 4096,
        max_task_chars: int = 65536,
        order: Order | None = None,
        render_mode: str | None = None,
    ) -> None:
        limits = Limits() if limits is None else limits
        if not isinstance(limits, Limits):
            raise ConfigError(f"limits is {limits!r}; expected a selfcest_env.types.Limits, as in Limits(max_clones=4)")
        if limits.max_clones is None:
            raise ConfigError(
                "limits.max_clones is None (unlimited), but possible_agents must be a finite list; "
                "set max_clones in limits to a whole number"
            )
        for name, value in (("max_cycles", max_cycles), ("max_chars", max_chars), ("max_task_chars", max_task_chars)):
            unlimited = value is None and name == "max_cycles"
            if not unlimited and not is_integer_within(value, 1, sys.maxsize):
                raise ConfigError(f"{name} is {value!r}; expected a whole number >= 1")
        self.render_mode = check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.population = Population(check_choice("population", population, tuple(Population)))
        self.limits = limits
        self.reward = resolve_reward(reward)
        self.order = check_callable("order", order)
        self.max_cycles = max_cycles
        self.max_chars = max_chars
        self.max_task_chars = max_task_chars
        # Observations are plain text, so no task and no agent may write a marker of a chat template.
        protocol = PlainTextProtocol(resolve_protocol(protocol))
        self.rules = Rules(limits, protocol, resolve_counter(counter))
        self.task_source = resolve_source(task_source, source_options)
        self.possible_agents = [f"agent_{k}" for k in range(1 + limits.max_clones)]
        self._seats = {agent: k for k, agent in enumerate(self.possible_agents)}
        self._max_text = bound_transcript(limits, self.rules.protocol, max_chars, max_task_chars)
        self.observation_spaces = {agent: self._make_observation_space() for agent in self.possible_agents}
        self.action_spaces = {agent: FreeText(max_chars) for agent in self.possible_agents}
        self.state_space = spaces.Box(0.0, 1.0, (state_size(len(self.possible_agents)),), np.float32)
        self.agents: list[str] = []
        self._screen = Screen()
        self._game: TextGame | None = None
        self._transcripts: dict[AgentId, tuple[tuple[Message, ...], str]] = {}
        self._record: EpisodeRecord | None = None
        self._truncated = False
        self._base_seed: int | None = None
        self._num_episodes = 0

    def observation_space(self, agent: str) -> spaces.Dict:
        check_agent(agent, self.possible_agents)
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> FreeText:
        check_agent(agent, self.possible_agents)
        return self.action_spaces[agent]

    def _check_action(self, agent: str, action: object) -> None:
        """Raise `GameError` for an action that `step` would reject; the AEC environment calls it."""
        check_text(agent, action)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """Start an episode: the first one of a seed, or without a seed the next one.

        Args:
            seed: equal seeds give equal series of tasks. It also seeds the spaces of all possible agents.
            options: `{"task": Task}` plays this task instead of drawing one.
        """
        check_seed(seed)
        task = get_task_option(options)
        if seed is not None or self._base_seed is None:
            self._seed(secrets.randbits(63) if seed is None else seed)
        episode_id = f"e{self._base_seed}.{self._num_episodes}"
        episode_seed = stream_seed("delegation_v0", self._base_seed or 0, self._num_episodes)
        if task is None:
            task = self.task_source.draw(np.random.default_rng(stream_seed("task", episode_seed)))
            check_task(task, f"task_source {type(self.task_source).__name__} drew")
        if count_task_chars(task) > self.max_task_chars:
            raise TaskError(
                f"task {task.task_id} from {task.source} takes up to {count_task_chars(task)} characters, above "
                f"max_task_chars = {self.max_task_chars}; raise max_task_chars"
            )
        self._game = TextGame(
            task,
            self.rules,
            tuple(self.possible_agents),
            episode_id=episode_id,
            seed=episode_seed,
            max_chars=self.max_chars,
        )
        self._num_episodes += 1
        self._transcripts.clear()
        self._record = None
        self._truncated = False
        self.agents = self.possible_agents[: None if self.population is Population.FIXED else 1]
        self._show()
        return self._observations(self.agents), self._infos(self.agents)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[
        dict[str, dict[str, Any]], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        """Play one joint step; after the end of the episode it returns empty dicts.

        Args:
            actions: a text, or `None` for none, by agent. Actions of possible agents that are not in `agents` are
                ignored.

        Raises:
            GameError: there is no episode, `actions` is no mapping, a name is unknown, or an action is no text. The
                game has not changed.
        """
        game = self._current_game()
        if not self.agents:
            return {}, {}, {}, {}, {}
        born = game.joint_step(actions, self.order)
        if game.kernel.done:
            self._record = score_record(game.record(), self.reward)
        terminated = self._record is not None
        self._truncated = not terminated and self.max_cycles is not None and game.cycle >= self.max_cycles
        # Agents with a result of this step: those that were live, and clones born in it.
        agents = list(self.agents)
        if not terminated and not self._truncated and self.population is not Population.FIXED:
            # A clone may have ended at birth, because not one token could be granted.
            agents += [
                agent for agent in born if self.population is Population.PERSISTENT or not self._has_ended(agent)
            ]
        is_dynamic = self.population is Population.DYNAMIC
        terminations = {agent: terminated or (is_dynamic and self._has_ended(agent)) for agent in agents}
        truncations = {agent: self._truncated and not terminations[agent] for agent in agents}
        rewards = dict.fromkeys(agents, 0.0 if self._record is None else self._record.team_return)
        self.agents = [agent for agent in agents if not terminations[agent] and not truncations[agent]]
        self._show()
        return self._observations(agents), rewards, terminations, truncations, self._infos(agents)

    def state(self) -> Vector:
        """Return the whole tree for centralised critics.

        It holds `vectors.GLOBAL_FEATURES`, then `vectors.AGENT_FEATURES` of every possible agent.
        """
        game = self._current_game()
        return state_vector(game.kernel, game.roster, game.cycle, self.max_cycles)

    def render(self) -> str | Image | None:
        """Return the tree of agents: a text in "ansi", an image in "rgb_array". "human" shows it after every step."""
        game = self._current_game()
        if self.render_mode == "rgb_array":
            return draw(nodes_of_kernel(game.kernel), game.roster.name_of)
        return render_kernel(game.kernel, game.roster.name_of) if self.render_mode == "ansi" else None

    def _show(self) -> None:
        if self.render_mode == "human":
            game = self._current_game()
            self._screen.show(
                lambda: draw(nodes_of_kernel(game.kernel), game.roster.name_of),
                lambda chips: render_kernel(game.kernel, game.roster.name_of, chips=chips),
            )

    def close(self) -> None:
        """Close the window of the render mode "human", if one is open."""
        self._screen.close()

    def record(self) -> EpisodeRecord:
        """Return the scored record of the episode. Raises `GameError` before its end and after a truncation."""
        if self._record is not None:
            return self._record
        if self._truncated:
            raise GameError(
                f"the episode was truncated by max_cycles = {self.max_cycles}: it never ended, so no record"
            )
        raise GameError("the episode has not ended; play until agents is empty")

    @property
    def team_return(self) -> float:
        """The team reward of the finished episode, even if no agent was left to receive it."""
        return self.record().team_return

    def get_snapshot(self) -> DelegationSnapshot:
        """Return a copy of the exact state of the environment, with the random generators of its spaces."""
        return DelegationSnapshot(
            tuple(self.agents),
            None if self._game is None else self._game.copy(),
            self._record,
            self._truncated,
            self._base_seed,
            self._num_episodes,
            {key: space.np_random.bit_generator.state for key, space in self._streams()},
        )

    def set_snapshot(self, snapshot: DelegationSnapshot) -> None:
        """Return to a snapshot of this environment or of one with the same arguments, as often as you like."""
        check_snapshot(snapshot, DelegationSnapshot)
        if snapshot.streams.keys() != dict(self._streams()).keys():
            raise ConfigError(
                "the snapshot is of an environment with other possible agents; expected one with the same arguments, "
                f"with {len(self.possible_agents)} possible agents"
            )
        self.agents = list(snapshot.agents)
        self._game = None if snapshot.game is None else snapshot.game.copy()
        self._record = snapshot.record
        self._truncated = snapshot.truncated
        self._base_seed = snapshot.base_seed
        self._num_episodes = snapshot.num_episodes
        for key, space in self._streams():
            space.np_random.bit_generator.state = snapshot.streams[key]

    def __str__(self) -> str:
        return str(self.metadata["name"])

    def _current_game(self) -> TextGame:
        if self._game is None:
            raise GameError("no episode has been started; call reset() first")
        return self._game

    def _seed(self, seed: int | np.integer[Any]) -> None:
        self._base_seed = int(seed)
        self._num_episodes = 0
        for i, agent in enumerate(self.possible_agents):
            self.action_spaces[agent].seed(int(seed) + i)
            self.observation_spaces[agent].seed(int(seed) + i)

    def _streams(self) -> list[tuple[str, spaces.Space[Any]]]:
        named: list[tuple[str, spaces.Space[Any]]] = [("state", self.state_space)]
        for agent in self.possible_agents:
            named.append((f"{agent} action", self.action_spaces[agent]))
            for key, space in self.observation_spaces[agent].spaces.items():
                named.append((f"{agent} {key}", space))
        return named

    def _has_ended(self, agent: str) -> bool:
        game = self._current_game()
        agent_id = game.roster.id_at(self._seats[agent])
        return agent_id is not None and game.kernel.agents[agent_id].status.is_terminal

    def _make_observation_space(self) -> spaces.Dict:
        box = spaces.Box(0.0, 1.0, (len(OBSERVATION_FEATURES),), np.float32)
        return spaces.Dict({"observation": box, "text": FreeText(self._max_text)})

    def _observations(self, agents: list[str]) -> dict[str, dict[str, Any]]:
        game = self._current_game()
        observations: dict[str, dict[str, Any]] = {}
        for agent in agents:
            agent_id = game.roster.id_at(self._seats[agent])
            text = "" if agent_id is None else self._transcript(agent_id)
            assert len(text) <= self._max_text, f"the transcript of {agent} is longer than the limits allow"
            observations[agent] = {"observation": observation_vector(game.kernel, agent_id), "text": text}
        return observations

    def _transcript(self, agent_id: AgentId) -> str:
        """Return the transcript of an agent, in which only the messages since the last call are formatted."""
        messages = self._current_game().kernel.agents[agent_id].messages
        known, text = self._transcripts.get(agent_id, ((), ""))
        if messages[: len(known)] != known:  # a snapshot of an earlier moment was set
            known = ()
            text = ""
        added = messages[len(known) :]
        if added:
            text += ("\n" if known else "") + format_transcript(added)
        self._transcripts[agent_id] = messages, text
        return text

    def _infos(self, agents: list[str]) -> dict[str, dict[str, Any]]:
        game = self._current_game()
        return {agent: agent_info(game.kernel, game.roster, game.roster.id_at(self._seats[agent])) for agent in agents}
