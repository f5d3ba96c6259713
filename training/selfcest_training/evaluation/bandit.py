"""A bandit that chooses who works next (Zhu et al., SYMPHONY, arXiv 2601.22623, sections 3.3 and 3.5), as a script.

There, in a tree search over language models of several kinds, who expands next is a bandit's choice: mean reward +
alpha sqrt(ln N / n). A node's reward is its judged value Z times 1 - H(C), with H the entropy of the judge's
confidence C, in nats as in the released code. The formula of the bandit was not in the text that could be read, which
says that its denominator is smoothed; ours is ln(1 + N) / (1 + n). The search here is one level deep, the judge is
one instruction and not the bandit's choice, and failures are not reflected on. In a tree all clones have the same
weights, so the arms are instructions and not models, and diversity is of words alone: a labelled contrast to the
paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Checked, Count, NotNegative
from selfcest_env.types import Action, Answer
from selfcest_training.evaluation.orchestrated import NOTHING, Asked, Orchestrated, call, numbers_in

ARMS = ("Think step by step.", "Write an equation and solve it.", "Guess, then check your guess.")


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
        judged = [i for i in range(len(rewards)) if answers[i] is not None]
        best = max(judged, key=lambda i: (rewards[i], -i), default=None)
        return next((a for a in answers if a is not None), None) if best is None else answers[best]

    def pulls(self, past: Sequence[Asked]) -> list[tuple[int, float]]:
        """The arm and the reward of every round that has been judged."""
        found: list[tuple[int, float]] = []
        for _, judge in zip(past[::2], past[1::2], strict=False):
            found.append((self.choose_arm(found), judged_reward(judge.replies[0])))
        return found

    def choose_arm(self, pulls: Sequence[tuple[int, float]]) -> int:
        """The arm of the highest upper bound, of equal ones the first."""

        def bound(arm: int) -> float:
            rewards = [reward for pulled, reward in pulls if pulled == arm]
            mean = sum(rewards) / len(rewards) if rewards else 0.0
            return mean + self.alpha * math.sqrt(math.log(1 + len(pulls)) / (1 + len(rewards)))

        return max(range(len(self.instructions)), key=lambda arm: (bound(arm), -arm))


def judged_reward(text: str | None) -> float:
    """Z (1 - H(C)) of a judge's value Z and confidence C, both cut to [0, 1]; 0 of one who did not give both."""
    numbers = [min(1.0, number) for number in numbers_in(text)]
    if len(numbers) < 2:
        return 0.0
    value, sure = numbers[:2]
    entropy = -sum(p * math.log(p) for p in (sure, 1 - sure) if p > 0)
    return value * (1 - entropy)
