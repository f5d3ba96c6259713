"""`symphony_coord` routes each part of a task by LinUCB over features of part and agent, with delayed feedback.

Source: Symphony-Coord (Guan et al., arXiv 2602.00966): its abstract, and the formula and constants of its released code
(GradientHQ/symphony-coord, commits 0625ad5 and 945b3a2). `bandit` is another paper of a similar name, 2601.22623. Here
the agents are instructions to the same weights, and a clone judges the answer as in `bandit`. Details: docs/methods.md.

    candidates of a part: the `top` agents with the highest match
    x = [1, match, load, reputation], divided by its norm
    bound(x) = θ·x + β sqrt(x' inv(A) x),   A = I + Σ x x',   θ = inv(A) Σ r x,   over the t choices with feedback
    β = alpha (1 + sqrt(4 ln(1 + max(1, t)) + 2 ln(1 / delta)))
    r = Z (1 - H(C)) of the answer to the whole task, for every choice of its round, after the round

Match is the cosine of the two sets of words, where the code compares embeddings. Load is the share of the round's parts
that the agent has. Reputation is the mean r of the agent, 0.5 before any. The code also has latency and availability:
here no agent is ever away, and a script sees no clock. In the code alpha does not scale the 1 in β.

Open in the source, since the abstract names no formula: the features, the screening, and the reward. Defects of the
released code that are not here:
- Its reward has no correctness by default: any text earns 1, less for latency, and agreement with a vote earns 0.5.
- With plans, the winners' bonus of 0.5 is a second observation of x. The mean of 1 and 0.5 is below the losers' 1, so
  choices that win rank lower.
- Reputation is a rate of well-formed answers before training, which no later feedback changes. Two agents with equal
  features are one agent to it.
- Agents that are away take places among the candidates, since they are screened before availability.

Expected effect: after some rounds a part of a new kind goes to the agent whose features earned rewards on other parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Above, Below, Checked, Count, NotNegative
from selfcest_env.types import Action, Answer
from selfcest_methods.bandit import ask_judge, choose_answer, compute_reward
from selfcest_methods.orchestrated import (
    NO_ANSWER,
    JoinedCall,
    OrchestratedStrategy,
    make_call,
    parse_parts,
    split_lines,
)

AGENTS = (
    "Calculate: add, subtract, multiply, divide, count and compare numbers, step by step.",
    "Find facts, names and dates in the documents, and quote them.",
    "Deduce what follows from the statements, and check each claim.",
    "Combine and summarise the results in few words.",
)
_NUM_FEATURES = 4
_CALLS_PER_ROUND = 3  # the parts, the answer, the judge


@stored_as(
    "selfcest_methods.symphony_coord:SymphonyCoord",
    agents="agents",
    rounds="rounds",
    parts="parts",
    top="top",
    alpha="alpha",
    delta="delta",
)
@dataclass(frozen=True)
class SymphonyCoord(OrchestratedStrategy, Checked):
    """A plan is made once. Each round solves its parts by chosen agents, answers the task, and has the answer judged.

    Attributes:
        agents: instructions for the clones that solve parts; `None` for `AGENTS`.
        rounds: number of rounds.
        parts: largest number of parts; further lines of a plan join the last part.
        top: number of candidates of a part.
        alpha: weight of exploration.
        delta: probability that the confidence bound may fail.
    """

    agents: tuple[str, ...] | None = None
    rounds: Count = 2
    parts: Count = 3
    top: Count = 3
    alpha: NotNegative = 1.0
    delta: Annotated[float, Above(0), Below(1)] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.instructions or len(set(self.instructions)) < len(self.instructions):
            raise ConfigError(f"agents are {list(self.instructions)}; expected one or more different instructions")

    @property
    def instructions(self) -> tuple[str, ...]:
        return AGENTS if self.agents is None else self.agents

    @property
    def script_turns(self) -> int:
        return 2 + _CALLS_PER_ROUND * self.rounds

    @property
    def max_call_size(self) -> int:
        return self.parts

    @property
    def max_script_clones(self) -> int:
        return 1 + self.rounds * (self.parts + 2)

    def next_action(self, task: str, keys: tuple[str, ...], calls: Sequence[JoinedCall]) -> Action:
        if not calls:
            return make_call(
                f"Write a plan for the task below: at most {self.parts} parts that can be solved side by side, each on "
                f"a line of its own. Do not solve it.\nTask: {task}"
            )
        parts = parse_parts(calls[0].replies[0], task, self.parts)
        finished_rounds, position = divmod(len(calls) - 1, _CALLS_PER_ROUND)
        if position == 1:
            results = "".join(
                f"\n{part}: {reply or NO_ANSWER}" for part, reply in zip(parts, calls[-1].replies, strict=False)
            )
            return make_call(f"Answer the task from these results of its parts.\nTask: {task}\nFound:{results}")
        if position == 2:
            return ask_judge(task, calls[-1].replies[0], keys)
        if finished_rounds == self.rounds:
            return Answer(self.best_answer(calls) or NO_ANSWER)
        router = self.make_router()
        # The choices of a round follow from the feedback of earlier ones, so they can be computed again.
        for reward in self._get_rewards(calls):
            router.learn(router.choose(parts), reward)
        chosen = [self.instructions[choice.agent] for choice in router.choose(parts)]
        return make_call(
            *(f"{agent}\nTask: {task}\nPart: {part}" for agent, part in zip(chosen, parts, strict=True)), keys=keys
        )

    def best_answer(self, calls: Sequence[JoinedCall]) -> str | None:
        answers = [call.replies[0] for call in calls[2::_CALLS_PER_ROUND]]
        return choose_answer(answers, self._get_rewards(calls))

    def is_readable(self, calls: Sequence[JoinedCall]) -> bool:
        has_plan = not calls or bool(split_lines(calls[0].replies[0]))
        return has_plan and None not in self._get_rewards(calls)

    def make_router(self) -> LinUcbRouter:
        return LinUcbRouter(self.instructions, self.top, self.alpha, self.delta)

    def _get_rewards(self, calls: Sequence[JoinedCall]) -> list[float | None]:
        """Return the reward of every judged round; `None` for a judgement that cannot be parsed."""
        return [compute_reward(call.replies[0]) for call in calls[3::_CALLS_PER_ROUND]]


@dataclass(frozen=True)
class Choice:
    """The agent of a part, by its position, and the features of the two."""

    agent: int
    features: npt.NDArray[np.float64]


@dataclass
class LinUcbRouter:
    """LinUCB with one parameter vector for all agents.

    Attributes:
        agents: instructions of the agents.
        top: number of candidates of a part.
        alpha: weight of exploration.
        delta: probability that the confidence bound may fail.
        num_choices: choices with feedback.
        covariance: A, of shape (features, features).
        reward_sums: Σ r x, of shape (features,).
        rewards: rewards of each agent, by its position.
    """

    agents: Sequence[str]
    top: int
    alpha: float
    delta: float
    num_choices: int = 0
    covariance: npt.NDArray[np.float64] = field(default_factory=lambda: np.eye(_NUM_FEATURES))
    reward_sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(_NUM_FEATURES))
    rewards: dict[int, list[float]] = field(default_factory=dict)

    def choose(self, parts: Sequence[str]) -> list[Choice]:
        """Return the choice for each part of a round; of equally good agents the first. Learns nothing."""
        choices: list[Choice] = []
        for part in parts:
            match_by_agent = [compute_match(part, agent) for agent in self.agents]
            ranked = sorted(range(len(self.agents)), key=lambda agent: -match_by_agent[agent])
            candidates = []
            for agent in sorted(ranked[: self.top]):
                load = sum(choice.agent == agent for choice in choices) / len(parts)
                candidates.append(Choice(agent, self._make_features(match_by_agent[agent], load, agent)))
            choices.append(max(candidates, key=lambda choice: self.compute_bound(choice.features)))
        return choices

    def learn(self, choices: Sequence[Choice], reward: float | None) -> None:
        """Give every choice of a round the reward of its answer; nothing is learned without a reward."""
        if reward is None:
            return
        for choice in choices:
            self.covariance = self.covariance + np.outer(choice.features, choice.features)
            self.reward_sums = self.reward_sums + reward * choice.features
            self.rewards.setdefault(choice.agent, []).append(reward)
        self.num_choices += len(choices)

    def compute_bound(self, features: npt.NDArray[np.float64]) -> float:
        """Return the upper confidence bound of the reward."""
        mean = features @ np.linalg.solve(self.covariance, self.reward_sums)
        variance = features @ np.linalg.solve(self.covariance, features)
        log_terms = _NUM_FEATURES * math.log(1 + max(1, self.num_choices)) + 2 * math.log(1 / self.delta)
        return float(mean + self.alpha * (1 + math.sqrt(log_terms)) * math.sqrt(variance))

    def _make_features(self, match: float, load: float, agent: int) -> npt.NDArray[np.float64]:
        rewards = self.rewards.get(agent, [0.5])
        features: npt.NDArray[np.float64] = np.array([1.0, match, load, sum(rewards) / len(rewards)])
        # The confidence bound holds for features of norm 1 at most, and the first one alone has norm 1.
        return features / float(np.linalg.norm(features))


def compute_match(part: str, agent: str) -> float:
    """Return the cosine of the sets of words of two texts, from 0 to 1."""
    words, agent_words = (set(re.findall(r"\w+", text.lower())) for text in (part, agent))
    return len(words & agent_words) / math.sqrt(max(1, len(words)) * max(1, len(agent_words)))
