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
from typing import Annotated, ClassVar

from selfcest_agents.player import Player
from selfcest_env.graders import Grade
from selfcest_env.record import EpisodeRecord
from selfcest_env.stored import stored_as
from selfcest_env.structure import Between
from selfcest_env.tasks.memory import EMPTY_MEMORY, MemoryTurn, Pass
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy
from selfcest_methods.deciding import subtract_costs


@stored_as("selfcest_methods.memory_agent:MemoryAgent", passes="passes")
@dataclass(frozen=True)
class MemoryAgent(Strategy):
    """A serial reader: one episode for each document, which answers with the new memory, and one for the answer.

    An answer that is a question, such as `Where is Mary?` or `Where is Mary before part 5?`, begins another reading
    with an empty memory: of all documents, or of those before the named one. This is the serial rival of a root that
    calls clones twice. A turn without an answer leaves the memory as it was; the cost `failed_episodes` counts such
    turns. `limits.turn_tokens` bounds the memory.

    Attributes:
        passes: largest number of readings; the paper has 1.
    """

    delegates: ClassVar[bool] = False
    in_series: ClassVar[bool] = True
    # 1: a text whose budget runs out has no answer. Before, its last memory was graded as one.
    # 2: an answer may ask for another reading.
    # 3: a turn is played if it fits the budget. Before, the rest had to cover the dearest turn, and the last is cheap.
    version: ClassVar[int] = 3
    passes: Annotated[int, Between(1, 8)] = 2

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_depth=0, max_reads=0)

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        played: list[Episodes] = [()] * len(instances)
        readers = [_Reader(instance.task) for instance in instances]
        turn = 0
        while True:
            turns: dict[int, Instance] = {}
            limits: list[Limits] = []
            for i, (instance, reader) in enumerate(zip(instances, readers, strict=True)):
                if reader.is_done:
                    continue
                # Without budget the next turn ends before its prompt, so that the text's last episode has no answer.
                # Otherwise the memory of the last update would be graded as the answer.
                limits.append(subtract_costs(context.limits, played[i]))
                turns[i] = replace(instance, task=reader.make_turn())
            if not turns:
                return played
            records = self.play_once(list(turns.values()), limits, turn, context, player)
            for i, record in zip(turns, records, strict=True):
                played[i] += (record,)
                readers[i].advance(record, self.passes)
            turn += 1

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return len(episodes) - 1


class _Reader:
    """A text and how far it has been read.

    Attributes:
        is_done: whether no turn is left.
    """

    def __init__(self, task: Task) -> None:
        self.is_done = False
        self._task = task
        self._reading = Pass(task.prompt, tuple(task.context))
        self._memory = EMPTY_MEMORY
        self._num_read = 0
        self._num_passes = 1

    def make_turn(self) -> Task:
        """Return the task of the next turn, which keeps the id of the whole task. After the last document it answers.

        The prompt has the question, the memory and one document, and nothing else of the task.
        """
        keys = self._reading.keys[self._num_read : self._num_read + 1]
        turn = MemoryTurn(self._reading.question, self._memory, is_last=not keys)
        return replace(self._task, prompt=turn.write(), context={key: self._task.context[key] for key in keys})

    def advance(self, record: EpisodeRecord, max_passes: int) -> None:
        """Take the answer of the turn. A turn that had no budget is the last one."""
        answer = record.answer or ""
        if not record.root.turns:
            self.is_done = True
        elif self._num_read < len(self._reading.keys):
            self._memory = answer or self._memory
            self._num_read += 1
        else:
            again = Pass.read(answer, tuple(self._task.context))
            if again is None or self._num_passes == max_passes:
                self.is_done = True
            else:
                self._reading, self._memory, self._num_read = again, EMPTY_MEMORY, 0
                self._num_passes += 1
