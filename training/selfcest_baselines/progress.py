"""How learning went: what a learner reports after each update, and curves of success against decisions and CPU time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from selfcest_baselines.games import KernelGames
from selfcest_baselines.networks import ActorNetwork
from selfcest_baselines.rollout import Act, collect
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.scenarios import EVALUATION_EPISODES, EVALUATION_SEED


class Progress(NamedTuple):
    """After an update: decisions sampled and episodes played so far, those of replays included, and the policy."""

    decisions: int
    episodes: int
    actor: ActorNetwork


class CurvePoint(NamedTuple):
    decisions: int
    seconds: float  # of CPU time spent on learning
    success: float
    team_return: float


class GreedyScore(NamedTuple):
    success: float
    team_return: float
    tokens: float  # of the whole tree, mean
    clones: float  # mean


@dataclass(frozen=True)
class LearningCurve:
    """One run; points in order."""

    points: tuple[CurvePoint, ...]

    def reached(self, success: float) -> CurvePoint | None:
        """The first point at which this success was reached, if any."""
        return next((point for point in self.points if point.success >= success), None)


def evaluate(
    act: Act, rules: SymbolicRules, *, episodes: int = EVALUATION_EPISODES, seed: int = EVALUATION_SEED
) -> GreedyScore:
    """Mean outcome over episodes whose problems are the same for everybody. A small game's are trained on as well."""
    games = KernelGames(rules, episodes, seed)
    collect(games, act)
    state, tokens = games.kernel.state, games.kernel.total_tokens()
    return GreedyScore(
        float(games.kernel.scores.mean()),
        float(state.team_return.mean()),
        float(tokens.mean()),
        float((state.num_born - 1).mean()),
    )


class Examiner:
    """Evaluates a policy now and then while it learns, off the clock, and says when to stop.

    Args:
        rules: of the games.
        decisions: budget of agents' decisions.
        seconds: budget of CPU time, evaluations excluded; the clock starts here.
        until: success at which to stop.
        every: CPU seconds between evaluations.
        report: is called with every point.

    Raises:
        ConfigError: no budget at all.
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
            raise ConfigError("no budget is given; expected decisions, seconds or both: until may never be reached")
        self.rules, self.decisions, self.seconds, self.until = rules, decisions, seconds, until
        self.every, self.report = every, report
        self.points: list[CurvePoint] = []
        self._begun = time.process_time()

    def __call__(self, decisions: int, act: Act) -> bool:
        """After an update: whether learning is over, given decisions so far and the policy as it is now."""
        now = time.process_time() - self._begun
        over = decisions >= self.decisions or now >= self.seconds
        if not over and self.points and now < self.points[-1].seconds + self.every:
            return False
        score = evaluate(act, self.rules)
        self.points.append(CurvePoint(decisions, now, score.success, score.team_return))
        self.report(self.points[-1])
        self._begun = time.process_time() - now
        return over or score.success >= self.until
