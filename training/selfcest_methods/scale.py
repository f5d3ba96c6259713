"""`scale` decomposes a task, rates each part and thinks only about hard ones, after SCALE (Xiao et al., arXiv
2512.00466). If it works, accuracy is that of thinking about every part, for fewer tokens.

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count, NotNegative
from selfcest_env.types import Action, Answer
from selfcest_eval.play.samples import majority
from selfcest_eval.play.strategies import PlayContext
from selfcest_methods.orchestrated import NOTHING, Asked, Orchestrated, call, lines_of
from selfcest_methods.score_text import read_scores


@stored_as("selfcest_training.evaluation.scale:Scale", parts="parts", hard_from="hard_from", threads="threads")
@dataclass(frozen=True)
class Scale(Orchestrated, Checked):
    """Decomposes, assesses, and thinks only where it is hard.

    Attributes:
        parts: at most; the last one is what is left.
        hard_from: the difficulty, from 0 to 10, from which on a part is hard.
        threads: clones that think about a hard part; their majority counts.
    """

    parts: Count = 3
    hard_from: NotNegative = 5.0
    threads: Count = 3

    @property
    def turns(self) -> int:
        return self.parts + 3

    @property
    def widest(self) -> int:
        return max(self.parts, self.threads)

    @property
    def clones(self) -> int:
        return 1 + self.parts + self.parts * self.threads

    def check(self, context: PlayContext) -> None:
        super().check(context)
        if self.threads > 1 and context.temperature == 0:
            raise ConfigError("temperature is 0, so all threads would be equal; set the strategy's temperature above 0")

    def step(self, task: str, keys: tuple[str, ...], past: Sequence[Asked]) -> Action:
        if not past:
            return call(
                f"Write a plan for the task below: at most {self.parts} parts, in the order in which they can be "
                f"solved, each on a line of its own. The last one gives the answer. Do not solve it.\nTask: {task}"
            )
        parts = self.plan(task, past[0])
        if len(past) == 1:
            question = "How hard is this part of a task? Answer with a number from 0, routine, to 10."
            return call(*(f"{question}\nTask: {task}\nPart: {part}" for part in parts))
        done = [self._result(call) for call in past[2:]]
        if len(done) == len(parts):
            return Answer(done[-1] or NOTHING)
        known = "".join(f"\n{part}: {result or NOTHING}" for part, result in zip(parts, done, strict=False))
        context = f"Task: {task}\nFound:{known or ' nothing'}\nPart: {parts[len(done)]}"
        if self.hard(past[1])[len(done)]:
            return call(*[f"Solve this part of a task. Think step by step.\n{context}"] * self.threads, keys=keys)
        return call(f"Solve this part of a task. Answer at once.\n{context}", keys=keys)

    def found(self, past: Sequence[Asked]) -> str | None:
        return self._result(past[-1]) if len(past) > 2 else None

    def plan(self, task: str, call: Asked) -> list[str]:
        """The parts of a plan; lines over `parts` are one with the last."""
        lines = lines_of(call.replies[0]) or [task]
        return lines if len(lines) <= self.parts else [*lines[: self.parts - 1], "; ".join(lines[self.parts - 1 :])]

    def hard(self, call: Asked) -> list[bool]:
        """Which parts are hard; those that nobody could judge are."""
        return [score is None or score[0] >= self.hard_from for score in map(_difficulty, call.replies)]

    def readable(self, past: Sequence[Asked]) -> bool:
        planned = all(lines_of(plan.replies[0]) for plan in past[:1])
        return planned and all(_difficulty(reply) for judged in past[1:2] for reply in judged.replies)

    @staticmethod
    def _result(call: Asked) -> str | None:
        return call.replies[majority(call.replies)]


def _difficulty(reply: str | None) -> tuple[float, ...] | None:
    return read_scores(reply, 1, 10)
