"""`train`: any of the algorithms by name, within a budget, to a curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from selfcest_env.plugin import make
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_training.marl import broadcast, coma, difference, ppo, shapley
from selfcest_training.marl.games import KernelGames
from selfcest_training.marl.progress import Curve, Examiner, Progress


class Algorithm(Protocol):
    """Settings of a learner, and how it learns with them."""

    @property
    def episodes(self) -> int:
        """Per update."""
        ...

    @property
    def group_size(self) -> int:
        """Neighbouring games with the same problem."""
        ...

    def learn(self, games: KernelGames, seed: int) -> Iterator[Progress]:
        """One entry per update, without end."""
        ...


ALGORITHMS: dict[str, str | type] = {
    "ppo": ppo.Config,
    "coma": coma.Config,
    "broadcast": broadcast.Config,
    "difference": difference.Config,
    "shapley": shapley.Config,
}


def train(
    algorithm: str, rules: SymbolicRules, seed: int = 0, *, config: Mapping[str, Any] | None = None, **budget: Any
) -> Curve:
    """Learn until a budget is used up, and evaluate the greedy policy on the way.

    Args:
        algorithm: a key of `ALGORITHMS`, or `package.module:Class` of an `Algorithm`.
        rules: of the games.
        seed: of the problems, the initial weights and the sampling.
        config: settings of the algorithm by name, other than its defaults.
        budget: `decisions`, `seconds`, `until`, `every` and `report` of `Examiner`. Decisions count those of replays.

    Raises:
        ConfigError: an unknown algorithm or setting, or no budget at all.
    """
    learner = make(algorithm, config or {}, ALGORITHMS, Algorithm, what="algorithm", where=algorithm)
    examiner = Examiner(rules, **budget)
    games = KernelGames(rules, learner.episodes, seed, group_size=learner.group_size)
    for progress in learner.learn(games, seed):
        if examiner(progress.decisions, progress.actor.best):
            break
    return Curve(algorithm, seed, tuple(examiner.points))
