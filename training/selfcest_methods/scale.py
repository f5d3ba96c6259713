"""`scale` has a clone decompose the task, has the difficulty of each part judged, and solves the parts in order.

Source: SCALE (Xiao et al., arXiv 2512.00466, from the abstract and figure 1). In the paper system 2 is the thinking
mode of the model. Here several clones think about a hard part and their majority counts, and one clone answers an easy
part at once. Details: docs/methods.md.

Expected effect: the accuracy of thinking about every part, for fewer tokens.
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
from selfcest_methods.orchestrated import (
    NO_ANSWER,
    JoinedCall,
    OrchestratedStrategy,
    make_call,
    parse_parts,
    split_lines,
)
from selfcest_methods.score_text import read_scores


@stored_as("selfcest_training.evaluation.scale:Scale", parts="parts", hard_from="hard_from", threads="threads")
@dataclass(frozen=True)
class Scale(OrchestratedStrategy, Checked):
    """The first call plans, the second one judges all parts side by side, and each further call solves one part.

    Attributes:
        parts: largest number of parts; further lines of a plan join the last part.
        hard_from: difficulty from which a part is hard, on a scale from 0 to 10.
        threads: number of clones that think about a hard part.
    """

    parts: Count = 3
    hard_from: NotNegative = 5.0
    threads: Count = 3

    @property
    def script_turns(self) -> int:
        return self.parts + 3

    @property
    def max_call_size(self) -> int:
        return max(self.parts, self.threads)

    @property
    def max_script_clones(self) -> int:
        return 1 + self.parts + self.parts * self.threads

    def check(self, context: PlayContext) -> None:
        super().check(context)
        if self.threads > 1 and context.temperature == 0:
            raise ConfigError("temperature is 0, so all threads would be equal; set the strategy's temperature above 0")

    def next_action(self, task: str, keys: tuple[str, ...], calls: Sequence[JoinedCall]) -> Action:
        if not calls:
            return make_call(
                f"Write a plan for the task below: at most {self.parts} parts, in the order in which they can be "
                f"solved, each on a line of its own. The last one gives the answer. Do not solve it.\nTask: {task}"
            )
        parts = parse_parts(calls[0].replies[0], task, self.parts)
        if len(calls) == 1:
            question = "How hard is this part of a task? Answer with a number from 0, routine, to 10."
            return make_call(*(f"{question}\nTask: {task}\nPart: {part}" for part in parts))
        results = [_get_result(call) for call in calls[2:]]
        if len(results) == len(parts):
            return Answer(results[-1] or NO_ANSWER)
        solved_parts = zip(parts, results, strict=False)
        results_text = "".join(f"\n{part}: {result or NO_ANSWER}" for part, result in solved_parts) or " nothing"
        context = f"Task: {task}\nFound:{results_text}\nPart: {parts[len(results)]}"
        if self.find_hard_parts(calls[1])[len(results)]:
            objective = f"Solve this part of a task. Think step by step.\n{context}"
            return make_call(*[objective] * self.threads, keys=keys)
        return make_call(f"Solve this part of a task. Answer at once.\n{context}", keys=keys)

    def best_answer(self, calls: Sequence[JoinedCall]) -> str | None:
        return _get_result(calls[-1]) if len(calls) > 2 else None

    def find_hard_parts(self, call: JoinedCall) -> list[bool]:
        """Return for each part whether it is hard; a part without a readable score is hard."""
        scores = [_parse_difficulty(reply) for reply in call.replies]
        return [score is None or score >= self.hard_from for score in scores]

    def is_readable(self, calls: Sequence[JoinedCall]) -> bool:
        if calls and not split_lines(calls[0].replies[0]):
            return False
        return len(calls) < 2 or all(_parse_difficulty(reply) is not None for reply in calls[1].replies)


def _get_result(call: JoinedCall) -> str | None:
    return call.replies[majority(call.replies)]


def _parse_difficulty(reply: str | None) -> float | None:
    scores = read_scores(reply, 1, 10)
    return None if scores is None else scores[0]
