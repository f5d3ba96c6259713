"""`train`: any credit with any loss, by name or as made, within a budget, to a curve."""

from __future__ import annotations

from typing import Any

from selfcest_baselines.credit import CREDITS, Credit
from selfcest_baselines.games import KernelGames
from selfcest_baselines.learner import Learner
from selfcest_baselines.loss import LOSSES, Loss
from selfcest_baselines.progress import Curve, Examiner
from selfcest_env.symbolic.rules import SymbolicRules


def train(
    credit: str | Credit,
    rules: SymbolicRules,
    seed: int = 0,
    *,
    loss: str | Loss = "clipped",
    learner: Learner | None = None,
    **budget: Any,
) -> Curve:
    """Learn until a budget is used up, and evaluate the greedy policy on the way.

    Args:
        credit: a key of `CREDITS` or `package.module:Class`, with default options; or one that is made.
        rules: of the games.
        seed: of the problems, the initial weights and the sampling.
        loss: as `credit`, of `LOSSES`.
        learner: settings of the policy and its batches.
        budget: `decisions`, `seconds`, `until`, `every` and `report` of `Examiner`. Decisions count those that replays
            sample anew.

    Raises:
        ConfigError: an unknown name, settings that do not go together, or no budget at all.
    """
    learner = learner or Learner()
    if isinstance(credit, str):
        credit = CREDITS.make(credit, {}, where="")
    if isinstance(loss, str):
        loss = LOSSES.make(loss, {}, where="")
    games = KernelGames(rules, learner.episodes, seed, group_size=learner.group_size)
    updates = learner.learn(games, credit, loss, seed)
    examiner = Examiner(rules, **budget)
    for progress in updates:
        if examiner(progress.decisions, progress.actor.best):
            break
    return Curve(tuple(examiner.points))
