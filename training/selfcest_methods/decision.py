"""`decision` gives credit to the first turn of the root only, in which it delegates or answers.

Source: A2FM (arXiv 2510.12838) and AdaSearch (arXiv 2512.16883) train only a decision. The average over equal
decisions is that of SALT (arXiv 2510.20022). Here the decision is a turn of the episode. Details: docs/methods.md.

    the root's turn 0: A = mean of A_j over the episodes j of the group with the same decision;   all else is excluded

Expected effect: the share of delegated instances moves toward the forced choice that earns more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Count
from selfcest_env.types import ROOT, Outcome, TurnKey
from selfcest_methods.turn_selection import select_turns
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Promise, ReplayRecords
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class DecisionOptions(WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        average: whether the advantages of equal decisions are averaged.
        tokens: number of tokens of the turn that train, from its beginning; `null`: all.
        holds_others: whether all other turns take part with an advantage of 0 in place of being excluded, so that a KL
            term in the loss holds them at the reference policy. Excluded turns drift, since all turns share weights.
    """

    average: bool = True
    holds_others: bool = False
    tokens: Annotated[Count | None, "null: the whole turn"] = None


class Decision(WrapperScheme):
    """Takes the credit of another scheme, by default `rloo`, for the root's first turn only."""

    name: ClassVar[str] = "decision"
    formula: ClassVar[str] = "the root's first turn: mean A of the episodes that decided alike; all else is excluded"
    source: ClassVar[str] = "decision tokens as in A2FM and AdaSearch; averaging as in SALT, arXiv 2510.20022"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False
    default: ClassVar[str] = "rloo"

    Options = DecisionOptions
    options: DecisionOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        decisions: dict[TurnKey, tuple[bool, float]] = {}  # whether the root delegated, and its advantage
        num_tokens: dict[TurnKey, int] = {}
        for episode in group.episodes:
            key = TurnKey(episode.episode_id, ROOT, 0)
            if episode.root.turns and key in credit.advantage:
                turn = episode.root.turns[0]
                # A refused call is a decision to delegate.
                delegated = turn.facts.outcome in (Outcome.DELEGATED, Outcome.REFUSED)
                decisions[key] = (delegated, float(np.mean(credit.advantage[key])))
                num_tokens[key] = len(turn.generation.token_ids)
        mean_by_decision: dict[bool, float] = {}
        for choice in (True, False):
            advantages = [value for delegated, value in decisions.values() if delegated is choice]
            if advantages:
                mean_by_decision[choice] = float(np.mean(advantages))
        advantage: dict[TurnKey, Advantage] = {}
        for key, (delegated, turn_advantage) in decisions.items():
            value = mean_by_decision[delegated] if self.options.average else turn_advantage
            advantage[key] = self._credit_first_tokens(value, num_tokens[key])
        if self.options.holds_others:
            for episode in group.episodes:
                advantage |= {key: 0.0 for key, _ in episode.turns() if key not in advantage}
        diagnostics = {}
        if len(mean_by_decision) == 2:
            diagnostics["gap"] = mean_by_decision[True] - mean_by_decision[False]
        return select_turns(credit, group, advantage, diagnostics)

    def _credit_first_tokens(self, value: float, length: int) -> Advantage:
        """Return the advantage of a turn of this length whose first tokens have this value."""
        if self.options.tokens is None or self.options.tokens >= length:
            return value
        return (value,) * self.options.tokens + (0.0,) * (length - self.options.tokens)
