"""`train`: any of the algorithms by name, within a budget, to a curve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.plugin import build
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_training.marl import broadcast, coma, difference, ppo, shapley
from selfcest_training.marl.games import KernelGames
from selfcest_training.marl.progress import Curve, Examiner, Progress


class Algorithm(NamedTuple):
    learn: Callable[..., Iterator[Progress]]  # (games, seed, config): one entry per update, without end
    config: type[Any]


ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm(ppo.learn, ppo.Config),
    "coma": Algorithm(coma.learn, coma.Config),
    "broadcast": Algorithm(broadcast.learn, broadcast.Config),
    "difference": Algorithm(difference.learn, difference.Config),
    "shapley": Algorithm(shapley.learn, shapley.Config),
}


def train(
    algorithm: str, rules: SymbolicRules, seed: int = 0, *, config: Mapping[str, Any] | None = None, **budget: Any
) -> Curve:
    """Learn until a budget is used up, and evaluate the greedy policy on the way.

    Args:
        algorithm: a key of `ALGORITHMS`.
        rules: of the games.
        seed: of the problems, the initial weights and the sampling.
        config: settings of the algorithm by name, other than its defaults.
        budget: `decisions`, `seconds`, `until`, `every` and `report` of `Examiner`. Decisions count those of replays.

    Raises:
        ConfigError: an unknown algorithm or setting, or no budget at all.
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError(
            f"unknown algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}."
            f"{did_you_mean(algorithm, ALGORITHMS)}"
        )
    learn, config_type = ALGORITHMS[algorithm]
    settings = build(config_type, config or {}, where=algorithm)
    examiner = Examiner(rules, **budget)
    games = KernelGames(rules, settings.episodes, seed, group_size=settings.group_size)
    for progress in learn(games, seed, settings):
        if examiner(progress.decisions, progress.actor.best):
            break
    return Curve(algorithm, seed, tuple(examiner.points))
