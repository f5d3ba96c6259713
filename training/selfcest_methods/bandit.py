"""`bandit` lets a bandit choose which instruction works next, after SYMPHONY (Zhu et al., arXiv 2601.22623, sections
3.3 and 3.5). If it works, later pulls go to the instruction whose answers the judge rates highest.

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count, NotNegative
from selfcest_env.types import Action, Answer
from selfcest_methods.orchestrated import NOTHING, Asked, Orchestrated, call
from selfcest_methods.score_text import read_scores

ARMS = ("Think step by step.", "Write an equation and solve it.", "Guess, then check your guess.")


@stored_as("selfcest_training.evaluation.bandit:Bandit", arms="arms", rounds="rounds", alpha="alpha")
@dataclass(frozen=True)
class Bandit(Orchestrated, Checked):
    """Asks one clone after the other, has each judged, and chooses by a bandit how the next one is told to work.

    Attributes:
        arms: instructions; `None`: `ARMS`.
        rounds: of one clone and its judge each.
        alpha: how much what has seldom been tried is preferred.
    """

    arms: tuple[str, ...] | None = None
    rounds: Count = 4
    alpha: NotNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.instructions or len(set(self.instructions)) < len(self.instructions):
            raise ConfigError(f"arms are {list(self.instructions)}; expected one or more different instructions")

    @property
    def instructions(self) -> tuple[str, ...]:
        return ARMS if self.arms is None else self.arms

    @property
    def turns(self) -> int:
        return 2 * self.rounds + 1

    @property
    def clones(self) -> int:
        return 2 * self.rounds

    def step(self, task: str, keys: tuple[str, ...], past: Sequence[Asked]) -> Action:
        if len(past) == 2 * self.rounds:
            return Answer(self.found(past) or NOTHING)
        if len(past) % 2:
            answer = past[-1].replies[0] or NOTHING
            return call(
                "How good is this answer? Answer with two numbers from 0 to 1: its value, and how sure you are.\n"
                f"Task: {task}\nAnswer: {answer}",
                keys=keys,
            )
        return call(f"{self.instructions[self.choose_arm(self.pulls(past))]}\nTask: {task}", keys=keys)

    def found(self, past: Sequence[Asked]) -> str | None:
        answers = [call.replies[0] for call in past[::2]]
        rewards = [reward for _, reward in self.pulls(past)]
        judged = [(i, reward) for i, reward in enumerate(rewards) if reward is not None and answers[i] is not None]
        best = max(judged, key=lambda pair: (pair[1], -pair[0]), default=None)
        return next((a for a in answers if a is not None), None) if best is None else answers[best[0]]

    def readable(self, past: Sequence[Asked]) -> bool:
        return all(reward is not None for _, reward in self.pulls(past))

    def pulls(self, past: Sequence[Asked]) -> list[tuple[int, float | None]]:
        """The arm of every round that has been judged, and the reward; `None` where it could not be read."""
        found: list[tuple[int, float | None]] = []
        for _, judge in zip(past[::2], past[1::2], strict=False):
            found.append((self.choose_arm(found), judged_reward(judge.replies[0])))
        return found

    def choose_arm(self, pulls: Sequence[tuple[int, float | None]]) -> int:
        """The arm of the highest upper bound, of equal ones the first.

        A pull without a reward has been tried, and is in no mean: else an arm whose judge is never understood would be
        taken for a bad one, or be tried for ever.
        """

        def bound(arm: int) -> float:
            pulled = [reward for chosen, reward in pulls if chosen == arm]
            rewards = [reward for reward in pulled if reward is not None]
            mean = sum(rewards) / len(rewards) if rewards else 0.0
            return mean + self.alpha * math.sqrt(math.log(1 + len(pulls)) / (1 + len(pulled)))

        return max(range(len(self.instructions)), key=lambda arm: (bound(arm), -arm))


def judged_reward(text: str | None) -> float | None:
    """Z (1 - H(C)) of a judge's value Z and confidence C; `None` of one who did not give both, each from 0 to 1."""
    scores = read_scores(text, 2, 1)
    if scores is None:
        return None
    value, sure = scores
    entropy = -sum(p * math.log(p) for p in (sure, 1 - sure) if p > 0)
    return value * (1 - entropy)
