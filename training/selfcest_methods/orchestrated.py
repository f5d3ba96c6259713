"""The base of strategies whose root is a script that delegates all thinking to clones.

The root's turns are scripted calls. Clones decompose, judge, plan and solve, so all of this work is in one tree, is
charged to one ledger and counts in the critical path. The script ends when it has an answer, when the root may no
longer delegate, or when a call is refused. In the last two cases it gives its best answer so far and does not count as
executed.

Objectives are English sentences, so the policy must follow instructions, and `limits.reply_tokens` must hold a plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from selfcest_agents.player import PolicyWrapper
from selfcest_env.errors import ConfigError
from selfcest_env.protocol import PromptFormat
from selfcest_env.record import EpisodeRecord
from selfcest_env.types import Action, Answer, CloneRequest, Delegate, Limits, Outcome, Task
from selfcest_env.views import Observation
from selfcest_eval.play.scripted_roots import ScriptedRoot, were_executed
from selfcest_eval.play.strategies import Episodes, PlayContext, Strategy, check_delegation

NO_ANSWER = "?"  # the answer of a script that has found none


@dataclass(frozen=True)
class JoinedCall:
    """A call of the root whose clones have all ended.

    Attributes:
        requests: one for each clone.
        replies: one for each clone; `None` for a clone without a reply.
    """

    requests: tuple[CloneRequest, ...]
    replies: tuple[str | None, ...]


@dataclass(frozen=True)
class OrchestratedStrategy(Strategy):
    """A strategy whose root plays the actions of `next_action`.

    A script that needs more turns than `limits.max_turns` raises this limit, which clones have as well.
    """

    # Raise it when the questions, the parsing of replies or the meaning of `executed` change.
    version: ClassVar[int] = 1

    def next_action(self, task: str, keys: tuple[str, ...], calls: Sequence[JoinedCall]) -> Action:
        """Return the root's next action. The script must answer within `script_turns` turns.

        Args:
            task: text of the task.
            keys: keys of its documents.
            calls: the calls so far, the oldest first.
        """
        raise NotImplementedError(f"{type(self).__name__} has no next_action(task, keys, calls)")

    def best_answer(self, calls: Sequence[JoinedCall]) -> str | None:
        """Return the best answer after these calls, or `None` if there is none yet."""
        raise NotImplementedError(f"{type(self).__name__} has no best_answer(calls)")

    @property
    def script_turns(self) -> int:
        """The largest number of turns that the script takes."""
        raise NotImplementedError(f"{type(self).__name__} has no script_turns")

    @property
    def max_call_size(self) -> int:
        """The largest number of clones in one call of the script."""
        return 1

    @property
    def max_script_clones(self) -> int | None:
        """The largest number of clones that the script itself starts; `None` if it is not known."""
        return None

    def limits(self, limits: Limits, task: Task) -> Limits:
        max_turns = None if limits.max_turns is None else max(limits.max_turns, self.script_turns)
        # turn_tokens could cut a scripted turn. ScriptedRoot applies it to the turns of the policy only.
        return replace(limits, turn_tokens=None, max_turns=max_turns, max_reads=0)

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, self.max_call_size)
        max_clones = context.limits.max_clones
        needed = self.max_script_clones
        if max_clones is not None and needed is not None and max_clones < needed:
            raise ConfigError(
                f"limits.max_clones is {max_clones}, and the script may start {needed} clones, {self.max_call_size} at "
                "once; raise limits.max_clones, or lower the options of the strategy"
            )

    def wrapper(self, context: PlayContext) -> PolicyWrapper:
        script = OrchestratorScript(self, context.protocol)
        return partial(ScriptedRoot, script=script, turns=None, turn_tokens=context.limits.turn_tokens)

    def is_readable(self, calls: Sequence[JoinedCall]) -> bool:
        """Return whether all plans and scores in the replies to these calls can be parsed."""
        return True

    def executed(self, episodes: Episodes) -> bool | None:
        return all(
            were_executed(episode.root.turns) and not episode.root.failed and self._has_finished(episode)
            for episode in episodes
        )

    def _has_finished(self, episode: EpisodeRecord) -> bool:
        """Return whether the root answered because the script did, and not because a call was impossible."""
        # The recorded answer cannot be compared with the script's. The script saw the replies with broken role markers,
        # and the record has them as the clones wrote them. So the script is asked for its next action once more.
        calls = get_joined_calls(episode)
        action = self.next_action(episode.task.prompt, tuple(episode.task.context), calls)
        return isinstance(action, Answer) and self.is_readable(calls)


@dataclass(frozen=True)
class OrchestratorScript:
    """An `Actor` that plays the root of an orchestrated strategy. It keeps no state: the observation has all calls."""

    strategy: OrchestratedStrategy
    protocol: PromptFormat

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        calls = []
        for exchange in observation.exchanges:
            if isinstance(exchange.action, Delegate) and exchange.replies:
                replies = tuple(reply.text for reply in exchange.replies)
                calls.append(JoinedCall(exchange.action.requests, replies))
        action = self.strategy.next_action(observation.brief.text, observation.brief.keys, calls)
        # An exchange without replies is a refused call. The script would repeat it until its turns are used up.
        was_refused = len(calls) < len(observation.exchanges)
        if isinstance(action, Delegate) and (was_refused or not observation.can_delegate):
            action = Answer(self.strategy.best_answer(calls) or NO_ANSWER)
        return self.protocol.render(action)


def get_joined_calls(episode: EpisodeRecord) -> list[JoinedCall]:
    """Return the calls of an episode's root, the oldest first."""
    calls = []
    for turn in episode.root.turns:
        if turn.facts.outcome is Outcome.DELEGATED:
            clones = [episode.by_id[child] for child in turn.facts.children]
            requests = tuple(CloneRequest(clone.objective, clone.shared_context) for clone in clones)
            calls.append(JoinedCall(requests, tuple(clone.reply for clone in clones)))
    return calls


def make_call(*objectives: str, keys: tuple[str, ...] = ()) -> Delegate:
    """Return a call with one clone for each objective, all with the same documents."""
    return Delegate(tuple(CloneRequest(objective, keys) for objective in objectives))


def split_lines(text: str | None, separator: str = r"[\n;]") -> list[str]:
    """Return the lines of a text that are not empty, without list numbers and bullet signs.

    Args:
        text: `None` counts as empty.
        separator: a regular expression that ends a line.
    """
    lines = []
    for line in re.split(separator, text or ""):
        line = re.sub(r"^\s*(?:[0-9]+[.):]|[-*])\s*", "", line).strip()
        if line:
            lines.append(line)
    return lines


def parse_parts(plan: str | None, task: str, max_parts: int) -> list[str]:
    """Return the parts of a plan, one for each line; a task without a readable plan is one part.

    Args:
        plan: the planner's reply.
        task: text of the task.
        max_parts: largest number of parts; further lines join the last part.
    """
    lines = split_lines(plan) or [task]
    if len(lines) <= max_parts:
        return lines
    return [*lines[: max_parts - 1], "; ".join(lines[max_parts - 1 :])]
