"""`decision` gives credit to one turn alone: the root's first, in which it delegates or answers, as A2FM and AdaSearch
train a decision by itself. If it works, the share of delegated instances moves toward the forced choice that earns
more.

    the root's turn 0: A = mean of A_j over the episodes j that decided as this one did;   every other turn is excluded

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Count
from selfcest_env.types import ROOT, Outcome, TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Promise, Replayed
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class DecisionOptions(WrapperOptions):
    average: bool = True
    tokens: Annotated[Count | None, "null: the whole turn"] = None


class Decision(WrapperScheme):
    """Options: `scheme`, `{name, options}` or null (default) for `rloo`; `average` (default true); `tokens` (default
    null: the whole turn)."""

    name: ClassVar[str] = "decision"
    formula: ClassVar[str] = "the root's first turn: mean A of the episodes that decided alike; all else is excluded"
    source: ClassVar[str] = "decision tokens as in A2FM and AdaSearch; averaging as in SALT, arXiv 2510.20022"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False
    default: ClassVar[str] = "rloo"

    Options = DecisionOptions
    options: DecisionOptions

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        found = {
            TurnKey(episode.episode_id, ROOT, 0): episode.root.turns[0]
            for episode in group.episodes
            if episode.root.turns
        }
        own = {key: float(np.mean(credit.advantage[key])) for key in found if key in credit.advantage}
        delegated = {key: found[key].facts.outcome in (Outcome.DELEGATED, Outcome.REFUSED) for key in own}
        alike = {choice: [own[key] for key in own if delegated[key] is choice] or [0.0] for choice in (True, False)}
        advantage: dict[TurnKey, Advantage] = {}
        for key, value in own.items():
            chosen = float(np.mean(alike[delegated[key]])) if self.options.average else value
            length = len(found[key].generation.token_ids)
            first = length if self.options.tokens is None else min(self.options.tokens, length)
            advantage[key] = chosen if first == length else (chosen,) * first + (0.0,) * (length - first)
        every = (key for episode in group.episodes for key, _ in episode.turns())
        gap = {"gap": float(np.mean(alike[True]) - np.mean(alike[False]))} if len(set(delegated.values())) == 2 else {}
        weight = {key: value for key, value in credit.weight.items() if key in advantage}
        excluded = frozenset(key for key in every if key not in advantage)
        return Credit(advantage, excluded, {**credit.diagnostics, **gap}, weight)
