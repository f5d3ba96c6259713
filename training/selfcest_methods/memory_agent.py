"""`memory_agent` reads a long text part by part, with a memory that it overwrites after every part.

Source: MemAgent (Yu et al., arXiv 2507.02259). In the paper a part has 5000 tokens and the memory 1024, and the last
context answers from the memory; all contexts are trained by one return. Here a part is a document, a turn is an episode
of its own, and imitation or RL trains single turns (task source `memory_steps`). Details: docs/methods.md.

Expected effect: accuracy hardly falls with the length, at the tokens of one pass, with a critical path that grows with
the number of parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from selfcest_agents.player import Player
from selfcest_env.graders import Grade
from selfcest_env.stored import stored_as
from selfcest_env.tasks.memory import EMPTY_MEMORY, MemoryTurn
from selfcest_env.types import Limits, Task
from selfcest_eval.play.samples import find_remaining_limits
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy


@stored_as("selfcest_methods.memory_agent:MemoryAgent")
@dataclass(frozen=True)
class MemoryAgent(Strategy):
    """A serial reader: one episode for each document, which answers with the new memory, and one for the answer.

    A turn without an answer leaves the memory as it was; the cost `failed_episodes` counts such turns.
    `limits.turn_tokens` bounds the memory.
    """

    delegates: ClassVar[bool] = False
    in_series: ClassVar[bool] = True
    # 1: a text whose budget runs out has no answer. Before, its last memory was graded as one.
    version: ClassVar[int] = 1

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_depth=0, max_reads=0)

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        played: list[Episodes] = [()] * len(instances)
        memories = [EMPTY_MEMORY] * len(instances)
        longest = max((len(instance.task.context) for instance in instances), default=0)
        for turn in range(longest + 1):
            turns: dict[int, Instance] = {}
            limits: list[Limits] = []
            for i, instance in enumerate(instances):
                is_over = len(played[i]) < turn or (turn > 0 and not played[i][-1].root.turns)
                if is_over or turn > len(instance.task.context):
                    continue
                remaining = find_remaining_limits(context.limits, played[i])
                # Without budget the next turn ends before its prompt, so that the text's last episode has no answer.
                # Otherwise the memory of the last update would be graded as the answer.
                limits.append(remaining or replace(context.limits, total_tokens=0, answer_reserve=0))
                turns[i] = replace(instance, task=_make_turn(instance.task, memories[i], turn))
            records = self.play_once(list(turns.values()), limits, turn, context, player)
            for i, record in zip(turns, records, strict=True):
                played[i] += (record,)
                memories[i] = record.answer or memories[i]
        return played

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return len(episodes) - 1


def _make_turn(task: Task, memory: str, turn: int) -> Task:
    """Return the task of a turn, which keeps the id of the whole task. The turn after the last document is the answer.

    The prompt has the question, the memory and one document, and nothing else of the task.
    """
    parts = list(task.context.items())
    is_last = turn == len(parts)
    context = {} if is_last else dict(parts[turn : turn + 1])
    return replace(task, prompt=MemoryTurn(task.prompt, memory, is_last).write(), context=context)
