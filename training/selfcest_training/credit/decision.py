"""`decision` gives credit to the first turn of the root only, in which it delegates or answers.

    the root's turn 0: A = mean of A_j over the episodes j of the group with the same decision;   all else is excluded

Source: AdaSearch (arXiv 2512.16883) trains the decision apart from the solution. The average over equal decisions is
that of SALT (arXiv 2510.20022). Here the decision is a turn of the episode.

Bias: the gradient of all other turns is missing, by design. The average over equal decisions takes the chance of later
turns out of the advantage. Degenerate cases: a group that decides alike gets the mean advantage of its scheme, which is
0 for `rloo`; an episode without turns has no credit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.types import ROOT, Fault, Outcome, TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Promise, ReplayRecords
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme, select_turns


@dataclass(frozen=True)
class DecisionOptions(WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        average: whether the advantages of equal decisions are averaged.
        holds_others: whether all other turns take part with an advantage of 0 in place of being excluded, so that a KL
            term in the loss holds them at the reference policy. Excluded turns drift, since all turns share weights.
    """

    average: bool = True
    holds_others: bool = False


class Decision(WrapperScheme):
    """Takes the credit of another scheme, by default `rloo`, for the root's first turn only."""

    name: ClassVar[str] = "decision"
    formula: ClassVar[str] = "the root's first turn: mean A of the episodes that decided alike; all else is excluded"
    source: ClassVar[str] = "the decision apart, as in AdaSearch; averaging as in SALT, arXiv 2510.20022"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False
    default: ClassVar[str] = "rloo"

    Options = DecisionOptions
    options: DecisionOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        advantage: dict[TurnKey, Advantage] = {}
        values: dict[bool, list[float]] = {True: [], False: []}
        delegated: dict[TurnKey, bool] = {}
        for episode in group.episodes:
            key = TurnKey(episode.episode_id, ROOT, 0)
            if key in credit.advantage:
                advantage[key] = credit.advantage[key]
                delegated[key] = _delegates(episode)
                values[delegated[key]].append(float(np.mean(credit.advantage[key])))
        mean_by_decision = {choice: float(np.mean(found)) for choice, found in values.items() if found}
        if self.options.average:
            advantage = {key: mean_by_decision[choice] for key, choice in delegated.items()}
        if self.options.holds_others:
            for episode in group.episodes:
                advantage |= {key: 0.0 for key, _ in episode.turns() if key not in advantage}
        diagnostics = {}
        if len(mean_by_decision) == 2:
            diagnostics["gap"] = mean_by_decision[True] - mean_by_decision[False]
        return select_turns(credit, group, advantage, diagnostics)


def _delegates(episode: EpisodeRecord) -> bool:
    facts = episode.root.turns[0].facts
    if facts.outcome is not Outcome.REFUSED:
        return facts.outcome is Outcome.DELEGATED
    # A refused call is a decision to delegate, and a refused read is none. Where the record does not tell which of the
    # root's two tools was refused, it counts as a call.
    limits = episode.limits
    is_missing_tool = facts.fault is Fault.NOT_ALLOWED and not limits.reading
    return limits.delegation and facts.fault is not Fault.TOO_MANY_READS and not is_missing_tool
