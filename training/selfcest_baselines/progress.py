"""Progress of a learner: reports after each update, and curves of success against decisions and CPU time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from selfcest_baselines.games import KernelGames
from selfcest_baselines.networks import ActorNetwork
from selfcest_baselines.rollout import Act, collect_rollout
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.scenarios import EVALUATION_EPISODES, EVALUATION_SEED


class Progress(NamedTuple):
    """The report after an update. Both counts include replays."""

    decisions: int  # sampled so far
    episodes: int  # played so far
    actor: ActorNetwork  # the current policy


class CurvePoint(NamedTuple):
    """One evaluation of the greedy policy while it learns."""

    decisions: int  # sampled before it
    seconds: float  # CPU seconds of learning before it
    success: float  # mean score of the final answer
    team_return: float  # mean


class GreedyScore(NamedTuple):
    """Means over the episodes of an evaluation."""

    success: float
    team_return: float
    tokens: float  # of the whole tree
    clones: float


@dataclass(frozen=True)
class LearningCurve:
    """The evaluations of one run, in order."""

    points: tuple[CurvePoint, ...]

    def reached(self, success: float) -> CurvePoint | None:
        """Return the first point with at least this success, or `None`."""
        return next((point for point in self.points if point.success >= success), None)


def evaluate(
    act: Act, rules: SymbolicRules, *, episodes: int = EVALUATION_EPISODES, seed: int = EVALUATION_SEED
) -> GreedyScore:
    """Return the mean scores of a policy over one episode of each evaluation problem.

    All learners get the same problems. Small games have so few problems that training contains most of them too.

    Args:
        act: the policy.
        rules: rules of the games.
        episodes: number of problems.
        seed: seed of the problems.
    """
    games = KernelGames(rules, episodes, seed)
    collect_rollout(games, act)
    state = games.kernel.state
    tokens = games.kernel.total_tokens()
    return GreedyScore(
        float(games.kernel.scores.mean()),
        float(state.team_return.mean()),
        float(tokens.mean()),
        float((state.num_born - 1).mean()),
    )


class Examiner:
    """Evaluates a policy at intervals while it learns, and decides when to stop.

    Args:
        rules: rules of the games.
        decisions: budget of agents' decisions.
        seconds: budget of CPU seconds, without those of evaluations. The clock starts here.
        until: success at which to stop.
        every: CPU seconds between evaluations.
        report: called with every point.

    Attributes:
        points: the evaluations so far.

    Raises:
        ConfigError: neither `decisions` nor `seconds` is given.
    """

    def __init__(
        self,
        rules: SymbolicRules,
        *,
        decisions: float = math.inf,
        seconds: float = math.inf,
        until: float = math.inf,
        every: float = 1.0,
        report: Callable[[CurvePoint], object] = lambda point: None,
    ) -> None:
        if not min(decisions, seconds) < math.inf:
            raise ConfigError(
                "no budget was given; expected decisions or seconds or both, because the success of until may never be "
                "reached"
            )
        self.rules = rules
        self.decisions = decisions
        self.seconds = seconds
        self.until = until
        self.every = every
        self.report = report
        self.points: list[CurvePoint] = []
        self._start = time.process_time()

    def __call__(self, decisions: int, act: Act) -> bool:
        """Evaluate the policy if it is time to, and return whether learning is over.

        Args:
            decisions: decisions sampled so far.
            act: the current greedy policy.
        """
        elapsed = time.process_time() - self._start
        budget_is_spent = decisions >= self.decisions or elapsed >= self.seconds
        if not budget_is_spent and self.points and elapsed < self.points[-1].seconds + self.every:
            return False
        score = evaluate(act, self.rules)
        self.points.append(CurvePoint(decisions, elapsed, score.success, score.team_return))
        self.report(self.points[-1])
        # Moving the start takes the evaluation off the clock.
        self._start = time.process_time() - elapsed
        return budget_is_spent or score.success >= self.until
