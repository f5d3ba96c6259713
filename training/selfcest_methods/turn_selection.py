"""A helper of credit schemes that train on some turns of a group only."""

from __future__ import annotations

from collections.abc import Mapping

from selfcest_env.record import EpisodeGroup
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import Advantage, Credit


def select_turns(
    credit: Credit, group: EpisodeGroup, advantage: Mapping[TurnKey, Advantage], diagnostics: Mapping[str, float]
) -> Credit:
    """Return a credit of the turns in `advantage`; all other turns of the group are excluded.

    Args:
        credit: the credit that is changed; its weights and diagnostics stay.
        group: the group of this credit.
        advantage: advantages of the turns that train.
        diagnostics: diagnostics in addition to those of the credit.
    """
    excluded: set[TurnKey] = set()
    for episode in group.episodes:
        excluded.update(key for key, _ in episode.turns() if key not in advantage)
    weight = {key: value for key, value in credit.weight.items() if key in advantage}
    return Credit(advantage, frozenset(excluded), {**credit.diagnostics, **diagnostics}, weight)
