"""One episode played by texts alone: joint steps of named agents over the kernel. No framework, no spaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from selfcest_env.checks import check_actions, check_text
from selfcest_env.errors import GameError, RewardError
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord, Generation, build_record
from selfcest_env.reward import Reward
from selfcest_env.roster import Roster
from selfcest_env.rules import Rules
from selfcest_env.types import Action, AgentId, Fault, Malformed, Task, Usage

RewardFunction = Callable[[EpisodeRecord], Mapping[str, float]]
Order = Callable[[Sequence[AgentId]], Sequence[AgentId]]


class TextGame:
    """A kernel, the names of its agents and what they wrote.

    Args:
        task, rules: what is played, and how.
        names: seats for the root and for every clone that may be born.
        episode_id, seed: what the record will say.
        max_chars: longer texts are dropped unread and charged as if they had used the whole grant.
    """

    def __init__(
        self, task: Task, rules: Rules, names: tuple[str, ...], *, episode_id: str, seed: int, max_chars: int
    ) -> None:
        self.episode_id, self.seed, self.max_chars = episode_id, seed, max_chars
        self.kernel = Kernel(task, rules)
        self.roster = Roster(names)
        self.roster.register(self.kernel.agents)
        self.cycle = 0
        self._generations: dict[tuple[AgentId, int], Generation] = {}

    def copy(self) -> TextGame:
        """An independent copy; what has happened is immutable and shared."""
        other = TextGame.__new__(TextGame)
        other.__dict__.update(self.__dict__)
        other.kernel, other.roster = self.kernel.fork(), self.roster.copy()
        other._generations = dict(self._generations)
        return other

    def joint_step(self, texts: Mapping[str, str | None], order: Order | None = None) -> list[str]:
        """Play one turn of every agent that is ready; returns the names of the clones born of it.

        Texts of agents that are not ready are ignored. A ready agent without a text says nothing, which costs a turn.
        Raises `GameError`, before anything is played, for an unknown name or an action that is no text.
        """
        check_actions(texts, self.roster.names)
        for name, text in texts.items():
            check_text(name, text)
        ready = self.kernel.ready()
        for agent_id in ready if order is None else _checked(order(ready), ready):
            self._turn(agent_id, texts.get(self.roster.name_of(agent_id)) or "")
        self.cycle += 1
        return self.roster.register(self.kernel.agents)

    def record(self) -> EpisodeRecord:
        """The episode, not yet scored. Raises `RecordError` while it is not over."""
        return build_record(self.kernel, self._generations, episode_id=self.episode_id, seed=self.seed)

    def _turn(self, agent_id: AgentId, text: str) -> None:
        state, rules = self.kernel.agents[agent_id], self.kernel.rules
        assert state.turn is not None
        grant = state.turn.max_new_tokens
        text = str(text)  # a plain one, where it is of a subclass
        too_long = len(text) > self.max_chars
        if too_long and grant is not None:
            used = grant + 1
        else:
            used = rules.counter.count_text(text)
        # The kernel charges what is over the grant its whole grant; nobody ever reads the text.
        dropped = too_long or (grant is not None and used > grant)
        text = "" if dropped else text
        action: Action = Malformed(Fault.OVER_GRANT) if dropped else rules.protocol.parse(text)
        self._generations[agent_id, len(state.turns)] = Generation(text)
        self.kernel.step(agent_id, action, Usage(used), text)


def scored(record: EpisodeRecord, reward: Reward | RewardFunction) -> EpisodeRecord:
    """The record with its reward terms. Raises `RewardError` rather than let a failure look like a reward.

    `reward` is what `make_reward` builds, or any function from the unscored record to named terms.
    """
    if isinstance(reward, Reward):
        return reward.score(record)
    name = getattr(reward, "__qualname__", type(reward).__qualname__)
    where = f"reward {name}, episode {record.episode_id}, task {record.task.task_id}"
    try:
        terms: object = reward(record)
    except Exception as error:
        raise RewardError(f"{where}: raised {type(error).__name__}: {error}") from error
    if not isinstance(terms, Mapping) or not terms:
        raise RewardError(f"{where}: returned {terms!r}; expected a mapping of at least one named term to its value")
    values: dict[str, float] = {}
    for term, value in terms.items():
        try:
            values[str(term)] = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise RewardError(f"{where}: term {term!r} is {value!r}; expected a finite number") from error
        if not math.isfinite(values[str(term)]):
            raise RewardError(f"{where}: term {term!r} is {value!r}; expected a finite number")
    return replace(record, reward_terms=values)


def exact_match(record: EpisodeRecord) -> Mapping[str, float]:
    """1 if the root's answer, stripped, is the task's answer or one of its aliases; else 0."""
    right = {text.strip() for text in (record.task.answer, *record.task.aliases)}
    return {"exact_match": float(record.answer is not None and record.answer.strip() in right)}


def _checked(order: Sequence[AgentId], ready: Sequence[AgentId]) -> Sequence[AgentId]:
    if sorted(order) != sorted(ready):
        raise GameError(f"order returned {list(map(str, order))}; expected a permutation of {list(map(str, ready))}")
    return order
