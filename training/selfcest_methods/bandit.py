"""`bandit` chooses the instruction of each clone with a UCB bandit, and has another clone judge each answer.

Source: SYMPHONY (Zhu et al., arXiv 2601.22623, sections 3.3 and 3.5). In the paper the arms are different models in a
tree search. Here they are instructions to the same weights, and the search is one level deep. Symphony-Coord (arXiv
2602.00966) is another paper, see `symphony_coord`. Details: docs/methods.md.

    bound(arm) = mean reward + alpha * sqrt(ln(1 + N) / (1 + n)),   N pulls in all, n of the arm
    reward = Z * (1 - H(C)),   the judged value Z and the entropy H of the judge's confidence C

Expected effect: later pulls go to the instruction whose answers the judge rates highest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count, NotNegative
from selfcest_env.types import Action, Answer, Delegate
from selfcest_methods.orchestrated import NO_ANSWER, JoinedCall, OrchestratedStrategy, make_call
from selfcest_methods.score_text import read_scores

ARMS = ("Think step by step.", "Write an equation and solve it.", "Guess, then check your guess.")


@stored_as("selfcest_training.evaluation.bandit:Bandit", arms="arms", rounds="rounds", alpha="alpha")
@dataclass(frozen=True)
class Bandit(OrchestratedStrategy, Checked):
    """Each round asks one clone to solve the task and another one to judge its answer.

    Attributes:
        arms: instructions for a clone that solves; `None` for `ARMS`.
        rounds: number of rounds.
        alpha: weight of exploration.
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
    def script_turns(self) -> int:
        return 2 * self.rounds + 1

    @property
    def max_script_clones(self) -> int:
        return 2 * self.rounds

    def next_action(self, task: str, keys: tuple[str, ...], calls: Sequence[JoinedCall]) -> Action:
        if len(calls) == 2 * self.rounds:
            return Answer(self.best_answer(calls) or NO_ANSWER)
        # Calls alternate: one that solves, one that judges.
        if len(calls) % 2:
            return ask_judge(task, calls[-1].replies[0], keys)
        instruction = self.instructions[self.choose_arm(self.get_pulls(calls))]
        return make_call(f"{instruction}\nTask: {task}", keys=keys)

    def best_answer(self, calls: Sequence[JoinedCall]) -> str | None:
        rewards = [reward for _, reward in self.get_pulls(calls)]
        return choose_answer([call.replies[0] for call in calls[::2]], rewards)

    def is_readable(self, calls: Sequence[JoinedCall]) -> bool:
        return all(reward is not None for _, reward in self.get_pulls(calls))

    def get_pulls(self, calls: Sequence[JoinedCall]) -> list[tuple[int, float | None]]:
        """Return the arm and the reward of every judged round; the reward is `None` if it cannot be parsed."""
        pulls: list[tuple[int, float | None]] = []
        for judgement in calls[1::2]:
            # The choice of an arm is a function of earlier pulls, so the arm of each round can be computed again.
            pulls.append((self.choose_arm(pulls), compute_reward(judgement.replies[0])))
        return pulls

    def choose_arm(self, pulls: Sequence[tuple[int, float | None]]) -> int:
        """Return the first arm with the highest upper confidence bound."""
        bounds = []
        for arm in range(len(self.instructions)):
            arm_rewards = [reward for pulled_arm, reward in pulls if pulled_arm == arm]
            # A pull without a reward counts in n but not in the mean. In the mean it would make the arm look bad. If it
            # did not count in n, an arm whose judgements can never be parsed would be pulled in every round.
            known_rewards = [reward for reward in arm_rewards if reward is not None]
            mean = sum(known_rewards) / len(known_rewards) if known_rewards else 0.0
            bounds.append(mean + self.alpha * math.sqrt(math.log(1 + len(pulls)) / (1 + len(arm_rewards))))
        return bounds.index(max(bounds))


def ask_judge(task: str, answer: str | None, keys: tuple[str, ...]) -> Delegate:
    """Return the call that asks a clone to judge an answer. `compute_reward` reads its reply."""
    return make_call(
        "How good is this answer? Answer with two numbers from 0 to 1: its value, and how sure you are.\n"
        f"Task: {task}\nAnswer: {answer or NO_ANSWER}",
        keys=keys,
    )


def choose_answer(answers: Sequence[str | None], rewards: Sequence[float | None]) -> str | None:
    """Return the answer with the highest reward; without any reward the first answer.

    Args:
        answers: the answers, the oldest first.
        rewards: their rewards, at most as many: the last answer may not be judged yet.
    """
    best_reward = -math.inf
    best_answer = next((answer for answer in answers if answer is not None), None)
    for answer, reward in zip(answers, rewards, strict=False):
        if answer is not None and reward is not None and reward > best_reward:
            best_reward = reward
            best_answer = answer
    return best_answer


def compute_reward(text: str | None) -> float | None:
    """Return Z (1 - H(C)) of a judge's value Z and confidence C; `None` unless it gave both, each from 0 to 1."""
    scores = read_scores(text, 2, 1)
    if scores is None:
        return None
    value, confidence = scores
    entropy = -sum(p * math.log(p) for p in (confidence, 1 - confidence) if p > 0)
    return value * (1 - entropy)
