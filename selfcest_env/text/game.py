"""One episode in texts: joint steps of named agents on the kernel, without PettingZoo and without spaces."""

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
    """One episode on a kernel, with agents under their PettingZoo names.

    Args:
        task: the task.
        rules: rules of the episode.
        names: names of all possible agents, the root's first.
        episode_id, seed: id and seed of the record.
        max_chars: a longer text is dropped unread and charged the agent's whole grant.
    """

    def __init__(
        self, task: Task, rules: Rules, names: tuple[str, ...], *, episode_id: str, seed: int, max_chars: int
    ) -> None:
        self.episode_id = episode_id
        self.seed = seed
        self.max_chars = max_chars
        self.kernel = Kernel(task, rules)
        self.roster = Roster(names)
        self.roster.register(self.kernel.agents)
        self.cycle = 0
        self._generations: dict[tuple[AgentId, int], Generation] = {}

    def copy(self) -> TextGame:
        """Return an independent copy; both share the immutable past."""
        other = TextGame.__new__(TextGame)
        other.__dict__.update(self.__dict__)
        other.kernel = self.kernel.fork()
        other.roster = self.roster.copy()
        other._generations = dict(self._generations)
        return other

    def joint_step(self, texts: Mapping[str, str | None], order: Order | None = None) -> list[str]:
        """Play one turn of every ready agent.

        Args:
            texts: the texts by agent. Texts of agents that are not ready are ignored. A ready agent without a text
                plays the empty one, which costs a turn.
            order: for tests, the order in which the ready agents play.

        Returns:
            The names of the clones that were born.

        Raises:
            GameError: a name is unknown or an action is no text; the game has not changed.
        """
        check_actions(texts, self.roster.names)
        for name, text in texts.items():
            check_text(name, text)
        ready = self.kernel.ready()
        for agent_id in ready if order is None else _check_order(order(ready), ready):
            self._play_turn(agent_id, texts.get(self.roster.name_of(agent_id)) or "")
        self.cycle += 1
        return self.roster.register(self.kernel.agents)

    def record(self) -> EpisodeRecord:
        """Return the record of the episode, not yet scored. Raises `RecordError` before the episode has ended."""
        return build_record(self.kernel, self._generations, episode_id=self.episode_id, seed=self.seed)

    def _play_turn(self, agent_id: AgentId, text: str) -> None:
        state = self.kernel.agents[agent_id]
        rules = self.kernel.rules
        assert state.turn is not None
        grant = state.turn.max_new_tokens
        text = str(text)  # the record stores no subclass of str, such as `numpy.str_`
        too_long = len(text) > self.max_chars
        if too_long and grant is not None:
            used = grant + 1
        else:
            used = rules.counter.count_text(text)
        # The kernel charges a text over the grant the whole grant, and the text is shown to no agent.
        is_dropped = too_long or (grant is not None and used > grant)
        text = "" if is_dropped else text
        action: Action = Malformed(Fault.OVER_GRANT) if is_dropped else rules.protocol.parse(text)
        self._generations[agent_id, len(state.turns)] = Generation(text)
        self.kernel.step(agent_id, action, Usage(used), text)


def score_record(record: EpisodeRecord, reward: Reward | RewardFunction) -> EpisodeRecord:
    """Return the record with its reward terms.

    Args:
        record: the unscored record.
        reward: a `Reward`, as `make_reward` builds it, or a function from the record to named terms.

    Raises:
        RewardError: the function raised, or its result is no mapping of names to finite numbers. A failure must not
            look like a reward.
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
    """Return 1 if the root's answer, stripped, is the task's answer or one of its aliases, else 0."""
    right = {text.strip() for text in (record.task.answer, *record.task.aliases)}
    return {"exact_match": float(record.answer is not None and record.answer.strip() in right)}


def _check_order(order: Sequence[AgentId], ready: Sequence[AgentId]) -> Sequence[AgentId]:
    if sorted(order) != sorted(ready):
        raise GameError(f"order returned {list(map(str, order))}; expected a permutation of {list(map(str, ready))}")
    return order
