"""`decision`: credit for one thing alone, whether the root delegates or answers, on the turn in which it says so.

    the root's turn 0: A = mean of A_j over the episodes j that decided as this one did;   every other turn is excluded

A_j is that of the scheme `scheme` at the root's first turn. An episode has decided to delegate if that turn was a
call, and not to if it was anything else. With `average: false` A is the episode's own. With `tokens: n` the first n
tokens of the turn alone have it, where a model writes first what it will do; the others have 0 (they still enter a KL
term).

Source: none that defines it; a decision token trained by itself, as the modes of A2FM and the explicit decision of
AdaSearch are, for delegation as it stands in a trace. Averaging by decision is SALT's (arXiv 2510.20022) with the
decision as the action.

In a tree the roots of subtrees decide too; only the root's decision counts here. Biased: it is the gradient through
one turn, as of `per_role` with a frozen role, and with `average` the words of that turn beside the decision get no
credit of their own. What is averaged is an unbiased estimate for the decision itself if the scheme inside is one.
Degenerate cases: if all episodes of a group decide alike, the mean over all of them is 0 for a baseline that is the
group's mean: nothing is learned from such a group; a root without a turn has nothing to credit.
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
